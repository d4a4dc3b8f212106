//! The interfaces of every kind as one list, and what they are to each other: members and masters, VLANs and parents.
//!
//! In: a configuration, valid or not. Out: links and their relations. Invariant: an entry is found by its first holder of
//! a name, so that two readers never follow one name to different entries. Upstream term: networkd's link.

use super::network::{Addressing, Bond, Bridge, Interface, Network, Vlan};
use crate::path;

/// Largest packet of an interface whose entry sets none, bytes.
pub(super) const MTU_DEFAULT: i32 = 1500;

/// One entry of the lists below `network`.
#[derive(Clone, Copy, Debug)]
pub(super) enum LinkEntry<'a> {
    Interface(&'a Interface),
    Bond(&'a Bond),
    Vlan(&'a Vlan),
    Bridge(&'a Bridge),
}

/// An entry with its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'a> {
    pub(super) entry: LinkEntry<'a>,
    /// Position in its own list.
    index: usize,
}

impl<'a> Link<'a> {
    /// Path of its entry.
    pub(super) fn path(self) -> String {
        let list = match self.entry {
            LinkEntry::Interface(_) => "network.interfaces",
            LinkEntry::Bond(_) => "network.bonds",
            LinkEntry::Vlan(_) => "network.vlans",
            LinkEntry::Bridge(_) => "network.bridges",
        };
        path::index(list, self.index)
    }

    /// The word by which `members` and `parent` name it, and the key that has it. `None`: nothing can name it.
    pub(super) fn handle(self) -> Option<(&'static str, &'a str)> {
        match self.entry {
            LinkEntry::Interface(interface) => match &interface.id {
                Some(id) => Some(("id", id.as_str())),
                None if interface.mac_address.is_none() && !is_pattern(&interface.name) => {
                    Some(("name", interface.name.as_str()))
                }
                None => None,
            },
            LinkEntry::Bond(Bond { name, .. })
            | LinkEntry::Vlan(Vlan { name, .. })
            | LinkEntry::Bridge(Bridge { name, .. }) => Some(("name", name.as_str())),
        }
    }

    /// Its word, or nothing.
    pub(super) fn word(self) -> &'a str {
        self.handle().map_or("", |(_, word)| word)
    }

    pub(super) fn addressing(self) -> Addressing<'a> {
        match self.entry {
            LinkEntry::Interface(interface) => interface.addressing(),
            LinkEntry::Bond(bond) => bond.addressing(),
            LinkEntry::Vlan(vlan) => vlan.addressing(),
            LinkEntry::Bridge(bridge) => bridge.addressing(),
        }
    }

    /// The words of its members.
    pub(super) fn members(self) -> &'a [String] {
        match self.entry {
            LinkEntry::Bond(bond) => &bond.members,
            LinkEntry::Bridge(bridge) => &bridge.members,
            LinkEntry::Interface(_) | LinkEntry::Vlan(_) => &[],
        }
    }

    /// The words of the links that must be there before it.
    pub(super) fn below(self) -> &'a [String] {
        match self.entry {
            LinkEntry::Vlan(vlan) => std::slice::from_ref(&vlan.parent),
            _ => self.members(),
        }
    }

    /// Whether more than one interface of the machine may match.
    pub(super) fn may_be_many(self) -> bool {
        match self.entry {
            LinkEntry::Interface(interface) => {
                let placed = interface.path.as_deref().is_some_and(|path| !is_pattern(path));
                interface.mac_address.is_none() && !placed && is_pattern(&interface.name)
            }
            _ => false,
        }
    }
}

/// Whether a text is a pattern as shells have them, or several.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '!', ' '])
}

/// All links of a configuration.
#[derive(Clone, Debug)]
pub(super) struct Links<'a> {
    all: Vec<Link<'a>>,
}

impl<'a> Links<'a> {
    /// In the order of the lists: interfaces, bonds, VLANs, bridges.
    pub(super) fn of(network: &'a Network) -> Links<'a> {
        let interfaces = network.interfaces.iter().map(LinkEntry::Interface).enumerate();
        let bonds = network.bonds.iter().map(LinkEntry::Bond).enumerate();
        let vlans = network.vlans.iter().map(LinkEntry::Vlan).enumerate();
        let bridges = network.bridges.iter().map(LinkEntry::Bridge).enumerate();
        let all = interfaces.chain(bonds).chain(vlans).chain(bridges);
        Links { all: all.map(|(index, entry)| Link { entry, index }).collect() }
    }

    pub(super) fn all(&self) -> &[Link<'a>] {
        &self.all
    }

    /// The link with this word.
    pub(super) fn find(&self, word: &str) -> Option<Link<'a>> {
        self.all.iter().copied().find(|link| !word.is_empty() && link.word() == word)
    }

