//! Captures: who may have one, and of what.

use super::{FakeNode, code, text};

#[test]
fn a_capture_needs_an_administrator_and_an_interface_of_the_node() {
    let node = FakeNode::start();
    let file = node.dir.path().join("a.pcap");
    let words = ["capture", "eth7", file.to_str().unwrap()];
    let operator = node.ctl(&words);
    assert_eq!(code(&operator), 4, "{}", text(&operator.stderr));
    assert!(text(&operator.stderr).contains("ROLE_TOO_LOW"), "{}", text(&operator.stderr));
    let key = node.key("ops-1", true);
    let unknown = node.by_tcp(&key, &node.pin(), &words);
    assert_eq!(code(&unknown), 1, "{}", text(&unknown.stderr));
    assert!(text(&unknown.stderr).contains("no such interface"), "{}", text(&unknown.stderr));
    let odd =
        node.by_tcp(&key, &node.pin(), &["capture", "eth7", file.to_str().unwrap(), "--host", "edge-7"]);
    assert!(text(&odd.stderr).contains("BAD_REQUEST"), "{}", text(&odd.stderr));
    assert!(!file.exists(), "a refused capture leaves no file");
}
