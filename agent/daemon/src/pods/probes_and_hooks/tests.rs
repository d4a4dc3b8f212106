//! Probes against real sockets whose other end is slow, endless, hostile or gone.

use std::sync::Mutex;
use std::time::Duration;

use agent_apiserver::testing::{CertificateDefect, OddCertificate};
use agent_core::lifecycle_hooks::{Hook, HookAction};
use agent_core::probe::Kind;
use agent_core::probe::check::{HttpGet, Scheme};
use agent_kubelet_api::drivers::ExecOutput;
use agent_types::failure::{Class, DriverError};
use agent_types::ids::ContainerId;
use orlop_proto::grpc_health::v1::health_check_response::ServingStatus;
use orlop_proto::grpc_health::v1::health_server::{Health, HealthServer};
use orlop_proto::grpc_health::v1::{HealthCheckRequest, HealthCheckResponse};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

use super::*;

/// The commands of a runtime that has one container.
struct OneContainer;

impl Exec for OneContainer {
    async fn exec_sync(
        &self,
        _: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, DriverError> {
        let failed = |class| {
            let message = "from the runtime".to_owned();
            Err(DriverError { operation: "ExecSync", object: "c".to_owned(), class, message })
        };
        assert!(timeout.is_none_or(|limit| limit == SECONDS), "{timeout:?}");
        match command[0].as_str() {
            "true" => Ok(ExecOutput::default()),
            "false" => Ok(ExecOutput { exit_code: 1, stdout: b"out ".to_vec(), stderr: b"err".to_vec() }),
            "yes" => Ok(ExecOutput { exit_code: 1, stdout: vec![b'y'; 1 << 20], stderr: vec![0xff] }),
            "sleep" => failed(Class::DeadlineExceeded),
            "cut" => failed(Class::Interrupted),
            _ => failed(Class::Unavailable),
        }
    }
}

const SECONDS: Duration = Duration::from_secs(3);

fn handlers() -> PodHandlers<OneContainer> {
    PodHandlers::new(Arc::new(OneContainer)).unwrap()
}

async fn ask(check: Check) -> Outcome {
    let call = ProbeCall {
        container: ContainerId::from("c"),
        name: "c".to_owned(),
        kind: Kind::Liveness,
        check,
        timeout: SECONDS,
    };
    handlers().probe(&call).await
}

fn get(port: u16, target: &str) -> HttpGet {
    HttpGet {
        scheme: Scheme::Http,
        host: "127.0.0.1".to_owned(),
        port,
        target: target.to_owned(),
        headers: Vec::new(),
    }
}

async fn http(port: u16, target: &str) -> Outcome {
    ask(Check::HttpGet(get(port, target))).await
}

fn failure(outcome: Outcome) -> String {
    match outcome {
        Outcome::Failure(message) => message,
        other => panic!("a failure, not {other:?}"),
    }
}

/// A server that answers paths as their names say; `seen` gets the heads of all requests.
async fn server(seen: Arc<Mutex<Vec<String>>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(answer(stream, seen.clone()));
        }
    });
    port
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, seen: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            // A TLS handshake: answered as web servers do.
            Ok(0x16) => return drop(stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").await),
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split([' ', '?']).nth(1).unwrap_or("/400").to_owned();
    seen.lock().unwrap().push(head);
    let mut write = async |text: String| stream.write_all(text.as_bytes()).await;
    let redirect =
        |to: &str| format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 4\r\n\r\ngone");
    let plain = |status: &str| format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\nok");
    // A peer that has read enough closes the connection: here that is not a failure.
    let _ = match path.as_str() {
        "/hang" => std::future::pending().await,
        "/hang-body" => {
            let _ = write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_owned()).await;
            std::future::pending().await
        }
        "/short-body" => write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_owned()).await,
        "/endless-body" => {
            let _ = write("HTTP/1.1 200 OK\r\n\r\n".to_owned()).await;
            while write("x".repeat(65536)).await.is_ok() {}
            Ok(())
        }
        "/endless-head" => {
            let _ = write("HTTP/1.1 200 OK\r\n".to_owned()).await;
            while write(format!("a: {}\r\n", "x".repeat(1000))).await.is_ok() {}
            Ok(())
        }
        "/garbage" => write("SSH-2.0-x\r\n\r\n".to_owned()).await,
        "/close" => Ok(()),
        "/to-other" => write(redirect("http://localhost:1/")).await,
        "/to-200" => write(redirect("/200")).await,
        "/to-500" => write(redirect("500?x")).await,
        "/loop" => write(redirect("/loop")).await,
        status => write(plain(&status[1..])).await,
    };
}

