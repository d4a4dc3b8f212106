//! Which packets a capture has: by address, port and protocol. Pure.
//!
//! In: a packet, and what its bytes begin with. Out: yes or no. Invariants: bytes of any form are no reason to panic; a packet that is not
//! understood, or cut before the field that decides, matches no condition about that field.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::pcap::LinkKind;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
/// Tags of VLANs (IEEE 802.1Q, 802.1ad).
const VLANS: [u16; 2] = [0x8100, 0x88a8];
/// Tags of one packet that are passed over.
const VLANS_MAX: usize = 2;
/// Headers of IPv6 before that of the protocol which are passed over.
const EXTENSIONS_MAX: usize = 8;

/// A protocol that a capture may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmp6,
    Arp,
}

impl Protocol {
    /// By its name.
    pub(super) fn of(name: &str) -> Option<Protocol> {
        match name {
            "tcp" => Some(Protocol::Tcp),
            "udp" => Some(Protocol::Udp),
            "sctp" => Some(Protocol::Sctp),
            "icmp" => Some(Protocol::Icmp),
            "icmp6" => Some(Protocol::Icmp6),
            "arp" => Some(Protocol::Arp),
            _ => None,
        }
    }

    /// By its number in IP.
    fn of_number(number: u8) -> Option<Protocol> {
        match number {
            1 => Some(Protocol::Icmp),
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            58 => Some(Protocol::Icmp6),
            132 => Some(Protocol::Sctp),
            _ => None,
        }
    }

    fn has_ports(self) -> bool {
        matches!(self, Protocol::Tcp | Protocol::Udp | Protocol::Sctp)
    }
}

/// Conditions, all of which hold for a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketFilter {
    pub(super) host: Option<IpAddr>,
    pub(super) port: Option<u16>,
    pub(super) protocol: Option<Protocol>,
    /// The client's own end of the connection: each piece of the capture would be packets of the next one.
    pub(super) not_client: Option<SocketAddr>,
}

/// The fields of a packet that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacketFields {
    ends: Option<(IpAddr, IpAddr)>,
    protocol: Option<Protocol>,
    ports: Option<(u16, u16)>,
}

impl PacketFilter {
    /// Whether the packet belongs to the capture.
    pub(super) fn takes(&self, link: LinkKind, packet: &[u8]) -> bool {
        if *self == PacketFilter::default() {
            return true;
        }
        let fields = fields(link, packet);
        let is_end = |ip: IpAddr| fields.ends.is_some_and(|(from, to)| from == ip || to == ip);
        let is_port = |port: u16| fields.ports.is_some_and(|(from, to)| from == port || to == port);
        self.host.is_none_or(is_end)
            && self.port.is_none_or(is_port)
            && self.protocol.is_none_or(|protocol| fields.protocol == Some(protocol))
            && self.not_client.is_none_or(|client| !is_of(client, &fields))
    }
}

/// Whether the packet comes from this address and port or goes there.
fn is_of(client: SocketAddr, fields: &PacketFields) -> bool {
    let (Some((from, to)), Some((from_port, to_port))) = (fields.ends, fields.ports) else { return false };
    let ip = client.ip().to_canonical();
    [(from, from_port), (to, to_port)].contains(&(ip, client.port()))
}

fn fields(link: LinkKind, packet: &[u8]) -> PacketFields {
    let nothing = PacketFields { ends: None, protocol: None, ports: None };
    let found = match link {
        LinkKind::Ethernet => ethernet(packet),
        LinkKind::Ip => match packet.first().map(|byte| byte >> 4) {
            Some(4) => ipv4(packet),
            Some(6) => ipv6(packet),
            _ => None,
        },
    };
    found.unwrap_or(nothing)
}

fn ethernet(packet: &[u8]) -> Option<PacketFields> {
    let mut at = 12;
    for _ in 0..VLANS_MAX {
        if VLANS.contains(&word(packet, at)?) {
            at += 4;
        }
    }
    let body = packet.get(at + 2..)?;
    match word(packet, at)? {
        IPV4 => ipv4(body),
        IPV6 => ipv6(body),
        ARP => {
            // Of IPv4 on Ethernet, whose addresses are at these places (RFC 826).
            let ends = v4(body, 14).zip(v4(body, 24)).filter(|_| word(body, 2) == Some(IPV4));
            Some(PacketFields { ends, protocol: Some(Protocol::Arp), ports: None })
        }
        _ => None,
    }
}

