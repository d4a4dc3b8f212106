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

#[cfg(test)]
mod tests {
    use super::*;

    fn ca() -> (String, Pin) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        (certificate.pem(), pin_of(certificate.der()).unwrap())
    }

    #[test]
    fn pins_are_of_the_key() {
        let key = rcgen::KeyPair::generate().unwrap();
        let spki = rcgen::PublicKeyData::subject_public_key_info(&key);
        let expected = format!(
            "sha256:{}",
            digest(&SHA256, &spki).as_ref().iter().map(|b| format!("{b:02x}")).collect::<String>()
        );
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        let pin = pin_of(certificate.der()).unwrap();
        assert_eq!(pin.to_string(), expected);
        assert_eq!(Pin::parse(&expected.to_uppercase().replace("SHA256", "sha256")).unwrap(), pin);
    }

    #[test]
    fn any_of_several_will_do_and_a_wrong_one_is_told() {
        let (one, two, three) = (ca(), ca(), ca());
        let bundle = format!("{}{}", one.0, two.0);
        check(std::slice::from_ref(&two.1), bundle.as_bytes()).unwrap();
        let error = check(&[three.1], bundle.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(&one.1.to_string()) && error.contains(&two.1.to_string()), "{error}");
        assert!(check(&[two.1], b"").is_err());
    }

    #[test]
    fn forms() {
        let hex = "0123456789abcdef".repeat(4);
        assert!(Pin::parse(&format!("sha256:{hex}")).is_ok());
        for bad in [
            "",
            "sha256:",
            &hex,
            &format!("sha1:{hex}"),
            &format!("sha256:{}", "ü".repeat(32)),
            &format!("sha256:+1{}", &hex[2..]),
        ] {
            assert!(Pin::parse(bad).is_err(), "{bad}");
        }
    }
}
