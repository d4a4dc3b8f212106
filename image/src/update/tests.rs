//! Publishing from a small build to a node, and what is wrong with a directory that was changed.

use super::*;
use crate::arch::Arch;
use crate::build::VERITY_SALT;
use crate::format::verity::{BLOCK, Tree};
use orlop_config::release::{
    ARCH, Envelope, HexDigest, NodeRelease, RELEASE_FILES, ReleaseDocument, ReleaseVersion, Rollout,
    UtcSecond, release_path, trust_path,
};
use orlop_update::{MountedDirectory, SurveyAnswer, SurveyRequest, UpdateStore, survey_directory};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Blocks of the slot: the tree has two levels.
const SLOT_BLOCKS: usize = 200;

struct Fixture {
    dir: TempDir,
    keys: KeyDirectory,
}

fn version(text: &str) -> ReleaseVersion {
    text.parse().expect("a version")
}

fn at(text: &str) -> UtcSecond {
    text.parse().expect("a time")
}

fn terms() -> ReleaseTerms {
    ReleaseTerms { generation: 1, revokes: None, min_version: None }
}

fn change(add: &[&str]) -> ChannelChange {
    ChannelChange {
        arch: ARCH,
        add: add.iter().map(|text| (version(text), None)).collect(),
        withdraw: Vec::new(),
        rollout: None,
        expires: at("2027-01-01T00:00:00Z"),
    }
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let keys = KeyDirectory::new(&dir.path().join("keys"));
        keys.create(3, 2).expect("keys");
        Fixture { dir, keys }
    }

    fn published(&self) -> PathBuf {
        self.dir.path().join("published")
    }

    fn release_directory(&self, text: &str) -> PathBuf {
        self.published().join(release_path(version(text), ARCH, ""))
    }

    /// A root of 70 blocks in a slot of 200, a UKI that ends within a block.
    fn build(&self, text: &str) -> BuildFiles {
        let mut root: Vec<u8> =
            (0..70 * BLOCK).map(|at| u8::try_from(at / BLOCK % 7 + 1).expect("small")).collect();
        root.resize(SLOT_BLOCKS * BLOCK, 0);
        let tree = Tree::over(&mut root.as_slice(), &VERITY_SALT).expect("whole blocks");
        let [root_path, uki] = ["root", "uki"].map(|name| self.dir.path().join(format!("{name}-{text}")));
        fs::write(&root_path, root).expect("written");
        fs::write(&uki, format!("UKI {text} ").repeat(1000)).expect("written");
        BuildFiles {
            root: root_path,
            uki,
            roothash: HexDigest(tree.root),
            arch: ARCH,
            version: version(text),
            packages: [("zlib1g".to_owned(), "1.3".to_owned())].into(),
        }
    }

    fn publish(&self, text: &str) -> ReleaseDocument {
        let release =
            write_release(&self.build(text), terms(), &self.keys, ReleaseSigning::Here, &self.published())
                .expect("published");
        change_channel(&self.published(), "stable", &self.keys, &change(&[text])).expect("offered");
        release
    }

    /// What a node with `running` takes, which has kept what it saw before.
    fn node(&self, running: &str) -> Result<SurveyAnswer> {
        let image_trust = self.keys.path().join(trust_path(1));
        let mut store = UpdateStore::open(&self.dir.path().join("node"), &image_trust)?;
        let refused = BTreeSet::new();
        let request = SurveyRequest {
            channel: "stable",
            node: NodeRelease { arch: ARCH, running: version(running), floor: 1 },
            seed: b"seed",
            refused: &refused,
            now: Some(at("2026-11-30T00:00:00Z")),
            version: None,
        };
        let published = MountedDirectory::new(&self.published());
        Ok(survey_directory(&published, &mut store, &request)?.answer)
    }
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("listed");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_node_takes_what_was_published() {
    let fixture = Fixture::new();
    let release = fixture.publish("0.2.0");
    assert_eq!(fixture.node("0.1.0").expect("an answer"), SurveyAnswer::Take(release.clone()));
    assert_eq!(fixture.node("0.2.0").expect("an answer"), SurveyAnswer::UpToDate);
    let directory = fixture.release_directory("0.2.0");
    let mut all: BTreeSet<String> = RELEASE_FILES.iter().map(ToString::to_string).collect();
    all.insert("release.json".to_owned());
    assert_eq!(names(&directory), all);
    assert_eq!(names(&fixture.published().join("releases/0.2.0")), BTreeSet::from([ARCH.to_owned()]));
    assert_eq!(check_files(&directory, &release).expect("read"), [] as [String; 0]);
    // The zeros behind the file system are not published.
    let sizes = ["root.erofs", "orlop.efi.blocks"].map(|name| release.file(name).map(|file| file.size));
    let uki = fs::metadata(directory.join("orlop.efi")).expect("there").len();
    assert_eq!(sizes, [Some(70 * 4096), Some(uki.div_ceil(4096) * 32)]);
    assert_eq!(release.root.blocks, 200);
}

