//! For tests: a node's disk in a file, with two slots, an ESP with whole chains, and a boot record; and a release for it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use orlop_config::release::{
    HexDigest, ROOT_FILE, ReleaseDocument, SBOM_FILE, UKI_BLOCKS_FILE, UKI_FILE, VERITY_FILE, release_path,
};
use orlop_config::slots::{BootRecord, RING_BYTES, SlotName, SlotState, latest};
use orlop_init::plan::arbiter::{BootedSlot, SlotEntries, SlotEntry, SlotVerdict, judge};
use orlop_init::plan::disk::EMPTY_LABEL;
use orlop_init::plan::esp::{EspDirectory, UKI_CHAIN_BYTES};
use orlop_init::plan::esp_names::{ENTRY, EntryState, file_name, long_entries, short_name};
use orlop_init::plan::gpt::{Table, crc32, read_table};
use orlop_init::plan::gpt_change::Editor;
use orlop_init::plan::guid::{Guid, TYPE_BOOT_RECORD, TYPE_ESP, TYPE_ROOT, TYPE_ROOT_VERITY, TYPE_VAR};

use super::directory::MountedDirectory;
use super::disk::SlotDisk;
use super::slot::blocks::{BLOCK, digest};
use super::slot::record::tests::release;
use super::slot::tree::tests::{SALT, data, grown};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SECTOR: u64 = 512;
/// Partitions: type, label, MiB.
pub(crate) const LAYOUT: [(Guid, &str, u64); 7] = [
    (TYPE_ESP, "esp", 132),
    (TYPE_ROOT, "orlop_0.1.0", 1),
    (TYPE_ROOT_VERITY, "orlop_0.1.0_verity", 1),
    (TYPE_ROOT, EMPTY_LABEL, 1),
    (TYPE_ROOT_VERITY, EMPTY_LABEL, 1),
    (TYPE_BOOT_RECORD, "orlop-boot", 1),
    (TYPE_VAR, "orlop-state", 1),
];
/// Blocks of a slot.
pub(crate) const BLOCKS: usize = 256;
/// Clusters of the ESP are blocks; this many sectors are in front of the first one.
pub(crate) const FRONT: u64 = RESERVED + 2 * TABLE;
/// Sectors in front of the tables.
pub(crate) const RESERVED: u64 = 8;
/// Sectors of a table of the ESP.
pub(crate) const TABLE: u64 = 264;
pub(crate) const FIRST_A: u32 = 5;
pub(crate) const CHAIN: u32 = UKI_CHAIN_BYTES / 4096;
/// Bytes of the running UKI.
pub(crate) const UKI_A: u32 = 9 * 4096 + 100;

pub(crate) struct Node {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) disk: PathBuf,
    /// Where the partitions begin, bytes.
    pub(crate) starts: Vec<u64>,
}

pub(crate) fn directory_entry(short: &[u8; 11], attributes: u8, cluster: u32, bytes: u32) -> Vec<u8> {
    let mut entry = vec![0; ENTRY];
    entry[..11].copy_from_slice(short);
    entry[11] = attributes;
    let [a, b, c, d] = cluster.to_le_bytes();
    (entry[26], entry[27], entry[20], entry[21]) = (a, b, c, d);
    entry[28..32].copy_from_slice(&bytes.to_le_bytes());
    entry
}

/// The root file system of the running slot, and the release's: 40 blocks of it are the same, elsewhere.
pub(crate) fn roots() -> [Vec<u8>; 2] {
    let running = data(60);
    let mut next: Vec<u8> = (0..40).flat_map(|n| vec![n + 100u8; BLOCK]).collect();
    next.extend(&running[10 * BLOCK..50 * BLOCK]);
    [running, next].map(|mut root| {
        root.resize(BLOCKS * BLOCK, 0);
        root
    })
}

/// The running UKI, and the release's: 8 blocks of it are the same.
pub(crate) fn ukis() -> [Vec<u8>; 2] {
    let running: Vec<u8> = (0..UKI_A).map(|n| u8::try_from(n / 4096 + 1).expect("small")).collect();
    let mut next = vec![0xaa; 4 * BLOCK];
    next.extend(&running[..8 * BLOCK]);
    next.extend(vec![0xbb; 77]);
    [running, next]
}

