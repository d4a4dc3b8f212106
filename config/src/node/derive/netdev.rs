//! systemd-networkd's `.netdev` files: the interfaces that the node makes.
//!
//! In: a link. Out: the text that makes it, or nothing for an interface of the machine. A bond or bridge has the MAC
//! address of its entry, or one that networkd makes from the machine id and the name: the same at every boot, and no
//! member's, which would depend on which one is there first. A VLAN has its parent's.

use super::network::line;
use crate::node::links::{Link, LinkEntry};
use crate::node::network::{Bond, Bridge, Vlan};

/// The file's text; `None` for an interface that is there.
pub(super) fn netdev(link: Link<'_>) -> Option<String> {
    match link.entry {
        LinkEntry::Interface(_) => None,
        LinkEntry::Bond(bond) => Some(of_bond(bond)),
        LinkEntry::Vlan(vlan) => Some(of_vlan(vlan)),
        LinkEntry::Bridge(bridge) => Some(of_bridge(bridge)),
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

fn of_bond(bond: &Bond) -> String {
    let mut text = head(&bond.name, "bond", bond.mac_address.as_deref());
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

fn of_bridge(bridge: &Bridge) -> String {
    let mut text = head(&bridge.name, "bridge", bridge.mac_address.as_deref());
    text.push_str("\n[Bridge]\n");
    line(&mut text, "STP", if bridge.stp { "yes" } else { "no" });
    text
}

#[cfg(test)]
mod tests;
