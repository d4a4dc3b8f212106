//! Formats of names: RFC 1123 labels and subdomains, label keys and values, ports, variables.
//!
//! In: text. Out: `None` for a valid text, otherwise a description of the format. Upstream:
//! apimachinery/pkg/util/validation.

use std::net::IpAddr;

fn alphanumeric(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// Starts and ends with `edge`, consists of `inner`, at most `max` long.
fn formed(text: &str, max: usize, edge: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let edges = bytes.first().zip(bytes.last()).is_some_and(|(first, last)| edge(*first) && edge(*last));
    edges && bytes.len() <= max && bytes.iter().all(|b| inner(*b))
}

/// A DNS label, at most 63 characters.
pub(super) fn dns_label(text: &str) -> Option<&'static str> {
    let ok = formed(text, 63, alphanumeric, |b| alphanumeric(b) || b == b'-');
    (!ok).then_some(
        "must be a lowercase RFC 1123 label: letters, digits and '-', 1 to 63 characters, no '-' at its ends",
    )
}

/// Dot-separated DNS labels, at most 253 characters.
pub(super) fn dns_subdomain(text: &str) -> Option<&'static str> {
    let part = |part: &str| formed(part, 253, alphanumeric, |b| alphanumeric(b) || b == b'-');
    let ok = text.len() <= 253 && text.split('.').all(part);
    (!ok).then_some("must be a lowercase RFC 1123 subdomain: labels of letters, digits and '-', joined by '.', at most 253 characters")
}

/// Key of a label or annotation: `[prefix/]name`.
pub(super) fn qualified_name(text: &str) -> Option<&'static str> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let any = |b: u8| b.is_ascii_alphanumeric();
    let ok = formed(name, 63, any, |b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && prefix.is_none_or(|p| dns_subdomain(p).is_none());
    (!ok).then_some("must be a name of letters, digits, '-', '_' and '.', at most 63 characters, with an optional DNS subdomain and '/' before it")
}

/// Value of a label.
pub(super) fn label_value(text: &str) -> Option<&'static str> {
    let any = |b: u8| b.is_ascii_alphanumeric();
    let ok = text.is_empty() || formed(text, 63, any, |b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    (!ok).then_some("must be empty or letters, digits, '-', '_' and '.', at most 63 characters, with a letter or digit at its ends")
}

/// Name of a container port.
pub(super) fn port_name(text: &str) -> Option<&'static str> {
    let ok = formed(text, 15, alphanumeric, |b| alphanumeric(b) || b == b'-')
        && !text.contains("--")
        && text.bytes().any(|b| b.is_ascii_lowercase());
    (!ok).then_some(
        "must be lowercase letters, digits and single '-', at most 15 characters, with at least one letter",
    )
}

/// Name of an environment variable (relaxed form: printable ASCII without '=').
pub(super) fn env_name(text: &str) -> Option<&'static str> {
    let ok = !text.is_empty() && text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=');
    (!ok).then_some("must be printable ASCII characters other than '='")
}

/// An address.
pub(super) fn ip(text: &str) -> Option<&'static str> {
    text.parse::<IpAddr>().is_err().then_some("must be a valid IP address (e.g. 10.9.8.7 or 2001:db8::ffff)")
}

/// A UID becomes a directory name.
pub(super) fn uid(text: &str) -> Option<&'static str> {
    let any = |b: u8| b.is_ascii_alphanumeric();
    let ok =
        formed(text, 128, any, |b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) && !text.contains("..");
    (!ok).then_some("must be letters, digits, '-', '_' and '.', at most 128 characters: it names a directory")
}

/// A path without `..` elements.
pub(super) fn no_backsteps(path: &str) -> Option<&'static str> {
    path.split('/').any(|part| part == "..").then_some("must not contain '..'")
}

/// A relative path without `..` elements.
pub(super) fn local_path(path: &str) -> Option<&'static str> {
    if path.starts_with('/') { Some("must be a relative path") } else { no_backsteps(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let long = "a".repeat(64);
        type Check = fn(&str) -> Option<&'static str>;
        let table: [(&str, Check, &[&str], &[&str]); 8] = [
            ("label", dns_label, &["a", "a-1", "1"], &["", "-a", "a-", "A", "a.b", "a_b", &long, "é"]),
            ("subdomain", dns_subdomain, &["a", "a.b-c.1"], &["", ".", "a.", ".a", "a..b", "A", "a/b"]),
            (
                "qualified",
                qualified_name,
                &["a", "A_b.c", "x.io/A"],
                &["", "/a", "a/", "X.io/a", "a/b/c", "-a", &long],
            ),
            ("value", label_value, &["", "a", "A_b.c-1"], &["-", "a-", "a b", &long]),
            ("port", port_name, &["http", "a-1"], &["", "1", "a--b", "-a", "Http", "abcdefghijklmnop"]),
            ("env", env_name, &["A", "a.b-c d", "1"], &["", "A=B", "é", "a\n"]),
            ("uid", uid, &["0b4f-1", "a.b"], &["", ".", "..", "a..b", "../x", "a/b", ".a"]),
            ("local", local_path, &["", "a/b", "..a"], &["/a", "..", "a/../b"]),
        ];
        for (name, check, good, bad) in table {
            for text in good {
                assert_eq!(check(text), None, "{name} {text:?}");
            }
            for text in bad {
                assert!(check(text).is_some(), "{name} {text:?}");
            }
        }
        assert!(
            ip("::1").is_none() && ip("10.0.0.1").is_none() && ip("10.0.0").is_some() && ip("").is_some()
        );
    }
}
