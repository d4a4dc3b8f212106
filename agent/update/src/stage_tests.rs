//! Tests of staging on a disk in a file: two slots, an ESP with whole chains, a boot record.

use super::*;
use crate::directory::MountedDirectory;
use crate::slot::record::tests::release;
use crate::slot::tree::tests::{SALT, data, grown};
use agent_faults::{Refusal, refusing};
use flate2::Compression;
use flate2::write::GzEncoder;
use orlop_config::release::{HexDigest, SBOM_FILE};
use orlop_config::slots::{BootRecord, RING_BYTES, SlotState, latest};
use orlop_init::plan::arbiter::{BootedSlot, SlotEntries, SlotEntry, SlotVerdict, judge};
use orlop_init::plan::disk::EMPTY_LABEL;
use orlop_init::plan::esp::EspDirectory;
use orlop_init::plan::esp_names::{ENTRY, EntryState, file_name, long_entries, short_name};
use orlop_init::plan::gpt::{crc32, read_table};
use orlop_init::plan::guid::{Guid, TYPE_BOOT_RECORD, TYPE_ESP, TYPE_ROOT, TYPE_ROOT_VERITY, TYPE_VAR};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// Partitions: type, label, MiB.
const LAYOUT: [(Guid, &str, u64); 7] = [
    (TYPE_ESP, "esp", 132),
    (TYPE_ROOT, "orlop_0.1.0", 1),
    (TYPE_ROOT_VERITY, "orlop_0.1.0_verity", 1),
    (TYPE_ROOT, EMPTY_LABEL, 1),
    (TYPE_ROOT_VERITY, EMPTY_LABEL, 1),
    (TYPE_BOOT_RECORD, "orlop-boot", 1),
    (TYPE_VAR, "orlop-state", 1),
];
/// Blocks of a slot.
const BLOCKS: usize = 256;
/// Clusters of the ESP are blocks; this many sectors are in front of the first one.
const FRONT: u64 = RESERVED + 2 * TABLE;
/// Sectors in front of the tables.
const RESERVED: u64 = 8;
/// Sectors of a table of the ESP.
const TABLE: u64 = 264;
const FIRST_A: u32 = 5;
const CHAIN: u32 = UKI_CHAIN_BYTES / 4096;
/// Bytes of the running UKI.
const UKI_A: u32 = 9 * 4096 + 100;

struct Node {
    dir: tempfile::TempDir,
    disk: PathBuf,
    /// Where the partitions begin, bytes.
    starts: Vec<u64>,
}

fn directory_entry(short: &[u8; 11], attributes: u8, cluster: u32, bytes: u32) -> Vec<u8> {
    let mut entry = vec![0; ENTRY];
    entry[..11].copy_from_slice(short);
    entry[11] = attributes;
    let [a, b, c, d] = cluster.to_le_bytes();
    (entry[26], entry[27], entry[20], entry[21]) = (a, b, c, d);
    entry[28..32].copy_from_slice(&bytes.to_le_bytes());
    entry
}

/// The root file system of the running slot, and the release's: 40 blocks of it are the same, elsewhere.
fn roots() -> [Vec<u8>; 2] {
    let running = data(60);
    let mut next: Vec<u8> = (0..40).flat_map(|n| vec![n + 100u8; BLOCK]).collect();
    next.extend(&running[10 * BLOCK..50 * BLOCK]);
    [running, next].map(|mut root| {
        root.resize(BLOCKS * BLOCK, 0);
        root
    })
}

/// The running UKI, and the release's: 8 blocks of it are the same.
fn ukis() -> [Vec<u8>; 2] {
    let running: Vec<u8> = (0..UKI_A).map(|n| u8::try_from(n / 4096 + 1).expect("small")).collect();
    let mut next = vec![0xaa; 4 * BLOCK];
    next.extend(&running[..8 * BLOCK]);
    next.extend(vec![0xbb; 77]);
    [running, next]
}

impl Node {
    fn new() -> Node {
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

    fn slots(&self) -> SlotDisk {
        SlotDisk::of_file(&self.disk, 2, 3).expect("a disk of two slots")
    }

    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        File::open(&self.disk).and_then(|f| f.read_exact_at(&mut bytes, offset)).expect("read");
        bytes
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(&self.disk).expect("open");
        file.write_all_at(bytes, offset).expect("written");
    }

    fn record(&self) -> BootRecord {
        let ring = self.read(self.starts[5], RING_BYTES);
        BootRecord::parse(latest(&ring).expect("a record").payload).expect("readable")
    }

    fn set_record(&self, change: impl FnOnce(&mut BootRecord)) {
        let mut record = self.record();
        let ring = self.read(self.starts[5], RING_BYTES);
        change(&mut record);
        let write = record.write(latest(&ring).map(|found| found.position)).expect("fits");
        self.write(self.starts[5] + write.offset, &write.bytes);
    }

    /// A digest of each MiB.
    fn digests(&self) -> Vec<[u8; 32]> {
        let length = fs::metadata(&self.disk).expect("there").len();
        (0..length / MIB).map(|n| digest(&[0; 32], &self.read(n * MIB, 1 << 20))).collect()
    }

