//! Selects the log files to remove with an instance of a container.
//!
//! In: names of the files in a container's log directory, the attempt that is being removed. Out: the files
//! to remove, rotated and compressed ones included. Invariant: unless all files are removed, those of the
//! newest attempt stay, because the next attempt takes its number from them. Upstream: `removeContainerLog`
//! of pkg/kubelet/kuberuntime/kuberuntime_container.go.

use serde::{Deserialize, Serialize};

/// The log of an instance that is being removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedLog {
    /// Absolute path, as the runtime has it.
    pub path: String,
    /// No further instance will be made: the newest attempt's files are removed, too.
    pub even_newest: bool,
}

/// The attempt in the name of a file: 3 in `3.log`, 12 in `12.log.20261122-034500.gz`.
#[must_use]
pub fn attempt_of(name: &str) -> Option<u32> {
    let (attempt, rest) = name.split_once(".log")?;
    (rest.is_empty() || rest.starts_with('.')).then(|| attempt.parse().ok())?
}

/// The newest attempt that left a file.
#[must_use]
pub fn newest<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<u32> {
    names.into_iter().filter_map(attempt_of).max()
}

/// Files to remove with `attempt`: its own, and those of earlier attempts that a runtime forgot.
#[must_use]
pub fn superseded<'a>(names: &[&'a str], attempt: u32, even_newest: bool) -> Vec<&'a str> {
    let newest = newest(names.iter().copied());
    let goes = |of: u32| of <= attempt && (even_newest || Some(of) < newest);
    names.iter().copied().filter(|name| attempt_of(name).is_some_and(goes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 8] = [
        "0.log",
        "0.log.20261122-034500.gz",
        "1.log",
        "2.log.20261122-034500",
        "2.log",
        "x.log",
        "1.login",
        "note",
    ];

    #[test]
    fn older_files_go_with_their_instance() {
        assert_eq!(superseded(&NAMES, 0, false), ["0.log", "0.log.20261122-034500.gz"]);
        assert_eq!(
            superseded(&NAMES, 1, false),
            ["0.log", "0.log.20261122-034500.gz", "1.log"],
            "forgotten ones, too"
        );
        assert_eq!(superseded(&NAMES, 2, false).len(), 3, "the newest stays");
        assert_eq!(superseded(&NAMES, 7, false).len(), 3, "whatever the runtime's number is");
        let all = superseded(&NAMES, 2, true);
        assert_eq!(all.len(), 5);
        assert!(!all.contains(&"x.log") && !all.contains(&"1.login"), "what is nobody's stays");
        assert!(superseded(&[], 3, true).is_empty());
    }

    #[test]
    fn attempts_of_files() {
        assert_eq!(newest(NAMES), Some(2));
        assert_eq!(newest(["x.log", "99", "log"]), None);
    }
}
