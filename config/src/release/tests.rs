//! Each attack on published documents, with signatures of a toy: the real ones are tested where they are checked (`agent/update`).

use std::collections::BTreeSet;

use super::*;
use crate::fnv::fnv64;
use proptest::prelude::*;

/// That of the node, on a host of any: arm64 is another one here.
const ARCH: &str = "x86-64";

/// A key's signature is a checksum of key and message.
struct ToySignatures;

fn toy(key: &TrustedKey, message: &[u8]) -> Vec<u8> {
    fnv64(&[key.public.0.as_slice(), message].concat()).to_le_bytes().to_vec()
}

impl SignatureCheck for ToySignatures {
    fn is_good(&self, key: &TrustedKey, message: &[u8], signature: &[u8]) -> bool {
        toy(key, message) == signature
    }
}

fn key(id: &str) -> TrustedKey {
    let mut public = vec![0; 32];
    public[..id.len()].copy_from_slice(id.as_bytes());
    TrustedKey { id: id.to_owned(), algorithm: KeyAlgorithm::Ed25519, public: Base64Bytes(public) }
}

fn role(threshold: usize, keys: &[&str]) -> RoleKeys {
    RoleKeys { keys: keys.iter().map(ToString::to_string).collect(), threshold }
}

/// Two of three root keys, one key for releases and one for channels.
fn trust() -> TrustDocument {
    TrustDocument {
        product: PRODUCT.to_owned(),
        number: 1,
        keys: ["root-1", "root-2", "root-3", "release", "channel"].map(key).to_vec(),
        root: role(2, &["root-1", "root-2", "root-3"]),
        release: role(1, &["release"]),
        channel: role(1, &["channel"]),
    }
}

fn signed<T: SignedDocument>(document: &T, keys: &[&str]) -> Vec<u8> {
    let mut envelope = Envelope::around(document).expect("a good document");
    for id in keys {
        let signature = toy(&key(id), &envelope.signed_bytes());
        envelope.sign(id, signature);
    }
    envelope.text().into_bytes()
}

fn version(text: &str) -> ReleaseVersion {
    text.parse().expect("a version")
}

fn at(text: &str) -> UtcSecond {
    text.parse().expect("a time")
}

fn offered(text: &str) -> ChannelRelease {
    ChannelRelease { version: version(text), arch: ARCH.to_owned(), min_version: None, rollout: None }
}

fn channel() -> ChannelDocument {
    ChannelDocument {
        product: PRODUCT.to_owned(),
        channel: "stable".to_owned(),
        trust: 1,
        sequence: 7,
        expires: at("2026-12-31T00:00:00Z"),
        releases: vec![offered("0.2.0")],
        withdrawn: Vec::new(),
    }
}

fn release() -> ReleaseDocument {
    let file = |name: &&str| ReleaseFile { name: name.to_string(), size: 8192, sha256: HexDigest([1; 32]) };
    ReleaseDocument {
        product: PRODUCT.to_owned(),
        arch: ARCH.to_owned(),
        version: version("0.2.0"),
        generation: 3,
        revokes: None,
        min_version: None,
        kubernetes: "1.36".to_owned(),
        root: RootTree {
            algorithm: VERITY_ALGORITHM.to_owned(),
            hash: HexDigest([2; 32]),
            salt: HexDigest([3; 32]),
            blocks: 131_072,
        },
        files: RELEASE_FILES.iter().map(file).collect(),
    }
}

fn node() -> NodeRelease<'static> {
    NodeRelease { arch: ARCH, running: version("0.1.0"), floor: 1 }
}

fn read_channel(text: &[u8]) -> Result<ChannelDocument, DocumentError> {
    ChannelDocument::read(&trust(), "stable", text, &ToySignatures)
}

fn read_release(text: &[u8]) -> Result<ReleaseDocument, DocumentError> {
    ReleaseDocument::read(&trust(), version("0.2.0"), ARCH, text, &ToySignatures)
}

