//! The envelope of a signed document: DSSE (Dead Simple Signing Envelope, secure-systems-lab/dsse, protocol version 1).
//!
//! In: bytes of a stranger. Out: the payload, once enough keys of a role have signed it. Signed is the payload's encoding
//! ([`Envelope::signed_bytes`]) and not the JSON around it, so no canonical form of JSON is needed. Invariants: the size and
//! the depth of a text are bounded before it is read; a key counts once, however many signatures name it; no payload is
//! read before its signatures are good, but for a trust document, which brings keys of its own.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::fault::quoted;
use super::trust::{KeyRole, TrustDocument, TrustedKey};
use super::values::{Base64Bytes, check_count, check_name};
use super::{DocumentFault, DocumentName};

/// A longer document is not read, bytes. A channel with all its lists full has less.
pub const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// Deepest nesting of lists and objects. The documents themselves have four levels.
const DEPTH_MAX: usize = 16;
/// Most signatures of an envelope.
const SIGNATURES_MAX: usize = 16;

/// Whether a signature is good: the one thing that needs cryptography.
pub trait SignatureCheck {
    /// True if `signature` over `message` was made with the private half of `key`.
    fn is_good(&self, key: &TrustedKey, message: &[u8], signature: &[u8]) -> bool;
}

/// A payload of an envelope.
pub trait SignedDocument: Serialize + DeserializeOwned {
    /// Payload type.
    const PAYLOAD_TYPE: &'static str;

    /// Its name.
    fn name(&self) -> DocumentName;

    /// Checks what its form alone does not say: counts, names, ranges.
    ///
    /// # Errors
    /// The first field that has no good value.
    fn check(&self) -> Result<(), DocumentFault>;
}

/// An envelope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// What the payload is.
    pub payload_type: String,
    /// The document's JSON.
    pub payload: Base64Bytes,
    /// Signatures.
    pub signatures: Vec<EnvelopeSignature>,
}

/// One signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvelopeSignature {
    /// Identifier of the key, as the trust document has it.
    pub keyid: String,
    /// The signature.
    pub sig: Base64Bytes,
}

impl Envelope {
    /// Around a document, without signatures.
    ///
    /// # Errors
    /// The document is one that no node would take.
    pub fn around<T: SignedDocument>(document: &T) -> Result<Envelope, DocumentFault> {
        document.check()?;
        let mut payload =
            serde_json::to_vec_pretty(document).map_err(|e| DocumentFault::Unreadable(e.to_string()))?;
        payload.push(b'\n');
        let payload_type = T::PAYLOAD_TYPE.to_owned();
        Ok(Envelope { payload_type, payload: Base64Bytes(payload), signatures: Vec::new() })
    }

    /// Reads an envelope.
    ///
    /// # Errors
    /// It is too large or too deep, is no envelope, or has too many signatures.
    pub fn read(text: &[u8]) -> Result<Envelope, DocumentFault> {
        let envelope: Envelope = json(text)?;
        check_count("signatures", envelope.signatures.len(), SIGNATURES_MAX)?;
        for (at, signature) in envelope.signatures.iter().enumerate() {
            check_name(&format!("signatures[{at}].keyid"), &signature.keyid)?;
        }
        Ok(envelope)
    }

