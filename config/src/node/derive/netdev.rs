//! systemd-networkd's `.netdev` files: the interfaces that the node makes.
//!
//! In: a link. Out: the text that makes it, or nothing for an interface of the machine. A bond or bridge has the MAC
//! address that the document knows for it ([`Links::mac_address`]): DHCP and switches know the machine by it, and it
//! stays when the machine is installed again. Where the document knows none, networkd makes one from the machine id and
//! the name: the same at every boot, whichever member is there first. A VLAN has its parent's.

use super::network::line;
use crate::node::links::{Link, LinkEntry, Links};
use crate::node::network::{Bond, Bridge, Vlan};

/// The file's text; `None` for an interface that is there.
pub(super) fn netdev(links: &Links<'_>, link: Link<'_>) -> Option<String> {
    match link.entry {
        LinkEntry::Interface(_) => None,
        LinkEntry::Bond(bond) => Some(of_bond(bond, links.mac_address(link))),
        LinkEntry::Vlan(vlan) => Some(of_vlan(vlan)),
        LinkEntry::Bridge(bridge) => Some(of_bridge(bridge, links.mac_address(link))),
    }
}

fn head(name: &str, kind: &str, mac_address: Option<&str>) -> String {
    let mut text = String::from("[NetDev]\n");
    line(&mut text, "Name", name);
    line(&mut text, "Kind", kind);
    if let Some(mac_address) = mac_address {
        line(&mut text, "MACAddress", mac_address);
    }
    text
}

fn of_bond(bond: &Bond, mac_address: Option<&str>) -> String {
    let mut text = head(&bond.name, "bond", mac_address);
    text.push_str("\n[Bond]\n");
    line(&mut text, "Mode", bond.mode.as_str());
    // The kernel's default is never: a member whose cable is out would stay in use.
    line(&mut text, "MIIMonitorSec", &format!("{}ms", bond.miimon));
    if let Some(rate) = bond.lacp_rate {
        line(&mut text, "LACPTransmitRate", rate.as_str());
    }
    if let Some(policy) = bond.hash_policy {
        line(&mut text, "TransmitHashPolicy", policy.as_str());
    }
    text
}

fn of_vlan(vlan: &Vlan) -> String {
    let mut text = head(&vlan.name, "vlan", None);
    text.push_str("\n[VLAN]\n");
    line(&mut text, "Id", &vlan.id.to_string());
    text
}

fn of_bridge(bridge: &Bridge, mac_address: Option<&str>) -> String {
    let mut text = head(&bridge.name, "bridge", mac_address);
    text.push_str("\n[Bridge]\n");
    line(&mut text, "STP", if bridge.stp { "yes" } else { "no" });
    text
}

#[cfg(test)]
mod tests;
