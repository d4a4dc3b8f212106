//! GUID partition tables: sectors in, a checked table out.
//!
//! The primary header is used if its checksums hold, else the backup at the end of the device. The kernel
//! does not fall back by itself, so init reads the table on its own and hands the kernel partitions it missed.
//! Any input gives a table or an error; no length from disk is used before it is bounded.
//!
//! Why no crate: `gpt` and `gptman` read and write a device themselves; init plans its changes over bytes
//! ([`gpt_change`](super::gpt_change), [`gpt_relocate`](super::gpt_relocate)), so that the tests can cut the power
//! at each write. `gpt` is the second opinion in the tests. A crate for the checksum is not worth its size: an array of
//! entries has 16 KiB.

use super::gpt_header::header_crc;
use super::guid::Guid;
use super::{le_u32, le_u64};
pub use orlop_config::crc32::crc32;

/// Largest partition entry array that is read, bytes (the usual one has 16 KiB).
pub(super) const ENTRIES_BYTES_MAX: u64 = 1 << 20;

/// Which of the two headers the table came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// Sector 1.
    Primary,
    /// The device's last sector; the primary is damaged.
    Backup,
}

/// One used entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// From 1, as in `/dev/vda1`.
    pub number: u32,
    /// Partition type GUID.
    pub type_guid: Guid,
    /// PARTUUID.
    pub partuuid: Guid,
    /// PARTLABEL.
    pub label: String,
    /// Start, bytes from the start of the device.
    pub start: u64,
    /// Length, bytes.
    pub length: u64,
}

/// A table whose checksums hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Disk GUID.
    pub disk: Guid,
    /// Which header it came from.
    pub copy: Copy,
    /// In order of number.
    pub partitions: Vec<Partition>,
}

/// Why there is no table.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GptError {
    /// Sector could not be read.
    #[error("cannot read its partition table")]
    Unreadable,
    /// No signature at either place.
    #[error("it has no GUID partition table")]
    None,
    /// A signature, but neither copy's checksums hold.
    #[error("both copies of its partition table are damaged (primary: {primary}; backup: {backup})")]
    Damaged {
        /// What is wrong with the first copy.
        primary: &'static str,
        /// What is wrong with the second copy.
        backup: &'static str,
    },
}

/// Reads the table of a device of `device_bytes` with logical sectors of `sector` bytes.
/// `read(offset, length)` returns exactly that many bytes, or `None` if the device cannot give them.
///
/// # Errors
/// No table, or none whose checksums hold.
pub fn read_table(
    device_bytes: u64,
    sector: u32,
    mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>,
) -> Result<Table, GptError> {
    let sector = u64::from(sector.clamp(512, 1 << 16));
    let sectors = device_bytes / sector;
    if sectors < 6 {
        return Err(GptError::None);
    }
    let primary = match read_copy(1, Copy::Primary, sectors, sector, &mut read) {
        Ok(table) => return Ok(table),
        Err(why) => why,
    };
    match read_copy(sectors - 1, Copy::Backup, sectors, sector, &mut read) {
        Ok(table) => Ok(table),
        Err(backup) => Err(match (primary, backup) {
            (GptCopyDefect::Unreadable, GptCopyDefect::Unreadable | GptCopyDefect::NoSignature) => {
                GptError::Unreadable
            }
            (GptCopyDefect::NoSignature, GptCopyDefect::NoSignature | GptCopyDefect::Unreadable) => {
                GptError::None
            }
            (primary, backup) => GptError::Damaged { primary: primary.text(), backup: backup.text() },
        }),
    }
}

/// Why one copy is not used.
pub(super) enum GptCopyDefect {
    Unreadable,
    NoSignature,
    Invalid(&'static str),
}

impl GptCopyDefect {
    fn text(&self) -> &'static str {
        match self {
            GptCopyDefect::Unreadable => "unreadable",
            GptCopyDefect::NoSignature => "no signature",
            GptCopyDefect::Invalid(why) => why,
        }
    }
}