/// Two publishers of one build sign the same.
#[test]
fn a_release_is_made_the_same_again() {
    let (one, two) = (Fixture::new(), Fixture::new());
    assert_eq!(one.publish("0.2.0"), two.publish("0.2.0"));
}

#[test]
fn a_release_is_published_once() {
    let fixture = Fixture::new();
    fixture.publish("0.2.0");
    let build = fixture.build("0.2.0");
    let refused = write_release(&build, terms(), &fixture.keys, ReleaseSigning::Here, &fixture.published())
        .expect_err("twice")
        .to_string();
    assert!(refused.contains("a release is published once"), "{refused}");
}

#[test]
fn a_root_without_its_root_hash_is_not_signed() {
    let fixture = Fixture::new();
    let build = BuildFiles { roothash: HexDigest([0; 32]), ..fixture.build("0.2.0") };
    let refused = write_release(&build, terms(), &fixture.keys, ReleaseSigning::Here, &fixture.published())
        .expect_err("another");
    assert!(refused.to_string().contains("and the UKI names 0000"), "{refused}");
    assert!(!fixture.release_directory("0.2.0").exists());
}

/// A flipped byte, a missing file and a longer one: each is named.
#[test]
fn a_changed_file_is_named() {
    let fixture = Fixture::new();
    let release = fixture.publish("0.2.0");
    let directory = fixture.release_directory("0.2.0");
    for name in RELEASE_FILES {
        let path = directory.join(name);
        let good = fs::read(&path).expect("read");
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 1;
        let longer = [good.as_slice(), b"x"].concat();
        for (bad, why) in [
            (Some(flipped), "does not have the digest that is signed"),
            (Some(longer), "are signed"),
            (None, "is not there"),
        ] {
            match bad {
                Some(bytes) => fs::write(&path, bytes).expect("written"),
                None => fs::remove_file(&path).expect("removed"),
            }
            let wrong = check_files(&directory, &release).expect("read");
            let shown = path.display().to_string();
            assert!(wrong.len() == 1 && wrong[0].starts_with(&shown) && wrong[0].ends_with(why), "{wrong:?}");
        }
        fs::write(&path, good).expect("written");
    }
    assert!(check_files(&directory, &release).expect("read").is_empty());
}

/// A flipped byte of a document: the node names the document, or takes the same release.
#[test]
fn a_changed_document_is_named() {
    let fixture = Fixture::new();
    let release = fixture.publish("0.2.0");
    for (path, name) in [
        ("channels/stable.json", "channel stable from "),
        ("releases/0.2.0/x86-64/release.json", "release 0.2.0 from "),
    ] {
        let file = fixture.published().join(path);
        let good = fs::read(&file).expect("read");
        for at in (0..good.len()).step_by(37) {
            let mut flipped = good.clone();
            flipped[at] ^= 1;
            fs::write(&file, flipped).expect("written");
            match fixture.node("0.1.0") {
                Ok(answer) => assert_eq!(answer, SurveyAnswer::Take(release.clone()), "{path} {at}"),
                Err(error) => assert!(error.to_string().starts_with(name), "{path} {at}: {error}"),
            }
        }
        fs::write(&file, good).expect("written");
    }
}

