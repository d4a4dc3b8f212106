//! TLS 1.3 with raw public keys (RFC 7250): the node's key, and the proof of a client that it holds one.
//!
//! In: the node's key, kept in a file. Out: a configuration of TLS, the key of a peer. Invariants: no certificate and no date is judged,
//! so a clock at 1970 is no trouble; every client has to hold some key, and who it is decides [`crate::guard`] afterwards; a key that
//! cannot be kept lives in memory, and the node answers all the same.

use std::path::Path;
use std::sync::Arc;

use agent_linux::files::{Durability, read_capped, write_atomic};
use orlop_config::admin_key;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring::default_provider;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

/// A key file is not longer, bytes.
const KEY_FILE_MAX: u64 = 4096;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The system has no random numbers.
    #[error("make a key: no random numbers")]
    Random,
    /// The key or the settings are not accepted.
    #[error("set up TLS")]
    Setup(#[from] Error),
}

/// TLS of the server.
pub(crate) struct ServerTls {
    pub(crate) config: Arc<ServerConfig>,
    /// Of the server's key.
    pub(crate) fingerprint: String,
    /// The key's file has it.
    pub(crate) is_kept: bool,
}

/// TLS with the key of `file`, which is made if there is none. Blocking.
///
/// # Errors
/// See [`TlsError`].
pub(crate) fn server_tls(file: &Path) -> Result<ServerTls, TlsError> {
    let provider = Arc::new(default_provider());
    let (key, is_kept) = match signing_key(&provider, read_capped(file, KEY_FILE_MAX).ok()) {
        Some(key) => (key, true),
        None => new_key(&provider, file)?,
    };
    let public = key.public_key().map(|key| AsRef::<[u8]>::as_ref(&key).to_vec()).unwrap_or_default();
    let fingerprint = fingerprint(&public);
    let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key));
    let verifier = Arc::new(AnyKey(provider.signature_verification_algorithms));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
    // Each connection proves its key: nothing is taken from an earlier one.
    config.send_tls13_tickets = 0;
    Ok(ServerTls { config: Arc::new(config), fingerprint, is_kept })
}

fn signing_key(provider: &CryptoProvider, pkcs8: Option<Vec<u8>>) -> Option<Arc<dyn SigningKey>> {
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8?));
    let key = provider.key_provider.load_private_key(der).ok()?;
    // Another kind of key has no text (admin_key).
    key.public_key().is_some_and(|public| admin_key::is_key(public.as_ref())).then_some(key)
}

/// A key, and whether the file has it.
fn new_key(provider: &CryptoProvider, file: &Path) -> Result<(Arc<dyn SigningKey>, bool), TlsError> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| TlsError::Random)?;
    let written = write_atomic(file, pkcs8.as_ref(), 0o600, Durability::Synced);
    if let Err(error) = &written {
        let error = orlop_config::error_chain::chain(error);
        tracing::warn!(error, "the server's key lives until the process ends: clients will see another one");
    }
    let key = signing_key(provider, Some(pkcs8.as_ref().to_vec()));
    let key = key.ok_or_else(|| TlsError::Setup(Error::General("a new key is not accepted".to_owned())))?;
    Ok((key, written.is_ok()))
}

/// The short name of a public key.
pub(crate) fn fingerprint(key: &[u8]) -> String {
    admin_key::fingerprint(digest(&SHA256, key).as_ref())
}

/// Takes every client that holds the key which it shows.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match admin_key::is_key(key.as_ref()) {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
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
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let first = server_tls(&file).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(first.fingerprint.starts_with("SHA256:") && first.is_kept, "{}", first.fingerprint);
        assert_eq!(server_tls(&file).unwrap().fingerprint, first.fingerprint);
        std::fs::write(&file, "no key").unwrap();
        assert_ne!(server_tls(&file).unwrap().fingerprint, first.fingerprint);
    }

    #[test]
    fn without_a_place_the_key_lives_in_memory() {
        assert!(!server_tls(Path::new("/nowhere/at/all/key")).unwrap().is_kept);
    }
}
