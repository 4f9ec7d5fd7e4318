//! What NVIDIA GPUs there are, and whether kernels can run on them: a line for each step, up to the one that fails.

use std::path::Path;

use super::Line;
use super::checks::library;
use congruent::program::{Driver, Properties};
use congruent::{CudaError, CudaVersion};

/// The driver, what it has, and its devices.
pub(super) fn lines() -> Vec<Line> {
    let driver = match Driver::get() {
        Ok(driver) => driver,
        Err(error) => return vec![no_driver(&error, Path::new("/dev/nvidiactl").exists())],
    };
    let found = library("libcuda.so.1").map_or_else(String::new, |path| format!(", {}", path.display()));
    let mut lines =
        vec![Line::ok(GPU, format!("the driver is for CUDA {}{found}", driver.version())), calls(&driver.missing())];
    match Properties::all(driver) {
        Ok(devices) if devices.is_empty() => lines.push(no_driver(&CudaError::NoDevice, true)),
        Ok(devices) => {
            lines.extend(devices.iter().map(device));
            lines.push(mps(devices.iter().any(|device| device.mps)));
        }
        Err(error) => lines.push(Line::missing("CUDA devices", error.to_string(), NEXT)),
    }
    lines
}

const GPU: &str = "NVIDIA GPU";
const NEXT: &str = "kernels run on the CPU meanwhile";

/// Why nothing can run on a GPU. Where there is none, that is no fault of the machine's.
fn no_driver(error: &CudaError, device_file: bool) -> Line {
    match error {
        CudaError::NoLibrary { .. } if !device_file => Line::note(
            GPU,
            "none: no device file, no libcuda.so.1",
            "kernels run on the CPU; for GPUs install NVIDIA's driver, 525 or newer",
        ),
        error => Line::missing(GPU, error.to_string(), NEXT),
    }
}

fn calls(missing: &[(&'static str, CudaVersion)]) -> Line {
    let subject = "CUDA calls";
    let Some(newest) = missing.iter().map(|(_, since)| *since).max() else {
        return Line::ok(subject, "the driver has all that are used");
    };
    let names: Vec<_> = missing.iter().map(|(symbol, since)| format!("{symbol} ({since})")).collect();
    let next = format!("what needs them is refused; install a driver for CUDA {newest} or newer");
    Line::note(subject, format!("missing: {}", names.join(", ")), next)
}

fn device(device: &Properties) -> Line {
    let subject = "CUDA device";
    let (major, minor) = device.compute;
    let can = [
        (device.virtual_memory, "virtual memory"),
        (device.posix_handles, "memory as file descriptors"),
        (device.multicast, "multicast"),
        (device.fabric_handles, "fabric handles"),
        (device.rdma, "RDMA"),
        (device.dma_buf, "dma-buf"),
    ];
    let names = |wanted: bool| {
        let names: Vec<_> = can.iter().filter(|(has, _)| *has == wanted).map(|(_, name)| *name).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    };
    let found = format!(
        "{}: {}, {} MiB, compute capability {major}.{minor}, {} SMs; has {}; lacks {}",
        device.ordinal,
        device.name,
        device.memory >> 20,
        device.sms,
        names(true),
        names(false),
    );
    match device.lacks() {
        Some(what) => Line::missing(subject, found, format!("kernels cannot run on it without {what}")),
        None if !device.posix_handles => Line::note(subject, found, "PEs on it can be threads, but not processes"),
        None => Line::ok(subject, found),
    }
}

/// Whether PEs that are processes can share a GPU.
fn mps(runs: bool) -> Line {
    let subject = "CUDA MPS";
    if runs {
        return Line::ok(subject, "it runs: PEs that are processes run at once on a GPU that they share");
    }
    let next = "start it by `nvidia-cuda-mps-control -d`, or make PEs that share a GPU threads of one process";
    Line::note(subject, "it does not run: PEs that are processes take turns on a GPU that they share", next)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn properties() -> Properties {
        Properties {
            ordinal: 3,
            name: "a device".into(),
            uuid: [7; 16],
            compute: (9, 0),
            sms: 132,
            shared: 227 << 10,
            memory: 1 << 30,
            virtual_memory: true,
            posix_handles: true,
            fabric_handles: false,
            multicast: true,
            rdma: false,
            dma_buf: false,
            rdma_ordered: false,
            rdma_flush: false,
            cooperative: true,
            mps: false,
        }
    }

    #[test]
    fn a_machine_without_a_gpu_is_told_of_and_one_without_a_driver_is_at_fault() {
        let error = CudaError::NoLibrary { reason: "not there".into() };
        assert_eq!(no_driver(&error, false).verdict, Verdict::Note);
        let line = no_driver(&error, true);
        assert!(line.verdict == Verdict::Missing && line.found.contains("driver 525"), "{line:?}");
    }

    #[test]
    fn a_device_says_what_it_has_and_what_it_lacks() {
        let line = device(&properties());
        assert_eq!(line.verdict, Verdict::Ok);
        assert!(
            line.found.starts_with("3: a device, 1024 MiB, compute capability 9.0, 132 SMs; has virtual"),
            "{line:?}"
        );
        assert!(line.found.ends_with("lacks fabric handles, RDMA, dma-buf"), "{line:?}");
        let line = device(&Properties { posix_handles: false, ..properties() });
        assert!(line.verdict == Verdict::Note && line.next.is_some_and(|next| next.contains("threads")));
        let line = device(&Properties { virtual_memory: false, ..properties() });
        assert!(line.verdict == Verdict::Missing && line.next.is_some_and(|next| next.contains("cuMemCreate")));
    }

    #[test]
    fn an_mps_is_a_note_where_it_does_not_run() {
        assert_eq!(mps(true).verdict, Verdict::Ok);
        let line = mps(false);
        assert!(
            line.verdict == Verdict::Note && line.next.is_some_and(|next| next.contains("nvidia-cuda-mps-control"))
        );
    }

    #[test]
    fn missing_calls_are_named_with_the_version_that_has_all_of_them() {
        assert_eq!(calls(&[]).verdict, Verdict::Ok);
        let version = |major, minor| CudaVersion { major, minor };
        let line = calls(&[("cuA", version(12, 1)), ("cuB", version(11, 7))]);
        assert!(line.found.contains("cuA (12.1), cuB (11.7)"), "{line:?}");
        assert!(line.next.is_some_and(|next| next.contains("CUDA 12.1 or newer")));
    }
}