/// Files that are signed and do not fit together: a mistake of the publisher, not of the way.
#[test]
fn files_that_do_not_fit_together_are_named() {
    let fixture = Fixture::new();
    let release = fixture.publish("0.2.0");
    let directory = fixture.release_directory("0.2.0");
    let signed = |name: &str, bytes: &[u8]| {
        let mut release = release.clone();
        let file = release.files.iter_mut().find(|file| file.name == name).expect("a file");
        file.size = u64::try_from(bytes.len()).expect("small");
        file.sha256 = crate::format::digest::bytes(bytes).parse().expect("a digest");
        release
    };
    for (name, why) in [
        ("root.erofs", "does not have the root hash that is signed"),
        ("root.verity.gz", "root.verity.gz cannot be unpacked"),
        ("orlop.efi.blocks", "is not the list of the UKI's blocks"),
    ] {
        let path = directory.join(name);
        let good = fs::read(&path).expect("read");
        let bad = vec![7; 8192];
        fs::write(&path, &bad).expect("written");
        let wrong = check_files(&directory, &signed(name, &bad)).expect("read");
        assert!(wrong.len() == 1 && wrong[0].contains(why), "{wrong:?}");
        fs::write(&path, good).expect("written");
    }
}

#[test]
fn a_channel_goes_on_from_document_to_document() {
    let fixture = Fixture::new();
    let first = fixture.publish("0.2.0");
    let second = fixture.publish("0.3.0");
    assert_eq!(fixture.node("0.1.0").expect("an answer"), SurveyAnswer::Take(second));
    let withdrawn =
        ChannelChange { withdraw: vec![(version("0.3.0"), "it loses its disk".to_owned())], ..change(&[]) };
    let document = change_channel(&fixture.published(), "stable", &fixture.keys, &withdrawn).expect("signed");
    assert_eq!(document.sequence, 3);
    assert_eq!(fixture.node("0.1.0").expect("an answer"), SurveyAnswer::Take(first));
    let again = change_channel(&fixture.published(), "stable", &fixture.keys, &change(&["0.3.0"]));
    assert!(again.expect_err("withdrawn").to_string().contains("0.3.0 is withdrawn (it loses its disk)"));
    // Offered again, from a later day on.
    let rollout = Some(Rollout { start: at("2026-12-24T00:00:00Z"), hours: 0 });
    let later = ChannelChange { rollout, ..change(&["0.2.0"]) };
    change_channel(&fixture.published(), "stable", &fixture.keys, &later).expect("signed");
    let (version, turn) = (version("0.2.0"), at("2026-12-24T00:00:00Z"));
    assert_eq!(fixture.node("0.1.0").expect("an answer"), SurveyAnswer::Waits { version, turn });
}

#[test]
fn a_replaced_channel_key_signs_the_next_document() {
    let fixture = Fixture::new();
    let release = fixture.publish("0.2.0");
    fixture.keys.replace("channel").expect("replaced");
    fixture.keys.replace("root-1").expect("replaced");
    let document =
        change_channel(&fixture.published(), "stable", &fixture.keys, &change(&[])).expect("signed");
    assert_eq!(document.sequence, 2);
    assert_eq!(fixture.node("0.1.0").expect("an answer"), SurveyAnswer::Take(release));
}

/// After the release key was stolen: a node that sees the next trust document takes nothing that the key has signed.
#[test]
fn a_replaced_release_key_ends_its_releases() {
    let fixture = Fixture::new();
    fixture.publish("0.2.0");
    fixture.keys.replace("release").expect("replaced");
    change_channel(&fixture.published(), "stable", &fixture.keys, &change(&[])).expect("signed");
    let refused = fixture.node("0.1.0").expect_err("the old key").to_string();
    assert!(refused.starts_with("release 0.2.0 from ") && refused.contains("trust 2 asks"), "{refused}");
    let next = fixture.publish("0.2.1");
    assert_eq!(fixture.node("0.1.0").expect("an answer"), SurveyAnswer::Take(next));
}

