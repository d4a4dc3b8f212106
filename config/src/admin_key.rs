//! Public keys of administrators and nodes for the management API, as texts. Pure; docs/reference/node-api.md.
//!
//! In: texts of NodeConfig, keys as TLS has them (SubjectPublicKeyInfo, RFC 8410). Out: the other form. Invariant: a key has one text.

use crate::base64;

/// Annotation of a Node with the fingerprint of its management API's key.
pub const NODE_ANNOTATION: &str = "node.orlop.dev/api-key";

/// The kind of key, in front of it.
const PREFIX: &str = "ed25519:";
/// An Ed25519 key in DER is this and its 32 bytes.
const START: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const LENGTH: usize = START.len() + 32;

/// The key of `ed25519:<base64>`; `None` for any other text.
#[must_use]
pub fn parse(text: &str) -> Option<Vec<u8>> {
    let key = base64::decode(text.strip_prefix(PREFIX)?)?;
    (is_key(&key) && render(&key) == text).then_some(key)
}

/// The text of a key.
#[must_use]
pub fn render(key: &[u8]) -> String {
    format!("{PREFIX}{}", base64::encode(key))
}

/// The key of these 32 bytes; `None` for another number of bytes.
#[must_use]
pub fn of_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
    let key = [&START[..], bytes].concat();
    is_key(&key).then_some(key)
}

/// Whether it is an Ed25519 key in DER.
#[must_use]
pub fn is_key(key: &[u8]) -> bool {
    key.len() == LENGTH && key.starts_with(&START)
}

/// The short name of a key, by its SHA-256 digest.
#[must_use]
pub fn fingerprint(sha256: &[u8]) -> String {
    format!("SHA256:{}", base64::encode(sha256).trim_end_matches('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8410, section 10.1.
    const EXAMPLE: &str = "ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

    #[test]
    fn a_key_has_one_text() {
        let key = parse(EXAMPLE).expect("the RFC's key");
        assert_eq!(key.len(), LENGTH);
        assert_eq!(render(&key), EXAMPLE);
        assert_eq!((of_bytes(&key[12..]), of_bytes(&key)), (Some(key), None));
        for other in [
            "",
            "ed25519:",
            "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=",
            "ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE",
            "ed25519: MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=",
            "ed25519:AAAA",
            "rsa:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert_eq!(fingerprint(&[0; 32]), format!("SHA256:{}", "A".repeat(43)));
    }
}
