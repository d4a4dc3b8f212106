//! Small formats both documents use: names, labels, addresses, paths, CPU lists.
//!
//! Pure predicates over text. Upstream term: `apimachinery/pkg/util/validation`.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// Longest DNS name.
const DNS_NAME_MAX: usize = 253;
/// Longest DNS label, label value and name part of a qualified name.
const LABEL_MAX: usize = 63;
/// More CPUs than any machine has; bounds the work on `0-4000000000`.
const CPU_MAX: u32 = 65_535;

/// A DNS-1123 label: lower-case letters, digits and `-`, at most 63.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= LABEL_MAX
        && text.bytes().all(|b| inner(b) || b == b'-')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().last().is_some_and(inner)
}

/// A DNS-1123 subdomain: labels joined by dots, at most 253.
#[must_use]
pub fn is_dns_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let part = |p: &str| {
        p.bytes().all(|b| inner(b) || b == b'-')
            && p.bytes().next().is_some_and(inner)
            && p.bytes().last().is_some_and(inner)
    };
    text.len() <= DNS_NAME_MAX && text.split('.').all(part)
}

/// Letters, digits, `-`, `_`, `.`, with a letter or digit at both ends, at most 63.
fn is_name_part(text: &str) -> bool {
    text.len() <= LABEL_MAX
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && text.bytes().last().is_some_and(|b| b.is_ascii_alphanumeric())
}

/// A label or taint key: a name, optionally after a DNS name and `/`.
#[must_use]
pub fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_name(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// A label or taint value; may be empty.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

/// An IPv4 or IPv6 address.
#[must_use]
pub fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// An address with a prefix length.
#[must_use]
pub fn is_cidr(text: &str) -> bool {
    let Some((ip, bits)) = text.split_once('/') else { return false };
    let Ok(ip) = ip.parse::<IpAddr>() else { return false };
    let max = if ip.is_ipv4() { 32 } else { 128 };
    bits.len() <= 3 && bits.bytes().all(|b| b.is_ascii_digit()) && bits.parse::<u8>().is_ok_and(|b| b <= max)
}

/// An absolute path without empty, `.` or `..` components and without a trailing slash.
#[must_use]
pub fn is_clean_absolute(path: &str) -> bool {
    path == "/"
        || path.strip_prefix('/').is_some_and(|p| p.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

/// A kernel setting below `/proc/sys`, with dots or slashes between its parts.
#[must_use]
pub fn is_sysctl_name(name: &str) -> bool {
    let part = |p: &str| {
        !p.is_empty() && p != ".." && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-*:@".contains(&b))
    };
    name.contains(['.', '/']) && name.len() <= DNS_NAME_MAX && name.split(['.', '/']).all(part)
}

/// CPU numbers of a list such as `0-3,8`; `None` if it is malformed.
#[must_use]
pub fn parse_cpu_list(text: &str) -> Option<BTreeSet<u32>> {
    let number = |s: &str| s.parse::<u32>().ok().filter(|n| *n <= CPU_MAX && !s.starts_with('+'));
    let mut cpus = BTreeSet::new();
    if text.is_empty() {
        return Some(cpus);
    }
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return None;
                }
                cpus.extend(first..=last);
            }
            None => {
                cpus.insert(number(part)?);
            }
        }
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(f: fn(&str) -> bool, good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(f(text), "{text:?} must pass");
        }
        for text in bad {
            assert!(!f(text), "{text:?} must not pass");
        }
    }

    #[test]
    fn names() {
        let long = "a".repeat(64);
        table(is_dns_label, &["a", "node-1", "0"], &["", "-a", "a-", "A", "a.b", "a_b", &long]);
        table(is_dns_name, &["a", "a.b-c.d", &long], &["", ".", "a.", "a..b", "A.b", &"a.".repeat(130)]);
        table(
            is_qualified_name,
            &["a", "A_b.c", "example.com/role", "x/y"],
            &["", "/a", "a/", "a/b/c", "Example.com/a", "-a", "é", &long],
        );
        table(is_label_value, &["", "a", "A_b.c"], &["-a", "a b", "a/b", &long]);
    }

    #[test]
    fn addresses_and_paths() {
        table(is_ip, &["10.0.0.1", "::1", "fd00::5"], &["", "10.0.0", "10.0.0.1/8", "host"]);
        table(
            is_cidr,
            &["10.0.0.1/8", "::/0", "fd00::5/128"],
            &["10.0.0.1", "10.0.0.1/33", "::/129", "10.0.0.1/+8", "10.0.0.1/", "/8"],
        );
        table(is_clean_absolute, &["/", "/var/log"], &["", "var", "/var/", "/var//log", "/./a", "/a/.."]);
        table(
            is_sysctl_name,
            &["net.ipv4.ip_forward", "net/ipv4/conf/eth0.1/forwarding", "kernel.pid_max"],
            &["", "kernel", ".a", "a..b", "../a", "a b.c"],
        );
    }

    #[test]
    fn cpu_lists() {
        let set = |v: &[u32]| Some(v.iter().copied().collect::<BTreeSet<u32>>());
        assert_eq!(parse_cpu_list(""), set(&[]));
        assert_eq!(parse_cpu_list("0-2,5"), set(&[0, 1, 2, 5]));
        assert_eq!(parse_cpu_list("3,3"), set(&[3]));
        for bad in [",", "1,", "2-1", "a", "1-", "-1", "+1", "0-4294967295", "1 "] {
            assert_eq!(parse_cpu_list(bad), None, "{bad}");
        }
    }
}