#[tokio::test]
async fn statuses_and_redirects() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let port = server(seen.clone()).await;
    for status in ["200", "204", "299"] {
        assert_eq!(http(port, &format!("/{status}")).await, Outcome::Success, "{status}");
    }
    for status in ["400", "404", "500", "503"] {
        let message = failure(http(port, &format!("/{status}")).await);
        assert_eq!(message, format!("HTTP probe failed with statuscode: {status}"));
    }
    let warning = |body: &str| Outcome::Warning(format!("Probe terminated redirects, Response body: {body}"));
    assert_eq!(http(port, "/304").await, warning(""), "a redirect to nowhere");
    assert_eq!(http(port, "/to-200").await, Outcome::Success);
    assert_eq!(failure(http(port, "/to-500").await), "HTTP probe failed with statuscode: 500");
    assert_eq!(http(port, "/to-other").await, warning("gone"), "another host is not asked");
    seen.lock().unwrap().clear();
    let message = failure(http(port, "/loop").await);
    assert_eq!(message, "Get \"/loop\": stopped after 10 redirects");
    assert_eq!(seen.lock().unwrap().len(), 10);
}

#[tokio::test]
async fn servers_that_misbehave() {
    let port = server(Arc::default()).await;
    assert_eq!(http(port, "/endless-body").await, Outcome::Success, "what was read is enough");
    let short = http(port, "/short-body").await;
    assert!(matches!(&short, Outcome::Broken(why) if !why.is_empty()), "{short:?}");
    for path in ["/endless-head", "/garbage", "/close"] {
        let message = failure(http(port, path).await);
        assert!(message.starts_with(&format!("Get \"http://127.0.0.1:{port}{path}\": ")), "{message}");
    }
    let message = failure(http(port, "8080/healthz").await);
    assert_eq!(message, "Get \"http:8080/healthz\": http: no Host in request URL");
    let https = HttpGet { scheme: Scheme::Https, ..get(port, "/200") };
    let message = failure(ask(Check::HttpGet(https)).await);
    assert!(message.ends_with("/200\": http: server gave HTTP response to HTTPS client"), "{message}");
}

/// The clock runs ahead whenever everything waits, so no timeout is waited for.
#[tokio::test(start_paused = true)]
async fn servers_that_do_not_answer() {
    let port = server(Arc::default()).await;
    let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    for path in ["/hang", "/hang-body"] {
        let message = failure(http(port, path).await);
        assert_eq!(message, format!("Get \"http://127.0.0.1:{port}{path}\": {late}"));
    }
}

#[tokio::test]
async fn nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = "127.0.0.1".to_owned();
    assert_eq!(ask(Check::TcpSocket { host: host.clone(), port }).await, Outcome::Success);
    // Bound, and never listening: a dropped listener listens on in each child that another test is just starting.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = bound.local_addr().unwrap().port();
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(failure(ask(Check::TcpSocket { host: host.clone(), port }).await), refused);
    assert_eq!(failure(http(port, "/").await), format!("Get \"http://127.0.0.1:{port}/\": {refused}"));
    let message = failure(ask(Check::Grpc { host, port, service: String::new() }).await);
    let start = format!("timeout: failed to connect service \"127.0.0.1:{port}\" within 3s: ");
    assert!(message.to_lowercase().starts_with(&start) && message.contains("refused"), "{message}");
}

