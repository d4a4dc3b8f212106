//! Limits the log to one line a minute for equal error messages (as upstream's
//! cri-client/pkg/remote_runtime.go, `logReduction`).
//!
//! In: a time and a message. Out: whether to log it, and how many were suppressed since the last line.
//! Invariant: memory is bounded; when the table is full its oldest entry is dropped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_secs(60);
const ENTRIES_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    seen: BTreeMap<String, LoggedError>,
}

#[derive(Debug)]
struct LoggedError {
    logged: Instant,
    left_out: u64,
}

impl ErrorLog {
    /// `Some(left out since)` if the message is to be logged now.
    pub(crate) fn admit(&mut self, now: Instant, message: &str) -> Option<u64> {
        if let Some(entry) = self.seen.get_mut(message) {
            if now.saturating_duration_since(entry.logged) < QUIET {
                entry.left_out += 1;
                return None;
            }
            let left_out = entry.left_out;
            *entry = LoggedError { logged: now, left_out: 0 };
            return Some(left_out);
        }
        if self.seen.len() >= ENTRIES_MAX {
            let oldest = self.seen.iter().min_by_key(|(_, e)| e.logged).map(|(m, _)| m.clone());
            oldest.and_then(|message| self.seen.remove(&message));
        }
        self.seen.insert(message.to_owned(), LoggedError { logged: now, left_out: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_words_once_a_minute() {
        let (mut log, start) = (ErrorLog::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(log.admit(at(0), "a"), Some(0));
        assert_eq!(log.admit(at(1), "a"), None);
        assert_eq!(log.admit(at(59), "a"), None);
        assert_eq!(log.admit(at(59), "b"), Some(0));
        assert_eq!(log.admit(at(60), "a"), Some(2));
        assert_eq!(log.admit(at(61), "a"), None);
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest() {
        let (mut log, start) = (ErrorLog::default(), Instant::now());
        for i in 0..=ENTRIES_MAX {
            let at = start + Duration::from_millis(u64::try_from(i).unwrap());
            assert_eq!(log.admit(at, &format!("message {i}")), Some(0));
        }
        assert_eq!(log.seen.len(), ENTRIES_MAX);
        assert_eq!(log.admit(start, "message 0"), Some(0), "the oldest was forgotten");
        assert_eq!(log.admit(start, &format!("message {ENTRIES_MAX}")), None);
    }
}
