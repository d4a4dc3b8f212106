//! Certificates that rustls cannot judge and Go can: of version 1, of a key on P-521, and one that has ended.
//!
//! In: the kind, a name. Out: a self-signed certificate with its key, and a server that shows it. Invariant: each is well
//! formed, so a client that refuses it refuses its kind.

use std::fmt;
use std::sync::Arc;

use p521::ecdsa::signature::Signer as _;
use p521::pkcs8::{DecodePrivateKey, EncodePublicKey};
use rcgen::{KeyPair, PublicKeyData, SigningKey as _};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey};
use rustls::{ServerConfig, SignatureAlgorithm, SignatureScheme};

use crate::certificates::pod_key::{BIT_STRING, ECDSA_SHA256, ECDSA_SHA512, PodKey, SEQUENCE, der};

const SET: u8 = 0x31;
const UTF8: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const OCTET_STRING: u8 = 4;
const COMMON_NAME: &[u8] = &[6, 3, 0x55, 4, 3];
const ALTERNATIVE_NAME: &[u8] = &[6, 3, 0x55, 0x1d, 0x11];
/// Contexts of a version, of a DNS name and of extensions.
const VERSION: u8 = 0xa0;
const DNS_NAME: u8 = 0x82;
const EXTENSIONS: u8 = 0xa3;

/// What is odd about a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateDefect {
    /// Version 1, as `openssl x509 -req` makes them without extensions.
    Version1,
    /// Its key and signature are on P-521.
    P521,
    /// It ended years ago.
    Ended,
}

/// A self-signed certificate and its key.
#[derive(Clone)]
pub struct OddCertificate {
    /// The certificate.
    pub der: CertificateDer<'static>,
    /// The key as PKCS#8.
    pub key_pem: String,
    key: Arc<dyn SigningKey>,
}

impl OddCertificate {
    /// A certificate of this kind for this name.
    #[must_use]
    pub fn new(odd: CertificateDefect, name: &str) -> OddCertificate {
        if odd == CertificateDefect::P521 {
            let key_pem = PodKey::generate("ECDSAP521").expect("key").key_pem.to_string();
            let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).expect("key");
            let key = p521::ecdsa::SigningKey::from_pkcs8_der(key.secret_der()).expect("key");
            let public = key.verifying_key().to_public_key_der().expect("public key");
            let key = KeyOfP521(Arc::new(key));
            let signed = |body: &[u8]| key.signature(body);
            let der = certificate(odd, (name, name), public.as_bytes(), (ECDSA_SHA512, &signed));
            return OddCertificate { der, key_pem, key: Arc::new(key) };
        }
        let pair = KeyPair::generate().expect("key");
        OddCertificate::signed(odd, (name, name), &pair, &pair)
    }

    /// A certificate of this kind for this name, signed by an issuer of that name: a key on P-256.
    #[must_use]
    pub fn issued(odd: CertificateDefect, name: &str, issuer: (&str, &KeyPair)) -> OddCertificate {
        OddCertificate::signed(odd, (name, issuer.0), &KeyPair::generate().expect("key"), issuer.1)
    }

    fn signed(
        odd: CertificateDefect,
        names: (&str, &str),
        pair: &KeyPair,
        issuer: &KeyPair,
    ) -> OddCertificate {
        let signed = |body: &[u8]| issuer.sign(body).expect("signature");
        let der = certificate(odd, names, &pair.subject_public_key_info(), (ECDSA_SHA256, &signed));
        let key_pem = pair.serialize_pem();
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).expect("key");
        let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("key");
        OddCertificate { der, key_pem, key }
    }

    /// The certificate in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        agent_types::pem::block("CERTIFICATE", &self.der)
    }

    /// A server that shows it.
    #[must_use]
    pub fn server_config(&self) -> Arc<ServerConfig> {
        let shown = CertifiedKey::new(vec![self.der.clone()], self.key.clone());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
        Arc::new(config)
    }
}

/// Signs a text.
type Sign<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

/// RFC 5280, 4.1: version 1 says neither its version nor anything after the key.
fn certificate(
    odd: CertificateDefect,
    (name, issuer): (&str, &str),
    public: &[u8],
    (algorithm, sign): (&[u8], Sign<'_>),
) -> CertificateDer<'static> {
    let (version, extensions) = match odd {
        CertificateDefect::Version1 => (Vec::new(), Vec::new()),
        _ => (der(VERSION, &[&[2, 1, 2]]), of_name(name)),
    };
    let called = |name: &str| {
        let attribute = der(SEQUENCE, &[COMMON_NAME, &der(UTF8, &[name.as_bytes()])]);
        der(SEQUENCE, &[&der(SET, &[&attribute])])
    };
    let until = if odd == CertificateDefect::Ended { b"20200102000000Z" } else { b"20990101000000Z" };
    let from = der(UTC_TIME, &[b"200101000000Z"]);
    let until = match odd {
        CertificateDefect::Ended => der(UTC_TIME, &[&until[2..]]),
        _ => der(GENERALIZED_TIME, &[until]),
    };
    let validity = der(SEQUENCE, &[&from, &until]);
    let (name, issuer) = (called(name), called(issuer));
    let parts: &[&[u8]] = &[&version, &[2, 1, 1], algorithm, &issuer, &validity, &name, public, &extensions];
    let body = der(SEQUENCE, parts);
    let signature = der(BIT_STRING, &[&[0], &sign(&body)]);
    der(SEQUENCE, &[&body, algorithm, &signature]).into()
}

/// The extensions of a server of this name.
fn of_name(name: &str) -> Vec<u8> {
    let names = der(SEQUENCE, &[&der(DNS_NAME, &[name.as_bytes()])]);
    let extension = der(SEQUENCE, &[ALTERNATIVE_NAME, &der(OCTET_STRING, &[&names])]);
    der(EXTENSIONS, &[&der(SEQUENCE, &[&extension])])
}

/// Signs handshakes on P-521, which ring cannot.
#[derive(Clone)]
struct KeyOfP521(Arc<p521::ecdsa::SigningKey>);

impl KeyOfP521 {
    fn signature(&self, of: &[u8]) -> Vec<u8> {
        let signature: p521::ecdsa::DerSignature = self.0.try_sign(of).expect("signature");
        signature.as_bytes().to_vec()
    }
}

impl fmt::Debug for KeyOfP521 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyOfP521")
    }
}

impl SigningKey for KeyOfP521 {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered
            .contains(&SignatureScheme::ECDSA_NISTP521_SHA512)
            .then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for KeyOfP521 {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        Ok(self.signature(message))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP521_SHA512
    }
}
