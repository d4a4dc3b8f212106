//! The listener over real sockets: both HTTP versions, certificates that change, limits.

use std::net::Ipv4Addr;
use std::sync::Mutex;

use agent_apiserver::testing::{CertificateDefect, OddCertificate};
use http_body_util::{BodyExt, Empty};
use hyper::StatusCode;
use hyper_util::rt::{TokioExecutor, TokioIo};
use orlop_config::kubelet::KubeletConfiguration;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::body::text;
use crate::tls::serving::ServingKey;

mod slow;

/// Answers with the path and the number of certificates of a request. Admits `/admitted…`; knows every peer that
/// shows a certificate.
#[derive(Default)]
struct Echo {
    /// Counts up when a body was dropped.
    gone: Arc<watch::Sender<usize>>,
}

impl Handler for Echo {
    fn knows(&self, peer: &Peer) -> bool {
        !peer.chain.is_empty()
    }

    fn handle(
        &self,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>> {
        let path = request.uri().path();
        if path.starts_with("/admitted") {
            peer.admitted();
        }
        if let Some(body) = slow::body(path, &self.gone) {
            return Box::pin(async move { Response::new(body) });
        }
        let said = format!("{path} {}", peer.chain.len());
        Box::pin(async move { text(StatusCode::OK, said) })
    }
}

#[derive(Default)]
struct Started(Mutex<Vec<tokio::task::JoinHandle<()>>>);

impl Spawn for Started {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send + 'static>>) {
        self.0.lock().unwrap().push(tokio::spawn(task));
    }
}

fn pair() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["n".to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn serving(pair: &(String, String)) -> ServingKey {
    ServingKey::from_pem("test", pair.0.as_bytes(), pair.1.as_bytes()).unwrap()
}

struct World {
    at: SocketAddr,
    shown: watch::Sender<Option<ServingKey>>,
    /// How many bodies that were begun have gone.
    gone: watch::Receiver<usize>,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn world(limits: Limits) -> World {
    let (shown, view) = watch::channel(Some(serving(&pair())));
    let (tls, _) =
        crate::tls::server_config(&KubeletConfiguration::default(), agent_apiserver::provider(), view, true)
            .unwrap();
    let echo = Echo::default();
    let gone = echo.gone.subscribe();
    let https = Https { tls, limits, handler: Arc::new(echo), spawner: Arc::new(Started::default()) };
    let (bound, mut address) = watch::channel(None);
    let stop = CancellationToken::new();
    tokio::spawn(https.serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), bound, stop.clone()));
    let at = address.wait_for(Option::is_some).await.unwrap().unwrap();
    World { at, shown, gone, stop }
}

/// Believes every server: what is tested is the other side.
#[derive(Debug)]
struct AcceptAnyServer;

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

async fn connect(
    to: SocketAddr,
    protocol: &str,
    shows: Option<&(String, String)>,
) -> std::io::Result<TlsStream<TcpStream>> {
    over(TcpStream::connect(to).await?, client(protocol, shows)).await
}

fn client(protocol: &str, shows: Option<&(String, String)>) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyServer));
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config
}

async fn over(stream: TcpStream, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("n").unwrap(), stream).await
}

fn request(path: &str) -> Request<Empty<bytes::Bytes>> {
    Request::get(path).header("Host", "n").body(Empty::new()).unwrap()
}

async fn body_text(response: Response<Incoming>) -> String {
    assert_eq!(response.status(), StatusCode::OK);
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn over_http1(stream: TlsStream<TcpStream>) -> String {
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let answer = body_text(send.send_request(request("/one")).await.unwrap()).await;
    drop(send);
    // How the server hangs up is its own affair.
    let _ = connection.await.unwrap();
    answer
}

#[tokio::test]
async fn both_versions_with_and_without_a_certificate() {
    let world = world(Limits::default()).await;
    assert_eq!(over_http1(connect(world.at, "http/1.1", None).await.unwrap()).await, "/one 0");
    // No authority has signed it, and the handshake accepts it: requests are judged, not connections.
    assert_eq!(over_http1(connect(world.at, "http/1.1", Some(&pair())).await.unwrap()).await, "/one 1");
    let stream = connect(world.at, "h2", Some(&pair())).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    for path in ["/one", "/two"] {
        let uri = format!("https://n{path}");
        let request = Request::get(uri).body(Empty::<bytes::Bytes>::new()).unwrap();
        assert_eq!(body_text(send.send_request(request).await.unwrap()).await, format!("{path} 1"));
    }
    connection.abort();
}

#[tokio::test]
async fn a_client_with_a_certificate_of_version_1_proves_that_it_has_its_key() {
    let world = world(Limits::default()).await;
    let (old, other) = (
        OddCertificate::new(CertificateDefect::Version1, "old"),
        OddCertificate::new(CertificateDefect::Version1, "old"),
    );
    for (protocol, key, has) in [
        (&rustls::version::TLS12, &old.key_pem, true),
        (&rustls::version::TLS13, &old.key_pem, true),
        (&rustls::version::TLS12, &other.key_pem, false),
        (&rustls::version::TLS13, &other.key_pem, false),
    ] {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[protocol])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyServer));
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let key = ring::sign::any_supported_type(&key).unwrap();
        let pair = rustls::sign::CertifiedKey::new(vec![old.der.clone()], key);
        let resolver = rustls::sign::SingleCertAndKey::from(pair);
        let config = config.with_client_cert_resolver(Arc::new(resolver));
        let stream = over(TcpStream::connect(world.at).await.unwrap(), config).await;
        match has {
            true => assert_eq!(over_http1(stream.unwrap()).await, "/one 1"),
            // In TLS 1.3 the client hears of it with its first read.
            false => assert!(match stream {
                Err(_) => true,
                Ok(mut stream) => stream.read(&mut [0; 1]).await.is_err(),
            }),
        }
    }
}

