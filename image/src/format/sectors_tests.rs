//! Tests of the change of a disk's sectors: a disk with the tree of a boot loader, and another reader of the table.

use super::*;
use crate::format::fat::tests::{plain, volume};
use gpt::disk::LogicalBlockSize;
use gpt::partition_types::{EFI, LINUX_ROOT_X64};

const MIB: u64 = 1 << 20;
const ESP: u64 = 264 * MIB;
/// One MiB, the ESP, four MiB of root, and what systemd-repart leaves behind them.
const BYTES: u64 = MIB + ESP + 4 * MIB + 20_480;
const ROOT: u64 = MIB + ESP;

fn disk() -> File {
    let disk = tempfile::tempfile().expect("temporary file");
    write_disk(&disk);
    disk
}

/// Makes an empty file a disk: an ESP of 264 MiB and a root.
pub(crate) fn write_disk(disk: &File) {
    disk.set_len(BYTES).expect("length");
    let own = disk.try_clone().expect("another descriptor");
    let mut table = gpt::GptConfig::new().writable(true).create_from_device(own, None).expect("a table");
    table.add_partition("esp", ESP, EFI, 0, Some(2048)).expect("room");
    table.add_partition("orlop_1", 4 * MIB, LINUX_ROOT_X64, 1 << 59, Some(2048)).expect("room");
    drop(table.write().expect("written"));
    for piece in fat::write(&volume(), ESP, 512, 4096).expect("fits") {
        disk.write_all_at(&piece.bytes, MIB + piece.offset).expect("written");
    }
    for (at, bytes) in
        [(0, &b"code"[..]), (510, &[0x55, 0xaa]), (ROOT, b"root"), (ROOT + 4 * MIB - 4, b"last")]
    {
        disk.write_all_at(bytes, at).expect("written");
    }
}

/// A partition: its number, its name, its flags, its first byte, its bytes.
type FoundPartition = (u32, String, u64, u64, u64);

/// Every partition, and the disk's GUID.
fn partitions(disk: &File, size: LogicalBlockSize) -> (Vec<FoundPartition>, String) {
    let own = disk.try_clone().expect("another descriptor");
    let config = gpt::GptConfig::new().logical_block_size(size).only_valid_headers(true);
    let table = config.open_from_device(own).expect("both copies are sound");
    let bytes = size.as_u64();
    let one = |(number, p): (&u32, &gpt::partition::Partition)| {
        let length = (p.last_lba - p.first_lba + 1) * bytes;
        (*number, p.name.clone(), p.flags, p.first_lba * bytes, length)
    };
    (table.partitions().iter().map(one).collect(), table.guid().to_string())
}

#[test]
fn partitions_stay_where_they_are() {
    // As it was built, and in a file that was made longer.
    for longer in [0, 64 * MIB] {
        let disk = disk();
        let before = partitions(&disk, LogicalBlockSize::Lb512);
        disk.set_len(BYTES + longer).expect("length");
        to_4096(&disk).expect("changed");
        assert_eq!(partitions(&disk, LogicalBlockSize::Lb4096), before);
        assert_eq!(before.0.len(), 2);

        let esp = fat::read(|offset, length| read_at(&disk, MIB + offset, length)).expect("sound");
        assert_eq!(plain(&esp), plain(&volume()));
        assert_eq!(esp.boot[11..13], [0, 16]);
        let at = |offset, length| read_at(&disk, offset, length).expect("there");
        assert_eq!((at(ROOT, 4), at(ROOT + 4 * MIB - 4, 4)), (b"root".to_vec(), b"last".to_vec()));
        // Boot code and mark of the MBR stay; its partition has the length of the disk.
        assert_eq!((at(0, 4), at(510, 2)), (b"code".to_vec(), vec![0x55, 0xaa]));
        let sectors = u32::try_from((BYTES + longer) / 4096 - 1).expect("small");
        assert_eq!(at(458, 4), sectors.to_le_bytes());
        // Nothing is left of the other table.
        assert_eq!((at(512, 512), at(BYTES - 512, 512)), (vec![0; 512], vec![0; 512]));
        assert!(to_4096(&disk).expect_err("it is no such disk any more").to_string().contains("512"));
    }
}

#[test]
fn other_disks_are_refused_before_anything_is_written() {
    let refusal = |disk: &File| to_4096(disk).expect_err("refused").to_string();
    let empty = tempfile::tempfile().expect("temporary file");
    empty.set_len(MIB).expect("length");
    assert!(refusal(&empty).contains("no GUID partition table"));
    empty.set_len(MIB + 512).expect("length");
    assert!(refusal(&empty).contains("multiple"));
    let damaged = disk();
    damaged.write_all_at(&[0x01], 1024 + 40).expect("written");
    assert!(refusal(&damaged).contains("damaged"));
    // A partition that begins where only small sectors do.
    let odd = tempfile::tempfile().expect("temporary file");
    odd.set_len(4 * MIB).expect("length");
    let own = odd.try_clone().expect("another descriptor");
    let mut table = gpt::GptConfig::new().writable(true).create_from_device(own, None).expect("a table");
    table.add_partition("odd", MIB, EFI, 0, None).expect("room");
    drop(table.write().expect("written"));
    let before = read_at(&odd, 0, 4 << 20).expect("there");
    assert!(refusal(&odd).contains("whole sectors"));
    assert_eq!(read_at(&odd, 0, 4 << 20).expect("there"), before);
}
