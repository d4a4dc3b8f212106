//! Termination messages: where a container's message is, and how much of it the status keeps.
//!
//! In: an ended container, its message file or the end of its log. Out: the message of its status. Pure; the
//! shell reads. Invariants: at most [`FILE_BYTES_MAX`] bytes of a file, `LOG_LINES_MAX` lines and
//! `LOG_BYTES_MAX` bytes of a log; bytes that are not UTF-8 are replaced. Upstream: `getTerminationMessage`
//! of pkg/kubelet/kuberuntime/kuberuntime_container.go.

use agent_kubelet_api::logs::{LogOptions, Selector, TailScan};
use agent_types::runtime::labels;
use agent_types::runtime::observed::{ContainerObserved, ContainerState};

/// What is kept of a message file, from its end, bytes.
pub const FILE_BYTES_MAX: u64 = 4096;
/// What must be read of a log's end, bytes: `LOG_LINES_MAX` short records and one of the runtime's longest.
pub const LOG_READ_BYTES: u64 = 32 * 1024;
/// Lines of a log that may speak for a container.
const LOG_LINES_MAX: u64 = 80;
/// What is kept of them, from their end, bytes.
const LOG_BYTES_MAX: usize = 2048;
/// `terminationMessagePolicy` that lets the log speak where there is no message.
const FALLBACK: &str = "FallbackToLogsOnError";
/// Such a container never wrote anything.
const NEVER_RAN: &str = "ContainerCannotRun";

/// Where the last words of a container are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminationMessageSources {
    /// In its message file, if that has any.
    pub file: bool,
    /// Else at the end of its log.
    pub log: bool,
}

/// Where to look; `None` for a container that has not ended or leaves no words.
#[must_use]
pub fn places(container: &ContainerObserved) -> Option<TerminationMessageSources> {
    if container.state != ContainerState::Exited {
        return None;
    }
    let annotation = |name| container.annotations.get(name).map_or("", String::as_str);
    let places = TerminationMessageSources {
        file: !annotation(labels::TERMINATION_MESSAGE_PATH).is_empty(),
        log: annotation(labels::TERMINATION_MESSAGE_POLICY) == FALLBACK
            && container.exit_code != 0
            && container.reason != NEVER_RAN,
    };
    (places.file || places.log).then_some(places)
}

/// The last words in a log. `end` are its last bytes, `whole` is true if they are all there is.
#[must_use]
pub fn of_log(end: &[u8], whole: bool) -> String {
    let begin = match end.iter().position(|b| *b == b'\n') {
        // The first record is cut.
        Some(newline) if !whole => newline + 1,
        None if !whole => end.len(),
        _ => 0,
    };
    let records = &end[begin..];
    let tail = TailScan::new(LOG_LINES_MAX).block(0, records).and_then(|at| usize::try_from(at).ok());
    let mut words = Vec::new();
    let mut selector = Selector::new(&LogOptions::default());
    selector.push(&records[tail.unwrap_or(0)..], &mut words);
    selector.finish(&mut words);
    let words = &words[words.len().saturating_sub(LOG_BYTES_MAX)..];
    // A character that the cut went through is left out.
    let cut = words.iter().take(3).take_while(|b| **b & 0xC0 == 0x80).count();
    String::from_utf8_lossy(&words[cut..]).into_owned()
}

/// The runtime's own message, then the container's words.
#[must_use]
pub fn joined(message: &str, words: &str) -> String {
    if message.is_empty() || words.is_empty() {
        format!("{message}{words}")
    } else {
        format!("{message}: {words}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use agent_types::time::Wall;

    fn ended(path: &str, policy: &str, exit_code: i32) -> ContainerObserved {
        let annotations =
            [(labels::TERMINATION_MESSAGE_PATH, path), (labels::TERMINATION_MESSAGE_POLICY, policy)];
        ContainerObserved {
            state: ContainerState::Exited,
            started: Some(Wall(1)),
            finished: Some(Wall(2)),
            exit_code,
            annotations: annotations.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..ContainerObserved::created("c", "s", "c", 0, Wall(1))
        }
    }

    #[test]
    fn file_always_log_only_after_a_failure() {
        let places =
            |path: &str, policy: &str, code| places(&ended(path, policy, code)).map(|p| (p.file, p.log));
        assert_eq!(places("/dev/termination-log", "File", 1), Some((true, false)));
        assert_eq!(places("/dev/termination-log", FALLBACK, 0), Some((true, false)));
        assert_eq!(places("/dev/termination-log", FALLBACK, 1), Some((true, true)));
        assert_eq!(places("", FALLBACK, 1), Some((false, true)));
        assert_eq!(places("", "File", 1), None);
        let mut never = ended("", FALLBACK, 128);
        never.reason = NEVER_RAN.to_owned();
        assert_eq!(super::places(&never), None);
        let mut running = ended("/x", FALLBACK, 1);
        running.state = ContainerState::Running;
        assert_eq!(super::places(&running), None);
        let foreign = ContainerObserved { annotations: BTreeMap::new(), ..ended("", "", 1) };
        assert_eq!(super::places(&foreign), None, "a container without our annotations");
    }

    fn records(lines: impl IntoIterator<Item = String>) -> Vec<u8> {
        let record = |line: String| format!("2026-11-21T04:00:00.123456789Z stdout F {line}\n");
        lines.into_iter().map(record).collect::<String>().into_bytes()
    }

    #[test]
    fn the_last_lines_of_a_log() {
        assert_eq!(of_log(&records(["one".to_owned(), "two".to_owned()]), true), "one\ntwo\n");
        let many = records((0..100).map(|n| n.to_string()));
        let last: String = (20..100).map(|n| format!("{n}\n")).collect();
        assert_eq!(of_log(&many, true), last);
        let without_newline = &many[..many.len() - 1];
        assert!(of_log(without_newline, true).ends_with("\n99\n"));
        assert_eq!(of_log(b"", true), "");
    }

    #[test]
    fn the_last_bytes_of_long_lines_wherever_the_reading_began() {
        let long = records([String::new(), "x".repeat(3000)]);
        assert_eq!(of_log(&long, true), format!("{}\n", "x".repeat(LOG_BYTES_MAX - 1)));
        // A cut record is skipped; the next one counts.
        let cut = [&long[60..], &records(["after".to_owned()])].concat();
        assert_eq!(of_log(&cut, false), "after\n");
        assert_eq!(of_log(b"2026-11-21T04:00:00Z stdout F no end of a record before", false), "");
        let wide = of_log(&records(["ä".repeat(2000)]), true);
        assert!(wide.len() <= LOG_BYTES_MAX && wide.trim_end().chars().all(|c| c == 'ä'), "{wide}");
        let nonsense = of_log(b"2026-11-21T04:00:00Z stdout F \xff\xfe\n", true);
        assert_eq!(nonsense, "\u{fffd}\u{fffd}\n");
    }

    #[test]
    fn the_runtime_speaks_first() {
        assert_eq!(joined("", "words"), "words");
        assert_eq!(joined("OCI", ""), "OCI");
        assert_eq!(joined("OCI", "words"), "OCI: words");
    }
}
