//! Writes of the checkpoint: one at a time, the newest text wins.
//!
//! In: requests for a write, the ends of writes. Out: texts, the version that is on the disk. Invariants: a write satisfies the requests
//! that came before it began; a text that is on the disk already needs no write. Upstream: pkg/kubelet/cm/dra/claiminfo.go
//! syncToCheckpoint.

use super::cache::ClaimCache;
use super::checkpoint::{self, CLAIMS_STATE};

/// The file's text, and the writes that are requested or in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct CheckpointWrites {
    /// Number of requests.
    asked: u64,
    /// The last request whose write ended.
    ended: u64,
    /// The last request that the current write satisfies, and its text.
    writing: Option<(u64, String)>,
    /// The file's text; `None`: there is no file, or the last write failed.
    on_disk: Option<String>,
    /// True if there was no file at the start.
    is_first: bool,
}

impl CheckpointWrites {
    /// Starts with the text of the file. Without a file the first one is written at once.
    pub(super) fn new(on_disk: Option<String>) -> CheckpointWrites {
        let is_first = on_disk.is_none();
        CheckpointWrites { asked: u64::from(is_first), on_disk, is_first, ..CheckpointWrites::default() }
    }

    /// Requests a write of these claims. Returns the number to wait for; `None`: the file has these claims.
    pub(super) fn ask(&mut self, cache: &ClaimCache) -> Option<u64> {
        let is_idle = self.writing.is_none() && self.asked == self.ended;
        if is_idle && self.on_disk.as_ref() == Some(&checkpoint::write(cache)) {
            return None;
        }
        self.asked += 1;
        Some(self.asked)
    }

    /// The text to write now, if a write is requested and none is in progress.
    pub(super) fn begin(&mut self, cache: &ClaimCache) -> Option<String> {
        if self.writing.is_some() || self.asked == self.ended {
            return None;
        }
        let is_null = std::mem::take(&mut self.is_first) && cache.is_empty();
        let text = if is_null { checkpoint::first() } else { checkpoint::write(cache) };
        self.writing = Some((self.asked, text.clone()));
        Some(text)
    }

    /// Ends the current write. Returns the last request that it satisfied.
    pub(super) fn end(&mut self, succeeded: bool) -> Option<u64> {
        let (met, text) = self.writing.take()?;
        self.ended = met;
        self.on_disk = succeeded.then_some(text);
        Some(met)
    }
}

/// Upstream's text of a write that failed.
pub(super) fn failed(what: &str, error: &str) -> String {
    format!("checkpoint ResourceClaim {what}: could not save checkpoint {CLAIMS_STATE}: {error}")
}
