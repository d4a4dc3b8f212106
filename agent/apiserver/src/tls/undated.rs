//! Verification of a server in everything but the dates of its certificates: for a node whose clock may be wrong.
//!
//! In: authorities that the node pins. Out: a verifier that remembers the time which the server's chain proves. webpki
//! verifies at a time; this asks it at each `notBefore` of the certificates that the server shows, earliest first. The first
//! time at which a chain holds is the latest `notBefore` of that chain: certificates that do not belong to it prove nothing.
//! Invariants: names, usages, signatures and the handshake are verified as ever; the machine's own authorities
//! ([`super::SYSTEM_BUNDLE`]) are never taken; the work is bounded.

use std::sync::Arc;
use std::time::Duration;

use agent_types::lock::Lock;
use agent_types::time::Wall;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{TlsError, provider, unusable, verifier};
use crate::connect::Protocol;

/// So many certificates of a server's message are looked at; chains of clusters have one to three.
const CERTIFICATES_MAX: usize = 8;

/// The verifier.
#[derive(Debug)]
pub(crate) struct UndatedVerifier {
    inner: Arc<WebPkiServerVerifier>,
    /// Latest `notBefore` and earliest `notAfter` of the chain that held.
    proven: Lock<Option<(Wall, Wall)>>,
}

impl UndatedVerifier {
    /// Latest `notBefore` and earliest `notAfter` of the chain; `None` before a handshake succeeded.
    pub(crate) fn proven(&self) -> Option<(Wall, Wall)> {
        *self.proven.lock()
    }
}

