//! TLS to an API server: trust, the client's identity, and the meaning of failures.
//!
//! In: [`Access`]. Out: a client configuration, and [`TlsError`] for errors of rustls. Invariants: ring is
//! the only provider, except that another library verifies P-521, which ring lacks ([`provider`]); a
//! certificate that does not verify is an error with the cause and the remedy; only the first step of
//! discovery runs without verification, and only the question for the server's time without a look at dates.

mod p521;
mod undated;

use std::ffi::OsStr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, InconsistentKeys, RootCertStore, SignatureScheme,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::access::{Access, Credentials, KeyPem, Trust};
use crate::connect::Protocol;
pub(crate) use undated::{latest_not_before, undated_client};

/// Where Debian and most others keep the machine's certificate authorities.
pub const SYSTEM_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Why there is no trusted connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Another authority signed the server's certificate.
    #[error(
        "{server}: its certificate is signed by an authority that this node does not trust; the address is \
         another cluster's, or the cluster's CA was replaced: compare the CA data of this node with the cluster's"
    )]
    UnknownAuthority {
        /// URL.
        server: String,
    },
    /// The server's certificate is for other names.
    #[error(
        "{server}: its certificate is not for {name:?}: {detail}; use one of the names in the certificate, or set tls-server-name"
    )]
    WrongName {
        /// URL.
        server: String,
        /// What was asked for.
        name: String,
        /// What rustls says.
        detail: String,
    },
    /// The server's certificate, or its CA's, begins in the future.
    #[error("{server}: its certificate is not valid yet: {detail}; is this node's clock right?")]
    NotYetValid {
        /// URL.
        server: String,
        /// From when, and what the clock says.
        detail: String,
    },
    /// The server's certificate, or its CA's, has ended.
    #[error("{server}: its certificate has expired: {detail}; renew it, or set this node's clock")]
    Expired {
        /// URL.
        server: String,
        /// Since when, and what the clock says.
        detail: String,
    },
    /// The server refused our certificate during the handshake.
    #[error("{server}: refuses this node's client certificate: {detail}")]
    ClientRefused {
        /// URL.
        server: String,
        /// The alert.
        detail: String,
    },
    /// What we were given cannot be used at all.
    #[error("{what}: {reason}")]
    Unusable {
        /// Which part.
        what: &'static str,
        /// Reason of the failure.
        reason: String,
    },
    /// Anything else.
    #[error("{server}: TLS handshake: {detail}")]
    Handshake {
        /// URL.
        server: String,
        /// What rustls says.
        detail: String,
    },
}

fn unusable(what: &'static str, reason: impl ToString) -> TlsError {
    TlsError::Unusable { what, reason: reason.to_string() }
}

/// What TLS is made with everywhere in the agent: ring, and signatures by keys on P-521, which Go verifies.
#[must_use]
pub fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.signature_verification_algorithms = p521::algorithms();
    provider
}

/// The configuration for one [`Access`], and for what is to be spoken.
pub(crate) fn client_config(access: &Access, protocol: Protocol) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS", error))?;
    let builder = match &access.trust {
        Trust::Certificates(list) => builder.with_webpki_verifier(verifier(list.iter().cloned(), provider)?),
        Trust::System => builder.with_webpki_verifier(machines(provider)?),
        Trust::Anyone => builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified)),
    };
    let mut config = match &access.credentials {
        Credentials::Certificate { chain, key } => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(
                identity(chain, key).map_err(|error| unusable("client certificate", error))?,
            )))
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.alpn().to_vec()];
    // One long connection: tickets would only sit in memory.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// For clients of other servers than the API's: trusted is who the machine trusts; HTTP/1.1.
///
/// # Errors
/// [`TlsError::Unusable`]: the machine's authorities cannot be read.
pub fn machine_client() -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS", error))?
        .with_webpki_verifier(machines(provider)?)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Verifies with the certificates of [`SYSTEM_BUNDLE`], and with those in the directories of `SSL_CERT_DIR`.
fn machines(provider: Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let bundle = CertificateDer::pem_file_iter(SYSTEM_BUNDLE).map_err(|error| {
        let reason = format!("none is configured and {SYSTEM_BUNDLE} cannot be read: {error}");
        unusable("certificate-authority", reason)
    })?;
    let further = further_authorities(std::env::var_os("SSL_CERT_DIR").as_deref());
    verifier(bundle.filter_map(Result::ok).chain(further), provider)
}

/// All certificates of the files in `directories`, which have colons between them: Go's programs read `SSL_CERT_DIR` so,
/// upstream's kubelet among them. What cannot be read is left out.
fn further_authorities(directories: Option<&OsStr>) -> Vec<CertificateDer<'static>> {
    let mut found = Vec::new();
    for directory in directories.into_iter().flat_map(std::env::split_paths) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let pem = std::fs::read(entry.path()).unwrap_or_default();
            found.extend(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
        }
    }
    found
}

fn verifier(
    authorities: impl Iterator<Item = CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    let (added, ignored) = roots.add_parsable_certificates(authorities);
    if added == 0 {
        let reason = format!("none of {ignored} certificates can be read");
        return Err(unusable("certificate-authority", reason));
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| unusable("certificate-authority", error))
}

