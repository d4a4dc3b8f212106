//! `orlopctl dashboard --web` as a browser has it: a node that is away, comes and boots again; requests of strangers.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::planted;

/// Without a byte; a page has an event for each answer.
const SILENT: Duration = Duration::from_secs(30);

/// The program that serves a page, and where.
struct ServedPage {
    child: Child,
    address: String,
    token: String,
}

impl ServedPage {
    fn start(socket: &Path) -> ServedPage {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
        command.arg("--socket").arg(socket).args(["dashboard", "--web", "--every", "1"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let (address, token) = url.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
        let (address, token) = (address.to_owned(), token.trim_end_matches('/').to_owned());
        ServedPage { child, address, token }
    }

    /// The answer to a request.
    fn ask(&self, method: &str, path: &str, host: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(SILENT)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        BufReader::new(stream)
    }

    fn whole(&self, method: &str, path: &str, host: &str) -> String {
        let mut text = String::new();
        self.ask(method, path, host).read_to_string(&mut text).unwrap();
        text
    }

    fn path(&self, rest: &str) -> String {
        format!("/{}/{rest}", self.token)
    }
}

impl Drop for ServedPage {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_page_waits_for_its_node_and_says_that_it_has_rebooted() {
    let node = planted();
    let way = node.dir.path().join("way.sock");
    let page = ServedPage::start(&way);
    let events = page.ask("GET", &page.path("events"), &page.address);
    let mut lines = events.lines().map(Result::unwrap).filter(|line| line.starts_with("data: "));
    let mut await_event = |words: &[&str]| {
        let found = lines.any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "no event has {words:?}");
    };
    await_event(&["\"link\":\"away\"", "\"since\":\"20"]);
    symlink(node.dir.path().join("api.sock"), &way).unwrap();
    await_event(&[
        "\"link\":\"up\"",
        "edge-7  Orlop 0.4.0",
        "default/web",
        "init.verity",
        "kubelet.service: line 1",
    ]);
    fs::write(node.dir.path().join("root/proc/sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    await_event(&["\"bootId\":\"boot-2\"", "\"reboots\":1", "the node has rebooted: boot boot-2"]);
    // A browser that comes now has the state in its page, and the picture.
    let whole = page.whole("GET", &page.path(""), &page.address);
    assert!(whole.starts_with("HTTP/1.1 200 ") && whole.contains("\"bootId\":\"boot-2\""), "{whole}");
    assert!(whole.contains("content-security-policy: default-src 'none'; script-src 'sha256-"), "{whole}");
    let picture = page.whole("GET", &page.path("boot.svg"), &page.address);
    assert!(picture.contains("<svg ") && picture.contains("init.verity"), "{picture}");
}

#[test]
fn a_page_is_refused_to_strangers() {
    let node = planted();
    let page = ServedPage::start(&node.dir.path().join("api.sock"));
    for (method, path, host, status) in [
        ("GET", "/".to_owned(), page.address.as_str(), "404"),
        ("GET", "/00112233445566778899aabbccddeeff/events".to_owned(), page.address.as_str(), "404"),
        ("GET", page.path(""), "evil.example", "421"),
        ("GET", page.path("events"), "evil.example", "421"),
        ("POST", page.path(""), page.address.as_str(), "405"),
    ] {
        let answer = page.whole(method, &path, host);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path} {host}: {answer}");
        assert!(!answer.contains("edge-7") && !answer.contains(&page.token), "{answer}");
    }
}

#[test]
fn an_address_of_the_network_is_refused_by_name() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
    let output = command.args(["dashboard", "--web", "--listen", "0.0.0.0:8080"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("0.0.0.0 is not a loopback address"), "{said}");
    // Without the page the address has no sense.
    let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
    let output = command.args(["dashboard", "--listen", "127.0.0.1:8080"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
