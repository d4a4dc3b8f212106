//! Block device ioctls: partitions in the kernel's list, erasing of ranges, growing of a mounted ext4.
#![allow(unsafe_code)]

use crate::plan::gpt::Partition;
use nix::errno::Errno;
use nix::libc;
use std::fs::File;
use std::os::fd::AsRawFd;

/// `struct blkpg_partition` of linux/blkpg.h.
#[repr(C)]
struct BlkpgPartition {
    start: i64,
    length: i64,
    pno: i32,
    devname: [u8; 64],
    volname: [u8; 64],
}

/// `struct blkpg_ioctl_arg` of linux/blkpg.h.
#[repr(C)]
struct BlkpgArg {
    op: i32,
    flags: i32,
    datalen: i32,
    data: *mut BlkpgPartition,
}

const BLKPG: libc::Ioctl = 0x1269;
const BLKPG_ADD_PARTITION: i32 = 1;
const BLKPG_DEL_PARTITION: i32 = 2;
const BLKPG_RESIZE_PARTITION: i32 = 3;

/// Makes the kernel show a partition that it did not find by itself.
///
/// # Errors
/// The kernel's answer; `EBUSY` if it overlaps one that is there, `EINVAL` if a number does not fit.
pub fn add_partition(disk: &File, partition: &Partition) -> Result<(), Errno> {
    blkpg(disk, BLKPG_ADD_PARTITION, partition)
}

/// Makes the kernel forget a partition that is not in use.
///
/// # Errors
/// The kernel's answer; `EBUSY` if the partition is in use.
pub fn remove_partition(disk: &File, partition: &Partition) -> Result<(), Errno> {
    blkpg(disk, BLKPG_DEL_PARTITION, partition)
}

/// Gives the kernel a partition's new length; the partition may be in use.
///
/// # Errors
/// The kernel's answer.
pub fn resize_partition(disk: &File, partition: &Partition) -> Result<(), Errno> {
    blkpg(disk, BLKPG_RESIZE_PARTITION, partition)
}

fn blkpg(disk: &File, op: i32, partition: &Partition) -> Result<(), Errno> {
    let invalid = |_| Errno::EINVAL;
    let mut data = BlkpgPartition {
        start: i64::try_from(partition.start).map_err(invalid)?,
        length: i64::try_from(partition.length).map_err(invalid)?,
        pno: i32::try_from(partition.number).map_err(invalid)?,
        devname: [0; 64],
        volname: [0; 64],
    };
    let datalen = i32::try_from(size_of::<BlkpgPartition>()).map_err(invalid)?;
    let arg = BlkpgArg { op, flags: 0, datalen, data: &raw mut data };
    // SAFETY: BLKPG reads `arg` and `datalen` bytes behind `data`; both live until the call returns.
    let result = unsafe { libc::ioctl(disk.as_raw_fd(), BLKPG, &raw const arg) };
    Errno::result(result).map(drop)
}

/// Drops what the kernel keeps in memory of a whole disk. Each partition's device has a cache of its own, so the
/// disk's cache keeps old data after a write through a partition.
///
/// # Errors
/// The kernel's answer.
pub fn drop_cache(disk: &File) -> Result<(), Errno> {
    let code = nix::request_code_none!(0x12, 97);
    // SAFETY: BLKFLSBUF takes no argument.
    let result = unsafe { libc::ioctl(disk.as_raw_fd(), code) };
    Errno::result(result).map(drop)
}

/// How a range of a disk loses its bytes (linux/fs.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeErasure {
    /// `BLKSECDISCARD`: the device erases its copies, too.
    SecureDiscard,
    /// `BLKDISCARD`: nobody wants the blocks any more. What is read then may be anything.
    Discard,
    /// `BLKZEROOUT`: zeros are read.
    Zeros,
}

/// Erases a range of a disk, offset and length in bytes; both are multiples of its sector.
///
/// # Errors
/// The kernel's answer; `EOPNOTSUPP` if the device cannot do it so.
pub fn erase_range(disk: &File, how: RangeErasure, offset: u64, length: u64) -> Result<(), Errno> {
    let code = match how {
        RangeErasure::SecureDiscard => nix::request_code_none!(0x12, 125),
        RangeErasure::Discard => nix::request_code_none!(0x12, 119),
        RangeErasure::Zeros => nix::request_code_none!(0x12, 127),
    };
    let range = [offset, length];
    // SAFETY: each of the three reads two 64-bit numbers behind the pointer, which live until the call returns.
    let result = unsafe { libc::ioctl(disk.as_raw_fd(), code, range.as_ptr()) };
    Errno::result(result).map(drop)
}

/// Grows a mounted ext4 to `blocks` blocks of its own size. `mount_point` is any open file in it.
///
/// # Errors
/// The kernel's answer.
pub fn ext4_resize(mount_point: &File, blocks: u64) -> Result<(), Errno> {
    let code = nix::request_code_write!(b'f', 16, size_of::<u64>());
    // SAFETY: the kernel reads eight bytes behind the pointer, which lives until the call returns.
    let result = unsafe { libc::ioctl(mount_point.as_raw_fd(), code, &raw const blocks) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernel_s_size() {
        assert_eq!((size_of::<BlkpgPartition>(), size_of::<BlkpgArg>()), (152, 24));
    }

    #[test]
    fn other_files_refuse() {
        let file = tempfile::tempfile().expect("temporary file");
        let p = Partition {
            number: 1,
            type_guid: crate::plan::guid::TYPE_VAR,
            partuuid: crate::plan::guid::TYPE_VAR,
            label: String::new(),
            start: 0,
            length: 512,
        };
        assert_eq!(add_partition(&file, &p), Err(Errno::ENOTTY));
        assert_eq!(add_partition(&file, &Partition { start: u64::MAX, ..p }), Err(Errno::EINVAL));
        for how in [RangeErasure::SecureDiscard, RangeErasure::Discard, RangeErasure::Zeros] {
            assert_eq!(erase_range(&file, how, 0, 512), Err(Errno::ENOTTY));
        }
    }
}
