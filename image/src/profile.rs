//! The image profiles, and the directories of a build for an architecture.
//!
//! In: environment and working directory, read by the caller. Out: paths. Invariant: the checkout is found when the
//! tool runs, not when it was compiled: two checkouts may share a target directory, and then cargo takes the one's
//! binary for the other's.

use crate::arch::Arch;
use std::path::{Path, PathBuf};

/// Which image is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Profile {
    /// What runs in the field: no shell, no SSH, no console login.
    Release,
    /// The same with a root shell on the second serial port and tools for tests.
    Test,
}

impl Profile {
    /// Both of them.
    pub const ALL: [Profile; 2] = [Profile::Release, Profile::Test];

    /// Name in paths and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Test => "test",
        }
    }
}

/// Where things are: the checkout is only read, everything written is below the cache.
#[derive(Clone, Debug)]
pub struct Dirs {
    /// The checkout.
    pub source: PathBuf,
    /// `$ORLOP_CACHE`, else `~/.cache/orlop`.
    pub cache: PathBuf,
    /// Architecture of the image.
    pub arch: Arch,
}

impl Dirs {
    /// `source` is the checkout ([`find_checkout`]), `explicit` is `$ORLOP_CACHE`, `home` is `$HOME`. The image is for this
    /// machine's architecture.
    #[must_use]
    pub fn new(source: PathBuf, explicit: Option<&str>, home: &str) -> Dirs {
        let cache = match explicit.filter(|s| !s.is_empty()) {
            Some(dir) => PathBuf::from(dir),
            None => Path::new(home).join(".cache/orlop"),
        };
        Dirs { source, cache, arch: Arch::HOST }
    }

    /// Published artefacts of a profile. x86-64's have the directory that they have always had.
    #[must_use]
    pub fn output(&self, profile: Profile) -> PathBuf {
        let image = self.cache.join("image");
        match self.arch {
            Arch::Amd64 => image.join(profile.name()),
            other => image.join(other.name()).join(profile.name()),
        }
    }

    /// The lock of the image's inputs, in the checkout.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.source.join(self.arch.facts().lock)
    }

    /// apt's private configuration and lists for an architecture.
    #[must_use]
    pub fn apt(&self, arch: Arch) -> PathBuf {
        let image = self.cache.join("image");
        match arch {
            Arch::Amd64 => image.join("apt"),
            other => image.join(format!("apt-{}", other.name())),
        }
    }

    /// Results of steps, by step and key.
    #[must_use]
    pub fn steps(&self) -> PathBuf {
        self.cache.join("image/steps")
    }

    /// Scratch space; one build at a time owns it.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.cache.join("image/work")
    }
}

/// True for the root of a checkout.
fn is_checkout(dir: &Path) -> bool {
    dir.join("image/image.lock").is_file() && dir.join("mkosi").is_dir()
}

/// The checkout this process works on: the one whose package cargo is running (`$CARGO_MANIFEST_DIR`, which cargo
/// sets for `run` and `test`), else the one around the working directory, else the one it was compiled in.
#[must_use]
pub fn find_checkout(manifest: Option<&Path>, working: Option<&Path>) -> PathBuf {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR"));
    choose_checkout(manifest, working, compiled.parent().unwrap_or(compiled), is_checkout)
}

fn choose_checkout(
    manifest: Option<&Path>,
    working: Option<&Path>,
    compiled: &Path,
    is_checkout: impl Fn(&Path) -> bool,
) -> PathBuf {
    // An absent variable or directory has no ancestors; nor has one outside of any checkout one that counts.
    let around = |dir: Option<&Path>| dir?.ancestors().find(|d| is_checkout(d)).map(Path::to_path_buf);
    around(manifest).or_else(|| around(working)).unwrap_or_else(|| compiled.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_explicit_or_below_home() {
        let dirs = |explicit| Dirs::new(PathBuf::from("/s"), explicit, "/h");
        assert_eq!(dirs(Some("/c")).cache, PathBuf::from("/c"));
        assert_eq!(dirs(Some("")).cache, PathBuf::from("/h/.cache/orlop"));
        let of = |arch| Dirs { arch, ..dirs(None) };
        assert_eq!(of(Arch::Amd64).output(Profile::Test), PathBuf::from("/h/.cache/orlop/image/test"));
        assert_eq!(of(Arch::Amd64).lock(), PathBuf::from("/s/image/image.lock"));
        assert_eq!(of(Arch::Arm64).apt(Arch::Amd64), PathBuf::from("/h/.cache/orlop/image/apt"));
    }

    #[test]
    fn architectures_share_no_directory() {
        let [one, other] =
            Arch::ALL.map(|arch| Dirs { arch, ..Dirs::new(PathBuf::from("/s"), Some("/c"), "/h") });
        let of = |dirs: &Dirs| [dirs.output(Profile::Release), dirs.lock(), dirs.apt(dirs.arch)];
        for (a, b) in of(&one).iter().zip(&of(&other)) {
            assert_ne!(a, b);
        }
    }

    #[test]
    fn the_checkout_is_the_one_that_runs() {
        // Running package, working directory, expected; /a, /b and /a/nested are checkouts, /built is compiled in.
        let table = [
            (Some("/a/image"), Some("/b"), "/a"),
            (Some("/a/agent/daemon"), Some("/b"), "/a"),
            (Some("/a/nested/image"), Some("/a"), "/a/nested"),
            (Some("/elsewhere/crate"), Some("/b/docs"), "/b"),
            (Some(""), Some("/b"), "/b"),
            (None, Some("/b/image/src"), "/b"),
            (None, Some("/a/nested"), "/a/nested"),
            (None, Some("/home"), "/built"),
            (None, None, "/built"),
        ];
        for (manifest, working, expected) in table {
            let found =
                choose_checkout(manifest.map(Path::new), working.map(Path::new), Path::new("/built"), |d| {
                    ["/a", "/b", "/a/nested"].iter().any(|c| d == Path::new(c))
                });
            assert_eq!(found, PathBuf::from(expected), "{manifest:?} {working:?}");
        }
    }

    #[test]
    fn a_checkout_has_the_lock_and_the_mkosi_configuration() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let root = dir.path();
        assert!(!is_checkout(root));
        std::fs::create_dir_all(root.join("mkosi")).expect("make");
        std::fs::create_dir_all(root.join("image/src")).expect("make");
        assert!(!is_checkout(root));
        std::fs::write(root.join("image/image.lock"), "").expect("write");
        assert_eq!(find_checkout(None, Some(&root.join("image/src"))), root);
    }
}
