//! Every call that a heap makes fails once, in one PE, on the virtual driver: all PEs hear of it, nothing is kept,
//! and the next heap is whole. The virtual driver reads what is to fail when a process starts, so that each case is a process.

use super::*;

const CASE: &str = "CONGRUENT_TEST_CASE";
const DRIVER: &str = "CONGRUENT_VIRTUAL_DRIVER";

/// This test again in a process of its own, with a virtual driver that fails so.
fn case(test: &str, fail: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored"])
        .env(CASE, fail)
        .env(DRIVER, format!("fail={fail}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{fail}: {}", String::from_utf8_lossy(&output.stdout));
}

/// The call that is to fail in this process.
fn failing() -> Option<String> {
    std::env::var(CASE).ok().and_then(|fail| fail.split(':').next().map(str::to_owned))
}

/// The failure that one PE has by itself, once all have told.
fn own(failed: &[Option<CudaError>]) -> &CudaError {
    let own = failed.iter().flatten().find(|error| !matches!(error, CudaError::Peer { .. })).unwrap();
    for error in failed.iter().map(|error| error.as_ref().unwrap()).filter(|error| *error != own) {
        assert!(matches!(error, CudaError::Peer { message, .. } if *message == own.to_string()), "{error:?}");
    }
    own
}

/// Reserves twice, of which the first fails, and looks whether the device has all its memory again.
fn fails_and_recovers(control: &Control) -> Option<CudaError> {
    let failed = reserve(control, 3 * MIB, 8 * MIB).err();
    let (device, heap) = reserve(control, 3 * MIB, 8 * MIB).unwrap();
    see_each_other(control, &heap, 1);
    drop(heap);
    control.all_gather(&[]).unwrap();
    let (free, total) = device.free_memory().unwrap();
    assert_eq!(free, total);
    control.all_gather(&[]).unwrap();
    failed
}

#[test]
#[ignore = "needs the virtual driver"]
fn a_call_that_fails_in_one_thread_is_told_to_all() {
    if let Some(call) = failing() {
        let failed = each(2, |control| {
            let failed = fails_and_recovers(control);
            control.depart();
            failed
        });
        match own(&failed) {
            CudaError::OutOfMemory { asked, .. } => assert_eq!((call.as_str(), *asked), ("cuMemCreate", 4 * MIB)),
            CudaError::NoAddress { bytes } => assert_eq!((call.as_str(), *bytes), ("cuMemAddressReserve", 16 * MIB)),
            CudaError::Call { call: "making the primary context", .. } => assert_eq!(call, "cuDevicePrimaryCtxRetain"),
            CudaError::Call { call: told, name, .. } => {
                assert_eq!((*told, name.as_str()), (call.as_str(), "CUDA_ERROR_UNKNOWN"));
            }
            other => panic!("{other:?}"),
        }
        return;
    }
    let test = "cuda::tests::faults::a_call_that_fails_in_one_thread_is_told_to_all";
    for call in [
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetUuid_v2",
        "cuDeviceTotalMem_v2",
        "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain",
        "cuMemGetInfo_v2",
        "cuMemGetAllocationGranularity",
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemsetD8Async",
        "cuStreamSynchronize",
    ] {
        case(test, &format!("{call}:1:CUDA_ERROR_UNKNOWN"));
    }
    for call in ["cuMemAddressReserve", "cuMemCreate"] {
        case(test, &format!("{call}:1:CUDA_ERROR_OUT_OF_MEMORY"));
    }
}

#[test]
#[ignore = "needs the virtual driver"]
fn a_call_that_fails_in_one_process_is_told_to_all() {
    if let Some(fail) = std::env::var_os("CONGRUENT_PE").and(failing()) {
        let control = Bootstrap::from_env().unwrap().connect().unwrap();
        let failed = fails_and_recovers(&control);
        match (fail.as_str(), control.pe()) {
            // A place that cannot be had is no failure: the PEs try another.
            ("cuMemAddressReserve", _) => assert_eq!(failed, None),
            (call, 0) => assert!(matches!(failed, Some(CudaError::Call { call: told, .. }) if told == call)),
            (call, _) => {
                assert!(matches!(failed, Some(CudaError::Peer { pe: 0, message }) if message.starts_with(call)));
            }
        }
        return control.depart();
    }
    let test = "cuda::tests::faults::a_call_that_fails_in_one_process_is_told_to_all";
    if failing().is_some() {
        return processes(test, 3);
    }
    for call in ["cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemSetAccess", "cuMemMap"] {
        case(test, &format!("{call}:1:CUDA_ERROR_UNKNOWN"));
    }
    case(test, "cuMemAddressReserve:1:CUDA_ERROR_OUT_OF_MEMORY");
}

/// The heap is as it was, and can grow afterwards.
fn fails_to_grow(control: &Control) {
    let (device, heap) = reserve(control, 3 * MIB, 64 * MIB).unwrap();
    see_each_other(control, &heap, 1);
    let (base, bytes) = (heap.base(), heap.part_bytes());
    let failed = grow(&heap, &device, control, 9 * MIB);
    assert!(matches!(failed, Err(CudaError::Call { .. } | CudaError::Peer { .. })), "{failed:?}");
    assert_eq!((heap.base(), heap.part_bytes()), (base, bytes));
    see_each_other(control, &heap, 2);
    grow(&heap, &device, control, 9 * MIB).unwrap();
    assert_eq!(heap.part_bytes(), (9 * MIB).next_multiple_of(heap.granularity()));
    see_each_other(control, &heap, 3);
    control.depart();
}

/// Each thread makes and maps memory once for the heap, so that what fails is the first step of growth.
#[test]
#[ignore = "needs the virtual driver"]
fn growth_that_fails_in_one_thread_changes_nothing() {
    if failing().is_some() {
        each(2, fails_to_grow);
        return;
    }
    let test = "cuda::tests::faults::growth_that_fails_in_one_thread_changes_nothing";
    for call in ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async"] {
        case(test, &format!("{call}:3:CUDA_ERROR_UNKNOWN"));
    }
}

