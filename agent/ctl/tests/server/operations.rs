//! Operations: they go on without their client, wait for their time, and are no stranger's.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::{FakeNode, code, ctl, json, text};

#[test]
fn an_operation_goes_on_without_its_client_and_is_asked_for_by_its_identifier() {
    const ID: &str = "01936f2e-0102-7fff-bfff-ffffffffffff";
    let node = FakeNode::start();
    let mut child = ctl("--socket", &node.socket(), &["reboot", "--id", ID]).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(said.next().unwrap(), format!("orlopctl: operation {ID}"));
    assert!(said.any(|line| line == "orlopctl: waiting"));
    child.kill().unwrap();
    child.wait().unwrap();
    let document = json(&node.ctl(&["get", "operations", "-o", "json"]));
    let (item, status) = (&document["items"][0], &document["items"][0]["status"]);
    assert_eq!((item["kind"].as_str(), item["metadata"]["name"].as_str()), (Some("operations"), Some(ID)));
    assert_eq!(
        (status["phase"].as_str(), status["bootIdBefore"].as_str()),
        (Some("waiting"), Some("boot-1"))
    );
    let kept = node.dir.path().join(format!("root/var/lib/orlop/api/operations/{ID}.json"));
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    let late = node.ctl(&["wait", ID, "--for", "1"]);
    assert_eq!(code(&late), 5, "{}", text(&late.stderr));
    for (words, reason) in [
        (&["shutdown"][..], "OPERATION_RUNNING"),
        (&["cancel", ID], "TOO_LATE"),
        (&["wait", "01936f2e-0102-7fff-bfff-000000000000"], "NO_SUCH_OPERATION"),
        (&["reboot", "--id", "../../x"], "BAD_REQUEST"),
    ] {
        let refused = node.ctl(words);
        assert_eq!(code(&refused), 1, "{words:?}: {}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains(reason), "{words:?}: {}", text(&refused.stderr));
    }
}

#[test]
fn an_operation_that_waits_for_its_time_is_called_off() {
    let node = FakeNode::start();
    let begun = node.ctl(&["reboot", "--in", "600", "--no-wait", "-o", "json"]);
    assert_eq!(code(&begun), 0, "{}", text(&begun.stderr));
    let begun = json(&begun);
    assert_eq!(begun["phase"], "scheduled");
    let id = begun["id"].as_str().unwrap();
    let off = node.ctl(&["cancel", id]);
    assert_eq!(code(&off), 0, "{}", text(&off.stderr));
    let ended = node.ctl(&["wait", id]);
    assert_eq!(code(&ended), 1);
    assert!(text(&ended.stdout).contains("phase      cancelled\n"), "{}", text(&ended.stdout));
    let other = node.ctl(&["restart", "no"]);
    assert!(text(&other.stderr).contains("NOT_RESTARTABLE"), "{}", text(&other.stderr));
}

#[test]
fn a_stranger_does_nothing_to_the_node() {
    let node = FakeNode::with(1, Duration::from_secs(600));
    for words in [&["reboot"][..], &["shutdown"], &["restart", "kubelet"], &["get", "operations"]] {
        let refused = node.ctl(words);
        assert_eq!(code(&refused), 4, "{words:?}: {}", text(&refused.stderr));
    }
    assert!(!node.dir.path().join("root/var/lib/orlop/api/operations").exists());
}
