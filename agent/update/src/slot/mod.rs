//! How the slot that does not run gets another version. Pure: bytes and facts in, steps as values out.
//!
//! ```text
//! partition table ─► SlotPlaces        which partitions are written, and which are only read
//! boot record ────► slot_to_write ─► writing ─► staged
//! root hash ──────► VerityTree ─► digests ─┐
//! block list of the UKI ───────► digests ──┴─► AreaWriter ─► steps
//! ```
//! Invariants, tried by the tests beside each module: nothing of the running slot is written; whatever an area held before and
//! wherever the power was cut, a run that ends leaves exactly the blocks of the release; no block is written that does not
//! match its digest. The drivers are [`stage`](super::stage()) and `DeviceArea`. For operators: docs/reference/update.md.

pub mod area;
pub mod blocks;
pub mod places;
pub mod record;
mod steps;
pub mod tree;
