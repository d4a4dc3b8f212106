//! A client of web servers: HTTP/1.1 over TLS, a connection for each request, bounded in time and in bytes. It reads no proxy and
//! follows no redirect by itself.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_RANGE, HOST, HeaderMap, HeaderName, RANGE, USER_AGENT,
};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::source::{ByteRange, SourceError, TakePiece};

/// `User-Agent`.
const AGENT: &str = concat!("orlop/", env!("CARGO_PKG_VERSION"));
/// Connecting, asking and reading a document take at most this long together.
const LIMIT: Duration = Duration::from_secs(30);
/// A server that gives a part of a file more slowly is asked anew, bytes in a second; the limit of a document comes on top.
const RATE_MIN: u64 = 16 << 10;
/// Port of https.
const PORT: u16 = 443;
/// Longest text of a server in a message, characters.
const QUOTED_CHARS_MAX: usize = 80;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpTarget {
    /// Without the brackets of IPv6.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// With the query.
    pub(crate) path: String,
}

impl HttpTarget {
    /// From `https://host[:port]/path[?query]`.
    pub(crate) fn parse(text: &str) -> Result<HttpTarget, &'static str> {
        let uri: Uri = text.parse().map_err(|_| "it is no URL")?;
        if uri.scheme_str() != Some("https") {
            return Err("it does not begin with https://");
        }
        let authority = uri.authority().ok_or("it has no host")?;
        if authority.as_str().contains('@') {
            return Err("it has a user, and the documents are for everybody");
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            None if authority.as_str() == authority.host() => PORT,
            None => return Err("its port is none"),
        };
        // Addresses of IPv6 stand in brackets.
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(HttpTarget { host, port, path })
    }

    /// As in a URL: `host:port`, an address of IPv6 in brackets.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.bare_host(), self.port)
    }

    fn bare_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// The value of `Host`. Without the port of https, as everybody sends it: some servers of blobs sign it.
    fn host_header(&self) -> String {
        if self.port == PORT { self.bare_host() } else { self.authority() }
    }
}

/// The client.
#[derive(Clone)]
pub(crate) struct HttpClient {
    tls: Arc<ClientConfig>,
    /// Of a document.
    pub(crate) limit: Duration,
}

impl HttpClient {
    pub(crate) fn new(tls: Arc<ClientConfig>) -> HttpClient {
        HttpClient { tls, limit: LIMIT }
    }

    /// The answer to a GET, with the connection on which it comes. `url` is for messages.
    pub(crate) async fn ask(
        &self,
        target: &HttpTarget,
        url: &str,
        headers: &[(HeaderName, String)],
    ) -> Result<HttpAnswer, SourceError> {
        let addresses = lookup_host((target.host.as_str(), target.port))
            .await
            .map_err(|error| SourceError::NoRoute { url: url.to_owned(), why: error.to_string() })?;
        let stream = TcpStream::connect(&addresses.collect::<Vec<SocketAddr>>()[..])
            .await
            .map_err(|error| unconnected(url, &error))?;
        let tls = |why: String| SourceError::Tls { url: url.to_owned(), why };
        let name = ServerName::try_from(target.host.clone()).map_err(|e| tls(e.to_string()))?;
        let stream = TlsConnector::from(Arc::clone(&self.tls))
            .connect(name, stream)
            .await
            .map_err(|e| tls(e.to_string()))?;
        let broken = |why: String| SourceError::Broken { url: url.to_owned(), why };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(innermost(&e)))?;
        let mut request = Request::get(target.path.as_str())
            .header(HOST, target.host_header())
            .header(USER_AGENT, AGENT)
            .header(ACCEPT_ENCODING, "identity")
            .header(CONNECTION, "close");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|e| broken(e.to_string()))?;
        let mut connection: HttpConnection = Box::pin(async move {
            // The request reports the end of the connection as well.
            let _ = connection.await;
        });
        let mut is_closed = false;
        let response = {
            let talk = sender.send_request(request);
            tokio::pin!(talk);
            tokio::select! {
                // Dropping either branch loses nothing: the other one finishes here, or no caller waits for it.
                biased;
                done = &mut talk => done,
                () = &mut connection => {
                    is_closed = true;
                    talk.await
                }
            }
        };
        let response = response.map_err(|e| broken(innermost(&e)))?;
        Ok(HttpAnswer { response, connection, is_closed, _sender: sender })
    }

    /// Gives a part of a file on, from the answer to a request with that range.
    pub(crate) async fn give(
        &self,
        mut answer: HttpAnswer,
        url: &str,
        range: ByteRange,
        take: &mut TakePiece<'_>,
    ) -> Result<(), SourceError> {
        let from = match answer.status() {
            206 => answer.range_start(url, range)?,
            // A server without ranges gives the whole file.
            200 => 0,
            404 | 410 => return Err(SourceError::NoSuchFile(url.to_owned())),
            status => return Err(SourceError::Status { url: url.to_owned(), status }),
        };
        let limit = body_limit(self.limit, from, range.to);
        let slow = || SourceError::Silent { url: url.to_owned(), seconds: limit.as_secs() };
        timeout(limit, answer.body(url, from, self.limit, take)).await.unwrap_or_else(|_| Err(slow()))
    }
}

