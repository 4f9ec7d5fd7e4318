//! PTX from files (`CONGRUENT_PTX`), for kernels whose crates embed none, and in place of what a crate of a file's name embeds.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use congruent_device::Module;

use super::CudaError;
use super::functions::Functions;

/// Every file that was ever read. Modules are known by their addresses, so they stay.
static FILES: Mutex<Vec<&'static Module>> = Mutex::new(Vec::new());

/// Reads the files that `CONGRUENT_PTX` names, each once in a process.
pub(super) fn read(list: &str) -> Result<(), CudaError> {
    for path in list.split(',').map(str::trim) {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        if files.iter().any(|file| file.name == path) {
            continue;
        }
        let refused = |reason: String| CudaError::PtxFile { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        let arch = target(&text).ok_or_else(|| refused("it has no line `.target sm_NN`".to_owned()))?.to_owned();
        let images = vec![(&*arch.leak(), &*text.leak())].leak();
        files.push(Box::leak(Box::new(Module { name: path.to_owned().leak(), images })));
    }
    Ok(())
}

/// The files with a kernel that the device can run, those for the newest architecture first.
pub(super) fn with(kernel: &str, compute: (u32, u32)) -> Vec<&'static Module> {
    let has = |(file, functions): (_, Arc<Functions<'_>>)| functions.entry(kernel).map(|_| file);
    fitting(compute).into_iter().filter_map(has).collect()
}

/// Whether a file has the name that `congruent-build` gives to one of this crate: `my_kernels.sm_90.ptx` of `my-kernels`.
pub(super) fn is_of(file: &Module, name: &str) -> bool {
    let stem = Path::new(file.name).file_name().and_then(|name| name.to_str()?.split('.').next());
    stem.is_some_and(|stem| stem == name.replace('-', "_"))
}

/// The files from which launches take kernels, where the driver is new enough for all: those whose kernels are not all in files for newer
/// architectures.
pub(super) fn all(compute: (u32, u32)) -> Vec<&'static Module> {
    let mut known = HashSet::new();
    let has_new = |(_, functions): &(_, Arc<Functions<'static>>)| {
        // All are taken note of.
        functions.entries().filter(|&kernel| known.insert(kernel)).count() > 0
    };
    fitting(compute).into_iter().filter(has_new).map(|(file, _)| file).collect()
}

/// The files that the device can run, those for the newest architecture first.
fn fitting(compute: (u32, u32)) -> Vec<(&'static Module, Arc<Functions<'static>>)> {
    let files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = files.iter().filter_map(|file| {
        let images = super::module::images(file, compute).ok()?;
        let (arch, text) = images.first()?;
        Some((super::module::number(arch), *file, Functions::of(text)))
    });
    let mut fits: Vec<_> = fits.collect();
    fits.sort_by_key(|(number, ..)| std::cmp::Reverse(*number));
    fits.into_iter().map(|(_, file, functions)| (file, functions)).collect()
}

/// The architecture that PTX is for: `sm_90`.
fn target(text: &str) -> Option<&str> {
    let named = text.lines().find_map(|line| line.strip_prefix(".target"))?;
    named.split(',').next().map(str::trim).filter(|arch| super::module::number(arch).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_of_the_crate_that_they_are_named_after() {
        let is_of = |name| is_of(&Module { name, images: &[] }, "my-kernels");
        assert!(is_of("my_kernels.sm_90.ptx") && is_of("traced/my_kernels.sm_80.ptx"));
        assert!(!is_of("all.ptx") && !is_of("my_kernels_2.sm_90.ptx") && !is_of("my_kernels/ptx"));
    }

    #[test]
    fn files_that_the_gpu_can_run_are_taken_the_newest_first() {
        let folder = std::env::temp_dir().join(format!("congruent-ptx-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let list: Vec<String> = ["sm_80", "sm_90"]
            .map(|arch| {
                let path = folder.join(arch);
                std::fs::write(
                    &path,
                    format!(".version 8.0\n.target {arch}, debug\n.visible .entry only_here() {{}}\n"),
                )
                .unwrap();
                path.display().to_string()
            })
            .into();
        read(&list.join(",")).unwrap();
        let archs =
            |kernel, compute| -> Vec<_> { with(kernel, compute).into_iter().map(|file| file.images[0].0).collect() };
        assert_eq!(archs("only_here", (8, 6)), ["sm_80"]);
        assert_eq!(archs("only_here", (9, 0)), ["sm_90", "sm_80"]);
        let here = |file: &&Module| file.name.starts_with(&*folder.to_string_lossy());
        assert_eq!(all((9, 0)).into_iter().filter(here).map(|file| file.images[0].0).collect::<Vec<_>>(), ["sm_90"]);
        assert!(archs("only", (9, 0)).is_empty() && archs("only_here", (7, 5)).is_empty());
        std::fs::write(folder.join("text"), "no PTX").unwrap();
        let refused = read(&folder.join("text").display().to_string()).unwrap_err();
        assert!(refused.to_string().contains("no line `.target"), "{refused}");
        assert!(matches!(read("/no/such/file"), Err(CudaError::PtxFile { .. })));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
