//! A new key and the certificate request over it.
//!
//! In: core's template: subject and names. Out: [`KeyAndCsr`]. Invariants: ECDSA P-256, as upstream; names are sorted, so that the
//! same addresses give the same request; nothing shows the key.

use std::fmt;

use agent_types::certificates::CertTemplate;
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

#[cfg(test)]
mod tests {
    use x509_parser::pem::parse_x509_pem;
    use x509_parser::prelude::{FromDer, ParsedExtension, X509CertificationRequest};

    use super::*;

    fn names() -> CertTemplate {
        CertTemplate {
            common_name: "system:node:n1".to_owned(),
            organization: "system:nodes".to_owned(),
            dns_names: vec!["z.example".to_owned(), "a.example".to_owned(), "z.example".to_owned()],
            ips: vec!["10.0.0.9".parse().unwrap(), "10.0.0.10".parse().unwrap(), "fd00::1".parse().unwrap()],
        }
    }

    #[test]
    fn a_request_carries_what_upstreams_carries() {
        let made = KeyAndCsr::generate(&names()).unwrap();
        let (_, pem) = parse_x509_pem(made.csr_pem.as_bytes()).unwrap();
        assert_eq!(pem.label, "CERTIFICATE REQUEST");
        let (_, csr) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let info = &csr.certification_request_info;
        assert_eq!(info.subject.to_string(), "O=system:nodes, CN=system:node:n1");
        let sans: Vec<String> = csr
            .requested_extensions()
            .unwrap()
            .filter_map(|e| match e {
                ParsedExtension::SubjectAlternativeName(s) => Some(s),
                _ => None,
            })
            .flat_map(|s| s.general_names.iter().map(ToString::to_string))
            .collect();
        assert_eq!(sans.len(), 5, "{sans:?}");
        assert!(sans[0].contains("a.example") && sans[1].contains("z.example"));
        let again = KeyAndCsr::generate(&names()).unwrap();
        assert_ne!(again.key_pem, made.key_pem, "a new key each time");
        assert!(!format!("{made:?}").contains("BEGIN"));
        let same = KeyAndCsr::from_key(&made.key_pem, &names()).unwrap();
        assert_eq!(*same.key_pem, *made.key_pem);
    }

    #[test]
    fn a_client_request_has_no_names() {
        let client = CertTemplate { dns_names: Vec::new(), ips: Vec::new(), ..names() };
        let made = KeyAndCsr::generate(&client).unwrap();
        let (_, pem) = parse_x509_pem(made.csr_pem.as_bytes()).unwrap();
        let (_, csr) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let sans = csr
            .requested_extensions()
            .into_iter()
            .flatten()
            .filter(|e| matches!(e, ParsedExtension::SubjectAlternativeName(_)));
        assert_eq!(sans.count(), 0);
        let bad = CertTemplate { dns_names: vec!["ä".to_owned()], ..client };
        assert!(KeyAndCsr::generate(&bad).unwrap_err().to_string().contains("system:node:n1"));
    }
}
