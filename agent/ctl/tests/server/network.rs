//! By the network: keys of administrators, tokens of the cluster's users, strangers.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use orlop_proto::node_api::v1alpha1::reviews_server::{Reviews, ReviewsServer};
use orlop_proto::node_api::v1alpha1::{ReviewRequest, ReviewResponse};
use socket2::{Domain, Socket, Type};

use super::{FakeNode, code, text};

#[test]
fn an_administrator_asks_by_the_network_while_the_configuration_has_the_key() {
    let node = FakeNode::start();
    let (key, pin) = (node.key("ops-1", true), node.pin());
    let output = node.by_tcp(&key, &pin, &["get", "time", "-o", "name"]);
    assert_eq!(text(&output.stdout), "time/clock\n", "{}", text(&output.stderr));
    let lines = node.by_tcp(&key, &pin, &["logs", "--lines", "2"]);
    assert_eq!(text(&lines.stdout).lines().count(), 2, "{}", text(&lines.stderr));
    // The line is taken out of the configuration.
    fs::write(node.dir.path().join("root/run/orlop/node-config.json"), "{}").unwrap();
    let refused = node.by_tcp(&key, &pin, &["status"]);
    assert_eq!(code(&refused), 4, "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("UNKNOWN_KEY"), "{}", text(&refused.stderr));
    assert!(refused.stdout.is_empty());
}

#[test]
fn a_node_with_another_key_than_the_pinned_one_learns_nothing() {
    let node = FakeNode::start();
    let (key, pin) = (node.key("ops-1", true), node.pin());
    for wrong in ["", "SHA256:AAAA"] {
        let output = node.by_tcp(&key, wrong, &["status"]);
        assert_eq!(code(&output), 4, "{wrong:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(&pin), "{}", text(&output.stderr));
    }
}

#[test]
fn strangers_with_keys_and_silent_ones_keep_no_administrator_out() {
    let node = FakeNode::start();
    let stranger = node.key("stranger", false);
    let (key, pin) = (node.key("ops-1", true), node.pin());
    let refused = node.by_tcp(&stranger, &pin, &["get", "node"]);
    assert_eq!(code(&refused), 4, "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("UNKNOWN_KEY") && text(&refused.stderr).contains("api.admins"));
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(node.address).unwrap()).collect();
    let output = node.by_tcp(&key, &pin, &["get", "time", "-o", "name"]);
    assert_eq!(text(&output.stdout), "time/clock\n", "{}", text(&output.stderr));
    drop(silent);
    // A program that speaks no TLS.
    let mut other = TcpStream::connect(node.address).unwrap();
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = other.read_to_end(&mut answer);
    assert!(!answer.windows(4).any(|word| word == b"HTTP"), "{answer:?}");
}

/// The agent of a cluster in which the token `reader` is of a user who may get everything and change nothing.
struct FakeAgent;

#[tonic::async_trait]
impl Reviews for FakeAgent {
    async fn review(
        &self,
        request: tonic::Request<ReviewRequest>,
    ) -> Result<tonic::Response<ReviewResponse>, tonic::Status> {
        let ReviewRequest { token, verb, .. } = request.into_inner();
        let user = if token == "reader" { "system:serviceaccount:ops:reader" } else { "" };
        let allowed = !user.is_empty() && verb == "get";
        Ok(tonic::Response::new(ReviewResponse { user: user.to_owned(), allowed, ttl_ms: 60_000 }))
    }
}

/// Ends with the test's process.
pub(super) fn serve_reviews(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            let connections = futures_util::stream::unfold(listener, |listener| async move {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                Some((accepted, listener))
            });
            let server = tonic::transport::Server::builder().add_service(ReviewsServer::new(FakeAgent));
            server.serve_with_incoming(Box::pin(connections)).await.unwrap();
        });
    });
}

