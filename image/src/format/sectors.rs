//! The disk for drives with sectors of 4096 bytes (4Kn), made from the disk with sectors of 512 bytes.
//!
//! In: a disk as `orlop-image build` leaves it, or a larger copy of it, in a file. Out: the same file, whose partitions
//! have their places, contents and GUIDs, under a partition table in sectors of 4096 bytes and with an ESP of such
//! sectors: firmware and kernel read neither table nor FAT of the other kind. What is in the partitions but the ESP is
//! not touched: erofs, verity and ext4 have blocks of 4096 bytes.

use super::fat::{self, Volume};
use anyhow::{Context, Result, ensure};
use orlop_init::plan::gpt::crc32;
use orlop_init::plan::gpt_header::{
    ALTERNATE_LBA, ENTRIES_LBA, FIRST_USABLE, LAST_USABLE, MY_LBA, header_crc, sealed,
};
use orlop_init::plan::guid::TYPE_ESP;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes of a sector, before and after.
const OLD: u64 = 512;
const NEW: u64 = 4096;
/// Bytes before the first partition.
const FRONT: u64 = 1 << 20;
/// Partition entry arrays that are read have at most this many bytes (the usual one has 16 KiB).
const ENTRIES_MAX: u64 = 1 << 20;
/// Checksums in a header: its own, and that of the entries.
const CRC: usize = 16;
const ENTRIES_CRC: usize = 88;
/// Fields of an entry.
const FIRST: usize = 32;
const LAST: usize = 40;
/// Length of the protective MBR's entry.
const MBR_LENGTH: usize = 458;
/// Bytes that are looked at, and made zero, at once.
const CHUNK: usize = 1 << 20;

/// A partition table, as far as it matters here.
struct Table {
    header: Vec<u8>,
    /// Bytes of the header that its checksum covers.
    size: usize,
    entries: Vec<u8>,
    /// Bytes of an entry.
    entry: usize,
}

/// Gives the disk in `disk` sectors of 4096 bytes, in place. `disk` must be readable and writable, and no user of it may
/// run. The file's length is the disk's.
///
/// # Errors
/// It is no such disk, cannot be read or written, or its length is not a multiple of 4096. After an error in the middle
/// the file is no disk of either kind.
pub fn to_4096(disk: &File) -> Result<()> {
    let bytes = disk.metadata().context("reading the disk's length")?.len();
    ensure!(bytes.is_multiple_of(NEW), "the disk's length, {bytes} bytes, is not a multiple of {NEW}");
    let mut table = read_table(disk)?;
    let (esp, end) = places(&table)?;
    let volume =
        fat::read(|offset, length| read_at(disk, esp.start + offset, length)).context("reading the ESP")?;
    let array = (table.entries.len() as u64).div_ceil(NEW);
    ensure!((2 + array) * NEW <= FRONT, "there is no room for the partition table before the partitions");
    ensure!(end + (array + 1) * NEW <= bytes, "there is no room for a partition table behind the partitions");

    let old_end =
        field(&table.header, ALTERNATE_LBA)?.checked_mul(OLD).context("the backup table is nowhere")?;
    clear(disk, OLD..FRONT)?;
    // The backup table may be in the middle of a file that was made longer.
    clear(disk, end..old_end.saturating_add(OLD).clamp(end, bytes))?;
    clear(disk, esp.clone())?;
    write_esp(disk, &esp, &volume).context("writing the ESP")?;
    write_table(disk, &mut table, bytes, array).context("writing the partition table")
}

fn field(bytes: &[u8], at: usize) -> Result<u64> {
    let field = bytes.get(at..at + 8).context("a field is cut short")?;
    Ok(u64::from_le_bytes(field.try_into()?))
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let field = bytes.get(at..at + 4).context("a field is cut short")?;
    Ok(u32::from_le_bytes(field.try_into()?))
}

