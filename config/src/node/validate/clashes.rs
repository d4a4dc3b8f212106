//! Rules of what two entries below `network` cannot share, and of routes to which no address of the entry leads.
//!
//! networkd takes these documents: of two files for one interface it reads the first, of two equal routes the kernel uses
//! one, and a gateway without an address beside it stays a line in the journal.

use super::Rules;
use crate::formats;
use crate::node::derive::route_metric;
use crate::node::links::{Link, LinkEntry, Links};
use crate::path;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Names or MAC address, drivers, places.
type MatchKey<'a> = (String, Option<&'a str>, Option<&'a str>);

/// What the entries so far have.
#[derive(Debug, Default)]
struct FirstHolders<'a> {
    matches: BTreeMap<MatchKey<'a>, Link<'a>>,
    /// Paths of addresses.
    addresses: BTreeMap<IpAddr, String>,
    /// Paths of routes, by destination, prefix length and metric.
    routes: BTreeMap<(IpAddr, u8, u32), String>,
}

/// A route of an entry.
#[derive(Debug)]
struct OwnRoute<'a> {
    path: String,
    to: &'a str,
    via: Option<&'a str>,
    metric: u32,
    /// The document says that the gateway is on the link.
    on_link: bool,
}

impl Rules<'_> {
    pub(super) fn clashes(&mut self, links: &Links<'_>) {
        let mut first = FirstHolders::default();
        for (position, link) in links.all().iter().enumerate() {
            self.own_match(*link, &mut first);
            self.own_addresses(*link, &mut first);
            // A member has no routes: the rule of members tells of each.
            if links.master(*link).is_none() {
                for route in routes(*link, position) {
                    self.reached(links, *link, &route);
                    self.own_route(route, &mut first);
                }
            }
        }
    }

    /// The first entry that matches an interface counts, so a second one with the same words never does.
    fn own_match<'a>(&mut self, link: Link<'a>, first: &mut FirstHolders<'a>) {
        let key = match_key(link);
        match first.matches.get(&key) {
            // The rule of words tells of these.
            Some(other) if !link.word().is_empty() && other.word() == link.word() => {}
            Some(other) => {
                let reason = format!("is for the same interface as {}, which comes first", other.path());
                self.broken(&link.path(), None, &reason);
            }
            None => {
                first.matches.insert(key, link);
            }
        }
    }

    fn own_addresses(&mut self, link: Link<'_>, first: &mut FirstHolders<'_>) {
        let list = path::child(&link.path(), "addresses");
        for (i, text) in link.addressing().addresses.iter().enumerate() {
            let Some((ip, _)) = prefix(text) else { continue };
            // Such an address counts on its link alone, so each link may have it.
            if formats::is_link_local(ip) {
                continue;
            }
            let at = path::index(&list, i);
            match first.addresses.get(&ip) {
                Some(other) => {
                    let reason = format!("is there twice: {other} has it, too");
                    self.broken(&at, Some(text), &reason);
                }
                None => {
                    first.addresses.insert(ip, at);
                }
            }
        }
    }

    /// The kernel has one order of routes to one destination, the metrics: of two with one metric chance chooses.
    fn own_route(&mut self, route: OwnRoute<'_>, first: &mut FirstHolders<'_>) {
        let Some((to, length)) = prefix(route.to) else { return };
        let key = (to, length, route.metric);
        match first.routes.get(&key) {
            Some(other) => {
                let reason = format!(
                    "is a second route to {} with metric {}, as {other}: give one of them another metric",
                    route.to, route.metric
                );
                self.broken(&route.path, route.via, &reason);
            }
            None => {
                first.routes.insert(key, route.path);
            }
        }
    }

    /// The kernel takes no gateway of a family of which the interface has no address.
    fn reached(&mut self, links: &Links<'_>, link: Link<'_>, route: &OwnRoute<'_>) {
        let (own, carries) = (link.addressing(), links.only_carries(link));
        let is_reached = match route.via {
            None => !carries,
            Some(via) => {
                let ipv6 = via.contains(':');
                let is_near = || route.on_link || via.parse::<IpAddr>().is_ok_and(formats::is_link_local);
                let learns = links.asks_dhcp(link) || ipv6 && !carries && own.accept_ra != Some(false);
                learns
                    || own.addresses.iter().any(|address| address.contains(':') == ipv6)
                    || !carries && is_near()
            }
        };
        if !is_reached {
            let reason =
                "needs an address of its family on this interface: addresses has none, and DHCP is not asked";
            self.broken(&route.path, route.via, reason);
        }
    }
}

fn match_key(link: Link<'_>) -> MatchKey<'_> {
    let LinkEntry::Interface(interface) = link.entry else {
        return (link.word().to_owned(), None, None);
    };
    let who = match &interface.mac_address {
        Some(mac) => mac.to_ascii_lowercase(),
        None => interface.name.clone(),
    };
    (who, interface.driver.as_deref(), interface.path.as_deref())
}

/// Default gateways, then static routes; `position` is that of the entry among all.
fn routes(link: Link<'_>, position: usize) -> Vec<OwnRoute<'_>> {
    let (own, at) = (link.addressing(), link.path());
    let entry_metric = u32::try_from(route_metric(position)).unwrap_or(u32::MAX);
    let mut all = Vec::new();
    for (key, gateway) in [("gateway", own.gateway), ("gateway6", own.gateway6)] {
        let Some(via) = gateway else { continue };
        all.push(OwnRoute {
            path: path::child(&at, key),
            to: if via.contains(':') { "::/0" } else { "0.0.0.0/0" },
            via: Some(via),
            metric: entry_metric,
            on_link: false,
        });
    }
    let list = path::child(&at, "routes");
    for (i, route) in own.routes.iter().enumerate() {
        all.push(OwnRoute {
            path: path::index(&list, i),
            to: route.to.as_str(),
            via: route.via.as_deref(),
            metric: route.metric.unwrap_or(entry_metric),
            on_link: route.on_link == Some(true),
        });
    }
    all
}

/// An address and a prefix length.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, length) = text.split_once('/')?;
    Some((ip.parse().ok()?, length.parse().ok()?))
}
