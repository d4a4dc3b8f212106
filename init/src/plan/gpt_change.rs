//! A partition table's changes: a partition behind all others is added or taken out, the last one grows to the disk's end, disk
//! and partitions get other GUIDs, partitions other labels.
//!
//! In: the device. Out: the partition, and writes in the order in which they must reach the disk. Invariants: after
//! any prefix of them one copy of the table is sound, and it is the old table or the new one; no other entry and no
//! partition's bytes are touched. The copy that was read is written last, so a damaged other copy is mended on the way.
//! A table whose backup is not at the disk's end is not changed (`gpt_relocate` puts it there).

use super::gpt::{Copy, ENTRIES_BYTES_MAX, Header, Partition, crc32, parse_entry};
use super::gpt_header::{ALTERNATE_LBA, DISK, ENTRIES_LBA, MY_LBA, sealed};
use super::guid::Guid;
use super::le_u64;
use super::step::DiskWrite;

/// Fields of an entry.
const PARTUUID: usize = 16;
const LAST: usize = 40;
const ATTRIBUTES: usize = 48;
const LABEL: usize = 56;
const LABEL_UNITS: usize = 36;
/// Fields of an MBR's first entry, bytes from the sector's start.
const MBR_TYPE: usize = 450;
const MBR_LENGTH: usize = 458;
/// Where the entries of the first copy stand when it is made again, sectors.
const FIRST_ENTRIES: u64 = 2;
/// The file system grows with its partition (discoverable partitions specification).
const GROWS: u64 = 1 << 59;
/// Partitions start at, and are long, multiples of this, bytes.
pub const GRAIN: u64 = 4096;

/// Why a table is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Both copies are damaged, or the table does not reach to the disk's end.
    #[error("its partition table is damaged, or not that of a disk of this size")]
    Unsound,
    /// All entries are used.
    #[error("its partition table has no free entry")]
    Full,
    /// Less than was asked for is free behind the last partition.
    #[error("only {free} bytes are free behind its last partition, {wanted} are needed")]
    NoRoom {
        /// Bytes that could be had.
        free: u64,
        /// Bytes that are needed.
        wanted: u64,
    },
    /// The partition to grow is not the last one.
    #[error("partition {0} is not the last one")]
    NotLast(u32),
    /// The partition is not there.
    #[error("it has no partition {0}")]
    Missing(u32),
}

/// A table, read to be changed.
#[derive(Clone, Debug)]
pub struct Editor {
    sector: u64,
    sectors: u64,
    copy: Copy,
    /// The protective MBR, if it does not cover a disk of this size.
    mbr: Option<Vec<u8>>,
    header: Vec<u8>,
    size: usize,
    entry: usize,
    usable_end: u64,
    entries: Vec<u8>,
    partitions: Vec<Partition>,
}

/// What a new partition is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPartition<'a> {
    /// Partition type GUID.
    pub type_guid: Guid,
    /// PARTUUID.
    pub partuuid: Guid,
    /// PARTLABEL, at most 36 UTF-16 units.
    pub label: &'a str,
    /// Least length, bytes.
    pub bytes_min: u64,
}

