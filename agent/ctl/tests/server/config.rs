//! `orlopctl config` against the server: the record of changes is there, its driver is not.

use super::network::serve_reviews;
use super::*;

#[test]
fn host_and_node_say_the_same_about_a_configuration() {
    let node = FakeNode::start();
    let body = "labels: {a: b}\nkubelet: {maxPods: 7}\nproxy: {http: 'http://u:hunter2@p'}\n";
    let esp = node.document("esp.yaml", Some("20-esp.yaml"), body);
    let smbios = node.document("smbios.yaml", Some("50-smbios.yaml"), "kubelet: {maxPods: 9}\n");
    let sets = node.dir.path().join("root/run/orlop/config/70-set.yaml");
    fs::write(sets, "# orlop.set=labels.zone=a\n").unwrap();
    let candidate = node.document("new.yaml", None, "labels: {a: c}\nproxy: {http: 'http://u:hunter3@p'}\n");
    let wrong = node.document("wrong.yaml", None, "labels: {a: 'b c'}\nnod: 1\n");
    let (esp, smbios) = (format!("esp={esp}"), format!("smbios={smbios}"));
    let here = ["--source", &esp, "--source", &smbios, "--set", "labels.zone=a"];
    for (words, exit) in [
        (&["config", "explain"][..], 0),
        (&["config", "explain", "kubelet", "--defaults", "-o", "json"][..], 0),
        (&["config", "diff", &candidate][..], 0),
        (&["config", "diff", &candidate, "-o", "yaml"][..], 0),
        (&["config", "diff", "--remove"][..], 0),
        (&["config", "check", &candidate][..], 0),
        (&["config", "check", &wrong][..], 1),
    ] {
        let (of_node, of_host) = (node.ctl(words), node.ctl(&[words, &here[..]].concat()));
        assert_eq!((code(&of_node), code(&of_host)), (exit, exit), "{words:?}: {}", text(&of_node.stderr));
        assert_eq!(text(&of_node.stdout), text(&of_host.stdout), "{words:?}");
        assert!(!text(&of_node.stdout).contains("hunter"), "{}", text(&of_node.stdout));
    }
    let explained = text(&node.ctl(&["config", "explain"]).stdout);
    for (key, source) in [
        ("kubelet.maxPods", "smbios"),
        ("labels.a", "esp"),
        ("labels.zone", "cmdline"),
        ("proxy.http", "esp"),
    ] {
        let line = explained.lines().find(|line| line.starts_with(&format!("{key} ")));
        assert!(line.is_some_and(|line| line.ends_with(source)), "{key} of {source}:\n{explained}");
    }
    let diff = text(&node.ctl(&["config", "diff", &candidate]).stdout);
    assert!(diff.contains("proxy.http") && diff.contains("restarts containerd"), "{diff}");
    let mistakes = text(&node.ctl(&["config", "check", &wrong]).stdout);
    assert!(mistakes.contains("wrong.yaml:4: nod: ") && mistakes.lines().count() == 2, "{mistakes}");
}

/// A node with an administrator, whom its configuration has; the fingerprint of its key.
fn administered() -> (FakeNode, PathBuf, String) {
    let node = FakeNode::start();
    let (key, pin) = (node.key("ops-1", true), node.pin());
    let mut show = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
    let admin = show.args(["key", "show", "--name", "ops-1"]).arg(&key).output().unwrap();
    let body = format!("api:\n  admins:\n  {}labels: {{a: b}}\n", text(&admin.stdout));
    node.document("esp.yaml", Some("20-esp.yaml"), &body);
    (node, key, pin)
}

#[test]
fn administrators_begin_changes_and_confirm_them_when_they_are_applied() {
    let (node, key, pin) = administered();
    let new = node.document("new.yaml", None, "labels: {a: c}\nproxy: {http: 'http://u:hunter2@p'}\n");
    let by_unix = node.ctl(&["config", "apply", &new]);
    assert_eq!(code(&by_unix), 4, "{}", text(&by_unix.stderr));
    assert!(text(&by_unix.stderr).contains("ROLE_TOO_LOW"), "{}", text(&by_unix.stderr));
    let apply = |words: &[&str]| node.by_tcp(&key, &pin, &[&["config", "apply"][..], words].concat());
    let begun = apply(&[&new, "--confirm", "60s"]);
    assert_eq!(code(&begun), 0, "{}", text(&begun.stderr));
    let shown = text(&begun.stdout);
    assert!(shown.contains("change 1: confirm it within ") && shown.contains("labels.a"), "{shown}");
    let asked = fs::read_to_string(node.dir.path().join("systemctl-asked")).unwrap();
    assert!(asked.ends_with("--no-block --no-ask-password restart -- orlop-change.service\n"), "{asked}");
    let second = apply(&[&new]);
    assert_eq!(code(&second), 1);
    let said = text(&second.stderr);
    assert!(said.contains("CHANGE_OPEN") && said.contains("ops-1 has begun change 1"), "{said}");
    let confirm = || node.by_tcp(&key, &pin, &["config", "confirm"]);
    assert!(text(&confirm().stderr).contains("CHANGE_NOT_READY"), "it is not applied yet");
    node.drive(|record, now| record.applied(ChangeTime { up_ms: u64::MAX, ..now }));
    assert!(text(&confirm().stderr).contains("older than the change"), "{}", text(&confirm().stderr));
    node.drive(|record, now| record.applied(now));
    assert_eq!(code(&node.ctl(&["config", "confirm"])), 4);
    let confirmed = confirm();
    assert_eq!(text(&confirmed.stdout), "change 1 counts from now on\n", "{}", text(&confirmed.stderr));
    let history = text(&node.ctl(&["config", "history"]).stdout);
    let words = ["ops-1 by tcp", "confirmed", "labels.a,proxy.http", "confirmed by ops-1 through tcp"];
    assert!(words.iter().all(|words| history.contains(words)), "{history}");
    assert!(!history.contains("hunter2"), "{history}");
}

