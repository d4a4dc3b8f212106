//! The boot record: which slot a node boots, and what is known about both.
//!
//! It lies in a partition of its own (`orlop-boot`), outside of every file system. [`ring`] is its form on the disk,
//! [`record`] its content, [`change`] has the changes of the running system, [`reset`] the order of a factory reset. init, the
//! updater, the image builder and the tests read and write it with this module. Pure: bytes in, values or bytes out; no input makes
//! it panic. Reasons: docs/decisions/boot-record.md.

pub mod change;
pub mod record;
pub mod reset;
pub mod ring;
pub mod trial_boot;

pub use change::{ATTEMPTS_MAX, SlotChangeError};
pub use record::{BootRecord, REASON_CHARS_MAX, RecordError, SlotName, SlotRecord, SlotState, SlotTrial};
pub use reset::{
    RESET_END_FILE, RESET_ID_BYTES_MAX, RESETS_REMEMBERED, ResetEnd, ResetOrder, ResetRequest, ResetScope,
    ResetStage,
};
pub use ring::{
    BLOCK_BYTES, BLOCKS, PAYLOAD_BYTES_MAX, RING_BYTES, RingPosition, RingRecord, RingWrite, latest,
};
pub use trial_boot::{TRIAL_BOOT_FILE, TrialBoot};

#[cfg(test)]
mod tests;
