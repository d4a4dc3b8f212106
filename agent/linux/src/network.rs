//! The host's network as the node's address depends on it: addresses of interfaces, default routes, what the
//! node's name resolves to.
//!
//! In: the interface list, /proc/net, the resolver. Out: [`HostNetwork`] for core to choose from
//! (`node_status::addresses`). Parsers are pure. A family that the kernel does not have has no routes.

use std::net::{IpAddr, ToSocketAddrs};

use agent_types::resources::machine::{HostNetwork, InterfaceAddress};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use orlop_config::formats::is_node_address;

/// The network as it is now. Without a name nothing is resolved. May block for as long as the resolver does.
#[must_use]
pub fn host_network(resolve: Option<&str>) -> HostNetwork {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let resolved = resolve.and_then(|name| (name, 0).to_socket_addrs().ok());
    HostNetwork {
        addresses: interface_addresses(),
        default_v4: default_interfaces_v4(&read("/proc/net/route")),
        default_v6: default_interfaces_v6(&read("/proc/net/ipv6_route")),
        resolved: resolved.into_iter().flatten().map(|a| a.ip()).collect(),
    }
}

/// The node's own addresses, the primary first: those of the default route's interface, of another one if
/// there is no default route; at most one of each family. Empty before the network is configured.
#[must_use]
pub fn node_addresses() -> Vec<IpAddr> {
    let host = host_network(None);
    let of = |is_family: fn(&IpAddr) -> bool, interface: Option<&String>| {
        let usable = || host.addresses.iter().filter(move |a| is_family(&a.ip) && is_node_address(a.ip));
        let preferred = usable().find(|a| Some(&a.interface) == interface);
        preferred.or_else(|| usable().next()).map(|a| a.ip)
    };
    let (v4, v6) = (host.default_v4.first(), host.default_v6.first());
    [of(IpAddr::is_ipv4, v4), of(IpAddr::is_ipv6, v6.or(v4))].into_iter().flatten().collect()
}

/// Addresses of interfaces that are up, loopback included.
fn interface_addresses() -> Vec<InterfaceAddress> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    all.filter(|a| a.flags.contains(InterfaceFlags::IFF_UP))
        .filter_map(|a| {
            let address = a.address?;
            let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => IpAddr::from(v4.ip()),
                (_, Some(v6)) => IpAddr::from(v6.ip()),
                _ => return None,
            };
            Some(InterfaceAddress { interface: a.interface_name, ip })
        })
        .collect()
}

/// Interfaces of IPv4 default routes, lowest metric first (/proc/net/route).
fn default_interfaces_v4(text: &str) -> Vec<String> {
    by_metric(text.lines().skip(1).filter_map(|line| {
        let f: Vec<&str> = line.split_whitespace().collect();
        let default = f.len() >= 8 && f[1] == "00000000" && f[7] == "00000000";
        Some((f.get(6).filter(|_| default)?.parse().ok()?, f[0]))
    }))
}

/// Interfaces of IPv6 default routes, lowest metric first (/proc/net/ipv6_route).
fn default_interfaces_v6(text: &str) -> Vec<String> {
    by_metric(text.lines().filter_map(|line| {
        let f: Vec<&str> = line.split_whitespace().collect();
        let default = f.len() >= 10 && f[0].bytes().all(|b| b == b'0') && f[1] == "00" && f[9] != "lo";
        default.then(|| Some((u32::from_str_radix(f[5], 16).ok()?, f[9]))).flatten()
    }))
}

/// The kernel's order decides between equal metrics.
fn by_metric<'t>(routes: impl Iterator<Item = (u32, &'t str)>) -> Vec<String> {
    let mut routes: Vec<(u32, &str)> = routes.collect();
    routes.sort_by_key(|(metric, _)| *metric);
    routes.into_iter().map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
            eth1\t00000000\t0100A8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0\n\
            eth0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth2\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            eth3\n";
        assert_eq!(default_interfaces_v4(v4), ["eth0", "eth1"]);
        assert!(default_interfaces_v4("Iface\n").is_empty());
        let zero = "00000000000000000000000000000000";
        let v6 = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
        );
        assert_eq!(default_interfaces_v6(&v6), ["eth0"]);
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let host = host_network(Some("localhost"));
        assert!(host.addresses.iter().any(|a| a.ip.is_loopback()));
        assert!(host.resolved.iter().all(IpAddr::is_loopback));
        assert!(node_addresses().into_iter().all(is_node_address));
    }
}
