//! A new key and the certificate request over it.
//!
//! In: core's template: subject and names. Out: [`KeyAndCsr`]. Invariants: ECDSA P-256, as upstream; names are sorted, so that the
//! same addresses give the same request; nothing shows the key.

use std::fmt;

use agent_core::certs::CertTemplate;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use zeroize::Zeroizing;

use super::CertificateError;

/// A private key with the request for its certificate, both PEM.
pub struct KeyAndCsr {
    /// PKCS#8; wiped when dropped.
    pub key_pem: Zeroizing<String>,
    /// PKCS#10.
    pub csr_pem: String,
}

impl fmt::Debug for KeyAndCsr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyAndCsr(<private key>, {} bytes)", self.csr_pem.len())
    }
}

impl KeyAndCsr {
    /// Makes a new ECDSA P-256 key and signs a request with it.
    ///
    /// # Errors
    /// A name cannot be put into a certificate, or the system gives no randomness.
    pub fn generate(template: &CertTemplate) -> Result<KeyAndCsr, CertificateError> {
        let failed = |e: rcgen::Error| CertificateError::Request {
            subject: template.common_name.clone(),
            reason: e.to_string(),
        };
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        KeyAndCsr::with_pair(pair, template)
    }

    /// Signs a request with a key of an earlier attempt (PKCS#8 PEM).
    ///
    /// # Errors
    /// It is no such key, or a name cannot be put into a certificate.
    pub fn from_key(key_pem: &str, template: &CertTemplate) -> Result<KeyAndCsr, CertificateError> {
        let pair = KeyPair::from_pem(key_pem).map_err(|_| CertificateError::Contents {
            what: "private key".to_owned(),
            reason: "is no PKCS#8 key in PEM".to_owned(),
        })?;
        KeyAndCsr::with_pair(pair, template)
    }

    fn with_pair(mut pair: KeyPair, template: &CertTemplate) -> Result<KeyAndCsr, CertificateError> {
        let failed = |e: rcgen::Error| CertificateError::Request {
            subject: template.common_name.clone(),
            reason: e.to_string(),
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, template.organization.as_str());
        params.distinguished_name.push(DnType::CommonName, template.common_name.as_str());
        let (mut dns, mut ips) = (template.dns_names.clone(), template.ips.clone());
        dns.sort();
        dns.dedup();
        ips.sort_by_key(ToString::to_string);
        ips.dedup();
        for name in dns {
            params.subject_alt_names.push(SanType::DnsName(name.try_into().map_err(failed)?));
        }
        params.subject_alt_names.extend(ips.into_iter().map(SanType::IpAddress));
        let csr = params.serialize_request(&pair).and_then(|r| r.pem());
        let key_pem = Zeroizing::new(pair.serialize_pem());
        zeroize::Zeroize::zeroize(&mut pair);
        Ok(KeyAndCsr { key_pem, csr_pem: csr.map_err(failed)? })
    }
}