    /// The text that is published.
    #[must_use]
    pub fn text(&self) -> String {
        // Nothing in an envelope has a form that JSON lacks.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// What a key signs: DSSE's pre-authentication encoding of type and payload.
    #[must_use]
    pub fn signed_bytes(&self) -> Vec<u8> {
        let (kind, payload) = (self.payload_type.as_bytes(), &self.payload.0);
        let mut bytes = format!("DSSEv1 {} ", kind.len()).into_bytes();
        bytes.extend(kind);
        bytes.extend(format!(" {} ", payload.len()).into_bytes());
        bytes.extend(payload);
        bytes
    }

    /// Adds the signature of a key, or replaces the one that it has made before.
    pub fn sign(&mut self, keyid: &str, signature: Vec<u8>) {
        self.signatures.retain(|s| s.keyid != keyid);
        self.signatures.push(EnvelopeSignature { keyid: keyid.to_owned(), sig: Base64Bytes(signature) });
    }

    /// Whether enough keys of `role` have signed.
    ///
    /// # Errors
    /// [`DocumentFault::NotSigned`] with the keys that count and those that were named.
    pub fn verify(
        &self,
        trust: &TrustDocument,
        role: KeyRole,
        check: &impl SignatureCheck,
    ) -> Result<(), DocumentFault> {
        let message = self.signed_bytes();
        let keys = trust.keys_of(role);
        let signed = |key: &&TrustedKey| {
            self.signatures.iter().any(|s| s.keyid == key.id && check.is_good(key, &message, &s.sig.0))
        };
        let good = keys.iter().copied().filter(signed).count();
        let threshold = trust.threshold(role);
        if good >= threshold {
            return Ok(());
        }
        let named: Vec<&str> = self.signatures.iter().map(|s| s.keyid.as_str()).collect();
        let keys: Vec<&str> = keys.iter().map(|key| key.id.as_str()).collect();
        Err(DocumentFault::NotSigned {
            role,
            trust: trust.number,
            good,
            threshold,
            keys: keys.join(", "),
            named: if named.is_empty() { "none".to_owned() } else { quoted(&named.join(", ")) },
        })
    }

    /// Reads the payload. [`Envelope::verify`] comes first.
    ///
    /// # Errors
    /// It is of another type, is not readable, or has a value that no document may have.
    pub fn document<T: SignedDocument>(&self) -> Result<T, DocumentFault> {
        if self.payload_type != T::PAYLOAD_TYPE {
            let found = quoted(&self.payload_type);
            return Err(DocumentFault::OtherType { want: T::PAYLOAD_TYPE, found });
        }
        let document: T = json(&self.payload.0)?;
        document.check()?;
        Ok(document)
    }
}

fn json<T: DeserializeOwned>(text: &[u8]) -> Result<T, DocumentFault> {
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(DocumentFault::TooLarge(DOCUMENT_BYTES_MAX));
    }
    if depth(text) > DEPTH_MAX {
        return Err(DocumentFault::TooDeep(DEPTH_MAX));
    }
    serde_json::from_slice(text).map_err(|e| DocumentFault::Unreadable(quoted(&e.to_string())))
}

/// The deepest nesting of brackets outside of texts.
fn depth(text: &[u8]) -> usize {
    let (mut now, mut deepest) = (0_usize, 0_usize);
    let (mut in_text, mut escaped) = (false, false);
    for byte in text {
        if in_text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => {
                now += 1;
                deepest = deepest.max(now);
            }
            b']' | b'}' => now = now.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification (protocol.md).
    #[test]
    fn the_encoding_is_the_specifications() {
        let envelope = Envelope {
            payload_type: "http://example.com/HelloWorld".to_owned(),
            payload: Base64Bytes(b"hello world".to_vec()),
            signatures: Vec::new(),
        };
        assert_eq!(envelope.signed_bytes(), b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn depth_counts_brackets_outside_of_texts() {
        for (text, deep) in [
            ("", 0),
            ("[]", 1),
            (r#"{"a":[[1],[2]]}"#, 3),
            (r#""[[[""#, 0),
            (r#"["\"[[", 1]"#, 1),
            (r#"["\\", [1]]"#, 2),
            ("]]]]", 0),
        ] {
            assert_eq!(depth(text.as_bytes()), deep, "{text}");
        }
    }

    #[test]
    fn texts_of_any_size_and_depth_are_refused_before_they_are_read() {
        let deep = "[".repeat(100_000);
        assert_eq!(Envelope::read(deep.as_bytes()), Err(DocumentFault::TooDeep(DEPTH_MAX)));
        let large = " ".repeat(DOCUMENT_BYTES_MAX + 1);
        assert_eq!(Envelope::read(large.as_bytes()), Err(DocumentFault::TooLarge(DOCUMENT_BYTES_MAX)));
        for bad in ["", "{}", "[]", "null", "{\"payloadType\":1}", "\u{0}"] {
            assert!(matches!(Envelope::read(bad.as_bytes()), Err(DocumentFault::Unreadable(_))), "{bad}");
        }
        let signature = EnvelopeSignature { keyid: "a".to_owned(), sig: Base64Bytes(vec![1]) };
        let mut envelope = Envelope {
            payload_type: "x".to_owned(),
            payload: Base64Bytes(Vec::new()),
            signatures: vec![signature; SIGNATURES_MAX],
        };
        assert_eq!(Envelope::read(envelope.text().as_bytes()), Ok(envelope.clone()));
        envelope.signatures.push(envelope.signatures[0].clone());
        assert!(matches!(Envelope::read(envelope.text().as_bytes()), Err(DocumentFault::Field { .. })));
    }
}
