//! A release into the slot that does not run: the driver of [`slot`](super::slot).
//!
//! ```text
//! check ─► signed for this firmware? ─► hide the slot's UKI ─► record: writing ─► tree ─► root ─► UKI ─► read back ─► table ─► record: staged
//! ```
//! Each step may be repeated: what is on the disk already is found by its content. No file is made on the way, so a full state
//! partition stops nothing. `staged` is the end: nothing here lets the slot boot.

use std::io::{self, Read};
use std::ops::ControlFlow;

use flate2::read::GzDecoder;
use orlop_config::release::{
    BLOCK_BYTES, ROOT_FILE, ReleaseDocument, ReleaseFile, UKI_BLOCKS_FILE, UKI_FILE, VERITY_FILE,
    release_path,
};
use orlop_config::slots::SlotName;
use orlop_init::plan::esp::UKI_CHAIN_BYTES;
use orlop_init::plan::verity::Superblock;

use super::boot_files::uki_signatures;
use super::device::{AreaPlace, DeviceArea};
use super::disk::{DiskFault, SlotDisk, SlotEsp, read_area};
use super::slot::area::{AreaCounts, AreaFault, AreaStep, AreaTarget, AreaWrite, AreaWriter, ByteRange};
use super::slot::blocks::{BLOCK, BlockIndex, DIGEST, digest};
use super::slot::places::SlotPartitions;
use super::slot::record::{is_staged, is_writing, slot_to_write, staged, writing};
use super::slot::tree::{VerityTree, leaf_range, tree_bytes};
use super::source::{ByteSource, SourceError};
use super::stage_error::{ASKED_MAX, SlotPart, StageError};

/// A compressed tree is at most so much longer than the tree, bytes.
const GZIP_SLACK: u64 = 64 << 10;
/// Bytes of a running UKI that are read at once.
const PIECE: usize = 1 << 20;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageProgress {
    /// The part that is written.
    pub part: SlotPart,
    /// Its blocks that are in their place.
    pub done: u32,
    /// All of its blocks.
    pub blocks: u32,
}

/// What it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedRelease {
    /// The slot.
    pub slot: SlotName,
    /// It was staged before.
    pub was_staged: bool,
    /// Where its root came from.
    pub root: AreaCounts,
    /// Where its UKI came from.
    pub uki: AreaCounts,
}

/// Called with how far it is.
pub type SayProgress<'a> = dyn FnMut(StageProgress) + Send + 'a;

/// Writes a release into the slot that does not run, and reads it back. The release was verified and judged
/// ([`survey`](super::survey())).
///
/// # Errors
/// The first thing that is wrong. A further call goes on where this one ended.
pub async fn stage(
    source: &impl ByteSource,
    release: &ReleaseDocument,
    disk: &SlotDisk,
    progress: &mut SayProgress<'_>,
) -> Result<StagedRelease, StageError> {
    let lock = disk.lock()?;
    let (record, _) = disk.record()?;
    let slot = slot_to_write(&record, disk.places.running)?;
    if is_staged(&record, slot, release) {
        let none = AreaCounts::default();
        return Ok(StagedRelease { slot, was_staged: true, root: none, uki: none });
    }
    check_sizes(release, &disk.places.target, slot)?;
    if disk.places.runs(&release.root.hash.0) {
        let version = release.version.to_string();
        return Err(StageError::SameRoot { version, slot: disk.places.running });
    }
    // It is written at the end, and must be able to be.
    disk.identity(release)?;
    disk.esp()?;
    drop(lock);
    let mut work = StageWork { source, release, disk, slot, progress };
    // The source may be slow: nobody waits for it at the record.
    work.boots().await?;
    let lock = disk.lock()?;
    let (record, position) = disk.record()?;
    slot_to_write(&record, disk.places.running)?;
    // First no loader sees it, then the record says so, then a byte of it changes.
    let esp = disk.hide(disk.esp()?)?;
    disk.save(&writing(&record, slot, release), position)?;
    drop(lock);
    let tree = work.tree().await?;
    let root = work.root(&tree).await?;
    let uki = work.uki(&esp).await?;
    work.tree_is_kept(&tree)?;
    disk.identify(release)?;
    // Others may have written the record meanwhile.
    let lock = disk.lock()?;
    let (record, position) = disk.record()?;
    if !is_writing(&record, slot, release) {
        return Err(StageError::Overtaken { slot, state: record.slot(slot).state });
    }
    disk.save(&staged(&record, slot, work.size(UKI_FILE)), position)?;
    drop(lock);
    Ok(StagedRelease { slot, was_staged: false, root, uki })
}

