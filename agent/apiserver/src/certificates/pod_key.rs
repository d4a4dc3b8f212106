//! A key for a pod's certificate, and the empty request that proves that the node has it.
//!
//! In: a key type of the API (`PodCertificateProjection.keyType`). Out: [`PodKey`]. ring signs what it can, and makes what
//! it can (P-256, P-384, Ed25519); RSA keys and all of P-521 come from the `rsa` and `p521` crates. Making an RSA key takes
//! seconds of a processor: callers do it where blocking is allowed. Invariant: nothing shows the key.

use std::fmt;

use p521::ecdsa::signature::Signer;
use p521::elliptic_curve::Generate;
use p521::pkcs8::{EncodePrivateKey, EncodePublicKey};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData,
    SignatureAlgorithm, SigningKey,
};
use ring::rand::{SecureRandom, SystemRandom};
use rsa::rand_core::{TryCryptoRng, TryRng};
use zeroize::Zeroizing;

use super::CertificateError;

/// `ecdsa-with-SHA256`, `-SHA384`, `-SHA512`, `Ed25519`, `sha256WithRSAEncryption` (RFC 5758, 8410, 4055), as
/// AlgorithmIdentifiers.
pub(crate) const ECDSA_SHA256: &[u8] = &[0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const ECDSA_SHA384: &[u8] = &[0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
pub(crate) const ECDSA_SHA512: &[u8] = &[0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4];
const ED25519: &[u8] = &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70];
const RSA_SHA256: &[u8] = &[0x30, 0x0d, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 0x0b, 5, 0];

/// Tags of DER.
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const BIT_STRING: u8 = 3;

/// A private key with an empty request over it.
pub struct PodKey {
    /// PKCS#8 in PEM; wiped when dropped.
    pub key_pem: Zeroizing<String>,
    /// PKCS#10, DER.
    pub request: Vec<u8>,
}

impl fmt::Debug for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodKey(<private key>, {} bytes)", self.request.len())
    }
}

impl PodKey {
    /// Makes a key of a type of the API, for example `ECDSAP256`.
    ///
    /// # Errors
    /// There is no such type, or the system gives no randomness.
    pub fn generate(key_type: &str) -> Result<PodKey, CertificateError> {
        let failed = |reason: String| CertificateError::Request { subject: key_type.to_owned(), reason };
        match key_type {
            "ECDSAP256" => PodKey::of_ring(&PKCS_ECDSA_P256_SHA256, ECDSA_SHA256).map_err(failed),
            "ECDSAP384" => PodKey::of_ring(&PKCS_ECDSA_P384_SHA384, ECDSA_SHA384).map_err(failed),
            "ED25519" => PodKey::of_ring(&PKCS_ED25519, ED25519).map_err(failed),
            "ECDSAP521" => PodKey::p521().map_err(failed),
            "RSA3072" => PodKey::rsa(3072).map_err(failed),
            "RSA4096" => PodKey::rsa(4096).map_err(failed),
            other => Err(failed(format!("unknown key type {other:?}"))),
        }
    }

    fn of_ring(kind: &'static SignatureAlgorithm, signature: &[u8]) -> Result<PodKey, String> {
        let pair = KeyPair::generate_for(kind).map_err(|e| e.to_string())?;
        PodKey::signed(pair, signature)
    }

    fn rsa(bits: usize) -> Result<PodKey, String> {
        let key = rsa::PrivateKey::new(&mut Randomness, bits).map_err(|e| e.to_string())?;
        let der = key.to_pkcs8_der().map_err(|e| e.to_string())?;
        let pem = Zeroizing::new(pem(der.as_bytes()));
        let pair = KeyPair::from_pem_and_sign_algo(&pem, &PKCS_RSA_SHA256).map_err(|e| e.to_string())?;
        PodKey::signed(pair, RSA_SHA256)
    }

    fn p521() -> Result<PodKey, String> {
        let key =
            p521::ecdsa::SigningKey::try_generate_from_rng(&mut Randomness).map_err(|e| e.to_string())?;
        let public = key.verifying_key().to_public_key_der().map_err(|e| e.to_string())?;
        let der = key.to_pkcs8_der().map_err(|e| e.to_string())?;
        let request = request(public.as_bytes(), ECDSA_SHA512, |info| {
            let signature: p521::ecdsa::DerSignature = key.try_sign(info).map_err(|e| e.to_string())?;
            Ok(signature.as_bytes().to_vec())
        })?;
        Ok(PodKey { key_pem: Zeroizing::new(pem(der.as_bytes())), request })
    }

