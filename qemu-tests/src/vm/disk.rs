//! Disks of a VM: copy-on-write layers over the built image, and damage done to them on purpose.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::process::must;
use crate::run::Run;

/// One partition of a GPT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
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

/// Makes a copy-on-write layer over `base` with `gib` GiB.
///
/// # Errors
/// If qemu-img fails.
pub fn overlay(run: &Arc<Run>, base: &Path, layer: &Path, gib: u32) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .arg(base)
        .arg(layer)
        .arg(format!("{gib}G"));
    must(run, &mut command).map(|_| ())
}

/// Writes `length` bytes of `pattern` at `offset` of a layer.
///
/// # Errors
/// If qemu-io fails.
pub fn damage(run: &Arc<Run>, layer: &Path, offset: u64, length: u64, pattern: u8) -> Result<()> {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "qcow2", "-c", &format!("write -q -P {pattern} {offset} {length}")]).arg(layer);
    must(run, &mut command).map(|_| ())
}

/// Reads the first `length` bytes at `offset` of a layer, as the guest would see them.
///
/// # Errors
/// If qemu-img fails.
pub fn read(run: &Arc<Run>, layer: &Path, offset: u64, length: u64, scratch: &Path) -> Result<Vec<u8>> {
    let mut command = Command::new("qemu-img");
    command
        .args(["dd", "-f", "qcow2", "-O", "raw", "bs=4096"])
        .arg(format!("skip={}", offset / 4096))
        .arg(format!("count={}", (offset + length).div_ceil(4096)))
        .arg(format!("if={}", layer.display()))
        .arg(format!("of={}", scratch.display()));
    must(run, &mut command)?;
    let bytes = std::fs::read(scratch).with_context(|| format!("read {}", scratch.display()))?;
    let from = usize::try_from(offset % 4096)?;
    Ok(bytes.get(from..from + usize::try_from(length)?).context("the disk is shorter than that")?.to_vec())
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
    fn a_partition_table_is_read() {
        let mut head = vec![0_u8; 1 << 20];
        head[512..520].copy_from_slice(b"EFI PART");
        head[512 + 72..512 + 80].copy_from_slice(&2_u64.to_le_bytes());
        head[512 + 80..512 + 84].copy_from_slice(&128_u32.to_le_bytes());
        head[512 + 84..512 + 88].copy_from_slice(&128_u32.to_le_bytes());
        head[1024..1152].copy_from_slice(&entry("esp", 2048, 4095));
        head[1152 + 128..1152 + 256].copy_from_slice(&entry("orlop_1", 4096, 4096));
        let found = parse_gpt(&head).unwrap();
        assert_eq!(found[0], Partition { label: "esp".into(), start: 1 << 20, length: 1 << 20 });
        assert_eq!(found[1], Partition { label: "orlop_1".into(), start: 2 << 20, length: 512 });
        assert_eq!(found.len(), 2);
        assert_eq!(parse_gpt(&head[1024..]), None);
    }
}
