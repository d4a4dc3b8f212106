//! Client certificates: asked for in the handshake, judged with each request.
//!
//! In: `clientCAFile` as PEM, a certificate chain, the time. Out: the user it names, or that it is not trusted. Invariant:
//! a user is named only by a certificate whose key the client has proved to have in the handshake. webpki reads version 3
//! alone; certificates of version 1 are read by `version_1`, in the handshake and when they are judged. What neither can read
//! proves nothing and does not break the handshake: it is refused when it is judged, and the client's token still counts.
//! Upstream: `tls.RequestClientCert` and the x509 authenticator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use agent_kubelet_api::server_policy::{CertificateClaim, Subject};
use agent_types::time::Wall;
use ring::digest::{SHA256, digest};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use tokio::sync::watch;
use x509_parser::der_parser::oid;
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

use super::version_1;

/// The attribute of a subject that holds a user's UID (apimachinery's `asn1.X509UID`).
const UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// The authorities whose signatures on client certificates count; `None`: there are none, and
/// certificates are not looked at.
pub type AuthoritiesView = watch::Receiver<Option<ClientAuthorities>>;

/// The authorities of `clientCAFile`.
#[derive(Clone)]
pub struct ClientAuthorities {
    verifier: Arc<dyn ClientCertVerifier>,
    certificates: Arc<[CertificateDer<'static>]>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for ClientAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientAuthorities({})", self.certificates.len())
    }
}

impl ClientAuthorities {
    /// Reads PEM certificates; signatures are verified by `provider`.
    ///
    /// # Errors
    /// A sentence: there is none, or one cannot be read.
    pub fn from_pem(pem: &[u8], provider: CryptoProvider) -> Result<ClientAuthorities, String> {
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|error| format!("is not PEM: {error}"))?;
        ClientAuthorities::of(certificates, provider)
    }

    /// These certificates.
    ///
    /// # Errors
    /// A sentence: there is none, or one cannot be read.
    pub fn of(
        certificates: impl IntoIterator<Item = CertificateDer<'static>>,
        provider: CryptoProvider,
    ) -> Result<ClientAuthorities, String> {
        let mut roots = RootCertStore::empty();
        let certificates: Arc<[CertificateDer<'static>]> = certificates.into_iter().collect();
        for certificate in certificates.iter() {
            roots
                .add(certificate.clone())
                .map_err(|e| format!("holds a certificate that cannot be used: {e}"))?;
        }
        if roots.is_empty() {
            return Err("holds no certificate".to_owned());
        }
        let algorithms = provider.signature_verification_algorithms;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider)).build();
        let verifier = verifier.map_err(|e| e.to_string())?;
        Ok(ClientAuthorities { verifier, certificates, algorithms })
    }

    /// What a chain (leaf first, possibly empty) says about its owner at `now`; its UID too if `with_uid`.
    #[must_use]
    pub fn judge(&self, chain: &[CertificateDer<'_>], now: Wall, with_uid: bool) -> CertificateClaim {
        let Some((leaf, intermediates)) = chain.split_first() else { return CertificateClaim::None };
        let since = Duration::from_nanos(u64::try_from(now.0).unwrap_or(0));
        let by_webpki = || {
            let now = UnixTime::since_unix_epoch(since);
            self.verifier.verify_client_cert(leaf, intermediates, now).is_ok()
        };
        let is_trusted = match version_1::read(leaf) {
            Some(leaf) => version_1::is_trusted(&leaf, &self.certificates, since, &self.algorithms),
            None => by_webpki(),
        };
        let user = is_trusted.then(|| subject(leaf)).flatten().and_then(|subject| subject.user(with_uid));
        user.map_or(CertificateClaim::Refused, CertificateClaim::Verified)
    }
}

/// What a certificate says of its owner; `None` if it cannot be parsed.
fn subject(der: &CertificateDer<'_>) -> Option<Subject> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let names = certificate.subject();
    let text = |value: &AttributeTypeAndValue<'_>| value.as_str().ok().map(str::to_owned);
    Some(Subject {
        // Of several names the last counts, as in Go.
        common_name: names.iter_common_name().filter_map(text).last().unwrap_or_default(),
        organizations: names.iter_organization().filter_map(text).collect(),
        uids: names.iter_by_oid(&UID).map(text).collect(),
        fingerprint: digest(&SHA256, der).as_ref().to_vec(),
    })
}

/// True if webpki reads the certificate, and so might trust it.
fn is_readable(certificate: &CertificateDer<'_>) -> bool {
    ParsedCertificate::try_from(certificate).is_ok()
}

/// Lets every client in that has the key of what it shows, or shows what neither library can read.
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
        match version_1::read(cert) {
            Some(cert) => version_1::verify_tls12(message, &cert, dss, &self.0),
            None if is_readable(cert) => verify_tls12_signature(message, cert, dss, &self.0),
            None => Ok(HandshakeSignatureValid::assertion()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match version_1::read(cert) {
            Some(cert) => version_1::verify_tls13(message, &cert, dss, &self.0),
            None if is_readable(cert) => verify_tls13_signature(message, cert, dss, &self.0),
            None => Ok(HandshakeSignatureValid::assertion()),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
