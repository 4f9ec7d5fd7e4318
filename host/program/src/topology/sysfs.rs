//! Reading the files by which the kernel describes the machine.

use std::fs;
use std::path::PathBuf;

/// `/sys` and `/proc`, or folders that look like them.
#[derive(Clone, Debug)]
pub(crate) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// The running machine.
    pub(crate) fn here() -> Self {
        Self::at("/")
    }

    /// A folder that has `sys` and `proc`.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The text of a file, without what surrounds it and without what a terminal would obey. `None` where there is none,
    /// or nothing in it.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let text = String::from_utf8_lossy(&fs::read(self.root.join(path)).ok()?).into_owned();
        let is_shown = |letter: &char| !letter.is_control() || matches!(letter, '\n' | '\t');
        let text: String = text.trim().chars().filter(is_shown).collect();
        (!text.is_empty()).then_some(text)
    }

    /// The number in a file.
    pub(super) fn number<N: std::str::FromStr>(&self, path: &str) -> Option<N> {
        self.text(path)?.parse().ok()
    }

    /// The names in a folder, those that differ in their number alone in its order: `eth2` before `eth10`.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(path)) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| !name.contains(char::is_control)).collect();
        names.sort_by_cached_key(|name| {
            let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
            (stem.to_owned(), name[stem.len()..].parse::<u64>().unwrap_or(0), name.clone())
        });
        names
    }

    /// The numbers of the entries `stem` and number of a folder.
    pub(super) fn numbered(&self, path: &str, stem: &str) -> Vec<u32> {
        self.names(path).iter().filter_map(|name| name.strip_prefix(stem)?.parse().ok()).collect()
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Where a path leads when every link is followed.
    pub(super) fn real(&self, path: &str) -> Option<PathBuf> {
        self.root.join(path).canonicalize().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_in_the_order_of_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["mlx5_10", "mlx5_2", "bond0", "mlx5_0"] {
            fs::write(folder.path().join(name), "1").unwrap();
        }
        let sysfs = Sysfs::at(folder.path());
        assert_eq!(sysfs.names("."), ["bond0", "mlx5_0", "mlx5_2", "mlx5_10"]);
        assert_eq!(sysfs.numbered(".", "mlx5_"), [0, 2, 10]);
    }

    #[test]
    fn what_is_missing_or_unreadable_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("blank"), " \n").unwrap();
        fs::write(folder.path().join("odd"), b"a\x1b[31m\xffb\n").unwrap();
        let sysfs = Sysfs::at(folder.path());
        assert_eq!((sysfs.text("none"), sysfs.text("blank"), sysfs.text(".")), (None, None, None));
        assert_eq!(sysfs.text("odd").as_deref(), Some("a[31m\u{fffd}b"));
        assert_eq!((sysfs.number::<u32>("odd"), sysfs.names("none"), sysfs.real("none")), (None, Vec::new(), None));
    }
}
