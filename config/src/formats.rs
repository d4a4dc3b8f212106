//! Small formats both documents use: names, labels, addresses, paths, CPU lists.
//!
//! Pure predicates over text. Upstream term: `apimachinery/pkg/util/validation`.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// Longest DNS name.
const DNS_NAME_MAX: usize = 253;
/// Longest name of a network interface (`IFNAMSIZ` of if.h without its end), bytes.
const INTERFACE_NAME_MAX: usize = 15;
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

/// A DNS-1123 subdomain: labels joined by dots, at most 253. No label is too long by itself, as upstream
/// (`IsDNS1123Subdomain`).
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

/// A unicast address that is valid on one link alone.
#[must_use]
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// An address that a Node object may have (upstream: `validateNodeIP`).
#[must_use]
pub fn is_node_address(ip: IpAddr) -> bool {
    !(ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || is_link_local(ip))
}

/// An address with a prefix length.
#[must_use]
pub fn is_cidr(text: &str) -> bool {
    cidr(text).is_some()
}

/// A network: an address with a prefix length and no bit behind the prefix.
#[must_use]
pub fn is_network(text: &str) -> bool {
    cidr(text).is_some_and(|(ip, length)| address_bits(ip) & behind(length) == 0)
}

/// Whether an address is in the network of another one that has its prefix length; false if one of them is malformed.
#[must_use]
pub fn cidr_contains(network: &str, address: &str) -> bool {
    let (Some((network, length)), Ok(address)) = (cidr(network), address.parse::<IpAddr>()) else {
        return false;
    };
    let differing = address_bits(network) ^ address_bits(address);
    network.is_ipv4() == address.is_ipv4() && differing & !behind(length) == 0
}

fn cidr(text: &str) -> Option<(IpAddr, u32)> {
    let (ip, length) = text.split_once('/')?;
    let ip = ip.parse::<IpAddr>().ok()?;
    let max = if ip.is_ipv4() { 32 } else { 128 };
    let digits = length.len() <= 3 && length.bytes().all(|b| b.is_ascii_digit());
    let length = length.parse::<u32>().ok().filter(|length| digits && *length <= max)?;
    Some((ip, length))
}

/// An address of either family, its first bit in front.
fn address_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)) << 96,
        IpAddr::V6(ip) => u128::from(ip),
    }
}

/// The bits behind a prefix of so many.
fn behind(length: u32) -> u128 {
    u128::MAX.checked_shr(length).unwrap_or(0)
}

/// A name that the kernel and networkd take for a network interface that the node makes (`dev_valid_name`, `ifname_valid`),
/// without characters that are patterns.
#[must_use]
pub fn is_interface_name(text: &str) -> bool {
    (1..=INTERFACE_NAME_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        && !matches!(text, "all" | "default")
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
        let is_node = |text: &str| text.parse::<IpAddr>().is_ok_and(is_node_address);
        for text in ["192.0.2.1", "10.0.0.1", "2001:db8::1", "fd00::1"] {
            assert!(is_node(text), "{text}");
        }
        for text in ["127.0.1.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "169.254.0.1", "fe80::1"] {
            assert!(!is_node(text), "{text}");
        }
        table(
            is_cidr,
            &["10.0.0.1/8", "::/0", "fd00::5/128"],
            &["10.0.0.1", "10.0.0.1/33", "::/129", "10.0.0.1/+8", "10.0.0.1/", "/8"],
        );
        table(
            is_network,
            &["10.0.0.0/8", "0.0.0.0/0", "::/0", "192.0.2.1/32", "fd00::/64", "fd00::1/128"],
            &["10.0.0.1/8", "192.0.2.1/31", "fd00::1/64", "10.0.0.0", "10.0.0.0/33"],
        );
        for (network, address, inside) in [
            ("192.0.2.10/24", "192.0.2.1", true),
            ("192.0.2.10/24", "192.0.3.1", false),
            ("192.0.2.10/32", "192.0.2.1", false),
            ("192.0.2.10/32", "192.0.2.10", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::a/64", "fd00::1", true),
            ("fd00::a/64", "fd00:0:0:1::1", false),
            ("::/0", "fd00::1", true),
            ("::/0", "10.0.0.1", false),
            ("192.0.2.10", "192.0.2.10", false),
            ("192.0.2.10/24", "here", false),
        ] {
            assert_eq!(cidr_contains(network, address), inside, "{network} {address}");
        }
        table(
            is_interface_name,
            &["bond0", "bond0.100", "a", "vlan-storage_1", "fifteen-letters"],
            &[
                "",
                ".",
                "..",
                "7",
                "1.5",
                "all",
                "default",
                "a b",
                "a/b",
                "a:b",
                "a*",
                "é",
                "sixteen-letters.",
            ],
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
