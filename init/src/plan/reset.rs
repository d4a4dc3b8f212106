//! A factory reset: what is done next, from the request in the boot record and from what is on the disk.
//!
//! ```text
//! Ordered ─ forget ────────────────► erase ─► Erased ────────────────────────────► end
//!    └───── keep ─► carry ─► Carried ─► erase ─► Erased ─► (new partition) ─► restore ─► Restored ─► end
//! ```
//! In: [`ResetDisk`], which acts. Out: how far the reset is. Invariants: a stage is in the record before the next step begins, and
//! each step may be repeated from its start, so a power cut repeats it; at each moment what is kept is on the old state partition,
//! or whole behind the boot record, or on the new one; a state partition that the request does not name is never erased; a reset
//! that cannot carry what it shall keep has touched nothing. docs/reference/reset.md specifies the behaviour.

use super::guid::Guid;
use super::state::COPY_OFFSET;
use orlop_config::slots::{ResetRequest, ResetScope, ResetStage};

/// Name in the ledger. It stands there only in boots that have something to do with a reset.
pub const PHASE: &str = "init.reset";

const EDGE_BYTES: u64 = 1 << 20;

/// What is overwritten before all else and after it, offsets into the partition and lengths in bytes: the superblock and its first
/// copy, and where that of a state partition of the first layout would be, 1 MiB before it (`plan::state::old_starts`): a pod may have
/// written there what looks like one. Without them a half that is erased is no file system, and nothing stands in the way of a new one.
#[must_use]
pub fn edges(length: u64) -> Vec<(u64, u64)> {
    let fits = |(at, bytes): &(u64, u64)| at + bytes <= length;
    [(0, EDGE_BYTES), (COPY_OFFSET - EDGE_BYTES, 2 * EDGE_BYTES)].into_iter().filter(fits).collect()
}

/// Parts of at most `part` bytes of a partition, in order: offset and length.
pub fn parts(length: u64, part: u64) -> impl Iterator<Item = (u64, u64)> {
    let part = part.max(1);
    (0..length.div_ceil(part)).map(move |n| (n * part, part.min(length - n * part)))
}

/// How a partition was erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErasedBy {
    /// The device was told to erase its copies, too (`BLKSECDISCARD`).
    SecureDiscard,
    /// The device was told that nobody wants the blocks (`BLKDISCARD`).
    Discard,
    /// Zeros over all of it.
    Zeros,
}

impl ErasedBy {
    /// For a person: what it is worth.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            ErasedBy::SecureDiscard => "its disk says that it has erased it with all copies (secure discard)",
            ErasedBy::Discard => {
                "its disk was told to forget it (discard); the disk, or the host of a virtual machine, may keep copies"
            }
            ErasedBy::Zeros => "overwritten with zeros; a flash disk may keep copies",
        }
    }
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetStep {
    /// Read what is kept from the old state partition, and write it behind the boot record.
    Carry,
    /// Erase the named state partition, if it is there, and take it out of the table.
    Erase,
    /// Write what is kept to the new state partition.
    Restore,
    /// Overwrite what lies behind the boot record, and end the request.
    Finish,
    /// The same; what was to be kept is lost.
    GiveUp,
}

/// Decides. `state`: the PARTUUID of the state partition that is there. `carried`: what is kept lies whole behind the boot record.
#[must_use]
pub fn next(request: &ResetRequest, state: Option<Guid>, carried: bool) -> ResetStep {
    let named = Guid::parse(&request.partition);
    let is_there = named.is_some() && state == named;
    match (request.stage, request.order.scope) {
        // There was none, or another one is there: nothing is left of what was ordered.
        (ResetStage::Ordered, _) if !is_there => ResetStep::Finish,
        (ResetStage::Ordered | ResetStage::Carried, ResetScope::Forget) => ResetStep::Erase,
        // What an earlier boot has carried may be older than the files.
        (ResetStage::Ordered, ResetScope::Keep) => ResetStep::Carry,
        (ResetStage::Carried, ResetScope::Keep) if carried => ResetStep::Erase,
        // The disk has lost it. If the erasing had not begun, it can be read again.
        (ResetStage::Carried, ResetScope::Keep) if is_there => ResetStep::Carry,
        // The disk has lost the write of the table.
        (ResetStage::Erased, scope) if is_there && (carried || scope == ResetScope::Forget) => {
            ResetStep::Erase
        }
        (ResetStage::Erased, ResetScope::Forget) | (ResetStage::Restored, _) => ResetStep::Finish,
        (ResetStage::Erased, ResetScope::Keep) if carried => ResetStep::Restore,
        (ResetStage::Carried | ResetStage::Erased, ResetScope::Keep) => ResetStep::GiveUp,
    }
}

