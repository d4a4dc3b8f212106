//! Where the API server is reached, and the ranges of the addresses of pods and Services. Pure.
//!
//! Invariant: ranges that pass are those at which kube-apiserver and kube-controller-manager do not end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use orlop_config::formats::{cidr_contains, is_dns_name, is_network};

/// Most bits of a range of Services (kube-apiserver: `maxCIDRBits`).
const SERVICE_BITS_MAX: u32 = 20;
/// Fewest bits of a range of Services: the tenth address is DNS' own.
const SERVICE_BITS_MIN: u32 = 4;
/// Most ranges of nodes that one range of pods is divided into, bits (kube-controller-manager: `clusterSubnetMaxDiff`).
const NODE_RANGES_BITS_MAX: u32 = 16;

/// Where clients and workers reach the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiEndpoint {
    /// A DNS name or an address, without brackets.
    pub(super) host: String,
    port: u16,
}

impl ApiEndpoint {
    /// Host and port.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(super) fn parse(text: &str) -> Result<ApiEndpoint, String> {
        let wrong = || {
            format!(
                "--endpoint {text:?} must be HOST:PORT, for example 192.0.2.10:6443 or [2001:db8::1]:6443"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let ipv6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let ip = match ipv6 {
            Some(host) => Some(IpAddr::V6(host.parse().map_err(|_| wrong())?)),
            None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        };
        let is_host = match ip {
            Some(ip) => is_reached(ip),
            None => is_host_name(host),
        };
        if !is_host {
            return Err(wrong());
        }
        // An address in its one spelling.
        Ok(ApiEndpoint { host: ip.map_or_else(|| host.to_owned(), |ip| ip.to_string()), port })
    }

    /// No other machine reaches it, unless a port leads there.
    pub(super) fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}", host_port(&self.host, self.port))
    }
}

/// A DNS name that nobody takes for an address: `192.0.2.300` is a mistake, and programs read it in different ways.
pub(super) fn is_host_name(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    is_dns_name(text) && !last.bytes().all(|b| b.is_ascii_digit())
}

/// A client can connect to it. The loopback is for clients on the same machine, and for ports that lead elsewhere.
fn is_reached(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast()
}

/// Host and port of a URL.
pub(super) fn host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The rules of kube-apiserver and of kube-controller-manager, which would end at their start.
pub(super) fn check(pods: &str, services: &str) -> Result<(), String> {
    for (flag, text) in [("--pod-cidr", pods), ("--service-cidr", services)] {
        if !is_network(text) {
            return Err(format!("{flag} {text:?} must be one network, for example 10.96.0.0/16"));
        }
    }
    let (pod_base, pod_length) = parts(pods);
    let (service_base, service_length) = parts(services);
    if pod_base.contains(':') != service_base.contains(':') {
        return Err("--pod-cidr and --service-cidr must be of one family".to_owned());
    }
    let (all, of_node) = if pod_base.contains(':') { (128, 64) } else { (32, 24) };
    let service_bits = all - service_length.min(all);
    if !(SERVICE_BITS_MIN..=SERVICE_BITS_MAX).contains(&service_bits) {
        let (from, to) = (all - SERVICE_BITS_MAX, all - SERVICE_BITS_MIN);
        return Err(format!("--service-cidr {services:?} must have a prefix length of {from} to {to}"));
    }
    if !(of_node - NODE_RANGES_BITS_MAX..=of_node).contains(&pod_length) {
        let from = of_node - NODE_RANGES_BITS_MAX;
        return Err(format!(
            "--pod-cidr {pods:?} must have a prefix length of {from} to {of_node}: each node gets a /{of_node} of it"
        ));
    }
    if cidr_contains(pods, service_base) || cidr_contains(services, pod_base) {
        return Err("--pod-cidr and --service-cidr must not overlap".to_owned());
    }
    Ok(())
}

/// Address and prefix length of a network.
fn parts(network: &str) -> (&str, u32) {
    let (base, length) = network.split_once('/').unwrap_or((network, ""));
    (base, length.parse().unwrap_or(0))
}

/// The address at this number of a network.
pub(super) fn nth(network: &str, number: u32) -> Option<IpAddr> {
    Some(match parts(network).0.parse::<IpAddr>().ok()? {
        IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip).checked_add(number)?).into(),
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip).checked_add(u128::from(number))?).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (text, url, host) in [
            ("192.0.2.1:443", "https://192.0.2.1:443", "192.0.2.1"),
            ("[2001:db8::1]:6443", "https://[2001:db8::1]:6443", "2001:db8::1"),
            ("[2001:DB8:0::1]:6443", "https://[2001:db8::1]:6443", "2001:db8::1"),
            ("a.b-c.example:1", "https://a.b-c.example:1", "a.b-c.example"),
        ] {
            let endpoint = ApiEndpoint::parse(text).unwrap();
            assert_eq!((endpoint.url().as_str(), endpoint.host.as_str()), (url, host));
            assert!(!endpoint.is_loopback(), "{text}");
        }
        for text in ["127.0.0.1:1", "[::1]:1", "localhost:1"] {
            assert!(ApiEndpoint::parse(text).unwrap().is_loopback(), "{text}");
        }
        for text in [
            "",
            "a",
            "a:",
            "a:0",
            "a:70000",
            ":6443",
            "2001:db8::1:6443",
            "[a]:1",
            "https://a:1",
            "A:1",
            "192.0.2.300:6443",
            "192.0.2:6443",
            "0.0.0.0:6443",
            "[::]:6443",
            "224.0.0.1:6443",
        ] {
            assert!(ApiEndpoint::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_are_those_that_the_programs_take() {
        for (pods, services) in [
            ("10.244.0.0/16", "10.96.0.0/12"),
            ("10.244.1.0/24", "10.96.0.0/28"),
            ("fd00:1::/48", "fd00:2::/108"),
        ] {
            assert_eq!(check(pods, services), Ok(()), "{pods} {services}");
        }
        for (pods, services, words) in [
            ("10.244.0.1/16", "10.96.0.0/16", "--pod-cidr"),
            ("10.244.0.0/16,fd00::/48", "10.96.0.0/16", "--pod-cidr"),
            ("10.244.0.0/25", "10.96.0.0/16", "prefix length of 8 to 24"),
            ("fd00:1::/40", "fd00:2::/112", "prefix length of 48 to 64"),
            ("10.244.0.0/16", "10.96.0.0/8", "--service-cidr"),
            ("10.244.0.0/16", "10.0.0.0/11", "prefix length of 12 to 28"),
            ("10.244.0.0/16", "10.96.0.0/29", "prefix length of 12 to 28"),
            ("10.0.0.0/8", "10.96.0.0/16", "overlap"),
            ("10.96.1.0/24", "10.96.0.0/16", "overlap"),
            ("10.244.0.0/16", "fd00::/112", "one family"),
        ] {
            let error = check(pods, services).unwrap_err();
            assert!(error.contains(words), "{pods} {services}: {error}");
        }
        assert_eq!(nth("fd00::/112", 10), Some("fd00::a".parse().unwrap()));
        assert_eq!(nth("255.255.255.255/32", 1), None);
    }
}
