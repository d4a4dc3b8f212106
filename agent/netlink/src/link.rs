//! Links: messages of rtnetlink about interfaces, and their decoded attributes. Pure. Format: rtnetlink(7).

use std::os::fd::RawFd;

use crate::wire::{CREATE, EXCLUSIVE, Message, REQUEST, attributes, text, u32_at};

/// `RTM_NEWLINK`: the kernel's answer, too.
pub const NEWLINK: u16 = 16;
const DELLINK: u16 = 17;
const GETLINK: u16 = 18;
const SETLINK: u16 = 19;
const HEADER_BYTES: usize = 16;

const AF_BRIDGE: u8 = 7;
const IFF_UP: u32 = 0x1;
const IFF_PROMISC: u32 = 0x100;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_PROTINFO: u16 = 12;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_PROMISCUITY: u16 = 30;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_ISOLATED: u16 = 33;
const VETH_INFO_PEER: u16 = 1;
/// `RTEXT_FILTER_SKIP_STATS`: an answer without counters.
const SKIP_STATS: u32 = 1 << 3;
/// `IF_OPER_UP`, RFC 2863.
const OPER_UP: u8 = 6;

/// Six bytes of an Ethernet address.
pub type Mac = [u8; 6];

/// An interface as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// `bridge`, `veth`, …; empty for others.
    pub kind: String,
    /// Its address, if it is of Ethernet's length.
    pub mac: Option<Mac>,
    /// The bridge that it is a port of.
    pub master: Option<u32>,
    /// Of a veth: the number of the other end, in that one's namespace.
    pub peer: Option<u32>,
    /// It was set up.
    pub up: bool,
    /// It can carry packets (RFC 2863's operational state).
    pub running: bool,
    /// It receives every packet.
    pub promiscuous: bool,
}

