//! Addresses of links. Pure. Format: rtnetlink(7), `struct ifaddrmsg`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::{CREATE, DUMP, EXCLUSIVE, Message, REQUEST, attributes, u32_at};

/// `RTM_NEWADDR`: the kernel's answer, too.
pub const NEWADDR: u16 = 20;
const DELADDR: u16 = 21;
const GETADDR: u16 = 22;
const HEADER_BYTES: usize = 8;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_DADFAILED: u32 = 0x08;

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The link's number.
    pub index: u32,
    /// The address itself.
    pub ip: IpAddr,
    /// Bits of the network.
    pub prefix: u8,
    /// Duplicate address detection is under way.
    pub tentative: bool,
    /// It found the address in use.
    pub duplicate: bool,
}

/// `AF_INET` or `AF_INET6`.
#[must_use]
pub fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 2 } else { 10 }
}

/// The bytes of an address, first byte first.
#[must_use]
pub fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The address that these bytes are, if there are four or sixteen.
#[must_use]
pub fn from_octets(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|b| Ipv4Addr::from(b).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

/// The address of an answer, if it is one.
#[must_use]
pub fn parse(body: &[u8]) -> Option<Address> {
    let prefix = *body.get(1)?;
    let mut flags = u32::from(*body.get(2)?);
    let index = u32_at(body, 4)?;
    let (mut local, mut address) = (None, None);
    for (kind, value) in attributes(body.get(HEADER_BYTES..)?) {
        match kind {
            IFA_ADDRESS => address = from_octets(value),
            IFA_LOCAL => local = from_octets(value),
            IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    let (tentative, duplicate) = (flags & IFA_F_TENTATIVE != 0, flags & IFA_F_DADFAILED != 0);
    Some(Address { index, ip: local.or(address)?, prefix, tentative, duplicate })
}

/// Asks for all addresses of a family ([`family`]).
#[must_use]
pub fn dump(family: u8) -> Message {
    Message::new(GETADDR, REQUEST | DUMP, &header(family, 0, 0))
}

/// Adds one; an IPv4 address with the broadcast address of its network.
#[must_use]
pub fn add(index: u32, ip: IpAddr, prefix: u8) -> Message {
    let flags = REQUEST | CREATE | EXCLUSIVE;
    let message = with_address(Message::new(NEWADDR, flags, &header(family(ip), prefix, index)), ip);
    match ip {
        IpAddr::V4(ip) if prefix < 31 => {
            let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            message.with(IFA_BROADCAST, &(u32::from(ip) | hosts).to_be_bytes())
        }
        _ => message,
    }
}

/// Takes one away.
#[must_use]
pub fn delete(index: u32, ip: IpAddr, prefix: u8) -> Message {
    with_address(Message::new(DELADDR, REQUEST, &header(family(ip), prefix, index)), ip)
}

fn with_address(message: Message, ip: IpAddr) -> Message {
    message.with(IFA_LOCAL, &octets(ip)).with(IFA_ADDRESS, &octets(ip))
}

fn header(family: u8, prefix: u8, index: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = family;
    header[1] = prefix;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::answers;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for (ip, prefix, broadcast) in [
            ("10.88.1.2", 16, Some([10, 88, 255, 255])),
            ("10.0.0.1", 31, None),
            ("10.0.0.1", 0, Some([255; 4])),
            ("fd00::2", 64, None),
        ] {
            let ip: IpAddr = ip.parse().expect("an address");
            let bytes = add(4, ip, prefix).bytes(1);
            let body = answers(&bytes).next().expect("one message").body;
            let want = Address { index: 4, ip, prefix, tentative: false, duplicate: false };
            assert_eq!(parse(body), Some(want));
            let seen = attributes(&body[HEADER_BYTES..]).find(|(kind, _)| *kind == IFA_BROADCAST);
            assert_eq!(seen.map(|(_, value)| value), broadcast.as_ref().map(|b| &b[..]), "{ip}/{prefix}");
        }
    }

    proptest! {
        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&body);
        }
    }
}