    fn names(&self) -> EspDirectory {
        let read = |offset: u64, length: usize| Some(self.read(self.starts[0] + offset, length));
        EspDirectory::read(read).expect("sound")
    }

    /// Slot B as after an update: good, and to be seen by the loader.
    fn show_b(&self) {
        let (_, write) = self.names().renamed(SlotName::B, EntryState::Behind, 5000).expect("a write");
        self.write(self.starts[0] + write.offset, &write.bytes);
        self.set_record(|record| record.b.state = SlotState::Good);
    }

    /// What a boot of this disk does: slot A goes on.
    fn check_boot(&self) {
        let (record, names) = (self.record(), self.names());
        let entry = |slot| names.entry(slot).map(|e| SlotEntry { state: e.state, bytes: e.bytes });
        let entries = SlotEntries { a: entry(SlotName::A), b: entry(SlotName::B) };
        assert_eq!(entries.a, Some(SlotEntry { state: EntryState::Good, bytes: UKI_A }));
        let booted = BootedSlot { name: SlotName::A, roothash: "11" };
        let judged = judge(Some(&record), &booted, &entries);
        assert_eq!(judged.verdict, SlotVerdict::Go { trial: false });
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
    fn publish(&self) -> (MountedDirectory, ReleaseDocument) {
        let ([_, root], [_, uki]) = (roots(), ukis());
        let (tree, parameters) = grown(&root);
        let mut release = ReleaseDocument { root: parameters, ..release() };
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

    fn served(&self, release: &ReleaseDocument, name: &str) -> PathBuf {
        self.dir.path().join("served").join(release_path(release.version, &release.arch, name))
    }

    /// What a node that has booted slot B would find there.
    fn check_target(&self, release: &ReleaseDocument) {
        let ([_, root], [_, uki]) = (roots(), ukis());
        let (tree, _) = grown(&root);
        assert!(self.read(self.starts[3], root.len()) == root, "root");
        assert!(self.read(self.starts[4], tree.len()) == tree, "tree");
        assert!(self.read(self.starts[0] + cluster(FIRST_A + CHAIN), uki.len()) == uki, "UKI");
        let bytes = fs::metadata(&self.disk).expect("there").len();
        let table = read_table(bytes, 512, |offset, length| Some(self.read(offset, length))).expect("sound");
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
fn table(file: &File) -> Vec<u64> {
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
fn cluster(number: u32) -> u64 {
    FRONT * SECTOR + u64::from(number - 2) * 4096
}

/// Writes an ESP with slot A's UKI to be seen and slot B's hidden.
fn esp(file: &File, start: u64) {
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

async fn staged_on(
    node: &Node,
    source: &MountedDirectory,
    release: &ReleaseDocument,
) -> Result<StagedRelease, StageError> {
    stage(source, release, &node.slots(), &mut |_| {}).await
}

#[tokio::test]
async fn a_release_gets_into_the_other_slot_and_nowhere_else() {
    let node = Node::new();
    let (source, release) = node.publish();
    let before = node.digests();
    let done = staged_on(&node, &source, &release).await.expect("staged");
    assert_eq!((done.slot, done.was_staged), (SlotName::B, false));
    // 176 blocks of the slot are zeros already; 40 come from the running slot, 40 from the source.
    assert_eq!((done.root.present, done.root.copied, done.root.fetched), (176, 40, 40));
    assert_eq!((done.uki.copied, done.uki.fetched), (8, 5));
    node.check_target(&release);
    // ONE-SLOT-WRITE: table at both ends, slot B, the record, and the chain of slot B.
    let chain = (node.starts[0] + cluster(FIRST_A + CHAIN)) / MIB;
    let allowed = [node.starts[3] / MIB, node.starts[4] / MIB, node.starts[5] / MIB, chain, 0, 139];
    for (mib, (was, is)) in before.iter().zip(node.digests()).enumerate() {
        assert!(*was == is || allowed.contains(&(mib as u64)), "MiB {mib} has changed");
    }
    // Staged is staged: nothing is written again.
    let (before, record) = (node.digests(), node.record());
    let again = staged_on(&node, &source, &release).await.expect("staged");
    assert!(again.was_staged);
    assert!(node.digests() == before && node.record() == record);
}

#[tokio::test]
async fn what_is_there_is_not_fetched_again() {
    let node = Node::new();
    let (source, release) = node.publish();
    // The source breaks off in the middle of the root.
    let path = node.served(&release, ROOT_FILE);
    let whole = fs::read(&path).expect("read");
    fs::write(&path, &whole[..20 * BLOCK]).expect("cut");
    let fault = staged_on(&node, &source, &release).await.expect_err("cut off");
    assert!(fault.is_of_source() && matches!(fault, StageError::Blocks { .. }), "{fault}");
    let record = node.record();
    assert_eq!((record.b.state, record.desired), (SlotState::Writing, SlotName::A));
    // The tree is not asked for again.
    fs::write(&path, &whole).expect("mended");
    fs::remove_file(node.served(&release, VERITY_FILE)).expect("removed");
    let done = staged_on(&node, &source, &release).await.expect("staged");
    assert_eq!((done.root.present, done.root.fetched), (176 + 40 + 20, 20));
    node.check_target(&release);
}

#[tokio::test]
async fn a_visible_slot_is_hidden_before_it_is_written() {
    let node = Node::new();
    let (source, release) = node.publish();
    let disk = node.slots();
    node.show_b();
    assert_eq!(disk.esp().expect("sound").target.state, EntryState::Behind);
    // The source has nothing: the slot is hidden and half written all the same.
    fs::remove_dir_all(node.dir.path().join("served")).expect("removed");
    fs::create_dir(node.dir.path().join("served")).expect("made");
    let fault = staged_on(&node, &source, &release).await.expect_err("nothing there");
    assert!(matches!(fault, StageError::Source(SourceError::NoSuchFile(_))), "{fault}");
    assert_eq!(disk.esp().expect("sound").target.state, EntryState::Hidden);
    assert_eq!(node.record().b.state, SlotState::Writing);
}

#[tokio::test]
async fn what_cannot_become_a_slot_changes_nothing() {
    type Change = fn(&Node, &mut ReleaseDocument);
    let changes: [(&str, Change); 6] = [
        ("root of 0.2.0 needs 2 MiB, slot B has 1: write this disk anew", |_, release| {
            release.root.blocks = 257
        }),
        ("UKI of 0.2.0 needs 65 MiB, slot B has 64", |_, release| {
            let uki = release.files.iter_mut().find(|file| file.name == UKI_FILE).expect("in the list");
            uki.size = u64::from(UKI_CHAIN_BYTES) + 1;
        }),
        ("orlop.efi.blocks has 4096 bytes", |_, release| {
            let list =
                release.files.iter_mut().find(|file| file.name == UKI_BLOCKS_FILE).expect("in the list");
            list.size = 4096;
        }),
        (
            "ESP: the chain of the UKI of slot B is broken; the update stops before slot B is activated",
            |node, _| {
                let link = RESERVED * SECTOR + u64::from(FIRST_A + CHAIN + 7) * 4;
                node.write(node.starts[0] + link, &99u32.to_le_bytes());
            },
        ),
        ("slot B is to be tried", |node, _| {
            node.set_record(|record| record.b.state = SlotState::Trial);
        }),
        ("there is no boot record", |node, _| node.write(node.starts[5], &vec![0; RING_BYTES])),
    ];
    for (words, change) in changes {
        let node = Node::new();
        let (source, mut release) = node.publish();
        change(&node, &mut release);
        let before = node.digests();
        let fault = staged_on(&node, &source, &release).await.expect_err(words);
        assert!(fault.to_string().contains(words), "{fault}");
        assert!(!fault.is_of_source(), "{fault}");
        assert!(node.digests() == before, "{words}");
    }
}

#[tokio::test]
async fn a_flipped_bit_is_named_and_never_staged() {
    for (name, words) in [
        (ROOT_FILE, "root.erofs from "),
        (UKI_FILE, "orlop.efi from "),
        (UKI_BLOCKS_FILE, "orlop.efi.blocks from "),
        (VERITY_FILE, "root.verity.gz from "),
    ] {
        let node = Node::new();
        let (source, release) = node.publish();
        let path = node.served(&release, name);
        let mut content = fs::read(&path).expect("read");
        content[100] ^= 1;
        fs::write(&path, &content).expect("written");
        let fault = staged_on(&node, &source, &release).await.expect_err("flipped");
        assert!(fault.to_string().starts_with(words) && fault.is_of_source(), "{fault}");
        assert_eq!(node.record().b.state, SlotState::Writing, "{name}");
    }
}

/// Corruption of the running slot: what it gives is hashed, and fetched where it is wrong.
#[tokio::test]
async fn a_damaged_running_slot_spoils_nothing() {
    let node = Node::new();
    let (source, release) = node.publish();
    node.write(node.starts[1] + 20 * 4096, &[0xff; 4096]);
    let done = staged_on(&node, &source, &release).await.expect("staged");
    assert_eq!((done.root.copied, done.root.fetched), (39, 41));
    node.check_target(&release);
}

/// The process dies at each of its writes and syncs: slot A boots as before, and the next call ends as if nothing had been.
#[test]
fn any_cut_leaves_the_running_slot_and_the_next_call_ends() {
    for nth in 0.. {
        let node = Node::new();
        node.show_b();
        let (source, release) = node.publish();
        let disk = node.slots();
        let act = || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(stage(&source, &release, &disk, &mut |_| {}))
        };
        let (first, call) = refusing(node.dir.path(), nth, Refusal::FromThenOn, act);
        let Some(call) = call else {
            first.expect("nothing was refused");
            assert!(nth > 20, "{nth} calls");
            break;
        };
        assert!(first.is_err(), "{call}");
        node.check_boot();
        act().unwrap_or_else(|e| panic!("after {call}: {e}"));
        node.check_boot();
        node.check_target(&release);
    }
}
