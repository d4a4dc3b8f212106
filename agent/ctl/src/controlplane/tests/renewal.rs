//! `--out` and `--renew`: directories, and authorities that are used again.

use std::fs;
use std::path::Path;

use super::certificates::{is_client, is_server};
use super::*;

fn gen_into(out: &Path, more: &[&str], now: i64) -> Result<String, ControlplaneError> {
    let out = out.to_str().unwrap();
    generate(&args(&[&["--single", "--endpoint", "192.0.2.10:6443", "--out", out][..], more].concat()), now)
}

#[test]
fn what_is_there_stays_and_the_summary_has_the_dates() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let said = gen_into(&out, &[], NOW).unwrap();
    for words in [
        "certificates are good until 2028-01-15",
        "authorities until 2037-01-12",
        "the token until 2027-01-16",
        "control-plane-1.yaml is its NodeConfig",
        "admin.conf get nodes",
    ] {
        assert!(said.contains(words), "{words:?} is not in:\n{said}");
    }
    assert!(!said.contains("PRIVATE") && !said.contains("loopback"), "{said}");
    let elsewhere = dir.path().join("loopback");
    let words = ["--single", "--endpoint", "127.0.0.1:6443", "--out", elsewhere.to_str().unwrap()];
    assert!(generate(&args(&words), NOW).unwrap().contains("the endpoint is a loopback"));
    let before = fs::read(out.join("worker.yaml")).unwrap();
    let error = gen_into(&out, &[], NOW).unwrap_err();
    assert!(error.to_string().contains("never written over"), "{error}");
    assert_eq!(fs::read(out.join("worker.yaml")).unwrap(), before);
}

#[test]
fn renewed_certificates_verify_under_the_same_authorities() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    gen_into(&old, &[], NOW).unwrap();
    let later = NOW + 300 * 24 * 3600;
    gen_into(&new, &["--renew", old.to_str().unwrap()], later).unwrap();
    for file in AUTHORITY_FILES.iter().flat_map(|file| [format!("{file}.crt"), format!("{file}.key")]) {
        assert_eq!(fs::read(old.join(&file)).unwrap(), fs::read(new.join(&file)).unwrap(), "{file}");
    }
    for file in [SERVICE_ACCOUNT_FILE, SERVICE_ACCOUNT_PUBLIC_FILE] {
        assert_eq!(fs::read(old.join(file)).unwrap(), fs::read(new.join(file)).unwrap(), "{file}");
    }
    let document = |dir: &Path| placed(&fs::read_to_string(dir.join("control-plane-1.yaml")).unwrap());
    let authority = |name: &str| fs::read_to_string(old.join(name)).unwrap();
    let at = later + 364 * 24 * 3600;
    for (dir, is_good) in [(&old, false), (&new, true)] {
        let files = document(dir);
        let text = |name: &str| files[&format!("/etc/kubernetes/pki/{name}.crt")].1.as_str();
        assert_eq!(is_server(&authority("pki/ca.crt"), text("apiserver"), "localhost", at), is_good);
        assert_eq!(is_client(&authority("pki/etcd/ca.crt"), text("apiserver-etcd-client"), at), is_good);
        assert_eq!(is_client(&authority("pki/front-proxy-ca.crt"), text("front-proxy-client"), at), is_good);
    }
}

#[test]
fn authorities_that_are_not_whole_or_not_ours_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    gen_into(&old, &[], NOW).unwrap();
    let renew = ["--renew", old.to_str().unwrap()];
    let refused = |words: &str, now: i64| {
        let error = gen_into(&new, &renew, now).unwrap_err();
        assert!(error.to_string().contains(words), "{words:?}: {error}");
        assert_eq!(error.exit_code(), crate::failure::USAGE);
        assert!(!new.exists());
    };
    refused("this authority has ended", NOW + 3651 * 24 * 3600);
    refused("this authority has not begun", NOW - 2 * 24 * 3600);
    let key = fs::read(old.join("pki/ca.key")).unwrap();
    fs::copy(old.join("pki/etcd/ca.key"), old.join("pki/ca.key")).unwrap();
    refused("its key is another one's", NOW);
    fs::write(old.join("pki/ca.key"), "text").unwrap();
    refused("pki/ca.crt: its key", NOW);
    fs::remove_file(old.join("pki/ca.key")).unwrap();
    refused("pki/ca.key", NOW);
    // Another authority of ours, under the name of this one.
    fs::copy(old.join("pki/etcd/ca.crt"), old.join("pki/ca.crt")).unwrap();
    fs::copy(old.join("pki/etcd/ca.key"), old.join("pki/ca.key")).unwrap();
    refused("its subject is not the CN=kubernetes", NOW);
    // A certificate that is none of an authority.
    let files = placed(&fs::read_to_string(old.join("control-plane-1.yaml")).unwrap());
    for suffix in ["crt", "key"] {
        let text = &files[&format!("/etc/kubernetes/pki/apiserver.{suffix}")].1;
        fs::write(old.join(format!("pki/ca.{suffix}")), text).unwrap();
    }
    refused("no authority's certificate", NOW);
    fs::write(old.join("pki/ca.key"), key).unwrap();
    fs::write(old.join("pki/sa.key"), "text").unwrap();
    refused("pki/sa.key", NOW);
}
