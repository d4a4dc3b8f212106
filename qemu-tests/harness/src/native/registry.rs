//! The node's image registry: the pull half of the OCI distribution protocol over HTTP on loopback, and over TLS for cases
//! about authorities and passwords.
//!
//! In: a directory with `tags/<name with slashes as dashes>@<tag>` (holding a digest) and
//! `blobs/sha256/<hex>`. Out: manifests and blobs to containerd, which treats 127.0.0.1 as plain HTTP.
//! Invariant: nothing outside the directory is ever read.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Host part of the names of its images. Not port 5000: pods of the upstream suite listen there.
pub const HOST: &str = "127.0.0.1:5001";

/// Prefix of image names that need credentials.
pub const PRIVATE: &str = "private/";
/// The user who may pull those images.
pub const USER: &str = "puller";
/// The user's password.
pub const PASSWORD: &str = "of the tests";
/// `base64(USER:PASSWORD)`.
pub(super) const BASIC: &str = "cHVsbGVyOm9mIHRoZSB0ZXN0cw==";

/// A request for `path` with this `Authorization` is answered.
#[must_use]
pub fn may(path: &str, authorization: Option<&str>) -> bool {
    let private = path.strip_prefix("/v2/").is_some_and(|rest| rest.starts_with(PRIVATE));
    !private || authorization.and_then(|a| a.strip_prefix("Basic ")) == Some(BASIC)
}

/// The request of a path. Pure.
#[derive(Debug, PartialEq, Eq)]
pub enum RegistryRequest {
    /// `/v2/`: is this a registry?
    Base,
    /// A blob or a manifest by digest (hex part).
    Blob(String),
    /// A manifest by the name of its tag file.
    Tag(String),
    /// Any other path.
    Unknown,
}

/// Understands a request path.
#[must_use]
pub fn parse_path(path: &str) -> RegistryRequest {
    let Some(rest) = path.strip_prefix("/v2/") else { return RegistryRequest::Unknown };
    let rest = rest.split('?').next().unwrap_or(rest);
    if rest.is_empty() {
        return RegistryRequest::Base;
    }
    for kind in ["/manifests/", "/blobs/"] {
        let Some((name, reference)) = rest.split_once(kind) else { continue };
        if let Some(hex) = reference.strip_prefix("sha256:") {
            let valid = hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
            return if valid { RegistryRequest::Blob(hex.to_owned()) } else { RegistryRequest::Unknown };
        }
        if kind == "/manifests/" {
            return match tag_file(name, reference) {
                Some(file) => RegistryRequest::Tag(file),
                None => RegistryRequest::Unknown,
            };
        }
    }
    RegistryRequest::Unknown
}

/// Name of the file that holds a tag's digest; `None` if the name could leave the directory.
#[must_use]
pub fn tag_file(name: &str, tag: &str) -> Option<String> {
    let safe =
        |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
    (safe(name) && safe(tag) && !tag.contains('/')).then(|| format!("{}@{tag}", name.replace('/', "-")))
}

/// Requests that a registry has answered: each path, and whether the client might have it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct RegistryLog(Arc<Mutex<Vec<(String, bool)>>>);

impl RegistryLog {
    /// Number of requests whose path contains `part`, of those that were allowed or of those that were not.
    #[must_use]
    pub fn count(&self, part: &str, allowed: bool) -> usize {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(path, may)| path.contains(part) && *may == allowed).count()
    }

    fn add(&self, path: &str, allowed: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((path.to_owned(), allowed));
    }
}

/// Serves `dir` on [`HOST`] in threads of its own, for as long as the process lives.
///
/// # Errors
/// If the address is in use.
pub fn serve(dir: &Path) -> Result<()> {
    let listener = TcpListener::bind(HOST).with_context(|| format!("listen on {HOST}"))?;
    serve_at(listener, dir, None).map(drop)
}

/// The same on a free port of this machine's loopback; returns the port.
///
/// # Errors
/// If the loopback has no free port.
pub fn serve_on_loopback(dir: &Path) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen on the loopback")?;
    let port = listener.local_addr().context("ask for the port")?.port();
    serve_at(listener, dir, None)?;
    Ok(port)
}

/// The same, on all addresses of the network namespace of process `pid`.
///
/// # Errors
/// If the port is in use.
pub fn serve_in(pid: i32, port: u16, dir: &Path) -> Result<()> {
    serve_at(listen_in(pid, port)?, dir, None).map(drop)
}

/// The same by TLS; returns what it is asked.
///
/// # Errors
/// If the port is in use.
pub fn serve_tls_in(pid: i32, port: u16, dir: &Path, tls: Arc<ServerConfig>) -> Result<RegistryLog> {
    serve_at(listen_in(pid, port)?, dir, Some(tls))
}

/// The same on a free port of this machine's loopback; returns the port, too.
///
/// # Errors
/// If the loopback has no free port.
pub fn serve_tls_on_loopback(dir: &Path, tls: Arc<ServerConfig>) -> Result<(u16, RegistryLog)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen on the loopback")?;
    let port = listener.local_addr().context("ask for the port")?.port();
    Ok((port, serve_at(listener, dir, Some(tls))?))
}

