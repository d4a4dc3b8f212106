//! Readers that follow: lines and changes as they come, also after a lost connection.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;

use serde_json::Value;

use super::{FakeNode, await_that, ctl, line, lines_of, text};

#[test]
fn a_follower_gets_each_new_line_and_its_journalctl_ends_with_it() {
    let node = FakeNode::start();
    let mut child = ctl("--socket", &node.socket(), &["logs", "-f", "kubelet"]).spawn().unwrap();
    let mut shown = lines_of(&mut child);
    assert!(shown.next().unwrap().ends_with("line 1"));
    assert!(shown.next().unwrap().ends_with("line 2"));
    // Opens when the script has come so far.
    let mut more = fs::OpenOptions::new().write(true).open(node.dir.path().join("more")).unwrap();
    for number in 3..6 {
        more.write_all(line(number).as_bytes()).unwrap();
        assert!(shown.next().unwrap().ends_with(&format!("line {number}")));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // A pipe without a reader is broken.
    await_that("journalctl outlives its reader", || more.write_all(line(6).as_bytes()).is_err());
}

#[test]
fn a_watcher_sees_what_is_there_and_each_change() {
    let node = FakeNode::start();
    let mut child =
        ctl("--socket", &node.socket(), &["get", "node,services", "-w", "-o", "json"]).spawn().unwrap();
    let mut events = lines_of(&mut child).map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let mut next = || {
        let event = events.next().unwrap();
        (event["type"].as_str().unwrap().to_owned(), event["object"].clone())
    };
    let first: Vec<String> = (0..4).map(|_| next().0).collect();
    assert_eq!(first, ["ADDED", "ADDED", "ADDED", "BOOKMARK"]);
    fs::write(node.dir.path().join("root/proc/sys/kernel/hostname"), "edge-8\n").unwrap();
    let (renamed, gone) = (next(), next());
    assert_eq!((renamed.0.as_str(), gone.0.as_str()), ("ADDED", "DELETED"));
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!((name(&renamed.1), name(&gone.1)), ("edge-8".to_owned(), "edge-7".to_owned()));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A hypervisor's socket: each connection asks for a port, and is then one of the node's.
fn hypervisor(node: &FakeNode, path: &Path, connections: usize) -> JoinHandle<Vec<UnixStream>> {
    let (listener, to) = (UnixListener::bind(path).unwrap(), node.socket());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for _ in 0..connections {
            let (mut client, _) = listener.accept().unwrap();
            let mut asked = [0; 14];
            client.read_exact(&mut asked).unwrap();
            assert_eq!(&asked, b"CONNECT 10270\n");
            client.write_all(b"OK 1073741824\n").unwrap();
            let server = UnixStream::connect(&to).unwrap();
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server.try_clone().unwrap(), client.try_clone().unwrap()),
            ] {
                // Ends with the connection.
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
            open.push(client);
        }
        open
    })
}

#[test]
fn by_a_hypervisor_s_socket() {
    let node = FakeNode::start();
    let path = node.dir.path().join("vsock");
    let hypervisor = hypervisor(&node, &path, 1);
    let output = ctl("--vsock-socket", &path, &["get", "time", "-o", "name"]).output().unwrap();
    assert_eq!(text(&output.stdout), "time/clock\n", "{}", text(&output.stderr));
    hypervisor.join().unwrap();
}

#[test]
fn a_follower_goes_on_after_a_lost_connection_where_it_was() {
    let node = FakeNode::start();
    let path = node.dir.path().join("vsock");
    let first = hypervisor(&node, &path, 1);
    let mut child = ctl("--vsock-socket", &path, &["logs", "-f"]).spawn().unwrap();
    let mut shown = lines_of(&mut child);
    assert!(shown.next().unwrap().ends_with("line 1"));
    assert!(shown.next().unwrap().ends_with("line 2"));
    let open = first.join().unwrap();
    fs::remove_file(&path).unwrap();
    let second = hypervisor(&node, &path, 1);
    fs::write(node.dir.path().join("lines"), line(3)).unwrap();
    open[0].shutdown(std::net::Shutdown::Both).unwrap();
    assert!(shown.next().unwrap().ends_with("line 3"));
    second.join().unwrap();
    assert!(node.asked().lines().last().unwrap().contains("--after-cursor=s=1;i=2"), "{}", node.asked());
    child.kill().unwrap();
    child.wait().unwrap();
}
