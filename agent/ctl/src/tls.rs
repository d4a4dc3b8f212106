//! TLS 1.3 with raw public keys (RFC 7250): the node's key is the pinned one, and the client proves its own.
//!
//! Invariant: no certificate, name or date is judged; a node that shows another key than the pinned one gets nothing, and the caller
//! learns which key it showed.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::keys::{OwnKey, fingerprint};

/// The name that the handshake needs; nobody compares it.
const NAME: &str = "orlop-node";

/// Why a handshake failed.
pub(crate) enum HandshakeFailure {
    /// The node has another key than the pinned one: this fingerprint.
    OtherKey(String),
    /// Anything else.
    Failed(String),
}

/// Speaks TLS on a stream. `pin` is the fingerprint of the node's key.
pub(crate) async fn secured(
    stream: TcpStream,
    own: &OwnKey,
    pin: &str,
) -> Result<TlsStream<TcpStream>, HandshakeFailure> {
    let failed = |error: Error| HandshakeFailure::Failed(error.to_string());
    let provider = Arc::new(default_provider());
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.private.clone()));
    let key = provider.key_provider.load_private_key(private).map_err(failed)?;
    let certified = CertifiedKey::new(vec![CertificateDer::from(own.public.clone())], key);
    let pinned = Arc::new(PinnedKey {
        pin: pin.to_owned(),
        shown: Mutex::default(),
        algorithms: provider.signature_verification_algorithms,
    });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(pinned.clone())
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(certified))));
    config.enable_sni = false;
    let name = ServerName::try_from(NAME).map_err(|error| HandshakeFailure::Failed(error.to_string()))?;
    let secured = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    secured.map_err(|error| {
        let shown = pinned.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if shown.is_empty() || shown == pin {
            HandshakeFailure::Failed(error.to_string())
        } else {
            HandshakeFailure::OtherKey(shown)
        }
    })
}

/// Takes the key with the pinned fingerprint alone, and keeps the one that was shown.
#[derive(Debug)]
struct PinnedKey {
    pin: String,
    shown: Mutex<String>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = fingerprint(key.as_ref());
        let is_pinned = shown == self.pin;
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
        match is_pinned {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
