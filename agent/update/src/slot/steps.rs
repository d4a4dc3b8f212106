//! The words between the writing of an area and its driver: steps, writes, faults.

#[cfg(doc)]
use super::area::AreaWriter;
use super::blocks::BlockRun;

/// Requests in a row that bring no block, after which a source is left.
pub(super) const FRUITLESS_MAX: u32 = 3;

/// What an area is to hold.
#[derive(Clone, Debug)]
pub struct AreaTarget {
    /// Digests of its blocks, one after another.
    pub digests: Vec<u8>,
    /// Salt of the digests.
    pub salt: [u8; 32],
    /// Bytes of the file that has its content; zeros stand behind them.
    pub file_bytes: u64,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// The first one.
    pub from: u64,
    /// The one behind the last one.
    pub to: u64,
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaStep {
    /// Read these blocks of the area, then [`AreaWriter::surveyed`].
    Survey(BlockRun),
    /// Write zeros to these blocks, then [`AreaWriter::zeroed`].
    Zero(BlockRun),
    /// Read these blocks of the running slot, then [`AreaWriter::copied`] with the block where they are wanted.
    Copy {
        /// Blocks of the running slot.
        from: BlockRun,
        /// The first one's place.
        to: u32,
    },
    /// Ask for these bytes of the file: [`AreaWriter::received`] for each piece, then [`AreaWriter::ended`].
    Fetch(ByteRange),
    /// Bring what was written to the disk, then [`AreaWriter::synced`].
    Sync,
    /// Read these blocks past all caches, then [`AreaWriter::verified`].
    Verify(BlockRun),
    /// The area holds what it is to hold.
    Done,
}

/// Blocks to be written at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaWrite {
    /// Where.
    pub run: BlockRun,
    /// Their content.
    pub bytes: Vec<u8>,
}

/// What came of a piece of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedPiece {
    /// To be written before anything else.
    pub writes: Vec<AreaWrite>,
    /// The request is over: what it brings from here on is not wanted.
    pub is_over: bool,
}

/// Why an area does not get its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AreaFault {
    /// The source gave a wrong block twice, or many wrong ones.
    #[error("block {0} does not match its hash; asked again, then the source is left for 10 min")]
    Mismatch(u32),
    /// Several requests in a row brought no block.
    #[error("{times} requests brought nothing: {0}; the source is left for 10 min", times = FRUITLESS_MAX)]
    Fruitless(String),
    /// A block is in no file of the release.
    #[error("block {0} has content and lies behind the end of the file: the release is damaged")]
    NotInFile(u32),
    /// The disk does not keep what it was given.
    #[error("reads back differently at block {0}: the disk is failing")]
    ReadBack(u32),
}

/// Where the blocks of an area came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaCounts {
    /// Blocks that were there already.
    pub present: u32,
    /// Blocks of zeros that were written.
    pub zeroed: u32,
    /// Blocks copied from the running slot.
    pub copied: u32,
    /// Blocks fetched.
    pub fetched: u32,
    /// Bytes that the source gave.
    pub received_bytes: u64,
}
