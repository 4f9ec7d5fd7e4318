//! Modules: PTX that a context has taken in, its functions and its variables.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUresult;

use crate::context::Context;
use crate::device::{SHARED_OPT_IN, SHARED_PER_BLOCK, THREADS_PER_BLOCK, WARP};
use crate::driver::{self, Driver};
use crate::errors::Outcome;
use crate::handles::Table;
use crate::memory::{self, Side};
use crate::monitor::lock;
use crate::ptx::{self, Entry, Ptx, Variable};
use crate::registers;

static MODULES: Table<Module> = Table::new();
static FUNCTIONS: Table<Function> = Table::new();

/// The newest PTX that a driver takes, by its own version: from `.version` 7.0 of driver 11.0.
const PTX_OF_DRIVERS: &[(u32, (u32, u32))] = &[
    (13020, (9, 2)),
    (13010, (9, 1)),
    (13000, (9, 0)),
    (12090, (8, 8)),
    (12080, (8, 7)),
    (12070, (8, 6)),
    (12050, (8, 5)),
    (12040, (8, 4)),
    (12030, (8, 3)),
    (12020, (8, 2)),
    (12010, (8, 1)),
    (12000, (8, 0)),
    (11080, (7, 8)),
    (11070, (7, 7)),
    (11060, (7, 6)),
    (11050, (7, 5)),
    (11040, (7, 4)),
    (0, (7, 0)),
];

/// A loaded module.
pub(crate) struct Module {
    handle: u64,
    context: Arc<Context>,
    ptx: Ptx,
    /// Variables that were asked for, with their addresses.
    variables: Mutex<BTreeMap<String, u64>>,
}

/// An entry of a module.
pub(crate) struct Function {
    module: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) entry: Entry,
    pub(crate) ptx_version: (u32, u32),
    /// Dynamic shared memory that a launch may ask for, in bytes.
    max_shared: Mutex<u32>,
}

/// Why a module was not taken in.
pub(crate) struct Refusal {
    pub(crate) code: CUresult,
    /// What the compiler has to say.
    pub(crate) log: String,
}

/// Takes in a module.
pub(crate) fn load(context: Arc<Context>, image: &str) -> Result<u64, Refusal> {
    let ptx = ptx::parse(image).map_err(|error| refusal(CUresult::CUDA_ERROR_INVALID_PTX, error.line, &error.why))?;
    let driver = driver::get().map_err(|code| Refusal { code, log: String::new() })?;
    fits(&ptx, driver)?;
    Ok(MODULES.add(|handle| Module { handle, context, ptx, variables: Mutex::default() }).0)
}

fn refusal(code: CUresult, line: usize, why: &str) -> Refusal {
    Refusal { code, log: format!("ptxas application ptx input, line {line}; error   : {why}") }
}

/// Whether driver and device are new enough.
fn fits(ptx: &Ptx, driver: &Driver) -> Result<(), Refusal> {
    let newest = PTX_OF_DRIVERS.iter().find(|(version, _)| *version <= driver.config.version);
    let newest = newest.map_or((7, 0), |&(_, newest)| newest);
    if ptx.version > newest {
        let ((major, minor), (newest_major, newest_minor)) = (ptx.version, newest);
        let why = format!("Unsupported .version {major}.{minor}; current version is '{newest_major}.{newest_minor}'");
        return Err(refusal(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, ptx.lines.0, &why));
    }
    let (major, minor) = driver.config.capability;
    let device = 10 * major + minor;
    let why = match ptx.target {
        target if target > device => "SM version specified by .target is higher than default SM version assumed",
        target if ptx.exact && target != device => "SM version specified by .target is for another architecture",
        _ => return Ok(()),
    };
    Err(refusal(CUresult::CUDA_ERROR_INVALID_PTX, ptx.lines.1, why))
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
        let entry = self.ptx.entries.iter().find(|entry| entry.name == name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let known = FUNCTIONS.find(|function| function.module == self.handle && function.entry.name == name);
        Ok(known.map_or_else(|| self.add(entry), |(handle, _)| handle))
    }

    fn add(&self, entry: &Entry) -> u64 {
        let function = Function {
            module: self.handle,
            context: self.context.clone(),
            entry: entry.clone(),
            ptx_version: self.ptx.version,
            max_shared: Mutex::new(SHARED_PER_BLOCK),
        };
        FUNCTIONS.add(|_| function).0
    }

    /// Address and bytes of a variable.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND`, `CUDA_ERROR_NOT_SUPPORTED` if it begins with more than integers,
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub(crate) fn variable(&self, name: &str) -> Outcome<(u64, usize)> {
        let found = self.ptx.variables.iter().find(|variable| variable.name == name);
        let Variable { bytes, initial, .. } = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let initial = initial.as_deref().ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let mut variables = lock(&self.variables);
        if let Some(&at) = variables.get(name) {
            return Ok((at, *bytes));
        }
        let at = memory::allocate(self.context.clone(), *bytes)?;
        // SAFETY: the memory was just made, of at least so many bytes.
        unsafe { core::ptr::copy_nonoverlapping(initial.as_ptr(), Side::Device(at).pointer(), initial.len()) };
        variables.insert(name.to_owned(), at);
        Ok((at, *bytes))
    }
}

impl Function {
    /// Threads that a block may have.
    pub(crate) fn max_threads(&self) -> u32 {
        let most = self.entry.max_threads.unwrap_or(THREADS_PER_BLOCK);
        most.min(self.warps() * WARP).min(THREADS_PER_BLOCK)
    }

    /// Warps that a multiprocessor has registers for.
    pub(crate) fn warps(&self) -> u32 {
        registers::warps(registers::most(&self.entry))
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