/// What a failed handshake with `access.server` means.
pub(crate) fn explain(access: &Access, error: &std::io::Error) -> TlsError {
    let server = access.server.to_string();
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    let Some(inner) = inner else {
        return TlsError::Handshake { server, detail: error.to_string() };
    };
    let detail = inner.to_string();
    match inner {
        rustls::Error::InvalidCertificate(error) => match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                TlsError::UnknownAuthority { server }
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsError::WrongName { server, name: access.server.certificate_name().to_owned(), detail }
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TlsError::NotYetValid { server, detail }
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                TlsError::Expired { server, detail }
            }
            _ => TlsError::Handshake { server, detail },
        },
        rustls::Error::AlertReceived(_) => TlsError::ClientRefused { server, detail },
        _ => TlsError::Handshake { server, detail },
    }
}

/// Takes every certificate, and every signature: an attacker between node and server can show a certificate of its own
/// as well, so a correct signature proves nothing. A certificate that cannot be read here (version 1) or whose key is
/// unknown here (P-521) is taken like the rest, as Go's `InsecureSkipVerify` takes it.
#[derive(Clone, Copy, Debug)]
pub struct Unverified;

/// What servers may sign handshakes with, for keys of any kind: those that Go offers, and in addition those of
/// old servers.
const SCHEMES: [SignatureScheme; 12] = [
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::RSA_PKCS1_SHA1,
    SignatureScheme::ECDSA_SHA1_Legacy,
];

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SCHEMES.to_vec()
    }
}

/// A client certificate with its key. webpki cannot read certificates of version 1, which Go takes: what it cannot read
/// must still be a certificate of this key.
fn identity(chain: &[CertificateDer<'static>], key: &KeyPem) -> Result<CertifiedKey, rustls::Error> {
    let pair = CertifiedKey::new(chain.to_vec(), ring::sign::any_supported_type(&key.der())?);
    match pair.keys_match() {
        // A key without a known public half cannot be compared.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(rustls::Error::InvalidCertificate(_)) if is_of_its_key(&pair) => Ok(pair),
        Err(error) => Err(error),
    }
}

fn is_of_its_key(pair: &CertifiedKey) -> bool {
    let leaf = pair.cert.first().and_then(|der| X509Certificate::from_der(der).ok());
    let public = pair.key.public_key();
    leaf.zip(public).is_some_and(|((_, leaf), public)| leaf.public_key().raw == public.as_ref())
}

#[cfg(test)]
mod tests {
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;
    use crate::access::Server;
    use crate::testing::{CertificateDefect, OddCertificate};

    fn access(credentials: Credentials) -> Access {
        let server = Server::parse("https://localhost").unwrap();
        Access { server, trust: Trust::Anyone, credentials }
    }

    #[tokio::test]
    async fn a_server_that_is_not_verified_may_show_any_certificate() {
        let client = client_config(&access(Credentials::None), Protocol::Http1).unwrap();
        for odd in [CertificateDefect::Version1, CertificateDefect::P521, CertificateDefect::Ended] {
            let acceptor = TlsAcceptor::from(OddCertificate::new(odd, "localhost").server_config());
            let connector = TlsConnector::from(client.clone());
            let (near, far) = tokio::io::duplex(16 * 1024);
            let name = ServerName::try_from("localhost").unwrap();
            let (connected, accepted) = tokio::join!(connector.connect(name, near), acceptor.accept(far));
            assert!(
                connected.is_ok() && accepted.is_ok(),
                "{odd:?}: {:?} {:?}",
                connected.err(),
                accepted.err()
            );
        }
    }

    #[tokio::test]
    async fn a_server_with_a_key_on_p_521_is_verified() {
        let (right, other) = (
            OddCertificate::new(CertificateDefect::P521, "localhost"),
            OddCertificate::new(CertificateDefect::P521, "localhost"),
        );
        for (trusted, is_trusted) in [(&right, true), (&other, false)] {
            let trust = Trust::Certificates(Arc::from([trusted.der.clone()]));
            let client =
                client_config(&Access { trust, ..access(Credentials::None) }, Protocol::Http1).unwrap();
            let (acceptor, connector) =
                (TlsAcceptor::from(right.server_config()), TlsConnector::from(client));
            let (near, far) = tokio::io::duplex(16 * 1024);
            let name = ServerName::try_from("localhost").unwrap();
            let (connected, _) = tokio::join!(connector.connect(name, near), acceptor.accept(far));
            assert_eq!(connected.is_ok(), is_trusted, "{:?}", connected.err());
        }
    }

    #[test]
    fn authorities_in_directories_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let of = |directories: &str| further_authorities(Some(OsStr::new(directories)));
        let path = dir.path().to_str().unwrap();
        assert!(further_authorities(None).is_empty() && of("").is_empty() && of(path).is_empty());
        let authority = OddCertificate::new(CertificateDefect::P521, "ca");
        std::fs::write(dir.path().join("ca.crt"), authority.pem()).unwrap();
        std::fs::write(dir.path().join("readme"), "no certificate").unwrap();
        assert_eq!(of(path), std::slice::from_ref(&authority.der));
        assert_eq!(of(&format!("{path}/none:{path}")).len(), 1);
    }

    #[test]
    fn an_identity_of_version_1_is_taken_with_its_own_key_only() {
        let (one, other) = (
            OddCertificate::new(CertificateDefect::Version1, "old"),
            OddCertificate::new(CertificateDefect::Version1, "old"),
        );
        for (key, right) in [(&one.key_pem, true), (&other.key_pem, false)] {
            let credentials = Credentials::from_pem(one.pem().as_bytes(), key.as_bytes()).unwrap();
            let made = client_config(&access(credentials), Protocol::Http2);
            assert_eq!(made.is_ok(), right, "{:?}", made.err());
        }
    }
}
