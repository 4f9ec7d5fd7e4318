//! Kernels as the driver has them: modules are loaded once for each context, functions found once for each module.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use congruent_device::{Kernel, KernelArgs, Module};
use cudarc::driver::sys;
use cudarc::driver::sys::{CUfunction_attribute, CUjit_option, CUresult};

use super::device::Context;
use super::error::CudaVersion;
use super::functions::Functions;
use super::residents::Need;
use super::{CudaError, Device, files, monitor, native, parameters, patience};
use crate::{Grid, LaunchError};

/// A kernel, as a launch names it.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    module: Option<&'static Module>,
    body: native::Body,
    /// Bytes of each argument after the context.
    arguments: &'static [usize],
    /// Whether launches say how much shared memory it has.
    asks_for_shared: bool,
    /// Whether it says that it never waits.
    pub(crate) independent: bool,
}

/// The modules that a PE has: they stay loaded for as long as it is there.
pub(super) struct Modules {
    device: Arc<Device>,
    /// Whether each of the library's kernels is a module by itself, loaded before its first launch.
    lazy: bool,
    known: Mutex<HashMap<Key, Found>>,
}

/// The module of a crate, by its address; of one of its kernels, with what that calls, where it is loaded by itself.
type Key = (usize, Option<&'static str>);

/// A module in this PE's context, or that the driver is too old for it.
type Found = Result<Arc<Loaded>, CudaError>;

/// A module of all PEs in a context, where one of them has it.
type Slot = Arc<Mutex<Weak<Loaded>>>;

/// A kernel in a context.
pub(super) struct Function {
    known: Known,
    /// It goes with its module.
    module: Arc<Loaded>,
}

/// What is found out of a function once.
#[derive(Clone, Copy)]
struct Known {
    raw: usize,
    most_threads: u32,
    /// Bytes of dynamic shared memory.
    most_shared: u32,
    /// Whether it may wait for another kernel.
    waits: bool,
}

/// A module in a context.
struct Loaded {
    name: &'static str,
    /// The one kernel that it has of its text.
    kernel: Option<&'static str>,
    text: &'static str,
    raw: sys::CUmodule,
    context: Context,
    functions: Mutex<HashMap<&'static str, Known>>,
}

// SAFETY: handles of the driver, which may be used from any thread (CUDA Driver API, "Context management": a context may be
// current in several threads at once).
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// The library's own.
static OWN: [&Module; 5] = [
    &congruent_kernels::PTX,
    &congruent_kernels::MULTIMEM,
    &congruent_sum_kernels::PTX,
    &congruent_moe_kernels::PTX,
    &congruent_stream_kernels::PTX,
];

/// Bytes of the compiler's messages.
const LOG: usize = 8192;

/// Why this device cannot run the fixed kernels that use multicast, or nothing if it can. That is asked with the head of their image,
/// so that nothing is compiled for the answer.
pub(super) fn lacks_multimem(device: &Device) -> Result<Option<String>, CudaError> {
    let module = &congruent_kernels::MULTIMEM;
    for (arch, text) in images(module, device.properties.compute)? {
        match compile(device, module.name, arch, &head(text)) {
            Err(CudaError::PtxTooNew { .. }) => continue,
            compiled => {
                // SAFETY: it was just loaded, and nobody has a function of it.
                unsafe { device.driver().module_unload(compiled?) }?;
                return Ok(None);
            }
        }
    }
    let version = device.driver().version();
    Ok(Some(format!("the driver, for CUDA {version}, is too old for kernels with multicast: install a newer driver")))
}

/// PTX of the same version and for the same architecture, with nothing in it.
fn head(text: &str) -> String {
    let lines =
        text.lines().filter(|line| [".version", ".target", ".address_size"].iter().any(|word| line.starts_with(word)));
    lines.flat_map(|line| [line, "\n"]).chain([".visible .entry congruent_nothing() { ret; }\n"]).collect()
}

impl Entry {
    pub(crate) const fn of<K: Kernel>() -> Self {
        let (arguments, asks_for_shared) = (K::Args::SIZES, K::SHARED.1 > 0);
        Self {
            name: K::NAME,
            module: K::MODULE,
            body: native::body::<K>,
            arguments,
            asks_for_shared,
            independent: K::INDEPENDENT,
        }
    }
}

impl Modules {
    pub(super) fn new(device: &Arc<Device>, lazy: bool) -> Self {
        Self { device: Arc::clone(device), lazy, known: Mutex::default() }
    }

    /// Loads what launches may name without their crate's PTX: the library's own modules, unless they are lazy, and the files of
    /// `CONGRUENT_PTX`. Behind this, PEs meet before any of them launches a kernel. A file that the driver is too old for is left
    /// to launches, which say so.
    pub(super) fn load_known(&self, multicast: bool) -> Result<(), CudaError> {
        let own = OWN.into_iter().filter(|module| multicast || !std::ptr::eq(*module, &congruent_kernels::MULTIMEM));
        let own = own.filter(|_| !self.lazy);
        for module in own.chain(files::all(self.device.properties.compute)) {
            match self.get(module, None) {
                Err(CudaError::PtxTooNew { .. }) => {}
                loaded => loaded?.load_functions()?,
            }
        }
        Ok(())
    }

    /// Loads the module that has the kernel, with all that it has.
    pub(super) fn load(&self, entry: &Entry) -> Result<(), CudaError> {
        self.device.bind()?;
        self.module(entry)?.load_functions()
    }

    /// The kernel in this PE's context; its module is loaded if it was not yet.
    pub(super) fn function(&self, entry: &Entry) -> Result<Function, CudaError> {
        let loaded = self.module(entry)?;
        let mut functions = lock(&loaded.functions);
        let known = match functions.get(entry.name) {
            Some(&known) => known,
            None => {
                let found = loaded.function(entry, self.device.properties.shared)?;
                functions.insert(entry.name, found);
                found
            }
        };
        drop(functions);
        Ok(Function { known, module: loaded })
    }

    /// The module that has the kernel: a file of `CONGRUENT_PTX`, if it has the name of the kernel's crate or that embeds none, or else
    /// what the crate embeds; of several, the newest that the driver can compile.
    fn module(&self, entry: &Entry) -> Found {
        let mut failed = CudaError::NoPtx { kernel: entry.name };
        // A crate may name a module before there is PTX for it.
        let own = entry.module.filter(|module| !module.images.is_empty());
        let files = files::with(entry.name, self.device.properties.compute).into_iter();
        // Another crate's kernel may have the same name.
        for module in files.filter(|file| own.is_none_or(|own| files::is_of(file, own.name))).chain(own) {
            let is_own = OWN.iter().any(|own| std::ptr::eq(*own, module));
            match self.get(module, (self.lazy && is_own).then_some(entry.name)) {
                Err(error @ CudaError::PtxTooNew { .. }) => failed = error,
                found => return found,
            }
        }
        Err(failed)
    }

    /// A module in this PE's context, or what one of its kernels needs of it; it is loaded if it was not yet.
    fn get(&self, module: &'static Module, kernel: Option<&'static str>) -> Found {
        let key = (std::ptr::from_ref(module) as usize, kernel);
        if let Some(known) = lock(&self.known).get(&key) {
            return known.clone();
        }
        // Loading may wait for kernels, and these for what another thread launches meanwhile.
        let found = Loaded::find(&self.device, module, kernel);
        // It is asked for at every launch, and a driver does not get newer.
        if matches!(found, Ok(_) | Err(CudaError::PtxTooNew { .. })) {
            lock(&self.known).insert(key, found.clone());
        }
        found
    }
}

impl Function {
    pub(super) fn raw(&self) -> sys::CUfunction {
        self.known.raw as sys::CUfunction
    }

    /// Whether it may wait for another kernel.
    pub(super) fn waits(&self) -> bool {
        self.known.waits
    }

    /// Whether this GPU has room for a block as the grid has them.
    pub(super) fn block_fits(&self, kernel: &'static str, grid: Grid) -> Result<(), LaunchError> {
        let Known { most_threads, most_shared, .. } = self.known;
        if grid.threads > most_threads {
            return Err(LaunchError::TooManyThreads { kernel, asked: grid.threads, fits: most_threads });
        }
        if grid.shared > most_shared {
            return Err(LaunchError::SharedMemory { kernel, asked: grid.shared, fits: most_shared });
        }
        Ok(())
    }

    /// What the blocks of a launch hold while they run.
    pub(super) fn need(&self, Grid { blocks, threads, shared }: Grid) -> Result<Need, CudaError> {
        let (driver, mut of_sm) = (self.module.context.driver(), 0);
        // SAFETY: the function is of a module that is loaded, and the place for the number is there.
        unsafe { driver.blocks_per_multiprocessor(&raw mut of_sm, self.raw(), threads as i32, shared as usize) }?;
        Ok(Need { blocks, of_sm: u32::try_from(of_sm).unwrap_or(0) })
    }
}

impl Loaded {
    /// The module in this context. PEs of a process that share a context share it: loading one may wait until the GPU is idle,
    /// which it is not while another PE's kernel waits for this PE.
    fn find(device: &Device, module: &'static Module, kernel: Option<&'static str>) -> Result<Arc<Self>, CudaError> {
        static ALL: Mutex<BTreeMap<(usize, Key), Slot>> = Mutex::new(BTreeMap::new());
        let key = (device.context().raw() as usize, (std::ptr::from_ref(module) as usize, kernel));
        // Who wants another module does not wait for this one.
        let one = {
            let mut all = lock(&ALL);
            all.retain(|_, one| Arc::strong_count(one) > 1 || lock(one).strong_count() > 0);
            Arc::clone(all.entry(key).or_default())
        };
        let mut one = lock(&one);
        if let Some(known) = one.upgrade() {
            return Ok(known);
        }
        let loaded = Arc::new(Self::load(device, module, kernel)?);
        *one = Arc::downgrade(&loaded);
        Ok(loaded)
    }

    /// The newest image that the GPU can run and the driver can compile: PTX may be of a version that came after the driver.
    fn load(device: &Device, module: &'static Module, kernel: Option<&'static str>) -> Result<Self, CudaError> {
        let (mut newest, began) = (None, Instant::now());
        for (arch, text) in images(module, device.properties.compute)? {
            let program = kernel.and_then(|kernel| Functions::of(text).program(kernel));
            match compile(device, module.name, arch, program.as_deref().unwrap_or(text)) {
                Err(error @ CudaError::PtxTooNew { .. }) => {
                    tracing::debug!("{error}; an older image is tried");
                    newest.get_or_insert(error);
                }
                compiled => {
                    tracing::info!("{} loaded for {arch}, in {:?}", kernel.unwrap_or(module.name), began.elapsed());
                    let context = device.keeper().clone();
                    let (raw, functions) = (compiled?, Mutex::default());
                    return Ok(Self { name: module.name, kernel, text, raw, context, functions });
                }
            }
        }
        Err(newest.unwrap_or_else(|| no_image(module, device.properties.compute)))
    }

    /// Loads all its kernels.
    fn load_functions(&self) -> Result<(), CudaError> {
        let functions = Functions::of(self.text);
        let mut has = functions.entries().filter(|name| self.kernel.is_none_or(|kernel| kernel == *name));
        has.try_for_each(|name| self.load_function(name).map(drop))
    }

    /// Loads a kernel. Not at its first launch, when the driver may wait for kernels that wait for this one (CUDA C++ Programming Guide,
    /// "Lazy Loading"). For older drivers, `congruent run` says CUDA_MODULE_LOADING=EAGER.
    fn load_function(&self, name: &str) -> Result<sys::CUfunction, CudaError> {
        let (driver, name) = (self.context.driver(), CString::new(name).unwrap_or_default());
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a null, and the place for the function is there.
        unsafe { driver.module_get_function(&raw mut raw, self.raw, name.as_ptr()) }?;
        // SAFETY: a function of a module that is loaded.
        match unsafe { driver.func_load(raw) } {
            Ok(()) | Err(CudaError::MissingSymbol { .. }) => Ok(raw),
            Err(error) => Err(error),
        }
    }

    /// The function, and what is to be known of it.
    fn function(&self, entry: &Entry, shared: u32) -> Result<Known, CudaError> {
        let functions = Functions::of(self.text);
        parameters::check(self.name, &functions, entry.name, entry.arguments)?;
        let driver = self.context.driver();
        // SAFETY: the virtual driver's function is of this type.
        if let Some(register) = unsafe { driver.optional::<native::Register>(native::REGISTER) } {
            let name = CString::new(entry.name).unwrap_or_default();
            // SAFETY: the name ends with a null, and the virtual driver copies it.
            unsafe { register(name.as_ptr(), entry.body) };
        }
        let raw = self.load_function(entry.name)?;
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        let mut most = 0;
        // SAFETY: a function of a module that is loaded, and a place for the number.
        unsafe { driver.func_get_attribute(&raw mut most, attribute, raw) }?;
        let most_shared = if entry.asks_for_shared { self.most_shared(raw, shared)? } else { 0 };
        let waits = patience::waits(&functions, entry.name);
        Ok(Known { raw: raw as usize, most_threads: u32::try_from(most).unwrap_or(0), most_shared, waits })
    }

    /// Lets launches of a function ask for as much shared memory as a block can have, `shared` bytes, beside what it has always; says
    /// how much that is. Without, the driver refuses more than 48 KiB (CUDA Driver API, cuFuncSetAttribute).
    fn most_shared(&self, raw: sys::CUfunction, shared: u32) -> Result<u32, CudaError> {
        let (driver, mut always) = (self.context.driver(), 0);
        // SAFETY: a function of a module that is loaded, and a place for the number.
        unsafe {
            driver.func_get_attribute(&raw mut always, CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, raw)
        }?;
        let most = shared.saturating_sub(always.unsigned_abs());
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        unsafe { driver.func_set_attribute(raw, attribute, most as i32) }?;
        Ok(most)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: loaded in `load`; whoever had a function of it is gone.
            let _unloaded_or_gone_with_the_context = unsafe { driver.module_unload(self.raw) };
        }
    }
}