#[test]
fn a_change_is_taken_back_and_what_cannot_be_changed_begins_nothing() {
    let (node, key, pin) = administered();
    let ask = |words: &[&str]| node.by_tcp(&key, &pin, words);
    for (name, body, reason) in [
        ("name.yaml", "node: {name: other}\n", "FIRST_BOOT_ONLY"),
        ("wrong.yaml", "nod: 1\n", "CONFIG_REFUSED"),
        ("away.yaml", "api: {admins: []}\n", "BAD_REQUEST"),
    ] {
        let file = node.document(name, None, body);
        let refused = ask(&["config", "apply", &file, "--no-confirm"]);
        assert_eq!(code(&refused), 1, "{name}");
        assert!(text(&refused.stderr).contains(reason), "{name}: {}", text(&refused.stderr));
    }
    let none = ask(&["config", "revert"]);
    assert!(text(&none.stderr).contains("NO_CHANGE"), "{}", text(&none.stderr));
    assert!(!node.dir.path().join("root/var/lib/orlop/config/node.json").exists());
    let new = node.document("new.yaml", None, "labels: {a: c}\n");
    let begun = ask(&["config", "apply", &new]);
    assert!(
        text(&begun.stdout).contains("change 1: it counts once it is applied"),
        "{}",
        text(&begun.stderr)
    );
    let reverted = ask(&["config", "revert", "1"]);
    assert_eq!(text(&reverted.stdout), "change 1 is being taken back\n", "{}", text(&reverted.stderr));
    let asked = fs::read_to_string(node.dir.path().join("systemctl-asked")).unwrap();
    assert!(asked.ends_with(" start -- orlop-change.service\n"), "{asked}");
    let json = json(&node.ctl(&["config", "history", "-o", "json"]));
    assert_eq!(json["changes"][0]["stage"], "reverting");
    node.drive(|record, now| record.reverted(now));
    let history = text(&node.ctl(&["config", "history"]).stdout);
    assert!(history.contains("reverted") && history.contains("taken back by ops-1 through tcp"), "{history}");
    // No driver, no change.
    fs::write(node.dir.path().join("systemctl"), "#!/bin/sh\necho 'no such unit' >&2\nexit 5\n").unwrap();
    let lost = ask(&["config", "apply", &new]);
    assert_eq!(code(&lost), 1);
    assert!(text(&lost.stderr).contains("PART_DOWN"), "{}", text(&lost.stderr));
    let stages = self::json(&node.ctl(&["config", "history", "-o", "json"]));
    assert_eq!(stages["changes"][1]["stage"], "reverting", "{stages}");
}

#[test]
fn a_user_of_the_cluster_reads_the_configuration_and_changes_nothing() {
    let node = FakeNode::start();
    let (pin, root) = (node.pin(), node.dir.path().join("root"));
    fs::write(root.join("run/orlop/node-config.json"), r#"{"config":{"api":{"clusterIdentities":true}}}"#)
        .unwrap();
    serve_reviews(&root.join("run/orlop/agent.sock"));
    let new = node.document("new.yaml", Some("20-esp.yaml"), "labels: {a: b}\n");
    let token = node.dir.path().join("token");
    fs::write(&token, "reader\n").unwrap();
    let ask = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
        command.args(["--tcp", &node.address.to_string(), "--node-key", &pin, "--token-file"]).arg(&token);
        command.args(words).stdin(Stdio::null()).output().unwrap()
    };
    let explained = ask(&["config", "explain", "labels"]);
    assert!(text(&explained.stdout).contains("labels.a"), "{}", text(&explained.stderr));
    for words in [&["config", "apply", &new][..], &["config", "confirm"], &["config", "revert"]] {
        let refused = ask(words);
        assert_eq!(code(&refused), 4, "{words:?}: {}", text(&refused.stderr));
        assert!(text(&refused.stderr).contains("ROLE_TOO_LOW"), "{words:?}: {}", text(&refused.stderr));
    }
    assert!(!root.join("var/lib/orlop/config/node.json").exists());
}
