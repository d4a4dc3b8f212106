//! systemd-networkd's `.network` files, from all interfaces of NodeConfig (docs/reference/network.md).
//!
//! Invariant: of the interfaces that match one pattern with DHCP, those with the indexes 2 to 9 get default routes of
//! different metrics in the order of their indexes; all others share a worse one. The kernel counts up, so one that is
//! plugged in later does not stand before those of the boot.

use super::RunFile;
use super::netdev::netdev;
use crate::formats;
use crate::node::links::{Link, LinkEntry, Links, is_pattern};
use crate::node::network::{Addressing, Interface, Route};
use crate::node::types::NodeConfig;
use std::fmt::Write;

/// Interfaces whose route metrics differ from the next, so that the first one's default route wins.
const METRIC_STEP: usize = 10;
/// Metric of the first interface's routes; networkd's own default for DHCP is 1024.
const METRIC_FIRST: usize = 100;
/// Number of the first file. Numbers have two digits, so that the order of names is that of numbers.
const RANK_FIRST: usize = 10;
/// As many entries below `network` as there are numbers.
pub(in crate::node) const LINKS_MAX: usize = 90;
/// Index of the first interface that is not the loopback. The kernel counts up and uses no index again.
const INDEX_FIRST: usize = 2;
/// So many of the interfaces that match one pattern have metrics of their own; all later ones have one in common. Less
/// than [`METRIC_STEP`].
const INDEXES: usize = 8;
/// IPv6 addresses that are on the link of every interface.
const LINK_LOCAL: &str = "fe80::/10";

/// Metric of the routes of an entry below `network`, by its position among all of them.
pub(in crate::node) const fn route_metric(position: usize) -> usize {
    METRIC_FIRST + METRIC_STEP * position
}

