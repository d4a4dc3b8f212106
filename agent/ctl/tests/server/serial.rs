//! By the virtio-serial port: a unix socket in the place of the hypervisor's and of the device.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

use orlop_node_api::serial_port::serve_port;

use super::{FakeNode, code, ctl, json, text};

/// The port's socket. Each client gets a program of its own at the node's end; a device has one for all of them.
fn port(node: &FakeNode) -> PathBuf {
    let path = node.dir.path().join("port");
    let listener = UnixListener::bind(&path).unwrap();
    let server = node.dir.path().join("api-serial.sock");
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            client.set_nonblocking(true).unwrap();
            let server = server.clone();
            // It waits for the next client of its device for ever: none comes here.
            thread::spawn(move || serve_port(OwnedFd::from(client), &server));
        }
    });
    path
}

/// The server finds this process in the control group, or does not.
fn be_the_program(node: &FakeNode, is: bool) {
    let dir = node.dir.path().join(format!("root/proc/{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let group = if is { "orlop-serial.service" } else { "other.service" };
    fs::write(dir.join("cgroup"), format!("0::/system.slice/{group}\n")).unwrap();
}

fn trust_host(node: &FakeNode) {
    let config = serde_json::json!({"config": {"api": {"vsock": {"trustHost": true}}}});
    fs::write(node.dir.path().join("root/run/orlop/node-config.json"), config.to_string()).unwrap();
}

#[test]
fn a_trusted_host_asks_by_the_port_again_and_again() {
    let node = FakeNode::start();
    let path = port(&node);
    be_the_program(&node, true);
    let refused = ctl("--serial", &path, &["kinds"]).output().unwrap();
    assert_eq!(code(&refused), 4, "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("NOT_TRUSTED"), "{}", text(&refused.stderr));
    trust_host(&node);
    for _ in 0..3 {
        let version = ctl("--serial", &path, &["version", "-o", "json"]).output().unwrap();
        assert_eq!(code(&version), 0, "{}", text(&version.stderr));
        assert_eq!(json(&version)["node"]["serverVersion"], "9.9.9");
    }
    // More than one frame.
    let ledger = ctl("--serial", &path, &["logs", "--file", "boot.json"]).output().unwrap();
    assert!(text(&ledger.stdout).contains("init.verity"), "{}", text(&ledger.stderr));
}

#[test]
fn only_the_program_of_the_port_is_heard_on_its_socket() {
    let node = FakeNode::start();
    let path = port(&node);
    trust_host(&node);
    be_the_program(&node, false);
    let by_port = ctl("--serial", &path, &["kinds"]).output().unwrap();
    assert_eq!(code(&by_port), 3, "{}", text(&by_port.stderr));
    let direct = ctl("--socket", &node.dir.path().join("api-serial.sock"), &["kinds"]).output().unwrap();
    assert_eq!(code(&direct), 3, "{}", text(&direct.stderr));
}
