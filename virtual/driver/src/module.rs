//! Modules: PTX that a context has taken in, its functions and its variables.

use std::sync::{Arc, Mutex};

use congruent_verify::ptx;
use cudarc::driver::sys::CUresult;

use crate::config::Engine;
use crate::context::Context;
use crate::device::{Device, SHARED_PER_BLOCK, THREADS_PER_BLOCK, WARP};
use crate::driver;
use crate::engine::{self, Request};
use crate::errors::Outcome;
use crate::handles::Table;
use crate::image::{self, Image, Refusal};
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
    /// Where each of the image's variables is.
    globals: Arc<[u64]>,
    /// The memory that they are in, if there are any.
    memory: Option<u64>,
}

/// An entry of a module.
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) image: Arc<Image>,
    /// Which of the image's kernels it is.
    index: usize,
    /// Dynamic shared memory that a launch may ask for, in bytes.
    max_shared: Mutex<u32>,
}

/// Takes in a module.
///
/// # Errors
/// Why its image was refused, and the driver's where there is none.
pub(crate) fn load(context: Arc<Context>, text: &str) -> Result<u64, Refusal> {
    let config = driver::get()?.config;
    let image = Image::of(text, config, |heads| match config.engine {
        Engine::Native => image::outline_of_heads(heads, text),
        Engine::Ptx => engine::outline(text.to_owned()),
    })?;
    let image = Arc::new(image);
    let (globals, memory) = place_globals(&context, &image)?;
    let places = globals.to_vec();
    let (module, _) = MODULES.add(|handle| Module { handle, context, image, globals, memory });
    let loaded = engine::ask(Request::Load { module, text: text.to_owned(), globals: places }, &[]);
    match loaded {
        Ok(_) => Ok(module),
        Err(refusal) => {
            unload(module)?;
            Err(refusal)
        }
    }
}

/// Allocates the variables of an image, and writes what they hold at first.
fn place_globals(context: &Arc<Context>, image: &Image) -> Outcome<(Arc<[u64]>, Option<u64>)> {
    let (places, bytes) = image.layout();
    if bytes == 0 {
        return Ok((Arc::new([]), None));
    }
    let bytes = usize::try_from(bytes).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let memory = memory::allocate(context.clone(), bytes)?;
    // Variables without a value hold zeros.
    memory::host_writes(Side::Device(memory), bytes)?;
    let globals: Arc<[u64]> = places.iter().map(|place| memory + place).collect();
    for (index, &at) in globals.iter().enumerate() {
        let value = image.outline.initial(index, &globals);
        // SAFETY: the memory was just made, with room for each variable at its place, and nobody else knows it yet.
        unsafe { core::ptr::copy_nonoverlapping(value.as_ptr(), Side::Device(at).pointer(), value.len()) };
    }
    Ok((globals, Some(memory)))
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
    // An engine that is gone has forgotten it.
    let _forgotten = engine::tell(Request::Unload { module: module.handle }, &[]);
    if let Some(at) = module.memory {
        // It was allocated for this module, and nobody else frees it.
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
    /// `CUDA_ERROR_NOT_FOUND`
    pub(crate) fn variable(&self, name: &str) -> Outcome<(u64, usize)> {
        let known = self.image.outline.globals.iter().zip(&*self.globals);
        let found =
            known.filter(|(global, _)| global.name == name).map(|(global, &at)| (at, global.bytes as usize)).next();
        found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }
}

impl Function {
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`
    pub(crate) fn device(&self) -> Outcome<&'static Device> {
        Ok(driver::get()?.device(self.context.ordinal)?)
    }

    pub(crate) fn entry(&self) -> &ptx::Function {
        &self.image.entries[self.index]
    }

    /// Threads that a block may have.
    pub(crate) fn max_threads(&self) -> u32 {
        let most = registers::most_threads(&self.entry().launch).unwrap_or(THREADS_PER_BLOCK);
        most.min(self.warps() * WARP).min(THREADS_PER_BLOCK)
    }

    /// Registers of a thread.
    pub(crate) fn registers(&self) -> u32 {
        registers::most(&self.entry().launch)
    }

    /// Warps that a multiprocessor has registers for.
    pub(crate) fn warps(&self) -> u32 {
        registers::warps(self.registers())
    }

    /// Bytes of shared memory that a block has without asking.
    pub(crate) fn static_shared(&self) -> u64 {
        self.image.outline.static_shared.get(&self.entry().name).copied().unwrap_or(0)
    }

    /// Bytes of dynamic shared memory that a block may have.
    pub(crate) fn max_shared(&self) -> u32 {
        *lock(&self.max_shared)
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for more than a block can have, beside what it has without asking
    pub(crate) fn set_max_shared(&self, bytes: i32) -> Outcome {
        let most = u64::from(self.device()?.shared).saturating_sub(self.static_shared());
        let bytes = u32::try_from(bytes).ok().filter(|&bytes| u64::from(bytes) <= most);
        *lock(&self.max_shared) = bytes.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        Ok(())
    }
}
