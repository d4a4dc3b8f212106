//! The writing of one area of a slot, its root or its UKI, by the digests of its blocks. A state machine: no I/O, no clock.
//!
//! In: the digests of the release's blocks, those of the running slot's, and what the driver has read or received. Out: the next
//! step. Order: look at what the area has (resume), copy from the running slot by content (delta), write zeros, fetch the rest in
//! ranges, read everything back. Invariants: a block is written only if it matches its digest; every step is bounded; a source
//! that lies or breaks off is asked again a bounded number of times for each block that it gives.

use super::blocks::{BLOCK, BlockDigest, BlockIndex, BlockRun, BlockSet, DIGEST, at, digest};
use super::steps::FRUITLESS_MAX;
pub use super::steps::{AreaCounts, AreaFault, AreaStep, AreaTarget, AreaWrite, ByteRange, ReceivedPiece};

/// Blocks of a step: 1 MiB.
pub const RUN_BLOCKS: u32 = 256;
/// Blocks that are fetched although they are there, so that one request serves for what stands around them: 64 KiB.
pub const GAP_BLOCKS: u32 = 16;
/// Blocks of a request: 4 MiB.
pub const RANGE_BLOCKS_MAX: u32 = 1024;
/// What was received is written in such pieces, bytes: so much is lost when the power is cut.
const PIECE: usize = 64 << 10;
/// Bytes between two syncs.
pub const SYNC_BYTES: u64 = 8 << 20;
/// Wrong blocks of a source, each of them right when it is asked for again.
const WRONG_MAX: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AreaPhase {
    Survey(u32),
    Local(u32),
    Fetch,
    Verify(u32),
    Done,
}

/// A request that runs.
#[derive(Clone, Debug)]
struct FileRequest {
    /// Place of the byte that comes next.
    next: u64,
    to: u64,
    /// Received and not yet looked at, from the beginning of a block on.
    pending: Vec<u8>,
    pending_block: u32,
    /// It has brought a block that was wanted, or shown a wrong one.
    has_come: bool,
}

/// The machine.
#[derive(Debug)]
pub struct AreaWriter {
    target: AreaTarget,
    blocks: u32,
    zero: BlockDigest,
    running: BlockIndex,
    present: BlockSet,
    phase: AreaPhase,
    request: Option<FileRequest>,
    /// The server gives whole files only.
    is_whole: bool,
    /// The block that came wrong last.
    wrong: Option<u32>,
    wrong_answers: u32,
    fruitless: u32,
    fault: Option<AreaFault>,
    unsynced: u64,
    counts: AreaCounts,
}

impl AreaWriter {
    /// Begins. `running` has the digests of the running slot's blocks, with the same salt.
    #[must_use]
    pub fn new(target: AreaTarget, running: BlockIndex) -> AreaWriter {
        let blocks = u32::try_from(target.digests.len() / DIGEST).unwrap_or(u32::MAX);
        AreaWriter {
            zero: digest(&target.salt, &[0; BLOCK]),
            blocks,
            running,
            present: BlockSet::none(blocks),
            phase: AreaPhase::Survey(0),
            request: None,
            is_whole: false,
            wrong: None,
            wrong_answers: 0,
            fruitless: 0,
            fault: None,
            unsynced: 0,
            counts: AreaCounts::default(),
            target,
        }
    }

