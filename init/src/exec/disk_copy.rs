//! The bytes of an installation: parts of one disk to another, comparison, table. Works on any file.
//!
//! Invariant: from [`DiskCopy::begin`] until the header that [`DiskCopy::finish`] writes, sector 1 of the target says that
//! the copy is not finished, and neither end has a table.

use super::error::InitError;
use crate::plan::disk_content::{EDGE, UNFINISHED};
use crate::plan::gpt;
use crate::plan::gpt_copy::{CopyIdentity, copy_table};
use crate::sys::block;
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// As much is read at once, bytes.
const CHUNK: usize = 1 << 20;
/// As much is cleared for a superblock, bytes.
const BLOCK: usize = 4096;

/// A part of the original.
#[derive(Debug)]
pub struct PartSource {
    /// Number of the partition, for messages.
    pub number: u32,
    /// Where it is read.
    pub file: File,
    /// The same, for messages.
    pub path: String,
    /// Where it begins there, bytes.
    pub offset: u64,
    /// Where it begins on the target, bytes.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// A target while it is written.
#[derive(Clone, Copy, Debug)]
pub struct DiskCopy<'a> {
    /// For messages.
    pub device: &'a str,
    /// Open for reading and writing.
    pub file: &'a File,
    /// Its size.
    pub bytes: u64,
    /// Its logical sector, bytes.
    pub sector: u32,
}

impl DiskCopy<'_> {
    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> InitError {
        let path = self.device.to_owned();
        move |source| InitError::File { action, path: path.clone(), source }
    }

    /// Marks the target, then clears both ends, where tables and superblocks are.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(&self) -> Result<(), InitError> {
        let failed = self.failed("write");
        let sector = u64::from(self.sector);
        let mut mark = vec![0; self.sector as usize];
        mark[..UNFINISHED.len()].copy_from_slice(UNFINISHED);
        self.file.write_all_at(&mark, sector).and_then(|()| self.file.sync_all()).map_err(&failed)?;
        let tail = self.bytes.saturating_sub(EDGE).max(EDGE);
        for (from, to) in [(0, sector), (2 * sector, EDGE.min(self.bytes)), (tail, self.bytes)] {
            let zeros = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or_default()];
            self.file.write_all_at(&zeros, from).map_err(&failed)?;
        }
        self.flush()
    }

    /// Clears the blocks of 4096 bytes at these places, as far as the target has them.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn clear(&self, places: &[u64]) -> Result<(), InitError> {
        let zeros = vec![0; BLOCK];
        let fits = |at: &&u64| at.saturating_add(BLOCK as u64) <= self.bytes;
        places
            .iter()
            .filter(fits)
            .try_for_each(|at| self.file.write_all_at(&zeros, *at).map_err(self.failed("write")))
    }

    /// Copies one part.
    ///
    /// # Errors
    /// The original cannot be read, or the target cannot be written.
    pub fn fill(&self, part: &PartSource) -> Result<(), InitError> {
        let write = self.failed("write");
        chunks(part, |bytes, at| self.file.write_all_at(bytes, at).map_err(&write))
    }

    /// What was written is on the disk, and later reads come from there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&self) -> Result<(), InitError> {
        self.file.sync_all().map_err(self.failed("write"))?;
        self.drop_cache()
    }

    /// Later reads come from the disk.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn drop_cache(&self) -> Result<(), InitError> {
        match block::drop_cache(self.file) {
            // A plain file.
            Ok(()) | Err(Errno::ENOTTY) => Ok(()),
            Err(e) => Err(self.failed("read again")(e.into())),
        }
    }

    /// Compares one part with the original.
    ///
    /// # Errors
    /// They differ, or one of them cannot be read.
    pub fn compare(&self, part: &PartSource) -> Result<(), InitError> {
        let mut now = vec![0; CHUNK];
        chunks(part, |bytes, at| {
            let now = &mut now[..bytes.len()];
            self.file.read_exact_at(now, at).map_err(self.failed("read"))?;
            if now == bytes {
                return Ok(());
            }
            Err(InitError::Refused(format!(
                "{} does not keep what is written to it (near byte {at}): the disk is damaged",
                self.device
            )))
        })
    }

    /// Writes the table for the partitions with these numbers, and reads it back. The header in sector 1 takes the mark away.
    ///
    /// # Errors
    /// The original's table or the target cannot be used.
    pub fn finish(
        &self,
        original: &File,
        original_bytes: u64,
        keep: &[u32],
        identity: &CopyIdentity,
    ) -> Result<(), InitError> {
        let read = |offset, length| read_exact(original, offset, length);
        let writes = copy_table(original_bytes, self.sector, read, self.bytes, keep, identity);
        let writes = writes.map_err(|e| InitError::Refused(format!("{} gets no table: {e}", self.device)))?;
        for write in writes {
            let written = self.file.write_all_at(&write.bytes, write.offset);
            written
                .and_then(|()| self.file.sync_all())
                .map_err(self.failed("write the partition table of"))?;
        }
        self.flush()?;
        let table =
            gpt::read_table(self.bytes, self.sector, |offset, length| read_exact(self.file, offset, length));
        match table {
            Ok(table) if table.disk == identity.disk && table.partitions.len() == keep.len() => Ok(()),
            _ => Err(InitError::Refused(format!("{} does not keep its partition table", self.device))),
        }
    }
}

