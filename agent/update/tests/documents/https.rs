//! A web server that lies, and one that does not.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::publisher::{Publisher, release, request};
use orlop_config::release::DOCUMENT_BYTES_MAX;
use orlop_update::{
    DocumentSource, HttpsDirectory, SourceError, SurveyAnswer, UpdateStore, client_config, survey,
};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Certificates of a server on the loopback address: the authority's PEM, and TLS.
fn authority() -> (String, Arc<ServerConfig>) {
    let key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "test CA");
    let pem = params.self_signed(&key).expect("CA").pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("key");
    // Under its second name it is another server to a client.
    let names = ["127.0.0.1", "localhost"].map(str::to_owned).to_vec();
    let server = CertificateParams::new(names).expect("names");
    let certificate = server.signed_by(&key, &issuer).expect("server");
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("key");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("pair");
    (pem, Arc::new(config))
}

/// Answers each request by its path and head; `None`: the server says nothing more.
async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    answer: impl Fn(&str, &str) -> Option<Vec<u8>> + Send + Sync + 'static,
) {
    let mut silent = Vec::new();
    loop {
        let (stream, _) = listener.accept().await.expect("accepted");
        // A client that does not trust this server ends here.
        let Ok(mut stream) = TlsAcceptor::from(Arc::clone(&tls)).accept(stream).await else { continue };
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => break,
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default();
        match answer(path, &head) {
            Some(bytes) => {
                // A client that has read enough goes away.
                let _ = stream.write_all(&bytes).await;
                let _ = stream.shutdown().await;
            }
            None => silent.push(stream),
        }
    }
}

pub(crate) fn ok(body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

fn status(status: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nLocation: https://127.0.0.1/\r\nContent-Length: 3\r\n\r\nno\n").into_bytes()
}

/// A source at a server of the test, trusted unless `other`.
async fn directory(
    answer: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static,
    other: bool,
) -> HttpsDirectory {
    server(move |path, _| answer(path), other).await
}

/// The same for answers that depend on the request's head.
pub(crate) async fn server(
    answer: impl Fn(&str, &str) -> Option<Vec<u8>> + Send + Sync + 'static,
    other: bool,
) -> HttpsDirectory {
    let (address, tls) = listening(answer, other).await;
    let base = format!("https://{address}/orlop/");
    HttpsDirectory::new(&base, tls).expect("a source").within(Duration::from_secs(20))
}

/// A server, trusted unless `other`: its address, and what a client needs.
pub(crate) async fn listening(
    answer: impl Fn(&str, &str) -> Option<Vec<u8>> + Send + Sync + 'static,
    other: bool,
) -> (SocketAddr, Arc<ClientConfig>) {
    let (pem, tls) = authority();
    let trusted = if other { authority().0 } else { pem };
    let dir = tempfile::tempdir().expect("a scratch directory");
    fs::write(dir.path().join("ca.pem"), trusted).expect("written");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(serve(listener, tls, answer));
    // As SSL_CERT_DIR names it; there is no bundle.
    let tls = client_config(&dir.path().join("none"), Some(dir.path().as_os_str())).expect("an authority");
    (address, tls)
}

#[tokio::test]
async fn a_node_takes_the_release_of_a_server() {
    let publisher = Publisher::new();
    let root = publisher.served();
    let source = directory(
        move |path| {
            let file = root.join(path.strip_prefix("/orlop/")?);
            Some(fs::read(file).map_or_else(|_| status("404 Not Found"), |body| ok(&body)))
        },
        false,
    )
    .await;
    let mut store = UpdateStore::open(&publisher.kept(), &publisher.image_trust()).expect("a store");
    let found = survey(&source, &mut store, &request()).await.expect("an answer");
    assert_eq!(found.answer, SurveyAnswer::Take(release("0.2.0")));
}

#[tokio::test]
async fn lies_of_a_server_are_told_apart() {
    let source = directory(
        |path| {
            Some(match path {
                "/orlop/good" => ok(b"good"),
                "/orlop/gone" => status("410 Gone"),
                "/orlop/moved" => status("302 Found"),
                "/orlop/partial" => status("206 Partial Content"),
                "/orlop/failed" => status("500 Internal Server Error"),
                "/orlop/short" => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort".to_vec(),
                "/orlop/strange" => b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(),
                "/orlop/large" => ok(&vec![b'x'; DOCUMENT_BYTES_MAX + 1]),
                "/orlop/endless" => {
                    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
                    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                    (head.to_owned() + &chunk.repeat(64)).into_bytes()
                }
                _ => status("404 Not Found"),
            })
        },
        false,
    )
    .await;
    assert_eq!(source.document("good").await.expect("an answer").as_deref(), Some(&b"good"[..]));
    for path in ["gone", "absent"] {
        assert!(source.document(path).await.expect("an answer").is_none(), "{path}");
    }
    for (path, code) in [("moved", 302), ("partial", 206), ("failed", 500)] {
        let refused = source.document(path).await.expect_err(path);
        assert!(matches!(refused, SourceError::Status { status, .. } if status == code), "{refused}");
    }
    for path in ["short", "strange"] {
        let refused = source.document(path).await.expect_err(path);
        assert!(matches!(refused, SourceError::Broken { .. }), "{path}: {refused}");
    }
    for path in ["large", "endless"] {
        let refused = source.document(path).await.expect_err(path);
        assert!(matches!(refused, SourceError::TooLarge { .. }), "{path}: {refused}");
    }
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_asked() {
    let source = directory(|_| Some(ok(b"secret")), true).await;
    let refused = source.document("good").await.expect_err("not trusted");
    assert!(matches!(refused, SourceError::Tls { .. }), "{refused}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_left() {
    let source = directory(|_| None, false).await.within(Duration::from_millis(200));
    let refused = source.document("good").await.expect_err("silent");
    assert!(matches!(refused, SourceError::Silent { .. }), "{refused}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_so() {
    // Bound, and never listening: a dropped listener listens on in each child that another test is just starting.
    let bound = tokio::net::TcpSocket::new_v4().expect("a socket");
    bound.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let base = format!("https://{}", bound.local_addr().expect("an address"));
    let (pem, _) = authority();
    let dir = tempfile::tempdir().expect("a scratch directory");
    fs::write(dir.path().join("ca.pem"), pem).expect("written");
    let tls = client_config(&dir.path().join("ca.pem"), None).expect("an authority");
    let source = HttpsDirectory::new(&base, tls).expect("a source");
    let refused = source.document("good").await.expect_err("nobody");
    assert!(matches!(refused, SourceError::Connection { .. }), "{refused}");
}
