//! The built disk's ESP is written again: with a file for each slot (docs/reference/boot.md, "Slots"), and with signed programs.
//!
//! In: the disk as mkosi leaves it. Out: the same file with another ESP; nothing else of the disk is touched. What was written
//! is read back as init reads it.

use crate::format::fat::{self, Volume};
use crate::format::sectors::clear;
use crate::format::two_slots::two_slots;
use anyhow::{Context, Result, ensure};
use orlop_config::slots::SlotName;
use orlop_init::plan::esp::{EspDirectory, UKI_CHAIN_BYTES};
use orlop_init::plan::gpt::read_table;
use orlop_init::plan::guid::TYPE_ESP;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Logical sector of the image, bytes (`mkosi/disk/mkosi.conf`).
const SECTOR: u32 = 512;
/// Bytes of a cluster: as on disks with sectors of 4096 bytes, and as few as a chain of 64 MiB can have here.
const CLUSTER: u32 = 4096;

/// Gives each slot its file. `disk` must be readable and writable.
///
/// # Errors
/// The disk has no ESP with one UKI, or cannot be read or written.
pub(super) fn lay_out(disk: &File) -> Result<()> {
    rewrite(disk, two_slots)
}

/// Writes the ESP again, with another tree in which each slot has its file. `disk` must be readable and writable.
///
/// # Errors
/// The disk has no ESP, its tree cannot be changed, or the disk cannot be read or written.
pub(crate) fn rewrite(disk: &File, change: impl FnOnce(Volume) -> Result<Volume>) -> Result<()> {
    let bytes = disk.metadata().context("reading the disk's length")?.len();
    let read_at = |offset: u64, length: usize| {
        let mut buffer = vec![0; length];
        disk.read_exact_at(&mut buffer, offset).map(|()| buffer)
    };
    let table = read_table(bytes, SECTOR, |offset, length| read_at(offset, length).ok());
    let table = table.context("the partition table of the disk")?;
    let esp = table.partitions.iter().find(|p| p.type_guid == TYPE_ESP).context("the disk has no ESP")?;
    let volume =
        fat::read(|offset, length| read_at(esp.start + offset, length)).context("reading the ESP")?;
    let pieces = fat::write(&change(volume)?, esp.length, SECTOR, CLUSTER).context("making the ESP")?;
    clear(disk, esp.start..esp.start + esp.length)?;
    for piece in pieces {
        disk.write_all_at(&piece.bytes, esp.start + piece.offset).context("writing the ESP")?;
    }
    let read = |offset: u64, length: usize| read_at(esp.start + offset, length).ok();
    let directory = EspDirectory::read(read).context("reading the new ESP")?;
    for slot in SlotName::ALL {
        let entry = directory.entry(slot).with_context(|| format!("the new ESP has no slot {slot}"))?;
        let whole = directory.geometry().is_contiguous(&read, entry.first_cluster, UKI_CHAIN_BYTES)?;
        ensure!(whole, "the new ESP's chain of slot {slot} is not whole");
    }
    Ok(())
}
