//! Blocks of a device or of a part of one: read and written past the kernel's cache, within bounds.
//!
//! Invariants: nothing outside of the place is touched; a place that was opened to be read cannot be written, by the kernel's word;
//! what was synced is on the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc::{EINVAL, O_DIRECT};
use orlop_init::plan::step::DiskWrite;

/// Memory for transfers past the cache begins at a multiple of this, bytes.
const ALIGNMENT: usize = 4096;
/// Bytes of a transfer.
const TRANSFER: usize = 1 << 20;

/// Where an area is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AreaPlace {
    /// Device.
    pub(crate) path: PathBuf,
    /// From the device's start, bytes.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
}

/// An area that is open.
pub(crate) struct DeviceArea {
    file: File,
    place: AreaPlace,
    writes: bool,
    /// Transfers go past the kernel's cache.
    is_direct: bool,
    buffer: Vec<u8>,
    /// Where in the buffer aligned memory begins.
    aligned: usize,
}

impl DeviceArea {
    /// Opens it to be read.
    pub(crate) fn to_read(place: AreaPlace) -> io::Result<DeviceArea> {
        DeviceArea::open(place, false)
    }

    /// Opens it to be read and written.
    pub(crate) fn to_write(place: AreaPlace) -> io::Result<DeviceArea> {
        DeviceArea::open(place, true)
    }

    fn open(place: AreaPlace, writes: bool) -> io::Result<DeviceArea> {
        let (file, is_direct) = match opened(&place.path, writes, O_DIRECT) {
            Err(e) if is_refusal(&e) => (opened(&place.path, writes, 0)?, false),
            file => (file?, true),
        };
        let buffer = vec![0; TRANSFER + ALIGNMENT];
        let start = buffer.as_ptr().addr();
        let aligned = start.next_multiple_of(ALIGNMENT) - start;
        Ok(DeviceArea { file, place, writes, is_direct, buffer, aligned })
    }

    /// Reads; place and length are whole sectors.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut at = self.within(offset, bytes.len())?;
        for piece in bytes.chunks_mut(TRANSFER) {
            self.transfer(piece.len(), |file, memory| file.read_exact_at(memory, at))?;
            piece.copy_from_slice(&self.buffer[self.aligned..self.aligned + piece.len()]);
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes; place and length are whole sectors.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = self.within(offset, bytes.len())?;
        for piece in bytes.chunks(TRANSFER) {
            self.buffer[self.aligned..self.aligned + piece.len()].copy_from_slice(piece);
            self.transfer(piece.len(), |file, memory| file.write_all_at(memory, at))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Moves so many bytes between file and memory. A file system may refuse places and lengths that a disk takes: then this area goes
    /// through the cache from here on.
    fn transfer(
        &mut self,
        length: usize,
        moves: impl Fn(&File, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let memory = &mut self.buffer[self.aligned..self.aligned + length];
        match moves(&self.file, &mut *memory) {
            Err(e) if self.is_direct && is_refusal(&e) => {
                self.file = opened(&self.place.path, self.writes, 0)?;
                self.is_direct = false;
                moves(&self.file, memory)
            }
            done => done,
        }
    }

    /// Brings what was written to the disk.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Writes, syncs, and reads back.
    pub(crate) fn write_through(&mut self, write: &DiskWrite) -> io::Result<()> {
        self.write(write.offset, &write.bytes)?;
        self.sync()?;
        let mut kept = vec![0; write.bytes.len()];
        self.read(write.offset, &mut kept)?;
        if kept == write.bytes {
            Ok(())
        } else {
            Err(io::Error::other("it does not keep what is written to it"))
        }
    }

    /// The place on the device of so many bytes of the area.
    fn within(&self, offset: u64, length: usize) -> io::Result<u64> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.place.length);
        let start = end.and_then(|_| self.place.offset.checked_add(offset));
        start.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "outside of the area"))
    }
}

fn opened(path: &Path, writes: bool, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path)
}

/// How a file system that cannot go past its cache says so.
fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &tempfile::TempDir) -> AreaPlace {
        let path = dir.path().join("disk");
        std::fs::write(&path, vec![7; 16 * 4096]).expect("a file");
        AreaPlace { path, offset: 4096, length: 8 * 4096 }
    }

    #[test]
    fn an_area_is_written_within_its_bounds() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let place = place(&dir);
        let mut area = DeviceArea::to_write(place.clone()).expect("open");
        area.write(4096, &[1; 4096]).expect("written");
        area.write_through(&DiskWrite { offset: 7 * 4096, bytes: vec![2; 4096] }).expect("written");
        let mut read = vec![0; 2 * 4096];
        area.read(4096, &mut read).expect("read");
        assert_eq!(read, [vec![1; 4096], vec![7; 4096]].concat());
        for (offset, length) in [(8 * 4096, 4096), (7 * 4096, 8192), (u64::MAX, 4096)] {
            let refused = area.write(offset, &vec![9; length]).expect_err("outside");
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{offset}");
        }
        let disk = std::fs::read(&place.path).expect("read");
        let mut want = vec![7; 16 * 4096];
        want[2 * 4096..3 * 4096].fill(1);
        want[8 * 4096..9 * 4096].fill(2);
        assert!(disk == want);
    }

    #[test]
    fn what_is_only_read_is_not_written() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut area = DeviceArea::to_read(place(&dir)).expect("open");
        assert!(area.write(0, &[1; 4096]).is_err());
        let mut read = vec![0; 4096];
        area.read(0, &mut read).expect("read");
        assert_eq!(read, vec![7; 4096]);
    }
}
