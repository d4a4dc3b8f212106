//! A private key in a file: PKCS#8 in PEM, which openssl makes and reads as well.

use anyhow::{Context, Result, bail};
use orlop_config::base64;
use orlop_config::release::{KeyAlgorithm, TrustedKey};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
/// Characters of a line of PEM.
const LINE: usize = 64;

/// A key that signs documents.
pub struct SigningKey {
    pair: SigningPair,
}

enum SigningPair {
    Ed25519(Ed25519KeyPair),
    EcdsaP256(EcdsaKeyPair),
}

impl SigningKey {
    /// Makes an Ed25519 key and writes it to a new file, mode 0600.
    ///
    /// # Errors
    /// The file exists or cannot be written.
    pub fn create(path: &Path) -> Result<SigningKey> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| anyhow::anyhow!("the system gives no random bytes"))?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("making {}", path.display()))?;
        let text = pem(document.as_ref());
        if let Err(why) = file.write_all(text.as_bytes()).and_then(|()| file.sync_all()) {
            // Part of a key is none.
            let _ = fs::remove_file(path);
            return Err(why).with_context(|| format!("writing {}", path.display()));
        }
        SigningKey::parse(&text)
    }

    /// Reads a key.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or it is no key that signs documents.
    pub fn read(path: &Path) -> Result<SigningKey> {
        let shown = path.display();
        let mode = fs::metadata(path).with_context(|| format!("reading {shown}"))?.permissions().mode();
        if mode & 0o077 != 0 {
            bail!("{shown} has mode {:o}, and others may read the key: chmod 600 {shown}", mode & 0o777);
        }
        let text = fs::read_to_string(path).with_context(|| format!("reading {shown}"))?;
        SigningKey::parse(&text).with_context(|| shown.to_string())
    }

    fn parse(text: &str) -> Result<SigningKey> {
        let body = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map(|(body, _)| body);
        let der = body.and_then(base64::decode).context("no private key in PEM (PKCS#8, not encrypted)")?;
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der) {
            return Ok(SigningKey { pair: SigningPair::Ed25519(pair) });
        }
        let how = &ECDSA_P256_SHA256_ASN1_SIGNING;
        match EcdsaKeyPair::from_pkcs8(how, &der, &SystemRandom::new()) {
            Ok(pair) => Ok(SigningKey { pair: SigningPair::EcdsaP256(pair) }),
            Err(why) => bail!("neither an Ed25519 nor an ECDSA P-256 key: {why}"),
        }
    }

    /// How it signs.
    #[must_use]
    pub fn algorithm(&self) -> KeyAlgorithm {
        match self.pair {
            SigningPair::Ed25519(_) => KeyAlgorithm::Ed25519,
            SigningPair::EcdsaP256(_) => KeyAlgorithm::EcdsaP256,
        }
    }

    /// Its public half.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        match &self.pair {
            SigningPair::Ed25519(pair) => pair.public_key().as_ref(),
            SigningPair::EcdsaP256(pair) => pair.public_key().as_ref(),
        }
    }

    /// True if `key` is its public half.
    #[must_use]
    pub fn is(&self, key: &TrustedKey) -> bool {
        key.algorithm == self.algorithm() && key.public.0 == self.public()
    }

    /// Signs.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        match &self.pair {
            SigningPair::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            SigningPair::EcdsaP256(pair) => {
                let signature = pair
                    .sign(&SystemRandom::new(), message)
                    .map_err(|_| anyhow::anyhow!("the system gives no random bytes"))?;
                Ok(signature.as_ref().to_vec())
            }
        }
    }
}

fn pem(der: &[u8]) -> String {
    let body = base64::encode(der);
    let mut text = format!("{BEGIN}\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        // All of base64 is ASCII.
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text + END + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_config::release::{Base64Bytes, SignatureCheck};
    use orlop_update::RingSignatures;

    fn trusted(key: &SigningKey) -> TrustedKey {
        let public = Base64Bytes(key.public().to_vec());
        TrustedKey { id: "k".to_owned(), algorithm: key.algorithm(), public }
    }

    fn assert_signs(key: &SigningKey) {
        let trusted = trusted(key);
        assert!(key.is(&trusted));
        let signature = key.sign(b"message").expect("signed");
        assert!(RingSignatures.is_good(&trusted, b"message", &signature));
        assert!(!RingSignatures.is_good(&trusted, b"another", &signature));
    }

    #[test]
    fn a_key_is_written_for_its_owner_alone_and_read_back() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("release.pem");
        let made = SigningKey::create(&path).expect("made");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let read = SigningKey::read(&path).expect("read");
        assert_eq!(read.public(), made.public());
        assert_signs(&read);
        assert!(SigningKey::create(&path).is_err(), "a key is never overwritten");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("changed");
        let refused = SigningKey::read(&path).err().expect("others may read it").to_string();
        assert!(refused.contains("has mode 640") && refused.contains("chmod 600"), "{refused}");
    }

    #[test]
    fn keys_of_both_algorithms_sign() {
        let random = SystemRandom::new();
        let how = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let ecdsa = EcdsaKeyPair::generate_pkcs8(how, &random).expect("a key");
        let ed25519 = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
        for (der, algorithm) in
            [(ecdsa.as_ref(), KeyAlgorithm::EcdsaP256), (ed25519.as_ref(), KeyAlgorithm::Ed25519)]
        {
            let key = SigningKey::parse(&pem(der)).expect("a key");
            assert_eq!(key.algorithm(), algorithm);
            assert_signs(&key);
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for bad in ["", "-----BEGIN PRIVATE KEY-----", &pem(b""), &pem(b"no key"), &pem(&[0x30; 200])] {
            assert!(SigningKey::parse(bad).is_err(), "{bad}");
        }
    }
}
