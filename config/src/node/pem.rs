//! PEM in base64: certificates and keys as documents hold them, decoded for the files that programs read.
//!
//! Invariant: a text that is taken holds whole blocks of one kind alone, at least one: files of certificates and the
//! effective configuration can be read by every process, and a key next to a certificate would be in both. The content of
//! blocks is not looked into.

use crate::base64;

/// Labels of a kind of block.
pub(super) struct Kind {
    /// One of them is needed.
    labels: &'static [&'static str],
    /// These may be in the same text.
    others: &'static [&'static str],
}

/// Certificates. Go's programs pass over other labels (`TRUSTED CERTIFICATE`).
pub(super) const CERTIFICATE: Kind = Kind { labels: &["CERTIFICATE"], others: &[] };
/// Private keys without a password that TLS has; openssl writes the name of the curve in front.
pub(super) const PRIVATE_KEY: Kind =
    Kind { labels: &["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"], others: &["EC PARAMETERS"] };

/// The PEM text, with a line break at its end; `None` if it is no base64, no text, or not of the kind.
pub(super) fn decode(data: &str, kind: &Kind) -> Option<String> {
    let mut text = String::from_utf8(base64::decode(data)?).ok()?;
    if !is_of_kind(&text, kind) {
        return None;
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Some(text)
}

/// Whether the text has blocks, and not only whole ones of the kind. Text without blocks is the reader's to refuse.
pub(super) fn has_other_blocks(data: &str, kind: &Kind) -> bool {
    let text = base64::decode(data).and_then(|bytes| String::from_utf8(bytes).ok());
    text.is_some_and(|text| text.contains("-----BEGIN") && !is_of_kind(&text, kind))
}

fn is_of_kind(text: &str, kind: &Kind) -> bool {
    let (mut open, mut found) = (None, false);
    for line in text.lines().map(str::trim_end) {
        if let Some(label) = label(line, "-----BEGIN ") {
            let known = kind.labels.contains(&label) || kind.others.contains(&label);
            if !known || open.replace(label).is_some() {
                return false;
            }
        } else if let Some(label) = label(line, "-----END ") {
            if open.take() != Some(label) {
                return false;
            }
            found |= kind.labels.contains(&label);
        } else if line.contains("-----BEGIN") || is_encrypted(line) {
            return false;
        }
    }
    found && open.is_none()
}

fn label<'a>(line: &'a str, edge: &str) -> Option<&'a str> {
    line.strip_prefix(edge)?.strip_suffix("-----")
}

/// Header of a block with a password (RFC 1421).
fn is_encrypted(line: &str) -> bool {
    line.starts_with("Proc-Type:") && line.contains("ENCRYPTED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks() {
        // -----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----
        let certificate = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQ==";
        assert_eq!(
            decode(certificate, &CERTIFICATE).as_deref(),
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        );
        assert_eq!(decode(certificate, &PRIVATE_KEY), None);
        // -----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n
        let key = "LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCkFBQUEKLS0tLS1FTkQgRUMgUFJJVkFURSBLRVktLS0tLQo=";
        assert!(decode(key, &PRIVATE_KEY).is_some_and(|text| text.ends_with("KEY-----\n")));
        assert_eq!(decode(key, &CERTIFICATE), None);
        // Not base64, not text, the beginning of a block, another text.
        for bad in ["???", "/w==", "LS0tLS1CRUdJTi4uLg==", "YWJj", ""] {
            assert_eq!(decode(bad, &CERTIFICATE), None, "{bad}");
        }
    }

    fn block(label: &str, content: &str) -> String {
        format!("-----BEGIN {label}-----\n{content}\n-----END {label}-----\n")
    }

    #[test]
    fn one_kind_alone() {
        let certificate = block("CERTIFICATE", "AAAA");
        for (text, taken) in [
            (certificate.repeat(2), true),
            (format!("Certificate:\n    Data:\n{certificate}"), true),
            (certificate.replace('\n', "\r\n"), true),
            (format!("{certificate}{}", block("PRIVATE KEY", "AAAA")), false),
            (format!("{}{certificate}", block("EC PRIVATE KEY", "AAAA")), false),
            (format!("{certificate}  {}", block("PRIVATE KEY", "AAAA")), false),
            (format!("{certificate}-----BEGIN RSA PRIVATE KEY-----\nAAAA\n"), false),
            (certificate.replace("-----END", "-----BEGIN PRIVATE KEY-----\n-----END"), false),
            (block("TRUSTED CERTIFICATE", "AAAA"), false),
            (certificate.replace("-----END CERTIFICATE-----", ""), false),
            (certificate.replace("-----BEGIN CERTIFICATE-----", ""), false),
            (String::new(), false),
        ] {
            assert_eq!(is_of_kind(&text, &CERTIFICATE), taken, "{text}");
        }
    }

    #[test]
    fn keys_without_a_password() {
        for (text, taken) in [
            (block("PRIVATE KEY", "AAAA"), true),
            (block("RSA PRIVATE KEY", "AAAA"), true),
            (block("EC PARAMETERS", "AAAA") + &block("EC PRIVATE KEY", "AAAA"), true),
            (block("EC PARAMETERS", "AAAA"), false),
            (block("ENCRYPTED PRIVATE KEY", "AAAA"), false),
            (block("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA"), false),
            (block("OPENSSH PRIVATE KEY", "AAAA"), false),
            (block("PRIVATE KEY", "AAAA") + &block("CERTIFICATE", "AAAA"), false),
        ] {
            assert_eq!(is_of_kind(&text, &PRIVATE_KEY), taken, "{text}");
        }
    }
}
