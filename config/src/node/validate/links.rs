//! Rules of interfaces: how they are matched and named, and what bonds, VLANs and bridges are made of.
//!
//! networkd would take most of these mistakes and leave an interface half made, which no one sees before the node is
//! unreachable.

use super::Rules;
use super::network::is_mac;
use crate::formats;
use crate::node::derive::LINKS_MAX;
use crate::node::links::{Link, LinkEntry, Links};
use crate::node::network::{Bond, BondMode, Interface, Network, Vlan};
use crate::path;
use std::collections::BTreeMap;

/// Interfaces that are the node's already: the loopback, and the bridge of its own pod network.
const TAKEN: [&str; 2] = ["lo", "orlop0"];
const UNKNOWN: &str = "is no id or name below network: interfaces with a pattern or a MAC address need an id";
const MANY: &str = "may be several interfaces: give its entry macAddress or path";

impl Rules<'_> {
    pub(super) fn network(&mut self, network: &Network) {
        let links = Links::of(network);
        if links.all().len() > LINKS_MAX {
            let reason = format!("has more than {LINKS_MAX} interfaces, bonds, VLANs and bridges");
            self.broken("network", None, &reason);
            return;
        }
        let mut words = BTreeMap::new();
        for link in links.all() {
            let at = link.path();
            self.named(*link, &mut words);
            match link.entry {
                LinkEntry::Interface(interface) => self.interface(interface, &at),
                LinkEntry::Bond(bond) => {
                    self.own_mac(bond.mac_address.as_deref(), &at);
                    self.members(&links, *link);
                    self.bond(&links, bond, &at);
                }
                LinkEntry::Vlan(vlan) => self.vlan(&links, vlan, *link),
                LinkEntry::Bridge(bridge) => {
                    self.own_mac(bridge.mac_address.as_deref(), &at);
                    self.members(&links, *link);
                }
            }
            self.addressing(link.addressing(), &at);
            if links.master(*link).is_some() {
                self.member(&links, *link);
            }
            if links.is_in_loop(*link) {
                self.broken(&at, Some(link.word()), "stands on itself: an interface cannot be below itself");
            }
            self.mtu(&links, *link);
        }
        self.clashes(&links);
    }

    /// The word by which other entries name this one.
    fn named<'a>(&mut self, link: Link<'a>, words: &mut BTreeMap<&'a str, String>) {
        let Some((key, word)) = link.handle() else { return };
        let at = path::child(&link.path(), key);
        match link.entry {
            LinkEntry::Interface(_) if key == "id" => {
                let is_word = formats::is_qualified_name(word) && !word.contains('/');
                self.rule(is_word, &at, word, "must be a word of letters, digits, -, _ and .");
            }
            LinkEntry::Interface(_) => {}
            _ => {
                self.rule(
                    formats::is_interface_name(word),
                    &at,
                    word,
                    "must be a name of 1 to 15 letters, digits, -, _ and ., not of digits alone",
                );
                self.rule(!TAKEN.contains(&word), &at, word, "is the node's own interface");
            }
        }
        match words.get(word) {
            Some(first) => {
                let reason = format!("is there twice: {first} has it, too");
                self.broken(&at, Some(word), &reason);
            }
            None => {
                words.insert(word, link.path());
            }
        }
    }

    fn interface(&mut self, interface: &Interface, at: &str) {
        let pattern = |b: u8| b.is_ascii_alphanumeric() || b" *?[]!-_.:@".contains(&b);
        let is_pattern = |text: &str| !text.trim().is_empty() && text.bytes().all(pattern);
        self.rule(
            is_pattern(&interface.name),
            &path::child(at, "name"),
            &interface.name,
            "must be interface names or patterns such as en*, with blanks between",
        );
        if let Some(mac) = &interface.mac_address {
            let reason = "must be six hex pairs with : between";
            self.rule(is_mac(mac), &path::child(at, "macAddress"), mac, reason);
        }
        let places = [
            ("driver", &interface.driver, "must be drivers or patterns such as mlx5*, with blanks between"),
            (
                "path",
                &interface.path,
                "must be places or patterns such as pci-0000:01:00.*, with blanks between",
            ),
        ];
        for (key, text, reason) in places {
            if let Some(text) = text {
                self.rule(is_pattern(text), &path::child(at, key), text, reason);
            }
        }
    }

    /// The MAC address that an interface gets.
    fn own_mac(&mut self, mac: Option<&str>, at: &str) {
        let Some(mac) = mac else { return };
        // The last bit of the first byte is that of groups.
        let is_group = mac.as_bytes().get(1).is_some_and(|digit| b"13579bBdDfF".contains(digit));
        self.rule(
            is_mac(mac) && !is_group && mac != "00:00:00:00:00:00",
            &path::child(at, "macAddress"),
            mac,
            "must be six hex pairs with : between, and the address of one interface",
        );
    }

    /// Each member of a bond or bridge is there, fits, and is the member of no other.
    fn members(&mut self, links: &Links<'_>, master: Link<'_>) {
        let list = path::child(&master.path(), "members");
        let is_bond = matches!(master.entry, LinkEntry::Bond(_));
        if is_bond && master.members().is_empty() {
            self.broken(&list, None, "must name at least one interface");
        }
        for (i, word) in master.members().iter().enumerate() {
            let at = path::index(&list, i);
            let Some(link) = links.find(word) else {
                self.broken(&at, Some(word), UNKNOWN);
                continue;
            };
            let fits = match link.entry {
                LinkEntry::Interface(_) => true,
                LinkEntry::Bond(_) | LinkEntry::Vlan(_) => !is_bond,
                LinkEntry::Bridge(_) => false,
            };
            if !fits {
                let reason = match is_bond {
                    true => "must be of network.interfaces: a bond is made of the machine's own interfaces",
                    false => "must be an interface, a bond or a VLAN: a bridge has no bridge in it",
                };
                self.broken(&at, Some(word), reason);
            } else if master.members()[..i].contains(word) {
                self.broken(&at, Some(word), "is there twice");
            } else if let Some(first) = links.masters(word).find(|first| first.path() != master.path()) {
                let reason = format!("is a member of {}, too: an interface has one place", first.word());
                self.broken(&at, Some(word), &reason);
            }
        }
    }

    /// Keys that a member's entry cannot have: what they say belongs to the bond or bridge.
    fn member(&mut self, links: &Links<'_>, link: Link<'_>) {
        let Some(master) = links.master(link) else { return };
        let (own, at) = (link.addressing(), link.path());
        let is_bond = matches!(master.entry, LinkEntry::Bond(_));
        let keys = [
            ("dhcp", own.dhcp == Some(true)),
            ("acceptRA", own.accept_ra == Some(true)),
            ("addresses", !own.addresses.is_empty()),
            ("gateway", own.gateway.is_some()),
            ("gateway6", own.gateway6.is_some()),
            ("routes", !own.routes.is_empty()),
            ("dns", !own.dns.is_empty()),
            ("search", !own.search.is_empty()),
            // A bond gives its members its own.
            ("mtu", is_bond && own.mtu.is_some()),
        ];
        for (key, _) in keys.iter().filter(|(_, is_there)| *is_there) {
            let reason = format!("belongs to {}: {} is a member of it", master.word(), link.word());
            self.broken(&path::child(&at, key), None, &reason);
        }
    }

    /// Options that count with some modes alone.
    fn bond(&mut self, links: &Links<'_>, bond: &Bond, at: &str) {
        let mode = bond.mode;
        let has_primary =
            matches!(mode, BondMode::ActiveBackup | BondMode::BalanceTlb | BondMode::BalanceAlb);
        let hashes = matches!(mode, BondMode::Lacp | BondMode::BalanceXor | BondMode::BalanceTlb);
        let options = [
            ("lacpRate", bond.lacp_rate.is_some(), mode == BondMode::Lacp, "802.3ad"),
            ("hashPolicy", bond.hash_policy.is_some(), hashes, "802.3ad, balance-xor and balance-tlb"),
            ("primary", bond.primary.is_some(), has_primary, "active-backup, balance-tlb and balance-alb"),
        ];
        for (key, is_there, counts, modes) in options {
            if is_there && !counts {
                let reason = format!("counts with mode {modes}, and not with {}", mode.as_str());
                self.broken(&path::child(at, key), None, &reason);
            }
        }
        if let Some(primary) = &bond.primary {
            let at = path::child(at, "primary");
            self.rule(bond.members.contains(primary), &at, primary, "must be one of members");
            if links.find(primary).is_some_and(Link::may_be_many) {
                self.broken(&at, Some(primary), MANY);
            }
        }
    }

    fn vlan(&mut self, links: &Links<'_>, vlan: &Vlan, link: Link<'_>) {
        let at_parent = path::child(&link.path(), "parent");
        let Some(parent) = links.find(&vlan.parent) else {
            self.broken(&at_parent, Some(&vlan.parent), UNKNOWN);
            return;
        };
        if parent.may_be_many() {
            self.broken(&at_parent, Some(&vlan.parent), MANY);
        }
        let bond = links.master(parent).filter(|master| matches!(master.entry, LinkEntry::Bond(_)));
        if let Some(bond) = bond {
            let reason =
                format!("is a member of {}: a VLAN is on the bond, not on a part of it", bond.word());
            self.broken(&at_parent, Some(&vlan.parent), &reason);
        }
        // The first one with the number is right.
        let first = links.vlans(parent).find(|other| other.id == vlan.id);
        if let Some(first) = first.filter(|first| first.name != vlan.name) {
            let reason = format!("is {} on {} already", first.name, vlan.parent);
            self.broken(&path::child(&link.path(), "id"), Some(&vlan.id.to_string()), &reason);
        }
    }

    /// The kernel makes no VLAN whose packets its parent cannot carry; a bridge whose packets a member cannot carry loses
    /// them.
    fn mtu(&mut self, links: &Links<'_>, link: Link<'_>) {
        let Some(own) = link.addressing().mtu else { return };
        if matches!(link.entry, LinkEntry::Bond(_)) {
            return;
        }
        let below = link.below().iter().filter_map(|word| links.find(word));
        let Some(least) = below.min_by_key(|below| links.mtu(*below)) else { return };
        let max = links.mtu(least);
        if own > max {
            let reason = format!("must be at most that of {}, {max}", least.word());
            self.broken(&path::child(&link.path(), "mtu"), Some(&own.to_string()), &reason);
        }
    }
}

#[cfg(test)]
mod tests;