    /// The next step. The one before is over.
    ///
    /// # Errors
    /// There is no way on; each further call says the same.
    pub fn step(&mut self) -> Result<AreaStep, AreaFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.needs_sync() {
            return Ok(AreaStep::Sync);
        }
        loop {
            match self.phase {
                AreaPhase::Survey(from) if from < self.blocks => {
                    return Ok(AreaStep::Survey(self.run_from(from)));
                }
                AreaPhase::Survey(_) => self.phase = AreaPhase::Local(0),
                AreaPhase::Local(from) => match self.local(from) {
                    Some((step, next)) => {
                        self.phase = AreaPhase::Local(next);
                        return Ok(step);
                    }
                    None => self.phase = AreaPhase::Fetch,
                },
                AreaPhase::Fetch => match self.wanted()? {
                    Some(range) => {
                        self.request = Some(FileRequest::new(range));
                        return Ok(AreaStep::Fetch(range));
                    }
                    None => self.phase = AreaPhase::Verify(0),
                },
                AreaPhase::Verify(_) if self.unsynced > 0 => return Ok(AreaStep::Sync),
                AreaPhase::Verify(from) if from < self.blocks => {
                    return Ok(AreaStep::Verify(self.run_from(from)));
                }
                AreaPhase::Verify(_) => self.phase = AreaPhase::Done,
                AreaPhase::Done => return Ok(AreaStep::Done),
            }
        }
    }

    /// Where the blocks came from so far.
    #[must_use]
    pub fn counts(&self) -> AreaCounts {
        self.counts
    }

    /// Blocks that are in their place, and all of them.
    #[must_use]
    pub fn progress(&self) -> (u32, u32) {
        let counts = self.counts;
        let done = [counts.present, counts.zeroed, counts.copied, counts.fetched];
        (done.into_iter().fold(0, u32::saturating_add), self.blocks)
    }

    /// What the area has in these blocks.
    pub fn surveyed(&mut self, run: BlockRun, bytes: &[u8]) {
        for (block, content) in (run.first..run.end()).zip(bytes.chunks_exact(BLOCK)) {
            if self.matches(block, content) {
                self.present.insert(block);
                self.counts.present += 1;
            }
        }
        self.phase = AreaPhase::Survey(run.end());
    }

    /// Zeros were written.
    pub fn zeroed(&mut self, run: BlockRun) {
        (run.first..run.end()).for_each(|block| self.present.insert(block));
        self.counts.zeroed += run.count;
        self.unsynced += run.bytes() as u64;
    }

    /// What the running slot has for the blocks from `to` on: those to be written. Others are fetched later.
    pub fn copied(&mut self, to: u32, bytes: &[u8]) -> Vec<AreaWrite> {
        let (writes, _) = self.accept(to, bytes);
        let count: u32 = writes.iter().map(|write| write.run.count).sum();
        self.counts.copied += count;
        writes
    }

    /// A piece of the file, `offset` bytes from its beginning. A server without ranges begins at 0, whatever it was asked for.
    pub fn received(&mut self, offset: u64, bytes: &[u8]) -> ReceivedPiece {
        let Some(mut request) = self.request.take() else {
            return ReceivedPiece { is_over: true, ..ReceivedPiece::default() };
        };
        self.counts.received_bytes += bytes.len() as u64;
        if offset != request.next {
            // Nothing but the whole file is understood in place of what was asked for.
            if offset != 0 || request.has_come || !request.pending.is_empty() {
                self.request = Some(request);
                return ReceivedPiece { is_over: true, ..ReceivedPiece::default() };
            }
            self.is_whole = true;
            request = FileRequest::new(ByteRange { from: 0, to: self.last_wanted() });
        }
        let room = usize::try_from(request.to - request.next).unwrap_or(usize::MAX);
        let taken = &bytes[..bytes.len().min(room)];
        request.pending.extend_from_slice(taken);
        request.next += taken.len() as u64;
        let is_full = request.next >= request.to;
        let mut piece = ReceivedPiece { writes: Vec::new(), is_over: is_full };
        if is_full || request.pending.len() >= PIECE {
            let (writes, is_wrong) = self.look_at(&mut request);
            piece = ReceivedPiece { writes, is_over: is_full || is_wrong };
        }
        self.request = Some(request);
        piece
    }

    /// A request is over: what is still to be written. `why` says how it broke off.
    pub fn ended(&mut self, why: Option<String>) -> Vec<AreaWrite> {
        let Some(mut request) = self.request.take() else { return Vec::new() };
        let (writes, _) = self.look_at(&mut request);
        if request.has_come {
            self.fruitless = 0;
        } else {
            self.fruitless += 1;
        }
        if self.fruitless >= FRUITLESS_MAX && self.fault.is_none() {
            let why = why.unwrap_or_else(|| "the answers were empty".to_owned());
            self.fault = Some(AreaFault::Fruitless(why));
        }
        writes
    }

    /// Is so much written that it must be synced, also while a request runs?
    #[must_use]
    pub fn needs_sync(&self) -> bool {
        self.unsynced >= SYNC_BYTES
    }

    /// What was written is on the disk.
    pub fn synced(&mut self) {
        self.unsynced = 0;
    }

    /// What the area has in these blocks now.
    pub fn verified(&mut self, run: BlockRun, bytes: &[u8]) {
        let mut contents = bytes.chunks_exact(BLOCK);
        let bad = (run.first..run.end())
            .find(|block| contents.next().is_none_or(|content| !self.matches(*block, content)));
        self.fault = self.fault.take().or(bad.map(AreaFault::ReadBack));
        self.phase = AreaPhase::Verify(run.end());
    }

    fn run_from(&self, first: u32) -> BlockRun {
        BlockRun { first, count: RUN_BLOCKS.min(self.blocks - first) }
    }

    fn digest_of(&self, block: u32) -> BlockDigest {
        at(&self.target.digests, block)
    }

    fn matches(&self, block: u32, content: &[u8]) -> bool {
        let wanted = self.digest_of(block);
        // Most of a slot is zeros: they need no digest.
        if content.iter().all(|byte| *byte == 0) {
            return wanted == self.zero;
        }
        wanted == digest(&self.target.salt, content)
    }

    /// Takes what matches of blocks that are missing: what is to be written, and the first block that does not match.
    fn accept(&mut self, first: u32, bytes: &[u8]) -> (Vec<AreaWrite>, Option<u32>) {
        let (mut writes, mut wrong): (Vec<AreaWrite>, Option<u32>) = (Vec::new(), None);
        for (block, content) in (first..self.blocks).zip(bytes.chunks_exact(BLOCK)) {
            if self.present.contains(block) {
                continue;
            }
            if !self.matches(block, content) {
                wrong = wrong.or(Some(block));
                continue;
            }
            self.present.insert(block);
            self.unsynced += BLOCK as u64;
            match writes.last_mut().filter(|write| write.run.end() == block) {
                Some(write) => {
                    write.run.count += 1;
                    write.bytes.extend_from_slice(content);
                }
                None => {
                    let run = BlockRun { first: block, count: 1 };
                    writes.push(AreaWrite { run, bytes: content.to_vec() });
                }
            }
        }
        (writes, wrong)
    }

    /// The whole blocks that a request has brought; true if one of them is wrong.
    fn look_at(&mut self, request: &mut FileRequest) -> (Vec<AreaWrite>, bool) {
        if request.next >= self.target.file_bytes {
            // Zeros fill the file's last block.
            request.pending.resize(request.pending.len().next_multiple_of(BLOCK), 0);
        }
        let whole = request.pending.len() - request.pending.len() % BLOCK;
        let rest = request.pending.split_off(whole);
        let bytes = std::mem::replace(&mut request.pending, rest);
        let (writes, wrong) = self.accept(request.pending_block, &bytes);
        let blocks = u32::try_from(whole / BLOCK).unwrap_or(u32::MAX);
        request.pending_block = request.pending_block.saturating_add(blocks);
        self.counts.fetched += writes.iter().map(|write| write.run.count).sum::<u32>();
        if let Some(block) = wrong {
            self.wrong_answers += 1;
            let is_enough = self.wrong == Some(block) || self.wrong_answers >= WRONG_MAX;
            if is_enough && self.fault.is_none() {
                self.fault = Some(AreaFault::Mismatch(block));
            }
            self.wrong = Some(block);
        }
        request.has_come |= wrong.is_some() || !writes.is_empty();
        (writes, wrong.is_some())
    }

    /// The first step that needs no network, from a block on, and where to go on behind it.
    fn local(&self, from: u32) -> Option<(AreaStep, u32)> {
        let mut first = from;
        loop {
            first = self.present.first_missing(first)?;
            let wanted = self.digest_of(first);
            if wanted == self.zero {
                let count = self.stretch(first, |block| self.digest_of(block) == self.zero);
                let run = BlockRun { first, count };
                return Some((AreaStep::Zero(run), run.end()));
            }
            if let Some(source) = self.running.find(&wanted) {
                let shifted = |block: u32| source.saturating_add(block - first);
                let count =
                    self.stretch(first, |block| self.running.is_at(shifted(block), &self.digest_of(block)));
                let step = AreaStep::Copy { from: BlockRun { first: source, count }, to: first };
                return Some((step, first.saturating_add(count)));
            }
            first += 1;
        }
    }

    /// How many missing blocks from `first` on are such, at most those of a step.
    fn stretch(&self, first: u32, is_such: impl Fn(u32) -> bool) -> u32 {
        let end = first.saturating_add(RUN_BLOCKS).min(self.blocks);
        let stop = (first..end).find(|block| self.present.contains(*block) || !is_such(*block));
        (stop.unwrap_or(end) - first).max(1)
    }

    /// Where the last block that is still wanted ends in the file.
    fn last_wanted(&self) -> u64 {
        let end = self.present.last_missing().map_or(0, |block| (u64::from(block) + 1) * BLOCK as u64);
        end.min(self.target.file_bytes)
    }

    /// The next request; none if nothing is missing.
    fn wanted(&mut self) -> Result<Option<ByteRange>, AreaFault> {
        let Some(first) = self.present.first_missing(0) else { return Ok(None) };
        let byte = |block: u32| (u64::from(block) * BLOCK as u64).min(self.target.file_bytes);
        if byte(first) >= self.target.file_bytes {
            let fault = AreaFault::NotInFile(first);
            self.fault = Some(fault.clone());
            return Err(fault);
        }
        if self.is_whole {
            return Ok(Some(ByteRange { from: 0, to: self.last_wanted() }));
        }
        let mut end = first + 1;
        while let Some(next) = self.present.first_missing(end) {
            if next - end > GAP_BLOCKS || next - first >= RANGE_BLOCKS_MAX {
                break;
            }
            end = next + 1;
        }
        Ok(Some(ByteRange { from: byte(first), to: byte(end) }))
    }
}

impl FileRequest {
    fn new(range: ByteRange) -> FileRequest {
        let block = u32::try_from(range.from / BLOCK as u64).unwrap_or(u32::MAX);
        FileRequest {
            next: range.from,
            to: range.to,
            pending: Vec::new(),
            pending_block: block,
            has_come: false,
        }
    }
}

#[cfg(test)]
#[path = "area_tests.rs"]
mod tests;
