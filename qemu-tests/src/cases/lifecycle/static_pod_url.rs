//! Static pods from a server (`staticPodURL`) on the native node.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::await_words;
use orlop_harness::cluster::pki::Authority;
use orlop_harness::native::images;
use orlop_harness::native::node::NativeNode;
use serde_json::{Value, json};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::cases::lifecycle::static_pods::await_gone;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "lifecycle/static-pod-url",
    25,
    "pods of a server of manifests come, change, stay while it is down, and go; its headers are told to nobody; by \
     https only from a server whose authority the machine trusts",
    url,
)];

/// The secret header value, which only the server may get.
const TOKEN: &str = "Bearer e2e-hidden";

/// The authorities that the node's machine trusts.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A server of manifests on the node's loopback.
struct Manifests {
    port: u16,
    /// The answer; `None` closes the connection.
    answer: Arc<Mutex<Option<String>>>,
    asked: Arc<AtomicUsize>,
}

impl Manifests {
    /// Starts the server, with TLS if there is a certificate. Its thread ends with the process.
    fn start(node: &NativeNode, tls: Option<Arc<ServerConfig>>) -> Result<Manifests> {
        let pid = node.pid();
        // A network namespace belongs to a thread; a socket stays in the namespace where it was made.
        let bound = std::thread::spawn(move || -> Result<TcpListener> {
            let namespace = fs::File::open(format!("/proc/{pid}/ns/net")).context("the node's network")?;
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)?;
            TcpListener::bind("127.0.0.1:0").context("listen in the node")
        });
        let listener = bound.join().unwrap_or_else(|_| bail!("the listener's thread died"))?;
        let port = listener.local_addr()?.port();
        let (answer, asked) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
        let (said, count): (Arc<Mutex<Option<String>>>, _) = (answer.clone(), asked.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let now = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(body) = now {
                    // A client that closes the connection gets no answer.
                    let _ = accept(stream, tls.as_ref(), &body);
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Ok(Manifests { port, answer, asked })
    }

    fn say(&self, pods: Option<&[Value]>) {
        let list =
            pods.map(|items| json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string());
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = list;
    }

    /// Waits for two more requests: the second one follows the evaluation of the first answer.
    fn asked_again(&self, node: &mut NativeNode) -> Result<()> {
        let until = self.asked.load(Ordering::SeqCst) + 2;
        for _ in 0..300 {
            if self.asked.load(Ordering::SeqCst) >= until {
                return Ok(());
            }
            node.pass(Duration::from_millis(100))?;
        }
        bail!("the server is not asked any more")
    }
}

fn accept(stream: TcpStream, tls: Option<&Arc<ServerConfig>>, body: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    match tls {
        None => serve(stream, body),
        Some(config) => {
            let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
            serve(StreamOwned::new(connection, stream), body)
        }
    }
}

fn serve(mut stream: impl Read + Write, body: &str) -> io::Result<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let may = head.lines().any(|line| line == format!("authorization: {}", TOKEN.to_lowercase()));
    let (status, body) = if may { ("200 OK", body) } else { ("401 Unauthorized", "") };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())?;
    stream.flush()
}

