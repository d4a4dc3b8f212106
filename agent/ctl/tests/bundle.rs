//! `orlopctl bundle`, `boot`, `top` and `dashboard` against the server: secrets in every source of a fake node, parts that are dead, a
//! journal that is too long, a node that is away and boots again.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use orlop_node_api::{Settings, Sources, serve};
use serde_json::Value;
use tempfile::TempDir;

#[path = "bundle/web.rs"]
mod web;

/// Each source has one of its own; none may be in an archive.
const PLANTED: [&str; 14] = [
    "planted-os-release",
    "planted-ledger",
    "planted-config",
    "planted-problem",
    "planted-service",
    "planted-unit",
    "planted-kernel",
    "planted-file",
    "planted-document",
    "planted-change",
    "cGxhbnRlZC1wZW0x",
    "planted-proxy",
    "planted-argument",
    "planted-environment",
];

const SYSTEMCTL: &str = "cat <<'END'\n\
    Id=kubelet.service\nLoadState=loaded\nActiveState=active\nSubState=running\nResult=success\n\
    StatusText=running; sent Authorization: Bearer planted-service\nMainPID=7\nNRestarts=0\nMemoryCurrent=1\nExecMainStatus=0\nEND\n";

/// A journal of three lines, of the kernel's alone with `_TRANSPORT=kernel`; earlier boots are not there.
const JOURNALCTL: &str = "echo \"$@\" >> \"$DIR/asked\"\n\
    case \"$*\" in *--field=*) printf 'kubelet.service\\ncontainerd.service\\n'; exit;; esac\n\
    case \"$*\" in *--boot=-*) echo 'Data from the specified boot is not available' >&2; exit 1;; esac\n\
    case \"$*\" in *_TRANSPORT=kernel*) cat \"$DIR/kernel\";; *) cat \"$DIR/lines\";; esac\n";

fn line(number: u32, message: &str) -> String {
    let line = serde_json::json!({
        "__CURSOR": format!("s=1;i={number}"), "__REALTIME_TIMESTAMP": format!("{}", 1_700_000_000_000_000_u64 + u64::from(number)),
        "PRIORITY": "6", "_SYSTEMD_UNIT": "kubelet.service", "MESSAGE": message,
    });
    format!("{line}\n")
}

struct BundleNode {
    dir: TempDir,
}

impl BundleNode {
    /// Files below the root directory, and the scripts in the place of systemctl and journalctl.
    fn start(files: &[(&str, &str)], systemctl: &str, journalctl: &str) -> BundleNode {
        let dir = tempfile::tempdir().unwrap();
        // No part of the path may be a link.
        let root = fs::canonicalize(dir.path()).unwrap().join("root");
        fs::create_dir_all(root.join("var/log/orlop")).unwrap();
        for (path, text) in files {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let script = |name: &str, text: &str| {
            let file = dir.path().join(name);
            fs::write(&file, format!("#!/bin/sh\nDIR='{}'\n{text}", dir.path().display())).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let (systemctl, journalctl) = (script("systemctl", systemctl), script("journalctl", journalctl));
        let listener = UnixListener::bind(dir.path().join("api.sock")).unwrap();
        let settings = Settings {
            sources: Sources { root, systemctl, journalctl },
            uid: fs::metadata(dir.path()).unwrap().uid(),
            idle: Duration::from_secs(600),
            version: "9.9.9".to_owned(),
        };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve(settings, vec![OwnedFd::from(listener)]))
        });
        BundleNode { dir }
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn bundle(&self, file: &Path) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
        command.arg("--socket").arg(self.dir.path().join("api.sock")).arg("bundle").arg(file);
        command.output().unwrap()
    }

    /// Makes an archive and unpacks it: the exit code, what was said, and the directory.
    fn unpacked(&self, name: &str) -> (i32, String, PathBuf) {
        let file = self.dir.path().join(name).with_extension("tar.gz");
        let output = self.bundle(&file);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let into = self.dir.path().join(name);
        fs::create_dir(&into).unwrap();
        // The system's own tar reads it.
        let tar = Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(&into).status().unwrap();
        assert!(tar.success(), "{said}");
        let inside = fs::read_dir(&into).unwrap().next().unwrap().unwrap().path();
        (output.status.code().unwrap(), said, inside)
    }
}