/// The files of all interfaces, in order of matching: as in the document, but members and parents go before patterns that
/// would take their interfaces. A member that is a pattern itself leaves alone what entries before it match.
#[must_use]
pub fn networks(config: &NodeConfig) -> Vec<RunFile> {
    let links = Links::of(&config.network);
    let mut ordered: Vec<((usize, bool), (usize, Link<'_>))> =
        places(&links).into_iter().zip(links.all().iter().copied().enumerate()).collect();
    ordered.sort_by_key(|(place, _)| *place);
    let ranked = ordered.into_iter().zip(RANK_FIRST..);
    let all =
        ranked.flat_map(|((_, (position, link)), rank)| files(&links, link, rank, route_metric(position)));
    all.collect()
}

/// What the entries are sorted by.
fn places(links: &Links<'_>) -> Vec<(usize, bool)> {
    let all = links.all();
    let first_pattern =
        all.iter().position(|link| !links.carries(*link) && link.may_be_many()).unwrap_or(all.len());
    let numbered = all.iter().enumerate();
    let sorted_by = numbered.map(|(position, link)| match (links.carries(*link), link.may_be_many()) {
        (true, false) => (0, false),
        (true, true) => (1 + position.min(first_pattern), false),
        (false, _) => (1 + position, true),
    });
    sorted_by.collect()
}

/// The file that makes the interface, if the node makes it, and the one that configures it; for a pattern with DHCP also
/// one per interface index, in front of it: a file gives all interfaces that match it the same metric.
fn files(links: &Links<'_>, link: Link<'_>, rank: usize, metric: usize) -> Vec<RunFile> {
    let file = |name: String, text: String| RunFile {
        path: format!("/run/systemd/network/{rank:02}-orlop{name}"),
        mode: 0o644,
        text,
    };
    let configured = |suffix: &str, index: Option<usize>, metric: usize| {
        file(format!("{suffix}.network"), network(links, link, index, metric))
    };
    let made = netdev(links, link).map(|text| file(".netdev".to_owned(), text));
    if !links.asks_dhcp(link) || !link.may_be_many() {
        return made.into_iter().chain([configured("", None, metric)]).collect();
    }
    let single = (0..INDEXES).map(|n| {
        let index = INDEX_FIRST + n;
        configured(&format!("-index{index}"), Some(index), metric + n)
    });
    single.chain([configured("", None, metric + INDEXES)]).collect()
}

fn network(links: &Links<'_>, link: Link<'_>, index: Option<usize>, metric: usize) -> String {
    let own = link.addressing();
    let master = links.master(link);
    let mut text = String::from("[Match]\n");
    matched(&mut text, link, master.is_some());
    if let Some(index) = index {
        line(&mut text, "Property", &format!("IFINDEX={index}"));
    }
    let only_carries = links.only_carries(link);
    let is_alone = matches!(link.entry, LinkEntry::Bridge(bridge) if bridge.members.is_empty());
    // No router is on a network of this machine alone.
    let own = Addressing { accept_ra: own.accept_ra.or(is_alone.then_some(false)), ..own };
    if own.mtu.is_some() || only_carries || is_alone {
        text.push_str("\n[Link]\n");
    }
    if let Some(mtu) = own.mtu {
        line(&mut text, "MTUBytes", &mtu.to_string());
    }
    if only_carries || is_alone {
        // Nobody outside is reached by it, so no unit waits for it.
        line(&mut text, "RequiredForOnline", "no");
    }
    text.push_str("\n[Network]\n");
    let asks_dhcp = links.asks_dhcp(link);
    line(&mut text, "DHCP", if asks_dhcp { "yes" } else { "no" });
    if only_carries {
        line(&mut text, "LinkLocalAddressing", "no");
        line(&mut text, "IPv6AcceptRA", "no");
    } else if let Some(accept) = own.accept_ra {
        line(&mut text, "IPv6AcceptRA", if accept { "yes" } else { "no" });
    }
    if let Some(master) = master {
        place(&mut text, link, master);
    }
    for vlan in links.vlans(link) {
        line(&mut text, "VLAN", &vlan.name);
    }
    if only_carries {
        return text;
    }
    if is_alone {
        // It has no carrier until a pod is plugged in.
        line(&mut text, "ConfigureWithoutCarrier", "yes");
    }
    addressed(&mut text, own, metric);
    learned(&mut text, own, asks_dhcp, &metric.to_string());
    text
}

/// The interfaces that a file is for.
fn matched(text: &mut String, link: Link<'_>, is_member: bool) {
    let LinkEntry::Interface(interface) = link.entry else {
        line(text, "Name", link.word());
        return;
    };
    match &interface.mac_address {
        // A bond gives its members its own.
        Some(mac) if is_member => line(text, "PermanentMACAddress", mac),
        Some(mac) => line(text, "MACAddress", mac),
        None => line(text, "Name", &interface.name),
    }
    if let Some(driver) = &interface.driver {
        line(text, "Driver", driver);
    }
    if let Some(path) = &interface.path {
        line(text, "Path", path);
    }
    if is_of_the_machine(interface) {
        // An interface with a kind was made by a program: pods' and tunnels' interfaces belong to the CNI plugins
        // under any name (`eni…`), and a VLAN has its port's MAC address, driver and place.
        line(text, "Type", "ether");
        line(text, "Kind", "!*");
    }
}

/// Whether an entry is for interfaces of the machine alone. One exact name is for any interface.
fn is_of_the_machine(interface: &Interface) -> bool {
    interface.mac_address.is_some()
        || interface.driver.is_some()
        || interface.path.is_some()
        || is_pattern(&interface.name)
}

/// A member's place in its bond or bridge.
fn place(text: &mut String, member: Link<'_>, master: Link<'_>) {
    match master.entry {
        LinkEntry::Bond(bond) => {
            line(text, "Bond", &bond.name);
            if bond.primary.as_deref() == Some(member.word()) {
                line(text, "PrimarySlave", "yes");
            }
        }
        _ => line(text, "Bridge", master.word()),
    }
}

/// Addresses, name servers and routes of the entry itself.
fn addressed(text: &mut String, own: Addressing<'_>, metric: usize) {
    for address in own.addresses {
        line(text, "Address", address);
    }
    for server in own.dns {
        line(text, "DNS", server);
    }
    let domains: Vec<&str> = search_domains(own).collect();
    if !domains.is_empty() {
        line(text, "Domains", &domains.join(" "));
    }
    let metric = metric.to_string();
    for gateway in own.gateways() {
        text.push_str("\n[Route]\n");
        line(text, "Gateway", gateway);
        if is_outside(own, gateway) {
            line(text, "GatewayOnLink", "yes");
        }
        line(text, "Metric", &metric);
    }
    for route in own.routes {
        static_route(text, own, route, &metric);
    }
}

fn static_route(text: &mut String, own: Addressing<'_>, route: &Route, metric: &str) {
    text.push_str("\n[Route]\n");
    line(text, "Destination", &route.to);
    if let Some(gateway) = &route.via {
        line(text, "Gateway", gateway);
        if route.on_link.unwrap_or_else(|| is_outside(own, gateway)) {
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
fn is_outside(own: Addressing<'_>, gateway: &str) -> bool {
    let ipv6 = gateway.contains(':');
    let mut addresses = own.addresses.iter().filter(|a| a.contains(':') == ipv6).peekable();
    addresses.peek().is_some()
        && !formats::cidr_contains(LINK_LOCAL, gateway)
        && !addresses.any(|address| formats::cidr_contains(address, gateway))
}

/// The configured domains. The root (`.`) says that there are none, not DHCP's either: in each pod a search through them
/// goes before a name as it is, and where the network answers for every name it ends there.
fn search_domains(own: Addressing<'_>) -> impl Iterator<Item = &str> {
    own.search.iter().map(String::as_str).filter(|domain| *domain != ".")
}

/// Settings that networkd takes from the network: name servers, search domains and the size of packets where the
/// configuration has none, routes in any case.
fn learned(text: &mut String, own: Addressing<'_>, asks_dhcp: bool, metric: &str) {
    let mut section = |name: &str, settings: &[(&str, &str)]| {
        let _ = write!(text, "\n[{name}]\n");
        for (key, value) in settings {
            line(text, key, value);
        }
        line(text, "UseDomains", if own.search.is_empty() { "yes" } else { "no" });
        if !own.dns.is_empty() {
            line(text, "UseDNS", "no");
        }
    };
    if asks_dhcp {
        // The node's name comes from its configuration or its machine id, never from the network. The identifiers are the
        // interface's, not the machine id's: a node that is installed again has the same address.
        let use_mtu = if own.mtu.is_none() { "yes" } else { "no" };
        let (mac, name) = (("ClientIdentifier", "mac"), ("UseHostname", "no"));
        section("DHCPv4", &[("RouteMetric", metric), mac, name, ("UseMTU", use_mtu)]);
        section("DHCPv6", &[("DUIDType", "link-layer"), name]);
    }
    if own.accept_ra != Some(false) {
        section("IPv6AcceptRA", &[("RouteMetric", metric)]);
    }
}

pub(super) fn line(text: &mut String, key: &str, value: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{key}={value}");
}

/// `resolv.conf` with the configured servers and domains. What DHCP gives comes later, from networkd's state.
#[must_use]
pub fn resolv_conf(config: &NodeConfig) -> String {
    let links = Links::of(&config.network);
    let all = || links.all().iter().map(|link| link.addressing());
    let mut text = String::from("# Made from the node's configuration.\n");
    // libc reads three servers; pods inherit this file.
    for server in all().flat_map(|own| own.dns).take(3) {
        let _ = writeln!(text, "nameserver {server}");
    }
    let domains: Vec<&str> = all().flat_map(search_domains).collect();
    if !domains.is_empty() {
        let _ = writeln!(text, "search {}", domains.join(" "));
    }
    text
}
