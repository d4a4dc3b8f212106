//! Results of cases on this machine: when each passed last, and its duration.
//!
//! A file in the cache, replaced as a whole after each case, so that a run that is killed has saved its results. A run
//! without time for all cases begins with those whose last pass is the longest ago ([`crate::schedule`]). If the file
//! cannot be read, all cases count as never run. Two runs at once may lose each other's line; then a case runs sooner
//! than needed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::run::cache_dir;

/// One case's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseHistory {
    /// When it passed last, seconds since 1970; 0 if it has failed since.
    pub passed_at: u64,
    /// Its last duration, seconds; with its group's fixture, if the case made it.
    pub took_s: u64,
}

/// Results by name of the case.
pub type History = BTreeMap<String, CaseHistory>;

/// Path of the file. It is outside of the runs' directories, which are cleaned up.
#[must_use]
pub fn file() -> PathBuf {
    cache_dir().join("cases.json")
}

/// The recorded results.
#[must_use]
pub fn read(file: &Path) -> History {
    fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Adds that a case passed at that time, seconds since 1970, and how long it took.
///
/// # Errors
/// If the file cannot be written.
pub fn passed(file: &Path, case: &str, at: u64, took_s: u64) -> Result<()> {
    let mut all = read(file);
    all.insert(case.to_owned(), CaseHistory { passed_at: at, took_s });
    write(file, &all)
}

/// Records that a case failed. The duration of a failure is not recorded.
///
/// # Errors
/// If the file cannot be written.
pub fn failed(file: &Path, case: &str) -> Result<()> {
    let mut all = read(file);
    let Some(past) = all.get_mut(case) else { return Ok(()) };
    past.passed_at = 0;
    write(file, &all)
}

fn write(file: &Path, all: &History) -> Result<()> {
    let partial = file.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, serde_json::to_vec_pretty(all)?)
        .and_then(|()| fs::rename(&partial, file))
        .with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_again_and_rubbish_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cases.json");
        assert!(read(&file).is_empty());
        failed(&file, "a/b").unwrap();
        assert!(read(&file).is_empty(), "it never passed: there is nothing to take back");
        passed(&file, "a/b", 1, 2).unwrap();
        passed(&file, "a/c", 3, 4).unwrap();
        failed(&file, "a/b").unwrap();
        let past = |passed_at, took_s| CaseHistory { passed_at, took_s };
        let expected = [("a/b".to_owned(), past(0, 2)), ("a/c".to_owned(), past(3, 4))];
        assert_eq!(read(&file), expected.into_iter().collect());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file is left");
        fs::write(&file, "{\"a/b\": 1").unwrap();
        assert!(read(&file).is_empty());
        passed(&file, "a/c", 5, 4).unwrap();
        assert_eq!(read(&file).len(), 1);
    }
}