impl Node {
    pub(crate) fn new() -> Node {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let disk = dir.path().join("disk");
        let file = File::create(&disk).expect("made");
        let starts = table(&file);
        esp(&file, starts[0]);
        let [root, _] = roots();
        let (tree, _) = grown(&root);
        let [uki, _] = ukis();
        file.write_all_at(&root, starts[1]).expect("written");
        file.write_all_at(&tree, starts[2]).expect("written");
        file.write_all_at(&uki, starts[0] + cluster(FIRST_A)).expect("written");
        let mut record = BootRecord::new(SlotName::A);
        record.floor = 2;
        let write = record.write(None).expect("fits");
        file.write_all_at(&write.bytes, starts[5] + write.offset).expect("written");
        Node { dir, disk, starts }
    }

    pub(crate) fn slots(&self) -> SlotDisk {
        SlotDisk::of_file(&self.disk, 2, 3).expect("a disk of two slots")
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        File::open(&self.disk).and_then(|f| f.read_exact_at(&mut bytes, offset)).expect("read");
        bytes
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(&self.disk).expect("open");
        file.write_all_at(bytes, offset).expect("written");
    }

    pub(crate) fn record(&self) -> BootRecord {
        let ring = self.read(self.starts[5], RING_BYTES);
        BootRecord::parse(latest(&ring).expect("a record").payload).expect("readable")
    }

    pub(crate) fn set_record(&self, change: impl FnOnce(&mut BootRecord)) {
        let mut record = self.record();
        let ring = self.read(self.starts[5], RING_BYTES);
        change(&mut record);
        let write = record.write(latest(&ring).map(|found| found.position)).expect("fits");
        self.write(self.starts[5] + write.offset, &write.bytes);
    }

    pub(crate) fn table(&self) -> Table {
        let bytes = fs::metadata(&self.disk).expect("there").len();
        read_table(bytes, 512, |offset, length| Some(self.read(offset, length))).expect("sound")
    }

    /// A digest of each MiB.
    pub(crate) fn digests(&self) -> Vec<[u8; 32]> {
        let length = fs::metadata(&self.disk).expect("there").len();
        (0..length / MIB).map(|n| digest(&[0; 32], &self.read(n * MIB, 1 << 20))).collect()
    }

    pub(crate) fn names(&self) -> EspDirectory {
        let read = |offset: u64, length: usize| Some(self.read(self.starts[0] + offset, length));
        EspDirectory::read(read).expect("sound")
    }

    /// Slot B as after an update: good, and to be seen by the loader.
    pub(crate) fn show_b(&self) {
        let (_, write) = self.names().renamed(SlotName::B, EntryState::Behind, 5000).expect("a write");
        self.write(self.starts[0] + write.offset, &write.bytes);
        self.set_record(|record| record.b.state = SlotState::Good);
        let bytes = fs::metadata(&self.disk).expect("there").len();
        let mut table = Editor::read(bytes, 512, |at, length| Some(self.read(at, length))).expect("sound");
        table.relabel(4, "orlop_0.0.9").expect("there");
        table.writes().iter().for_each(|write| self.write(write.offset, &write.bytes));
    }

    /// What a boot of this disk does: slot A goes on.
    pub(crate) fn check_boot(&self) {
        let (record, names) = (self.record(), self.names());
        let entry = |slot| names.entry(slot).map(|e| SlotEntry { state: e.state, bytes: e.bytes });
        let entries = SlotEntries { a: entry(SlotName::A), b: entry(SlotName::B) };
        assert_eq!(entries.a, Some(SlotEntry { state: EntryState::Good, bytes: UKI_A }));
        // As init finds it: a label that is missing makes it forget the record.
        let other_filled = self.table().partitions[3].label != EMPTY_LABEL;
        let booted = BootedSlot { name: SlotName::A, roothash: "11", other_filled };
        let judged = judge(Some(&record), &booted, &entries);
        assert_eq!(judged.verdict, SlotVerdict::Go { trial: false });
        assert!(judged.said.iter().all(|words| !words.contains("another installation")), "{:?}", judged.said);
        assert_eq!((record.desired, record.a.state), (SlotName::A, SlotState::Good));
        let ([root, _], [uki, _]) = (roots(), ukis());
        assert!(self.read(self.starts[1], root.len()) == root, "root of slot A");
        assert!(self.read(self.starts[0] + cluster(FIRST_A), uki.len()) == uki, "UKI of slot A");
        // A slot that is not as its record says is not to be seen.
        if record.b.state != SlotState::Good {
            assert_eq!(entries.b.map(|e| e.state), Some(EntryState::Hidden));
        }
    }

