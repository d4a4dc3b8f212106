//! Address, trust and credentials for one API server.
//!
//! In: a URL, certificates, a key or a token, from a kubeconfig or from discovery. Out: [`Access`], the input
//! of [`ApiClient`](crate::ApiClient). Invariant: `Debug` shows neither token nor key.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use hyper::Uri;
use orlop_config::node::Secret;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroize;

/// Everything that a connection needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Address of the server.
    pub server: Server,
    /// Whom to believe.
    pub trust: Trust,
    /// As whom.
    pub credentials: Credentials,
}

/// The address of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Path before `/api`, without a slash at its end; usually empty.
    pub prefix: String,
    /// Name that the server's certificate must carry instead of `host`.
    pub tls_server_name: Option<String>,
}

/// A URL that is no API server's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("API server {url:?}: {reason}")]
pub struct ServerError {
    /// As given.
    pub url: String,
    /// What it must be.
    pub reason: &'static str,
}

impl Server {
    /// Reads `https://host[:port][/prefix]`; the port is 443 if there is none, as for any URL.
    ///
    /// # Errors
    /// Not an https URL with a host.
    pub fn parse(url: &str) -> Result<Server, ServerError> {
        let refused = |reason| ServerError { url: url.to_owned(), reason };
        let uri: Uri = url.trim().parse().map_err(|_| refused("is not a URL; write https://HOST:PORT"))?;
        if uri.scheme_str() != Some("https") {
            return Err(refused("must begin with https://, nothing else is safe for credentials"));
        }
        if uri.query().is_some() || uri.authority().is_some_and(|a| a.as_str().contains('@')) {
            return Err(refused("must have neither a user nor a query"));
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(refused("has no host; write https://HOST:PORT"));
        }
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Server { host, port: uri.port_u16().unwrap_or(443), prefix, tls_server_name: None })
    }

    /// `host:port`, an IPv6 address in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The name that the certificate must carry.
    #[must_use]
    pub fn certificate_name(&self) -> &str {
        self.tls_server_name.as_deref().unwrap_or(&self.host)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}{}", self.authority(), self.prefix)
    }
}

/// Which certificate authorities may have signed the server's certificate.
#[derive(Clone, PartialEq, Eq)]
pub enum Trust {
    /// These and no other.
    Certificates(Arc<[CertificateDer<'static>]>),
    /// Those of the machine (`/etc/ssl/certs/ca-certificates.crt`), as upstream does without any CA data.
    System,
    /// Any server that answers is trusted. Discovery's first step, or `insecure-skip-tls-verify`.
    Anyone,
}

impl Trust {
    /// Reads PEM certificates.
    ///
    /// # Errors
    /// A sentence: there is none, or one cannot be read.
    pub fn from_pem(pem: &[u8]) -> Result<Trust, String> {
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|error| format!("is not PEM: {error}"))?;
        if certificates.is_empty() {
            return Err("holds no PEM certificate".to_owned());
        }
        Ok(Trust::Certificates(certificates.into()))
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trust::Certificates(list) => write!(f, "Certificates({})", list.len()),
            Trust::System => f.write_str("System"),
            Trust::Anyone => f.write_str("Anyone"),
        }
    }
}

/// Who we say we are.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Credentials {
    /// `system:anonymous`.
    #[default]
    None,
    /// A client certificate and its key.
    Certificate {
        /// Leaf first.
        chain: Arc<[CertificateDer<'static>]>,
        /// The leaf's.
        key: KeyPem,
    },
    /// A bearer token.
    Token(Secret),
    /// A bearer token in a file, read again at most once a minute as upstream does.
    TokenFile(PathBuf),
}

impl Credentials {
    /// Certificate chain and key from PEM; both may be the same file, as in the certificate store.
    ///
    /// # Errors
    /// A sentence without a byte of the key: a part is missing or not PEM.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Credentials, String> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(|error| format!("client certificate is not PEM: {error}"))?;
        if chain.is_empty() {
            return Err("client certificate: holds no PEM certificate".to_owned());
        }
        Ok(Credentials::Certificate { chain: chain.into(), key: KeyPem::from_pem(key)? })
    }
}

/// A private key; not shown, and wiped when the last copy is dropped.
#[derive(Clone)]
pub struct KeyPem(Arc<WipedKey>);

struct WipedKey(PrivateKeyDer<'static>);

impl Drop for WipedKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl KeyPem {
    /// Reads the first private key (PKCS#8, SEC1 or PKCS#1).
    ///
    /// # Errors
    /// A sentence without a byte of the key.
    pub fn from_pem(pem: &[u8]) -> Result<KeyPem, String> {
        // The parser's words may quote the input; they are left out.
        let key = PrivateKeyDer::from_pem_slice(pem)
            .map_err(|_| "holds no PEM private key (PKCS#8, SEC1 or PKCS#1)".to_owned())?;
        Ok(KeyPem(Arc::new(WipedKey(key))))
    }

    /// A copy for the TLS library.
    #[must_use]
    pub fn der(&self) -> PrivateKeyDer<'static> {
        self.0.0.clone_key()
    }
}

impl PartialEq for KeyPem {
    fn eq(&self, other: &KeyPem) -> bool {
        self.0.0.secret_der() == other.0.0.secret_der()
    }
}

impl Eq for KeyPem {}

impl fmt::Debug for KeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<private key>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_api_servers() {
        for (url, shown) in [
            ("https://api:6443", "https://api:6443"),
            ("https://api", "https://api:443"),
            ("https://[fd00::1]:6443/", "https://[fd00::1]:6443"),
            ("https://10.0.0.1:6443/k8s/clusters/c-1/", "https://10.0.0.1:6443/k8s/clusters/c-1"),
        ] {
            assert_eq!(Server::parse(url).unwrap().to_string(), shown);
        }
        for url in
            ["http://api:6443", "api:6443", "", "https://", "https://u:p@api", "https://api?x=1", "\u{0}"]
        {
            assert!(Server::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn nothing_secret_is_shown() {
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let key = KeyPem::from_pem(key.as_bytes()).unwrap();
        assert_eq!(format!("{key:?}"), "<private key>");
        let token = Credentials::Token(Secret::new("abcdef.0123456789abcdef"));
        assert!(!format!("{token:?}").contains("0123"));
        let bad =
            KeyPem::from_pem(b"-----BEGIN PRIVATE KEY-----\nsecret?\n-----END PRIVATE KEY-----").unwrap_err();
        assert!(!bad.contains("secret?"), "{bad}");
    }
}