/// The release fits into the slot, and its files fit each other.
fn check_sizes(release: &ReleaseDocument, target: &SlotPartitions, slot: SlotName) -> Result<(), StageError> {
    let size = |name| release.file(name).map_or(0, |file| file.size);
    let version = release.version.to_string();
    let root = release.root.blocks.saturating_mul(BLOCK_BYTES);
    let tree = tree_bytes(release.root.blocks);
    for (what, needed, had) in [
        ("root", root, target.root.length),
        ("verity tree", tree, target.tree.length),
        ("UKI", size(UKI_FILE), u64::from(UKI_CHAIN_BYTES)),
    ] {
        if needed > had {
            return Err(StageError::TooSmall { what, version, needed, slot, had });
        }
    }
    let list = size(UKI_FILE).div_ceil(BLOCK_BYTES) * DIGEST as u64;
    let (found, want) = (size(UKI_BLOCKS_FILE), list);
    if found != want {
        return Err(StageError::Size { version, file: UKI_BLOCKS_FILE, found, want });
    }
    let (found, want) = (size(VERITY_FILE), tree.saturating_add(GZIP_SLACK));
    if found > want {
        return Err(StageError::Size { version, file: VERITY_FILE, found, want });
    }
    Ok(())
}

/// A slot that is being written.
struct StageWork<'a, 'p, S> {
    source: &'a S,
    release: &'a ReleaseDocument,
    disk: &'a SlotDisk,
    slot: SlotName,
    progress: &'a mut SayProgress<'p>,
}

impl<S: ByteSource> StageWork<'_, '_, S> {
    fn size(&self, name: &str) -> u64 {
        self.release.file(name).map_or(0, |file| file.size)
    }

    fn path(&self, file: &str) -> String {
        release_path(self.release.version, &self.release.arch, file)
    }

    /// The firmware would start it. Without Secure Boot nothing is asked for.
    async fn boots(&self) -> Result<(), StageError> {
        let Some(firmware) = self.disk.firmware.as_ref().filter(|firmware| firmware.is_on()) else {
            return Ok(());
        };
        let digests = self.small_file(UKI_BLOCKS_FILE).await?;
        let signatures = uki_signatures(self.source, self.release, &digests).await?;
        let version = self.release.version.to_string();
        firmware.judge(&signatures).map_err(|why| StageError::Firmware { version, why })
    }

    /// The verity tree: the slot's, if it is there already, else the source's, which is written first.
    async fn tree(&mut self) -> Result<VerityTree, StageError> {
        let place = self.disk.whole(&self.disk.places.target.tree);
        let length = usize::try_from(tree_bytes(self.release.root.blocks)).unwrap_or(usize::MAX);
        let mut there = vec![0; length];
        read_area(place.clone(), 0, &mut there)?;
        if let Ok(tree) = VerityTree::check(there, &self.release.root) {
            return Ok(tree);
        }
        let packed = self.small_file(VERITY_FILE).await?;
        let from = self.source.place();
        let mut bytes = Vec::new();
        // One byte more than it may have.
        let limit = (length as u64).saturating_add(1);
        let unpacked = GzDecoder::new(packed.as_slice()).take(limit).read_to_end(&mut bytes);
        if unpacked.is_err() {
            bytes.clear();
        }
        let tree = VerityTree::check(bytes, &self.release.root)
            .map_err(|fault| StageError::Tree { place: from, fault })?;
        let path = place.path.clone();
        DeviceArea::to_write(place)
            .and_then(|mut area| area.write(0, tree.bytes()).and_then(|()| area.sync()))
            .map_err(|source| DiskFault::Device { action: "write", path, source })?;
        Ok(tree)
    }

    fn tree_is_kept(&self, tree: &VerityTree) -> Result<(), StageError> {
        let mut kept = vec![0; tree.bytes().len()];
        read_area(self.disk.whole(&self.disk.places.target.tree), 0, &mut kept)?;
        let differs = kept.chunks(BLOCK).zip(tree.bytes().chunks(BLOCK)).position(|(a, b)| a != b);
        match differs {
            None => Ok(()),
            Some(block) => {
                let fault = AreaFault::ReadBack(u32::try_from(block).unwrap_or(u32::MAX));
                Err(StageError::ReadBack { slot: self.slot, part: "verity tree", fault })
            }
        }
    }