    /// A published release with this root and UKI.
    pub(crate) fn publish(&self) -> (MountedDirectory, ReleaseDocument) {
        let [_, uki] = ukis();
        self.publish_with(uki)
    }

    /// The same with another UKI.
    pub(crate) fn publish_with(&self, uki: Vec<u8>) -> (MountedDirectory, ReleaseDocument) {
        let [_, root] = roots();
        self.publish_as(release(), &root, uki)
    }

    /// A published release like `like`, with this root and UKI. At most 80 blocks of the root are used.
    pub(crate) fn publish_as(
        &self,
        like: ReleaseDocument,
        root: &[u8],
        uki: Vec<u8>,
    ) -> (MountedDirectory, ReleaseDocument) {
        let (tree, parameters) = grown(root);
        let mut release = ReleaseDocument { root: parameters, ..like };
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&tree).expect("packed");
        let mut padded = uki.clone();
        padded.resize(uki.len().next_multiple_of(BLOCK), 0);
        let list: Vec<u8> = padded.chunks(BLOCK).flat_map(|block| digest(&SALT, block)).collect();
        let files = [
            (ROOT_FILE, root[..80 * BLOCK].to_vec()),
            (VERITY_FILE, packed.finish().expect("packed")),
            (UKI_FILE, uki),
            (UKI_BLOCKS_FILE, list),
            (SBOM_FILE, b"{}".to_vec()),
        ];
        for (name, content) in files {
            let path =
                self.dir.path().join("served").join(release_path(release.version, &release.arch, name));
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(&path, &content).expect("written");
            let file = release.files.iter_mut().find(|file| file.name == name).expect("in the list");
            file.size = content.len() as u64;
            let sum = ring::digest::digest(&ring::digest::SHA256, &content);
            file.sha256 = HexDigest(sum.as_ref().try_into().expect("32 bytes"));
        }
        (MountedDirectory::new(&self.dir.path().join("served")), release)
    }

    pub(crate) fn served(&self, release: &ReleaseDocument, name: &str) -> PathBuf {
        self.dir.path().join("served").join(release_path(release.version, &release.arch, name))
    }

    /// What a node that has booted slot B would find there.
    pub(crate) fn check_target(&self, release: &ReleaseDocument) {
        let ([_, root], [_, uki]) = (roots(), ukis());
        let (tree, _) = grown(&root);
        assert!(self.read(self.starts[3], root.len()) == root, "root");
        assert!(self.read(self.starts[4], tree.len()) == tree, "tree");
        assert!(self.read(self.starts[0] + cluster(FIRST_A + CHAIN), uki.len()) == uki, "UKI");
        let table = self.table();
        let hash = release.root.hash.to_string();
        for (number, half, label) in [(4, &hash[..32], "orlop_0.2.0"), (5, &hash[32..], "orlop_0.2.0_verity")]
        {
            let partition = table.partitions.iter().find(|p| p.number == number).expect("there");
            let guid = partition.partuuid.to_string().replace('-', "");
            assert_eq!((guid.as_str(), partition.label.as_str()), (half, label));
        }
        let record = self.record();
        assert_eq!((record.desired, record.a.state, record.floor), (SlotName::A, SlotState::Good, 2));
        let b = record.b;
        assert_eq!((b.state, b.version.as_str(), b.generation), (SlotState::Staged, "0.2.0", 3));
        assert_eq!((b.roothash, b.uki_bytes), (hash, uki.len() as u64));
        assert!(record.trial.is_none());
    }
}