    /// The bonds and bridges with this member.
    pub(super) fn masters(&self, word: &str) -> impl Iterator<Item = Link<'a>> {
        self.all.iter().copied().filter(move |link| link.members().iter().any(|member| member == word))
    }

    /// The bond or bridge whose member a link is.
    pub(super) fn master(&self, link: Link<'a>) -> Option<Link<'a>> {
        let (_, word) = link.handle()?;
        self.masters(word).next()
    }

    /// The VLANs on a link.
    pub(super) fn vlans(&self, link: Link<'a>) -> impl Iterator<Item = &'a Vlan> {
        let word = link.handle().map(|(_, word)| word);
        self.all.iter().filter_map(move |other| match other.entry {
            LinkEntry::Vlan(vlan) if word == Some(vlan.parent.as_str()) => Some(vlan),
            _ => None,
        })
    }

    /// Whether it is a member, or a parent of VLANs.
    pub(super) fn carries(&self, link: Link<'a>) -> bool {
        self.master(link).is_some() || self.vlans(link).next().is_some()
    }

    /// Whether it also has addresses and routes of the network, in addition to those of its entry.
    pub(super) fn asks_dhcp(&self, link: Link<'a>) -> bool {
        let own = link.addressing();
        own.dhcp.unwrap_or_else(|| own.addresses.is_empty() && !self.only_carries(link))
    }

    /// Whether it is there for others: a member of a bond or bridge, a parent of VLANs without addresses of its own, or a
    /// bridge that has neither.
    pub(super) fn only_carries(&self, link: Link<'a>) -> bool {
        let own = link.addressing();
        if self.master(link).is_some() {
            return true;
        }
        let is_told = own.dhcp == Some(true) || own.accept_ra == Some(true) || !own.addresses.is_empty();
        let is_alone = matches!(link.entry, LinkEntry::Bridge(bridge) if bridge.members.is_empty());
        !is_told && (is_alone || self.vlans(link).next().is_some())
    }

    /// The MAC address that a bond or bridge gets: that of its entry, else that of the first entry below it that has one.
    /// Both are the same after a new installation. `None`: networkd makes one.
    pub(super) fn mac_address(&self, link: Link<'a>) -> Option<&'a str> {
        let mut next = vec![link];
        // A loop is refused elsewhere; here it only ends.
        for _ in 0..=self.all.len() {
            let at = next.pop()?;
            let own = match at.entry {
                LinkEntry::Interface(Interface { mac_address, .. })
                | LinkEntry::Bond(Bond { mac_address, .. })
                | LinkEntry::Bridge(Bridge { mac_address, .. }) => mac_address.as_deref(),
                LinkEntry::Vlan(_) => None,
            };
            if own.is_some() {
                return own;
            }
            next.extend(at.below().iter().rev().filter_map(|word| self.find(word)));
        }
        None
    }

    /// Largest packet of a link, bytes: a VLAN has that of its parent if it sets none.
    pub(super) fn mtu(&self, link: Link<'a>) -> i32 {
        let mut at = link;
        // A loop is refused elsewhere; here it only ends.
        for _ in 0..=self.all.len() {
            match (at.addressing().mtu, at.entry) {
                (Some(mtu), _) => return mtu,
                (None, LinkEntry::Vlan(vlan)) => match self.find(&vlan.parent) {
                    Some(parent) => at = parent,
                    None => break,
                },
                (None, _) => break,
            }
        }
        MTU_DEFAULT
    }

    /// Whether a link stands on itself, directly or over others.
    pub(super) fn is_in_loop(&self, link: Link<'a>) -> bool {
        let (mut seen, mut next) = (vec![false; self.all.len()], link.below().to_vec());
        while let Some(word) = next.pop() {
            if word == link.word() {
                return true;
            }
            let Some(at) = self.all.iter().position(|other| other.word() == word) else { continue };
            if !std::mem::replace(&mut seen[at], true) {
                next.extend_from_slice(self.all[at].below());
            }
        }
        false
    }
}
