//! What a certificate says, for core to decide by.
//!
//! In: PEM, from a file or from a CertificateSigningRequest's status. Out: [`CertificateFacts`] of the leaf; whether a key is
//! its own. Invariants: nothing here verifies a signature; bad input is an error, never a panic.

use std::net::IpAddr;

use agent_types::certificates::CertificateFacts;
use agent_types::time::Wall;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::CertificateError;
use crate::access::KeyPem;

/// What the first certificate of a PEM text says; what else is in it (its key, its chain) does not matter, but for
/// the chain's end of validity: the earliest end of any certificate counts, as in upstream's check.
///
/// # Errors
/// There is none, or one cannot be parsed.
pub fn facts_of_pem(
    what: &str,
    pem: &[u8],
    from_bootstrap: bool,
) -> Result<CertificateFacts, CertificateError> {
    let wrong =
        |reason: &str| CertificateError::Contents { what: what.to_owned(), reason: reason.to_owned() };
    let chain: Vec<CertificateDer<'_>> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| wrong("is not PEM"))?;
    let mut facts: Option<CertificateFacts> = None;
    for der in &chain {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|_| wrong("holds a certificate that cannot be parsed"))?;
        match &mut facts {
            None => facts = Some(CertificateFacts { from_bootstrap, ..of(&certificate) }),
            Some(leaf) => leaf.not_after = leaf.not_after.min(wall(&certificate.validity.not_after)),
        }
    }
    facts.ok_or_else(|| wrong("holds no certificate"))
}

/// What one certificate in DER says; `None` if it cannot be parsed.
#[cfg(feature = "testing")]
pub(crate) fn facts_of_der(der: &[u8]) -> Option<CertificateFacts> {
    X509Certificate::from_der(der).ok().map(|(_, c)| of(&c))
}

fn wall(time: &x509_parser::time::ASN1Time) -> Wall {
    Wall(time.timestamp().saturating_mul(1_000_000_000))
}

fn of(certificate: &X509Certificate<'_>) -> CertificateFacts {
    let text =
        |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().unwrap_or_default().to_owned();
    let subject = certificate.subject();
    let mut facts = CertificateFacts {
        not_before: wall(&certificate.validity.not_before),
        not_after: wall(&certificate.validity.not_after),
        common_name: subject.iter_common_name().next().map(text).unwrap_or_default(),
        organizations: subject.iter_organization().map(text).collect(),
        dns_names: Vec::new(),
        ips: Vec::new(),
        from_bootstrap: false,
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    for name in names.iter().flat_map(|n| &n.value.general_names) {
        match name {
            GeneralName::DNSName(name) => facts.dns_names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => facts.ips.extend(address(bytes)),
            _ => {}
        }
    }
    facts.organizations.sort();
    facts.dns_names.sort();
    facts.ips.sort_by_key(ToString::to_string);
    facts
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// True if `key_pem` is the private key of the first certificate in `certificate_pem`.
///
/// # Errors
/// One of the two is missing or cannot be used.
pub fn is_key_of(what: &str, key_pem: &[u8], certificate_pem: &[u8]) -> Result<bool, CertificateError> {
    let wrong = |reason: String| CertificateError::Contents { what: what.to_owned(), reason };
    let der = CertificateDer::from_pem_slice(certificate_pem)
        .map_err(|_| wrong("holds no certificate".to_owned()))?;
    let (_, certificate) = X509Certificate::from_der(&der)
        .map_err(|_| wrong("holds a certificate that cannot be parsed".to_owned()))?;
    let key = KeyPem::from_pem(key_pem).map_err(&wrong)?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key.der())
        .map_err(|_| wrong("holds a private key of a kind that cannot be used".to_owned()))?;
    let public = key.public_key().ok_or_else(|| wrong("holds a key without a public half".to_owned()))?;
    Ok(certificate.public_key().raw == public.as_ref())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn made(common_name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(vec!["b.x".to_owned(), "a.x".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2027, 1, 1);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn facts_of_a_certificate() {
        let (certificate, key) = made("system:node:n");
        let both = format!("{key}{certificate}");
        let facts = facts_of_pem("x", both.as_bytes(), true).unwrap();
        let expected = CertificateFacts {
            not_before: Wall(1_767_225_600_000_000_000),
            not_after: Wall(1_798_761_600_000_000_000),
            common_name: "system:node:n".to_owned(),
            organizations: vec!["system:nodes".to_owned()],
            dns_names: vec!["a.x".to_owned(), "b.x".to_owned()],
            ips: vec!["10.0.0.1".parse().unwrap()],
            from_bootstrap: true,
        };
        assert_eq!(facts, expected);
        assert!(is_key_of("x", both.as_bytes(), both.as_bytes()).unwrap());
        assert!(!is_key_of("x", key.as_bytes(), made("o").0.as_bytes()).unwrap());
        assert!(
            facts_of_pem("x", key.as_bytes(), false)
                .unwrap_err()
                .to_string()
                .contains("holds no certificate")
        );
        assert!(is_key_of("x", certificate.as_bytes(), certificate.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600), at in 0_usize..900, flip in any::<u8>()) {
            let _ = facts_of_pem("x", &bytes, false);
            let (certificate, _) = made("n");
            let mut der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap().to_vec();
            let at = at % der.len();
            der[at] ^= flip;
            if let Ok((_, parsed)) = X509Certificate::from_der(&der) {
                let _ = of(&parsed);
            }
        }
    }
}