/// The header that asks for a range.
pub(crate) fn range_header(range: ByteRange) -> (HeaderName, String) {
    (RANGE, format!("bytes={}-{}", range.from, range.to.saturating_sub(1)))
}

/// What TLS is made with: the authorities of the PEM file `bundle`, and of the files in the directories of `further`, which has colons
/// between them (`SSL_CERT_DIR`). What cannot be read in those is left out.
///
/// # Errors
/// There is no authority at all.
pub fn client_config(bundle: &Path, further: Option<&OsStr>) -> Result<Arc<ClientConfig>, SourceError> {
    let mut authorities = certificates(bundle);
    for directory in further.into_iter().flat_map(std::env::split_paths) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            authorities.extend(certificates(&entry.path()));
        }
    }
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(authorities);
    if added == 0 {
        return Err(SourceError::Authorities(format!("{} has none that can be read", bundle.display())));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| SourceError::Authorities(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    let pem = std::fs::read(file).unwrap_or_default();
    CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect()
}

/// A server that refuses or is silent, or a node without a way to it.
fn unconnected(url: &str, error: &io::Error) -> SourceError {
    let (url, why) = (url.to_owned(), error.to_string());
    match error.kind() {
        ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown | ErrorKind::AddrNotAvailable => {
            SourceError::NoRoute { url, why }
        }
        _ => SourceError::Connection { url, why },
    }
}

/// A connection, to be driven while its answer is read.
type HttpConnection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An answer whose body is still to come.
pub(crate) struct HttpAnswer {
    response: Response<Incoming>,
    connection: HttpConnection,
    /// The connection has ended; what it has brought may still be in the body.
    is_closed: bool,
    /// The connection ends without it.
    _sender: http1::SendRequest<Empty<Bytes>>,
}

impl HttpAnswer {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The whole body of a small answer.
    pub(crate) async fn whole(&mut self, url: &str, bytes_max: usize) -> Result<Vec<u8>, SourceError> {
        let mut body = Vec::new();
        while let Some(data) = self.piece(url).await? {
            if body.len() + data.len() > bytes_max {
                return Err(SourceError::TooLarge { place: url.to_owned(), bytes_max });
            }
            body.extend_from_slice(&data);
        }
        Ok(body)
    }

    /// The next piece of the body; none at its end.
    pub(crate) async fn piece(&mut self, url: &str) -> Result<Option<Bytes>, SourceError> {
        loop {
            let HttpAnswer { response, connection, is_closed, .. } = self;
            let frame = tokio::select! {
                // A frame that is not taken stays in the body; the connection is polled on in the next turn.
                biased;
                frame = response.body_mut().frame() => frame,
                () = connection, if !*is_closed => {
                    *is_closed = true;
                    continue;
                }
            };
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|e| SourceError::Broken { url: url.to_owned(), why: innermost(&e) })?;
            // Trailers have no data.
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// Gives the body on, from byte `from` of the file, until no more is wanted; each piece comes within `limit`.
    async fn body(
        &mut self,
        url: &str,
        from: u64,
        limit: Duration,
        take: &mut TakePiece<'_>,
    ) -> Result<(), SourceError> {
        let silent = || SourceError::Silent { url: url.to_owned(), seconds: limit.as_secs() };
        let mut at = from;
        loop {
            let piece = timeout(limit, self.piece(url)).await.unwrap_or_else(|_| Err(silent()))?;
            let Some(data) = piece else { return Ok(()) };
            if take(at, &data).is_break() {
                return Ok(());
            }
            at = at.saturating_add(data.len() as u64);
        }
    }

    /// First byte of a partial answer: the one that was asked for.
    fn range_start(&self, url: &str, range: ByteRange) -> Result<u64, SourceError> {
        let found = self.response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let found = found.unwrap_or_default();
        match range_start(found) {
            Some(start) if start == range.from => Ok(start),
            _ => {
                let found = found.chars().take(QUOTED_CHARS_MAX).collect();
                Err(SourceError::OtherRange { url: url.to_owned(), found, from: range.from })
            }
        }
    }
}

/// Time for the bytes `from` to `to` of a file: a server that gives a part has it for that part, and not for all before it.
fn body_limit(limit: Duration, from: u64, to: u64) -> Duration {
    limit.saturating_add(Duration::from_secs(to.saturating_sub(from) / RATE_MIN))
}

/// The first byte of a `Content-Range` (`bytes 0-99/1000`).
fn range_start(text: &str) -> Option<u64> {
    let (start, _) = text.strip_prefix("bytes ")?.split_once('-')?;
    let is_number = !start.is_empty() && start.bytes().all(|b| b.is_ascii_digit());
    start.parse().ok().filter(|_| is_number)
}

/// The innermost cause says it best.
fn innermost(error: &hyper::Error) -> String {
    let mut words: &dyn std::error::Error = error;
    while let Some(cause) = words.source() {
        words = cause;
    }
    words.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_sent_as_others_send_it() {
        for (url, authority, header) in [
            ("https://a.example/b", "a.example:443", "a.example"),
            ("https://a.example:443/b", "a.example:443", "a.example"),
            ("https://a.example:5000", "a.example:5000", "a.example:5000"),
            ("https://[2001:db8::1]/b?c", "[2001:db8::1]:443", "[2001:db8::1]"),
        ] {
            let target = HttpTarget::parse(url).expect(url);
            assert_eq!((target.authority().as_str(), target.host_header().as_str()), (authority, header));
        }
    }

    #[test]
    fn a_range_begins_where_it_says() {
        for (text, want) in [
            ("bytes 0-99/1000", Some(0)),
            ("bytes 4096-8191/*", Some(4096)),
            ("bytes */1000", None),
            ("bytes +1-2/3", None),
            ("bytes -2/3", None),
            ("bytes 99999999999999999999-1/2", None),
            ("items 1-2/3", None),
            ("", None),
        ] {
            assert_eq!(range_start(text), want, "{text}");
        }
    }

    #[test]
    fn a_part_has_the_time_of_a_part() {
        let (limit, from) = (Duration::from_secs(30), 500 << 20);
        assert_eq!(body_limit(limit, from, from + (4 << 20)), Duration::from_secs(30 + 256));
        assert_eq!(body_limit(limit, 0, from), Duration::from_secs(30 + 32_000));
        assert_eq!(body_limit(limit, 5, 0), limit);
    }

    #[test]
    fn a_machine_without_authorities_says_so() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let refused =
            client_config(&dir.path().join("none.pem"), None).expect_err("no authority").to_string();
        assert!(refused.contains("none.pem has none"), "{refused}");
    }

    #[test]
    fn a_node_without_a_network_does_not_leave_its_source() {
        for (kind, leaves) in [
            (ErrorKind::NetworkUnreachable, false),
            (ErrorKind::NetworkDown, false),
            (ErrorKind::AddrNotAvailable, false),
            (ErrorKind::ConnectionRefused, true),
            (ErrorKind::HostUnreachable, true),
        ] {
            assert_eq!(unconnected("https://x/", &kind.into()).is_of_source(), leaves, "{kind:?}");
        }
    }
}
