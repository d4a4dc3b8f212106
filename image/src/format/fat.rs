//! FAT32 volumes: the tree of files of one, and the same tree as a volume with other sectors.
//!
//! In: a volume that mkfs.fat has made. Out: a [`Directory`], and pieces of bytes with their places. Names, times and
//! attributes are taken over as they are; only the numbers of clusters change. Format: Microsoft's FAT specification 1.03.
//!
//! Why no crate: `fatfs` writes one sector size only, and mtools and mkfs.fat are programs that a host may not have.

use anyhow::{Context, Result, bail, ensure};

/// Bytes of an entry of a directory.
const ENTRY: usize = 32;
/// Attributes of an entry.
const DIRECTORY: u8 = 0x10;
const LABEL: u8 = 0x08;
/// Marks in an entry's first byte: none from here on, deleted.
const END: u8 = 0;
const DELETED: u8 = 0xe5;
/// Directories below one another, at most.
const DEPTH_MAX: usize = 16;
/// Longest table that is read, bytes: a damaged volume must not take all memory.
const TABLE_MAX: u64 = 1 << 28;
/// Fewer clusters than this are a FAT16 volume to many readers.
const CLUSTERS_MIN: u64 = 65_525;
/// Sectors before the first table, at least: boot sector, information, their copies from 6 on.
const RESERVED_MIN: u64 = 32;
const COPY: u64 = 6;
/// Tables.
const TABLES: u8 = 2;
/// The last cluster of a chain.
const LAST: u32 = 0x0fff_ffff;

/// A volume, as far as it is the same with other sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The boot sector's first 512 bytes: label, serial number, boot code.
    pub boot: Vec<u8>,
    /// What is in it.
    pub root: Directory,
}

/// A directory's entries, in their order.
pub type Directory = Vec<FatEntry>;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FatEntry {
    /// A part of a long name, or the volume's label: it has no content.
    Plain([u8; ENTRY]),
    /// The directory itself, `.`.
    Itself([u8; ENTRY]),
    /// The directory above, `..`.
    Above([u8; ENTRY]),
    /// A file: entry, content, and the length of its chain of clusters in bytes, which may be longer than the content.
    File([u8; ENTRY], Vec<u8>, usize),
    /// A directory.
    Directory([u8; ENTRY], Directory),
}

/// Bytes and their place, from the volume's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes from the volume's start.
    pub offset: u64,
    /// What stands there.
    pub bytes: Vec<u8>,
}

fn le16(bytes: &[u8], at: usize) -> Result<u16> {
    let field = bytes.get(at..at + 2).context("the volume is cut short")?;
    Ok(u16::from_le_bytes([field[0], field[1]]))
}

fn le32(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from(le16(bytes, at)?) | u32::from(le16(bytes, at + 2)?) << 16)
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// Reads a FAT32 volume. `read(offset, length)` gives that many bytes of it.
///
/// # Errors
/// It cannot be read, is no FAT32, or is damaged.
pub fn read(read: impl Fn(u64, usize) -> std::io::Result<Vec<u8>>) -> Result<Volume> {
    let boot = read(0, 512)?;
    ensure!(le16(&boot, 510)? == 0xaa55, "it has no boot sector");
    ensure!(le16(&boot, 22)? == 0 && le32(&boot, 36)? != 0, "it is no FAT32");
    let sector = u64::from(le16(&boot, 11)?);
    let cluster = sector * u64::from(boot[13]);
    ensure!(sector.is_power_of_two() && cluster.is_power_of_two(), "its sectors have an unknown size");
    let table_at = u64::from(le16(&boot, 14)?) * sector;
    let table_bytes = u64::from(le32(&boot, 36)?) * sector;
    let data_at = table_at + u64::from(boot[16]) * table_bytes;
    let clusters = (u64::from(le32(&boot, 32)?) * sector).saturating_sub(data_at) / cluster;
    ensure!((clusters + 2) * 4 <= table_bytes.min(TABLE_MAX), "its table is too short, or too long");
    let table = read(table_at, usize::try_from((clusters + 2) * 4)?)?;
    // Each cluster belongs to one chain.
    let left = usize::try_from(clusters * cluster)?;
    let bytes = usize::try_from(cluster)?;
    let mut reader = Reader { read: &read, table, data_at, cluster: bytes, left };
    let root = reader.directory(le32(&boot, 44)?, DEPTH_MAX)?;
    Ok(Volume { boot, root })
}