/// `CU_JIT_SPLIT_COMPILE`: how many threads compile, and 0 is one for each core. The bindings are of a CUDA without it.
const SPLIT_COMPILE: c_uint = 34;
/// The first driver that knows it.
const SPLITS: CudaVersion = CudaVersion::new(13, 0);

/// An image as the driver has it.
fn compile(device: &Device, module: &'static str, arch: &'static str, text: &str) -> Result<sys::CUmodule, CudaError> {
    let ptx = CString::new(text).map_err(|_| CudaError::BadPtx { module, arch, log: "a null byte".into() })?;
    device.bind()?;
    let mut log = [0_u8; LOG];
    let (buffer, bytes) = (CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
    let mut options = [buffer as c_uint, bytes as c_uint, SPLIT_COMPILE];
    // The driver takes numbers where it wants numbers, in the room of a pointer (CUDA Driver API, cuModuleLoadDataEx).
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG), std::ptr::null_mut()];
    let count = options.len() as c_uint - c_uint::from(device.driver().version() < SPLITS);
    let (mut raw, mode) = (std::ptr::null_mut(), monitor::relax(device.driver()));
    // SAFETY: `ptx` ends with a null; `count` is of options that this driver knows and that have values of the kinds that they say; the
    // log has as many bytes as its size says.
    let loaded = unsafe {
        let (options, values) = (options.as_mut_ptr().cast(), values.as_mut_ptr());
        device.driver().module_load_data_ex(&raw mut raw, ptx.as_ptr().cast(), count, options, values)
    };
    monitor::exchange(device.driver(), mode);
    loaded.map_err(|error| {
        let said = CStr::from_bytes_until_nul(&log).map(|said| said.to_string_lossy().trim().to_owned());
        match said {
            _ if error.is(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION) => {
                CudaError::PtxTooNew { module, arch, log: said.unwrap_or_default() }
            }
            Ok(log) if !log.is_empty() => CudaError::BadPtx { module, arch, log },
            _ => error,
        }
    })?;
    Ok(raw)
}

