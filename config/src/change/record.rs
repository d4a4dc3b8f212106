//! The record of changes as it is on the state partition: the confirmed document, the open change, the last ended ones.
//!
//! Invariants: the file is replaced whole, so a power cut leaves the old record or the new one; `Debug` shows no document, because it
//! may hold a token.

use serde::{Deserialize, Serialize};

/// The record, below /var; mode 0600.
pub const FILE: &str = "lib/orlop/config/node.json";
/// Largest record that is read, bytes: two documents, however JSON escapes them, and the ended changes.
pub const BYTES_MAX: u64 = 8 << 20;
/// Ended changes that are kept.
pub const HISTORY_MAX: usize = 20;
/// Paths of keys that are kept of a change.
pub const KEYS_MAX: usize = 64;
/// Longest path of a key that is kept whole, bytes: a record with its history has to stay below [`BYTES_MAX`].
pub const KEY_BYTES_MAX: usize = 256;
/// Version of the format.
const VERSION: u32 = 1;

/// A NodeConfig; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DocumentText(pub String);

impl std::fmt::Debug for DocumentText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeTime<'a> {
    /// Identifier of the boot (`/proc/sys/kernel/random/boot_id`).
    pub boot: &'a str,
    /// Since the boot, milliseconds of CLOCK_BOOTTIME.
    pub up_ms: u64,
    /// Since 1970 by the node's clock, seconds; for people only.
    pub wall_s: u64,
}

/// Who has begun a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeAuthor {
    /// Name of the identity.
    pub who: String,
    /// The door of the management API.
    pub door: String,
}

/// How a change becomes the confirmed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Confirmation {
    /// An administrator confirms it.
    Asked,
    /// It has been applied without a failure.
    Applied,
}

/// How far a change is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ChangeStage {
    /// The next boot tries it.
    Waiting,
    /// It counts.
    Trying {
        /// In this boot alone.
        boot: String,
        /// Until then, milliseconds since the boot.
        deadline_ms: u64,
        /// The node runs with it since then, milliseconds since the boot.
        applied_ms: Option<u64>,
    },
    /// The confirmed document counts again; the node may run with the other one still.
    Reverting {
        /// Why, for people.
        why: String,
    },
}

/// A change that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenChange {
    /// Its number.
    pub number: u64,
    /// The document; `None`: the node's own document is taken away.
    pub document: Option<DocumentText>,
    /// Who has begun it.
    pub author: ChangeAuthor,
    /// Paths of the keys that it changes, at most [`KEYS_MAX`].
    pub keys: Vec<String>,
    /// How long it may be tried, milliseconds.
    pub window_ms: u64,
    /// How it becomes the confirmed one.
    pub confirmation: Confirmation,
    /// A confirmation has to come through this door; none: through any.
    pub confirm_door: Option<String>,
    /// It acts at the next boot, and is taken back by one.
    pub at_boot: bool,
    /// When it was begun, seconds since 1970.
    pub begun_s: u64,
    /// How far it is.
    pub stage: ChangeStage,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeOutcome {
    /// Its document is the confirmed one.
    Confirmed,
    /// It left nothing.
    Reverted,
}

/// A change that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClosedChange {
    /// Its number.
    pub number: u64,
    /// Who had begun it.
    pub author: ChangeAuthor,
    /// Paths of the keys that it changed.
    pub keys: Vec<String>,
    /// When it was begun, seconds since 1970.
    pub begun_s: u64,
    /// When it ended, seconds since 1970.
    pub ended_s: u64,
    /// How it ended.
    pub outcome: ChangeOutcome,
    /// Why, for people.
    pub why: String,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeRecord {
    pub(super) version: u32,
    /// The document that counts if no change is tried; `None`: the node has none of its own.
    pub confirmed: Option<DocumentText>,
    /// The change that has not ended.
    pub open: Option<OpenChange>,
    /// Ended changes, the oldest first, at most [`HISTORY_MAX`].
    pub history: Vec<ClosedChange>,
    /// Number of the last change that was begun.
    pub last_number: u64,
}

/// The one key that each version of the format has.
#[derive(Deserialize)]
struct RecordVersion {
    version: u32,
}

/// Where JSON is wrong, without the words of the parser: they may quote a token.
fn damaged(error: &serde_json::Error) -> String {
    format!("it is damaged in line {}, column {}", error.line(), error.column())
}

impl Default for ChangeRecord {
    fn default() -> ChangeRecord {
        ChangeRecord { version: VERSION, confirmed: None, open: None, history: Vec::new(), last_number: 0 }
    }
}

impl ChangeRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<ChangeRecord, String> {
        // First of all: what another version has in the place of a document is none of this one's mistakes.
        let RecordVersion { version } = serde_json::from_str(text).map_err(|e| damaged(&e))?;
        if version != VERSION {
            return Err(format!("its version is {version} and not {VERSION}: another image has written it"));
        }
        serde_json::from_str(text).map_err(|e| damaged(&e))
    }

    /// The record's text.
    #[must_use]
    pub fn render(&self) -> String {
        // Neither maps with other keys than texts nor numbers that JSON lacks are in it.
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The document that counts now: the one on trial in its boot and until its deadline, else the confirmed one.
    #[must_use]
    pub fn counts(&self, now: ChangeTime<'_>) -> Option<&str> {
        let tried = self.open.as_ref().filter(|change| match &change.stage {
            ChangeStage::Trying { boot, deadline_ms, .. } => boot == now.boot && now.up_ms < *deadline_ms,
            ChangeStage::Waiting | ChangeStage::Reverting { .. } => false,
        });
        let document = tried.map_or(&self.confirmed, |change| &change.document);
        document.as_ref().map(|text| text.0.as_str())
    }
}
