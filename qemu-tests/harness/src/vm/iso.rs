//! A configuration drive as a CD-ROM: an ISO 9660 volume with one file in its root directory, made byte by byte. Format:
//! ECMA-119, level 1 with one free-form name, no Joliet, no Rock Ridge: Linux shows names in small letters and without
//! their version. So the host of the tests needs no xorriso.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Bytes of a logical sector.
const SECTOR: usize = 2048;
/// Sectors: descriptor, its end, path tables of both byte orders, root directory, content. The first 16 are the system's.
const DESCRIPTOR: usize = 16;
const END: usize = 17;
const TABLES: [usize; 2] = [18, 19];
const ROOT: usize = 20;
const CONTENT: usize = 21;
/// Bytes of a path table with the root directory alone.
const TABLE_BYTES: u32 = 10;
const DIRECTORY: u8 = 2;
/// Names of a directory itself, and of the one above it.
const ITSELF: &[u8] = &[0];
const ABOVE: &[u8] = &[1];

/// Writes a volume labelled `label` (at most 32 characters) that has one file in its root directory: `name` (at most 30
/// characters), with `content`.
///
/// # Errors
/// If a name is too long, or the file cannot be written.
pub fn write(path: &Path, label: &str, name: &str, content: &str) -> Result<()> {
    let volume = volume(label, name, content.as_bytes())?;
    std::fs::write(path, volume).with_context(|| format!("write {}", path.display()))
}

fn volume(label: &str, name: &str, content: &[u8]) -> Result<Vec<u8>> {
    ensure!(label.len() <= 32 && name.len() <= 30, "{label} or {name} is too long for a CD-ROM");
    let sectors = CONTENT + content.len().div_ceil(SECTOR).max(1);
    let mut volume = vec![0; sectors * SECTOR];
    let descriptor = primary_descriptor(label, u32::try_from(sectors)?)?;
    let (start, file) = (u32::try_from(CONTENT)?, format!("{}.;1", name.to_ascii_uppercase()));
    let records = [
        record(root()?, DIRECTORY, ITSELF)?,
        record(root()?, DIRECTORY, ABOVE)?,
        record((start, u32::try_from(content.len())?), 0, file.as_bytes())?,
    ];
    let root_sector = u32::try_from(ROOT)?;
    for (sector, bytes) in [
        (DESCRIPTOR, descriptor),
        (END, b"\xffCD001\x01".to_vec()),
        (TABLES[0], path_table(root_sector.to_le_bytes(), 1_u16.to_le_bytes())),
        (TABLES[1], path_table(root_sector.to_be_bytes(), 1_u16.to_be_bytes())),
        (ROOT, records.concat()),
        (CONTENT, content.to_vec()),
    ] {
        volume[sector * SECTOR..][..bytes.len()].copy_from_slice(&bytes);
    }
    Ok(volume)
}

/// First sector and bytes of the root directory.
fn root() -> Result<(u32, u32)> {
    Ok((u32::try_from(ROOT)?, u32::try_from(SECTOR)?))
}

/// Both byte orders, one after the other.
fn both(value: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&value.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_be_bytes());
    bytes
}

fn both_short(value: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (value.to_le_bytes(), value.to_be_bytes());
    [a, b, c, d]
}

