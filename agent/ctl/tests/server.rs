//! orlopctl against the server, over unix sockets: a fake root directory, and scripts in the place of systemctl and journalctl.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use orlop_config::change::{ChangeRecord, ChangeTime};
use orlop_node_api::{ServeError, Settings, Sources, serve};
use serde_json::Value;
use tempfile::TempDir;

#[path = "server/capture.rs"]
mod capture;
#[path = "server/config.rs"]
mod config;
#[path = "server/containers.rs"]
mod containers;
#[path = "server/following.rs"]
mod following;
#[path = "server/network.rs"]
mod network;
#[path = "server/operations.rs"]
mod operations;
#[path = "server/serial.rs"]
mod serial;

const LEDGER: &str =
    r#"{"boot_id":"b","entries":[{"phase":"init.verity","at_ms":1200,"detail":"/dev/vda2 root hash 0011"}]}"#;

/// systemd knows the agent, which is masked, and a service that failed.
const SYSTEMCTL: &str = "echo \"$@\" >> \"$DIR/systemctl-asked\"\ncat <<'END'\n\
    Id=kubelet.service\nLoadState=masked\nActiveState=inactive\nSubState=dead\nResult=success\nStatusText=\n\
    MainPID=0\nNRestarts=0\nMemoryCurrent=[not set]\nExecMainStatus=0\n\n\
    Id=x.service\nLoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nStatusText=\n\
    MainPID=0\nNRestarts=3\nMemoryCurrent=[not set]\nExecMainStatus=7\nEND\n";

/// Keeps its arguments, prints units or two lines; a follower then has what comes by the pipe `more`.
const JOURNALCTL: &str = "echo \"$@\" >> \"$DIR/asked\"\n\
    case \"$*\" in *--field=*) echo kubelet.service; exit;; esac\n\
    case \"$*\" in *--unit=broken.service*) echo 'no journal' >&2; exit 1;; esac\n\
    cat \"$DIR/lines\"\n\
    case \"$*\" in *--follow*) exec cat \"$DIR/more\";; esac\n";

fn line(number: u32) -> String {
    format!(
        "{{\"__CURSOR\":\"s=1;i={number}\",\"__REALTIME_TIMESTAMP\":\"170000000000000{number}\",\"PRIORITY\":\"6\",\
         \"_SYSTEMD_UNIT\":\"kubelet.service\",\"MESSAGE\":\"line {number}\"}}\n"
    )
}

/// A server and its surroundings.
struct FakeNode {
    dir: TempDir,
    server: Option<JoinHandle<Result<(), ServeError>>>,
    /// Its port in the network.
    address: SocketAddr,
}

impl FakeNode {
    fn start() -> FakeNode {
        FakeNode::with(0, Duration::from_secs(600))
    }

    /// `other` is added to the user that the server believes.
    fn with(other: u32, idle: Duration) -> FakeNode {
        let dir = tempfile::tempdir().unwrap();
        // No part of the path may be a link.
        let root = fs::canonicalize(dir.path()).unwrap().join("root");
        for (path, text) in [
            ("usr/lib/os-release", "PRETTY_NAME=\"Orlop 0.4\"\nIMAGE_VERSION=0.4.0\n"),
            ("proc/sys/kernel/hostname", "edge-7\n"),
            ("proc/sys/kernel/random/boot_id", "boot-1\n"),
            ("proc/uptime", "73.51 120.00\n"),
            ("proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n"),
            ("proc/1/mounts", "/dev/vda7 /var ext4 rw 0 0\n"),
            ("run/orlop/boot.json", LEDGER),
            ("run/orlop/node-config.json", "{\"config\":{},\"problems\":[]}"),
            ("var/log/orlop/boot.json", LEDGER),
            ("var/log/secret", "secret\n"),
            ("var/lib/orlop/api/about", "the server keeps its key here\n"),
        ] {
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
        let (systemctl, journalctl) = (script("systemctl", SYSTEMCTL), script("journalctl", JOURNALCTL));
        fs::write(dir.path().join("lines"), line(1) + &line(2)).unwrap();
        assert!(Command::new("mkfifo").arg(dir.path().join("more")).status().unwrap().success());
        let listener = UnixListener::bind(dir.path().join("api.sock")).unwrap();
        let serial = UnixListener::bind(dir.path().join("api-serial.sock")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        let settings = Settings {
            sources: Sources { root, systemctl, journalctl },
            uid: fs::metadata(dir.path()).unwrap().uid() + other,
            idle,
            version: "9.9.9".to_owned(),
        };
        let server = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let sockets = vec![OwnedFd::from(listener), OwnedFd::from(port), OwnedFd::from(serial)];
            runtime.block_on(serve(settings, sockets))
        });
        FakeNode { dir, server: Some(server), address }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    fn ctl(&self, words: &[&str]) -> Output {
        ctl("--socket", &self.socket(), words).output().unwrap()
    }

    /// The fingerprint of the node's key, as root on the node reads it.
    fn pin(&self) -> String {
        let version = json(&self.ctl(&["version", "-o", "json"]));
        version["node"]["serverKey"].as_str().unwrap().to_owned()
    }

    /// A new key, which the configuration has if it is `known`.
    fn key(&self, name: &str, known: bool) -> PathBuf {
        let file = self.dir.path().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
        let output = command.args(["key", "new", "--name", name]).arg(&file).output().unwrap();
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(&file.display().to_string()), "{}", text(&output.stderr));
        let line = text(&output.stdout);
        let key = line.split('"').find(|word| word.starts_with("ed25519:")).unwrap();
        if known {
            let config = serde_json::json!({"config": {"api": {"admins": [{"name": name, "key": key}]}}});
            fs::write(self.dir.path().join("root/run/orlop/node-config.json"), config.to_string()).unwrap();
        }
        file
    }