    fn signed(mut pair: KeyPair, signature: &[u8]) -> Result<PodKey, String> {
        let public = pair.subject_public_key_info();
        let request = request(&public, signature, |info| pair.sign(info).map_err(|e| e.to_string()));
        let key_pem = Zeroizing::new(pem(pair.serialized_der()));
        zeroize::Zeroize::zeroize(&mut pair);
        Ok(PodKey { key_pem, request: request? })
    }
}

/// A request (RFC 2986) that says nothing but whose key it is.
fn request(
    public: &[u8],
    signature: &[u8],
    sign: impl Fn(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<Vec<u8>, String> {
    // Version 0, no name, the key, no attributes.
    let info = der(SEQUENCE, &[&[2, 1, 0], &[SEQUENCE, 0], public, &[0xa0, 0]]);
    let signed = sign(&info)?;
    Ok(der(SEQUENCE, &[&info, signature, &der(BIT_STRING, &[&[0], &signed])]))
}

/// A value of DER (X.690, 8.1.3: lengths of one byte up to 127, else how many bytes they have).
pub(crate) fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length: Vec<u8> = body.len().to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    let mut out = vec![tag];
    match (length.as_slice(), u8::try_from(length.len())) {
        ([], _) => out.push(0),
        ([short @ 0..0x80], _) => out.push(*short),
        (long, Ok(count)) => {
            out.push(0x80 | count);
            out.extend_from_slice(long);
        }
        (_, Err(_)) => unreachable!("a length has eight bytes at most"),
    }
    out.extend(body);
    out
}

/// `PRIVATE KEY`, lines of 64 characters that end as Go's do.
fn pem(der: &[u8]) -> String {
    agent_types::pem::block("PRIVATE KEY", der)
}

/// The system's random numbers, as the two crates want them.
struct Randomness;

impl TryRng for Randomness {
    type Error = NoRandomness;

    fn try_next_u32(&mut self) -> Result<u32, NoRandomness> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes).map(|()| u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, NoRandomness> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes).map(|()| u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), NoRandomness> {
        SystemRandom::new().fill(to).map_err(|_| NoRandomness)
    }
}

impl TryCryptoRng for Randomness {}

#[derive(Debug, thiserror::Error)]
#[error("the system gives no random numbers")]
struct NoRandomness;

#[cfg(test)]
mod tests {
    use x509_parser::prelude::{FromDer, X509CertificationRequest};

    use super::*;

    #[test]
    fn requests_are_empty_and_prove_the_key() {
        for (key_type, algorithm) in [
            ("ECDSAP256", "1.2.840.10045.4.3.2"),
            ("ECDSAP384", "1.2.840.10045.4.3.3"),
            ("ECDSAP521", "1.2.840.10045.4.3.4"),
            ("ED25519", "1.3.101.112"),
            ("RSA3072", "1.2.840.113549.1.1.11"),
        ] {
            let made = PodKey::generate(key_type).unwrap();
            let (rest, csr) = X509CertificationRequest::from_der(&made.request).unwrap();
            assert!(rest.is_empty(), "{key_type}");
            let info = &csr.certification_request_info;
            assert_eq!(info.subject.to_string(), "", "{key_type}");
            assert_eq!(csr.signature_algorithm.algorithm.to_id_string(), algorithm);
            // ring does not know P-521: its own crate says whether the signature is right.
            if key_type == "ECDSAP521" {
                use p521::ecdsa::signature::Verifier;
                use p521::pkcs8::DecodePublicKey;
                let key = p521::ecdsa::VerifyingKey::from_public_key_der(info.subject_pki.raw).unwrap();
                let signature = p521::ecdsa::DerSignature::from_bytes(&csr.signature_value.data).unwrap();
                key.verify(info.raw, &signature).unwrap();
                assert!(key.verify(b"else", &signature).is_err());
            } else {
                csr.verify_signature().unwrap();
            }
            assert!(made.key_pem.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{key_type}");
            assert!(made.key_pem.ends_with("-----END PRIVATE KEY-----\n"), "{key_type}");
            assert!(!format!("{made:?}").contains("BEGIN"));
        }
        assert!(
            PodKey::generate("RSA1024").unwrap_err().to_string().contains("unknown key type \"RSA1024\"")
        );
    }

    #[test]
    fn lengths_of_der() {
        let long = vec![7; 300];
        assert_eq!(der(4, &[]), [4, 0]);
        assert_eq!(der(4, &[&[7; 127]])[..2], [4, 127]);
        assert_eq!(der(4, &[&[7; 128]])[..3], [4, 0x81, 128]);
        assert_eq!(der(4, &[&long])[..4], [4, 0x82, 1, 44]);
    }
}