impl Editor {
    /// Reads the table of a device of `device_bytes` with logical sectors of `sector` bytes.
    ///
    /// # Errors
    /// [`ChangeError::Unsound`].
    pub fn read(
        device_bytes: u64,
        sector: u32,
        mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>,
    ) -> Result<Editor, ChangeError> {
        let sector = u64::from(sector.clamp(512, 1 << 16));
        let sectors = device_bytes / sector;
        let mbr = usize::try_from(sector).ok().and_then(|n| protective(read(0, n)?, sectors));
        let mut table = |lba: u64, copy: Copy| {
            let header = read(lba.checked_mul(sector)?, usize::try_from(sector).ok()?)?;
            let h = Header::parse(&header, lba, sectors).ok()?;
            let length = u64::from(h.entry_count) * u64::from(h.entry_size);
            if length == 0 || length > ENTRIES_BYTES_MAX {
                return None;
            }
            let entries = read(h.entries_lba.checked_mul(sector)?, usize::try_from(length).ok()?)?;
            let other = if copy == Copy::Primary { sectors - 1 } else { 1 };
            let array = length.div_ceil(sector);
            // Both arrays are written: neither may reach where partitions can be.
            let (first, last) = h.usable;
            let own = match copy {
                Copy::Primary => h.entries_lba >= FIRST_ENTRIES && h.entries_lba.checked_add(array)? <= first,
                Copy::Backup => h.entries_lba > last && h.entries_lba.checked_add(array)? < sectors,
            };
            let fits = own && first >= FIRST_ENTRIES + array && last < (sectors - 1).checked_sub(array)?;
            if crc32(&entries) != h.entries_crc || le_u64(&header, ALTERNATE_LBA) != Some(other) || !fits {
                return None;
            }
            let entry = usize::try_from(h.entry_size).ok()?;
            let used = (1u32..).zip(entries.chunks_exact(entry));
            let parsed = used.map(|(number, e)| parse_entry(number, e, sectors, sector).ok());
            let partitions = parsed.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
            let usable_end = (h.usable.1 + 1) * sector;
            Some(Editor {
                sector,
                sectors,
                copy,
                mbr: mbr.clone(),
                header,
                size: h.size,
                entry,
                usable_end,
                entries,
                partitions,
            })
        };
        let table = table(1, Copy::Primary).or_else(|| table(sectors.checked_sub(1)?, Copy::Backup));
        table.ok_or(ChangeError::Unsound)
    }

    /// Adds a partition behind all others, as long as the disk has room.
    ///
    /// # Errors
    /// There is no room or no entry.
    pub fn append(&mut self, new: &NewPartition<'_>) -> Result<Partition, ChangeError> {
        let free = self.entries.chunks_exact(self.entry).position(|e| e[..16] == [0; 16]);
        let at = free.ok_or(ChangeError::Full)?;
        let end = self.partitions.iter().map(|p| p.start + p.length).max().unwrap_or(1 << 20);
        let start = end.next_multiple_of(self.grain());
        let length = self.room(start);
        if length < new.bytes_min.max(self.grain()) {
            return Err(ChangeError::NoRoom { free: length, wanted: new.bytes_min });
        }
        let entry = &mut self.entries[at * self.entry..][..self.entry];
        entry.fill(0);
        entry[..16].copy_from_slice(&new.type_guid.to_disk());
        entry[PARTUUID..PARTUUID + 16].copy_from_slice(&new.partuuid.to_disk());
        let fields =
            [(32, start / self.sector), (LAST, (start + length) / self.sector - 1), (ATTRIBUTES, GROWS)];
        for (field, value) in fields {
            entry[field..field + 8].copy_from_slice(&value.to_le_bytes());
        }
        set_label(&mut entry[LABEL..], new.label);
        let partition = Partition {
            number: u32::try_from(at).unwrap_or(u32::MAX).saturating_add(1),
            type_guid: new.type_guid,
            partuuid: new.partuuid,
            label: new.label.to_owned(),
            start,
            length,
        };
        self.partitions.push(partition.clone());
        Ok(partition)
    }

    /// Lets the last partition reach to the disk's end; returns it as it is then.
    ///
    /// # Errors
    /// It is not the last one, or cannot become longer.
    pub fn grow(&mut self, number: u32) -> Result<Partition, ChangeError> {
        let last = self.partitions.iter().max_by_key(|p| p.start).filter(|p| p.number == number);
        let mut partition = last.ok_or(ChangeError::NotLast(number))?.clone();
        let length = self.room(partition.start);
        if length <= partition.length {
            return Err(ChangeError::NoRoom { free: 0, wanted: self.grain() });
        }
        partition.length = length;
        let at = (number as usize - 1) * self.entry + LAST;
        let last = (partition.start + length) / self.sector - 1;
        self.entries[at..at + 8].copy_from_slice(&last.to_le_bytes());
        self.partitions.retain(|p| p.number != number);
        self.partitions.push(partition.clone());
        Ok(partition)
    }