fn listen_in(pid: i32, port: u16) -> Result<TcpListener> {
    // A network namespace belongs to a thread, so a thread of its own makes the socket; the socket stays.
    let listen = move || -> Result<TcpListener> {
        let namespace = fs::File::open(format!("/proc/{pid}/ns/net")).context("open a network namespace")?;
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)
            .context("enter a network namespace")?;
        TcpListener::bind(("0.0.0.0", port)).with_context(|| format!("listen on port {port}"))
    };
    std::thread::spawn(listen).join().map_err(|_| anyhow::anyhow!("the listening thread died"))?
}

fn serve_at(listener: TcpListener, dir: &Path, tls: Option<Arc<ServerConfig>>) -> Result<RegistryLog> {
    let dir: Arc<PathBuf> = Arc::new(dir.to_owned());
    let log = RegistryLog::default();
    let asked = log.clone();
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let (dir, tls, asked) = (dir.clone(), tls.clone(), asked.clone());
            let answer = move || {
                // A client that closes its connection early loses only its own answer.
                let _ = match tls {
                    None => answer(stream, &dir, &asked),
                    Some(config) => ServerConnection::new(config)
                        .context("begin TLS")
                        .and_then(|connection| answer(StreamOwned::new(connection, stream), &dir, &asked)),
                };
            };
            let _ = std::thread::Builder::new().name("registry".into()).spawn(answer);
        }
    };
    std::thread::Builder::new().name("registry".into()).spawn(accept).context("start a thread")?;
    Ok(log)
}

fn answer(stream: impl Read + Write, dir: &Path, asked: &RegistryLog) -> Result<()> {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut header = String::new();
    let mut authorization = None;
    while reader.read_line(&mut header)? > 2 {
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("authorization")
        {
            authorization = Some(value.trim().to_owned());
        }
        header.clear();
    }
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let refused = || {
        let challenge = "WWW-Authenticate: Basic realm=\"tests\"\r\n".to_owned();
        ("401 Unauthorized", "application/json", challenge, b"{}".to_vec())
    };
    let allowed = may(path, authorization.as_deref());
    asked.add(path, allowed);
    let (status, kind, more, body) = if allowed { find(dir, path) } else { refused() };
    let stream = reader.get_mut();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{more}Connection: close\r\n\r\n",
        body.len()
    )?;
    if method != "HEAD" {
        stream.write_all(&body)?;
    }
    stream.flush()?;
    Ok(())
}

fn find(dir: &Path, path: &str) -> (&'static str, &'static str, String, Vec<u8>) {
    let missing = ("404 Not Found", "application/json", String::new(), b"{}".to_vec());
    let hex = match parse_path(path) {
        RegistryRequest::Base => return ("200 OK", "application/json", String::new(), b"{}".to_vec()),
        RegistryRequest::Unknown => return missing,
        RegistryRequest::Blob(hex) => hex,
        RegistryRequest::Tag(file) => match fs::read_to_string(dir.join("tags").join(file)) {
            Ok(hex) => hex.trim().to_owned(),
            Err(_) => return missing,
        },
    };
    let Ok(body) = fs::read(dir.join("blobs/sha256").join(&hex)) else { return missing };
    let is_manifest = path.contains("/manifests/");
    let kind =
        if is_manifest { "application/vnd.oci.image.manifest.v1+json" } else { "application/octet-stream" };
    ("200 OK", kind, format!("Docker-Content-Digest: sha256:{hex}\r\n"), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_have_what() {
        let right = format!("Basic {BASIC}");
        assert!(may("/v2/e2e/busybox/manifests/1", None) && may("/v2/", None));
        assert!(may("/v2/private/busybox/manifests/1", Some(&right)));
        for wrong in [None, Some("Basic eDp5"), Some(BASIC)] {
            assert!(!may("/v2/private/busybox/manifests/1", wrong), "{wrong:?}");
        }
    }

    #[test]
    fn paths() {
        let hex = "a".repeat(64);
        for (path, want) in [
            ("/v2/", RegistryRequest::Base),
            ("/v2/e2e/busybox/manifests/1", RegistryRequest::Tag("e2e-busybox@1".into())),
            (&format!("/v2/e2e/busybox/manifests/sha256:{hex}?ns=x"), RegistryRequest::Blob(hex.clone())),
            (&format!("/v2/e2e/busybox/blobs/sha256:{hex}"), RegistryRequest::Blob(hex.clone())),
            ("/v2/e2e/busybox/blobs/sha256:../../etc/passwd", RegistryRequest::Unknown),
            ("/v2/x/manifests/../../../etc/passwd", RegistryRequest::Unknown),
            ("/etc/passwd", RegistryRequest::Unknown),
        ] {
            assert_eq!(parse_path(path), want, "{path}");
        }
    }
}
