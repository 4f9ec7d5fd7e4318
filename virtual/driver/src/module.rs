//! Modules: PTX that a context has taken in, its functions and its variables.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use congruent_verify::ptx;
use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::device::{SHARED_OPT_IN, SHARED_PER_BLOCK, THREADS_PER_BLOCK, WARP};
use crate::driver;
use crate::errors::Outcome;
use crate::handles::Table;
use crate::image::{Image, Refusal};
use crate::memory::{self, Side};
use crate::monitor::lock;
use crate::registers;

static MODULES: Table<Module> = Table::new();
static FUNCTIONS: Table<Function> = Table::new();

/// A loaded module.
pub(crate) struct Module {
    handle: u64,
    context: Arc<Context>,
    image: Arc<Image>,
    /// Variables that were asked for, with their addresses.
    variables: Mutex<BTreeMap<String, u64>>,
}

/// An entry of a module.
pub(crate) struct Function {
    module: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) image: Arc<Image>,
    /// Which function of the image it is.
    index: usize,
    /// Dynamic shared memory that a launch may ask for, in bytes.
    max_shared: Mutex<u32>,
}

/// Takes in a module.
///
/// # Errors
/// Why its image was refused, and the driver's where there is none.
pub(crate) fn load(context: Arc<Context>, text: &str) -> Result<u64, Refusal> {
    let driver = driver::get().map_err(|code| Refusal { code, log: String::new() })?;
    let image = Arc::new(Image::read(text, driver.config)?);
    Ok(MODULES.add(|handle| Module { handle, context, image, variables: Mutex::default() }).0)
}

/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, and the fault of its context
pub(crate) fn find(handle: u64) -> Outcome<Arc<Module>> {
    let module = MODULES.get(handle)?;
    module.context.check()?;
    Ok(module)
}

/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`
pub(crate) fn unload(handle: u64) -> Outcome {
    end(&*MODULES.remove(handle)?);
    Ok(())
}

/// Unloads all modules of a context.
pub(crate) fn end_all(context: &Arc<Context>) {
    for module in MODULES.remove_all(|module| Arc::ptr_eq(&module.context, context)) {
        end(&module);
    }
}

fn end(module: &Module) {
    FUNCTIONS.remove_all(|function| function.module == module.handle);
    for &at in lock(&module.variables).values() {
        // It was allocated for this variable, and nobody else frees it.
        let _freed = memory::free(at);
    }
}

/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, and the fault of its context
pub(crate) fn function(handle: u64) -> Outcome<Arc<Function>> {
    let function = FUNCTIONS.get(handle)?;
    function.context.check()?;
    Ok(function)
}

impl Module {
    /// The handle of an entry, the same each time.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND`
    pub(crate) fn entry(&self, name: &str) -> Outcome<u64> {
        let index = self.image.entry(name)?;
        let known = FUNCTIONS.find(|function| function.module == self.handle && function.index == index);
        Ok(known.map_or_else(|| self.add(index), |(handle, _)| handle))
    }

    fn add(&self, index: usize) -> u64 {
        let function = Function {
            module: self.handle,
            context: self.context.clone(),
            image: self.image.clone(),
            index,
            max_shared: Mutex::new(SHARED_PER_BLOCK),
        };
        FUNCTIONS.add(|_| function).0
    }

    /// Address and bytes of a variable.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND`, `CUDA_ERROR_NOT_SUPPORTED` if it begins with addresses,
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub(crate) fn variable(&self, name: &str) -> Outcome<(u64, usize)> {
        let (variable, bytes) = self.image.variable(name)?;
        if !variable.addresses.is_empty() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let initial = &variable.initial;
        let mut variables = lock(&self.variables);
        if let Some(&at) = variables.get(name) {
            return Ok((at, bytes));
        }
        let at = memory::allocate(self.context.clone(), bytes)?;
        // SAFETY: the memory was just made, of as many bytes as the variable has, which its value fits into.
        unsafe { core::ptr::copy_nonoverlapping(initial.as_ptr(), Side::Device(at).pointer(), initial.len()) };
        variables.insert(name.to_owned(), at);
        Ok((at, bytes))
    }
}

impl Function {
    pub(crate) fn entry(&self) -> &ptx::Function {
        &self.image.ptx.functions[self.index]
    }

    /// Threads that a block may have.
    pub(crate) fn max_threads(&self) -> u32 {
        let most = registers::most_threads(&self.entry().launch).unwrap_or(THREADS_PER_BLOCK);
        most.min(self.warps() * WARP).min(THREADS_PER_BLOCK)
    }

    /// Warps that a multiprocessor has registers for.
    pub(crate) fn warps(&self) -> u32 {
        registers::warps(registers::most(&self.entry().launch))
    }

    /// Bytes of dynamic shared memory that a block may have.
    pub(crate) fn max_shared(&self) -> u32 {
        *lock(&self.max_shared)
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for more than a block can have
    pub(crate) fn set_max_shared(&self, bytes: i32) -> Outcome {
        let bytes = u32::try_from(bytes).ok().filter(|&bytes| bytes <= SHARED_OPT_IN);
        *lock(&self.max_shared) = bytes.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        Ok(())
    }
}