/// Of two processes, each takes the other's memory once for the heap.
#[test]
#[ignore = "needs the virtual driver"]
fn growth_that_fails_between_processes_changes_nothing() {
    let test = "cuda::tests::faults::growth_that_fails_between_processes_changes_nothing";
    if std::env::var_os("CONGRUENT_PE").is_some() {
        return fails_to_grow(&Bootstrap::from_env().unwrap().connect().unwrap());
    }
    if failing().is_some() {
        return processes(test, 2);
    }
    case(test, "cuMemExportToShareableHandle:2:CUDA_ERROR_UNKNOWN");
    case(test, "cuMemImportFromShareableHandle:2:CUDA_ERROR_UNKNOWN");
}

/// Giving back cannot fail, whatever the driver says.
#[test]
#[ignore = "needs the virtual driver"]
fn what_cannot_be_given_back_is_let_go() {
    if failing().is_some() {
        each(2, |control| {
            drop(reserve(control, MIB, MIB).unwrap());
            control.depart();
        });
        return;
    }
    for call in ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuDevicePrimaryCtxRelease_v2"] {
        case(
            "cuda::tests::faults::what_cannot_be_given_back_is_let_go",
            &format!("{call}:*:CUDA_ERROR_ILLEGAL_ADDRESS"),
        );
    }
}

#[test]
#[ignore = "needs the virtual driver"]
fn a_driver_that_is_old_or_has_no_device_is_refused_with_the_reason() {
    let refused = || Driver::get().err();
    match std::env::var(CASE).as_deref() {
        Ok("old") => {
            let Some(CudaError::DriverTooOld { found, needs }) = refused() else { panic!("{:?}", refused()) };
            assert_eq!((found.to_string(), needs.to_string()), ("11.8".into(), "12.0".into()));
        }
        Ok("none") => assert_eq!(refused(), Some(CudaError::NoDevice)),
        _ => {
            let test = "cuda::tests::faults::a_driver_that_is_old_or_has_no_device_is_refused_with_the_reason";
            for (case, settings) in [("old", "version=11080"), ("none", "devices=0")] {
                let again = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", test, "--ignored"])
                    .envs([(CASE, case), (DRIVER, settings)])
                    .output()
                    .unwrap();
                assert!(again.status.success(), "{case}: {}", String::from_utf8_lossy(&again.stdout));
            }
        }
    }
}
