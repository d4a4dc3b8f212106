//! Results that outlive a run: a folder with one file, a line for each result.
//!
//! ```text
//! <folder>/results.jsonl   {"test": …, "result": "passed", "seconds": 12.3, "commit": …, "date": …}
//! <folder>/lock            one run at a time
//! ```
//! In: results as tests end. Out: the last result of each test. Invariants: a line is written at once, so that a
//! killed run loses at most the tests that were still running; half a line is no result.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::report::Verdict;
use crate::run::cache_dir;

/// The file of results.
const FILE: &str = "results.jsonl";
/// Largest number of characters of a message that are kept: some messages include whole pods.
const MESSAGE: usize = 4096;

/// Result of one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    /// Full name.
    pub test: String,
    /// The verdict.
    pub result: Verdict,
    /// Duration, seconds.
    pub seconds: f64,
    /// Commit of the checkout that ran it.
    pub commit: String,
    /// When it ended, UTC.
    pub date: String,
    /// The beginning of its last message, if it did not pass.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A folder of results, which no other run uses meanwhile.
pub struct Folder {
    dir: PathBuf,
    file: File,
    // Held until the run ends.
    _lock: Flock<File>,
}

/// The folder of this name in the cache.
///
/// # Errors
/// If the name could lead elsewhere.
pub fn named(name: &str) -> Result<PathBuf> {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    ensure!(
        !name.is_empty() && !name.starts_with('.') && name.bytes().all(is_plain),
        "{name:?} is no name of a results folder: letters, digits, -, _ and . only"
    );
    Ok(cache_dir().join("conformance").join(name))
}

impl Folder {
    /// Opens the folder, and makes it if there is none.
    ///
    /// # Errors
    /// If it cannot be written, or another run uses it.
    pub fn open(dir: &Path) -> Result<Folder> {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let lock = File::create(dir.join("lock")).with_context(|| format!("lock {}", dir.display()))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, e)| e)
            .with_context(|| format!("another run keeps its results in {}", dir.display()))?;
        let path = dir.join(FILE);
        let is_torn = fs::read(&path).is_ok_and(|text| text.last().is_some_and(|&last| last != b'\n'));
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        if is_torn {
            file.write_all(b"\n").with_context(|| format!("write {}", path.display()))?;
        }
        Ok(Folder { dir: dir.to_owned(), file, _lock: lock })
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The last result of each test.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn results(&self) -> Result<BTreeMap<String, TestResult>> {
        let path = self.dir.join(FILE);
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(parse(&String::from_utf8_lossy(&text)))
    }

    /// Adds a result.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn add(&mut self, kept: &TestResult) -> Result<()> {
        let mut kept = kept.clone();
        if let Some((end, _)) = kept.message.char_indices().nth(MESSAGE) {
            kept.message.truncate(end);
        }
        let line = serde_json::to_string(&kept).context("render a result")?;
        self.file
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("write a result below {}", self.dir.display()))
    }
}

/// The last result of each test. Lines that are no results are half lines of killed runs. Pure.
fn parse(text: &str) -> BTreeMap<String, TestResult> {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<TestResult>(line).ok());
    lines.map(|kept| (kept.test.clone(), kept)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(test: &str, result: Verdict, message: &str) -> TestResult {
        TestResult {
            test: test.into(),
            result,
            seconds: 1.5,
            commit: "0123456789ab".into(),
            date: "2026-11-29T20:00:00Z".into(),
            message: message.into(),
        }
    }

    #[test]
    fn the_last_result_of_a_test_counts() {
        let lines = [kept("a", Verdict::Failed, "it broke"), kept("b", Verdict::Skipped, "x")];
        let mut text: String = lines.iter().map(|kept| serde_json::to_string(kept).unwrap() + "\n").collect();
        assert!(text.starts_with(r#"{"test":"a","result":"failed","seconds":1.5,"#), "{text}");
        text += &serde_json::to_string(&kept("a", Verdict::Passed, "")).unwrap();
        text += "\n{\"test\":\"c\",\"resu";
        let parsed = parse(&text);
        assert_eq!(parsed.len(), 2);
        assert_eq!(parsed["a"], kept("a", Verdict::Passed, ""));
        assert_eq!(parsed["b"].result, Verdict::Skipped);
    }

    #[test]
    fn results_outlive_a_killed_run() {
        let dir = std::env::temp_dir().join(format!("orlop-kept-{}", std::process::id()));
        let mut folder = Folder::open(&dir).unwrap();
        folder.add(&kept("a", Verdict::Failed, &"é".repeat(MESSAGE + 1))).unwrap();
        assert!(Folder::open(&dir).is_err(), "another run has it");
        drop(folder);
        let path = dir.join(FILE);
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{{\"test\":\"b\"")).unwrap();
        let mut folder = Folder::open(&dir).unwrap();
        folder.add(&kept("c", Verdict::Passed, "")).unwrap();
        let results = folder.results().unwrap();
        assert_eq!(results.keys().collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(results["a"].message.chars().count(), MESSAGE);
        drop(folder);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_name_stays_in_the_cache() {
        assert!(named("node-vm").unwrap().ends_with("conformance/node-vm"));
        for wrong in ["", ".", "..", ".x", "a/b", "a b", "é"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }
}
