//! Ranges of addresses, as host-local's configuration describes them. Pure.
//!
//! In: subnet, first, last, gateway as written. Out: a range whose four values agree, or why they do not. The defaults
//! are the reference plugin's: the gateway is the first address, and IPv4's broadcast address is not given away.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;

/// A range as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RangeConfig {
    /// `ADDRESS/PREFIX`.
    pub subnet: String,
    /// First address, itself included.
    pub range_start: Option<String>,
    /// Last address, itself included.
    pub range_end: Option<String>,
    /// Never given away.
    pub gateway: Option<String>,
}

/// A range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address of the subnet.
    pub network: IpAddr,
    /// Bits of the subnet.
    pub prefix: u8,
    /// First address to give away.
    pub first: IpAddr,
    /// Last address to give away.
    pub last: IpAddr,
    /// Never given away.
    pub gateway: IpAddr,
}

impl Range {
    /// The range that is described.
    ///
    /// # Errors
    /// A text that says what is wrong with it.
    pub fn new(written: &RangeConfig) -> Result<Range, String> {
        let (network, prefix) = subnet(&written.subnet)?;
        let bits = width(network);
        if prefix + 2 > bits {
            return Err(format!("subnet {} is too small to give addresses from", written.subnet));
        }
        let base = number(network);
        let hosts = hosts(bits - prefix);
        if base & hosts != 0 {
            let start = address(base & !hosts, network);
            return Err(format!("subnet {} begins in the middle of {start}/{prefix}", written.subnet));
        }
        let inside = |name: &str, text: &Option<String>, default: u128| match text.as_deref() {
            None | Some("") => Ok(default),
            Some(text) => match parse(text) {
                Some(ip) if same_family(ip, network) && number(ip) & !hosts == base => Ok(number(ip)),
                _ => Err(format!("{name} {text:?} is no address of {}", written.subnet)),
            },
        };
        let broadcast = u128::from(network.is_ipv4());
        let first = inside("rangeStart", &written.range_start, base + 1)?;
        let last = inside("rangeEnd", &written.range_end, (base | hosts) - broadcast)?;
        if first > last {
            return Err(format!("rangeStart is behind rangeEnd in {}", written.subnet));
        }
        let gateway = match written.gateway.as_deref() {
            None | Some("") => address(base + 1, network),
            Some(text) => parse(text).ok_or_else(|| format!("gateway {text:?} is no address"))?,
        };
        Ok(Range { network, prefix, first: address(first, network), last: address(last, network), gateway })
    }

    /// Whether the address may be given away from it, the gateway included.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        same_family(ip, self.network) && (self.first..=self.last).contains(&ip)
    }

    /// Whether an address is in both.
    #[must_use]
    pub fn overlaps(&self, other: &Range) -> bool {
        same_family(self.network, other.network) && self.first <= other.last && other.first <= self.last
    }

    /// The address behind this one, and the first behind the last.
    #[must_use]
    pub fn next(&self, ip: IpAddr) -> Option<IpAddr> {
        (ip < self.last).then(|| address(number(ip) + 1, self.network))
    }
}

/// The address of `ADDRESS/PREFIX`, and the prefix, if it fits the family.
///
/// # Errors
/// A text that says what is wrong with it.
pub fn subnet(text: &str) -> Result<(IpAddr, u8), String> {
    let wrong = || format!("{text:?} is no ADDRESS/PREFIX");
    let (ip, prefix) = text.split_once('/').ok_or_else(wrong)?;
    let ip = parse(ip).ok_or_else(wrong)?;
    let prefix = prefix.parse().ok().filter(|p| *p <= width(ip)).ok_or_else(wrong)?;
    Ok((ip, prefix))
}

/// An address; an IPv4 address in IPv6's clothes is an IPv4 address.
#[must_use]
pub fn parse(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// The first address behind the network's own: the gateway where none is named.
#[must_use]
pub fn first_host(ip: IpAddr, prefix: u8) -> IpAddr {
    let hosts = hosts(width(ip).saturating_sub(prefix));
    address((number(ip) & !hosts).saturating_add(1), ip)
}

fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// So many ones at the end.
fn hosts(bits: u8) -> u128 {
    128_u32.checked_sub(bits.into()).and_then(|zeros| u128::MAX.checked_shr(zeros)).unwrap_or(0)
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// The number as an address of the other's family.
fn address(number: u128, like: IpAddr) -> IpAddr {
    match (like, u32::try_from(number)) {
        (IpAddr::V4(_), Ok(number)) => Ipv4Addr::from(number).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(subnet: &str, start: &str, end: &str, gateway: &str) -> RangeConfig {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        RangeConfig {
            subnet: subnet.into(),
            range_start: some(start),
            range_end: some(end),
            gateway: some(gateway),
        }
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        for (subnet, start, end, gateway, want) in [
            ("10.88.0.0/16", "", "", "", ["10.88.0.1", "10.88.255.254", "10.88.0.1"]),
            ("10.1.2.0/30", "", "", "", ["10.1.2.1", "10.1.2.2", "10.1.2.1"]),
            ("10.1.2.0/24", "10.1.2.9", "10.1.2.20", "10.1.2.254", ["10.1.2.9", "10.1.2.20", "10.1.2.254"]),
            ("fd00:1::/64", "", "", "", ["fd00:1::1", "fd00:1::ffff:ffff:ffff:ffff", "fd00:1::1"]),
            ("::ffff:10.1.2.0/24", "", "", "", ["10.1.2.1", "10.1.2.254", "10.1.2.1"]),
            ("0.0.0.0/0", "", "", "", ["0.0.0.1", "255.255.255.254", "0.0.0.1"]),
        ] {
            let range = Range::new(&written(subnet, start, end, gateway)).expect(subnet);
            let got = [range.first, range.last, range.gateway].map(|ip| ip.to_string());
            assert_eq!(got, want, "{subnet}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (subnet, start, end, gateway) in [
            ("10.1.2.3/24", "", "", ""),
            ("10.1.2.0/31", "", "", ""),
            ("fd00::/127", "", "", ""),
            ("10.1.2.0/24", "10.1.3.1", "", ""),
            ("10.1.2.0/24", "", "fd00::1", ""),
            ("10.1.2.0/24", "10.1.2.9", "10.1.2.8", ""),
            ("10.1.2.0/24", "", "", "x"),
            ("10.1.2.0", "", "", ""),
            ("10.1.2.0/33", "", "", ""),
            ("", "", "", ""),
        ] {
            assert!(Range::new(&written(subnet, start, end, gateway)).is_err(), "{subnet}");
        }
    }

    #[test]
    fn gateways_where_none_is_named() {
        for (text, want) in
            [("10.1.2.77/24", "10.1.2.1"), ("fd00::7/64", "fd00::1"), ("10.0.0.9/0", "0.0.0.1")]
        {
            let (ip, prefix) = subnet(text).expect(text);
            assert_eq!(first_host(ip, prefix).to_string(), want);
        }
    }

    proptest! {
        #[test]
        fn the_values_of_a_range_agree(ip in any::<u32>(), prefix in 0_u8..=40, start in "[0-9./:a-f]{0,12}") {
            let whole = written(&format!("{}/{prefix}", Ipv4Addr::from(ip)), "", "", "");
            let _ = Range::new(&written(&start, &start, &start, &start));
            if let Ok(range) = Range::new(&whole) {
                prop_assert!(range.first <= range.last && range.contains(range.first) && range.contains(range.last));
                prop_assert!(range.overlaps(&range) && range.next(range.last).is_none());
                prop_assert_eq!(first_host(range.last, range.prefix), range.gateway);
            }
        }
    }
}
