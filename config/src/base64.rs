//! Base64 as it arrives on a command line, in an SMBIOS string or in a document: standard alphabet, padding optional.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The unused low bits of the last character are not data.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Decodes; `None` if a character or the length is wrong. White space is skipped.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_ascii_whitespace().collect();
    // All of the padding or none of it.
    if text.ends_with('=') && !text.len().is_multiple_of(4) {
        return None;
    }
    ENGINE.decode(text).ok()
}

/// Encodes, with padding.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    ENGINE.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_answers() {
        let cases = [
            ("", ""),
            ("Zg==", "f"),
            ("Zg", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9v YmFy\n", "foobar"),
        ];
        for (text, want) in cases {
            assert_eq!(decode(text).as_deref(), Some(want.as_bytes()), "{text}");
        }
        for bad in ["Z", "Zg=", "Zg===", "Zm9v=", "=", "Zg==Zg==", "Z!==", "Zm-v"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    fn encode(bytes: &[u8]) -> String {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut out = String::new();
        for chunk in bytes.chunks(3) {
            let mut word = [0; 4];
            word[1..=chunk.len()].copy_from_slice(chunk);
            let word = u32::from_be_bytes(word);
            for i in 0..=chunk.len() {
                out.push(char::from(alphabet[(word >> (18 - 6 * i)) as usize & 63]));
            }
            (chunk.len()..3).for_each(|_| out.push('='));
        }
        out
    }

    proptest! {
        #[test]
        fn round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = encode(&bytes);
            prop_assert_eq!(super::encode(&bytes), text.clone());
            prop_assert_eq!(decode(&text), Some(bytes.clone()));
            prop_assert_eq!(decode(text.trim_end_matches('=')), Some(bytes));
        }

        #[test]
        fn any_text(text in ".{0,100}") {
            let _ = decode(&text);
        }
    }
}
