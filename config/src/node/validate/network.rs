//! Rules of what the network sees of a node: its name and addresses, routes, the proxy. Interfaces and what they are to each
//! other have rules of their own (`links`).

use super::{Rules, is_host_port, is_url};
use crate::formats;
use crate::node::network::{Addressing, Route};
use crate::node::types::{Node, Proxy};
use crate::path;
use std::net::IpAddr;

const IP: &str = "must be an IP address";

impl Rules<'_> {
    pub(super) fn node(&mut self, node: &Node) {
        const AT: &str = "node.addresses";
        self.rule(
            node.name.is_empty() || formats::is_dns_name(&node.name),
            "node.name",
            &node.name,
            "must be a DNS name: lower-case letters, digits, - and ., at most 253",
        );
        let alone = node.addresses.len() == 1;
        for (i, text) in node.addresses.iter().enumerate() {
            let at = path::index(AT, i);
            match text.parse::<IpAddr>() {
                Ok(ip) => self.rule(
                    formats::is_node_address(ip) || alone && ip.is_unspecified(),
                    &at,
                    text,
                    "must be an address that others reach the node by: not loopback, link-local, multicast or \
                     unspecified (0.0.0.0 or :: alone chooses the family)",
                ),
                Err(_) => self.broken(&at, Some(text), IP),
            }
        }
        let ipv6 = node.addresses.iter().filter(|text| text.contains(':')).count();
        if node.addresses.len() > 2 || !alone && ipv6 != node.addresses.len() / 2 {
            self.broken(AT, None, "must be one address, or an IPv4 and an IPv6 one");
        }
    }

    /// The keys of addresses, which interfaces of every kind have.
    pub(super) fn addressing(&mut self, own: Addressing<'_>, at: &str) {
        let cidr = "must be an address with its prefix length, such as 192.0.2.10/24";
        self.each(own.addresses, &path::child(at, "addresses"), formats::is_cidr, cidr);
        for (key, gateway) in [("gateway", own.gateway), ("gateway6", own.gateway6)] {
            if let Some(gateway) = gateway {
                self.rule(formats::is_ip(gateway), &path::child(at, key), gateway, IP);
            }
        }
        if let Some(gateway) = own.gateway6.filter(|g| formats::is_ip(g)) {
            self.rule(
                gateway.contains(':'),
                &path::child(at, "gateway6"),
                gateway,
                "must be an IPv6 address",
            );
        }
        if let (Some(gateway), Some(_)) = (own.gateway, own.gateway6) {
            self.rule(
                !gateway.contains(':'),
                &path::child(at, "gateway"),
                gateway,
                "must be an IPv4 address beside gateway6",
            );
        }
        for (i, route) in own.routes.iter().enumerate() {
            self.route(route, &path::index(&path::child(at, "routes"), i));
        }
        self.each(own.dns, &path::child(at, "dns"), formats::is_ip, IP);
        if own.search != ["."] {
            let reason = "must be a DNS name, or . alone for none";
            self.each(own.search, &path::child(at, "search"), formats::is_dns_name, reason);
        }
    }

    fn route(&mut self, route: &Route, at: &str) {
        self.rule(
            formats::is_network(&route.to),
            &path::child(at, "to"),
            &route.to,
            "must be a network with its prefix length and no bits behind it, such as 10.1.0.0/16",
        );
        let at_via = path::child(at, "via");
        match &route.via {
            None if route.on_link.is_some() => {
                self.broken(&path::child(at, "onLink"), None, "needs via: it says how that is reached");
            }
            None => {}
            Some(via) if !formats::is_ip(via) => self.broken(&at_via, Some(via), IP),
            Some(via) => self.rule(
                !formats::is_network(&route.to) || via.contains(':') == route.to.contains(':'),
                &at_via,
                via,
                "must be of the same address family as to",
            ),
        }
    }

    /// URLs are not shown: they may hold a password.
    pub(super) fn proxy(&mut self, proxy: &Proxy) {
        for (key, url) in [("http", &proxy.http), ("https", &proxy.https)] {
            if url.as_ref().is_some_and(|url| !is_url(url.reveal())) {
                let reason = "must be the proxy's http:// or https:// URL without blanks and quotes";
                self.broken(&path::child("proxy", key), None, reason);
            }
        }
        let reason = "must be a host, a domain, an address, a network such as 10.0.0.0/8, or *";
        self.each(&proxy.no_proxy, "proxy.noProxy", is_exempt, reason);
    }
}

/// What Go's programs take in `NO_PROXY`.
fn is_exempt(text: &str) -> bool {
    let domain = text.strip_prefix("*.").or_else(|| text.strip_prefix('.')).unwrap_or(text);
    text == "*" || formats::is_ip(text) || formats::is_cidr(text) || is_host_port(domain)
}

pub(super) fn is_mac(text: &str) -> bool {
    text.len() == 17
        && text.split(':').count() == 6
        && text.split(':').all(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()))
}
