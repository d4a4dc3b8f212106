//! A disk in memory: an image shares all blocks that were not written since with the image that it was copied from.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::slot::blocks::BLOCK;

/// A block that was never written.
static ZEROS: [u8; BLOCK] = [0; BLOCK];
/// Bytes of a file that are read at once.
const PIECE: usize = 1 << 20;

/// The blocks of a disk by their number; one that is not there is all zeros.
#[derive(Clone)]
pub(super) struct DiskImage {
    bytes: u64,
    blocks: BTreeMap<u64, Arc<[u8]>>,
}

impl DiskImage {
    /// A disk in a file, whose length is a multiple of a MiB.
    pub(super) fn of_file(path: &Path) -> DiskImage {
        let file = File::open(path).expect("open");
        let bytes = file.metadata().expect("there").len();
        let (mut blocks, mut piece) = (BTreeMap::new(), vec![0; PIECE]);
        for at in (0..bytes).step_by(PIECE) {
            file.read_exact_at(&mut piece, at).expect("whole MiB");
            for (number, block) in (at / BLOCK as u64..).zip(piece.chunks(BLOCK)) {
                if block != ZEROS {
                    blocks.insert(number, Arc::from(block));
                }
            }
        }
        DiskImage { bytes, blocks }
    }

    /// Makes it a file again, with holes.
    pub(super) fn to_file(&self, path: &Path) {
        let file = File::create(path).expect("made");
        file.set_len(self.bytes).expect("a hole");
        for (number, block) in &self.blocks {
            file.write_all_at(block, number * BLOCK as u64).expect("written");
        }
    }

    /// Bytes of it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A part as a disk of its own. Both numbers are multiples of a block.
    pub(super) fn part(&self, offset: u64, bytes: u64) -> DiskImage {
        let (first, end) = (offset / BLOCK as u64, (offset + bytes) / BLOCK as u64);
        let moved = |(number, block): (&u64, &Arc<[u8]>)| (number - first, Arc::clone(block));
        DiskImage { bytes, blocks: self.blocks.range(first..end).map(moved).collect() }
    }

    /// What stands there; none if it reaches behind the end.
    pub(super) fn read(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
        offset.checked_add(length as u64).filter(|end| *end <= self.bytes)?;
        let mut bytes = Vec::with_capacity(length);
        let mut at = offset;
        while bytes.len() < length {
            let within = usize::try_from(at % BLOCK as u64).ok()?;
            let wanted = (length - bytes.len()).min(BLOCK - within);
            let block = self.blocks.get(&(at / BLOCK as u64)).map_or(&ZEROS[..], |block| &block[..]);
            bytes.extend_from_slice(&block[within..within + wanted]);
            at += wanted as u64;
        }
        Some(bytes)
    }

    /// Writes.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.bytes, "behind the disk's end");
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let within = usize::try_from(at % BLOCK as u64).expect("within a block");
            let (part, behind) = rest.split_at(rest.len().min(BLOCK - within));
            let number = at / BLOCK as u64;
            let mut block = self.blocks.get(&number).map_or_else(|| ZEROS.to_vec(), |block| block.to_vec());
            block[within..within + part.len()].copy_from_slice(part);
            self.blocks.insert(number, block.into());
            at += part.len() as u64;
            rest = behind;
        }
    }
}

#[test]
fn an_image_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = dir.path().join("disk");
    let mut disk = vec![0; 2 << 20];
    disk[5000..9000].fill(7);
    std::fs::write(&path, &disk).expect("written");
    let before = DiskImage::of_file(&path);
    let mut image = before.clone();
    image.write(4000, &[9; 5000]);
    disk[4000..9000].fill(9);
    assert_eq!(image.read(0, disk.len()).as_deref(), Some(disk.as_slice()));
    assert_eq!(image.read(8192, 1000).as_deref(), Some(&disk[8192..9192]));
    assert_eq!((image.read(2 << 20, 1), before.read(5000, 1)), (None, Some(vec![7])));
    assert_eq!(image.part(4096, 8192).read(0, 8192).as_deref(), Some(&disk[4096..12_288]));
    image.to_file(&path);
    assert!(std::fs::read(&path).expect("read") == disk);
}