fn read_copy(
    lba: u64,
    copy: Copy,
    sectors: u64,
    sector: u64,
    read: &mut impl FnMut(u64, usize) -> Option<Vec<u8>>,
) -> Result<Table, GptCopyDefect> {
    let header =
        read(lba * sector, usize::try_from(sector).unwrap_or(512)).ok_or(GptCopyDefect::Unreadable)?;
    let h = Header::parse(&header, lba, sectors)?;
    let bytes = u64::from(h.entry_count) * u64::from(h.entry_size);
    if bytes == 0 || bytes > ENTRIES_BYTES_MAX || h.entries_lba >= sectors {
        return Err(GptCopyDefect::Invalid("entry array out of bounds"));
    }
    let length = usize::try_from(bytes).map_err(|_| GptCopyDefect::Invalid("entry array out of bounds"))?;
    let entries = read(h.entries_lba * sector, length).ok_or(GptCopyDefect::Unreadable)?;
    if crc32(&entries) != h.entries_crc {
        return Err(GptCopyDefect::Invalid("entry checksum wrong"));
    }
    let size = usize::try_from(h.entry_size).map_err(|_| GptCopyDefect::Invalid("entry size"))?;
    let mut partitions = Vec::new();
    for (number, entry) in (1u32..).zip(entries.chunks_exact(size)) {
        if let Some(p) = parse_entry(number, entry, sectors, sector)? {
            partitions.push(p);
        }
    }
    Ok(Table { disk: h.disk, copy, partitions })
}

/// A header whose checksum holds.
pub(super) struct Header {
    disk: Guid,
    /// Bytes of it that its checksum covers.
    pub(super) size: usize,
    pub(super) entries_lba: u64,
    pub(super) entry_count: u32,
    pub(super) entry_size: u32,
    pub(super) entries_crc: u32,
    /// Sectors that partitions may have.
    pub(super) usable: (u64, u64),
}

impl Header {
    pub(super) fn parse(bytes: &[u8], lba: u64, sectors: u64) -> Result<Header, GptCopyDefect> {
        if bytes.get(..8) != Some(b"EFI PART") {
            return Err(GptCopyDefect::NoSignature);
        }
        let short = GptCopyDefect::Invalid("header too short");
        let size = le_u32(bytes, 12).and_then(|s| usize::try_from(s).ok()).unwrap_or(0);
        if size < 92 || size > bytes.len() {
            return Err(short);
        }
        if le_u32(bytes, 16) != Some(header_crc(bytes, size)) {
            return Err(GptCopyDefect::Invalid("header checksum wrong"));
        }
        if le_u64(bytes, 24) != Some(lba) {
            return Err(GptCopyDefect::Invalid("header is not where it says"));
        }
        let (first, last) = (le_u64(bytes, 40), le_u64(bytes, 48));
        if first > last || last >= Some(sectors) {
            return Err(GptCopyDefect::Invalid("usable range beyond the device"));
        }
        let header = (|| {
            Some(Header {
                disk: Guid::from_disk(bytes.get(56..72)?)?,
                size,
                entries_lba: le_u64(bytes, 72)?,
                entry_count: le_u32(bytes, 80)?,
                entry_size: le_u32(bytes, 84)?,
                entries_crc: le_u32(bytes, 88)?,
                usable: (first?, last?),
            })
        })()
        .ok_or(short)?;
        if header.entry_size < 128 || !header.entry_size.is_multiple_of(8) {
            return Err(GptCopyDefect::Invalid("entry size"));
        }
        Ok(header)
    }
}

pub(super) fn parse_entry(
    number: u32,
    entry: &[u8],
    sectors: u64,
    sector: u64,
) -> Result<Option<Partition>, GptCopyDefect> {
    let short = || GptCopyDefect::Invalid("entry too short");
    let type_guid = Guid::from_disk(entry).ok_or_else(short)?;
    if type_guid.is_nil() {
        return Ok(None);
    }
    let partuuid = entry.get(16..).and_then(Guid::from_disk).ok_or_else(short)?;
    let first = le_u64(entry, 32).ok_or_else(short)?;
    let last = le_u64(entry, 40).ok_or_else(short)?;
    if first > last || last >= sectors {
        return Err(GptCopyDefect::Invalid("partition beyond the device"));
    }
    let name = entry.get(56..128).ok_or_else(short)?;
    let units = name.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]])).take_while(|u| *u != 0);
    let label: String = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
    Ok(Some(Partition {
        number,
        type_guid,
        partuuid,
        label,
        start: first * sector,
        length: (last - first + 1) * sector,
    }))
}

#[cfg(test)]
#[path = "gpt_tests.rs"]
pub(super) mod tests;
