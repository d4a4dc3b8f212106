//! Tests of staging on a disk in a file.

use super::*;
use crate::boot_files::firmware_trust;
use crate::directory::MountedDirectory;
use crate::stage_fixture::{CHAIN, FIRST_A, MIB, Node, RESERVED, SECTOR, cluster};
use agent_faults::{Refusal, refusing};
use orlop_config::boot_trust::{VARIABLE_DB, VARIABLE_SECURE_BOOT, X509_SIGNATURE_TYPE};
use orlop_config::slots::{RING_BYTES, SlotState};
use orlop_init::plan::esp_names::EntryState;
use std::fs;
use std::path::Path;

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
    let changes: [(&str, Change); 8] = [
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
        ("0.2.0 has the root of slot A, which runs", |_, release| {
            // The PARTUUID of the running root.
            release.root.hash.0[..16].fill(2);
        }),
        ("its partition table is damaged", |node, _| {
            let file = fs::File::options().write(true).open(&node.disk).expect("open");
            let length = fs::metadata(&node.disk).expect("there").len();
            // The disk has become longer: the second copy is not at its end.
            file.set_len(length + MIB).expect("longer");
        }),
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

/// The process dies at each of its writes and syncs, with a good slot B and with an empty one: slot A boots as before, the record stays
/// this installation's, and the next call ends as if nothing had been.
#[test]
fn any_cut_leaves_the_running_slot_and_the_next_call_ends() {
    for is_filled in [true, false] {
        for nth in 0.. {
            let node = Node::new();
            if is_filled {
                node.show_b();
            }
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
}

/// A UKI with a signature of the sample key, or without one.
fn program(is_signed: bool) -> Vec<u8> {
    let mut program = vec![0; 9000];
    program[..2].copy_from_slice(b"MZ");
    program[0x3c] = 0x40;
    program[0x40..0x44].copy_from_slice(b"PE\0\0");
    program[0x58..0x5a].copy_from_slice(&[0x0b, 0x02]);
    program[0x58 + 108] = 16;
    if is_signed {
        let text = include_str!("../../../config/src/boot_trust/samples/signatures.b64");
        let table = orlop_config::base64::decode(text).expect("base64");
        let place = [9000, u32::try_from(table.len()).expect("small")].map(u32::to_le_bytes).concat();
        program[0x58 + 144..0x58 + 152].copy_from_slice(&place);
        program.extend(table);
    }
    program
}

/// Variables of a firmware with one certificate of the samples, as efivarfs has them.
fn write_variables(dir: &Path, secure_boot: u8, certificate: &str) {
    let certificate = orlop_config::base64::decode(certificate).expect("base64");
    let each = u32::try_from(certificate.len() + 16).expect("small");
    let header = [each + 28, 0, each].map(u32::to_le_bytes).concat();
    let db = [&[7, 0, 0, 0][..], &X509_SIGNATURE_TYPE, header.as_slice(), &[0; 16], certificate.as_slice()]
        .concat();
    fs::create_dir_all(dir).expect("made");
    fs::write(dir.join(VARIABLE_DB), db).expect("written");
    fs::write(dir.join(VARIABLE_SECURE_BOOT), [6, 0, 0, 0, secure_boot]).expect("written");
}

const OWN: &str = include_str!("../../../config/src/boot_trust/samples/certificate.b64");
const FOREIGN: &str = include_str!("../../../config/src/boot_trust/samples/other.b64");

#[tokio::test]
async fn a_firmware_with_secure_boot_decides_before_a_byte_changes() {
    let node = Node::new();
    let variables = node.dir.path().join("efivars");
    assert!(firmware_trust(&variables).is_none());
    for (secure_boot, certificate, is_signed, refused) in [
        (1, OWN, false, Some("0.2.0 is not staged: its UKI is not signed")),
        (1, FOREIGN, true, Some("0.2.0 is not staged: its UKI is signed by Orlop db 0a1b2c3d, and ")),
        (0, FOREIGN, false, None),
        (0, FOREIGN, true, None),
        (1, OWN, true, None),
    ] {
        write_variables(&variables, secure_boot, certificate);
        let node = Node::new();
        let (source, release) = node.publish_with(program(is_signed));
        let mut disk = node.slots();
        disk.firmware = firmware_trust(&variables);
        let before = node.digests();
        match (stage(&source, &release, &disk, &mut |_| {}).await, refused) {
            (Ok(done), None) => assert!(!done.was_staged),
            (Err(fault), Some(words)) => {
                assert!(fault.to_string().starts_with(words) && !fault.is_of_source(), "{fault}");
                assert!(node.digests() == before, "something was written");
            }
            (done, _) => panic!("{secure_boot} {is_signed}: {done:?}"),
        }
    }
}

/// A source that shows other bytes than it gives later is found out by the signed list.
#[tokio::test]
async fn a_signature_counts_only_as_the_list_has_it() {
    let node = Node::new();
    let variables = node.dir.path().join("efivars");
    write_variables(&variables, 1, OWN);
    let (source, release) = node.publish_with(program(false));
    let path = node.served(&release, UKI_FILE);
    let honest = fs::read(&path).expect("read");
    fs::write(&path, &program(true)[..honest.len()]).expect("another");
    let mut disk = node.slots();
    disk.firmware = firmware_trust(&variables);
    let before = node.digests();
    let fault = stage(&source, &release, &disk, &mut |_| {}).await.expect_err("another file");
    assert!(matches!(fault, StageError::OtherFile { file: UKI_FILE, .. }), "{fault}");
    assert!(node.digests() == before);
}

/// The firmware looks at the signatures where the header of the UKI has them, and nowhere else.
#[tokio::test]
async fn a_signature_counts_only_where_the_header_has_it() {
    let node = Node::new();
    let variables = node.dir.path().join("efivars");
    write_variables(&variables, 1, OWN);
    for (offset, length) in [(9000, 8), (9000, 0), (0, u32::MAX), (u32::MAX, 1568), (u32::MAX, u32::MAX)] {
        let node = Node::new();
        let mut uki = program(true);
        let place = [offset, length].map(u32::to_le_bytes).concat();
        uki[0x58 + 144..0x58 + 152].copy_from_slice(&place);
        let (source, release) = node.publish_with(uki);
        let mut disk = node.slots();
        disk.firmware = firmware_trust(&variables);
        let fault = stage(&source, &release, &disk, &mut |_| {}).await.expect_err("not signed");
        assert!(fault.to_string().contains("its UKI is not signed"), "{offset} {length}: {fault}");
    }
}