#[tokio::test]
async fn a_new_certificate_is_shown_without_dropping_a_connection() {
    let world = world(Limits::default()).await;
    let shown = |stream: &TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let old = connect(world.at, "http/1.1", None).await.unwrap();
    let first = shown(&old);
    world.shown.send_replace(Some(serving(&pair())));
    let new = connect(world.at, "http/1.1", None).await.unwrap();
    assert_ne!(shown(&new), first);
    assert_eq!(over_http1(old).await, "/one 0");
    world.shown.send_replace(None);
    assert!(connect(world.at, "http/1.1", None).await.is_err(), "no certificate, no handshake");
}

/// A limit that a client has to feel: what ends before it was ended by another one.
const MOMENT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_client_that_says_nothing_is_ended() {
    let world = world(Limits { handshake: MOMENT, ..Limits::default() }).await;
    let mut silent = TcpStream::connect(world.at).await.unwrap();
    let began = Instant::now();
    silent.read_to_end(&mut Vec::new()).await.unwrap();
    assert!(began.elapsed() >= MOMENT / 2);
}

#[tokio::test]
async fn a_request_that_does_not_come_to_its_end_is_ended() {
    let world = world(Limits { head: MOMENT, ..Limits::default() }).await;
    let mut slow = connect(world.at, "http/1.1", None).await.unwrap();
    let began = Instant::now();
    tokio::io::AsyncWriteExt::write_all(&mut slow, b"GET / HTTP/1.1\r\nHost:").await.unwrap();
    // How the server hangs up is its own affair.
    let _ = slow.read_to_end(&mut Vec::new()).await;
    assert!(began.elapsed() >= MOMENT / 2);
}

#[tokio::test]
async fn a_connection_without_requests_is_ended() {
    let world = world(Limits { idle: MOMENT, ..Limits::default() }).await;
    let stream = connect(world.at, "h2", None).await.unwrap();
    let (_send, connection) = hyper::client::conn::http2::handshake::<_, _, Empty<bytes::Bytes>>(
        TokioExecutor::new(),
        TokioIo::new(stream),
    )
    .await
    .unwrap();
    let ended = timeout(Duration::from_secs(20), connection).await;
    assert!(ended.is_ok(), "an idle connection lives on");
}

#[tokio::test]
async fn one_source_does_not_take_the_places_of_others() {
    let connections = ConnectionLimits { all: 8, strangers: 6, per_source: 2 };
    let world = world(Limits { connections, ..Limits::default() }).await;
    let mut two = Vec::new();
    for _ in 0..2 {
        two.push(connect(world.at, "http/1.1", None).await.unwrap());
    }
    // A third one of the same source takes the place of the first.
    two.push(connect(world.at, "http/1.1", None).await.unwrap());
    let ended = timeout(Duration::from_secs(20), two.remove(0).read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the first one is ended");
    // The whole of 127.0.0.0/8 is the host's.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    let other = over(socket.connect(world.at).await.unwrap(), client("http/1.1", None)).await.unwrap();
    assert_eq!(over_http1(other).await, "/one 0");
    // A client that is known needs no stranger's place.
    let (mut send, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(two.pop().unwrap())).await.unwrap();
    let connection = tokio::spawn(connection);
    assert_eq!(body_text(send.send_request(request("/admitted")).await.unwrap()).await, "/admitted 0");
    assert_eq!(over_http1(connect(world.at, "http/1.1", None).await.unwrap()).await, "/one 0");
    connection.abort();
}

#[tokio::test]
async fn a_huge_head_is_refused() {
    let world = world(Limits::default()).await;
    let mut stream = connect(world.at, "http/1.1", None).await.unwrap();
    let line = format!("X-A: {}\r\n", "a".repeat(1000));
    let mut head = b"GET / HTTP/1.1\r\nHost: n\r\n".to_vec();
    for _ in 0..100 {
        head.extend_from_slice(line.as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    // The server may hang up in the middle.
    let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &head).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}