fn primary_descriptor(label: &str, sectors: u32) -> Result<Vec<u8>> {
    let mut descriptor = vec![0; SECTOR];
    descriptor[..7].copy_from_slice(b"\x01CD001\x01");
    // Names of the system, the volume, and those who made it; four dates that say nothing.
    descriptor[8..72].fill(b' ');
    descriptor[190..813].fill(b' ');
    for date in 0..4 {
        descriptor[813 + date * 17..][..16].fill(b'0');
    }
    descriptor[881] = 1;
    let (little, big) = (u32::try_from(TABLES[0])?.to_le_bytes(), u32::try_from(TABLES[1])?.to_be_bytes());
    let fields: [(usize, Vec<u8>); 9] = [
        (40, label.as_bytes().to_vec()),
        (80, both(sectors).to_vec()),
        (120, both_short(1).to_vec()),
        (124, both_short(1).to_vec()),
        (128, both_short(u16::try_from(SECTOR)?).to_vec()),
        (132, both(TABLE_BYTES).to_vec()),
        (140, little.to_vec()),
        (148, big.to_vec()),
        (156, record(root()?, DIRECTORY, ITSELF)?),
    ];
    for (at, bytes) in fields {
        descriptor[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(descriptor)
}

/// An entry of a directory: where it starts and its bytes, its kind, its name. It has no date.
fn record((start, bytes): (u32, u32), kind: u8, name: &[u8]) -> Result<Vec<u8>> {
    let length = (33 + name.len()).next_multiple_of(2);
    let mut record = vec![0; length];
    record[0] = u8::try_from(length)?;
    record[2..10].copy_from_slice(&both(start));
    record[10..18].copy_from_slice(&both(bytes));
    record[25] = kind;
    record[28..32].copy_from_slice(&both_short(1));
    record[32] = u8::try_from(name.len())?;
    record[33..33 + name.len()].copy_from_slice(name);
    Ok(record)
}

fn path_table(start: [u8; 4], parent: [u8; 2]) -> Vec<u8> {
    [&[1, 0][..], &start, &parent, &[0, 0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name and content.
    type IsoFile = (Vec<u8>, Vec<u8>);

    /// Reads as Linux does: label, then the entries of the root directory with their contents.
    fn read(volume: &[u8]) -> (String, Vec<IsoFile>) {
        let number = |at: usize| u32::from_le_bytes(volume[at..at + 4].try_into().unwrap()) as usize;
        let descriptor = 16 * 2048;
        assert_eq!(&volume[descriptor..descriptor + 6], b"\x01CD001");
        assert_eq!(number(descriptor + 80) * 2048, volume.len());
        let label = String::from_utf8_lossy(&volume[descriptor + 40..descriptor + 72]).trim_end().to_owned();
        let (mut at, mut found) = (number(descriptor + 156 + 2) * 2048, Vec::new());
        while volume[at] != 0 {
            let (start, length) = (number(at + 2) * 2048, number(at + 10));
            let name = volume[at + 33..][..usize::from(volume[at + 32])].to_vec();
            found.push((name, volume[start..start + length].to_vec()));
            at += usize::from(volume[at]);
        }
        (label, found)
    }

    #[test]
    fn the_root_directory_leads_to_the_content() {
        for content in [vec![], vec![b'x'; 1], vec![b'y'; 2048], vec![b'z'; 5000]] {
            let volume = volume("CIDATA", "user-data", &content).unwrap();
            assert_eq!(volume.len() % SECTOR, 0);
            let (label, entries) = read(&volume);
            assert_eq!(label, "CIDATA");
            assert_eq!(entries.len(), 3);
            assert_eq!((&entries[0].0[..], &entries[1].0[..]), (&[0][..], &[1][..]));
            assert_eq!(entries[2], (b"USER-DATA.;1".to_vec(), content));
        }
    }

    #[test]
    fn numbers_are_in_both_byte_orders() {
        let volume = volume("CIDATA", "user-data", b"text").unwrap();
        let descriptor = &volume[DESCRIPTOR * SECTOR..][..SECTOR];
        assert_eq!(descriptor[80..88], [22, 0, 0, 0, 0, 0, 0, 22]);
        assert_eq!(descriptor[128..132], [0, 8, 8, 0]);
        assert_eq!(volume[TABLES[0] * SECTOR..][..10], [1, 0, 20, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(volume[TABLES[1] * SECTOR..][..10], [1, 0, 0, 0, 0, 20, 0, 1, 0, 0]);
        assert!(super::volume(&"L".repeat(33), "user-data", b"").is_err());
    }
}
