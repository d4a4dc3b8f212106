//! The log of all writes to a VM's disk, and the disk as a power cut at any place of the log leaves it.
//!
//! In: the log of QEMU's `blklogwrites`, whose format is that of Linux' dm-log-writes (`drivers/md/dm-log-writes.c`), and a copy of the
//! disk from before. Out: the copy after a prefix of the log; of the writes behind the last flush some sectors may be missing. The
//! parser is pure; any bytes give a log or an error.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::rng::Rng;

/// Begin of a log, little-endian as all fields.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
/// Marks of an entry: a flush comes with it, it names blocks without content.
const FLUSH: u64 = 1;
const DISCARD: u64 = 1 << 2;
/// Bytes of the head of log and entry that are read.
const HEAD: usize = 32;
/// Sectors of a log, bytes.
const SECTORS: std::ops::RangeInclusive<u64> = 512..=4096;
/// Longest write, bytes: more than QEMU takes at once.
const WRITE_MAX: u64 = 1 << 31;
/// What a disk writes whole or not at all, bytes.
const ATOMIC: usize = 512;

/// One thing that the disk was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedEvent {
    /// Bytes for a place.
    Write {
        /// Place on the disk, bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Where the log has them.
        content: u64,
    },
    /// All writes before it are kept from here on.
    Flush,
}

impl LoggedEvent {
    /// It writes bytes from `start` up to `end`.
    #[must_use]
    pub fn touches(&self, start: u64, end: u64) -> bool {
        matches!(*self, LoggedEvent::Write { offset, length, .. } if offset < end && start < offset + length)
    }
}

