//! Opens the root through dm-verity and proves that it answers.

use super::devices::read_at;
use super::error::InitError;
use crate::plan::cmdline::RootHash;
use crate::plan::disk::{Disk, Slot};
use crate::plan::state::partition_name;
use crate::plan::verity::{self, Superblock};
use crate::sys::dm;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::symlink;

/// Name of the device below /dev/mapper.
pub const NAME: &str = "orlop-root";
/// Offset and magic of an erofs superblock.
const EROFS_MAGIC: (usize, [u8; 4]) = (1024, [0xe2, 0xe1, 0xf5, 0xe0]);
/// Programs without which nothing runs: read once through verity (they stay in the page cache for the start
/// that follows), so that damage in them is reported here and not by a crash of PID 1.
const VITAL: [&str; 3] =
    ["usr/lib/systemd/systemd", "usr/lib/systemd/systemd-executor", "usr/lib/orlop/orlop-init"];

/// The opened root.
#[derive(Clone, Debug)]
pub struct Opened {
    /// `/dev/dm-0`.
    pub device: String,
    /// The data partition below it, for messages.
    pub partition: String,
    /// For messages.
    pub roothash: RootHash,
}

impl Opened {
    fn corrupt(&self, what: impl Into<String>, source: io::Error) -> InitError {
        let (device, roothash) = (self.partition.clone(), self.roothash.to_string());
        InitError::Corrupt { device, roothash, what: what.into(), source }
    }
}

/// Reads the superblock, makes the device, reads its first and last block.
///
/// # Errors
/// The hash partition is unusable, device-mapper refused, or the content does not match.
pub fn open(roothash: RootHash, disk: &Disk, slot: &Slot) -> Result<Opened, InitError> {
    let path = |number| format!("/dev/{}", partition_name(&disk.name, number));
    let (data, hash) = (path(slot.root.number), path(slot.hash.number));
    let bytes = read_at(&hash, 0, verity::SUPERBLOCK_BYTES).map_err(|source| file("read", &hash, source))?;
    let refused = |source| InitError::Verity { device: hash.clone(), source };
    let superblock = Superblock::parse(&bytes).map_err(refused)?;
    let node = |number| {
        disk.node(number).ok_or(InitError::Kernel("find the partition's device", nix::Error::ENODEV))
    };
    let (data_node, hash_node) = (node(slot.root.number)?, node(slot.hash.number)?);
    let target =
        verity::table(&superblock, &roothash, data_node, hash_node, slot.root.length).map_err(refused)?;
    let control_path = "/dev/mapper/control";
    let control = OpenOptions::new().read(true).write(true).open(control_path);
    let control = control.map_err(|source| file("open", control_path, source))?;
    let (_, minor) = dm::create_read_only(&control, NAME, &superblock.dm_uuid(NAME), &target)?;
    // No other program makes the link: there is no udev here. It only helps people, so a failure is none.
    let _ = symlink(format!("../dm-{minor}"), format!("/dev/mapper/{NAME}"));
    let opened = Opened { device: format!("/dev/dm-{minor}"), partition: data, roothash };
    check_blocks(&opened, &superblock)?;
    Ok(opened)
}

fn file(action: &'static str, path: &str, source: io::Error) -> InitError {
    InitError::File { action, path: path.to_string(), source }
}

fn check_blocks(opened: &Opened, superblock: &Superblock) -> Result<(), InitError> {
    let block = u64::from(superblock.data_block);
    let read = |offset| read_at(&opened.device, offset, superblock.data_block.max(4096) as usize);
    let first = read(0).map_err(|e| opened.corrupt("first block", e))?;
    let last = superblock.data_bytes().saturating_sub(block.max(4096));
    read(last).map_err(|e| opened.corrupt("last block", e))?;
    let (at, magic) = EROFS_MAGIC;
    if first.get(at..at + 4) == Some(&magic) {
        Ok(())
    } else {
        Err(InitError::Root { device: opened.partition.clone(), what: "holds no erofs file system" })
    }
}

/// Reads the vital programs of the mounted root; returns the bytes read.
///
/// # Errors
/// One of them is missing or does not match.
pub fn check_programs(opened: &Opened, sysroot: &str) -> Result<u64, InitError> {
    let mut buffer = vec![0; 1 << 18];
    let mut total = 0;
    for program in VITAL {
        let path = format!("{sysroot}/{program}");
        // systemd before 255 has no executor of its own.
        if program.ends_with("-executor") && matches!(fs::exists(&path), Ok(false)) {
            continue;
        }
        let corrupt = |e| opened.corrupt(format!("/{program}"), e);
        let mut f = match File::open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(InitError::Root {
                    device: opened.partition.clone(),
                    what: "lacks systemd or orlop-init",
                });
            }
            other => other.map_err(corrupt)?,
        };
        loop {
            match f.read(&mut buffer).map_err(corrupt)? {
                0 => break,
                n => total += n as u64,
            }
        }
    }
    Ok(total)
}
