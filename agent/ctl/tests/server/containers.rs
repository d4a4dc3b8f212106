//! Logs of containers and versions of the system: files as a runtime leaves them, and a fake updater at its socket.

use std::io::Write as _;

use super::*;

/// A record of a container's log.
fn record(second: u32, output: &str, message: &str) -> String {
    format!("2026-11-21T04:00:{second:02}Z {output} F {message}\n")
}

fn put(node: &FakeNode, path: &str, text: &str) {
    let file = node.dir.path().join("root").join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

#[test]
fn logs_of_a_container_need_no_agent_and_no_journal() {
    let node = FakeNode::start();
    put(&node, "var/log/pods/shop_web-0_u1/app/0.log", &record(1, "stdout", "before"));
    let last = record(2, "stdout", "one") + &record(3, "stderr", "two") + &record(4, "stdout", "a\u{1b}[2J");
    put(&node, "var/log/pods/shop_web-0_u1/app/1.log", &last);
    let shown = node.ctl(&["logs", "--pod", "shop/web-0"]);
    assert_eq!(code(&shown), 0, "{}", text(&shown.stderr));
    let expected = "2026-11-21T04:00:02.000Z stdout: one\n2026-11-21T04:00:03.000Z stderr: two\n\
                    2026-11-21T04:00:04.000Z stdout: a?[2J\n";
    assert_eq!(text(&shown.stdout), expected);
    let tail = node.ctl(&["logs", "--pod", "shop/web-0", "-c", "app", "--tail", "1", "-o", "json"]);
    let tail: Value = serde_json::from_str(&text(&tail.stdout)).unwrap();
    assert_eq!(
        (tail["source"].as_str(), tail["timeUs"].as_u64()),
        (Some("stdout"), Some(1_795_233_604_000_000))
    );
    let previous = node.ctl(&["logs", "--pod", "shop/web-0", "-p"]);
    assert!(text(&previous.stdout).ends_with(" stdout: before\n"), "{}", text(&previous.stdout));
    for (pod, reason) in [("shop/none", "NO_SUCH_LOG"), ("web-0", "NO_SUCH_LOG"), ("shop/..", "BAD_REQUEST")]
    {
        let refused = node.ctl(&["logs", "--pod", pod]);
        assert_eq!(code(&refused), 1, "{pod}");
        assert!(text(&refused.stderr).contains(reason), "{pod}: {}", text(&refused.stderr));
    }
    let listed = text(&node.ctl(&["logs", "--list"]).stdout);
    assert!(listed.ends_with("boot.json\nshop/web-0\n"), "{listed}");
}

#[test]
fn a_stranger_reads_no_log_of_a_container_and_orders_no_version() {
    let node = FakeNode::with(1, Duration::from_secs(600));
    put(&node, "var/log/pods/shop_web-0_u1/app/0.log", &record(1, "stdout", "secret"));
    for words in [&["logs", "--pod", "shop/web-0"][..], &["rollback"], &["upgrade", "--stage"]] {
        let refused = node.ctl(words);
        assert_eq!(code(&refused), 4, "{words:?}: {}", text(&refused.stderr));
        assert!(refused.stdout.is_empty(), "{words:?}");
    }
}

/// Answers each request of the updater's socket with one line, for as long as the process lives.
fn updater(node: &FakeNode, answer: impl Fn(&str) -> String + Send + 'static) {
    let listener = UnixListener::bind(node.dir.path().join("root/run/orlop/update.sock")).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
            // A client that is gone hears nothing.
            let _ = stream.write_all(answer(&request).as_bytes());
        }
    });
}

/// The report of both slots: slot A runs 0.1.0.
fn slots(other_state: &str) -> String {
    let slots = serde_json::json!({
        "running": "a", "desired": "a", "runningVersion": "0.1.0", "runningState": "good",
        "otherVersion": "0.2.0", "otherState": other_state, "otherReason": "runtime: it is down"
    });
    format!("{}\n", serde_json::json!({"state": "idle", "message": "both", "slots": slots}))
}

#[test]
fn a_version_is_staged_to_its_end_and_what_the_updater_says_is_shown() {
    for (report, exit, words) in [
        (r#"{"state":"staged","message":"it is there","version":"0.3.0"}"#, 0, "0.3.0 is in the other slot"),
        (r#"{"state":"failed","message":"its UKI is not signed"}"#, 1, "its UKI is not signed (NOT_STAGED)"),
    ] {
        let node = FakeNode::start();
        updater(
            &node,
            move |request| if request.contains("slots") { slots("staged") } else { format!("{report}\n") },
        );
        let ended = node.ctl(&["upgrade", "--stage", "--version", "0.3.0"]);
        assert_eq!(code(&ended), exit, "{}", text(&ended.stderr));
        assert!(text(&ended.stdout).contains(words), "{}", text(&ended.stdout));
    }
}

#[test]
fn a_rollback_that_cannot_be_is_refused_by_name() {
    let node = FakeNode::start();
    let alone = node.ctl(&["rollback"]);
    assert_eq!(code(&alone), 1);
    assert!(text(&alone.stderr).contains("PART_DOWN"), "{}", text(&alone.stderr));
    updater(&node, |_| slots("refused"));
    let refused = node.ctl(&["rollback"]);
    assert_eq!(code(&refused), 1);
    let said = text(&refused.stderr);
    assert!(said.contains("VERSION_REFUSED") && said.contains("runtime: it is down"), "{said}");
    let neither = node.ctl(&["upgrade", "--version", "0.3.0"]);
    assert_eq!(code(&neither), 2, "{}", text(&neither.stderr));
}