    /// By the network.
    fn by_tcp(&self, key: &Path, pin: &str, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
        command.args(["--tcp", &self.address.to_string(), "--node-key", pin, "--key"]).arg(key).args(words);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// What the driver of changes would note.
    fn drive(&self, event: impl FnOnce(&mut ChangeRecord, ChangeTime<'_>)) {
        let file = self.dir.path().join("root/var/lib/orlop/config/node.json");
        let mut record = ChangeRecord::parse(&fs::read_to_string(&file).unwrap()).unwrap();
        event(&mut record, ChangeTime { boot: "boot-1", up_ms: 0, wall_s: 1 });
        fs::write(&file, record.render()).unwrap();
    }

    /// A NodeConfig in a file; a source of the node if `running` is its name there.
    fn document(&self, name: &str, running: Option<&str>, body: &str) -> String {
        let text = format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}");
        let file = self.dir.path().join(name);
        fs::write(&file, &text).unwrap();
        if let Some(source) = running {
            let sources = self.dir.path().join("root/run/orlop/config");
            fs::create_dir_all(&sources).unwrap();
            fs::write(sources.join(source), &text).unwrap();
        }
        file.to_str().unwrap().to_owned()
    }

    /// What journalctl was asked, one line for each time.
    fn asked(&self) -> String {
        fs::read_to_string(self.dir.path().join("asked")).unwrap_or_default()
    }
}

fn ctl(way: &str, path: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
    command.arg(way).arg(path).args(words).stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Waits until it is so.
fn await_that(what: &str, mut is: impl FnMut() -> bool) {
    let (_never, tick) = mpsc::channel::<()>();
    let until = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        // Nobody sends: a pause.
        let _ = tick.recv_timeout(Duration::from_millis(20));
    }
}

#[test]
fn status_says_what_is_wrong_and_what_to_do() {
    let node = FakeNode::start();
    let output = node.ctl(&["status"]);
    let shown = text(&output.stdout);
    assert_eq!(code(&output), 1, "{shown}{}", text(&output.stderr));
    for words in [
        "edge-7  Orlop 0.4.0  slot A (vda2)  up 1m 13s\n",
        "agent      does not run: masked\n",
        "cluster    standalone\n",
        "memory     1.0 GiB of 2.0 GiB available\n",
        "  kubelet.service: the node agent does not run: masked\n    -> `orlopctl reboot`",
        "  x.service: failed (exit status 7)\n",
    ] {
        assert!(shown.contains(words), "{words:?} is not in\n{shown}");
    }
    let document = json(&node.ctl(&["status", "-o", "json"]));
    assert_eq!(document["items"][0]["status"]["agent"], "does not run: masked");
}

#[test]
fn objects_come_in_each_form() {
    let node = FakeNode::start();
    let output = node.ctl(&["get", "services", "x.service", "-o", "json"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let document = json(&output);
    let item = &document["items"][0];
    assert_eq!(
        (item["kind"].as_str(), item["metadata"]["name"].as_str()),
        (Some("services"), Some("x.service"))
    );
    assert_eq!(
        (item["status"]["restarts"].as_u64(), item["metadata"]["bootId"].as_str()),
        (Some(3), Some("boot-1"))
    );
    let table = text(&node.ctl(&["get", "slots,boot"]).stdout);
    assert!(
        table.contains("A     vda2       0.4.0    0011\n") && table.contains("init.verity  1.200s"),
        "{table}"
    );
    let yaml = text(&node.ctl(&["get", "memory", "-o", "yaml"]).stdout);
    assert!(yaml.contains("totalBytes: 2147483648"), "{yaml}");
    assert_eq!(text(&node.ctl(&["get", "memory,time", "-o", "name"]).stdout), "memory/memory\ntime/clock\n");
    let kinds = text(&node.ctl(&["kinds"]).stdout);
    assert!(kinds.contains("problems    what is wrong, with remedies\n"), "{kinds}");
    let version = json(&node.ctl(&["version", "-o", "json"]));
    assert_eq!(
        (version["node"]["serverVersion"].as_str(), version["node"]["node"].as_str()),
        (Some("9.9.9"), Some("edge-7"))
    );
}

#[test]
fn refusals_have_reason_and_remedy_and_exit_codes_are_those_of_the_page() {
    let node = FakeNode::start();
    let output = node.ctl(&["get", "pods"]);
    let said = text(&output.stderr);
    assert_eq!(code(&output), 1);
    assert!(said.contains("UNKNOWN_KIND") && said.contains("`orlopctl kinds`"), "{said}");
    assert!(said.contains("docs/reference/node-api.md#unknown_kind"), "{said}");
    let missing = node.ctl(&["get", "services", "no.service"]);
    assert_eq!(code(&missing), 1);
    assert!(text(&missing.stderr).contains("no.service"));
    assert_eq!(code(&node.ctl(&["get"])), 2);
    assert_eq!(code(&node.ctl(&["--help"])), 0);
    let nowhere = ctl("--socket", &node.dir.path().join("nowhere"), &["status"]).output().unwrap();
    assert_eq!(code(&nowhere), 3, "{}", text(&nowhere.stderr));
    // Listens, and answers nothing.
    let path = node.dir.path().join("silent.sock");
    let _silent = UnixListener::bind(&path).unwrap();
    let silent = ctl("--socket", &path, &["status", "--timeout", "1"]).output().unwrap();
    assert_eq!(code(&silent), 5, "{}", text(&silent.stderr));
}

#[test]
fn a_stranger_is_refused_and_told_why() {
    let node = FakeNode::with(1, Duration::from_secs(600));
    for words in [
        &["status"][..],
        &["logs"],
        &["logs", "--file", "boot.json"],
        &["kinds"],
        &["version"],
        &["config", "explain"],
        &["config", "check", "--remove"],
    ] {
        let output = node.ctl(words);
        assert_eq!(code(&output), 4, "{words:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains("NOT_TRUSTED"), "{}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
    assert_eq!(node.asked(), "", "journalctl was started for a stranger");
}

#[test]
fn logs_of_units_and_files() {
    let node = FakeNode::start();
    let output = node.ctl(&["logs", "kubelet.service", "--lines", "2", "--boot", "-1"]);
    let shown = text(&output.stdout);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(shown.ends_with("Z kubelet.service: line 2\n") && shown.lines().count() == 2, "{shown}");
    assert!(node.asked().contains("--boot=-1 --lines=2 --unit=kubelet.service\n"), "{}", node.asked());
    let first = text(&node.ctl(&["logs", "-o", "json"]).stdout);
    let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!((first["cursor"].as_str(), first["message"].as_str()), (Some("s=1;i=1"), Some("line 1")));
    assert_eq!(text(&node.ctl(&["logs", "--file", "boot.json"]).stdout), format!("{LEDGER}\n"));
    let outside = node.ctl(&["logs", "--file", "../secret"]);
    assert_eq!((code(&outside), text(&outside.stdout)), (1, String::new()));
    assert!(text(&outside.stderr).contains("NO_SUCH_LOG"), "{}", text(&outside.stderr));
    assert_eq!(text(&node.ctl(&["logs", "--list"]).stdout), "kubelet.service\nboot.json\n");
    let broken = node.ctl(&["logs", "broken.service"]);
    assert_eq!(code(&broken), 1);
    assert!(text(&broken.stderr).contains("PART_DOWN") && text(&broken.stderr).contains("no journal"));
    let option = node.ctl(&["logs", "--", "--file=/etc/shadow"]);
    assert!(text(&option.stderr).contains("BAD_REQUEST"), "{}", text(&option.stderr));
}

/// The standard output of a child, line by line.
fn lines_of(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap)
}

#[test]
fn silent_connections_take_the_places_of_their_door_alone_and_give_them_back() {
    let node = FakeNode::start();
    let silent: Vec<UnixStream> = (0..16).map(|_| UnixStream::connect(node.socket()).unwrap()).collect();
    let refused = node.ctl(&["kinds", "--timeout", "2"]);
    assert!(matches!(code(&refused), 3 | 5), "{}", text(&refused.stderr));
    drop(silent);
    await_that("the places are free again", || node.ctl(&["kinds", "--timeout", "2"]).status.success());
}

#[test]
fn the_server_ends_without_clients() {
    let mut node = FakeNode::with(0, Duration::from_millis(300));
    let server = node.server.take().unwrap();
    server.join().unwrap().unwrap();
}

#[test]
fn a_server_without_sockets_says_so() {
    let settings = Settings {
        sources: Sources::default(),
        uid: 0,
        idle: Duration::from_secs(1),
        version: String::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(serve(settings, Vec::new())).unwrap_err();
    assert!(matches!(error, ServeError::NoSocket), "{error}");
}