struct Reader<'a> {
    read: &'a dyn Fn(u64, usize) -> std::io::Result<Vec<u8>>,
    table: Vec<u8>,
    data_at: u64,
    cluster: usize,
    /// Bytes that may still be read.
    left: usize,
}

impl Reader<'_> {
    /// All clusters of a chain.
    fn chain(&mut self, first: u32) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        let mut at = first;
        loop {
            ensure!(at >= 2, "a chain of clusters leads nowhere");
            let next = le32(&self.table, usize::try_from(at)? * 4)? & LAST;
            self.left = self.left.checked_sub(self.cluster).context("it holds too much, or goes round")?;
            let offset = self.data_at + u64::from(at - 2) * u64::try_from(self.cluster)?;
            content.extend((self.read)(offset, self.cluster)?);
            if next >= 0x0fff_fff8 {
                return Ok(content);
            }
            at = next;
        }
    }

    fn directory(&mut self, first: u32, depth: usize) -> Result<Directory> {
        ensure!(depth > 0, "its directories go too deep");
        let content = self.chain(first)?;
        let mut entries = Vec::new();
        for raw in content.chunks_exact(ENTRY).take_while(|raw| raw[0] != END).filter(|raw| raw[0] != DELETED)
        {
            let raw = <[u8; ENTRY]>::try_from(raw)?;
            let first = u32::from(le16(&raw, 26)?) | u32::from(le16(&raw, 20)?) << 16;
            entries.push(match raw[11] {
                attributes if attributes & LABEL != 0 => FatEntry::Plain(raw),
                attributes if attributes & DIRECTORY == 0 => {
                    let size = usize::try_from(le32(&raw, 28)?)?;
                    let mut content = if size == 0 { Vec::new() } else { self.chain(first)? };
                    ensure!(content.len() >= size, "a file is shorter than it says");
                    let chain = content.len();
                    content.truncate(size);
                    FatEntry::File(raw, content, chain)
                }
                _ if raw.starts_with(b".          ") => FatEntry::Itself(raw),
                _ if raw.starts_with(b"..         ") => FatEntry::Above(raw),
                _ => FatEntry::Directory(raw, self.directory(first, depth - 1)?),
            });
        }
        Ok(entries)
    }
}

/// The volume on `bytes` bytes with sectors of `sector` bytes and clusters of `cluster` bytes. What no piece says is zero.
///
/// # Errors
/// It does not fit, or would not be FAT32 to every reader.
pub fn write(volume: &Volume, bytes: u64, sector: u32, cluster: u32) -> Result<Vec<Piece>> {
    let size = u64::from(sector);
    let sectors_of_cluster = u8::try_from(cluster / sector).context("the clusters are too large")?;
    let whole = sectors_of_cluster.is_power_of_two() && cluster.is_multiple_of(sector);
    ensure!(whole, "clusters of {cluster} bytes are no power of two of sectors of {sector} bytes");
    let sectors = u32::try_from(bytes / size).context("the volume is too large")?;
    let all = u64::from(sectors);
    // Enough for clusters on all sectors, which are more than those behind the tables.
    let table_sectors = ((all / u64::from(sectors_of_cluster) + 2) * 4).div_ceil(size);
    let before = RESERVED_MIN + u64::from(TABLES) * table_sectors;
    // Clusters begin at multiples of their size, as those of mkfs.fat: a block of a file is a block of the disk.
    let data_sector = before.next_multiple_of(u64::from(sectors_of_cluster));
    let reserved = RESERVED_MIN + data_sector - before;
    let clusters = all.saturating_sub(data_sector) / u64::from(sectors_of_cluster);
    if clusters < CLUSTERS_MIN {
        bail!(
            "FAT32 needs {CLUSTERS_MIN} clusters: a volume of {bytes} bytes has {clusters} of {cluster} bytes"
        );
    }
    let (cluster, length) = (usize::try_from(cluster)?, usize::try_from(sector)?);
    let mut writer =
        Writer { table: vec![0x0fff_fff8, LAST], cluster, data_at: data_sector * size, pieces: Vec::new() };
    let root = writer.directory(&volume.root, 0)?;
    let used = writer.table.len() as u64 - 2;
    ensure!(used <= clusters, "its content needs {used} clusters, there are {clusters}");

    let mut boot = vec![0; length];
    boot[..512].copy_from_slice(volume.boot.get(..512).context("the boot sector is cut short")?);
    let sector_field = u16::try_from(sector).context("the sectors are too large")?;
    put(&mut boot, 11, &sector_field.to_le_bytes());
    // Sectors of a cluster; sectors before the tables, tables.
    boot[13] = sectors_of_cluster;
    put(&mut boot, 14, &u16::try_from(reserved)?.to_le_bytes());
    boot[16] = TABLES;
    put(&mut boot, 32, &sectors.to_le_bytes());
    put(&mut boot, 36, &u32::try_from(table_sectors)?.to_le_bytes());
    put(&mut boot, 44, &root.to_le_bytes());
    // Where the information and the copy of this sector are.
    put(&mut boot, 48, &1u16.to_le_bytes());
    put(&mut boot, 50, &u16::try_from(COPY)?.to_le_bytes());
    let mut information = vec![0; length];
    put(&mut information, 0, b"RRaA");
    put(&mut information, 484, b"rrAa");
    put(&mut information, 488, &u32::try_from(clusters - used)?.to_le_bytes());
    put(&mut information, 492, &u32::try_from(used + 2)?.to_le_bytes());
    put(&mut information, 510, &[0x55, 0xaa]);

    let mut table: Vec<u8> = writer.table.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    table.resize(usize::try_from(table_sectors * size)?, 0);
    let mut pieces = Vec::new();
    for first in [0, COPY] {
        pieces.push(Piece { offset: first * size, bytes: boot.clone() });
        pieces.push(Piece { offset: (first + 1) * size, bytes: information.clone() });
    }
    for n in 0..u64::from(TABLES) {
        let offset = (reserved + n * table_sectors) * size;
        pieces.push(Piece { offset, bytes: table.clone() });
    }
    pieces.append(&mut writer.pieces);
    Ok(pieces)
}

