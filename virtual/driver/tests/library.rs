//! The library as programs load it: its names, its symbols, faults that are asked for, and cudarc on top.
#![allow(clippy::unwrap_used, reason = "clippy takes only functions marked as tests for such")]

mod common;

use std::ffi::CString;
use std::path::Path;

use common::{again, alone, begin, call, is_child, ok, passes, stream};
use congruent_virtual_driver::*;
use cudarc::driver::sys::CUresult;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

fn load(path: &Path) -> Library {
    // SAFETY: the virtual driver's initialisers are those of the standard library.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.unwrap()
}

fn has(library: &Library, name: &str) -> bool {
    // SAFETY: the symbol is looked for, not used.
    unsafe { library.get::<*const ()>(name.as_bytes()) }.is_ok()
}

#[test]
fn both_names_are_one_library() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), &built().unwrap()).unwrap();
    // Again, over what is there.
    install(folder.path(), &built().unwrap()).unwrap();
    let libraries = ["libcuda.so.1", "libcuda.so"].map(|name| load(&folder.path().join(name)));
    let init = |library: &Library| {
        // SAFETY: the function's type, as the driver API has it; only its address is looked at.
        *unsafe { library.get::<unsafe extern "C" fn(u32) -> CUresult>(b"cuInit") }.unwrap() as usize
    };
    assert_eq!(init(&libraries[0]), init(&libraries[1]));
}

#[test]
fn every_function_is_exported() {
    let library = load(&built().unwrap());
    let own = ["congruentVirtualBody", "congruentVirtualTrap", "congruentVirtualCalls"];
    let missing: Vec<&str> = names().chain(own).filter(|name| !has(&library, name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(names().count() > 90 && !has(&library, "cuMemAlloc"), "only names of today's driver");
}

#[test]
fn a_symbol_can_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    let (library, less) = (built().unwrap(), folder.path().join("less.so"));
    without_symbol(&library, "cuMulticastCreate", &less).unwrap();
    let less = load(&less);
    assert!(!has(&less, "cuMulticastCreate"));
    let others = names().filter(|&name| name != "cuMulticastCreate");
    let missing: Vec<&str> = others.filter(|name| !has(&less, name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let error = without_symbol(&library, "cuMulticastDestroy", &folder.path().join("same.so")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    let error = without_symbol(Path::new("/dev/null"), "cuInit", &folder.path().join("none.so")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

#[test]
fn the_asked_call_fails_and_calls_are_counted() {
    let config = "fail=cuStreamCreate:2:CUDA_ERROR_OUT_OF_MEMORY,fail=cuCtxSynchronize:*:CUDA_ERROR_UNKNOWN";
    alone("the_asked_call_fails_and_calls_are_counted", config, || {
        begin(0);
        stream();
        let mut second = core::ptr::null_mut();
        assert_eq!(call!(cuStreamCreate(&mut second, 0)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(second.is_null());
        stream();
        for _ in 0..2 {
            assert_eq!(call!(cuCtxSynchronize()), CUresult::CUDA_ERROR_UNKNOWN);
        }
        let calls = |name: &str| call!(congruentVirtualCalls(CString::new(name).unwrap().as_ptr()));
        assert_eq!([calls("cuStreamCreate"), calls("cuCtxSynchronize"), calls("cuMemAlloc_v2")], [3, 2, 0]);
    });
}

#[test]
fn a_malformed_configuration_is_explained() {
    if is_child() {
        assert_eq!(call!(cuInit(0)), CUresult::CUDA_ERROR_INVALID_VALUE);
        let mut count = 0;
        assert_eq!(call!(cuDeviceGetCount(&mut count)), CUresult::CUDA_ERROR_NOT_INITIALIZED);
        return;
    }
    let output = again("a_malformed_configuration_is_explained").env(VARIABLE, "sms=many").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    assert!(said.contains("CONGRUENT_VIRTUAL_DRIVER: sms=many: give a number"), "{said}");
}

#[test]
fn a_machine_without_devices_has_no_driver_to_use() {
    alone("a_machine_without_devices_has_no_driver_to_use", "devices=0", || {
        assert_eq!(call!(cuInit(0)), CUresult::CUDA_ERROR_NO_DEVICE);
    });
}

#[test]
fn a_call_without_a_context_is_refused() {
    alone("a_call_without_a_context_is_refused", "", || {
        let mut at = 0;
        assert_eq!(call!(cuMemAlloc_v2(&mut at, 8)), CUresult::CUDA_ERROR_NOT_INITIALIZED);
        ok!(cuInit(0));
        assert_eq!(call!(cuMemAlloc_v2(&mut at, 8)), CUresult::CUDA_ERROR_INVALID_CONTEXT);
    });
}

#[test]
fn cudarc_works_with_it() {
    if is_child() {
        let context = cudarc::driver::CudaContext::new(1).unwrap();
        assert!(context.name().unwrap().contains("congruent virtual GPU"));
        let stream = context.new_stream().unwrap();
        let numbers = stream.clone_htod(&[1_u32, 2, 3]).unwrap();
        let copy = stream.clone_dtod(&numbers).unwrap();
        assert_eq!(stream.clone_dtoh(&copy).unwrap(), [1, 2, 3]);
        let zeros = stream.alloc_zeros::<u64>(5).unwrap();
        assert_eq!(stream.clone_dtoh(&zeros).unwrap(), [0; 5]);
        let event = stream.record_event(None).unwrap();
        event.synchronize().unwrap();
        let ptx = c".version 8.0\n.target sm_90\n.visible .entry f()\n{ret;}";
        // SAFETY: a text with a zero at its end, and a module that was just loaded.
        let function = unsafe {
            let module = cudarc::driver::result::module::load_data(ptx.as_ptr().cast()).unwrap();
            cudarc::driver::result::module::get_function(module, c"f".to_owned())
        };
        assert!(!function.unwrap().is_null());
        stream.synchronize().unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    install(folder.path(), &built().unwrap()).unwrap();
    let mut child = again("cudarc_works_with_it");
    child.env("LD_LIBRARY_PATH", folder.path()).env(VARIABLE, "devices=2");
    passes(&mut child);
}
