//! Keys that are made, replaced and lost.

use super::*;

fn made() -> (tempfile::TempDir, KeyDirectory, TrustDocument) {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let keys = KeyDirectory::new(&dir.path().join("keys"));
    let trust = keys.create(3, 2).expect("made");
    (dir, keys, trust)
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .expect("listed")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn keys_are_made_once_with_a_trust_document_that_nodes_take() {
    let (_dir, keys, trust) = made();
    let all = ["channel.pem", "release.pem", "root-1.pem", "root-2.pem", "root-3.pem", "trust"];
    assert_eq!(names(keys.path()), all);
    assert_eq!(newest_trust(keys.path()).expect("a chain"), trust);
    assert_eq!([KeyRole::Root, KeyRole::Release].map(|role| trust.keys_of(role).len()), [3, 1]);
    assert!(keys.create(3, 2).expect_err("keys").to_string().contains("has keys already"));
    let other = KeyDirectory::new(&keys.path().join("other"));
    assert!(other.create(2, 3).is_err());
    assert!(other.create(9, 2).is_err());
    assert!(!other.path().exists());
}

#[test]
fn keys_that_no_document_names_are_removed_and_others_are_not() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let keys = KeyDirectory::new(dir.path());
    fs::write(dir.path().join("channel.pem"), "another program's").expect("written");
    let refused = format!("{:#}", keys.create(3, 2).expect_err("there is one"));
    assert!(refused.contains("channel.pem"), "{refused}");
    assert_eq!(names(dir.path()), ["channel.pem"]);
    fs::remove_file(dir.path().join("channel.pem")).expect("removed");
    assert!(keys.create(3, 2).is_ok());
}

/// As many root keys as can be made: their successors have signatures of both documents.
#[test]
fn one_of_the_most_root_keys_can_be_replaced() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let keys = KeyDirectory::new(dir.path());
    keys.create(ROOTS_MAX, ROOTS_MAX).expect("made");
    assert_eq!(keys.replace("root-1").expect("replaced").number, 2);
}

#[test]
fn a_lost_key_is_replaced_by_its_name() {
    let (_dir, keys, first) = made();
    for (number, name) in (2..).zip(["release", "root-3"]) {
        fs::remove_file(keys.path().join(format!("{name}.pem"))).expect("lost");
        let next = keys.replace(name).expect(name);
        assert_eq!(next.number, number);
        assert!(keys.path().join(format!("{name}.pem")).exists(), "{name}");
    }
    let newest = newest_trust(keys.path()).expect("a chain");
    assert_eq!(newest.keys.iter().filter(|key| first.keys.contains(key)).count(), first.keys.len() - 2);
    assert!(is_named("root-1-0123abcd", "root-1") && !is_named("root-1-0123abcd", "root"));
}

#[test]
fn every_key_can_be_replaced() {
    let (_dir, keys, first) = made();
    for (number, name) in (2..).zip(["release", "channel", "root-1", "root-2", "root-1"]) {
        let before = newest_trust(keys.path()).expect("a chain");
        let next = keys.replace(name).expect(name);
        assert_eq!(next.number, number);
        assert_eq!(newest_trust(keys.path()).expect("a chain"), next);
        let kept = next.keys.iter().filter(|key| before.keys.contains(key)).count();
        assert_eq!(kept, first.keys.len() - 1, "{name}");
    }
}

#[test]
fn a_replacement_without_enough_root_keys_leaves_all_as_it_was() {
    let (_dir, keys, trust) = made();
    for name in ["root-1.pem", "root-2.pem"] {
        fs::remove_file(keys.path().join(name)).expect("removed");
    }
    let before = names(keys.path());
    let refused = keys.replace("release").expect_err("too few").to_string();
    assert!(refused.contains("has 1 of the 2 keys of role root"), "{refused}");
    assert_eq!(names(keys.path()), before);
    assert!(keys.signed(&trust, KeyRole::Release).is_ok(), "the release key is the old one");
    assert!(keys.replace("nobody").is_err());
}

#[test]
fn a_key_of_another_role_does_not_sign() {
    let (_dir, keys, trust) = made();
    fs::remove_file(keys.path().join("release.pem")).expect("removed");
    let refused = keys.signed(&trust, KeyRole::Release).expect_err("no key").to_string();
    assert!(refused.contains("has 0 of the 1 keys of role release"), "{refused}");
}