    async fn root(&mut self, tree: &VerityTree) -> Result<AreaCounts, StageError> {
        let running = self.running_root()?;
        let target = AreaTarget {
            digests: tree.leaves(),
            salt: self.release.root.salt.0,
            file_bytes: self.size(ROOT_FILE),
        };
        let places = &self.disk.places;
        let (from, to) = (self.disk.whole(&places.source.root), self.disk.whole(&places.target.root));
        self.area(SlotPart::Root, AreaWriter::new(target, running), from, to).await
    }

    /// The digests of the running root's blocks, by its own tree. None of them is believed: each block is hashed when it is copied.
    fn running_root(&self) -> Result<BlockIndex, StageError> {
        let place = self.disk.whole(&self.disk.places.source.tree);
        let mut head = vec![0; BLOCK];
        read_area(place.clone(), 0, &mut head)?;
        let Ok(superblock) = Superblock::parse(&head) else { return Ok(BlockIndex::default()) };
        let range = leaf_range(superblock.data_blocks);
        let has_salt = superblock.salt.as_slice() == self.release.root.salt.0.as_slice();
        let is_known = superblock.algorithm == self.release.root.algorithm && has_salt;
        let fits = range.end <= place.length && superblock.data_blocks <= self.slot_blocks();
        if !is_known || !fits || range.is_empty() {
            return Ok(BlockIndex::default());
        }
        let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        // Whole blocks are read.
        let mut leaves = vec![0; bytes(range.end - range.start).next_multiple_of(BLOCK)];
        read_area(place, range.start, &mut leaves)?;
        leaves.truncate(bytes(range.end - range.start));
        Ok(BlockIndex::new(leaves))
    }

    fn slot_blocks(&self) -> u64 {
        self.disk.places.source.root.length / BLOCK_BYTES
    }

    async fn uki(&mut self, esp: &SlotEsp) -> Result<AreaCounts, StageError> {
        let digests = self.small_file(UKI_BLOCKS_FILE).await?;
        let running = self.running_uki(esp)?;
        let salt = self.release.root.salt.0;
        let target = AreaTarget { digests, salt, file_bytes: self.size(UKI_FILE) };
        let (from, to) = (self.disk.chain(esp, esp.running), self.disk.chain(esp, esp.target));
        self.area(SlotPart::Uki, AreaWriter::new(target, running), from, to).await
    }