/// The events of a log. `read(offset, length)` returns exactly that many bytes of it, or `None`.
///
/// # Errors
/// It is no log, or an entry is cut off. What stands behind the last flush counts only as far as the log's head knows of it.
pub fn parse(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Result<Vec<LoggedEvent>> {
    let head = read(0, HEAD).context("the log is empty: the guest has flushed nothing")?;
    ensure!((number(&head, 0), number(&head, 8)) == (MAGIC, VERSION), "it is no log of writes");
    let (entries, sector) = (number(&head, 16), number(&head, 24) & 0xffff_ffff);
    ensure!(SECTORS.contains(&sector) && sector.is_power_of_two(), "a log with sectors of {sector} bytes");
    let (mut events, mut at) = (Vec::new(), sector);
    for n in 0..entries {
        let entry = read(at, HEAD).with_context(|| format!("entry {n} of {entries} is cut off"))?;
        let (place, sectors, flags) = (number(&entry, 0), number(&entry, 8), number(&entry, 16));
        let length = sectors.checked_mul(sector).filter(|length| *length <= WRITE_MAX);
        let length = length.with_context(|| format!("entry {n} writes {sectors} sectors"))?;
        let offset = place.checked_mul(sector).with_context(|| format!("entry {n} is at sector {place}"))?;
        ensure!(offset.checked_add(length).is_some(), "entry {n} is at sector {place}");
        at += sector;
        // A flush that comes with a write is before it.
        if flags & FLUSH != 0 {
            events.push(LoggedEvent::Flush);
        }
        if flags & DISCARD == 0 && length > 0 {
            events.push(LoggedEvent::Write { offset, length, content: at });
            at += length;
        }
    }
    Ok(events)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|field| field.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// A log, and a copy of the disk that follows it.
#[derive(Debug)]
pub struct WriteLog {
    log: File,
    disk: File,
    events: Vec<LoggedEvent>,
    /// So many events are on the disk.
    done: usize,
}

/// What a cut has put on the disk behind the last flush, and what was there.
#[derive(Debug)]
pub struct CutWrites(Vec<(u64, Vec<u8>)>);

impl WriteLog {
    /// Opens a log; `disk` is a copy of the disk from before it.
    ///
    /// # Errors
    /// One of them cannot be opened, or the log is none.
    pub fn open(log: &Path, disk: &Path) -> Result<WriteLog> {
        let file = File::open(log).with_context(|| format!("open {}", log.display()))?;
        let read = |offset, length| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
        };
        let events = parse(read).with_context(|| format!("read {}", log.display()))?;
        let disk = File::options().read(true).write(true).open(disk).context("open the copy of the disk")?;
        Ok(WriteLog { log: file, disk, events, done: 0 })
    }

    /// Its events.
    #[must_use]
    pub fn events(&self) -> &[LoggedEvent] {
        &self.events
    }

    /// Brings the copy to a cut after so many events, which are not fewer than at the last call. With `torn`, each write behind the
    /// last flush is there, is missing or is torn, as it says.
    ///
    /// # Errors
    /// Log or disk cannot be read or written.
    pub fn cut(&mut self, after: usize, torn: Option<&mut Rng>) -> Result<CutWrites> {
        let after = after.min(self.events.len());
        let flushed = self.events[..after].iter().rposition(|event| *event == LoggedEvent::Flush);
        let flushed = flushed.unwrap_or(0);
        ensure!(after >= self.done, "the log is not followed backwards");
        for at in self.done..flushed {
            if let Some((offset, bytes)) = self.content(at)? {
                self.disk.write_all_at(&bytes, offset).context("write the copy of the disk")?;
            }
        }
        self.done = self.done.max(flushed);
        let (mut saved, mut chance) = (CutWrites(Vec::new()), torn);
        for at in self.done..after {
            let Some((offset, mut bytes)) = self.content(at)? else { continue };
            let mut before = vec![0; bytes.len()];
            self.disk.read_exact_at(&mut before, offset).context("read the copy of the disk")?;
            if let Some(chance) = &mut chance {
                tear(&mut bytes, &before, chance);
            }
            self.disk.write_all_at(&bytes, offset).context("write the copy of the disk")?;
            saved.0.push((offset, before));
        }
        Ok(saved)
    }

    /// Takes back what a cut has put on the disk.
    ///
    /// # Errors
    /// The disk cannot be written.
    pub fn take_back(&mut self, written: CutWrites) -> Result<()> {
        let mut back = written.0.into_iter().rev();
        back.try_for_each(|(offset, before)| self.disk.write_all_at(&before, offset))
            .context("write the copy of the disk")
    }

    /// Place and bytes of an event; none for a flush.
    fn content(&self, at: usize) -> Result<Option<(u64, Vec<u8>)>> {
        let LoggedEvent::Write { offset, length, content } = self.events[at] else { return Ok(None) };
        let mut bytes = vec![0; usize::try_from(length)?];
        self.log.read_exact_at(&mut bytes, content).context("read the log")?;
        Ok(Some((offset, bytes)))
    }
}

/// Makes a write one that the power cut: nothing of it has reached the disk, all of it, or some of its sectors.
fn tear(bytes: &mut [u8], before: &[u8], chance: &mut Rng) {
    match chance.below(4) {
        0 => bytes.copy_from_slice(before),
        1 => {}
        _ => {
            for (new, old) in bytes.chunks_mut(ATOMIC).zip(before.chunks(ATOMIC)) {
                if chance.below(2) == 0 {
                    new.copy_from_slice(old);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log with these entries: sector, flags, content in sectors of 512 bytes.
    fn log(entries: &[(u64, u64, &[u8])]) -> Vec<u8> {
        let mut log = [MAGIC, VERSION, entries.len() as u64, 512].map(u64::to_le_bytes).concat();
        log.resize(512, 0);
        for (sector, flags, sectors) in entries {
            let from = log.len();
            log.extend([*sector, sectors.len() as u64, *flags, 0].map(u64::to_le_bytes).concat());
            log.resize(from + 512, 0);
            if flags & DISCARD == 0 {
                log.extend(sectors.iter().flat_map(|byte| vec![*byte; 512]));
            }
        }
        log
    }

    fn parsed(log: &[u8]) -> Result<Vec<LoggedEvent>> {
        parse(|offset, length| {
            let offset = usize::try_from(offset).ok()?;
            Some(log.get(offset..offset.checked_add(length)?)?.to_vec())
        })
    }

    #[test]
    fn a_log_is_read_as_qemu_writes_it() {
        let log = log(&[(8, 0, &[1, 2]), (0, FLUSH, &[]), (16, DISCARD, &[0, 0]), (9, 0, &[3])]);
        let events = parsed(&log).expect("a log");
        let write = |sector: u64, sectors: u64, content| LoggedEvent::Write {
            offset: sector * 512,
            length: sectors * 512,
            content,
        };
        // Head, entry, two sectors; entry; entry; entry.
        assert_eq!(events, [write(8, 2, 1024), LoggedEvent::Flush, write(9, 1, 3584)]);
        assert!(
            events[0].touches(5000, 5001) && !events[0].touches(5120, 6000) && !events[1].touches(0, 9999)
        );
    }

    #[test]
    fn what_is_no_log_is_an_error() {
        let good = log(&[(8, 0, &[1]), (9, 0, &[2])]);
        assert!(parsed(&good).is_ok());
        assert!(parsed(&[]).is_err() && parsed(&good[..1024]).is_err());
        for (at, value) in [(0, 9), (8, 2), (24, 7), (25, 0), (519, 0xff), (527, 0xff)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(parsed(&bad).is_err(), "{at}");
        }
    }

    #[test]
    fn a_cut_leaves_what_was_flushed_and_some_of_the_rest() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (path, disk) = (dir.path().join("log"), dir.path().join("disk"));
        let entries: [(u64, u64, &[u8]); 4] = [(1, 0, &[1]), (0, FLUSH, &[]), (2, 0, &[2; 40]), (1, 0, &[3])];
        std::fs::write(&path, log(&entries)).expect("written");
        std::fs::write(&disk, vec![9; 64 * 512]).expect("written");
        let read =
            || std::fs::read(&disk).expect("read").chunks(512).map(|sector| sector[0]).collect::<Vec<u8>>();
        let mut follower = WriteLog::open(&path, &disk).expect("a log");
        let saved = follower.cut(1, None).expect("written");
        assert_eq!(read()[..4], [9, 1, 9, 9]);
        follower.take_back(saved).expect("written");
        assert_eq!(read(), [9; 64]);
        // Some sectors of the long write and not the short one; the short one alone; both.
        for (seed, missing, first) in [(0, 20, 1), (3, 40, 3), (4, 0, 3)] {
            let saved = follower.cut(4, Some(&mut Rng::new(seed))).expect("written");
            let torn = read();
            let lost = torn[2..42].iter().filter(|byte| **byte == 9).count();
            assert_eq!((lost, torn[1]), (missing, first), "{seed}: {torn:?}");
            follower.take_back(saved).expect("written");
            assert_eq!(read()[..4], [9, 1, 9, 9]);
        }
        follower.cut(usize::MAX, None).expect("written");
        assert_eq!(read()[..4], [9, 3, 2, 2]);
    }
}
