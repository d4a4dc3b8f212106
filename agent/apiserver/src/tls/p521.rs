//! Signatures by keys on P-521: ring does not verify them, RustCrypto's p521 does.
//!
//! In: what a provider verifies. Out: the same, and P-521 with SHA-256, SHA-384 and SHA-512, in certificates and in handshakes,
//! as Go has it. Invariant: what the provider verified before it verifies as before, and prefers; nothing is signed here.

use std::fmt;
use std::sync::LazyLock;

use p521::ecdsa::signature::hazmat::PrehashVerifier;
use p521::ecdsa::{DerSignature, VerifyingKey};
use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use rustls::SignatureScheme;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring as rustls_ring};
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id};

/// Verifies one signature.
type Verifier = &'static dyn SignatureVerificationAlgorithm;
/// What may sign a handshake, as a peer offers it.
type Scheme = (SignatureScheme, &'static [Verifier]);

/// A digest with which a key on P-521 signs.
struct P521 {
    signature: AlgorithmIdentifier,
    digest: &'static Algorithm,
}

static WITH_SHA256: P521 = P521 { signature: alg_id::ECDSA_SHA256, digest: &SHA256 };
static WITH_SHA384: P521 = P521 { signature: alg_id::ECDSA_SHA384, digest: &SHA384 };
static WITH_SHA512: P521 = P521 { signature: alg_id::ECDSA_SHA512, digest: &SHA512 };
/// In TLS 1.2 a scheme names the digest only, in 1.3 the first of its verifiers counts.
const SCHEMES: [(SignatureScheme, &P521); 3] = [
    (SignatureScheme::ECDSA_NISTP256_SHA256, &WITH_SHA256),
    (SignatureScheme::ECDSA_NISTP384_SHA384, &WITH_SHA384),
    (SignatureScheme::ECDSA_NISTP521_SHA512, &WITH_SHA512),
];

impl fmt::Debug for P521 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P521({:?})", self.digest)
    }
}

impl SignatureVerificationAlgorithm for P521 {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = DerSignature::try_from(signature).map_err(|_| InvalidSignature)?;
        let hash = digest(self.digest, message);
        key.verify_prehash(hash.as_ref(), &signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.signature
    }
}

/// The lists of ring, with P-521. They live as long as the process, as rustls wants it.
static ALL: LazyLock<(Vec<Verifier>, Vec<Scheme>)> = LazyLock::new(|| {
    let known = rustls_ring::default_provider().signature_verification_algorithms;
    let own = SCHEMES.map(|(_, of)| of as Verifier);
    let all = known.all.iter().copied().chain(own).collect();
    let mut schemes: Vec<(SignatureScheme, Vec<Verifier>)> =
        known.mapping.iter().map(|(scheme, of)| (*scheme, of.to_vec())).collect();
    for (scheme, of) in SCHEMES {
        match schemes.iter_mut().find(|(known, _)| *known == scheme) {
            Some((_, verifiers)) => verifiers.push(of),
            None => schemes.push((scheme, vec![of])),
        }
    }
    let schemes = schemes.into_iter().map(|(scheme, of)| (scheme, &*of.leak())).collect();
    (all, schemes)
});

/// What ring verifies, and P-521.
pub(super) fn algorithms() -> WebPkiSupportedAlgorithms {
    WebPkiSupportedAlgorithms { all: &ALL.0, mapping: &ALL.1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by openssl 3.0: `dgst -sha256 -sign`, and so on, of the text `sample`.
    const KEY: &str = "04009e83a5fa182d4ee6fd3c8222a01a1f306eecad4880b9ab00a2dee3feaacb78db3ff8c3fd10d697495fc4266cdba7c82d\
        d4c7952705b29a3498c4a9a097e4ef8f470180079c2fe90392b51adf4dd7e658913cb5681715a86263a316d2a4761c24d359\
        2cbcff8006c31fb0411687d327355e32b84be31b8f4fbcc35a2abccf49c762046e";
    const SIGNATURES: [&str; 3] = [
        "3081880242014ddeec6e442be48fca9b418d74f5a3b035ceb245120ba1d4163aa83efcb52cd923b2e6458d6faeaf3226fcb9\
        df86bafea3c521f4b5daf12b54c17df9ca1896f853024201145139822c6664bcabd7984d94e49cea2b4d71f7518d5730c0b9\
        9c3769cd2811d498216b53f7e4c8ea0f5bdb4ca43045ad48081f001fea57809452b3bde32195ba",
        "3081870242018729443374c667b6317c2e68e0010f44c4014a12fe5f6a6abd3688b94ea2d9aed389d50d3e11f50b2b41a3b4\
        7cf82d8a167e1362f54a00619291f6725a16afdb8102417d9b4820c8575681b20e1f3b78ec84c7abdbd5f820a0806add37ee\
        02d79184f4123523a77a1c3186dab4326eb190961fadfc9a7a5a556471975dbe89eca56409f5",
        "3081870242016d66562c6c62c09bda8e896d02cea034f24f95f72c3fa27eab483b7a0df94c4fff4a9545b44b37a2743af721\
        326759c36e07a8040808a7cc57ebfc6d3988ba391802412aede6b9e65e1df04fe979cb8055db142e91a4f16938362ed94129\
        a2d47380c9f2393c95286fe51ac04e84af06f3c267438b7581dba8a3524d30601bf549254a9b",
    ];

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    #[test]
    fn signatures_of_another_library_fit_their_text_and_digest_only() {
        let key = bytes(KEY);
        for (n, signature) in SIGNATURES.iter().map(|s| bytes(s)).enumerate() {
            for (m, (_, of)) in SCHEMES.iter().enumerate() {
                let fits = |text: &[u8]| of.verify_signature(&key, text, &signature).is_ok();
                assert_eq!(fits(b"sample"), n == m, "{of:?} {n}");
                assert!(!fits(b"simple"));
            }
            let of = SCHEMES[n].1;
            for at in [0, 5, signature.len() - 1] {
                let mut broken = signature.clone();
                broken[at] ^= 1;
                assert!(of.verify_signature(&key, b"sample", &broken).is_err(), "byte {at}");
            }
            for (key, signature) in [(&key[..132], &signature[..]), (&key, &[]), (&[], &signature)] {
                assert!(of.verify_signature(key, b"sample", signature).is_err());
            }
        }
    }

    #[test]
    fn what_ring_verifies_comes_first_and_nothing_of_it_is_lost() {
        let (own, ring) = (algorithms(), rustls_ring::default_provider().signature_verification_algorithms);
        assert_eq!(own.all.len(), ring.all.len() + 3);
        for ((scheme, before), (same, now)) in ring.mapping.iter().zip(own.mapping) {
            assert_eq!(scheme, same);
            let ids = |of: &[Verifier]| -> Vec<_> {
                of.iter().map(|v| (v.public_key_alg_id(), v.signature_alg_id())).collect()
            };
            assert_eq!(ids(&now[..before.len()]), ids(before), "{scheme:?}");
        }
        let last = own.mapping.last().map(|(scheme, _)| *scheme);
        assert_eq!(last, Some(SignatureScheme::ECDSA_NISTP521_SHA512));
    }
}