#[test]
fn other_keys_do_not_publish_over_the_first() {
    let (fixture, stranger) = (Fixture::new(), Fixture::new());
    fixture.publish("0.2.0");
    let build = stranger.build("0.3.0");
    let refused = write_release(&build, terms(), &stranger.keys, ReleaseSigning::Here, &fixture.published())
        .expect_err("other keys");
    assert!(refused.to_string().contains("these are other keys"), "{refused}");
    let refused = change_channel(&fixture.published(), "stable", &stranger.keys, &change(&[]));
    assert!(refused.is_err());
}

/// The channel names the trust document that ends a key, so a source that hides it is found out.
#[test]
fn a_channel_names_the_newest_trust_document() {
    let fixture = Fixture::new();
    fixture.publish("0.2.0");
    fixture.keys.replace("release").expect("replaced");
    let document = change_channel(&fixture.published(), "stable", &fixture.keys, &change(&[]));
    assert_eq!(document.expect("signed").trust, 2);
    fs::remove_file(fixture.published().join(trust_path(2))).expect("hidden");
    let refused = fixture.node("0.1.0").expect_err("hidden").to_string();
    assert!(refused.contains("it was signed after trust 2"), "{refused}");
}

/// A release of a replaced key is named and does not hide the others, until it is withdrawn.
#[test]
fn a_release_of_a_replaced_key_is_wrong_until_it_is_withdrawn() {
    let fixture = Fixture::new();
    fixture.publish("0.2.0");
    fixture.keys.replace("release").expect("replaced");
    fixture.publish("0.2.1");
    fs::write(fixture.release_directory("0.2.1").join("sbom.json"), "{}").expect("written");
    let wrong = || verify::wrong_files(&fixture.published(), "stable").expect("read");
    let found = wrong();
    assert!(found.len() == 2 && found[0].contains("sbom.json"), "{found:?}");
    assert!(found[1].starts_with("release 0.2.0: ") && found[1].ends_with("or withdraw it"), "{found:?}");
    let withdrawn =
        ChannelChange { withdraw: vec![(version("0.2.0"), "its key was stolen".to_owned())], ..change(&[]) };
    change_channel(&fixture.published(), "stable", &fixture.keys, &withdrawn).expect("signed");
    assert_eq!(wrong().len(), 1);
}

/// A person sees before the nodes do whether firmware with Secure Boot starts what is published.
#[test]
fn a_release_says_who_has_signed_its_uki() {
    let fixture = Fixture::new();
    fixture.publish("0.2.0");
    let said = || verify::boot_signatures(&fixture.published(), "stable").expect("read");
    let unknown = said();
    assert!(unknown.len() == 1 && unknown[0].contains("not known: "), "{unknown:?}");
    assert!(unknown[0].ends_with("it is no EFI program"), "{unknown:?}");
    // As a PE file with and without signatures.
    let path = fixture.release_directory("0.2.0").join("orlop.efi");
    let mut uki = vec![0; 8192];
    uki[..2].copy_from_slice(b"MZ");
    uki[0x3c] = 0x40;
    uki[0x40..0x44].copy_from_slice(b"PE\0\0");
    uki[0x58..0x5a].copy_from_slice(&[0x0b, 0x02]);
    uki[0x58 + 108] = 16;
    fs::write(&path, &uki).expect("written");
    assert_eq!(said(), [format!("orlop.efi of 0.2.0 for {ARCH}: not signed for Secure Boot")]);
    let text = include_str!("../../../config/src/boot_trust/samples/signatures.b64");
    let table = orlop_config::base64::decode(text).expect("base64");
    let place = [8192, u32::try_from(table.len()).expect("small")].map(u32::to_le_bytes).concat();
    uki[0x58 + 144..0x58 + 152].copy_from_slice(&place);
    uki.extend(table);
    fs::write(&path, &uki).expect("written");
    let want = format!("orlop.efi of 0.2.0 for {ARCH}: signed for Secure Boot by Orlop db 0a1b2c3d");
    assert_eq!(said(), [want]);
}