#[test]
fn a_user_of_the_cluster_may_do_what_its_roles_allow() {
    let node = FakeNode::start();
    let pin = node.pin();
    let config = node.dir.path().join("root/run/orlop/node-config.json");
    fs::write(&config, r#"{"config":{"api":{"clusterIdentities":true}}}"#).unwrap();
    serve_reviews(&node.dir.path().join("root/run/orlop/agent.sock"));
    let kubectl = node.dir.path().join("kubectl");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> '{}/kubectl.asked'\ncase \"$1\" in create) echo reader;; *) echo \
         '{{\"metadata\":{{\"annotations\":{{\"node.orlop.dev/api-key\":\"{pin}\"}}}}}}';; esac\n",
        node.dir.path().display()
    );
    fs::write(&kubectl, script).unwrap();
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
    let ask = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
        command.args(["--tcp", &node.address.to_string()]).args(words).stdin(Stdio::null());
        command.env("PATH", format!("{}:/usr/bin:/bin", node.dir.path().display())).output().unwrap()
    };
    let of_cluster = ["--node", "n1", "--service-account", "ops/reader"];
    let reads = ask(&[&of_cluster[..], &["get", "time", "-o", "name"]].concat());
    assert_eq!(text(&reads.stdout), "time/clock\n", "{}", text(&reads.stderr));
    let logs = ask(&[&of_cluster[..], &["logs", "--lines", "2"]].concat());
    assert_eq!(text(&logs.stdout).lines().count(), 2, "{}", text(&logs.stderr));
    let reboot = ask(&[&of_cluster[..], &["reboot"]].concat());
    assert_eq!(code(&reboot), 4, "{}", text(&reboot.stderr));
    assert!(text(&reboot.stderr).contains("NOT_ALLOWED"), "{}", text(&reboot.stderr));
    let asked = fs::read_to_string(node.dir.path().join("kubectl.asked")).unwrap();
    assert!(
        asked.contains("create token reader --namespace ops --audience orlop.dev/node-api/n1 "),
        "{asked}"
    );
    // A token that the cluster does not know, and a node that takes none.
    let file = node.dir.path().join("token");
    fs::write(&file, "other\n").unwrap();
    let by_file = ["--token-file", file.to_str().unwrap(), "--node-key", &pin, "status"];
    let unknown = ask(&by_file);
    assert_eq!(code(&unknown), 4, "{}", text(&unknown.stderr));
    assert!(text(&unknown.stderr).contains("UNKNOWN_TOKEN"), "{}", text(&unknown.stderr));
    fs::write(&config, "{\"config\":{}}").unwrap();
    let refused = ask(&by_file);
    assert_eq!(code(&refused), 4, "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("UNKNOWN_KEY"), "{}", text(&refused.stderr));
}

#[test]
fn a_wait_goes_on_at_the_address_that_the_node_has_after_its_reboot() {
    let node = FakeNode::start();
    let (pin, dir) = (node.pin(), node.dir.path());
    let config = dir.join("root/run/orlop/node-config.json");
    fs::write(&config, r#"{"config":{"api":{"clusterIdentities":true}}}"#).unwrap();
    serve_reviews(&dir.join("root/run/orlop/agent.sock"));
    // Taken, so that no other test gets the port, and nobody listens there.
    let taken = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    taken.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let before = taken.local_addr().unwrap().as_socket().unwrap();
    fs::write(dir.join("address"), before.to_string()).unwrap();
    let script = format!(
        "#!/bin/sh\ncd '{}'\ncase \"$1\" in create) echo reader;; *) echo '{{\"metadata\":{{\"annotations\":\
         {{\"node.orlop.dev/api-key\":\"{pin}\"}}}},\"status\":{{\"addresses\":[{{\"type\":\"InternalIP\",\"address\":\
         \"'$(cat address)'\"}}]}}}}'; echo {} > address;; esac\n",
        dir.display(),
        node.address
    );
    let kubectl = dir.join("kubectl");
    fs::write(&kubectl, script).unwrap();
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_orlopctl"));
    command.args(["--node", "n1", "--service-account", "ops/reader", "wait"]).stdin(Stdio::null());
    command.args(["01936f2e-0102-7fff-bfff-ffffffffffff", "--for", "60"]);
    let waited = command.env("PATH", format!("{}:/usr/bin:/bin", dir.display())).output().unwrap();
    let said = text(&waited.stderr);
    assert_eq!(code(&waited), 1, "{said}");
    assert!(said.contains(&format!("waiting for the node at {before}")), "{said}");
    assert!(said.contains("NO_SUCH_OPERATION"), "{said}");
}
