//! The host's network as the node's address depends on it: addresses of interfaces, default routes, what the
//! node's name resolves to.
//!
//! In: the interface list, /proc/net, networkd's state, the resolver. Out: [`HostNetwork`] for core to choose from
//! (`node_status::addresses`). Parsers are pure. A family that the kernel does not have has no routes.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;

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

/// networkd's state of each interface, in files named by index.
const NETWORKD_LINKS: &str = "run/systemd/netif/links";
/// The image's own boot wrote it: networkd configures this machine's network, even if it has not yet begun.
const BOOT_LEDGER: &str = "run/orlop/boot.json";

/// The node's own addresses, the primary first: those of the default route's interface, of another interface of the node
/// if there is no default route; at most one of each family. Empty before the network is configured, and on a machine
/// without a network.
#[must_use]
pub fn node_addresses() -> Vec<IpAddr> {
    let host = host_network(None);
    let managed = managed_interfaces(&host, Path::new("/"));
    own_addresses(&host, managed.as_ref())
}

/// The node's own addresses among those of the host. `managed` are the interfaces that networkd configures; `None`: there
/// is no networkd, and each interface counts.
///
/// An interface with a default route is the node's. Where networkd runs, all others that it does not configure belong to
/// programs: bridges and tunnels of CNI plugins, pods' ends, addresses of Services.
fn own_addresses(host: &HostNetwork, managed: Option<&BTreeSet<String>>) -> Vec<IpAddr> {
    let is_routed = |name: &String| host.default_v4.contains(name) || host.default_v6.contains(name);
    let is_own = |name: &String| is_routed(name) || managed.is_none_or(|managed| managed.contains(name));
    let usable = |a: &&InterfaceAddress| is_node_address(a.ip) && is_own(&a.interface);
    let usable: Vec<&InterfaceAddress> = host.addresses.iter().filter(usable).collect();
    let of = |is_family: fn(&IpAddr) -> bool, interface: Option<&String>| {
        let preferred = usable.iter().find(|a| is_family(&a.ip) && Some(&a.interface) == interface);
        preferred.or_else(|| usable.iter().find(|a| is_family(&a.ip))).map(|a| a.ip)
    };
    let (v4, v6) = (host.default_v4.first(), host.default_v6.first());
    [of(IpAddr::is_ipv4, v4), of(IpAddr::is_ipv6, v6.or(v4))].into_iter().flatten().collect()
}

/// The interfaces with addresses that networkd configures. `None` if networkd does not run here, on a machine that has not
/// booted this image.
fn managed_interfaces(host: &HostNetwork, root: &Path) -> Option<BTreeSet<String>> {
    let (interfaces, links) = (root.join("sys/class/net"), root.join(NETWORKD_LINKS));
    if !links.is_dir() && !root.join(BOOT_LEDGER).exists() {
        return None;
    }
    let is_managed = |name: &String| {
        let index = std::fs::read_to_string(interfaces.join(name).join("ifindex")).ok()?;
        let link = std::fs::read_to_string(links.join(index.trim())).ok()?;
        Some(networkd_configures(&link))
    };
    let names = host.addresses.iter().map(|a| &a.interface);
    Some(names.filter(|name| is_managed(name).unwrap_or(false)).cloned().collect())
}