/// A machine with keys from before the last replacement would sign what nodes refuse.
#[test]
fn an_old_copy_of_the_keys_signs_nothing_more() {
    let fixture = Fixture::new();
    fixture.publish("0.2.0");
    fixture.keys.replace("root-1").expect("replaced");
    change_channel(&fixture.published(), "stable", &fixture.keys, &change(&[])).expect("signed");
    fs::remove_file(fixture.keys.path().join(trust_path(2))).expect("an old copy");
    let refused = change_channel(&fixture.published(), "stable", &fixture.keys, &change(&[]));
    let refused = refused.expect_err("an old copy").to_string();
    assert!(refused.contains("2.json follows the trust documents in"), "{refused}");
}

/// Each architecture has releases of its own in one directory and one channel.
#[test]
fn another_architecture_is_published_beside_the_first() {
    let fixture = Fixture::new();
    let own = fixture.publish("0.2.0");
    let other = Arch::ALL.map(|arch| arch.facts().systemd).into_iter().find(|arch| *arch != ARCH);
    let other = other.expect("there are two");
    let build = BuildFiles { arch: other, ..fixture.build("0.2.0") };
    let published = fixture.published();
    let release = write_release(&build, terms(), &fixture.keys, ReleaseSigning::Here, &published);
    assert_eq!(release.expect("published").arch, other);
    let change = ChannelChange { arch: other, ..change(&["0.2.0"]) };
    let channel = change_channel(&published, "stable", &fixture.keys, &change).expect("offered");
    let offered: BTreeSet<&str> = channel.releases.iter().map(|release| release.arch.as_str()).collect();
    assert_eq!(offered, BTreeSet::from([ARCH, other]));
    assert_eq!(fixture.node("0.1.0").expect("an answer"), SurveyAnswer::Take(own));
}

/// The release key is on no machine that builds: the bytes to sign go out, and the signature comes back.
#[test]
fn a_signature_from_elsewhere_is_checked_and_added() {
    let fixture = Fixture::new();
    let key_file = fixture.dir.path().join("release.pem");
    fs::rename(fixture.keys.path().join("release.pem"), &key_file).expect("taken away");
    let (build, published) = (fixture.build("0.2.0"), fixture.published());
    let here = write_release(&build, terms(), &fixture.keys, ReleaseSigning::Here, &published);
    assert!(here.expect_err("no key").to_string().contains("has 0 of the 1 keys of role release"));
    let release = write_release(&build, terms(), &fixture.keys, ReleaseSigning::Elsewhere, &published);
    let release = release.expect("published");
    change_channel(&published, "stable", &fixture.keys, &change(&["0.2.0"])).expect("offered");
    let refused = fixture.node("0.1.0").expect_err("not signed yet").to_string();
    assert!(refused.contains("0 of the 1 signatures") && refused.contains("it names none"), "{refused}");

    let document = fixture.release_directory("0.2.0").join("release.json");
    let mut envelope = Envelope::read(&fs::read(&document).expect("read")).expect("an envelope");
    let said = detached::described(&envelope).expect("a release");
    assert!(said.starts_with("release 0.2.0 for ") && said.contains(", generation 1, root hash "), "{said}");
    let other = Envelope { payload_type: "text/plain".to_owned(), ..envelope.clone() };
    assert!(detached::described(&other).is_err(), "a key signs no other text");
    let trust = newest_trust(fixture.keys.path()).expect("a chain");
    let key = SigningKey::read(&key_file).expect("a key");
    let id = trust.keys.iter().find(|known| key.is(known)).expect("known").id.clone();
    let of_another = key.sign(b"another").expect("signed");
    assert!(add_signature(&mut envelope, &trust, &id, of_another).is_err());
    let good = key.sign(&envelope.signed_bytes()).expect("signed");
    let nobody = add_signature(&mut envelope, &trust, "nobody", good.clone()).expect_err("no such key");
    assert!(nobody.to_string().contains("has no key \"nobody\""), "{nobody}");
    add_signature(&mut envelope, &trust, &id, good).expect("added");
    fs::write(&document, envelope.text()).expect("written");
    assert_eq!(fixture.node("0.1.0").expect("an answer"), SurveyAnswer::Take(release));
}
