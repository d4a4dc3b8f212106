//! Where the bytes of the staged releases came from, since the node's state partition was made.
//!
//! In: counts of each release that was staged. Out: [`BYTES_FILE`], whole or as before. The process ends when it is idle, so the file
//! and not the process is what the agent reads for its metrics. A file that is damaged or cannot be written costs figures only.

use std::path::Path;

use orlop_config::release::BLOCK_BYTES;
use orlop_files::{Durability, ReplaceError, replace};
use serde::{Deserialize, Serialize};

use crate::directory::read_bounded;
use crate::slot::area::AreaCounts;

/// The file below the directory of what a node keeps about updates.
pub const BYTES_FILE: &str = "bytes.json";
/// Everybody may read it.
const MODE: u32 = 0o644;

/// Bytes, by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateBytes {
    /// From servers and drives.
    pub source: u64,
    /// From the slot that ran.
    pub slot: u64,
    /// They were in their place before.
    pub present: u64,
}

impl UpdateBytes {
    /// Those of the parts of one release.
    #[must_use]
    pub fn of(parts: &[AreaCounts]) -> UpdateBytes {
        let blocks = |number: u32| u64::from(number).saturating_mul(BLOCK_BYTES);
        parts.iter().fold(UpdateBytes::default(), |sum, part| {
            sum.plus(UpdateBytes {
                source: part.received_bytes,
                slot: blocks(part.copied),
                present: blocks(part.present),
            })
        })
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, more: UpdateBytes) -> UpdateBytes {
        UpdateBytes {
            source: self.source.saturating_add(more.source),
            slot: self.slot.saturating_add(more.slot),
            present: self.present.saturating_add(more.present),
        }
    }

    /// Reads the file; nothing if there is none, or if it is damaged.
    #[must_use]
    pub fn read(kept: &Path) -> UpdateBytes {
        let text = read_bounded(&kept.join(BYTES_FILE)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Adds these to the file.
    ///
    /// # Errors
    /// The step of the write that failed.
    pub fn add_to(self, kept: &Path) -> Result<(), ReplaceError> {
        let sum = UpdateBytes::read(kept).plus(self);
        // Numbers always have a JSON form.
        let text = serde_json::to_vec(&sum).unwrap_or_default();
        replace(&kept.join(BYTES_FILE), &text, MODE, Durability::Synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_added_up_over_processes() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        assert_eq!(UpdateBytes::read(dir.path()), UpdateBytes::default());
        let part = AreaCounts { present: 1, copied: 2, received_bytes: 5000, ..AreaCounts::default() };
        let release = UpdateBytes::of(&[part, part]);
        assert_eq!(release, UpdateBytes { source: 10_000, slot: 16_384, present: 8192 });
        release.add_to(dir.path()).expect("written");
        release.add_to(dir.path()).expect("written");
        let sum = UpdateBytes { source: 20_000, slot: 32_768, present: 16_384 };
        assert_eq!(UpdateBytes::read(dir.path()), sum);
        std::fs::write(dir.path().join(BYTES_FILE), "{").expect("written");
        assert_eq!(UpdateBytes::read(dir.path()), UpdateBytes::default(), "damaged");
        release.add_to(dir.path()).expect("written");
        assert_eq!(UpdateBytes::read(dir.path()), release);
        assert!(release.add_to(&dir.path().join("absent")).is_err());
        let most = UpdateBytes { source: u64::MAX, slot: 0, present: 0 };
        assert_eq!(most.plus(release).source, u64::MAX);
    }
}