/// Whether a `.network` file is in force for the interface, by networkd's record of it.
fn networkd_configures(link: &str) -> bool {
    let value = |key: &str| link.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value("NETWORK_FILE").is_some_and(|file| !file.is_empty()) && value("ADMIN_STATE") != Some("unmanaged")
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

    /// A host with these interfaces, each with one address.
    fn host(addresses: &[(&str, &str)], default_v4: &[&str]) -> HostNetwork {
        let address = |(interface, ip): &(&str, &str)| InterfaceAddress {
            interface: (*interface).to_owned(),
            ip: ip.parse().unwrap(),
        };
        HostNetwork {
            addresses: addresses.iter().map(address).collect(),
            default_v4: default_v4.iter().map(|name| (*name).to_owned()).collect(),
            ..HostNetwork::default()
        }
    }

    /// Interfaces that are not the node's, and their addresses as the programs that make them give them.
    const FOREIGN: [(&str, &str); 10] = [
        ("lo", "127.0.0.1"),
        ("cni0", "10.85.0.1"),
        ("cni-podman0", "10.88.0.1"),
        ("veth3f2a", "10.88.0.1"),
        ("docker0", "172.17.0.1"),
        ("flannel.1", "10.244.0.0"),
        ("cali12ab", "10.244.1.1"),
        ("kube-ipvs0", "10.96.0.1"),
        ("nodelocaldns", "10.96.0.10"),
        ("cni0", "fd00:10:244::1"),
    ];

    fn own(host: &HostNetwork, managed: Option<&[&str]>) -> String {
        let set =
            |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
        let managed = managed.map(set);
        let own = own_addresses(host, managed.as_ref());
        own.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_machine_without_a_network_has_no_address_whatever_programs_have_made() {
        assert_eq!(own(&host(&FOREIGN, &[]), Some(&[])), "");
        assert_eq!(own(&host(&FOREIGN, &[]), Some(&["eth0", "lo"])), "");
    }

    #[test]
    fn interfaces_that_networkd_configures_are_the_node_s_of_any_kind() {
        for name in ["eth0", "bond0", "vlan7", "bond0.7", "br0"] {
            let mut all = FOREIGN.to_vec();
            all.extend([(name, "192.0.2.17"), (name, "2001:db8::17")]);
            assert_eq!(own(&host(&all, &[]), Some(&[name])), "192.0.2.17 2001:db8::17", "{name}");
        }
    }

    #[test]
    fn the_default_route_s_interface_is_the_node_s_whoever_configures_it() {
        let mut all = FOREIGN.to_vec();
        all.extend([("eth0", "192.0.2.17"), ("eth1", "198.51.100.17")]);
        assert_eq!(own(&host(&all, &["eth1"]), Some(&[])), "198.51.100.17");
        assert_eq!(own(&host(&all, &["eth1"]), Some(&["eth0"])), "198.51.100.17");
        assert_eq!(own(&host(&all, &[]), Some(&["eth0"])), "192.0.2.17");
    }

    #[test]
    fn without_networkd_each_interface_counts_after_the_default_route_s() {
        let all = [("lo", "127.0.0.1"), ("veth0", "192.0.2.17"), ("eth1", "198.51.100.17")];
        assert_eq!(own(&host(&all, &[]), None), "192.0.2.17");
        assert_eq!(own(&host(&all, &["eth1"]), None), "198.51.100.17");
    }

    #[test]
    fn networkd_s_records() {
        let configured = "# This is private data. Do not parse.\nADMIN_STATE=configured\nOPER_STATE=routable\n\
            NETWORK_FILE=/run/systemd/network/10-orlop.network\nDNS=192.0.2.53\n";
        assert!(networkd_configures(configured));
        assert!(networkd_configures(&configured.replace("configured\nOPER", "configuring\nOPER")));
        assert!(!networkd_configures(&configured.replace("ADMIN_STATE=configured", "ADMIN_STATE=unmanaged")));
        assert!(!networkd_configures("ADMIN_STATE=unmanaged\nOPER_STATE=routable\n"));
        assert!(!networkd_configures("ADMIN_STATE=configured\nNETWORK_FILE=\n"));
        assert!(!networkd_configures(""));
    }

    #[test]
    fn managed_interfaces_are_found_by_their_index() {
        let dir = tempfile::tempdir().unwrap();
        let (interfaces, links) = (dir.path().join("sys/class/net"), dir.path().join(NETWORKD_LINKS));
        let host = host(&[("eth0", "192.0.2.17"), ("cni0", "10.88.0.1"), ("gone", "192.0.2.9")], &[]);
        assert_eq!(managed_interfaces(&host, dir.path()), None);
        // The appliance's networkd has not begun.
        std::fs::create_dir_all(dir.path().join("run/orlop")).unwrap();
        std::fs::write(dir.path().join(BOOT_LEDGER), "{}").unwrap();
        assert_eq!(managed_interfaces(&host, dir.path()), Some(BTreeSet::new()));
        std::fs::create_dir_all(&links).unwrap();
        for (name, index) in [("eth0", "2\n"), ("cni0", "5\n")] {
            std::fs::create_dir_all(interfaces.join(name)).unwrap();
            std::fs::write(interfaces.join(name).join("ifindex"), index).unwrap();
        }
        std::fs::write(links.join("2"), "ADMIN_STATE=configured\nNETWORK_FILE=/run/a.network\n").unwrap();
        std::fs::write(links.join("5"), "ADMIN_STATE=unmanaged\n").unwrap();
        let managed = managed_interfaces(&host, dir.path()).unwrap();
        assert_eq!(managed, BTreeSet::from(["eth0".to_owned()]));
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let host = host_network(Some("localhost"));
        assert!(host.addresses.iter().any(|a| a.ip.is_loopback()));
        assert!(host.resolved.iter().all(IpAddr::is_loopback));
        assert!(node_addresses().into_iter().all(is_node_address));
    }
}