/// Headers that are given, lines that must be sent, names that must not.
type Row<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a [&'a str]);

#[tokio::test]
async fn headers_are_the_users_and_the_defaults_beside_them() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let port = server(seen.clone()).await;
    let header = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let host = format!("host: 127.0.0.1:{port}");
    let table: [Row; 3] = [
        (
            &[],
            &["user-agent: kube-probe/1.36", "accept: */*", "connection: close", &host],
            &["accept-encoding"],
        ),
        (
            &[("User-Agent", "mine"), ("Accept", ""), ("Host", "web.example"), ("X", "1"), ("X", "2")],
            &["user-agent: mine", "host: web.example", "x: 1", "x: 2"],
            &["accept"],
        ),
        (&[("user-agent", "")], &["accept: */*"], &["user-agent"]),
    ];
    for (given, there, absent) in table {
        let headers = given.iter().map(header).collect();
        assert_eq!(ask(Check::HttpGet(HttpGet { headers, ..get(port, "/200") })).await, Outcome::Success);
        let head = seen.lock().unwrap().pop().unwrap().to_lowercase();
        assert!(there.iter().all(|line| head.contains(&format!("\r\n{line}\r\n"))), "{head}");
        assert!(absent.iter().all(|name| !head.contains(&format!("\r\n{name}:"))), "{head}");
    }
    let headers = vec![("x-foo".to_owned(), "1".to_owned())];
    ask(Check::HttpGet(HttpGet { headers, ..get(port, "/200") })).await;
    let head = seen.lock().unwrap().pop().unwrap();
    for name in ["X-Foo", "User-Agent", "Accept", "Host", "Connection"] {
        assert!(head.contains(&format!("\r\n{name}: ")), "names as Go writes them: {head}");
    }
    let headers = vec![("X".to_owned(), "a\r\nb: c".to_owned())];
    failure(ask(Check::HttpGet(HttpGet { headers, ..get(port, "/200") })).await);
    assert!(seen.lock().unwrap().is_empty(), "nothing was sent");
}

/// A server over TLS; its port.
async fn https_server(config: Arc<rustls::ServerConfig>) -> u16 {
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that closes the connection in the handshake is seen by the test.
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(answer(stream, Arc::default()));
            }
        }
    });
    port
}

#[tokio::test]
async fn any_certificate_will_do() {
    for odd in [CertificateDefect::Version1, CertificateDefect::P521, CertificateDefect::Ended] {
        let port = https_server(OddCertificate::new(odd, "elsewhere.example").server_config()).await;
        let https = Check::HttpGet(HttpGet { scheme: Scheme::Https, ..get(port, "/200") });
        assert_eq!(ask(https).await, Outcome::Success, "{odd:?}");
    }
}

#[tokio::test]
async fn certificates_are_not_verified() {
    let own = rcgen::generate_simple_self_signed(["elsewhere.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
    let port = https_server(Arc::new(config)).await;
    let https = |target: &str| Check::HttpGet(HttpGet { scheme: Scheme::Https, ..get(port, target) });
    assert_eq!(ask(https("/200")).await, Outcome::Success);
    assert_eq!(ask(https("/to-200")).await, Outcome::Success);
    assert_eq!(failure(ask(https("/500")).await), "HTTP probe failed with statuscode: 500");
}

#[tokio::test]
async fn commands() {
    let run =
        async |command: &str| ask(Check::Exec { command: vec![command.to_owned(), "1".to_owned()] }).await;
    assert_eq!(run("true").await, Outcome::Success);
    assert_eq!(failure(run("false").await), "out err");
    assert_eq!(failure(run("yes").await).len(), ANSWER_BYTES_MAX);
    assert_eq!(failure(run("sleep").await), "command timed out: \"sleep 1\" timed out after 3s");
    // A runtime that died meanwhile reports nothing about the container.
    for unanswered in ["cut", "other"] {
        assert_eq!(run(unanswered).await, Outcome::Error("ExecSync c: from the runtime".to_owned()));
    }
}

/// Answers by the service's name.
struct Services;

#[tonic::async_trait]
impl Health for Services {
    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, tonic::Status> {
        let status = match request.get_ref().service.as_str() {
            "" => ServingStatus::Serving,
            "hang" => std::future::pending().await,
            "none" => return Err(tonic::Status::unimplemented("no")),
            "bad" => ServingStatus::NotServing,
            _ => return Err(tonic::Status::not_found("unknown service")),
        };
        assert!(
            request.metadata().get("user-agent").unwrap().to_str().unwrap().starts_with("kube-probe/1.36")
        );
        Ok(tonic::Response::new(HealthCheckResponse { status: status.into() }))
    }
}

#[tokio::test]
async fn grpc_services() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tonic::transport::Server::builder().add_service(HealthServer::new(Services));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let check = async |service: &str| {
        ask(Check::Grpc { host: "127.0.0.1".to_owned(), port, service: service.to_owned() }).await
    };
    assert_eq!(check("").await, Outcome::Success);
    assert_eq!(failure(check("bad").await), "service unhealthy (responded with \"NOT_SERVING\")");
    let none = failure(check("none").await);
    assert!(none.starts_with("error: this server does not implement the grpc health protocol"), "{none}");
    assert!(failure(check("else").await).contains("unknown service"));
    tokio::time::pause();
    assert_eq!(failure(check("hang").await), "timeout: health rpc did not complete within 3s");
}

#[tokio::test(start_paused = true)]
async fn questions_that_nobody_answers_keep_nobody_else_waiting_for_ever() {
    let port = server(Arc::default()).await;
    let handlers = Arc::new(handlers());
    let call = |target: &str| ProbeCall {
        container: ContainerId::from("c"),
        name: "c".to_owned(),
        kind: Kind::Liveness,
        check: Check::HttpGet(get(port, target)),
        timeout: SECONDS,
    };
    let mut hanging = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let (handlers, call) = (handlers.clone(), call("/hang"));
        hanging.push(tokio::spawn(async move { handlers.probe(&call).await }));
    }
    while handlers.connections.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(handlers.probe(&call("/200")).await, Outcome::Success, "its own time begins with its turn");
    for task in hanging {
        failure(task.await.unwrap());
    }
}