struct Writer {
    table: Vec<u32>,
    cluster: usize,
    data_at: u64,
    pieces: Vec<Piece>,
}

impl Writer {
    /// Clusters behind one another for so many bytes; the number of the first.
    fn take(&mut self, bytes: usize) -> Result<u32> {
        let first = u32::try_from(self.table.len())?;
        for n in 1..bytes.div_ceil(self.cluster) {
            self.table.push(first + u32::try_from(n)?);
        }
        self.table.push(LAST);
        Ok(first)
    }

    fn put(&mut self, first: u32, mut bytes: Vec<u8>) {
        // Zeros at the end are no piece: they may be all that a file of many megabytes has.
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if used == 0 {
            return;
        }
        bytes.resize(used.next_multiple_of(self.cluster), 0);
        let offset = self.data_at + u64::from(first - 2) * self.cluster as u64;
        self.pieces.push(Piece { offset, bytes });
    }

    /// Writes a directory with all that is below it; `above` is 0 for the root and what is directly below it.
    fn directory(&mut self, entries: &Directory, above: u32) -> Result<u32> {
        // The end needs no entry where the last cluster is full.
        let first = self.take((entries.len() * ENTRY).max(1))?;
        let mut bytes = Vec::with_capacity(entries.len() * ENTRY);
        for entry in entries {
            let (raw, cluster) = match entry {
                FatEntry::Plain(raw) => {
                    bytes.extend(raw);
                    continue;
                }
                FatEntry::Itself(raw) => (raw, first),
                FatEntry::Above(raw) => (raw, above),
                FatEntry::File(raw, content, chain) if content.is_empty() && *chain == 0 => (raw, 0),
                FatEntry::File(raw, content, chain) => {
                    let at = self.take(content.len().max(*chain))?;
                    self.put(at, content.clone());
                    (raw, at)
                }
                FatEntry::Directory(raw, below) => {
                    let own = if first == 2 { 0 } else { first };
                    (raw, self.directory(below, own)?)
                }
            };
            let mut raw = *raw;
            let [low, high] = [cluster & 0xffff, cluster >> 16].map(|half| u16::try_from(half).unwrap_or(0));
            put(&mut raw, 26, &low.to_le_bytes());
            put(&mut raw, 20, &high.to_le_bytes());
            bytes.extend(raw);
        }
        self.put(first, bytes);
        Ok(first)
    }
}

#[cfg(test)]
#[path = "fat_tests.rs"]
pub(crate) mod tests;