fn not_signed<T: std::fmt::Debug>(result: Result<T, DocumentError>) -> String {
    let error = result.expect_err("not enough signatures");
    assert!(matches!(error.fault, DocumentFault::NotSigned { .. }), "{error}");
    error.to_string()
}

#[test]
fn good_documents_are_read() {
    assert_eq!(TrustDocument::first(&signed(&trust(), &["root-1", "root-3"]), &ToySignatures), Ok(trust()));
    assert_eq!(read_channel(&signed(&channel(), &["channel"])), Ok(channel()));
    assert_eq!(read_release(&signed(&release(), &["release"])), Ok(release()));
    assert_eq!(release().judge(&node(), Some(&channel()), ReleaseReason::Offered), Ok(()));
}

/// Attack: other software. A stranger's key, a key of another role, and a good signature of another text.
#[test]
fn only_keys_of_the_role_count() {
    for keys in [&[] as &[&str], &["stranger"], &["channel"], &["root-1", "root-2", "root-3"]] {
        let said = not_signed(read_release(&signed(&release(), keys)));
        assert!(
            said.contains("release 0.2.0: 0 of the 1 signatures that trust 1 asks of role release"),
            "{said}"
        );
    }
    not_signed(read_channel(&signed(&channel(), &["release"])));
    // The name of a good key next to a signature of something else.
    let mut envelope = Envelope::around(&release()).expect("a good document");
    envelope.sign("release", toy(&key("release"), b"something else"));
    not_signed(read_release(envelope.text().as_bytes()));
}

/// A signature holds for type and payload together: a channel is no release, and a changed byte is found.
#[test]
fn a_signature_holds_for_one_text_of_one_type() {
    let mut envelope = Envelope::read(&signed(&release(), &["release"])).expect("an envelope");
    envelope.payload_type = "application/vnd.orlop.channel.v1+json".to_owned();
    not_signed(read_release(envelope.text().as_bytes()));
    let mut envelope = Envelope::read(&signed(&release(), &["release"])).expect("an envelope");
    let last = envelope.payload.0.len() - 1;
    envelope.payload.0[last] = b' ';
    not_signed(read_release(envelope.text().as_bytes()));
    // The release key signs what is no release.
    let refused = read_release(&signed(&channel(), &["release"])).expect_err("another type");
    assert!(matches!(refused.fault, DocumentFault::OtherType { .. }), "{refused}");
}

/// Attack: other product, other architecture, one version in place of another.
#[test]
fn a_document_is_the_one_that_was_asked_for() {
    let other = |change: fn(&mut ReleaseDocument)| {
        let mut document = release();
        change(&mut document);
        read_release(&signed(&document, &["release"])).expect_err("another release").fault
    };
    assert!(matches!(other(|r| r.product = "else".to_owned()), DocumentFault::OtherProduct { .. }));
    assert!(matches!(other(|r| r.arch = "arm64".to_owned()), DocumentFault::OtherArch { .. }));
    let found = DocumentName::Release(version("0.3.0"));
    assert_eq!(other(|r| r.version = version("0.3.0")), DocumentFault::OtherDocument { found });
    let beta = ChannelDocument { channel: "beta".to_owned(), ..channel() };
    let refused = read_channel(&signed(&beta, &["channel"])).expect_err("another channel").to_string();
    assert!(refused.starts_with("channel stable: it says that it is channel beta"), "{refused}");
}

/// Attack: an older release.
#[test]
fn a_release_below_the_floor_is_not_taken_by_any_way() {
    let node = NodeRelease { floor: 4, ..node() };
    for reason in [ReleaseReason::Offered, ReleaseReason::ByName] {
        let refused = release().judge(&node, None, reason).expect_err("below the floor").to_string();
        assert_eq!(refused, "release 0.2.0: it has generation 3, this node takes 4 or more");
    }
}

