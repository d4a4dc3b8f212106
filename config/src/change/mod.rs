//! A change of the node's own document: it is tried, and it is confirmed or taken back.
//!
//! ```text
//! begin ─► Waiting ──(next boot)──► Trying ──confirm, or applied without a question──► confirmed
//!    └────────────────────────────────┘  └──deadline, failure, revert──► Reverting ──► as before
//! ```
//! In: a record of the state partition, events, the time. Out: the next record, and the driver's next step as a value. The management
//! API begins, confirms and takes back; init reads the record at each boot; `orlop-init trial` drives it in between. Pure.
//!
//! Invariants: a document becomes the confirmed one only by a confirmation, or by having been applied where none was asked for; a
//! document on trial counts in one boot alone, so a power cut while it is tried means the confirmed one at the next boot; after its
//! deadline it never counts; each change ends once. Format of the file: docs/internals/architecture.md, "Run-time files".

mod driver;
mod machine;
mod record;

#[cfg(test)]
mod tests;

pub use driver::{DriverNote, DriverStep, LOOK_MS, needs_restart, next_step};
pub use machine::{ChangeRefusal, NewChange};
pub use record::{
    BYTES_MAX, ChangeAuthor, ChangeOutcome, ChangeRecord, ChangeStage, ChangeTime, ClosedChange,
    Confirmation, DocumentText, FILE, HISTORY_MAX, KEY_BYTES_MAX, KEYS_MAX, OpenChange,
};
