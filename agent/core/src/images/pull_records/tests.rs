//! Files in upstream's format, and the pods that may use an image.

use super::*;

const ID: &str = "sha256:aa";
const IMAGE: &str = "r.example:5000/team/app:1";

fn origin(name: &str, hash: &str) -> Origin {
    Origin {
        uid: format!("uid-{name}"),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        credential_hash: hash.to_owned(),
    }
}

fn secret(name: &str, hash: &str) -> Source {
    Source::Secret(origin(name, hash))
}

fn account(name: &str) -> AccountName {
    AccountName { uid: format!("uid-{name}"), namespace: "ns".to_owned(), name: name.to_owned() }
}

fn credential(name: &str, hash: &str) -> Credential {
    Credential { username: "u".to_owned(), password: "p".to_owned(), source: Some(secret(name, hash)) }
}

fn at(seconds: i64) -> Wall {
    Wall(seconds * 1_000_000_000)
}

fn policy(verification: Verification, allowlist: &[&str]) -> Policy {
    let allowlist = allowlist.iter().map(|p| (*p).to_owned()).collect();
    Policy { verification: Some(verification), allowlist }
}

#[test]
fn files_are_upstreams() {
    assert_eq!(file_name("abc"), "sha256-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    let intent =
        r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"busybox"}"#;
    assert_eq!(Intent::new("busybox").to_bytes(), format!("{intent}\n").into_bytes());
    assert_eq!(Intent::parse(intent.as_bytes()), Ok(Intent::new("busybox")));
    let record = Record::new(ID, at(0)).with(IMAGE, Some(&secret("s", "h")), at(1)).unwrap();
    let record = record.with("other", None, at(2)).unwrap();
    let text = concat!(
        r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","#,
        r#""lastUpdatedTime":"1970-01-01T00:00:02Z","imageRef":"sha256:aa","credentialMapping":{"#,
        r#""other":{"nodePodsAccessible":true},"r.example:5000/team/app":{"kubernetesSecrets":["#,
        r#"{"uid":"uid-s","namespace":"ns","name":"s","credentialHash":"h"}]}}}"#
    );
    assert_eq!(String::from_utf8(record.to_bytes()).unwrap(), format!("{text}\n"));
    assert_eq!(Record::parse(text.as_bytes()), Ok(record.clone()));
    let old = text.replace("v1beta1", "v1alpha1");
    let renewed = Record::parse(old.as_bytes()).unwrap().with("more", None, at(3)).unwrap();
    assert!(String::from_utf8(renewed.to_bytes()).unwrap().contains("v1beta1"));
    let bad = [
        text.replace("v1beta1", "v2"),
        text.replace("ImagePulledRecord", "ImagePullIntent"),
        text.replace("imageRef", "image"),
        text.replacen('{', r#"{"more":1,"#, 1),
        String::new(),
    ];
    for text in bad {
        assert!(Record::parse(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_record_learns_and_does_not_repeat_itself() {
    let first = Record::new(ID, at(0)).with(IMAGE, Some(&secret("b", "1")), at(1)).unwrap();
    assert_eq!(first.with(IMAGE, Some(&secret("b", "1")), at(2)), None);
    let renewed = first.with(IMAGE, Some(&secret("b", "2")), at(2)).unwrap();
    let both = renewed.with(IMAGE, Some(&secret("a", "3")), at(3)).unwrap();
    let secrets = &both.credential_mapping["r.example:5000/team/app"].kubernetes_secrets;
    assert_eq!(*secrets, [origin("a", "3"), origin("b", "2")]);
    let open = both.with(IMAGE, None, at(4)).unwrap();
    assert!(open.credential_mapping["r.example:5000/team/app"].kubernetes_secrets.is_empty());
    assert_eq!(open.with(IMAGE, Some(&secret("c", "4")), at(5)), None, "it is everybody's");
}

#[test]
fn the_age_of_a_record_is_known_to_the_second() {
    let half = 500_000_000;
    let record = Record::new(ID, Wall(at(5).0 + half));
    assert!(record.is_before(at(6)));
    assert!(!record.is_before(Wall(at(5).0 + half)), "it may be younger than that");
    assert!(!record.is_before(at(5)));
}

#[test]
fn who_may_use_what_was_pulled() {
    let default = policy(Verification::NeverVerifyPreloadedImages, &[]);
    let by_secret = Record::new(ID, at(0)).with(IMAGE, Some(&secret("s", "h")), at(1)).unwrap();
    let open = Record::new(ID, at(0)).with(IMAGE, None, at(1)).unwrap();
    let pulled = |record: &Record| ImagePullState::Pulled(record.clone());
    let table = [
        (pulled(&by_secret), vec![credential("s", "h")], Access::Granted),
        (pulled(&by_secret), vec![credential("x", "y"), credential("s", "h")], Access::Granted),
        (pulled(&by_secret), vec![credential("s", "new")], Access::GrantedBy(origin("s", "new"))),
        (pulled(&by_secret), vec![credential("t", "h")], Access::GrantedBy(origin("t", "h"))),
        (pulled(&by_secret), vec![credential("t", "i")], Access::MustPull),
        (pulled(&by_secret), vec![], Access::MustPull),
        (pulled(&open), vec![], Access::Granted),
        (pulled(&Record::new(ID, at(0))), vec![credential("s", "h")], Access::MustPull),
        (ImagePullState::Preloaded, vec![], Access::Allowed),
        (ImagePullState::Pulling, vec![credential("s", "h")], Access::MustPull),
        (ImagePullState::Unreadable, vec![credential("s", "h")], Access::MustPull),
    ];
    for (known, credentials, expected) in table {
        assert_eq!(access(&default, IMAGE, &known, &credentials), expected, "{known:?} {credentials:?}");
    }
    let other_name = "r.example:5000/team/other:1";
    assert_eq!(
        access(&default, other_name, &pulled(&open), &[]),
        Access::MustPull,
        "the same image by another name"
    );
    let same_repository = format!("r.example:5000/team/app@sha256:{}", "0".repeat(64));
    assert_eq!(access(&default, &same_repository, &pulled(&open), &[]), Access::Granted);
    // A Secret whose hash could not be made matches by what it is only.
    let hashless = Record::new(ID, at(0)).with(IMAGE, Some(&secret("s", "")), at(1)).unwrap();
    assert_eq!(access(&default, IMAGE, &pulled(&hashless), &[credential("t", "")]), Access::MustPull);
}

#[test]
fn service_accounts() {
    let default = policy(Verification::NeverVerifyPreloadedImages, &[]);
    let of = |name: &str| Credential {
        username: "u".to_owned(),
        password: "p".to_owned(),
        source: Some(Source::Account(account(name))),
    };
    let record = Record::new(ID, at(0)).with(IMAGE, Some(&Source::Account(account("b"))), at(1)).unwrap();
    assert_eq!(record.with(IMAGE, Some(&Source::Account(account("b"))), at(2)), None);
    let record = record.with(IMAGE, Some(&Source::Account(account("a"))), at(2)).unwrap();
    assert!(record.has_accounts(IMAGE) && !record.has_accounts("other:1"));
    let text = r#""r.example:5000/team/app":{"kubernetesServiceAccounts":[{"uid":"uid-a","namespace":"ns","name":"a"},{"uid":"uid-b","namespace":"ns","name":"b"}]}"#;
    assert!(String::from_utf8(record.to_bytes()).unwrap().contains(text));
    let known = ImagePullState::Pulled(record.clone());
    let seen = |credentials: &[Credential]| access(&default, IMAGE, &known, credentials);
    assert_eq!(seen(&[of("a")]), Access::Granted);
    assert_eq!(seen(&[credential("s", "h"), of("b")]), Access::Granted);
    assert_eq!(seen(&[of("c")]), Access::MustPull);
    assert_eq!(seen(&[credential("a", "h")]), Access::MustPull, "a Secret is no account");
    let open = record.with(IMAGE, None, at(3)).unwrap();
    assert!(!open.has_accounts(IMAGE), "it is everybody's");
}

#[test]
fn policies() {
    let open = ImagePullState::Pulled(Record::new(ID, at(0)).with(IMAGE, None, at(1)).unwrap());
    let others = ImagePullState::Pulled(Record::new(ID, at(0)));
    let allowed = policy(Verification::NeverVerifyAllowlistedImages, &["r.example:5000/team/*", "pause"]);
    let table = [
        (policy(Verification::NeverVerify, &[]), IMAGE, &others, true),
        (policy(Verification::AlwaysVerify, &[]), IMAGE, &ImagePullState::Preloaded, false),
        (policy(Verification::AlwaysVerify, &[]), IMAGE, &open, true),
        (allowed.clone(), IMAGE, &others, true),
        (allowed.clone(), "pause:3", &others, true),
        (allowed.clone(), "pause/more:3", &others, false),
        (allowed, "r.example:5000/teams/app", &ImagePullState::Preloaded, false),
        (Policy { verification: None, allowlist: Vec::new() }, IMAGE, &others, true),
    ];
    for (policy, image, known, granted) in table {
        let seen = access(&policy, image, known, &[]);
        assert_eq!(seen != Access::MustPull, granted, "{policy:?} {image} {known:?}");
    }
}
