//! Client certificates of X.509 version 1, as `openssl x509 -req` makes them without extensions. Go takes them, webpki does not
//! read them.
//!
//! In: a certificate, the client CAs, the time, a handshake's signature. Out: whether the client has its key, and whether one of
//! the CAs has signed it for now. Invariants: no less is asked than Go asks: signature, both validities, and that the CA may
//! sign and may sign for clients; a certificate without extensions names no usage, so it is good for any; an authority between
//! the two is not looked for. RFC 5280, 4.1; Go's `crypto/x509` (`Verify`).

use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved};
use webpki::RawPublicKeyEntity;
use x509_parser::asn1_rs::Any;
use x509_parser::prelude::{ASN1Time, FromDer as _, X509Certificate, X509Version};

/// The certificate, if it is of version 1.
pub(super) fn read<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (rest, certificate) = X509Certificate::from_der(der).ok()?;
    (rest.is_empty() && certificate.version() == X509Version::V1).then_some(certificate)
}

/// One of the authorities signed it, and both are valid now.
pub(super) fn is_trusted(
    leaf: &X509Certificate<'_>,
    authorities: &[CertificateDer<'_>],
    since_epoch: Duration,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    let Ok(now) = ASN1Time::from_timestamp(seconds) else { return false };
    let signed_by = |der: &CertificateDer<'_>| {
        let Ok((_, authority)) = X509Certificate::from_der(der) else { return false };
        authority.subject().as_raw() == leaf.issuer().as_raw()
            && authority.validity().is_valid_at(now)
            && may_sign_for_clients(&authority)
            && has_signed(&authority, leaf, algorithms.all)
    };
    leaf.validity().is_valid_at(now) && authorities.iter().any(signed_by)
}

/// An extension that cannot be read, or is there twice, allows nothing.
fn may_sign_for_clients(authority: &X509Certificate<'_>) -> bool {
    let is_authority = match authority.basic_constraints() {
        Ok(Some(constraints)) => constraints.value.ca,
        // Before version 3 no certificate says so.
        Ok(None) => authority.version() != X509Version::V3,
        Err(_) => false,
    };
    let signs = match authority.key_usage() {
        Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
        Err(_) => false,
    };
    let for_clients = match authority.extended_key_usage() {
        Ok(usage) => usage.is_none_or(|usage| usage.value.any || usage.value.client_auth),
        Err(_) => false,
    };
    is_authority && signs && for_clients
}

fn has_signed(
    authority: &X509Certificate<'_>,
    leaf: &X509Certificate<'_>,
    algorithms: &[&dyn SignatureVerificationAlgorithm],
) -> bool {
    // What is signed says the algorithm, too.
    if leaf.tbs_certificate.signature != leaf.signature_algorithm {
        return false;
    }
    let Some(named) = signature_algorithm(leaf) else { return false };
    let key = SubjectPublicKeyInfoDer::from(authority.public_key().raw);
    let Ok(key) = RawPublicKeyEntity::try_from(&key) else { return false };
    let (body, signature) = (leaf.tbs_certificate.as_ref(), &leaf.signature_value.data);
    let mut fitting = algorithms.iter().filter(|algorithm| algorithm.signature_alg_id().as_ref() == named);
    // Whether it is one for this kind of key is looked at there.
    fitting.any(|algorithm| key.verify_signature(*algorithm, body, signature).is_ok())
}

/// The content of the AlgorithmIdentifier that follows what is signed.
fn signature_algorithm<'a>(certificate: &X509Certificate<'a>) -> Option<&'a [u8]> {
    let (_, whole) = Any::from_der(certificate.as_raw()).ok()?;
    let rest = whole.data.get(certificate.tbs_certificate.as_ref().len()..)?;
    let (_, algorithm) = Any::from_der(rest).ok()?;
    Some(algorithm.data)
}

/// The client has the certificate's key: TLS 1.3.
///
/// # Errors
/// It has not, or the key is of a kind that is not known here.
pub(super) fn verify_tls13(
    message: &[u8],
    certificate: &X509Certificate<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(certificate.public_key().raw);
    verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
}

/// The client has the certificate's key: TLS 1.2, where a scheme does not say the curve.
///
/// # Errors
/// It has not, or the key is of a kind that is not known here.
pub(super) fn verify_tls12(
    message: &[u8],
    certificate: &X509Certificate<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let bad = || Error::InvalidCertificate(CertificateError::BadSignature);
    let of_scheme = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let (_, verifiers) = of_scheme.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    let key = SubjectPublicKeyInfoDer::from(certificate.public_key().raw);
    let key = RawPublicKeyEntity::try_from(&key).map_err(|_| bad())?;
    let fits = |verifier: &&dyn SignatureVerificationAlgorithm| {
        key.verify_signature(*verifier, message, signed.signature()).is_ok()
    };
    verifiers.iter().any(fits).then(HandshakeSignatureValid::assertion).ok_or_else(bad)
}