/// Writes a partition table; returns where the partitions begin.
pub(crate) fn table(file: &File) -> Vec<u64> {
    let total = (2 + LAYOUT.iter().map(|(_, _, size)| size).sum::<u64>()) * MIB;
    file.set_len(total).expect("a hole");
    let (mut entries, mut start, mut starts) = (vec![0; 128 * 128], MIB, Vec::new());
    for ((type_guid, label, size), number) in LAYOUT.into_iter().zip(0u8..) {
        let entry = &mut entries[usize::from(number) * 128..][..128];
        entry[..16].copy_from_slice(&type_guid.to_disk());
        entry[16..32].copy_from_slice(&Guid([number + 1; 16]).to_disk());
        entry[32..40].copy_from_slice(&(start / SECTOR).to_le_bytes());
        entry[40..48].copy_from_slice(&((start + size * MIB) / SECTOR - 1).to_le_bytes());
        for (unit, place) in label.encode_utf16().zip(entry[56..].chunks_exact_mut(2)) {
            place.copy_from_slice(&unit.to_le_bytes());
        }
        starts.push(start);
        start += size * MIB;
    }
    let last = total / SECTOR - 1;
    for (lba, other, entries_lba) in [(1, last, 2), (last, 1, last - 32)] {
        let mut header = vec![0; 512];
        let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
        put(0, b"EFI PART");
        put(8, &0x1_0000u32.to_le_bytes());
        put(12, &92u32.to_le_bytes());
        for (at, value) in [(24, lba), (32, other), (40, 34), (48, last - 33), (72, entries_lba)] {
            put(at, &u64::to_le_bytes(value));
        }
        put(56, &[9; 16]);
        put(80, &128u32.to_le_bytes());
        put(84, &128u32.to_le_bytes());
        put(88, &crc32(&entries).to_le_bytes());
        let sum = crc32(&header[..92]);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&header, lba * SECTOR).expect("written");
        file.write_all_at(&entries, entries_lba * SECTOR).expect("written");
    }
    starts
}

/// Where a cluster of the ESP begins.
pub(crate) fn cluster(number: u32) -> u64 {
    FRONT * SECTOR + u64::from(number - 2) * 4096
}

/// Writes an ESP with slot A's UKI to be seen and slot B's hidden.
pub(crate) fn esp(file: &File, start: u64) {
    let mut boot = vec![0; 512];
    boot[510..512].copy_from_slice(&[0x55, 0xaa]);
    boot[11..13].copy_from_slice(&512u16.to_le_bytes());
    (boot[13], boot[14], boot[16], boot[44]) = (8, 8, 2, 2);
    boot[36..40].copy_from_slice(&u32::try_from(TABLE).expect("small").to_le_bytes());
    let mut links = vec![0u32; usize::try_from(TABLE * SECTOR / 4).expect("small")];
    links[2..5].fill(0x0fff_ffff);
    for first in [FIRST_A, FIRST_A + CHAIN] {
        for at in first..first + CHAIN {
            links[at as usize] = if at + 1 == first + CHAIN { 0x0fff_ffff } else { at + 1 };
        }
    }
    let links: Vec<u8> = links.into_iter().flat_map(u32::to_le_bytes).collect();
    let directory = |name: &[u8; 11], cluster| directory_entry(name, 0x10, cluster, 0);
    let mut linux = [directory(b".          ", 4), directory(b"..         ", 3)].concat();
    for (slot, state, first, bytes) in [
        (SlotName::A, EntryState::Good, FIRST_A, UKI_A),
        (SlotName::B, EntryState::Hidden, FIRST_A + CHAIN, UKI_CHAIN_BYTES),
    ] {
        let short = short_name(slot, state);
        linux.extend(long_entries(&file_name(slot, state), &short).concat());
        linux.extend(directory_entry(&short, 0x20, first, bytes));
    }
    for (offset, bytes) in [
        (0, boot),
        (RESERVED * SECTOR, links.clone()),
        ((RESERVED + TABLE) * SECTOR, links),
        (cluster(2), directory(b"EFI        ", 3)),
        (cluster(3), directory(b"LINUX      ", 4)),
        (cluster(4), linux),
    ] {
        file.write_all_at(&bytes, start + offset).expect("written");
    }
}