fn chunks(
    part: &PartSource,
    mut each: impl FnMut(&[u8], u64) -> Result<(), InitError>,
) -> Result<(), InitError> {
    let mut buffer = vec![0; CHUNK];
    let mut done = 0;
    while done < part.length {
        let length = usize::try_from(part.length - done).unwrap_or(CHUNK).min(CHUNK);
        let bytes = &mut buffer[..length];
        let failed = |source| InitError::File { action: "read", path: part.path.clone(), source };
        part.file.read_exact_at(bytes, part.offset + done).map_err(failed)?;
        each(bytes, part.start + done)?;
        done += length as u64;
    }
    Ok(())
}

fn read_exact(file: &File, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, offset).ok()?;
    Some(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::disk_content::{DiskContent, content};
    use crate::plan::gpt::{GptError, Table};
    use crate::plan::guid::Guid;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    const MIB: u64 = 1 << 20;
    const IDENTITY: CopyIdentity =
        CopyIdentity { disk: Guid::from_u128(0xd), esp: 1, esp_partuuid: Guid::from_u128(0xe) };

    /// A disk of 16 MiB with three partitions of 4 MiB, made by another tool; the last one is not to go along.
    fn original(dir: &Path) -> PathBuf {
        let path = dir.join("original");
        let bytes: Vec<u8> = (0..16 * MIB).map(|n| u8::try_from(n / 4096 % 251).expect("small")).collect();
        fs::write(&path, bytes).expect("fixture");
        let script = "label: gpt\nstart=2048, size=8192\nstart=10240, size=8192\nstart=18432, size=8192\n";
        let input = dir.join("script");
        fs::write(&input, script).expect("fixture");
        let mut sfdisk = Command::new("sfdisk");
        sfdisk.arg("--quiet").arg(&path).stdin(File::open(input).expect("fixture"));
        assert!(sfdisk.status().expect("sfdisk").success());
        path
    }

    fn part(path: &Path, number: u32) -> PartSource {
        let start = (1 + 4 * u64::from(number - 1)) * MIB;
        let file = File::open(path).expect("original");
        PartSource { number, file, path: path.display().to_string(), offset: start, start, length: 4 * MIB }
    }

    fn target(dir: &Path, bytes: u64, filled: u8) -> (PathBuf, File) {
        let path = dir.join("target");
        fs::write(&path, vec![filled; usize::try_from(bytes).expect("small")]).expect("fixture");
        let file = File::options().read(true).write(true).open(&path).expect("target");
        (path, file)
    }

    fn table(path: &Path) -> Result<Table, GptError> {
        let bytes = fs::read(path).expect("target");
        gpt::read_table(bytes.len() as u64, 512, |at, length| {
            let at = usize::try_from(at).ok()?;
            Some(bytes.get(at..at.checked_add(length)?)?.to_vec())
        })
    }

    fn state(path: &Path) -> DiskContent {
        let bytes = fs::read(path).expect("target");
        let edge = usize::try_from(EDGE).expect("small");
        content(512, (&bytes[..edge], &bytes[bytes.len() - edge..]), &table(path), &[])
    }

    #[test]
    fn a_copy_is_unfinished_until_its_table_is_there() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let from = original(dir.path());
        let (path, file) = target(dir.path(), 24 * MIB, 0xa5);
        assert!(matches!(state(&path), DiskContent::Holds(_)));
        let copy = DiskCopy { device: "target", file: &file, bytes: 24 * MIB, sector: 512 };
        copy.begin().expect("marked");
        assert_eq!((state(&path), table(&path)), (DiskContent::Unfinished, Err(GptError::None)));
        copy.clear(&[12 * MIB, 24 * MIB - 512, u64::MAX]).expect("cleared");
        let parts = [part(&from, 1), part(&from, 2)];
        for part in &parts {
            copy.fill(part).expect("copied");
            assert_eq!((state(&path), table(&path)), (DiskContent::Unfinished, Err(GptError::None)));
        }
        copy.flush().expect("flushed");
        parts.iter().for_each(|part| copy.compare(part).expect("the same"));
        let source = File::open(&from).expect("original");
        copy.finish(&source, 16 * MIB, &[1, 2], &IDENTITY).expect("a table");
        let made = table(&path).expect("a table");
        assert_eq!((made.disk, made.partitions.len()), (IDENTITY.disk, 2));
        assert_eq!(made.partitions[0].partuuid, IDENTITY.esp_partuuid);
        assert!(matches!(state(&path), DiskContent::Holds(_)), "a finished copy is content");
        let (old, new) = (fs::read(&from).expect("original"), fs::read(&path).expect("target"));
        let range = usize::try_from(MIB).expect("small")..usize::try_from(9 * MIB).expect("small");
        assert!(old[range.clone()] == new[range]);
        // The third partition stayed behind, and so did what was there.
        let cleared = 12 << 20..(12 << 20) + BLOCK;
        assert!((10 << 20..20 << 20).all(|at| new[at] == if cleared.contains(&at) { 0 } else { 0xa5 }));
        let verify = Command::new("sfdisk").arg("--verify").arg(&path).output().expect("sfdisk");
        assert!(verify.status.success(), "{verify:?}");
    }

    #[test]
    fn a_disk_that_does_not_keep_its_bytes_is_noticed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let from = original(dir.path());
        let (_, file) = target(dir.path(), 24 * MIB, 0);
        let copy = DiskCopy { device: "target", file: &file, bytes: 24 * MIB, sector: 512 };
        let part = part(&from, 1);
        copy.fill(&part).expect("copied");
        copy.compare(&part).expect("the same");
        let byte = [fs::read(&from).expect("original")[3 << 20] ^ 1];
        file.write_all_at(&byte, 3 << 20).expect("damage");
        assert!(copy.compare(&part).expect_err("damaged").to_string().contains("target does not keep"));
    }

    #[test]
    fn a_cut_original_and_a_small_target_are_errors() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let from = original(dir.path());
        let (path, file) = target(dir.path(), 6 * MIB, 0);
        let copy = DiskCopy { device: "target", file: &file, bytes: 6 * MIB, sector: 512 };
        copy.begin().expect("marked");
        let beyond = PartSource { offset: 15 * MIB, ..part(&from, 1) };
        assert!(copy.fill(&beyond).is_err());
        let source = File::open(&from).expect("original");
        let error = copy.finish(&source, 16 * MIB, &[1, 2], &IDENTITY).expect_err("too small").to_string();
        assert!(error.contains("gets no table"), "{error}");
        assert_eq!(state(&path), DiskContent::Unfinished);
    }
}