fn ipv4(packet: &[u8]) -> Option<PacketFields> {
    let ends = Some((v4(packet, 12)?, v4(packet, 16)?));
    let protocol = Protocol::of_number(*packet.get(9)?);
    let header = usize::from(packet.first()? & 0x0f) * 4;
    // Only the first fragment has ports.
    let is_first = word(packet, 6)? & 0x1fff == 0;
    let ports = packet.get(header..).filter(|_| is_first).and_then(|body| ports(protocol, body));
    Some(PacketFields { ends, protocol, ports })
}

fn ipv6(packet: &[u8]) -> Option<PacketFields> {
    let ends = Some((v6(packet, 8)?, v6(packet, 24)?));
    let (mut next, mut body) = (*packet.get(6)?, packet.get(40..)?);
    for _ in 0..EXTENSIONS_MAX {
        let length = match next {
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => (usize::from(*body.get(1)?) + 1) * 8,
            // A fragment; only the first one has ports.
            44 if word(body, 2)? & 0xfff8 == 0 => 8,
            44 => {
                let protocol = Protocol::of_number(*body.first()?);
                return Some(PacketFields { ends, protocol, ports: None });
            }
            _ => break,
        };
        next = *body.first()?;
        let Some(after) = body.get(length..) else {
            return Some(PacketFields { ends, protocol: None, ports: None });
        };
        body = after;
    }
    let protocol = Protocol::of_number(next);
    Some(PacketFields { ends, protocol, ports: ports(protocol, body) })
}

fn ports(protocol: Option<Protocol>, body: &[u8]) -> Option<(u16, u16)> {
    protocol.filter(|protocol| protocol.has_ports())?;
    Some((word(body, 0)?, word(body, 2)?))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk::<2>().map(|word| u16::from_be_bytes(*word))
}

fn v4(bytes: &[u8], at: usize) -> Option<IpAddr> {
    bytes.get(at..)?.first_chunk::<4>().map(|octets| IpAddr::V4(Ipv4Addr::from(*octets)))
}

