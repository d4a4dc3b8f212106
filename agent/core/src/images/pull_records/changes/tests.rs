//! Pulls with a kill after each change of the files, and pulls of one image at once.

use agent_types::credential::{Credential, Origin};
use orlop_config::kubelet::enums::ImagePullCredentialsVerificationPolicy as Verification;

use super::super::{Check, Policy, check};
use super::*;

const ID: &str = "sha256:aa";
const IMAGE: &str = "a:1";

/// The two directories.
#[derive(Clone, Debug, Default)]
struct Disk {
    intents: BTreeMap<String, Intent>,
    records: BTreeMap<String, Record>,
}

fn parsed<T: Clone>(file: Option<&T>) -> OnDisk<T> {
    file.map_or(OnDisk::Absent, |file| OnDisk::Parsed(file.clone()))
}

impl Disk {
    fn make(&mut self, change: &FileChange) {
        match change {
            FileChange::WriteIntent(intent) => {
                drop(self.intents.insert(intent.image.clone(), intent.clone()))
            }
            FileChange::WriteRecord(record) => {
                drop(self.records.insert(record.image_ref.clone(), record.clone()))
            }
            FileChange::RemoveIntent(image) => drop(self.intents.remove(image)),
        }
    }

    fn known(&self, under_way: &PullsUnderWay) -> ImagePullState {
        under_way
            .by_record(IMAGE, ID, parsed(self.records.get(ID)))
            .unwrap_or_else(|| by_intent(IMAGE, &parsed(self.intents.get(IMAGE))))
    }

    /// True if a pod without credentials may use the image.
    fn is_open(&self, under_way: &PullsUnderWay) -> bool {
        let policy =
            Policy { verification: Some(Verification::NeverVerifyPreloadedImages), allowlist: Vec::new() };
        check(&policy, IMAGE, &self.known(under_way), &[], Wall(9)).0.may_use()
    }

    /// The next run of the agent.
    fn settle(&mut self, images: &[ImageInfo]) {
        let under_way = PullsUnderWay::default();
        for intent in self.intents.clone().into_values() {
            if let Some(found) = made_by(&intent, images) {
                let known = self.known(&under_way);
                settled(&intent, found.id.as_str(), &known, Wall(5)).iter().for_each(|c| self.make(c));
            }
        }
    }
}

fn image() -> ImageInfo {
    ImageInfo {
        id: ID.into(),
        uid: None,
        username: String::new(),
        size_bytes: 1,
        repo_tags: vec![IMAGE.to_owned()],
        repo_digests: Vec::new(),
        pinned: false,
    }
}

fn source(name: &str) -> Source {
    let text = name.to_owned();
    Source::Secret(Origin {
        uid: text.clone(),
        namespace: text.clone(),
        name: text.clone(),
        credential_hash: text,
    })
}

fn credential(name: &str) -> Credential {
    Credential { username: String::new(), password: String::new(), source: Some(source(name)) }
}

#[test]
fn a_kill_between_any_two_changes_leaves_no_pulled_image_open() {
    let (mut disk, mut under_way) = (Disk::default(), PullsUnderWay::default());
    disk.make(&PullsUnderWay::before_pull(IMAGE));
    // From here on the runtime may have the image.
    let mut kills = vec![disk.clone()];
    under_way.begun(IMAGE);
    let changes = under_way.after_pull(IMAGE, ID, Some(&source("s")), OnDisk::Absent, Wall(1));
    assert_eq!(changes.len(), 2);
    for change in &changes {
        disk.make(change);
        kills.push(disk.clone());
        assert!(!disk.is_open(&under_way));
    }
    under_way.ended(IMAGE);
    assert!(!disk.is_open(&under_way) && disk.intents.is_empty());
    for killed in kills {
        let mut next = killed.clone();
        assert!(!next.is_open(&PullsUnderWay::default()), "before it is settled: {killed:?}");
        next.settle(&[image()]);
        assert!(!next.is_open(&PullsUnderWay::default()), "{killed:?}");
        assert!(next.intents.is_empty() && next.records.contains_key(ID));
        let mut without = killed.clone();
        without.settle(&[]);
        assert_eq!(without.intents, killed.intents, "the runtime may still make the image");
    }
}

