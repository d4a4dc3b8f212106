//! User data: from the bytes of an answer to a NodeConfig that is accepted, or to the reason why it is refused.
//!
//! Taken are a NodeConfig document in YAML or JSON, in base64 where the platform encodes it, and compressed by gzip. Documents for
//! cloud-init are refused by name: a person would look for the fault at the wrong place otherwise. No reason holds a value of the
//! document.

use flate2::read::GzDecoder;
use orlop_config::base64;
use orlop_config::node::{Source, load};
use std::io::Read;

/// Largest answer, and largest document, bytes: as large as a document of any other source.
pub const BYTES_MAX: usize = 1 << 20;

/// Name of the source in provenance.
pub const SOURCE: &str = "metadata";

const GZIP: &[u8] = &[0x1f, 0x8b];
/// Longest reason, bytes: a large document may have a mistake in each line, and the reason stands in the report of this boot.
const REASON_BYTES_MAX: usize = 8 << 10;

/// Why user data do not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserDataRefusal {
    /// More than [`BYTES_MAX`].
    #[error("they are larger than 1 MiB")]
    TooLarge,
    /// The platform says base64.
    #[error("they are not base64, which this platform requires")]
    NotBase64,
    /// A gzip header and no gzip.
    #[error("they are compressed and the data are damaged")]
    BadGzip,
    /// Neither YAML nor JSON.
    #[error("they are not UTF-8 text")]
    NotText,
    /// `#cloud-config`.
    #[error("they are a #cloud-config document for cloud-init: a NodeConfig is wanted")]
    CloudConfig,
    /// A MIME archive.
    #[error("they are a MIME multipart archive for cloud-init: a NodeConfig alone is wanted")]
    Multipart,
    /// `#!`.
    #[error("they are a script: the node runs none, a NodeConfig is wanted")]
    Script,
    /// All that is wrong with the document.
    #[error("{0}")]
    Document(String),
}

/// The text in an answer; `None` if there are no user data.
///
/// # Errors
/// What is wrong with the bytes, or the name of the form that is not taken.
pub fn decode(bytes: &[u8], is_base64: bool) -> Result<Option<String>, UserDataRefusal> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let decoded = if is_base64 {
        let text = std::str::from_utf8(bytes).map_err(|_| UserDataRefusal::NotBase64)?;
        base64::decode(text).ok_or(UserDataRefusal::NotBase64)?
    } else {
        bytes.to_vec()
    };
    let plain = if decoded.starts_with(GZIP) { unpack(&decoded)? } else { decoded };
    let text = String::from_utf8(plain).map_err(|_| UserDataRefusal::NotText)?;
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if start.is_empty() {
        return Ok(None);
    }
    match form(start) {
        Some(refusal) => Err(refusal),
        None => Ok(Some(text)),
    }
}

/// The first byte after the limit is asked for as well: then there is one too many.
fn unpack(bytes: &[u8]) -> Result<Vec<u8>, UserDataRefusal> {
    let mut plain = Vec::new();
    let limit = BYTES_MAX as u64 + 1;
    GzDecoder::new(bytes).take(limit).read_to_end(&mut plain).map_err(|_| UserDataRefusal::BadGzip)?;
    if plain.len() > BYTES_MAX { Err(UserDataRefusal::TooLarge) } else { Ok(plain) }
}

/// The form for another system that a text has.
fn form(start: &str) -> Option<UserDataRefusal> {
    let first = start.lines().next().unwrap_or_default().trim_end();
    let lower = first.to_ascii_lowercase();
    if first.starts_with("#cloud-config") {
        Some(UserDataRefusal::CloudConfig)
    } else if first.starts_with("#!") {
        Some(UserDataRefusal::Script)
    } else if lower.starts_with("content-type: multipart/") || lower.starts_with("mime-version:") {
        Some(UserDataRefusal::Multipart)
    } else {
        None
    }
}