fn read_at(disk: &File, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    disk.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// The primary table, whose checksums must hold.
fn read_table(disk: &File) -> Result<Table> {
    let header = read_at(disk, OLD, usize::try_from(OLD)?).context("reading the partition table")?;
    ensure!(header.starts_with(b"EFI PART"), "it has no GUID partition table in sectors of {OLD} bytes");
    let size = usize::try_from(word(&header, 12)?)?;
    ensure!((92..=header.len()).contains(&size), "its partition table's header is damaged");
    ensure!(word(&header, CRC)? == header_crc(&header, size), "its partition table's header is damaged");
    let (count, entry) = (u64::from(word(&header, 80)?), u64::from(word(&header, 84)?));
    let length = count * entry;
    ensure!(entry >= 128 && (1..=ENTRIES_MAX).contains(&length), "its partition table has an unknown form");
    let at = field(&header, ENTRIES_LBA)?.checked_mul(OLD).context("its partition table is nowhere")?;
    let entries = read_at(disk, at, usize::try_from(length)?).context("reading the partition table")?;
    ensure!(word(&header, ENTRIES_CRC)? == crc32(&entries), "its partition table is damaged");
    Ok(Table { header, size, entries, entry: usize::try_from(entry)? })
}

/// Bytes of a used entry's partition.
fn partition(entry: &[u8]) -> Result<Range<u64>> {
    let (first, last) = (field(entry, FIRST)?, field(entry, LAST)?);
    let end = last.checked_add(1).and_then(|end| end.checked_mul(OLD)).context("a partition is too long")?;
    ensure!(first <= last, "a partition ends before it begins");
    Ok(first * OLD..end)
}

/// Where the ESP is, and where the last partition ends. All must be whole sectors of the new size.
fn places(table: &Table) -> Result<(Range<u64>, u64)> {
    let (mut esp, mut end) = (None, 0);
    for entry in table.entries.chunks_exact(table.entry).filter(|entry| entry[..16] != [0; 16]) {
        let place = partition(entry)?;
        ensure!(
            place.start.is_multiple_of(NEW) && place.end.is_multiple_of(NEW),
            "a partition from byte {} to {} is not in whole sectors of {NEW} bytes",
            place.start,
            place.end
        );
        ensure!(place.start >= FRONT, "a partition begins before byte {FRONT}");
        end = end.max(place.end);
        if entry[..16] == TYPE_ESP.to_disk() {
            ensure!(esp.replace(place).is_none(), "it has two ESPs");
        }
    }
    Ok((esp.context("it has no ESP")?, end))
}

fn write_esp(disk: &File, esp: &Range<u64>, volume: &Volume) -> Result<()> {
    let sector = u32::try_from(NEW)?;
    for piece in fat::write(volume, esp.end - esp.start, sector, sector)? {
        disk.write_all_at(&piece.bytes, esp.start + piece.offset)?;
    }
    Ok(())
}

/// Writes both copies and the protective MBR's length.
fn write_table(disk: &File, table: &mut Table, bytes: u64, array: u64) -> Result<()> {
    for entry in table.entries.chunks_exact_mut(table.entry).filter(|entry| entry[..16] != [0; 16]) {
        let place = partition(entry)?;
        set(entry, FIRST, place.start / NEW);
        set(entry, LAST, place.end / NEW - 1);
    }
    let last = bytes / NEW - 1;
    let (first_usable, last_usable) = (FRONT / NEW, last - array - 1);
    for (lba, alternate, entries_lba) in [(last, 1, last - array), (1, last, 2)] {
        let fields = [
            (MY_LBA, lba),
            (ALTERNATE_LBA, alternate),
            (FIRST_USABLE, first_usable),
            (LAST_USABLE, last_usable),
            (ENTRIES_LBA, entries_lba),
        ];
        let header = sealed(table.header.clone(), table.size, &fields, crc32(&table.entries));
        disk.write_all_at(&table.entries, entries_lba * NEW)?;
        disk.write_all_at(&header, lba * NEW)?;
    }
    let length = u32::try_from(last).unwrap_or(u32::MAX);
    disk.write_all_at(&length.to_le_bytes(), MBR_LENGTH as u64)?;
    Ok(())
}

fn set(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Makes bytes zero. Those that are zero stay unwritten, so that holes of the file stay holes.
///
/// # Errors
/// The file cannot be read or written.
pub fn clear(disk: &File, place: Range<u64>) -> Result<()> {
    let zeros = vec![0; CHUNK];
    let mut at = place.start;
    while at < place.end {
        let length = usize::try_from((place.end - at).min(CHUNK as u64))?;
        if read_at(disk, at, length).context("reading the disk")? != zeros[..length] {
            disk.write_all_at(&zeros[..length], at).context("clearing a part of the disk")?;
        }
        at += length as u64;
    }
    Ok(())
}

#[cfg(test)]
#[path = "sectors_tests.rs"]
pub(crate) mod tests;
