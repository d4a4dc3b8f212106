//! The directory `EFI/Linux` of the ESP, read and changed by bytes: no component mounts the ESP to change a slot's state.
//!
//! In: the ESP's bytes. Out: the entries of both slots, and a write of one sector that gives one of them another name and
//! length. Invariants: such a write changes nothing but that sector; tables and chains stay as the image builder made them.
//! Reading is bounded, and any bytes give a directory or an error. Format: Microsoft's FAT specification 1.03.
//!
//! Why no crate: as in [`fat`](super::fat); and a crate would allocate, which must not happen here.

use super::esp_names::{
    ENTRIES, ENTRY, EntryState, LONG_NAME, LongName, file_name, long_entries, parse_name, short_name,
};
use super::step::DiskWrite;
use super::{le_u16, le_u32};
use orlop_config::slots::SlotName;

/// Length of the chain of clusters that each UKI file has, bytes. A hidden file has this length, too.
pub const UKI_CHAIN_BYTES: u32 = 64 << 20;
/// Clusters of a directory that are looked at.
const DIRECTORY_CLUSTERS_MAX: usize = 32;
/// Largest cluster, bytes.
const CLUSTER_MAX: u64 = 1 << 16;
/// Bytes of the table that are read at once.
const TABLE_CHUNK: usize = 4096;
/// Attributes of an entry.
const LABEL: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
/// Marks in an entry's first byte: none from here on, deleted.
const END: u8 = 0;
const DELETED: u8 = 0xe5;
/// From here on the number of a next cluster means: this was the last one.
const LAST: u32 = 0x0fff_fff8;

/// Why the ESP is not read or not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EspError {
    /// A part of it cannot be read.
    #[error("the ESP cannot be read")]
    Unreadable,
    /// It is no FAT32 volume.
    #[error("the ESP is no FAT32 volume")]
    Geometry,
    /// A directory is missing, or its chain is damaged.
    #[error("the ESP has no sound directory EFI/Linux")]
    NoDirectory,
    /// The slot has no entry.
    #[error("the ESP has no UKI of slot {0}")]
    NoEntry(SlotName),
    /// One write cannot change the entry.
    #[error("the ESP's entry of slot {0} is not where this image made it")]
    Moved(SlotName),
}

/// Where the parts of a FAT32 volume are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspGeometry {
    /// Bytes of a sector.
    pub sector: usize,
    /// Bytes of a cluster.
    pub cluster: usize,
    /// Where the first table begins, bytes from the volume's start.
    fat: u64,
    /// Where the first cluster begins.
    data: u64,
    /// First cluster of the root directory.
    root: u32,
}

impl EspGeometry {
    /// Reads it. `read(offset, length)` returns exactly that many bytes of the volume, or `None`.
    ///
    /// # Errors
    /// [`EspError::Unreadable`], [`EspError::Geometry`].
    pub fn read(read: &impl Fn(u64, usize) -> Option<Vec<u8>>) -> Result<EspGeometry, EspError> {
        let boot = read(0, 512).ok_or(EspError::Unreadable)?;
        geometry(&boot).ok_or(EspError::Geometry)
    }

    /// Where a cluster begins, bytes from the volume's start.
    #[must_use]
    pub fn offset(&self, cluster: u32) -> u64 {
        self.data + u64::from(cluster.saturating_sub(2)) * self.cluster as u64
    }

    /// Does a file's chain consist of `bytes` bytes behind one another, and of no more?
    ///
    /// # Errors
    /// [`EspError::Unreadable`].
    pub fn is_contiguous(
        &self,
        read: &impl Fn(u64, usize) -> Option<Vec<u8>>,
        first: u32,
        bytes: u32,
    ) -> Result<bool, EspError> {
        let clusters = bytes.div_ceil(u32::try_from(self.cluster).unwrap_or(u32::MAX));
        let Some(end) = first.checked_add(clusters).filter(|end| first >= 2 && *end > first) else {
            return Ok(false);
        };
        let mut at = first;
        while at < end {
            let count = (end - at).min(u32::try_from(TABLE_CHUNK / 4).unwrap_or(1));
            let length = usize::try_from(count).unwrap_or(0) * 4;
            let table = read(self.fat + u64::from(at) * 4, length).ok_or(EspError::Unreadable)?;
            for n in 0..count {
                let next = le_u32(&table, usize::try_from(n).unwrap_or(0) * 4).unwrap_or(0) & 0x0fff_ffff;
                let number = at + n;
                let right = if number + 1 == end { next >= LAST } else { next == number + 1 };
                if !right {
                    return Ok(false);
                }
            }
            at += count;
        }
        Ok(true)
    }