/// Checks a document as init will.
///
/// # Errors
/// [`UserDataRefusal::Document`] with everything that is wrong.
pub fn check(text: &str, origin: &str) -> Result<(), UserDataRefusal> {
    let source = Source { name: SOURCE.to_owned(), origin: origin.to_owned(), text: text.to_owned() };
    let effective = load(&[source], &[]);
    if effective.accepted.is_empty() {
        let problems: Vec<String> = effective.problems.iter().map(ToString::to_string).collect();
        return Err(UserDataRefusal::Document(shortened(problems.join("; "))));
    }
    Ok(())
}

/// The beginning of a reason that is too long.
fn shortened(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        reason.push_str(" … and more");
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::base64::Engine as _;
    use ::base64::engine::general_purpose::STANDARD;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use std::io::Write;

    const NODE: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\nnode: {name: a}\n";

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_document_arrives_plain_encoded_and_compressed() {
        let packed = gzip(NODE.as_bytes());
        for (bytes, is_base64) in [
            (NODE.as_bytes().to_vec(), false),
            (packed.clone(), false),
            (STANDARD.encode(NODE).into_bytes(), true),
            (STANDARD.encode(&packed).into_bytes(), true),
        ] {
            assert_eq!(decode(&bytes, is_base64), Ok(Some(NODE.to_owned())));
        }
        for nothing in ["", " \n"] {
            assert_eq!(decode(nothing.as_bytes(), false), Ok(None));
            assert_eq!(decode(nothing.as_bytes(), true), Ok(None));
        }
    }

    #[test]
    fn forms_of_other_systems_are_named() {
        for (text, refusal) in [
            ("#cloud-config\nusers: []\n", UserDataRefusal::CloudConfig),
            ("#!/bin/sh\n", UserDataRefusal::Script),
            ("Content-Type: multipart/mixed; boundary=\"x\"\n", UserDataRefusal::Multipart),
            ("MIME-Version: 1.0\n", UserDataRefusal::Multipart),
        ] {
            assert_eq!(decode(text.as_bytes(), false), Err(refusal.clone()), "{text}");
            assert_eq!(decode(&gzip(text.as_bytes()), false), Err(refusal), "{text}");
        }
        assert_eq!(decode(b"?", true), Err(UserDataRefusal::NotBase64));
        assert_eq!(decode(b"\xff\xfe", false), Err(UserDataRefusal::NotText));
        assert_eq!(decode(&[0x1f, 0x8b, 8, 0], false), Err(UserDataRefusal::BadGzip));
    }

    #[test]
    fn a_small_archive_does_not_become_a_large_document() {
        let bomb = gzip(&vec![b' '; BYTES_MAX + 1]);
        assert!(bomb.len() < BYTES_MAX / 100);
        assert_eq!(decode(&bomb, false), Err(UserDataRefusal::TooLarge));
        assert_eq!(decode(&gzip(&vec![b'a'; BYTES_MAX]), false), Ok(Some("a".repeat(BYTES_MAX))));
    }

    #[test]
    fn all_mistakes_are_said_without_a_secret() {
        assert_eq!(check(NODE, "metadata of aws"), Ok(()));
        let bad = format!("{NODE}join: {{server: 'http://a', token: not-a-token}}\n");
        let Err(UserDataRefusal::Document(why)) = check(&bad, "metadata of aws") else { panic!("refused") };
        assert!(why.contains("join.server") && why.contains("join.token"), "{why}");
        assert!(!why.contains("not-a-token"), "{why}");
        assert!(check("hello", "metadata of aws").is_err());
    }

    #[test]
    fn a_reason_is_bounded() {
        let many: String = (0..20_000).map(|i| format!("wröng{i}: 1\n")).collect();
        let Err(UserDataRefusal::Document(why)) = check(&format!("{NODE}{many}"), "metadata of aws") else {
            panic!("refused")
        };
        assert!(why.ends_with("and more") && why.len() < REASON_BYTES_MAX + 20, "{} bytes", why.len());
    }

    proptest! {
        #[test]
        fn any_answer_is_judged(bytes in proptest::collection::vec(any::<u8>(), 0..200), is_base64: bool) {
            if let Ok(Some(text)) = decode(&bytes, is_base64) {
                let _ = check(&text, "metadata");
            }
        }
    }
}
