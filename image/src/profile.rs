//! The image profiles and the directories of a build.

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
}

impl Dirs {
    /// `explicit` is `$ORLOP_CACHE`, `home` is `$HOME`; the checkout is two levels above this crate's manifest.
    #[must_use]
    pub fn new(explicit: Option<&str>, home: &str) -> Dirs {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = manifest.parent().unwrap_or(manifest).to_path_buf();
        let cache = match explicit.filter(|s| !s.is_empty()) {
            Some(dir) => PathBuf::from(dir),
            None => Path::new(home).join(".cache/orlop"),
        };
        Dirs { source, cache }
    }

    /// Published artefacts of a profile.
    #[must_use]
    pub fn output(&self, profile: Profile) -> PathBuf {
        self.cache.join("image").join(profile.name())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_explicit_or_below_home() {
        assert_eq!(Dirs::new(Some("/c"), "/h").cache, PathBuf::from("/c"));
        assert_eq!(Dirs::new(Some(""), "/h").cache, PathBuf::from("/h/.cache/orlop"));
        assert_eq!(Dirs::new(None, "/h").output(Profile::Test), PathBuf::from("/h/.cache/orlop/image/test"));
    }
}