    /// The clusters of a directory, with their offsets. An error if its chain is damaged or too long.
    fn directory(
        &self,
        read: &impl Fn(u64, usize) -> Option<Vec<u8>>,
        first: u32,
    ) -> Result<Vec<(u64, Vec<u8>)>, EspError> {
        let (mut clusters, mut at) = (Vec::new(), first);
        while clusters.len() < DIRECTORY_CLUSTERS_MAX {
            if at < 2 {
                return Err(EspError::NoDirectory);
            }
            let offset = self.offset(at);
            clusters.push((offset, read(offset, self.cluster).ok_or(EspError::Unreadable)?));
            let next = read(self.fat + u64::from(at) * 4, 4).ok_or(EspError::Unreadable)?;
            at = le_u32(&next, 0).unwrap_or(0) & 0x0fff_ffff;
            if at >= LAST {
                return Ok(clusters);
            }
        }
        Err(EspError::NoDirectory)
    }
}

fn geometry(boot: &[u8]) -> Option<EspGeometry> {
    let sector = u64::from(le_u16(boot, 11)?);
    let cluster = u64::from(*boot.get(13)?) * sector;
    let sized = sector.is_power_of_two() && (512..=4096).contains(&sector);
    let (entries, length) = (le_u16(boot, 17)?, u64::from(le_u32(boot, 36)?));
    // FAT12 and FAT16 have a root directory of a fixed length.
    if boot.get(510..512)? != [0x55, 0xaa] || !sized || entries != 0 || length == 0 {
        return None;
    }
    if !cluster.is_power_of_two() || cluster > CLUSTER_MAX {
        return None;
    }
    let fat = u64::from(le_u16(boot, 14)?) * sector;
    let data = fat + u64::from(*boot.get(16)?) * length * sector;
    let (sector, cluster) = (usize::try_from(sector).ok()?, usize::try_from(cluster).ok()?);
    Some(EspGeometry { sector, cluster, fat, data, root: le_u32(boot, 44)? })
}

/// First cluster of the directory with this short name.
fn below(clusters: &[(u64, Vec<u8>)], short: &[u8; 11]) -> Option<u32> {
    let entries = clusters.iter().flat_map(|(_, bytes)| bytes.chunks_exact(ENTRY));
    let mut entries = entries.take_while(|entry| entry[0] != END);
    let found = entries
        .find(|entry| entry.starts_with(short) && entry[11] & DIRECTORY != 0 && entry[11] & LABEL == 0)?;
    first_cluster(found)
}

fn first_cluster(entry: &[u8]) -> Option<u32> {
    Some(u32::from(le_u16(entry, 20)?) << 16 | u32::from(le_u16(entry, 26)?))
}

/// A slot's UKI in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspEntry {
    /// The slot.
    pub slot: SlotName,
    /// Its state.
    pub state: EntryState,
    /// Length of the file, bytes.
    pub bytes: u32,
    /// First cluster of its chain.
    pub first_cluster: u32,
    /// Where its directory entries begin and end, bytes in the directory.
    from: usize,
    to: usize,
}

/// The directory with the UKIs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EspDirectory {
    geometry: EspGeometry,
    /// Its clusters, with their offsets on the volume.
    clusters: Vec<(u64, Vec<u8>)>,
    entries: Vec<EspEntry>,
}

