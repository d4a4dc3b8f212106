//! `/etc/hosts`: the loopback names and the node's own.
//!
//! Resolvers ask no DNS server for a name that has a line here, and the agent takes the Node's address from the name if
//! it can (`node_status::addresses`). Invariant: the node's name has the address that the configuration makes the
//! node's, or one of the loopback interface, which the agent passes over.

use super::{hostname, node_name};
use crate::formats;
use crate::node::links::{Link, Links};
use crate::node::network::Addressing;
use crate::node::types::NodeConfig;
use std::fmt::Write;
use std::net::IpAddr;

/// Where no address is known before the network is: as Debian has it.
const UNKNOWN: &str = "127.0.1.1";

/// The file. Host-network pods get a copy.
#[must_use]
pub fn hosts(config: &NodeConfig, machine_id: &str) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    let name = node_name(config, machine_id);
    if name == "localhost" {
        return text;
    }
    let mut names = vec![name.clone()];
    // The kernel's name is neither if the first label is longer than the kernel takes.
    let short = name.split('.').next().unwrap_or_default().to_owned();
    for other in [short, hostname(config, machine_id)] {
        if !other.is_empty() && other != "localhost" && !names.contains(&other) {
            names.push(other);
        }
    }
    let mut addresses: Vec<String> = own_addresses(config).iter().map(ToString::to_string).collect();
    if addresses.is_empty() {
        addresses.push(UNKNOWN.to_owned());
    }
    for address in addresses {
        let _ = writeln!(text, "{address} {}", names.join(" "));
    }
    text
}

/// At most one of each family: what `node.addresses` says; else of the first interface of any kind with a default route the
/// addresses of the route's families, none if the network gives it; else the first address of all.
fn own_addresses(config: &NodeConfig) -> Vec<IpAddr> {
    let given: Vec<IpAddr> = config.node.addresses.iter().filter_map(|text| text.parse().ok()).collect();
    if given.iter().any(|ip| !ip.is_unspecified()) {
        return given.into_iter().filter(|ip| !ip.is_unspecified()).collect();
    }
    // The unspecified address chooses the family.
    let is_wanted = |ip: &IpAddr| given.first().is_none_or(|chosen| chosen.is_ipv4() == ip.is_ipv4());
    let links = Links::of(&config.network);
    let leads_out = |link: &&Link<'_>| {
        let own = link.addressing();
        links.asks_dhcp(**link) || has_default_route(own, true) || has_default_route(own, false)
    };
    match links.all().iter().find(leads_out) {
        Some(link) => {
            let own = link.addressing();
            let routed = static_addresses(own).filter(|ip| has_default_route(own, ip.is_ipv4()));
            let own: Vec<IpAddr> = routed.filter(is_wanted).collect();
            let of = |v4: bool| own.iter().copied().find(|ip| ip.is_ipv4() == v4);
            [of(true), of(false)].into_iter().flatten().collect()
        }
        None => {
            let all = links.all().iter().flat_map(|link| static_addresses(link.addressing()));
            all.filter(is_wanted).take(1).collect()
        }
    }
}

/// Whether the entry itself has a default route of the family.
fn has_default_route(own: Addressing<'_>, v4: bool) -> bool {
    let everywhere = if v4 { "0.0.0.0/0" } else { "::/0" };
    own.gateways().any(|gateway| gateway.contains(':') != v4)
        || own.routes.iter().any(|route| route.to == everywhere)
}

fn static_addresses(own: Addressing<'_>) -> impl Iterator<Item = IpAddr> {
    let addresses = own.addresses.iter().filter_map(|text| text.split('/').next()?.parse::<IpAddr>().ok());
    addresses.filter(|ip| formats::is_node_address(*ip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::load;
    use crate::node::tests::source;

    const MACHINE_ID: &str = "0123456789abcdef0123456789abcdef";

    /// The lines behind those of the loopback names.
    fn own(body: &str) -> Vec<String> {
        let effective = load(&[source("esp", body)], &[]);
        assert_eq!(effective.problems, [], "{body}");
        let text = hosts(&effective.config, MACHINE_ID);
        let (loopback, own) =
            text.split_at(text.find("ip6-loopback\n").expect("a line") + "ip6-loopback\n".len());
        assert_eq!(loopback, "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
        own.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_nodes_own_name_resolves() {
        assert_eq!(own(""), ["127.0.1.1 orlop-01234567"]);
        assert_eq!(own("node: {name: n1}"), ["127.0.1.1 n1"]);
        assert_eq!(own("node: {name: n1.example.com}"), ["127.0.1.1 n1.example.com n1"]);
        assert!(own("node: {name: localhost}").is_empty());
        assert_eq!(own("node: {name: localhost.example}"), ["127.0.1.1 localhost.example"]);
    }

    #[test]
    fn the_kernels_name_resolves_too() {
        let label = "a".repeat(65);
        let shortened = "a".repeat(64);
        assert_eq!(
            own(&format!("node: {{name: {label}.example}}")),
            [format!("127.0.1.1 {label}.example {label} {shortened}")]
        );
        let long = format!("n1.{}.example", "b".repeat(63));
        assert_eq!(own(&format!("node: {{name: {long}}}")), [format!("127.0.1.1 {long} n1")]);
    }

    #[test]
    fn the_name_has_the_nodes_address_where_that_is_known() {
        let eth = |rest: &str| format!("network: {{interfaces: [{rest}]}}\n");
        let both = "{name: eth0, addresses: [192.0.2.10/24, 'fd00::a/64'], gateway: 192.0.2.1";
        let table: &[(String, &[&str])] = &[
            ("node: {addresses: ['2001:db8::7', 192.0.2.7]}".into(), &["2001:db8::7", "192.0.2.7"]),
            (format!("node: {{addresses: [192.0.2.7]}}\n{}", eth(&format!("{both}}}"))), &["192.0.2.7"]),
            (eth(&format!("{both}}}")), &["192.0.2.10"]),
            (eth(&format!("{both}, gateway6: 'fd00::1'}}")), &["192.0.2.10", "fd00::a"]),
            (
                eth(
                    "{name: eth0, addresses: [10.9.0.1/24]}, {name: eth1, addresses: [192.0.2.10/24], routes: \
                     [{to: 0.0.0.0/0, via: 192.0.2.1}]}",
                ),
                &["192.0.2.10"],
            ),
            (
                eth(
                    "{name: eth0, addresses: [169.254.0.1/16, 10.9.0.1/24]}, {name: eth1, addresses: [10.8.0.1/24]}",
                ),
                &["10.9.0.1"],
            ),
            // The default route, and so the Node's address, is DHCP's.
            (eth("{name: eth0, dhcp: true}, {name: eth1, addresses: [10.9.0.1/24]}"), &["127.0.1.1"]),
            (eth("{name: eth1, addresses: [10.9.0.1/24]}, {name: eth0, dhcp: true}"), &["127.0.1.1"]),
            ("node: {addresses: ['::']}\n".to_owned() + &eth(&format!("{both}}}")), &["127.0.1.1"]),
            (
                "node: {addresses: ['::']}\n".to_owned() + &eth(&format!("{both}, gateway6: 'fd00::1'}}")),
                &["fd00::a"],
            ),
            ("node: {addresses: [0.0.0.0]}".into(), &["127.0.1.1"]),
        ];
        for (body, addresses) in table {
            let want: Vec<String> =
                addresses.iter().map(|address| format!("{address} orlop-01234567")).collect();
            assert_eq!(own(body), want, "{body}");
        }
    }
}