    /// The digests of the running UKI's blocks: nothing on the disk has them.
    fn running_uki(&self, esp: &SlotEsp) -> Result<BlockIndex, StageError> {
        let place = self.disk.chain(esp, esp.running);
        let mut left = u64::from(esp.running.bytes.min(UKI_CHAIN_BYTES)).next_multiple_of(BLOCK_BYTES);
        let (mut digests, mut at, mut memory) = (Vec::new(), 0, vec![0; PIECE]);
        let failed = |source| self.failed("read", SlotPart::Uki, source);
        let mut area = DeviceArea::to_read(place).map_err(failed)?;
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            area.read(at, &mut memory[..length]).map_err(failed)?;
            let blocks = memory[..length].chunks(BLOCK);
            digests.extend(blocks.flat_map(|block| digest(&self.release.root.salt.0, block)));
            at += length as u64;
            left -= length as u64;
        }
        Ok(BlockIndex::new(digests))
    }

    fn failed(&self, action: &'static str, part: SlotPart, source: io::Error) -> StageError {
        StageError::Device { action, slot: self.slot, part, source }
    }

    /// Drives the writing of an area.
    async fn area(
        &mut self,
        part: SlotPart,
        mut writer: AreaWriter,
        from: AreaPlace,
        to: AreaPlace,
    ) -> Result<AreaCounts, StageError> {
        let file = self.path(part.file());
        let mut running = DeviceArea::to_read(from).map_err(|e| self.failed("read", part, e))?;
        let mut area = DeviceArea::to_write(to).map_err(|e| self.failed("open", part, e))?;
        loop {
            let step = writer.step().map_err(|fault| self.blocks_fault(part, fault))?;
            match step {
                AreaStep::Survey(run) => {
                    let mut bytes = vec![0; run.bytes()];
                    area.read(run.offset(), &mut bytes).map_err(|e| self.failed("read", part, e))?;
                    writer.surveyed(run, &bytes);
                }
                AreaStep::Zero(run) => {
                    let write = AreaWrite { run, bytes: vec![0; run.bytes()] };
                    put(&mut area, &[write]).map_err(|e| self.failed("write", part, e))?;
                    writer.zeroed(run);
                }
                AreaStep::Copy { from, to } => {
                    let mut bytes = vec![0; from.bytes()];
                    // A block that the running slot cannot give is fetched.
                    if running.read(from.offset(), &mut bytes).is_err() {
                        bytes.fill(0);
                    }
                    let writes = writer.copied(to, &bytes);
                    put(&mut area, &writes).map_err(|e| self.failed("write", part, e))?;
                }
                AreaStep::Fetch(range) => {
                    fetch(self.source, &file, range, &mut writer, &mut area)
                        .await
                        .map_err(|e| self.failed("write", part, e))?;
                }
                AreaStep::Sync => {
                    area.sync().map_err(|e| self.failed("sync", part, e))?;
                    writer.synced();
                }
                AreaStep::Verify(run) => {
                    let mut bytes = vec![0; run.bytes()];
                    area.read(run.offset(), &mut bytes).map_err(|e| self.failed("read back", part, e))?;
                    writer.verified(run, &bytes);
                }
                AreaStep::Done => return Ok(writer.counts()),
            }
            let (done, blocks) = writer.progress();
            (self.progress)(StageProgress { part, done, blocks });
            // The other tasks of the process have their turn.
            tokio::task::yield_now().await;
        }
    }

    fn blocks_fault(&self, part: SlotPart, fault: AreaFault) -> StageError {
        if let AreaFault::ReadBack(_) = fault {
            let name = if part == SlotPart::Root { "root" } else { "UKI" };
            return StageError::ReadBack { slot: self.slot, part: name, fault };
        }
        StageError::Blocks { part, place: self.source.place(), fault }
    }

    /// A small file of the release as its document has it.
    async fn small_file(&self, name: &'static str) -> Result<Vec<u8>, StageError> {
        let Some(file) = self.release.file(name) else {
            let version = self.release.version.to_string();
            return Err(StageError::Size { version, file: name, found: 0, want: 1 });
        };
        let path = self.path(name);
        let mut last = None;
        for _ in 0..ASKED_MAX {
            match whole_file(self.source, &path, file).await {
                Ok(Some(bytes)) => return Ok(bytes),
                Ok(None) => last = None,
                Err(error) => last = Some(error),
            }
        }
        let other = || StageError::OtherFile { file: name, place: self.source.place() };
        Err(last.map_or_else(other, StageError::Source))
    }
}

/// The bytes of a file; none if they are not those of its document.
async fn whole_file(
    source: &impl ByteSource,
    path: &str,
    file: &ReleaseFile,
) -> Result<Option<Vec<u8>>, SourceError> {
    let mut bytes = Vec::new();
    let mut take = |at: u64, piece: &[u8]| -> ControlFlow<()> {
        let room = usize::try_from(file.size).unwrap_or(usize::MAX).saturating_sub(bytes.len());
        if at != bytes.len() as u64 {
            return ControlFlow::Break(());
        }
        bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        if bytes.len() as u64 >= file.size { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    source.bytes(path, ByteRange { from: 0, to: file.size }, &mut take).await?;
    let found = ring::digest::digest(&ring::digest::SHA256, &bytes);
    Ok((found.as_ref() == file.sha256.0.as_slice()).then_some(bytes))
}

/// One request of the machine. Only the disk's faults are errors: the machine judges the source's.
async fn fetch(
    source: &impl ByteSource,
    path: &str,
    range: ByteRange,
    writer: &mut AreaWriter,
    area: &mut DeviceArea,
) -> io::Result<()> {
    let mut failure = None;
    let mut take = |at: u64, bytes: &[u8]| -> ControlFlow<()> {
        let piece = writer.received(at, bytes);
        let mut written = put(area, &piece.writes);
        if written.is_ok() && writer.needs_sync() {
            written = area.sync();
            writer.synced();
        }
        failure = written.err();
        if failure.is_some() || piece.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let asked = source.bytes(path, range, &mut take).await;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let writes = writer.ended(asked.err().map(|e| orlop_config::error_chain::chain(&e)));
    put(area, &writes)
}

fn put(area: &mut DeviceArea, writes: &[AreaWrite]) -> io::Result<()> {
    writes.iter().try_for_each(|write| area.write(write.run.offset(), &write.bytes))
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
