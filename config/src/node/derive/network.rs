//! systemd-networkd configuration from the interfaces of NodeConfig.

use super::RunFile;
use crate::node::types::{Interface, NodeConfig};
use std::fmt::Write;

/// Interfaces whose route metrics differ from the next, so that the first one's default route wins.
const METRIC_STEP: usize = 10;
/// Metric of the first interface's routes; networkd's own default for DHCP is 1024.
const METRIC_FIRST: usize = 100;

/// One `.network` file per interface, in order of matching.
#[must_use]
pub fn networks(config: &NodeConfig) -> Vec<RunFile> {
    config
        .network
        .interfaces
        .iter()
        .enumerate()
        .map(|(i, interface)| RunFile {
            path: format!("/run/systemd/network/{:02}-orlop.network", i + 10),
            mode: 0o644,
            text: network(interface, METRIC_FIRST + i * METRIC_STEP),
        })
        .collect()
}

fn network(interface: &Interface, metric: usize) -> String {
    let mut text = String::from("[Match]\n");
    // Pods' interfaces are the CNI plugins' business.
    match &interface.mac_address {
        Some(mac) => line(&mut text, "MACAddress", mac),
        None => line(&mut text, "Name", &interface.name),
    }
    if let Some(mtu) = interface.mtu {
        text.push_str("\n[Link]\n");
        line(&mut text, "MTUBytes", &mtu.to_string());
    }
    text.push_str("\n[Network]\n");
    let dhcp = interface.dhcp.unwrap_or(interface.addresses.is_empty());
    line(&mut text, "DHCP", if dhcp { "yes" } else { "no" });
    let metric = metric.to_string();
    for address in &interface.addresses {
        line(&mut text, "Address", address);
    }
    for server in &interface.dns {
        line(&mut text, "DNS", server);
    }
    if !interface.search.is_empty() {
        line(&mut text, "Domains", &interface.search.join(" "));
    }
    for gateway in interface.gateway.iter().chain(&interface.gateway6) {
        text.push_str("\n[Route]\n");
        line(&mut text, "Gateway", gateway);
        line(&mut text, "Metric", &metric);
    }
    if dhcp {
        text.push_str("\n[DHCPv4]\n");
        line(&mut text, "RouteMetric", &metric);
        // The node's name is its configuration's or its machine id's, whatever the network says.
        line(&mut text, "UseHostname", "no");
        if !interface.dns.is_empty() {
            line(&mut text, "UseDNS", "no");
        }
    }
    text
}

fn line(text: &mut String, key: &str, value: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{key}={value}");
}

/// `resolv.conf` with the configured servers and domains, else those DHCP gave.
#[must_use]
pub fn resolv_conf(config: &NodeConfig, dhcp_servers: &[String], dhcp_domains: &[String]) -> String {
    let configured = |pick: fn(&Interface) -> &Vec<String>| -> Vec<String> {
        config.network.interfaces.iter().flat_map(pick).cloned().collect()
    };
    let (mut servers, mut domains) = (configured(|i| &i.dns), configured(|i| &i.search));
    if servers.is_empty() {
        servers = dhcp_servers.to_vec();
    }
    if domains.is_empty() {
        domains = dhcp_domains.to_vec();
    }
    let mut text = String::from("# Made from the node's configuration.\n");
    // libc reads three servers; pods inherit this file.
    for server in servers.iter().take(3) {
        let _ = writeln!(text, "nameserver {server}");
    }
    if !domains.is_empty() {
        let _ = writeln!(text, "search {}", domains.join(" "));
    }
    text
}