#[test]
fn the_last_of_several_pulls_takes_the_intent_away() {
    let mut under_way = PullsUnderWay::default();
    under_way.begun(IMAGE);
    under_way.begun(IMAGE);
    assert_eq!(under_way.after_failure(IMAGE), []);
    under_way.ended(IMAGE);
    assert_eq!(under_way.by_record(IMAGE, ID, OnDisk::Absent), Some(ImagePullState::Pulling));
    assert_eq!(under_way.after_failure(IMAGE), [FileChange::RemoveIntent(IMAGE.to_owned())]);
    under_way.ended(IMAGE);
    assert_eq!(under_way.by_record(IMAGE, ID, OnDisk::Absent), None);
    // A pull that was not counted ends like the last one.
    under_way.ended(IMAGE);
    assert_eq!(under_way.after_failure(IMAGE), [FileChange::RemoveIntent(IMAGE.to_owned())]);
}

#[test]
fn a_pull_adds_to_the_record_and_a_known_credential_changes_nothing() {
    let under_way = PullsUnderWay::default();
    let first = Record::new(ID, Wall(0)).with(IMAGE, Some(&source("s")), Wall(0)).unwrap();
    let again = under_way.after_pull(IMAGE, ID, Some(&source("s")), OnDisk::Parsed(first.clone()), Wall(1));
    assert_eq!(again, [FileChange::RemoveIntent(IMAGE.to_owned())]);
    let other = under_way.after_pull(IMAGE, ID, Some(&source("t")), OnDisk::Parsed(first.clone()), Wall(1));
    let both = first.with(IMAGE, Some(&source("t")), Wall(1)).unwrap();
    assert_eq!(other.first(), Some(&FileChange::WriteRecord(both)));
    // A damaged record, and one of another image at its place, are replaced.
    let new = Record::new(ID, Wall(1)).with(IMAGE, Some(&source("t")), Wall(1)).unwrap();
    for record in [OnDisk::Unreadable, OnDisk::Parsed(Record::new("sha256:bb", Wall(0)))] {
        let made = under_way.after_pull(IMAGE, ID, Some(&source("t")), record, Wall(1));
        assert_eq!(made.first(), Some(&FileChange::WriteRecord(new.clone())));
    }
}

#[test]
fn what_cannot_be_read_is_not_preloaded() {
    let under_way = PullsUnderWay::default();
    assert_eq!(under_way.by_record(IMAGE, ID, OnDisk::Unreadable), Some(ImagePullState::Unreadable));
    assert_eq!(by_intent(IMAGE, &OnDisk::Unreadable), ImagePullState::Unreadable);
    assert_eq!(by_intent(IMAGE, &OnDisk::Parsed(Intent::new("b:1"))), ImagePullState::Preloaded);
    assert_eq!(by_intent(IMAGE, &OnDisk::Absent), ImagePullState::Preloaded);
}

#[test]
fn a_pod_with_the_same_secret_under_another_name_is_recorded() {
    let policy = Policy { verification: Some(Verification::AlwaysVerify), allowlist: Vec::new() };
    let record = Record::new(ID, Wall(0)).with(IMAGE, Some(&source("s")), Wall(0)).unwrap();
    let known = ImagePullState::Pulled(record.clone());
    assert_eq!(check(&policy, IMAGE, &known, &[credential("s")], Wall(1)), (Check::RecordFound, None));
    assert_eq!(check(&policy, IMAGE, &known, &[credential("t")], Wall(1)), (Check::MustAuthenticate, None));
    let Source::Secret(own) = source("s") else { unreachable!() };
    let alias = Source::Secret(Origin { name: "alias".to_owned(), uid: "other".to_owned(), ..own });
    let same = Credential { source: Some(alias.clone()), ..credential("s") };
    let both = record.with(IMAGE, Some(&alias), Wall(1));
    assert!(both.is_some());
    assert_eq!(check(&policy, IMAGE, &known, &[same], Wall(1)), (Check::RecordFound, both));
}

#[test]
fn records_of_images_that_are_gone() {
    let record = Record::new(ID, Wall(1_000_000_000));
    let later = Wall(5_000_000_000);
    assert!(is_of_gone_image(&record, &[], later));
    assert!(!is_of_gone_image(&record, &[image()], later));
    assert!(!is_of_gone_image(&record, &[], Wall(999_999_999)), "it is younger than the list");
}
