//! Client certificates: asked for in the handshake, judged with each request.
//!
//! In: `clientCAFile` as PEM, a certificate chain, the time. Out: the user it names, or that it is not trusted.
//! Upstream does the same (`tls.RequestClientCert` and the x509 authenticator).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use agent_core::server_policy::{CertificateClaim, User};
use agent_core::time::Wall;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Whose signatures on client certificates count; `None`: nobody's, and certificates are not looked at.
pub type AuthoritiesView = watch::Receiver<Option<ClientAuthorities>>;

/// The authorities of `clientCAFile`.
#[derive(Clone)]
pub struct ClientAuthorities(Arc<dyn ClientCertVerifier>);

impl fmt::Debug for ClientAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientAuthorities({})", self.0.root_hint_subjects().len())
    }
}

impl ClientAuthorities {
    /// Reads PEM certificates.
    ///
    /// # Errors
    /// A sentence: there is none, or one cannot be read.
    pub fn from_pem(pem: &[u8]) -> Result<ClientAuthorities, String> {
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|error| format!("is not PEM: {error}"))?;
        ClientAuthorities::of(certificates)
    }

    /// These certificates.
    ///
    /// # Errors
    /// A sentence: there is none, or one cannot be read.
    pub fn of(
        certificates: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> Result<ClientAuthorities, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots.add(certificate).map_err(|e| format!("holds a certificate that cannot be used: {e}"))?;
        }
        if roots.is_empty() {
            return Err("holds no certificate".to_owned());
        }
        let provider = Arc::new(ring::default_provider());
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map(ClientAuthorities)
            .map_err(|e| e.to_string())
    }

    /// What a chain (leaf first, possibly empty) says about its owner at `now`.
    #[must_use]
    pub fn judge(&self, chain: &[CertificateDer<'_>], now: Wall) -> CertificateClaim {
        let Some((leaf, intermediates)) = chain.split_first() else { return CertificateClaim::None };
        let since = Duration::from_nanos(u64::try_from(now.0).unwrap_or(0));
        match self.0.verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(since)) {
            Ok(_) => user(leaf).map_or(CertificateClaim::Refused, CertificateClaim::Verified),
            Err(_) => CertificateClaim::Refused,
        }
    }
}

/// Common name and organizations of a certificate; `None` if it has no common name or cannot be parsed.
fn user(der: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().map(str::to_owned);
    let name = subject.iter_common_name().next().and_then(|cn| text(cn).ok()).filter(|n| !n.is_empty())?;
    let groups: Vec<String> = subject.iter_organization().filter_map(|o| text(o).ok()).collect();
    Some(User::of_certificate(&name, &groups))
}

/// Lets every client in that has the key of what it shows.
#[derive(Debug)]
pub(super) struct AskForCertificate(WebPkiSupportedAlgorithms);

impl AskForCertificate {
    pub(super) fn new(provider: &CryptoProvider) -> AskForCertificate {
        AskForCertificate(provider.signature_verification_algorithms)
    }
}

impl ClientCertVerifier for AskForCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
