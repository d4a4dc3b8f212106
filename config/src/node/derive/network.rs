//! systemd-networkd configuration from the interfaces of NodeConfig.
//!
//! Invariant: of the interfaces that match one pattern with DHCP, those with the indexes 2 to 9 get default routes of
//! different metrics in the order of their indexes; all others share a worse one. The kernel counts up, so one that is
//! plugged in later does not stand before those of the boot.

use super::RunFile;
use crate::formats;
use crate::node::types::{Interface, NodeConfig, Route};
use std::fmt::Write;

/// Interfaces whose route metrics differ from the next, so that the first one's default route wins.
const METRIC_STEP: usize = 10;
/// Metric of the first interface's routes; networkd's own default for DHCP is 1024.
const METRIC_FIRST: usize = 100;
/// Index of the first interface that is not the loopback. The kernel counts up and uses no index again.
const INDEX_FIRST: usize = 2;
/// So many of the interfaces that match one pattern have metrics of their own; all later ones have one in common. Less
/// than [`METRIC_STEP`].
const INDEXES: usize = 8;
/// IPv6 addresses that are on the link of every interface.
const LINK_LOCAL: &str = "fe80::/10";

/// The `.network` files of all interfaces, in order of matching.
#[must_use]
pub fn networks(config: &NodeConfig) -> Vec<RunFile> {
    let interfaces = config.network.interfaces.iter().enumerate();
    interfaces.flat_map(|(i, interface)| files(interface, i + 10, METRIC_FIRST + i * METRIC_STEP)).collect()
}

/// One file; for a pattern with DHCP also one per interface index, in front of it: a file gives all interfaces that
/// match it the same metric.
fn files(interface: &Interface, rank: usize, metric: usize) -> Vec<RunFile> {
    let file = |suffix: &str, index: Option<usize>, metric: usize| RunFile {
        path: format!("/run/systemd/network/{rank:02}-orlop{suffix}.network"),
        mode: 0o644,
        text: network(interface, index, metric),
    };
    if !asks_dhcp(interface) || !is_pattern(interface) {
        return vec![file("", None, metric)];
    }
    let single = (0..INDEXES).map(|n| {
        let index = INDEX_FIRST + n;
        file(&format!("-index{index}"), Some(index), metric + n)
    });
    single.chain([file("", None, metric + INDEXES)]).collect()
}

/// Whether the interface also has addresses and routes of the network, in addition to those of its entry.
pub(super) fn asks_dhcp(interface: &Interface) -> bool {
    interface.dhcp.unwrap_or(interface.addresses.is_empty())
}

/// Whether more than one interface may match.
fn is_pattern(interface: &Interface) -> bool {
    interface.mac_address.is_none() && interface.name.contains(['*', '?', '[', '!', ' '])
}

fn network(interface: &Interface, index: Option<usize>, metric: usize) -> String {
    let mut text = String::from("[Match]\n");
    match &interface.mac_address {
        Some(mac) => line(&mut text, "MACAddress", mac),
        None => line(&mut text, "Name", &interface.name),
    }
    if interface.mac_address.is_some() || is_pattern(interface) {
        // An interface with a kind was made by a program: pods' and tunnels' interfaces belong to the CNI plugins
        // under any name (`eni…`), and a VLAN has its port's MAC address.
        line(&mut text, "Type", "ether");
        line(&mut text, "Kind", "!*");
    }
    if let Some(index) = index {
        line(&mut text, "Property", &format!("IFINDEX={index}"));
    }
    if let Some(mtu) = interface.mtu {
        text.push_str("\n[Link]\n");
        line(&mut text, "MTUBytes", &mtu.to_string());
    }
    text.push_str("\n[Network]\n");
    line(&mut text, "DHCP", if asks_dhcp(interface) { "yes" } else { "no" });
    for address in &interface.addresses {
        line(&mut text, "Address", address);
    }
    for server in &interface.dns {
        line(&mut text, "DNS", server);
    }
    let domains: Vec<&str> = search_domains(interface).collect();
    if !domains.is_empty() {
        line(&mut text, "Domains", &domains.join(" "));
    }
    let metric = metric.to_string();
    for gateway in interface.gateway.iter().chain(&interface.gateway6) {
        text.push_str("\n[Route]\n");
        line(&mut text, "Gateway", gateway);
        if is_outside(interface, gateway) {
            line(&mut text, "GatewayOnLink", "yes");
        }
        line(&mut text, "Metric", &metric);
    }
    for route in &interface.routes {
        static_route(&mut text, interface, route, &metric);
    }
    learned(&mut text, interface, &metric);
    text
}

fn static_route(text: &mut String, interface: &Interface, route: &Route, metric: &str) {
    text.push_str("\n[Route]\n");
    line(text, "Destination", &route.to);
    if let Some(gateway) = &route.via {
        line(text, "Gateway", gateway);
        if route.on_link.unwrap_or_else(|| is_outside(interface, gateway)) {
            line(text, "GatewayOnLink", "yes");
        }
    }
    match route.metric {
        Some(metric) => line(text, "Metric", &metric.to_string()),
        None => line(text, "Metric", metric),
    }
}

/// True if no address of the gateway's family has it in its network: without a word the kernel refuses the route. The
/// addresses of an interface that has none of that family come from the network, together with theirs.
fn is_outside(interface: &Interface, gateway: &str) -> bool {
    let ipv6 = gateway.contains(':');
    let mut own = interface.addresses.iter().filter(|a| a.contains(':') == ipv6).peekable();
    own.peek().is_some()
        && !formats::cidr_contains(LINK_LOCAL, gateway)
        && !own.any(|address| formats::cidr_contains(address, gateway))
}

/// The configured domains. The root (`.`) says that there are none, not DHCP's either: in each pod a search through them
/// goes before a name as it is, and where the network answers for every name it ends there.
fn search_domains(interface: &Interface) -> impl Iterator<Item = &str> {
    interface.search.iter().map(String::as_str).filter(|domain| *domain != ".")
}

/// Settings that networkd takes from the network: name servers and search domains where the configuration has none.
fn learned(text: &mut String, interface: &Interface, metric: &str) {
    let mut section = |name: &str, own: &[(&str, &str)]| {
        let _ = write!(text, "\n[{name}]\n");
        for (key, value) in own {
            line(text, key, value);
        }
        line(text, "UseDomains", if interface.search.is_empty() { "yes" } else { "no" });
        if !interface.dns.is_empty() {
            line(text, "UseDNS", "no");
        }
    };
    if asks_dhcp(interface) {
        // The node's name comes from its configuration or its machine id, never from the network.
        section("DHCPv4", &[("RouteMetric", metric), ("UseHostname", "no")]);
        section("DHCPv6", &[("UseHostname", "no")]);
    }
    section("IPv6AcceptRA", &[("RouteMetric", metric)]);
}

fn line(text: &mut String, key: &str, value: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{key}={value}");
}

/// `resolv.conf` with the configured servers and domains. What DHCP gives comes later, from networkd's state.
#[must_use]
pub fn resolv_conf(config: &NodeConfig) -> String {
    let interfaces = &config.network.interfaces;
    let mut text = String::from("# Made from the node's configuration.\n");
    // libc reads three servers; pods inherit this file.
    for server in interfaces.iter().flat_map(|interface| &interface.dns).take(3) {
        let _ = writeln!(text, "nameserver {server}");
    }
    let domains: Vec<&str> = interfaces.iter().flat_map(search_domains).collect();
    if !domains.is_empty() {
        let _ = writeln!(text, "search {}", domains.join(" "));
    }
    text
}