fn read(directory: &Path, path: &str) -> String {
    fs::read_to_string(directory.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn manifest(directory: &Path) -> Value {
    serde_json::from_str(&read(directory, "manifest.json")).unwrap()
}

fn paths(manifest: &Value, list: &str) -> Vec<String> {
    let parts = manifest[list].as_array().unwrap().iter();
    parts.map(|part| part["path"].as_str().unwrap().to_owned()).collect()
}

fn planted() -> BundleNode {
    let ledger = r#"{"boot_id":"b","entries":[{"phase":"init.verity","at_ms":1200,"detail":"/dev/vda2 root hash 00"},
        {"phase":"init.x","at_ms":1300,"detail":"--token planted-ledger","ok":false}]}"#;
    let pem = "-----BEGIN PRIVATE KEY-----\ncGxhbnRlZC1wZW0x\n-----END PRIVATE KEY-----\n";
    let files = [
        ("usr/lib/os-release", "PRETTY_NAME=\"Orlop password=planted-os-release\"\nIMAGE_VERSION=0.4.0\n"),
        ("proc/sys/kernel/hostname", "edge-7\n"),
        ("proc/sys/kernel/random/boot_id", "boot-1\n"),
        ("proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n"),
        ("proc/1/mounts", ""),
        ("run/orlop/boot.json", ledger),
        (
            "run/orlop/node-config.json",
            r#"{"config":{"join":{"server":"https://u:planted-config@a:6443"}},"problems":[]}"#,
        ),
        (
            "run/orlop/config/20-esp.yaml",
            "apiVersion: orlop/v1alpha1\nkind: NodeConfig\nproxy: {http: 'http://u:planted-proxy@p'}\n",
        ),
        (
            "run/orlop/agent-problems.json",
            r#"[{"subject":"static pod a","text":"token=planted-problem","remedy":"r","runbook":"image-pull"}]"#,
        ),
        (
            "run/orlop/change-problems.json",
            r#"[{"subject":"configuration","text":"secret=planted-change","remedy":"r","runbook":"open-change"}]"#,
        ),
        ("proc/7/stat", "7 (kubelet) S 1 7 7 0 -1 0 0 0 0 0 90 10 0 0 20 0 3 0 250 0 0"),
        ("proc/7/status", "Uid:\t0\t0\t0\t0\nVmRSS:\t    12 kB\nThreads:\t3\n"),
        ("proc/7/cgroup", "0::/kubepods/pod0011/x\n"),
        ("proc/7/cmdline", "kubelet\0--token\0planted-argument\0"),
        ("proc/7/environ", "PASSWORD=planted-environment\0"),
        ("var/log/pods/default_web_0011/about", ""),
        ("var/log/orlop/key.log", pem),
        ("var/log/orlop/plain.log", "one\npassword: planted-file\n"),
        ("var/log/orlop/boot.json", r#"{"boot_id":"b","entries":[],"token":"planted-document"}"#),
    ];
    let node = BundleNode::start(&files, SYSTEMCTL, JOURNALCTL);
    node.put("lines", &(line(1, "line 1") + &line(2, r#"{"client_secret":"planted-unit"}"#)));
    node.put("kernel", &line(3, "Command line: x.password=planted-kernel"));
    node
}

#[test]
fn a_bundle_has_all_parts_and_none_of_the_planted_secrets() {
    let node = planted();
    let (code, said, inside) = node.unpacked("one");
    let manifest = manifest(&inside);
    assert_eq!(code, 0, "{said}");
    assert_eq!((manifest["node"].as_str(), manifest["bootId"].as_str()), (Some("edge-7"), Some("boot-1")));
    let found = paths(&manifest, "parts");
    for part in [
        "version.json",
        "kinds.json",
        "objects/node.json",
        "objects/boot.json",
        "boot.svg",
        "objects/problems.json",
        "objects/services.json",
        "objects/processes.json",
        "objects/memory.json",
        "configuration/explain.json",
        "configuration/history.json",
        "files/boot.json",
        "files/key.log",
        "files/plain.log",
        "kernel/boot-0.log",
        "journal/boot-0.log",
    ] {
        assert!(found.iter().any(|path| path == part), "{part} is not in {found:?}");
        assert!(!read(&inside, part).is_empty(), "{part}");
    }
    // Nothing was left out, so no unit is asked for alone.
    assert!(!found.iter().any(|path| path.starts_with("units/")), "{found:?}");
    assert!(read(&inside, "journal/boot-0.log").contains("kubelet.service: line 1\n"));
    assert_eq!(read(&inside, "files/plain.log"), "one\npassword: <secret>");
    for path in found.iter().map(String::as_str).chain(["manifest.json"]) {
        let text = read(&inside, path);
        for secret in PLANTED {
            assert!(!text.contains(secret), "{secret} is in {path}:\n{text}");
        }
    }
    let masked: u64 =
        manifest["parts"].as_array().unwrap().iter().map(|part| part["masked"].as_u64().unwrap()).sum();
    assert!(masked >= 10, "{manifest:#}");
    assert_eq!(fs::metadata(node.dir.path().join("one.tar.gz")).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn parts_come_in_the_same_order_each_time_and_no_file_is_overwritten() {
    let node = planted();
    let (_, _, first) = node.unpacked("one");
    let (_, _, second) = node.unpacked("two");
    let (first, second) = (manifest(&first), manifest(&second));
    assert_eq!(paths(&first, "parts"), paths(&second, "parts"));
    assert_eq!(paths(&first, "missing"), paths(&second, "missing"));
    let there = node.bundle(&node.dir.path().join("one.tar.gz"));
    assert_eq!(there.status.code(), Some(2), "{}", String::from_utf8_lossy(&there.stderr));
}

#[test]
fn dead_parts_are_missing_with_their_reasons_and_the_others_are_there() {
    let dead = "echo 'it is dead' >&2\nexit 1\n";
    let files = [
        ("proc/sys/kernel/hostname", "edge-7\n"),
        ("var/log/orlop/boot.json", "{\"entries\":[]}"),
        ("proc/meminfo", "MemTotal: 2 kB\n"),
    ];
    let node = BundleNode::start(&files, dead, dead);
    let (code, said, inside) = node.unpacked("one");
    assert_eq!(code, 1, "{said}");
    let manifest = manifest(&inside);
    let missing = manifest["missing"].as_array().unwrap();
    for path in [
        "objects/services.json",
        "objects/boot.json",
        "configuration/explain.json",
        "logs.json",
        "kernel/boot-0.log",
        "journal/boot-0.log",
    ] {
        let part = missing.iter().find(|part| part["path"] == path);
        let part = part.unwrap_or_else(|| panic!("{path} is not missing: {manifest:#}"));
        assert_eq!(part["reason"], "PART_DOWN", "{part}");
        assert!(!part["message"].as_str().unwrap().is_empty(), "{part}");
        assert!(said.contains(&format!("missing: {path}: ")), "{said}");
    }
    assert!(missing.iter().any(|part| part["path"] == "journal/boot-1.log" && part["optional"] == true));
    assert!(!said.contains("boot-1.log"), "{said}");
    assert!(read(&inside, "objects/memory.json").contains("totalBytes"));
    assert!(read(&inside, "files/boot.json").contains("entries"));
    assert!(read(&inside, "objects/problems.json").contains("it is dead"));
}

#[test]
fn units_that_a_long_journal_leaves_out_are_asked_for_alone() {
    let node = planted();
    let lines: String = (0..20_000).map(|number| line(number, "noise")).collect();
    node.put("lines", &lines);
    let (code, said, inside) = node.unpacked("one");
    assert_eq!(code, 0, "{said}");
    assert!(read(&inside, "units/containerd.service.log").contains("noise"));
    let asked = fs::read_to_string(node.dir.path().join("asked")).unwrap();
    let units: Vec<&str> = asked.lines().filter(|line| line.contains("--unit=")).collect();
    assert_eq!(units.len(), 2, "{asked}");
    // The one of which the journal had nothing.
    assert!(units[0].contains("--lines=1000") && units[0].contains("--unit=containerd.service"), "{asked}");
}

#[test]
fn a_bundle_goes_to_standard_output() {
    let node = planted();
    let output = node.bundle(Path::new("-"));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.get(..2), Some(&[0x1f, 0x8b][..]));
}

#[test]
fn the_boot_is_drawn_of_a_node_and_of_its_bundle() {
    let node = planted();
    let (_, _, inside) = node.unpacked("one");
    let draw = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
        command.arg("--socket").arg(node.dir.path().join("api.sock")).args(words);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let of_node = draw(&["boot", "--plot", "-"]);
    assert!(of_node.contains("init.verity at 1.200s") && of_node.contains("edge-7 boot boot-1"), "{of_node}");
    assert!(draw(&["boot"]).contains("init.verity  1.200s"));
    let ledger = inside.join("files/boot.json");
    let of_file = draw(&["boot", "--svg", "-", "--ledger", ledger.to_str().unwrap()]);
    assert!(of_file.starts_with("<svg "), "{of_file}");
}

#[test]
fn top_shows_processes_with_their_pods() {
    let node = planted();
    let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
    command.arg("--socket").arg(node.dir.path().join("api.sock"));
    let output = command.args(["top", "-n", "1", "--every", "1", "--sort", "memory"]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(shown.starts_with("1 processes, 0.0% CPU, 1.0 GiB of 2.0 GiB available\nPID  CPU"), "{shown}");
    assert!(shown.ends_with("kubelet  default/web\n"), "{shown}");
}

#[test]
fn a_dashboard_waits_for_its_node_and_says_that_it_has_rebooted() {
    let node = planted();
    let way = node.dir.path().join("way.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
    command.arg("--socket").arg(&way).args(["dashboard", "--every", "1", "-n", "60"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut await_line =
        |words: &str| assert!(lines.any(|line| line.contains(words)), "no line has {words:?}");
    await_line("AWAY for ");
    symlink(node.dir.path().join("api.sock"), &way).unwrap();
    await_line(": connected");
    await_line("boot boot-1");
    await_line("kubelet.service: active (running)");
    await_line("kubelet.service: line 1");
    fs::write(node.dir.path().join("root/proc/sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    await_line("boot boot-2, after 1 reboot");
    await_line("the node has rebooted: boot boot-2, before it boot-1");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_dashboard_without_a_key_ends_and_says_why() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
    command.args(["--tcp", "127.0.0.1:1", "--key", "/nowhere/key", "dashboard", "-n", "1"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}