impl EspDirectory {
    /// Reads it. `read(offset, length)` returns exactly that many bytes of the volume, or `None`.
    ///
    /// # Errors
    /// [`EspError::Unreadable`], [`EspError::Geometry`], [`EspError::NoDirectory`].
    pub fn read(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Result<EspDirectory, EspError> {
        let geometry = EspGeometry::read(&read)?;
        let mut clusters = geometry.directory(&read, geometry.root)?;
        for short in [b"EFI        ", b"LINUX      "] {
            let first = below(&clusters, short).ok_or(EspError::NoDirectory)?;
            clusters = geometry.directory(&read, first)?;
        }
        Ok(EspDirectory::of(geometry, clusters))
    }

    fn of(geometry: EspGeometry, clusters: Vec<(u64, Vec<u8>)>) -> EspDirectory {
        let bytes = clusters.iter().flat_map(|(_, bytes)| bytes.chunks_exact(ENTRY)).enumerate();
        let (mut entries, mut name) = (Vec::new(), LongName::default());
        for (n, entry) in bytes.take_while(|(_, entry)| entry[0] != END) {
            match entry[11] {
                _ if entry[0] == DELETED => name = LongName::default(),
                LONG_NAME => name.take(entry),
                attributes => {
                    let long = std::mem::take(&mut name).finish(&entry[..11]);
                    if attributes & (LABEL | DIRECTORY) == 0 {
                        entries.extend(long.and_then(|long| uki(long, n, entry)));
                    }
                }
            }
        }
        EspDirectory { geometry, clusters, entries }
    }

    /// The volume's geometry.
    #[must_use]
    pub fn geometry(&self) -> EspGeometry {
        self.geometry
    }

    /// The slot's UKI. A firmware whose renaming was cut short may leave two entries: the loader sees the visible one.
    #[must_use]
    pub fn entry(&self, slot: SlotName) -> Option<&EspEntry> {
        self.entries.iter().filter(|e| e.slot == slot).min_by_key(|e| !e.state.is_visible())
    }

    /// Gives a slot's UKI another state and length: the directory as it is then, and the write of one sector. Other
    /// entries of the same slot in that sector are deleted by it.
    ///
    /// The firmware does not rename in place: EDK2 appends the new name to the directory, so that each trial moves the entry on, at
    /// last over the end of a sector. The sector of the short name decides then: without that name there is no file, and what is left of
    /// the long name in the sector before is nothing to any reader. The new name is put next to the old one.
    ///
    /// # Errors
    /// [`EspError::NoEntry`]; [`EspError::Moved`] if that sector has no room for the name.
    pub fn renamed(
        &self,
        slot: SlotName,
        state: EntryState,
        bytes: u32,
    ) -> Result<(EspDirectory, DiskWrite), EspError> {
        let entry = *self.entry(slot).ok_or(EspError::NoEntry(slot))?;
        let size = self.geometry.sector;
        let sector = (entry.to - ENTRY) / size;
        let (start, end) = (sector * size, (sector + 1) * size);
        let mut after = self.clone();
        for other in
            self.entries.iter().filter(|other| other.slot == slot && (other.to - ENTRY) / size == sector)
        {
            for at in (other.from.max(start)..other.to).step_by(ENTRY) {
                after.bytes_mut(at)?[0] = DELETED;
            }
        }
        let in_place = entry.to.checked_sub(ENTRIES * ENTRY).filter(|from| *from >= entry.from.max(start));
        let from = match in_place {
            Some(from) => from,
            None => after.room(start, end)?.ok_or(EspError::Moved(slot))?,
        };
        let short = short_name(slot, state);
        // Read before its place is another entry's.
        let mut last = after.bytes_mut(entry.to - ENTRY)?.to_vec();
        for (n, part) in long_entries(&file_name(slot, state), &short).iter().enumerate() {
            after.bytes_mut(from + n * ENTRY)?.copy_from_slice(part);
        }
        last[..11].copy_from_slice(&short);
        last[12] = 0;
        last[28..32].copy_from_slice(&bytes.to_le_bytes());
        after.bytes_mut(from + (ENTRIES - 1) * ENTRY)?.copy_from_slice(&last);
        let after = EspDirectory::of(after.geometry, after.clusters);
        let cluster = self.geometry.cluster;
        let (number, within) = (start / cluster, start % cluster);
        let (offset, content) = &after.clusters[number];
        let write =
            DiskWrite { offset: offset + within as u64, bytes: content[within..within + size].to_vec() };
        Ok((after, write))
    }

    /// Where a name fits between `start` and `end`, which are a sector's: over deleted entries, or behind the directory's last one if
    /// there is room for the mark of its end, too, which is set then.
    fn room(&mut self, start: usize, end: usize) -> Result<Option<usize>, EspError> {
        let (mut free, mut ended) = (0, false);
        for at in (start..end).step_by(ENTRY) {
            let entry = self.bytes_mut(at)?;
            if free == ENTRIES {
                if ended {
                    entry[0] = END;
                }
                return Ok(Some(at - ENTRIES * ENTRY));
            }
            ended |= entry[0] == END;
            free = if ended || entry[0] == DELETED { free + 1 } else { 0 };
        }
        Ok((free == ENTRIES && !ended).then(|| end - ENTRIES * ENTRY))
    }

    /// The directory entry at a place.
    fn bytes_mut(&mut self, at: usize) -> Result<&mut [u8], EspError> {
        let size = self.geometry.cluster;
        let cluster = self.clusters.get_mut(at / size).ok_or(EspError::NoDirectory)?;
        cluster.1.get_mut(at % size..at % size + ENTRY).ok_or(EspError::NoDirectory)
    }
}

/// The UKI that a directory entry is, the `n`th of the directory; none if it is another file.
fn uki((name, parts): (String, usize), n: usize, entry: &[u8]) -> Option<EspEntry> {
    let (slot, state) = parse_name(&name)?;
    let (bytes, first_cluster) = (le_u32(entry, 28)?, first_cluster(entry)?);
    let from = n.checked_sub(parts)? * ENTRY;
    Some(EspEntry { slot, state, bytes, first_cluster, from, to: (n + 1) * ENTRY })
}

#[cfg(test)]
#[path = "esp_tests.rs"]
pub(crate) mod tests;