#[test]
fn a_node_goes_back_only_by_name() {
    for running in ["0.2.0", "0.3.0"] {
        let node = NodeRelease { running: version(running), ..node() };
        let offered = release().judge(&node, None, ReleaseReason::Offered).expect_err("not newer").fault;
        assert_eq!(offered, DocumentFault::NotNewer(version(running)));
        assert_eq!(release().judge(&node, None, ReleaseReason::ByName), Ok(()));
    }
}

/// Attack: an old channel is replayed.
#[test]
fn the_sequence_of_a_channel_never_falls() {
    let seen = channel();
    let now = Some(at("2026-11-30T00:00:00Z"));
    let older = ChannelDocument { sequence: 6, ..channel() };
    for now in [now, None] {
        let refused = older.follow(Some(&seen), now).expect_err("older").fault;
        assert_eq!(refused, DocumentFault::Replayed { found: 6, seen: 7 });
        let forked = ChannelDocument { releases: Vec::new(), ..channel() };
        assert_eq!(forked.follow(Some(&seen), now).expect_err("forked").fault, DocumentFault::Forked(7));
    }
    let newer = ChannelDocument { sequence: 8, ..channel() };
    for document in [&seen, &newer] {
        assert_eq!(document.follow(Some(&seen), now), Ok(ChannelClock::Verified));
        assert_eq!(document.follow(None, now), Ok(ChannelClock::Verified));
    }
}

/// Attack: the channel is frozen. The end counts once the clock is trusted, and only then.
#[test]
fn an_expired_channel_is_not_taken_once_the_clock_is_trusted() {
    let document = channel();
    assert_eq!(document.follow(None, Some(at("2026-12-30T23:59:59Z"))), Ok(ChannelClock::Verified));
    let refused = document.follow(None, Some(at("2026-12-31T00:00:00Z"))).expect_err("expired").to_string();
    assert!(refused.contains("good until 2026-12-31T00:00:00Z, and it is 2026-12-31T00:00:00Z"), "{refused}");
    assert_eq!(document.follow(None, None), Ok(ChannelClock::Unverified));
}

/// Attack: the source hides the trust document that ends a stolen key.
#[test]
fn a_channel_that_was_signed_after_a_hidden_trust_document_is_not_taken() {
    let later = ChannelDocument { trust: 2, ..channel() };
    let refused = read_channel(&signed(&later, &["channel"])).expect_err("hidden").fault;
    assert_eq!(refused, DocumentFault::TrustHidden { known: 1, want: 2 });
    let next = TrustDocument { number: 2, ..trust() };
    for document in [later, channel()] {
        let text = signed(&document, &["channel"]);
        assert_eq!(ChannelDocument::read(&next, "stable", &text, &ToySignatures), Ok(document));
    }
}

/// Attack: a release key is stolen. The next trust document is without it.
#[test]
fn a_key_that_the_next_trust_document_lacks_signs_nothing_more() {
    let mut next = trust();
    next.number = 2;
    next.keys[3] = key("release-b");
    next.release = role(1, &["release-b"]);
    let taken = trust().next(&signed(&next, &["root-1", "root-2"]), &ToySignatures).expect("the next one");
    let stolen = signed(&release(), &["release"]);
    not_signed(ReleaseDocument::read(&taken, version("0.2.0"), ARCH, &stolen, &ToySignatures));
    let good = signed(&release(), &["release-b"]);
    assert!(ReleaseDocument::read(&taken, version("0.2.0"), ARCH, &good, &ToySignatures).is_ok());
}

#[test]
fn a_withdrawn_release_is_not_taken_by_any_way() {
    let reason = "it loses its disk".to_owned();
    let withdrawn = vec![WithdrawnRelease { version: version("0.2.0"), reason: reason.clone() }];
    let channel = ChannelDocument { withdrawn, ..channel() };
    for by in [ReleaseReason::Offered, ReleaseReason::ByName] {
        let refused = release().judge(&node(), Some(&channel), by).expect_err("withdrawn").fault;
        assert_eq!(refused, DocumentFault::Withdrawn(reason.clone()));
    }
    assert_eq!(choose(&channel, &node(), b"seed", &BTreeSet::new(), None), ReleaseChoice::UpToDate);
}

