//! The certificate that the node shows: read from PEM, replaced while the listener runs.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Certificate and key cannot be used together. No word of it quotes the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct ServingError {
    /// Which file or source.
    pub what: String,
    /// Why not, and what to do.
    pub reason: &'static str,
}

const OTHER_KEY: &str = "is not the certificate of the key: give the key that it was made for";

/// Whether the first certificate is of the key; `None` if it is no certificate.
fn is_of_its_key(pair: &CertifiedKey) -> Option<bool> {
    let (_, leaf) = X509Certificate::from_der(pair.cert.first()?).ok()?;
    Some(pair.key.public_key().is_none_or(|public| leaf.public_key().raw == public.as_ref()))
}

/// A certificate chain with its private key.
#[derive(Clone)]
pub struct ServingKey(Arc<CertifiedKey>);

/// What is shown from now on; `None` until there is one.
pub type ServingView = watch::Receiver<Option<ServingKey>>;

impl ServingKey {
    /// Reads chain and key; both may be the same text. `what` names them in errors.
    ///
    /// # Errors
    /// One of them is missing, or they do not belong together.
    pub fn from_pem(what: &str, certificate: &[u8], key: &[u8]) -> Result<ServingKey, ServingError> {
        let wrong = |reason| ServingError { what: what.to_owned(), reason };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|_| wrong("is not PEM"))?;
        if chain.is_empty() {
            return Err(wrong("holds no certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| wrong("has no PEM private key (PKCS#8, SEC1 or PKCS#1)"))?;
        let key = any_supported_type(&key).map_err(|_| wrong("has a key of a kind that cannot be used"))?;
        let pair = CertifiedKey::new(chain, key);
        match pair.keys_match() {
            // A key without a known public half cannot be compared.
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                return Err(wrong(OTHER_KEY));
            }
            // Version 1, as old tools make them, cannot be read by the library, and clients that do not verify it take it.
            Err(_) => match is_of_its_key(&pair) {
                Some(true) => {}
                Some(false) => return Err(wrong(OTHER_KEY)),
                None => return Err(wrong("holds a certificate that cannot be parsed")),
            },
        }
        Ok(ServingKey(Arc::new(pair)))
    }
}

impl PartialEq for ServingKey {
    fn eq(&self, other: &ServingKey) -> bool {
        // The key follows from the certificate.
        self.0.cert == other.0.cert
    }
}

impl fmt::Debug for ServingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServingKey({} certificates, <private key>)", self.0.cert.len())
    }
}

/// Shows the certificate that is current at the moment of the handshake.
#[derive(Debug)]
pub(super) struct CurrentCertificate(pub(super) ServingView);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().as_ref().map(|key| key.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use agent_apiserver::testing::{CertificateDefect, OddCertificate};
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn pair() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["n".to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn a_pair_must_belong_together() {
        let (certificate, key) = pair();
        let both = format!("{key}{certificate}");
        let read = ServingKey::from_pem("f", both.as_bytes(), both.as_bytes()).unwrap();
        assert!(!format!("{read:?}").contains("BEGIN"));
        let (_, other) = pair();
        for (certificate, key, reason) in [
            (certificate.as_str(), other.as_str(), "not the certificate of the key"),
            ("", key.as_str(), "no certificate"),
            (certificate.as_str(), "", "no PEM private key"),
            (certificate.as_str(), certificate.as_str(), "no PEM private key"),
            ("-----BEGIN CERTIFICATE-----\nnonsense", key.as_str(), "PEM"),
        ] {
            let error = ServingKey::from_pem("f", certificate.as_bytes(), key.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("f: ") && error.reason.contains(reason), "{error}");
        }
    }
    #[test]
    fn a_certificate_of_version_1_can_be_shown() {
        let old = OddCertificate::new(CertificateDefect::Version1, "n");
        let read = |key: &str| ServingKey::from_pem("f", old.pem().as_bytes(), key.as_bytes());
        assert!(read(&old.key_pem).is_ok());
        let other = OddCertificate::new(CertificateDefect::Version1, "n");
        assert!(read(&other.key_pem).unwrap_err().reason.contains("not the certificate of the key"));
    }
}