/// The images that the GPU can run, the newest first; at least one.
pub(super) fn images(
    module: &'static Module,
    compute: (u32, u32),
) -> Result<Vec<(&'static str, &'static str)>, CudaError> {
    let device = compute.0 * 10 + compute.1;
    let fits = module.images.iter().filter(|(arch, _)| number(arch).is_some_and(|needs| needs <= device));
    let mut fits: Vec<_> = fits.copied().collect();
    fits.sort_by_key(|(arch, _)| std::cmp::Reverse(number(arch)));
    if fits.is_empty() { Err(no_image(module, compute)) } else { Ok(fits) }
}

fn no_image(module: &'static Module, compute: (u32, u32)) -> CudaError {
    CudaError::NoImage {
        module: module.name,
        has: module.images.iter().map(|(arch, _)| *arch).collect::<Vec<_>>().join(", "),
        device: format!("sm_{}", compute.0 * 10 + compute.1),
    }
}

/// The number of an architecture: 90 for `sm_90`.
pub(super) fn number(arch: &str) -> Option<u32> {
    arch.strip_prefix("sm_")?.parse().ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    static THREE: Module = Module { name: "three", images: &[("sm_80", "a"), ("sm_100", "c"), ("sm_90", "b")] };

    #[test]
    fn a_gpu_gets_the_images_that_it_can_run_the_newest_first() {
        for (compute, archs) in [
            ((8, 0), &["sm_80"][..]),
            ((8, 9), &["sm_80"]),
            ((9, 0), &["sm_90", "sm_80"]),
            ((10, 3), &["sm_100", "sm_90", "sm_80"]),
            ((12, 0), &["sm_100", "sm_90", "sm_80"]),
        ] {
            let found: Vec<_> = images(&THREE, compute).unwrap().into_iter().map(|(arch, _)| arch).collect();
            assert_eq!(found, archs);
        }
        assert!(matches!(images(&THREE, (7, 5)), Err(CudaError::NoImage { .. })));
    }
}
