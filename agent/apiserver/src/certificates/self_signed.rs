//! A certificate for a server that no authority signs for.

use std::time::{Duration, SystemTime};

use agent_types::time::Wall;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use zeroize::{Zeroize, Zeroizing};

use super::CertificateError;

/// How long it is valid, as upstream's.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Makes a key and a certificate by itself for a node's HTTPS server, named for `host` (a name or an address) and valid
/// from `now` for a year. Clients that verify must be configured to trust it.
///
/// # Errors
/// `host` cannot be put into a certificate, or the system gives no randomness.
pub fn self_signed(host: &str, now: Wall) -> Result<(String, Zeroizing<String>), CertificateError> {
    let failed =
        |e: rcgen::Error| CertificateError::Request { subject: host.to_owned(), reason: e.to_string() };
    let mut pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let mut params = CertificateParams::new(vec![host.to_owned()]).map_err(failed)?;
    let seconds = u64::try_from(now.0.div_euclid(1_000_000_000)).unwrap_or(0);
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    (params.not_before, params.not_after) = (start.into(), (start + LIFETIME).into());
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("{host}@{seconds}"));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.self_signed(&pair).map_err(failed);
    let key = Zeroizing::new(pair.serialize_pem());
    pair.zeroize();
    Ok((certificate?.pem(), key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{facts_of_pem, is_key_of};

    #[test]
    fn it_names_the_node_and_lasts_a_year() {
        let now = Wall(1_795_262_400_000_000_000);
        for (host, dns, ips) in [("node-1", vec!["node-1"], 0), ("10.0.0.1", vec![], 1)] {
            let (certificate, key) = self_signed(host, now).unwrap();
            let facts = facts_of_pem("x", certificate.as_bytes(), false).unwrap();
            assert_eq!(facts.common_name, format!("{host}@1795262400"));
            assert_eq!(
                (facts.dns_names, facts.ips.len()),
                (dns.into_iter().map(str::to_owned).collect(), ips)
            );
            assert_eq!(facts.not_before, now);
            assert_eq!(facts.not_after.since(now), LIFETIME);
            assert!(is_key_of("x", key.as_bytes(), certificate.as_bytes()).unwrap());
        }
    }
}