fn asks_for(get: HttpGet) -> HookAction {
    HookAction::HttpGet { path: get.target.clone(), get }
}

async fn hook(action: HookAction) -> Result<Option<String>, HookFailure> {
    let (container, name) = (ContainerId::from("c"), "c".to_owned());
    handlers().hook(&HookCall { container, name, hook: Hook::PreStop, action }).await
}

#[tokio::test]
async fn hooks_over_http_want_an_answer_and_no_more() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let port = server(seen.clone()).await;
    for path in ["/200", "/500", "/to-200", "/endless-body"] {
        assert_eq!(hook(asks_for(get(port, path))).await, Ok(None), "{path}");
    }
    assert!(seen.lock().unwrap()[0].to_lowercase().contains("\r\nuser-agent: kube-lifecycle/1.36\r\n"));
    hook(asks_for(get(port, "/close"))).await.unwrap_err();
    // The client expected TLS and got plain text: it asks once more, without the headers for TLS only.
    seen.lock().unwrap().clear();
    let headers = vec![("AUTHORIZATION".to_owned(), "Bearer x".to_owned()), ("X".to_owned(), "1".to_owned())];
    let https = HttpGet { scheme: Scheme::Https, headers, ..get(port, "/200") };
    assert_eq!(hook(asks_for(https)).await, Ok(Some(format!("127.0.0.1:{port}"))));
    let heads = seen.lock().unwrap().join("").to_lowercase();
    assert!(heads.contains("\r\nx: 1\r\n") && !heads.contains("bearer"), "{heads}");
}

#[tokio::test(start_paused = true)]
async fn hooks_that_sleep_and_commands_that_fail() {
    let start = tokio::time::Instant::now();
    assert_eq!(hook(HookAction::Sleep { seconds: 0 }).await, Ok(None));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(hook(HookAction::Sleep { seconds: 40 }).await, Ok(None));
    assert_eq!(start.elapsed().as_secs(), 40);
    let run = async |command: &str| hook(HookAction::Exec { command: vec![command.to_owned()] }).await;
    assert_eq!(run("true").await, Ok(None));
    let (error, output) = ("command 'false' exited with 1: err".to_owned(), b"out err".to_vec());
    assert_eq!(run("false").await, Err(HookFailure { error, output }));
    assert_eq!(run("yes").await.unwrap_err().output.len(), ANSWER_BYTES_MAX);
    assert_eq!(run("other").await, Err("ExecSync c: from the runtime".to_owned().into()));
}