/// The link of an answer, if it is one.
#[must_use]
pub fn parse(body: &[u8]) -> Option<Link> {
    let mut link = Link { index: u32_at(body, 4)?, up: u32_at(body, 8)? & IFF_UP != 0, ..Link::default() };
    for (kind, value) in attributes(body.get(HEADER_BYTES..)?) {
        match kind {
            IFLA_ADDRESS => link.mac = value.try_into().ok(),
            IFLA_IFNAME => link.name = text(value),
            IFLA_LINK => link.peer = u32_at(value, 0),
            IFLA_MASTER => link.master = u32_at(value, 0),
            IFLA_OPERSTATE => link.running = value.first() == Some(&OPER_UP),
            IFLA_PROMISCUITY => link.promiscuous = u32_at(value, 0).is_some_and(|count| count > 0),
            IFLA_LINKINFO => {
                let info = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                link.kind = info.map(|(_, value)| text(value)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(link)
}

/// Asks for one link.
#[must_use]
pub fn get(name: &str) -> Message {
    let message = Message::new(GETLINK, REQUEST, &header(0, 0, 0, 0));
    message.with_text(IFLA_IFNAME, name).with_u32(IFLA_EXT_MASK, SKIP_STATS)
}

/// Makes a bridge that is up. With an address of its own it does not take the lowest of its ports', and no other
/// program gives it one.
#[must_use]
pub fn create_bridge(name: &str, mtu: Option<u32>, mac: Mac) -> Message {
    let message = Message::new(NEWLINK, REQUEST | CREATE | EXCLUSIVE, &header(0, 0, IFF_UP, IFF_UP));
    let message = message.with_text(IFLA_IFNAME, name).with(IFLA_ADDRESS, &mac);
    with_mtu(message, mtu).nested(IFLA_LINKINFO, |m| m.with_text(IFLA_INFO_KIND, "bridge"))
}

/// A pair: one end here, up, at a bridge; the other in another namespace, down.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    /// Name of the end that stays.
    pub name: &'a str,
    /// The bridge's number.
    pub master: u32,
    /// Bytes, for both ends; the kernel's default if none.
    pub mtu: Option<u32>,
    /// Name of the other end.
    pub peer: &'a str,
    /// The other end's namespace.
    pub namespace: RawFd,
    /// The other end's address; a random one if none.
    pub mac: Option<Mac>,
}

/// Makes the pair.
#[must_use]
pub fn create_veth(veth: &Veth<'_>) -> Message {
    let message = Message::new(NEWLINK, REQUEST | CREATE | EXCLUSIVE, &header(0, 0, IFF_UP, IFF_UP));
    let message = message.with_text(IFLA_IFNAME, veth.name).with_u32(IFLA_MASTER, veth.master);
    let peer = |m: Message| {
        let m = m.raw(&header(0, 0, 0, 0)).with_text(IFLA_IFNAME, veth.peer);
        let m = with_mtu(m.with(IFLA_NET_NS_FD, &veth.namespace.to_ne_bytes()), veth.mtu);
        match veth.mac {
            Some(mac) => m.with(IFLA_ADDRESS, &mac),
            None => m,
        }
    };
    with_mtu(message, veth.mtu).nested(IFLA_LINKINFO, |m| {
        m.with_text(IFLA_INFO_KIND, "veth").nested(IFLA_INFO_DATA, |m| m.nested(VETH_INFO_PEER, peer))
    })
}

/// Sets it up.
#[must_use]
pub fn set_up(index: u32) -> Message {
    Message::new(SETLINK, REQUEST, &header(0, index, IFF_UP, IFF_UP))
}

/// Makes it take every packet.
#[must_use]
pub fn set_promiscuous(index: u32) -> Message {
    Message::new(SETLINK, REQUEST, &header(0, index, IFF_PROMISC, IFF_PROMISC))
}

/// Gives it an address.
#[must_use]
pub fn set_mac(index: u32, mac: Mac) -> Message {
    Message::new(SETLINK, REQUEST, &header(0, index, 0, 0)).with(IFLA_ADDRESS, &mac)
}

/// Whether the port's bridge sends packets back to it (`hairpin`), and keeps it from other isolated ports.
#[must_use]
pub fn set_port(index: u32, hairpin: bool, isolated: bool) -> Message {
    Message::new(SETLINK, REQUEST, &header(AF_BRIDGE, index, 0, 0)).nested(IFLA_PROTINFO, |m| {
        let m = m.with(IFLA_BRPORT_MODE, &[u8::from(hairpin)]);
        if isolated { m.with(IFLA_BRPORT_ISOLATED, &[1]) } else { m }
    })
}

/// Removes it; the kernel removes the other end of a veth with it.
#[must_use]
pub fn delete(name: &str) -> Message {
    Message::new(DELLINK, REQUEST, &header(0, 0, 0, 0)).with_text(IFLA_IFNAME, name)
}

fn with_mtu(message: Message, mtu: Option<u32>) -> Message {
    match mtu {
        Some(mtu) => message.with_u32(IFLA_MTU, mtu),
        None => message,
    }
}

/// `struct ifinfomsg`.
fn header(family: u8, index: u32, flags: u32, change: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = family;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::answers;

    #[test]
    fn what_is_asked_for_is_what_a_link_says() {
        let bytes = create_bridge("br0", Some(1400), [2, 0, 0, 0, 0, 1]).bytes(1);
        let body = answers(&bytes).next().expect("one message").body;
        let link = parse(body).expect("a link");
        assert_eq!((link.name.as_str(), link.kind.as_str(), link.up), ("br0", "bridge", true));
        assert_eq!(link.mac, Some([2, 0, 0, 0, 0, 1]));
        let mut running = Message::new(NEWLINK, 0, &header(0, 7, 0, 0));
        running = running.with(IFLA_OPERSTATE, &[OPER_UP]).with_u32(IFLA_MASTER, 3).with_u32(IFLA_LINK, 2);
        let bytes = running.bytes(1);
        let link = parse(answers(&bytes).next().expect("one message").body).expect("a link");
        let want = Link { index: 7, running: true, master: Some(3), peer: Some(2), ..Link::default() };
        assert_eq!(link, want);
    }

    proptest! {
        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&body);
        }
    }
}
