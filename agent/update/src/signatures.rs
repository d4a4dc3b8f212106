//! Signatures by ring.

use orlop_config::release::{KeyAlgorithm, SignatureCheck, TrustedKey};
use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm};

/// Ed25519 and ECDSA over P-256.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingSignatures;

impl SignatureCheck for RingSignatures {
    fn is_good(&self, key: &TrustedKey, message: &[u8], signature: &[u8]) -> bool {
        let algorithm: &'static dyn VerificationAlgorithm = match key.algorithm {
            KeyAlgorithm::Ed25519 => &ED25519,
            KeyAlgorithm::EcdsaP256 => &ECDSA_P256_SHA256_ASN1,
        };
        UnparsedPublicKey::new(algorithm, &key.public.0).verify(message, signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_config::release::Base64Bytes;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};

    const MESSAGE: &[u8] = b"a message";

    fn signed(algorithm: KeyAlgorithm) -> (TrustedKey, Vec<u8>) {
        let random = SystemRandom::new();
        let (public, signature) = match algorithm {
            KeyAlgorithm::Ed25519 => {
                let document = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
                let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a key");
                (pair.public_key().as_ref().to_vec(), pair.sign(MESSAGE).as_ref().to_vec())
            }
            KeyAlgorithm::EcdsaP256 => {
                let how = &ECDSA_P256_SHA256_ASN1_SIGNING;
                let document = EcdsaKeyPair::generate_pkcs8(how, &random).expect("a key");
                let pair = EcdsaKeyPair::from_pkcs8(how, document.as_ref(), &random).expect("a key");
                let signature = pair.sign(&random, MESSAGE).expect("signed");
                (pair.public_key().as_ref().to_vec(), signature.as_ref().to_vec())
            }
        };
        (TrustedKey { id: "k".to_owned(), algorithm, public: Base64Bytes(public) }, signature)
    }

    #[test]
    fn both_algorithms_tell_good_signatures_from_bad_ones() {
        for algorithm in [KeyAlgorithm::Ed25519, KeyAlgorithm::EcdsaP256] {
            let (key, signature) = signed(algorithm);
            assert_eq!(key.public.0.len(), algorithm.public_bytes());
            assert!(RingSignatures.is_good(&key, MESSAGE, &signature));
            assert!(!RingSignatures.is_good(&key, b"another", &signature));
            assert!(!RingSignatures.is_good(&key, MESSAGE, &[]));
            for at in 0..signature.len() {
                let mut flipped = signature.clone();
                flipped[at] ^= 1;
                assert!(!RingSignatures.is_good(&key, MESSAGE, &flipped), "byte {at}");
            }
            let (other, _) = signed(algorithm);
            assert!(!RingSignatures.is_good(&other, MESSAGE, &signature));
            let no_key = TrustedKey { public: Base64Bytes(vec![0; 7]), ..other };
            assert!(!RingSignatures.is_good(&no_key, MESSAGE, &signature));
        }
    }
}
