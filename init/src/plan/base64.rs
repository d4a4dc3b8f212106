//! Base64 as it arrives on a command line or in an SMBIOS string: standard alphabet, padding optional.

/// Decodes; `None` if a character or the length is wrong. White space is skipped.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count, mut padding) = (0u32, 0u32, 0u32);
    for c in text.bytes().filter(|b| !b.is_ascii_whitespace()) {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => {
                padding += 1;
                continue;
            }
            _ => return None,
        };
        if padding > 0 {
            return None;
        }
        bits = bits << 6 | u32::from(value);
        count += 1;
        if count == 4 {
            out.extend_from_slice(&bits.to_be_bytes()[1..]);
            (bits, count) = (0, 0);
        }
    }
    let rest = match count {
        0 => 0,
        2 => 1,
        3 => 2,
        _ => return None,
    };
    if padding > 0 && padding != (4 - count) % 4 {
        return None;
    }
    // The unused low bits of the last character are not data.
    let tail = (bits << (6 * (4 - count) % 24)).to_be_bytes();
    out.extend_from_slice(&tail[1..=rest]);
    Some(out)
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
            prop_assert_eq!(decode(&text), Some(bytes.clone()));
            prop_assert_eq!(decode(text.trim_end_matches('=')), Some(bytes));
        }

        #[test]
        fn any_text(text in ".{0,100}") {
            let _ = decode(&text);
        }
    }
}