/// Attack: root keys are stolen, fewer than the threshold; or the thief's own keys sign a chain of his.
#[test]
fn trust_passes_on_by_enough_keys_of_both_documents() {
    let mut next = trust();
    next.number = 2;
    next.keys[0] = key("root-1b");
    next.keys[1] = key("root-2b");
    next.root = role(2, &["root-1b", "root-2b", "root-3"]);
    let step = |keys: &[&str]| trust().next(&signed(&next, keys), &ToySignatures);
    // Of the old: root-1, root-2, root-3. Of the new: root-1b, root-2b, root-3.
    for few in [&["root-1"][..], &["root-1", "root-2"], &["root-1b", "root-2b"], &["root-3", "root-1b"]] {
        let said = not_signed(step(few));
        assert!(said.starts_with("trust 2: "), "{said}");
    }
    for enough in [&["root-1", "root-2", "root-1b", "root-2b"][..], &["root-1", "root-3", "root-1b"]] {
        assert_eq!(step(enough), Ok(next.clone()));
    }
}

#[test]
fn a_key_counts_once() {
    // One key, signed for twice.
    let mut envelope = Envelope::read(&signed(&trust(), &["root-1"])).expect("an envelope");
    envelope.signatures.push(envelope.signatures[0].clone());
    not_signed(TrustDocument::first(envelope.text().as_bytes(), &ToySignatures));
    // One key under two names.
    let mut twice = trust();
    twice.keys[1].public = twice.keys[0].public.clone();
    assert!(matches!(twice.check(), Err(DocumentFault::Field { .. })));
}

#[test]
fn no_trust_document_is_left_out() {
    for number in [1, 3, 200] {
        let other = TrustDocument { number, ..trust() };
        let text = signed(&other, &["root-1", "root-2", "root-3"]);
        let refused = trust().next(&text, &ToySignatures).expect_err("out of order").fault;
        assert_eq!(refused, DocumentFault::OutOfOrder { found: number, want: 2 });
    }
    let other = TrustDocument { number: 2, product: "else".to_owned(), ..trust() };
    let text = signed(&other, &["root-1", "root-2", "root-3"]);
    let refused = trust().next(&text, &ToySignatures).expect_err("another product").fault;
    assert!(matches!(refused, DocumentFault::OtherProduct { .. }));
}