/// A client without credentials, and its verifier.
pub(crate) fn undated_client(
    authorities: &[CertificateDer<'static>],
) -> Result<(Arc<ClientConfig>, Arc<UndatedVerifier>), TlsError> {
    let provider = Arc::new(provider());
    let inner = verifier(authorities.iter().cloned(), Arc::clone(&provider))?;
    let verifier = Arc::new(UndatedVerifier { inner, proven: Lock::default() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS", error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![Protocol::Http1.alpn().to_vec()];
    config.resumption = Resumption::disabled();
    Ok((Arc::new(config), verifier))
}

/// Validity of a certificate, seconds since 1970; `None` if it cannot be read.
fn validity(der: &CertificateDer<'_>) -> Option<(i64, i64)> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let dates = &certificate.validity;
    Some((dates.not_before.timestamp(), dates.not_after.timestamp()))
}

fn wall(seconds: i64) -> Wall {
    Wall(seconds.saturating_mul(1_000_000_000))
}

/// Latest `notBefore` of these certificates; `None` if none can be read.
pub(crate) fn latest_not_before(certificates: &[CertificateDer<'_>]) -> Option<Wall> {
    certificates.iter().filter_map(validity).map(|(from, _)| wall(from)).max()
}

impl ServerCertVerifier for UndatedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let bad = rustls::Error::InvalidCertificate(CertificateError::BadEncoding);
        let (begun, _) = validity(end_entity).ok_or_else(|| bad.clone())?;
        let others = intermediates.iter().take(CERTIFICATES_MAX - 1);
        let shown: Vec<(i64, i64)> = std::iter::once(end_entity).chain(others).filter_map(validity).collect();
        let mut times: Vec<i64> =
            shown.iter().map(|(from, _)| *from).filter(|from| *from >= begun.max(0)).collect();
        times.sort_unstable();
        times.dedup();
        let mut failure = bad;
        for time in times {
            let at = UnixTime::since_unix_epoch(Duration::from_secs(time.unsigned_abs()));
            match self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, at) {
                Ok(verified) => {
                    let valid_then = shown.iter().filter(|(from, until)| *from <= time && time <= *until);
                    let until = valid_then.map(|(_, until)| *until).min().unwrap_or(time);
                    *self.proven.lock() = Some((wall(time), wall(until)));
                    return Ok(verified);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };

    use super::*;

    /// Parameters of a certificate that is valid in these years.
    fn params(name: &str, years: (i32, i32)) -> CertificateParams {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        params
    }

    fn authority(name: &str, years: (i32, i32)) -> CertificateParams {
        let mut params = params(name, years);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    }

    fn of_year(year: i32) -> Wall {
        wall(rcgen::date_time_ymd(year, 1, 1).unix_timestamp())
    }

    struct Chain {
        root: CertificateDer<'static>,
        leaf: CertificateDer<'static>,
        intermediate: CertificateDer<'static>,
        stranger: CertificateDer<'static>,
    }

    impl Chain {
        fn new(leaf: (i32, i32), intermediate: (i32, i32)) -> Chain {
            let [root_key, intermediate_key, leaf_key, stranger_key] =
                [(); 4].map(|()| KeyPair::generate().unwrap());
            let root = authority("root", (2000, 2001));
            let root_der = root.self_signed(&root_key).unwrap().der().clone();
            let root = Issuer::new(root, root_key);
            let middle = authority("intermediate", intermediate);
            let intermediate = middle.signed_by(&intermediate_key, &root).unwrap().der().clone();
            let middle = Issuer::new(middle, intermediate_key);
            let mut end = params("api", leaf);
            end.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            let leaf = end.signed_by(&leaf_key, &middle).unwrap().der().clone();
            let stranger =
                authority("stranger", (2025, 2026)).self_signed(&stranger_key).unwrap().der().clone();
            Chain { root: root_der, leaf, intermediate, stranger }
        }

        fn verify(
            &self,
            name: &str,
            roots: &[CertificateDer<'static>],
        ) -> Result<(Wall, Wall), rustls::Error> {
            let (_, verifier) = undated_client(roots).unwrap();
            let name = ServerName::try_from(name.to_owned()).unwrap();
            let others = [self.intermediate.clone(), self.stranger.clone()];
            // The clock shows 1970, and the verifier does not look at it.
            let now = UnixTime::since_unix_epoch(Duration::ZERO);
            verifier.verify_server_cert(&self.leaf, &others, &name, &[], now)?;
            Ok(verifier.proven().unwrap())
        }
    }

    #[test]
    fn a_chain_proves_the_latest_of_its_own_beginnings() {
        // The root ended long ago: what a node pins has no date.
        for (leaf, intermediate, from, until) in [
            ((2020, 2030), (2018, 2040), 2020, 2030),
            ((2020, 2030), (2022, 2028), 2022, 2028),
            ((2060, 2061), (2000, 2100), 2060, 2061),
        ] {
            let chain = Chain::new(leaf, intermediate);
            let proven = chain.verify("api", std::slice::from_ref(&chain.root)).unwrap();
            assert_eq!(proven.0, of_year(from), "{leaf:?}");
            assert_eq!(proven.1, of_year(until), "{leaf:?}");
        }
    }

    #[test]
    fn all_but_the_dates_is_verified() {
        let chain = Chain::new((2020, 2030), (2018, 2040));
        let roots = std::slice::from_ref(&chain.root);
        let kind = |result: Result<(Wall, Wall), rustls::Error>| match result {
            Err(rustls::Error::InvalidCertificate(error)) => error,
            other => panic!("{other:?}"),
        };
        let error = kind(chain.verify("other", roots));
        assert!(matches!(error, CertificateError::NotValidForNameContext { .. }), "{error:?}");
        let other = Chain::new((2020, 2030), (2018, 2040));
        let error = kind(chain.verify("api", std::slice::from_ref(&other.root)));
        assert!(
            matches!(error, CertificateError::UnknownIssuer | CertificateError::BadSignature),
            "{error:?}"
        );
        // Never valid at the same time.
        let apart = Chain::new((2020, 2021), (2022, 2023));
        let error = kind(apart.verify("api", std::slice::from_ref(&apart.root)));
        assert!(
            matches!(error, CertificateError::Expired | CertificateError::ExpiredContext { .. }),
            "{error:?}"
        );
    }

    #[test]
    fn the_latest_beginning_of_authorities() {
        let chain = Chain::new((2020, 2030), (2018, 2040));
        let all = [chain.root.clone(), chain.stranger.clone(), vec![1, 2, 3].into()];
        assert_eq!(latest_not_before(&all), Some(of_year(2025)));
        assert_eq!(latest_not_before(&all[2..]), None);
    }
}