    /// Takes a partition out of the table. Its bytes stay.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove(&mut self, number: u32) -> Result<(), ChangeError> {
        let at = self.partitions.iter().position(|p| p.number == number);
        self.partitions.remove(at.ok_or(ChangeError::Missing(number))?);
        self.entries[(number as usize - 1) * self.entry..][..self.entry].fill(0);
        Ok(())
    }

    /// Gives the disk another GUID.
    pub fn identify_disk(&mut self, disk: Guid) {
        self.header[DISK..DISK + 16].copy_from_slice(&disk.to_disk());
    }

    /// Gives a partition another PARTUUID.
    ///
    /// # Errors
    /// It is not there.
    pub fn identify(&mut self, number: u32, partuuid: Guid) -> Result<(), ChangeError> {
        let partition = self.partitions.iter_mut().find(|p| p.number == number);
        partition.ok_or(ChangeError::Missing(number))?.partuuid = partuuid;
        let at = (number as usize - 1) * self.entry + PARTUUID;
        self.entries[at..at + 16].copy_from_slice(&partuuid.to_disk());
        Ok(())
    }

    /// Gives a partition another label; 36 UTF-16 units of it count.
    ///
    /// # Errors
    /// It is not there.
    pub fn relabel(&mut self, number: u32, label: &str) -> Result<(), ChangeError> {
        let partition = self.partitions.iter_mut().find(|p| p.number == number);
        label.clone_into(&mut partition.ok_or(ChangeError::Missing(number))?.label);
        let at = (number as usize - 1) * self.entry + LABEL;
        set_label(&mut self.entries[at..], label);
        Ok(())
    }

    fn grain(&self) -> u64 {
        GRAIN.max(self.sector)
    }

    fn room(&self, start: u64) -> u64 {
        let room = self.usable_end.saturating_sub(start);
        room - room % self.grain()
    }

    /// The writes: the copy that was read last, each copy's entries before its header.
    #[must_use]
    pub fn writes(&self) -> Vec<DiskWrite> {
        let end = self.sectors - 1;
        let behind = end - (self.entries.len() as u64).div_ceil(self.sector);
        let entries_crc = crc32(&self.entries);
        let copy = |lba: u64, alternate: u64, entries_lba: u64| {
            let fields = [(MY_LBA, lba), (ALTERNATE_LBA, alternate), (ENTRIES_LBA, entries_lba)];
            let header = sealed(self.header.clone(), self.size, &fields, entries_crc);
            let write = |lba: u64, bytes| DiskWrite { offset: lba * self.sector, bytes };
            [write(entries_lba, self.entries.clone()), write(lba, header)]
        };
        let primary_entries = match self.copy {
            Copy::Primary => le_u64(&self.header, ENTRIES_LBA).unwrap_or(FIRST_ENTRIES),
            Copy::Backup => FIRST_ENTRIES,
        };
        let (primary, backup) = (copy(1, end, primary_entries), copy(end, 1, behind));
        let order = if self.copy == Copy::Primary { [backup, primary] } else { [primary, backup] };
        let mbr = self.mbr.iter().map(|bytes| DiskWrite { offset: 0, bytes: bytes.clone() });
        order.into_iter().flatten().chain(mbr).collect()
    }
}

/// Writes a label to the beginning of `field`, over all of an older one.
fn set_label(field: &mut [u8], label: &str) {
    let units = label.encode_utf16().chain(std::iter::repeat(0));
    for (unit, place) in units.take(LABEL_UNITS).zip(field.chunks_exact_mut(2)) {
        place.copy_from_slice(&unit.to_le_bytes());
    }
}

/// The protective MBR with the length of a disk of `sectors`, if there is one with another.
fn protective(mut mbr: Vec<u8>, sectors: u64) -> Option<Vec<u8>> {
    let is = mbr.get(510..512)? == [0x55, 0xaa] && mbr[MBR_TYPE] == 0xee;
    let length = u32::try_from(sectors.checked_sub(1)?).unwrap_or(u32::MAX).to_le_bytes();
    if !is || mbr[MBR_LENGTH..MBR_LENGTH + 4] == length {
        return None;
    }
    mbr[MBR_LENGTH..MBR_LENGTH + 4].copy_from_slice(&length);
    Some(mbr)
}

#[cfg(test)]
#[path = "gpt_change_tests.rs"]
mod tests;