/// A change of a document, and the field that is wrong then.
type WrongField<T> = (fn(&mut T), &'static str);

/// Documents that their makers cannot publish and no node takes, each with the field that is wrong.
#[test]
fn documents_that_cannot_be() {
    let trusts: [WrongField<TrustDocument>; 10] = [
        (|t| t.number = 0, "number"),
        (|t| t.product = "a/b".to_owned(), "product"),
        (|t| t.keys[1].id = "root-1".to_owned(), "keys[1]"),
        (|t| t.keys[0].public.0.truncate(31), "keys[0].public"),
        (|t| t.keys[0].algorithm = KeyAlgorithm::EcdsaP256, "keys[0].public"),
        (|t| t.root.threshold = 0, "root.threshold"),
        (|t| t.root.threshold = 4, "root.threshold"),
        (|t| t.root.keys[1] = "root-1".to_owned(), "root.keys"),
        (|t| t.channel.keys[0] = "nobody".to_owned(), "channel.keys"),
        (|t| t.channel.keys[0] = "root-1".to_owned(), "channel"),
    ];
    for (change, field) in trusts {
        let mut document = trust();
        change(&mut document);
        assert_field(document.check(), field);
    }
    let channels: [WrongField<ChannelDocument>; 7] = [
        (|c| c.trust = 0, "trust"),
        (|c| c.sequence = 0, "sequence"),
        (|c| c.channel = String::new(), "channel"),
        (|c| c.releases.push(c.releases[0].clone()), "releases[1]"),
        (|c| c.releases = vec![c.releases[0].clone(); 257], "releases"),
        (
            |c| c.releases[0].rollout = Some(Rollout { start: UtcSecond::new(0), hours: 9000 }),
            "releases[0].rollout.hours",
        ),
        (
            |c| {
                let reason = "two\nlines".to_owned();
                c.withdrawn = vec![WithdrawnRelease { version: c.releases[0].version, reason }];
            },
            "withdrawn[0].reason",
        ),
    ];
    for (change, field) in channels {
        let mut document = channel();
        change(&mut document);
        assert_field(document.check(), field);
    }
    let releases: [WrongField<ReleaseDocument>; 9] = [
        (|r| r.generation = 0, "generation"),
        (|r| r.revokes = Some(4), "revokes"),
        (|r| r.min_version = "0.2.1".parse().ok(), "minVersion"),
        (|r| r.root.algorithm = "md5".to_owned(), "root.algorithm"),
        (|r| r.root.blocks = 1, "files"),
        (|r| r.files[0].name = "../root.erofs".to_owned(), "files[0].name"),
        (|r| r.files[1].size = 0, "files[1].size"),
        (|r| r.files.truncate(4), "files"),
        (|r| r.files[0].size = 8191, "files"),
    ];
    for (change, field) in releases {
        let mut document = release();
        change(&mut document);
        assert_field(document.check(), field);
    }
}

fn assert_field(checked: Result<(), DocumentFault>, want: &str) {
    match checked {
        Err(DocumentFault::Field { field, .. }) => assert_eq!(field, want),
        other => panic!("{want}: {other:?}"),
    }
}

/// A newer publisher may say more than this node knows.
#[test]
fn unknown_fields_are_passed_over() {
    let mut envelope = Envelope::around(&channel()).expect("a good document");
    let mut payload: serde_json::Value = serde_json::from_slice(&envelope.payload.0).expect("JSON");
    payload["later"] = serde_json::json!({ "a": [1] });
    envelope.payload.0 = serde_json::to_vec(&payload).expect("JSON");
    let signature = toy(&key("channel"), &envelope.signed_bytes());
    envelope.sign("channel", signature);
    assert_eq!(read_channel(envelope.text().as_bytes()), Ok(channel()));
}

#[test]
fn a_barrier_is_passed_first() {
    let offered = |text, min: Option<&str>| ChannelRelease { min_version: min.map(version), ..offered(text) };
    let releases =
        vec![offered("0.1.5", None), offered("0.2.0", Some("0.1.5")), offered("0.3.0", Some("0.2.0"))];
    let channel = ChannelDocument { releases, ..channel() };
    for (running, want) in [("0.1.0", "0.1.5"), ("0.1.5", "0.2.0"), ("0.2.0", "0.3.0"), ("0.1.9", "0.2.0")] {
        let node = NodeRelease { running: version(running), ..node() };
        let choice = choose(&channel, &node, b"seed", &BTreeSet::new(), None);
        assert_eq!(choice, ReleaseChoice::Take(version(want)), "{running}");
    }
    let barred = ReleaseDocument { min_version: Some(version("0.1.5")), ..release() };
    let refused = barred.judge(&node(), None, ReleaseReason::ByName).expect_err("too old").to_string();
    assert!(refused.ends_with("this node runs 0.1.0: update to 0.1.5 first"), "{refused}");
}

#[test]
fn refused_versions_and_other_architectures_are_passed_over() {
    let mut arm = offered("0.4.0");
    arm.arch = "arm64".to_owned();
    let channel = ChannelDocument { releases: vec![arm, offered("0.3.0"), offered("0.2.0")], ..channel() };
    let none = BTreeSet::new();
    assert_eq!(choose(&channel, &node(), b"s", &none, None), ReleaseChoice::Take(version("0.3.0")));
    let refused = BTreeSet::from([version("0.3.0")]);
    // A node that took the older one would find it bad as well, forget the newer one, and take that again.
    assert_eq!(choose(&channel, &node(), b"s", &refused, None), ReleaseChoice::UpToDate);
    let refused = BTreeSet::from([version("0.2.0")]);
    assert_eq!(choose(&channel, &node(), b"s", &refused, None), ReleaseChoice::Take(version("0.3.0")));
    let newest = NodeRelease { running: version("0.3.0"), ..node() };
    assert_eq!(choose(&channel, &newest, b"s", &none, None), ReleaseChoice::UpToDate);
}

#[test]
fn a_node_waits_for_its_turn_and_for_a_clock() {
    let rollout = Rollout { start: at("2026-11-01T00:00:00Z"), hours: 48 };
    let mut rolled = offered("0.3.0");
    rolled.rollout = Some(rollout);
    let channel = ChannelDocument { releases: vec![rolled.clone()], ..channel() };
    let none = BTreeSet::new();
    let turn = turn(rollout, version("0.3.0"), b"seed");
    let waits = ReleaseChoice::Waits { version: version("0.3.0"), turn };
    for now in [None, Some(at("2026-10-01T00:00:00Z")), Some(UtcSecond::new(turn.seconds() - 1))] {
        assert_eq!(choose(&channel, &node(), b"seed", &none, now), waits);
    }
    assert_eq!(choose(&channel, &node(), b"seed", &none, Some(turn)), ReleaseChoice::Take(version("0.3.0")));
    // What is out already is taken meanwhile.
    let channel = ChannelDocument { releases: vec![rolled, offered("0.2.0")], ..channel };
    assert_eq!(choose(&channel, &node(), b"seed", &none, None), ReleaseChoice::Take(version("0.2.0")));
}

#[test]
fn turns_are_spread_evenly_and_differ_from_version_to_version() {
    let rollout = Rollout { start: UtcSecond::new(1_000_000), hours: 10 };
    let mut hours = [[0_u32; 10]; 2];
    let mut same = 0;
    for seed in 0..10_000_u32 {
        let turns =
            ["0.2.0", "0.3.0"].map(|v| turn(rollout, version(v), &seed.to_le_bytes()).seconds() - 1_000_000);
        for (counts, seconds) in hours.iter_mut().zip(turns) {
            counts[usize::try_from(seconds / 3600).expect("ten hours")] += 1;
        }
        same += u32::from(turns[0] / 3600 == turns[1] / 3600);
    }
    assert!(hours.iter().flatten().all(|count| (850..1150).contains(count)), "{hours:?}");
    assert!((850..1150).contains(&same), "{same}");
    let at_once = Rollout { hours: 0, ..rollout };
    assert_eq!(turn(at_once, version("0.2.0"), b"seed"), rollout.start);
}

#[test]
fn the_floor_keeps_the_way_back_open_and_never_falls() {
    let table: [(u64, &[u64], Option<u64>, u64); 5] = [
        (1, &[2, 3], None, 2),
        (1, &[3], None, 3),
        (2, &[1, 3], None, 2),
        (1, &[2, 3], Some(3), 3),
        (5, &[], None, 5),
    ];
    for (floor, bootable, revokes, want) in table {
        assert_eq!(floor_after_commit(floor, bootable, revokes), want);
    }
}

proptest! {
    #[test]
    fn no_text_panics_and_none_is_taken(text in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read_channel(&text).is_err());
        prop_assert!(read_release(&text).is_err());
        prop_assert!(TrustDocument::first(&text, &ToySignatures).is_err());
    }

    /// Whatever byte of a published text changes: nothing else is taken for it.
    #[test]
    fn a_changed_byte_never_changes_a_document(at in 0_usize..2000, bit in 0_u8..8) {
        let mut text = signed(&release(), &["release"]);
        let at = at % text.len();
        text[at] ^= 1 << bit;
        if let Ok(document) = read_release(&text) {
            prop_assert_eq!(document, release());
        }
    }
}
