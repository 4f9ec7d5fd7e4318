//! Modules, their functions and variables.

use core::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUdeviceptr, CUfunction, CUfunction_attribute as FunctionAttribute, CUjit_option as JitOption,
};
use cudarc::driver::sys::{CUmodule, CUresult};

use crate::entry::{Ptr, entry_points};
use crate::errors::Outcome;
use crate::launch;
use crate::{capture, context, module, stream};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// How files of compiled code begin: ELF, and NVIDIA's container of several.
const COMPILED: [[u8; 4]; 2] = [*b"\x7fELF", [0x50, 0xed, 0x55, 0xba]];

/// Where a caller wants to hear of a compilation: options and their values side by side.
struct Options {
    count: usize,
    options: Ptr<c_uint>,
    values: Ptr<*mut c_void>,
}

impl Options {
    /// The value of an option, if it was given.
    fn value(&self, wanted: JitOption) -> Outcome<Option<(usize, *mut c_void)>> {
        for index in 0..self.count {
            if self.options.at(index).get()? == wanted as u32 {
                return Ok(Some((index, self.values.at(index).get()?)));
            }
        }
        Ok(None)
    }

    /// Writes a log into the buffer that the caller gave for it, and how many bytes that took into the option that
    /// said how many there are.
    fn log(&self, buffer: JitOption, room: JitOption, text: &str) -> Outcome {
        let (Some((_, buffer)), Some((index, bytes))) = (self.value(buffer)?, self.value(room)?) else {
            return Ok(());
        };
        let room = bytes.addr();
        if room == 0 {
            return Ok(());
        }
        // SAFETY: the caller promised a buffer of the size that the other option says.
        let buffer: Ptr<c_char> = unsafe { crate::entry::Argument::take(buffer.cast::<c_char>()) };
        buffer.set_text(text, room)?;
        self.values.at(index).set(core::ptr::without_provenance_mut(text.len().min(room - 1) + 1))
    }
}

/// Takes in a module once the context is idle. The driver's "may require context synchronization" (CUDA C++ Programming Guide, "Lazy
/// Loading", "Concurrent execution"), and on a GPU it did: whoever loads while a kernel waits for them waits for ever.
fn load(given: Ptr<CUmodule>, image: Ptr<c_void>, options: &Options) -> Outcome {
    capture::refuse_unsafe()?;
    stream::drain(&context::current()?)?;
    if image.is_null() {
        return Err(INVALID);
    }
    // Not beyond the zero at the end of a text shorter than this.
    let first = |index| image.cast::<u8>().at(index).get().ok().filter(|&byte| byte != 0);
    let start: Vec<u8> = (0..4).map_while(first).collect();
    if COMPILED.iter().any(|magic| start == *magic) {
        // Compiled code is for real devices.
        return Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    let text = image.cast::<c_char>().text().map_err(|_| CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    match module::load(context::current()?, &text) {
        Ok(handle) => {
            let (buffer, room) = (JitOption::CU_JIT_INFO_LOG_BUFFER, JitOption::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
            options.log(buffer, room, "")?;
            given.set(core::ptr::without_provenance_mut(handle as usize))
        }
        Err(refusal) => {
            let (buffer, room) = (JitOption::CU_JIT_ERROR_LOG_BUFFER, JitOption::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
            options.log(buffer, room, &refusal.log)?;
            Err(refusal.code)
        }
    }
}

entry_points! {
    /// Takes in a module: PTX that ends with a zero.
    Context fn cuModuleLoadData(given: *mut CUmodule, image: *const c_void) {
        let options = Options { count: 0, options: image.cast(), values: image.cast() };
        load(given, image, &options)
    }

    /// Takes in a module, and says in the caller's buffers what is wrong with it. Other options change nothing.
    Context fn cuModuleLoadDataEx(
        given: *mut CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    ) {
        load(given, image, &Options { count: count as usize, options, values })
    }

    /// Ends a module, its functions and its variables.
    Context fn cuModuleUnload(module: CUmodule) {
        module::unload(module.address())
    }

    /// An entry of a module by its name.
    Context fn cuModuleGetFunction(given: *mut CUfunction, module: CUmodule, name: *const c_char) {
        let function = module::find(module.address())?.entry(&name.text()?)?;
        given.set(core::ptr::without_provenance_mut(function as usize))
    }

    /// Loads a function: nothing, as modules are loaded whole.
    Context fn cuFuncLoad(function: CUfunction) {
        module::function(function.address()).map(drop)
    }

    /// A variable of a module by its name.
    Context fn cuModuleGetGlobal_v2(at: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char) {
        let (address, size) = module::find(module.address())?.variable(&name.text()?)?;
        at.set_if_asked(address);
        bytes.set_if_asked(size);
        Ok(())
    }

    /// An attribute of a function. What only compiled code has, such as registers, is 0.
    Context fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: CUfunction) {
        use FunctionAttribute as F;
        const MAX_THREADS: u32 = F::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as u32;
        const MAX_SHARED: u32 = F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
        const SHARED: u32 = F::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as u32;
        const PTX: u32 = F::CU_FUNC_ATTRIBUTE_PTX_VERSION as u32;
        const BINARY: u32 = F::CU_FUNC_ATTRIBUTE_BINARY_VERSION as u32;
        const END: u32 = F::CU_FUNC_ATTRIBUTE_MAX as u32;
        let function = module::function(function.address())?;
        let (major, minor) = function.image.version;
        let device = function.device()?;
        value.set(match attribute {
            MAX_THREADS => function.max_threads() as c_int,
            MAX_SHARED => function.max_shared() as c_int,
            SHARED => function.static_shared() as c_int,
            PTX => (10 * major + minor) as c_int,
            BINARY => (10 * device.capability.0 + device.capability.1) as c_int,
            END.. => return Err(INVALID),
            _ => 0,
        })
    }

    /// Sets an attribute of a function: its dynamic shared memory, or a wish for how that is divided, which changes
    /// nothing.
    Context fn cuFuncSetAttribute(function: CUfunction, attribute: c_uint, value: c_int) {
        const MAX_SHARED: u32 = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
        const CARVEOUT: u32 = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as u32;
        let function = module::function(function.address())?;
        match attribute {
            MAX_SHARED => function.set_max_shared(value),
            CARVEOUT if (-1..=100).contains(&value) => Ok(()),
            _ => Err(INVALID),
        }
    }

    /// How many blocks of a function a multiprocessor holds at one time.
    Context fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: CUfunction,
        threads: c_int,
        shared: usize,
    ) {
        let threads = u32::try_from(threads).ok().filter(|&threads| threads > 0).ok_or(INVALID)?;
        blocks.set(launch::occupancy(&*module::function(function.address())?, threads, shared)? as c_int)
    }

    /// The same; the one flag there is, about a cache, changes nothing.
    Context fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int,
        function: CUfunction,
        threads: c_int,
        shared: usize,
        flags: c_uint,
    ) {
        let threads = u32::try_from(threads).ok().filter(|&threads| threads > 0 && flags <= 1).ok_or(INVALID)?;
        blocks.set(launch::occupancy(&*module::function(function.address())?, threads, shared)? as c_int)
    }
}