fn pod(name: &str, word: &str) -> Value {
    let script = format!("trap 'exit 0' TERM; echo {word}; while :; do sleep 3600 & wait; done");
    json!({"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 5, "containers": [{
        "name": "c", "image": images::busybox(), "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script]}]}})
}

fn url(cx: &mut CaseContext<'_>) -> Result<()> {
    let agent = built::agent(&cx.run, false)?;
    let mut node = NativeNode::start(&cx.run, &cx.artefacts, agent)?;
    let server = Manifests::start(&node, None)?;
    let address = format!("--manifest-url=http://127.0.0.1:{}/pods?token=e2e-hidden", server.port);
    let header = format!("--manifest-url-header=Authorization:{TOKEN}");
    let flags = [address.as_str(), &header, "--http-check-frequency=1s"];
    // The server is down at first: the node is ready without it.
    node.start_agent_with(&flags)?;
    node.await_agent_ready()?;
    server.asked_again(&mut node)?;
    server.say(Some(&[pod("web", "one"), pod("other", "one")]));
    let first = node.wait(30, "the server's pod", |v| v.one_running("web-native"))?;
    let other = node.wait(30, "the other pod", |v| v.one_running("other-native"))?;
    let status = node.cri().status(&first)?;
    let uid = status.labels.get("io.kubernetes.pod.uid").cloned().unwrap_or_default();
    ensure!(uid.len() == 32, "UID of a pod of the server: {uid:?}");
    let sandboxes = node.cri().view()?.sandboxes;
    let source = |name: &str| {
        let found = sandboxes.iter().find(|s| s.metadata.as_ref().is_some_and(|m| m.name == name));
        found.and_then(|s| s.annotations.get("kubernetes.io/config.source").cloned())
    };
    ensure!(source("web-native").as_deref() == Some("http"), "its source: {:?}", source("web-native"));

    // Down, and a restart of the agent meanwhile: nothing happens to the pods.
    server.say(None);
    server.asked_again(&mut node)?;
    ensure!(node.stop_agent()? == 0, "the agent ends with 0 on SIGTERM");
    node.start_agent_with(&flags)?;
    node.await_agent_ready()?;
    server.asked_again(&mut node)?;
    let view = node.cri().view()?;
    ensure!(
        view.one_running("web-native").as_ref() == Some(&first),
        "while it is down:\n{}",
        view.describe()
    );
    ensure!(
        view.one_running("other-native").as_ref() == Some(&other),
        "while it is down:\n{}",
        view.describe()
    );

    server.say(Some(&[pod("web", "two"), pod("other", "one")]));
    node.wait(60, "the changed pod", |v| v.one_running("web-native").filter(|id| *id != first))?;
    server.say(Some(&[pod("other", "one")]));
    await_gone(&node, 60, "web-native")?;
    ensure!(node.cri().view()?.one_running("other-native") == Some(other), "the other pod was not touched");
    server.say(Some(&[]));
    await_gone(&node, 60, "other-native")?;

    ensure!(node.stop_agent()? == 0, "the agent ends with 0 on SIGTERM");
    https(cx, &mut node, &header)?;

    let log = fs::read_to_string(node.logs().join("agent.log")).context("the agent's log")?;
    ensure!(log.contains("static pods not read from their URL"), "the log says that the server was down");
    ensure!(!log.contains("e2e-hidden"), "the log has what only the server is to know");
    Ok(())
}

/// The headers are sent only to a server with a certificate of one of the machine's authorities; the running agent
/// accepts an authority that is added.
fn https(cx: &CaseContext<'_>, node: &mut NativeNode, header: &str) -> Result<()> {
    let dir = cx.artefacts.join("url-pki");
    fs::create_dir_all(&dir)?;
    let authority = Authority::make(&dir, "ca", "manifests")?;
    let server =
        Manifests::start(node, Some(authority.server(&dir, "server", &["127.0.0.1"])?.server_config()?))?;
    server.say(Some(&[pod("safe", "one")]));
    let address = format!("--manifest-url=https://127.0.0.1:{}/pods?token=e2e-hidden", server.port);
    node.start_agent_with(&[&address, header, "--http-check-frequency=1s"])?;
    node.await_agent_ready()?;
    await_words(node, 30, &["static pods not read", "authority that this machine does not trust", BUNDLE])?;
    ensure!(node.cri().view()?.one_running("safe-native").is_none(), "a pod of a server that is not trusted");
    let mut bundle =
        fs::OpenOptions::new().append(true).open(node.inside(BUNDLE)).context("the machine's authorities")?;
    bundle.write_all(authority.pem.as_bytes())?;
    node.wait(30, "the pod of the server that is trusted now", |v| v.one_running("safe-native"))?;
    server.say(Some(&[]));
    await_gone(node, 60, "safe-native")
}
