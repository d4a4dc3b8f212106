//! Disks of a VM: sparse copies of the built image, and damage done to them on purpose.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::process::must;
use crate::run::Run;

/// One partition of a GPT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1.
    pub number: usize,
    /// Name of the partition.
    pub label: String,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

const SECTOR: u64 = 512;

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The partitions in the first megabyte of a disk with 512-byte sectors. Pure.
#[must_use]
pub fn parse_gpt(head: &[u8]) -> Option<Vec<Partition>> {
    let header = head.get(512..1024)?;
    if !header.starts_with(b"EFI PART") {
        return None;
    }
    let table = usize::try_from(u64_at(header, 72)? * SECTOR).ok()?;
    let (count, size) = (u32_at(header, 80)? as usize, u32_at(header, 84)? as usize);
    let mut found = Vec::new();
    for n in 0..count {
        let entry = head.get(table + n * size..table + (n + 1) * size)?;
        if entry.get(..16)?.iter().all(|b| *b == 0) {
            continue;
        }
        let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
        let units =
            entry.get(56..128)?.chunks(2).map(|c| u16::from_le_bytes([c[0], c[1]])).take_while(|u| *u != 0);
        let label = char::decode_utf16(units).map(|c| c.unwrap_or('?')).collect();
        found.push(Partition {
            number: n + 1,
            label,
            start: first * SECTOR,
            length: (last + 1).checked_sub(first)? * SECTOR,
        });
    }
    Some(found)
}

/// The partitions of a raw disk image.
///
/// # Errors
/// If it has no GPT.
pub fn partitions(raw: &Path) -> Result<Vec<Partition>> {
    let mut head = vec![0; 1 << 20];
    let mut file = File::open(raw).with_context(|| format!("open {}", raw.display()))?;
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut head).with_context(|| format!("read {}", raw.display()))?;
    parse_gpt(&head).with_context(|| format!("{} has no GPT", raw.display()))
}

/// Makes a VM's own disk: a sparse copy of the built image, grown to `gib` GiB.
///
/// # Errors
/// If it cannot be copied.
pub fn copy(run: &Arc<Run>, base: &Path, disk: &Path, gib: u64) -> Result<()> {
    must(run, Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(base).arg(disk))?;
    let file = File::options().write(true).open(disk).with_context(|| format!("open {}", disk.display()))?;
    file.set_len(gib << 30).with_context(|| format!("grow {}", disk.display()))
}

/// Makes a VM's disk larger by `mib` MiB, as a cloud does with a volume.
///
/// # Errors
/// If it cannot be changed.
pub fn grow(disk: &Path, mib: u64) -> Result<()> {
    let file = File::options().write(true).open(disk).with_context(|| format!("open {}", disk.display()))?;
    let length = file.metadata()?.len();
    file.set_len(length + (mib << 20)).with_context(|| format!("grow {}", disk.display()))
}

/// Inverts every bit of `length` bytes at `offset`; done twice it is undone.
///
/// # Errors
/// If the disk cannot be read or written.
pub fn invert(disk: &Path, offset: u64, length: usize) -> Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(disk)
        .with_context(|| format!("open {}", disk.display()))?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).with_context(|| format!("read {}", disk.display()))?;
    bytes.iter_mut().for_each(|b| *b = !*b);
    file.write_all_at(&bytes, offset).with_context(|| format!("write {}", disk.display()))
}

/// SHA-256 of `length` bytes at `offset`.
///
/// # Errors
/// If the disk is shorter.
pub fn digest(disk: &Path, offset: u64, length: u64) -> Result<String> {
    let mut file = File::open(disk).with_context(|| format!("open {}", disk.display()))?;
    file.seek(SeekFrom::Start(offset))?;
    let mut hash = Sha256::new();
    let mut left = length;
    let mut chunk = vec![0; 1 << 20];
    while left > 0 {
        let n = usize::try_from(left.min(chunk.len() as u64))?;
        file.read_exact(&mut chunk[..n]).with_context(|| format!("read {}", disk.display()))?;
        hash.update(&chunk[..n]);
        left -= n as u64;
    }
    Ok(hex::encode(hash.finalize()))
}

/// Deletes the entry of a partition (both copies of the table); its content stays.
///
/// # Errors
/// If sfdisk fails.
pub fn delete_partition(run: &Arc<Run>, disk: &Path, number: usize) -> Result<()> {
    must(run, Command::new("sfdisk").args(["--quiet", "--delete"]).arg(disk).arg(number.to_string()))
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(label: &str, first: u64, last: u64) -> Vec<u8> {
        let mut e = vec![1_u8; 16];
        e.resize(32, 2);
        e.extend(first.to_le_bytes());
        e.extend(last.to_le_bytes());
        e.extend([0; 8]);
        for unit in label.encode_utf16() {
            e.extend(unit.to_le_bytes());
        }
        e.resize(128, 0);
        e
    }

    #[test]
    fn damage_changes_what_it_names_and_can_be_undone() {
        let path = std::env::temp_dir().join(format!("orlop-disk-{}", std::process::id()));
        std::fs::write(&path, vec![7_u8; 8192]).unwrap();
        let (first, second) = (digest(&path, 0, 4096).unwrap(), digest(&path, 4096, 4096).unwrap());
        invert(&path, 5000, 2).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[4999..5003], [7, !7, !7, 7]);
        assert_eq!(digest(&path, 0, 4096).unwrap(), first);
        assert_ne!(digest(&path, 4096, 4096).unwrap(), second);
        invert(&path, 5000, 2).unwrap();
        assert_eq!(digest(&path, 4096, 4096).unwrap(), second);
        assert!(digest(&path, 4096, 8192).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_partition_table_is_read() {
        let mut head = vec![0_u8; 1 << 20];
        head[512..520].copy_from_slice(b"EFI PART");
        head[512 + 72..512 + 80].copy_from_slice(&2_u64.to_le_bytes());
        head[512 + 80..512 + 84].copy_from_slice(&128_u32.to_le_bytes());
        head[512 + 84..512 + 88].copy_from_slice(&128_u32.to_le_bytes());
        head[1024..1152].copy_from_slice(&entry("esp", 2048, 4095));
        head[1152 + 128..1152 + 256].copy_from_slice(&entry("orlop_1", 4096, 4096));
        let found = parse_gpt(&head).unwrap();
        assert_eq!(found[0], Partition { number: 1, label: "esp".into(), start: 1 << 20, length: 1 << 20 });
        assert_eq!(found[1], Partition { number: 3, label: "orlop_1".into(), start: 2 << 20, length: 512 });
        assert_eq!(found.len(), 2);
        assert_eq!(parse_gpt(&head[1024..]), None);
    }
}