fn v6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    bytes.get(at..)?.first_chunk::<16>().map(|octets| IpAddr::V6(Ipv6Addr::from(*octets)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETHERNET: LinkKind = LinkKind::Ethernet;

    fn ethernet_of(kind: u16, body: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &kind.to_be_bytes(), body].concat()
    }

    /// From 192.0.2.1 to 192.0.2.2.
    fn v4_of(protocol: u8, fragment: u16, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0];
        packet.extend_from_slice(&fragment.to_be_bytes());
        packet.extend_from_slice(&[64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        packet.extend_from_slice(body);
        packet
    }

    /// From 2001:db8::1 to 2001:db8::2.
    fn v6_of(next: u8, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        for last in [1, 2] {
            packet.extend_from_slice(&[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        packet.extend_from_slice(body);
        packet
    }

    /// From 4711 to 443.
    const PORTS: [u8; 8] = [0x12, 0x67, 0x01, 0xbb, 0, 0, 0, 0];

    fn host(ip: &str) -> PacketFilter {
        PacketFilter { host: ip.parse().ok(), ..PacketFilter::default() }
    }

    fn port(port: u16) -> PacketFilter {
        PacketFilter { port: Some(port), ..PacketFilter::default() }
    }

    fn protocol(name: &str) -> PacketFilter {
        PacketFilter { protocol: Protocol::of(name), ..PacketFilter::default() }
    }

    #[test]
    fn addresses_ports_and_protocols_decide() {
        let tcp = ethernet_of(IPV4, &v4_of(6, 0, &PORTS));
        for (filter, takes) in [
            (PacketFilter::default(), true),
            (host("192.0.2.1"), true),
            (host("192.0.2.2"), true),
            (host("192.0.2.3"), false),
            (host("2001:db8::1"), false),
            (port(443), true),
            (port(4711), true),
            (port(80), false),
            (protocol("tcp"), true),
            (protocol("udp"), false),
            (PacketFilter { port: Some(80), ..host("192.0.2.1") }, false),
        ] {
            assert_eq!(filter.takes(ETHERNET, &tcp), takes, "{filter:?}");
        }
        assert!(protocol("icmp").takes(ETHERNET, &ethernet_of(IPV4, &v4_of(1, 0, &PORTS))));
        assert!(!port(443).takes(ETHERNET, &ethernet_of(IPV4, &v4_of(1, 0, &PORTS))), "ICMP has no ports");
    }

    #[test]
    fn tags_extensions_and_fragments_are_passed_over() {
        let tagged = ethernet_of(0x8100, &[&[0, 5][..], &IPV4.to_be_bytes(), &v4_of(17, 0, &PORTS)].concat());
        assert!(port(443).takes(ETHERNET, &tagged) && protocol("udp").takes(ETHERNET, &tagged));
        let options = [&[6, 0, 0, 0, 0, 0, 0, 0][..], &PORTS].concat();
        let v6 = v6_of(0, &options);
        assert!(port(443).takes(LinkKind::Ip, &v6) && host("2001:db8::2").takes(LinkKind::Ip, &v6));
        assert!(protocol("icmp6").takes(ETHERNET, &ethernet_of(IPV6, &v6_of(58, &[]))));
        let later = ethernet_of(IPV4, &v4_of(6, 0x00b9, &PORTS));
        assert!(!port(443).takes(ETHERNET, &later) && host("192.0.2.1").takes(ETHERNET, &later));
        let fragment = v6_of(44, &[&[6, 0, 0, 8, 0, 0, 0, 1][..], &PORTS].concat());
        assert!(!port(443).takes(LinkKind::Ip, &fragment) && protocol("tcp").takes(LinkKind::Ip, &fragment));
    }

    #[test]
    fn a_question_for_an_address_is_arp() {
        let mut body = vec![0, 1, 8, 0, 6, 4, 0, 1];
        body.extend_from_slice(&[2; 6]);
        body.extend_from_slice(&[192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2]);
        let arp = ethernet_of(ARP, &body);
        assert!(protocol("arp").takes(ETHERNET, &arp));
        assert!(host("192.0.2.1").takes(ETHERNET, &arp) && host("192.0.2.2").takes(ETHERNET, &arp));
        assert!(!port(443).takes(ETHERNET, &arp));
    }

    #[test]
    fn the_connection_of_the_client_is_left_out() {
        let without =
            |client: &str| PacketFilter { not_client: client.parse().ok(), ..PacketFilter::default() };
        let tcp = ethernet_of(IPV4, &v4_of(6, 0, &PORTS));
        for (client, takes) in [
            ("192.0.2.1:4711", false),
            ("192.0.2.2:443", false),
            ("[::ffff:192.0.2.1]:4711", false),
            ("192.0.2.1:443", true),
            ("192.0.2.9:4711", true),
        ] {
            assert_eq!(without(client).takes(ETHERNET, &tcp), takes, "{client}");
        }
        assert!(without("192.0.2.1:4711").takes(ETHERNET, &[1, 2, 3]), "it is not known whose it is");
    }

    #[test]
    fn a_packet_that_is_cut_anywhere_is_no_reason_to_panic() {
        let whole = [
            ethernet_of(IPV4, &v4_of(6, 0, &PORTS)),
            ethernet_of(IPV6, &v6_of(60, &[&[6, 0, 0, 0, 0, 0, 0, 0][..], &PORTS].concat())),
            ethernet_of(ARP, &[0; 28]),
        ];
        for packet in &whole {
            for end in 0..packet.len() {
                for link in [LinkKind::Ethernet, LinkKind::Ip] {
                    let _ = port(443).takes(link, &packet[..end]);
                }
            }
        }
        assert!(!port(443).takes(ETHERNET, &whole[0][..36]), "its second port is cut off");
        // A header that says it is longer than the packet.
        assert!(!port(443).takes(LinkKind::Ip, &v6_of(0, &[6, 255, 0, 0])));
    }
}
