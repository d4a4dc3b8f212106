//! A configuration drive: a FAT12 volume of 64 KiB with one file, made byte by byte. Format: Microsoft's FAT
//! specification 1.03. So the host of the tests needs no mkfs.vfat.

use std::path::Path;

use anyhow::{Context, Result, ensure};

const SECTOR: usize = 512;
const SECTORS: u16 = 128;
/// Boot sector, one table, one sector of directory.
const DATA: usize = 3;
const ATTRIBUTE_LABEL: u8 = 8;
const ATTRIBUTE_LONG_NAME: u8 = 15;
/// Offsets of a long name's units in its entry.
const LONG_NAME: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];

/// Writes a volume labelled `label` (at most 11 characters) that has one file in its root directory: `name` (at most 13), with
/// `content`.
///
/// # Errors
/// If the content is too long, or the file cannot be written.
pub fn write(path: &Path, label: &str, name: &str, content: &str) -> Result<()> {
    let volume = volume(label, name, content.as_bytes()).context("too much for a small volume")?;
    std::fs::write(path, volume).with_context(|| format!("write {}", path.display()))
}

fn volume(label: &str, name: &str, content: &[u8]) -> Result<Vec<u8>> {
    let clusters = content.len().div_ceil(SECTOR);
    ensure!(
        clusters + DATA <= usize::from(SECTORS) && label.len() <= 11 && name.len() <= 13,
        "it does not fit"
    );
    let mut padded = [b' '; 11];
    padded[..label.len()].copy_from_slice(label.as_bytes());
    let mut volume = vec![0; usize::from(SECTORS) * SECTOR];
    volume[..SECTOR].copy_from_slice(&boot_sector(&padded));
    // The file's clusters follow one another, from 2 on.
    let mut chain = vec![0xff8_u16, 0xfff];
    chain.extend((0..clusters).map(|n| u16::try_from(n + 3).unwrap_or(0xfff)));
    if clusters > 0 {
        chain[clusters + 1] = 0xfff;
    }
    for (n, value) in chain.iter().enumerate() {
        let (at, shift) = (SECTOR + n * 3 / 2, n % 2 * 4);
        let both = u16::from_le_bytes([volume[at], volume[at + 1]]) | value << shift;
        volume[at..at + 2].copy_from_slice(&both.to_le_bytes());
    }
    let mut label_entry = [0; 32];
    label_entry[..11].copy_from_slice(&padded);
    label_entry[11] = ATTRIBUTE_LABEL;
    let first = if clusters > 0 { 2 } else { 0 };
    for (n, entry) in [label_entry, long_name(name), file(first, content.len())].iter().enumerate() {
        volume[2 * SECTOR + n * 32..][..32].copy_from_slice(entry);
    }
    volume[DATA * SECTOR..][..content.len()].copy_from_slice(content);
    Ok(volume)
}

fn boot_sector(label: &[u8; 11]) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector[..3].copy_from_slice(&[0xeb, 0x3c, 0x90]);
    sector[3..11].copy_from_slice(b"orlop   ");
    let fields: [(usize, u16); 7] = [
        (11, 512),
        // Sectors before the table, with the sectors of a cluster below it.
        (14, 1),
        (17, 16),
        (19, SECTORS),
        (22, 1),
        (24, 32),
        (26, 2),
    ];
    for (at, value) in fields {
        sector[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    // Sectors of a cluster, tables, a fixed disk; an extended signature with serial number, label and kind.
    for (at, value) in
        [(13, 1), (16, 1), (21, 0xf8), (36, 0x80), (38, 0x29), (39, 1), (510, 0x55), (511, 0xaa)]
    {
        sector[at] = value;
    }
    sector[43..54].copy_from_slice(label);
    sector[54..62].copy_from_slice(b"FAT12   ");
    sector
}

/// Short name of the file; the guest shows the long one.
const SHORT: &[u8; 11] = b"FILE~1     ";

fn long_name(name: &str) -> [u8; 32] {
    let mut entry = [0; 32];
    // The last, and only, part of it.
    entry[0] = 0x41;
    entry[11] = ATTRIBUTE_LONG_NAME;
    entry[13] = SHORT.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let units = name.encode_utf16().chain([0]).chain(std::iter::repeat(0xffff));
    for (at, unit) in LONG_NAME.into_iter().zip(units) {
        entry[at..at + 2].copy_from_slice(&unit.to_le_bytes());
    }
    entry
}

fn file(first: u16, length: usize) -> [u8; 32] {
    let mut entry = [0; 32];
    entry[..11].copy_from_slice(SHORT);
    entry[11] = 0x20;
    entry[26..28].copy_from_slice(&first.to_le_bytes());
    entry[28..32].copy_from_slice(&u32::try_from(length).unwrap_or(0).to_le_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_directory_lead_to_the_content() {
        let content = vec![b'x'; 1100];
        let volume = volume("CIDATA", "user-data", &content).unwrap();
        assert_eq!((&volume[43..54], &volume[510..512]), (&b"CIDATA     "[..], &[0x55, 0xaa][..]));
        // Clusters 2, 3, 4: 3, 4, end; twelve bits each.
        assert_eq!(volume[512..520], [0xf8, 0xff, 0xff, 0x03, 0x40, 0x00, 0xff, 0x0f]);
        let file = &volume[1024 + 64..1024 + 96];
        assert_eq!((file[26], &file[28..32]), (2, &1100_u32.to_le_bytes()[..]));
        assert_eq!(volume[3 * SECTOR..][..1100], content);
        let name: Vec<u8> = LONG_NAME.iter().map(|at| volume[1024 + 32 + at]).collect();
        assert_eq!(name[..11], *b"user-data\0\xff");
        assert!(super::volume("CIDATA", "user-data", &[0; 64 << 10]).is_err());
    }
}
