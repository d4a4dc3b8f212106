//! Records on disk through the life and death of agents.

use agent_types::credential::Origin;
use orlop_config::kubelet::enums::ImagePullCredentialsVerificationPolicy as Verification;

use super::*;

const ID: &str = "sha256:aa";

fn records(root: &Path) -> RecordFiles {
    let verification = Some(Verification::NeverVerifyPreloadedImages);
    RecordFiles::new(root, Policy { verification, allowlist: Vec::new() })
}

fn origin(name: &str) -> Origin {
    let own = |text: &str| text.to_owned();
    Origin { uid: own("u"), namespace: own("ns"), name: own(name), credential_hash: own(name) }
}

fn with(origin: Origin) -> Vec<Credential> {
    vec![Credential {
        username: "u".to_owned(),
        password: "p".to_owned(),
        source: Some(Source::Secret(origin)),
    }]
}

fn image(id: &str, tag: &str) -> ImageInfo {
    ImageInfo {
        id: id.into(),
        uid: None,
        username: String::new(),
        size_bytes: 1,
        repo_tags: vec![tag.to_owned()],
        repo_digests: Vec::new(),
        pinned: false,
    }
}

fn count(directory: &Path) -> usize {
    files::visible_names(directory).unwrap().len()
}

#[test]
fn a_pull_is_its_pullers_also_for_the_next_agent() {
    let root = tempfile::tempdir().unwrap();
    let mut r = records(root.path());
    r.settle(&[], Wall(0)).unwrap();
    assert_eq!(r.check("a:1", ID, &[], Wall(0)), Check::PolicyAllowed, "it was there before");
    r.begin("a:1").unwrap();
    let being_pulled = r.check("a:1", ID, &with(origin("s")), Wall(0));
    assert_eq!((being_pulled, r.sizes()), (Check::MustAuthenticate, (1, 0)));
    r.pulled("a:1", ID, Some(&Source::Secret(origin("s"))), Wall(1));
    assert_eq!((count(&r.pulling), r.sizes()), (0, (0, 1)));
    assert_eq!(r.check("a:1", ID, &with(origin("s")), Wall(1)), Check::RecordFound);
    for mut agent in [r, records(root.path())] {
        agent.settle(&[image(ID, "a:1")], Wall(2)).unwrap();
        assert!(agent.check("a:1", ID, &with(origin("s")), Wall(2)).may_use());
        assert!(!agent.check("a:1", ID, &with(origin("t")), Wall(2)).may_use());
        assert!(!agent.check("a:1", ID, &[], Wall(2)).may_use());
    }
    // The same password in a Secret of another name is recorded with that name, too.
    let alias = Origin { name: "alias".to_owned(), ..origin("s") };
    assert!(records(root.path()).check("a:1", ID, &with(alias.clone()), Wall(3)).may_use());
    let renewed = Origin { credential_hash: "new".to_owned(), ..alias };
    assert!(records(root.path()).check("a:1", ID, &with(renewed), Wall(4)).may_use());
    let mut agent = records(root.path());
    let second = 1_000_000_000;
    agent.prune(&[image(ID, "a:1")], Wall(5 * second)).unwrap();
    agent.prune(&[], Wall(second - 1)).unwrap();
    assert_eq!(count(&agent.pulled), 1, "it is there, or was not yet when images were asked for");
    agent.prune(&[], Wall(5 * second)).unwrap();
    assert_eq!(count(&agent.pulled), 0, "the image is gone");
}

#[test]
fn a_pull_that_outlived_the_agent_is_nobodys_until_it_is_pulled_again() {
    let root = tempfile::tempdir().unwrap();
    let mut r = records(root.path());
    r.begin("a:1").unwrap();
    drop(r);
    let mut r = records(root.path());
    assert!(!r.check("a:1", ID, &with(origin("s")), Wall(0)).may_use());
    r.settle(&[image("sha256:bb", "b:1"), image(ID, "a:1")], Wall(1)).unwrap();
    assert_eq!((count(&r.pulling), count(&r.pulled)), (0, 1));
    assert!(!r.check("a:1", ID, &with(origin("s")), Wall(1)).may_use());
    r.begin("a:1").unwrap();
    r.pulled("a:1", ID, Some(&Source::Secret(origin("s"))), Wall(2));
    assert!(r.check("a:1", ID, &with(origin("s")), Wall(2)).may_use());
    assert!(r.check("b:1", "sha256:bb", &[], Wall(2)).may_use(), "that one was there before");
}

#[test]
fn two_pulls_at_once_and_one_that_failed() {
    let root = tempfile::tempdir().unwrap();
    let mut r = records(root.path());
    r.begin("a:1").unwrap();
    r.begin("a:1").unwrap();
    r.failed("a:1");
    assert_eq!(count(&r.pulling), 1, "the other one goes on");
    r.pulled("a:1", ID, None, Wall(1));
    assert_eq!((count(&r.pulling), count(&r.pulled)), (0, 1));
    assert!(r.check("a:1", ID, &[], Wall(1)).may_use(), "it wants no credential");
    r.begin("b:1").unwrap();
    r.abandoned("b:1");
    assert!(!r.check("b:1", "sha256:bb", &[], Wall(1)).may_use(), "the runtime may have pulled it");
    r.begin("b:1").unwrap();
    r.failed("b:1");
    assert_eq!(count(&r.pulling), 0);
    assert!(r.check("b:1", "sha256:bb", &[], Wall(1)).may_use());
}

#[test]
fn what_cannot_be_read_opens_nothing() {
    let root = tempfile::tempdir().unwrap();
    let mut r = records(root.path());
    r.settle(&[], Wall(0)).unwrap();
    for (directory, image) in [(&r.pulled, ID), (&r.pulling, "b:1")] {
        std::fs::write(directory.join(file_name(image)), "{").unwrap();
    }
    assert!(!r.check("a:1", ID, &with(origin("s")), Wall(0)).may_use());
    assert!(!r.check("b:1", "sha256:bb", &with(origin("s")), Wall(0)).may_use());
    r.begin("a:1").unwrap();
    r.pulled("a:1", ID, Some(&Source::Secret(origin("s"))), Wall(1));
    assert!(r.check("a:1", ID, &with(origin("s")), Wall(1)).may_use(), "it was mended");
    std::fs::write(r.pulled.join("other"), "{").unwrap();
    r.settle(&[image(ID, "a:1")], Wall(2)).unwrap();
    let mut off = RecordFiles::new(root.path(), Policy { verification: None, allowlist: Vec::new() });
    assert!(off.policy.is_off() && off.check("b:1", "sha256:bb", &[], Wall(0)).may_use());
}
