//! Results of cases on this machine: when each passed last, its duration, and how many runs in a row had no time for it.
//!
//! A file in the cache, replaced as a whole after each case, so that a run that is killed has saved its results. A run
//! without time for all cases begins with those that several runs have left out and those whose last pass is the longest
//! ago ([`crate::schedule`]). If the file cannot be read, all cases count as never run. Two runs at once may lose each
//! other's line; then a case runs sooner than needed, or a run later.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::run::cache_dir;

/// One case's past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseHistory {
    /// When it passed last, seconds since 1970; 0 if it never did.
    pub passed_at: u64,
    /// The duration of that pass, seconds, with its group's fixture if the case made it; 0 if it never passed.
    pub took_s: u64,
    /// It has failed since.
    #[serde(default)]
    pub has_failed: bool,
    /// Runs in a row, up to the last one, that had no time for it.
    #[serde(default)]
    pub left_out_runs: u32,
}

impl CaseHistory {
    /// When it passed last, seconds since 1970; `None` if it never did, or has failed since.
    #[must_use]
    pub fn good_since(&self) -> Option<u64> {
        (self.passed_at > 0 && !self.has_failed).then_some(self.passed_at)
    }

    /// The duration of its last pass, seconds.
    #[must_use]
    pub fn known_s(&self) -> Option<u64> {
        (self.took_s > 0).then_some(self.took_s)
    }
}

/// Results by name of the case.
pub type History = BTreeMap<String, CaseHistory>;

/// Path of the file. It is outside of the runs' directories, which are cleaned up.
#[must_use]
pub fn file() -> PathBuf {
    cache_dir().join("cases.json")
}

/// The present, seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The recorded results.
#[must_use]
pub fn read(file: &Path) -> History {
    fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Records that a case passed at that time, seconds since 1970, and how long it took.
///
/// # Errors
/// If the file cannot be written.
pub fn passed(file: &Path, case: &str, at: u64, took_s: u64) -> Result<()> {
    let past = CaseHistory { passed_at: at, took_s, ..CaseHistory::default() };
    change(file, case, |_| past)
}

/// Records that a case failed. The duration of a failure is not recorded.
///
/// # Errors
/// If the file cannot be written.
pub fn failed(file: &Path, case: &str) -> Result<()> {
    change(file, case, |past| CaseHistory { has_failed: true, left_out_runs: 0, ..past })
}

/// Records that a case began and could not run on this machine.
///
/// # Errors
/// If the file cannot be written.
pub fn skipped(file: &Path, case: &str) -> Result<()> {
    change(file, case, |past| CaseHistory { left_out_runs: 0, ..past })
}

/// Records that a run had no time for a case.
///
/// # Errors
/// If the file cannot be written.
pub fn left_out(file: &Path, case: &str) -> Result<()> {
    change(file, case, |past| CaseHistory { left_out_runs: past.left_out_runs.saturating_add(1), ..past })
}

fn change(file: &Path, case: &str, change: impl FnOnce(CaseHistory) -> CaseHistory) -> Result<()> {
    let mut all = read(file);
    let past = all.entry(case.to_owned()).or_default();
    *past = change(*past);
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
        passed(&file, "a/b", 1, 2).unwrap();
        passed(&file, "a/c", 3, 4).unwrap();
        failed(&file, "a/b").unwrap();
        failed(&file, "a/d").unwrap();
        let past = |passed_at, took_s, has_failed| CaseHistory {
            passed_at,
            took_s,
            has_failed,
            ..CaseHistory::default()
        };
        let expected = [("a/b", past(1, 2, true)), ("a/c", past(3, 4, false)), ("a/d", past(0, 0, true))];
        assert_eq!(read(&file), History::from(expected.map(|(name, past)| (name.to_owned(), past))));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file is left");
        fs::write(&file, "{\"a/b\": 1").unwrap();
        assert!(read(&file).is_empty());
        passed(&file, "a/c", 5, 4).unwrap();
        assert_eq!(read(&file).len(), 1);
    }

    #[test]
    fn a_case_that_began_was_not_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cases.json");
        let runs = |case: &str| read(&file).get(case).map_or(0, |past| past.left_out_runs);
        for expected in 1..=3 {
            left_out(&file, "a/b").unwrap();
            assert_eq!((runs("a/b"), runs("a/c")), (expected, 0));
        }
        passed(&file, "a/b", 7, 9).unwrap();
        assert_eq!(runs("a/b"), 0);
        for begun in [failed, skipped] {
            left_out(&file, "a/b").unwrap();
            assert_eq!(runs("a/b"), 1);
            begun(&file, "a/b").unwrap();
            assert_eq!(runs("a/b"), 0);
        }
        assert_eq!((read(&file)["a/b"].passed_at, read(&file)["a/b"].known_s()), (7, Some(9)));
    }

    #[test]
    fn a_file_of_before_counts_no_runs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cases.json");
        fs::write(&file, r#"{"a/b": {"passed_at": 7, "took_s": 2}, "a/c": {"passed_at": 0, "took_s": 3}}"#)
            .unwrap();
        let all = read(&file);
        assert_eq!((all["a/b"].good_since(), all["a/b"].left_out_runs), (Some(7), 0));
        assert_eq!((all["a/c"].good_since(), all["a/c"].known_s()), (None, Some(3)));
    }
}