/// The disk of a reset. Each call returns when its writes are on the disk.
pub trait ResetDisk {
    /// Error of the disk.
    type Error;

    /// The request in the boot record.
    fn request(&self) -> Option<ResetRequest>;

    /// PARTUUID of the state partition that is there.
    ///
    /// # Errors
    /// The table cannot be read.
    fn state(&mut self) -> Result<Option<Guid>, Self::Error>;

    /// Does what is kept lie whole behind the boot record, for the order with this identifier?
    ///
    /// # Errors
    /// The place cannot be read.
    fn has_carried(&mut self, id: &str) -> Result<bool, Self::Error>;

    /// [`ResetStep::Carry`].
    ///
    /// # Errors
    /// Why not, for a person; the state partition is as it was, and the reset ends.
    fn carry(&mut self, id: &str) -> Result<(), String>;

    /// [`ResetStep::Erase`] of the partition with this PARTUUID. One that is not there is fine.
    ///
    /// # Errors
    /// A part may be erased.
    fn erase(&mut self, partition: Guid) -> Result<(), Self::Error>;

    /// [`ResetStep::Restore`]; the new state partition is mounted.
    ///
    /// # Errors
    /// A part may be there.
    fn restore(&mut self, id: &str) -> Result<(), Self::Error>;

    /// Overwrites what lies behind the boot record.
    ///
    /// # Errors
    /// A part may be there.
    fn forget_carried(&mut self) -> Result<(), Self::Error>;

    /// Writes the stage into the record.
    ///
    /// # Errors
    /// The record is as it was, or has the stage.
    fn enter(&mut self, stage: ResetStage) -> Result<(), Self::Error>;

    /// Ends the request in the record. `refused`: why it was not carried out; empty if it was.
    ///
    /// # Errors
    /// The record is as it was, or has the end.
    fn end(&mut self, refused: &str) -> Result<(), Self::Error>;
}

/// How far a reset has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetProgress {
    /// No reset was ordered.
    Nothing,
    /// The old state is gone. What is kept waits for the new state partition.
    AwaitsState,
    /// It is over.
    Done(ResetScope),
    /// It has ended, not as ordered: why.
    Refused(String),
}

/// What is said of a reset whose kept files are lost.
const LOST: &str = "what was to be kept cannot be read any more: the node begins anew";

/// Carries a reset on. `mounted`: the new state partition is mounted.
///
/// # Errors
/// A step failed; the next boot repeats it. Until then no state partition may be used.
pub fn advance<D: ResetDisk>(disk: &mut D, mounted: bool) -> Result<ResetProgress, D::Error> {
    let Some(mut request) = disk.request() else { return Ok(ResetProgress::Nothing) };
    let id = request.order.id.clone();
    loop {
        let (state, carried) = (disk.state()?, disk.has_carried(&id)?);
        request.stage = match next(&request, state, carried) {
            ResetStep::Carry => match disk.carry(&id) {
                Ok(()) if disk.has_carried(&id)? => ResetStage::Carried,
                Ok(()) => {
                    return refuse(disk, "the boot record's partition does not keep what is written to it");
                }
                Err(why) => return refuse(disk, &why),
            },
            ResetStep::Erase => {
                disk.erase(Guid::parse(&request.partition).unwrap_or_default())?;
                ResetStage::Erased
            }
            ResetStep::Restore if !mounted => return Ok(ResetProgress::AwaitsState),
            ResetStep::Restore => {
                disk.restore(&id)?;
                ResetStage::Restored
            }
            ResetStep::Finish => {
                disk.forget_carried()?;
                disk.end("")?;
                return Ok(ResetProgress::Done(request.order.scope));
            }
            ResetStep::GiveUp => return refuse(disk, LOST),
        };
        disk.enter(request.stage)?;
    }
}

fn refuse<D: ResetDisk>(disk: &mut D, why: &str) -> Result<ResetProgress, D::Error> {
    disk.forget_carried()?;
    disk.end(why)?;
    Ok(ResetProgress::Refused(why.to_owned()))
}

#[cfg(test)]
#[path = "reset_tests.rs"]
mod tests;
