//! Hashes of CA public keys, as `kubeadm join --discovery-token-ca-cert-hash` has them.
//!
//! In: `sha256:<hex>`, certificates. Out: whether one of them is meant. Invariant: the hash is of the
//! SubjectPublicKeyInfo in DER, so that a renewed certificate with the same key still matches.

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::DiscoveryError;

/// One hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin([u8; 32]);

impl Pin {
    /// Reads `sha256:<64 hex digits>`.
    ///
    /// # Errors
    /// It has another form.
    pub fn parse(text: &str) -> Result<Pin, DiscoveryError> {
        let bad = || DiscoveryError::PinForm { given: text.to_owned() };
        let hex = text.trim().strip_prefix("sha256:").filter(|h| h.len() == 64).ok_or_else(bad)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            if !pair.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad());
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Pin(bytes))
    }
}

impl std::fmt::Display for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The hash of a certificate's public key; `None` if it cannot be parsed.
#[must_use]
pub fn pin_of(certificate: &[u8]) -> Option<Pin> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let hash = digest(&SHA256, certificate.public_key().raw);
    hash.as_ref().try_into().ok().map(Pin)
}

/// Succeeds if any of the certificates has any of the hashes.
pub(super) fn check(pins: &[Pin], ca_pem: &[u8]) -> Result<(), DiscoveryError> {
    let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(ca_pem)
        .collect::<Result<_, _>>()
        .map_err(|error| DiscoveryError::Ca { reason: format!("is not PEM: {error}") })?;
    let found: Vec<Pin> = certificates.iter().filter_map(|c| pin_of(c)).collect();
    if found.is_empty() {
        return Err(DiscoveryError::Ca { reason: "holds no certificate that can be read".to_owned() });
    }
    if found.iter().any(|f| pins.contains(f)) {
        return Ok(());
    }
    Err(DiscoveryError::WrongHash { found: found.iter().map(ToString::to_string).collect() })
}
