//! Routes. Pure. Format: rtnetlink(7), `struct rtmsg`.

use std::net::IpAddr;

use crate::address::{family, from_octets, octets};
use crate::wire::{CREATE, DUMP, Message, REQUEST, attributes, u32_at};

/// `RTM_NEWROUTE`: the kernel's answer, too.
pub const NEWROUTE: u16 = 24;
const GETROUTE: u16 = 26;
const HEADER_BYTES: usize = 12;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
/// `RT_TABLE_MAIN`.
const TABLE_MAIN: u32 = 254;
/// `RTPROT_BOOT`: made by hand.
const PROTOCOL_BOOT: u8 = 3;
/// `RTN_UNICAST`.
const UNICAST: u8 = 1;

/// A route through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// First address of the destination.
    pub to: IpAddr,
    /// Bits of the destination's network.
    pub prefix: u8,
    /// The next hop, if the destination is not on the link.
    pub gateway: Option<IpAddr>,
    /// The link's number.
    pub index: u32,
    /// Metric; 0 for the kernel's default.
    pub priority: u32,
    /// The routing table; the main one if none.
    pub table: Option<u32>,
    /// rtnetlink's scope; universe if none.
    pub scope: Option<u8>,
    /// Bytes; the link's if 0.
    pub mtu: u32,
    /// The largest segment to announce, bytes; computed if 0.
    pub advmss: u32,
}

/// Adds it next to others to the same destination.
#[must_use]
pub fn add(route: &Route) -> Message {
    let table = route.table.unwrap_or(TABLE_MAIN);
    let mut header = [0; HEADER_BYTES];
    header[0] = family(route.to);
    header[1] = route.prefix;
    // Larger numbers stand in the attribute alone.
    header[4] = u8::try_from(table).unwrap_or(0);
    header[5] = PROTOCOL_BOOT;
    header[6] = route.scope.unwrap_or(0);
    header[7] = UNICAST;
    let mut message = Message::new(NEWROUTE, REQUEST | CREATE, &header);
    if route.prefix > 0 {
        message = message.with(RTA_DST, &octets(route.to));
    }
    message = message.with_u32(RTA_OIF, route.index).with_u32(RTA_TABLE, table);
    if let Some(gateway) = route.gateway {
        message = message.with(RTA_GATEWAY, &octets(gateway));
    }
    if route.priority > 0 {
        message = message.with_u32(RTA_PRIORITY, route.priority);
    }
    let metrics = [(RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advmss)];
    if metrics.iter().any(|(_, value)| *value > 0) {
        message = message.nested(RTA_METRICS, |m| {
            metrics.iter().filter(|(_, v)| *v > 0).fold(m, |m, (kind, value)| m.with_u32(*kind, *value))
        });
    }
    message
}

/// Asks for all routes of a family ([`family`]).
#[must_use]
pub fn dump(family: u8) -> Message {
    let mut header = [0; HEADER_BYTES];
    header[0] = family;
    Message::new(GETROUTE, REQUEST | DUMP, &header)
}

/// The route of an answer, if it is one through a link; its metrics are not read.
#[must_use]
pub fn parse(body: &[u8]) -> Option<Route> {
    let any = |family: u8| from_octets(if family == 2 { &[0; 4] } else { &[0; 16] });
    let mut route = Route {
        to: any(*body.first()?)?,
        prefix: *body.get(1)?,
        gateway: None,
        index: 0,
        priority: 0,
        table: body.get(4).map(|t| u32::from(*t)),
        scope: body.get(6).copied(),
        mtu: 0,
        advmss: 0,
    };
    for (kind, value) in attributes(body.get(HEADER_BYTES..)?) {
        match kind {
            RTA_DST => route.to = from_octets(value)?,
            RTA_OIF => route.index = u32_at(value, 0)?,
            RTA_GATEWAY => route.gateway = from_octets(value),
            RTA_PRIORITY => route.priority = u32_at(value, 0)?,
            RTA_TABLE => route.table = u32_at(value, 0),
            _ => {}
        }
    }
    (route.index > 0).then_some(route)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::answers;

    #[test]
    fn a_route_is_read_as_it_is_written() {
        let of = |to: &str, prefix, gateway: Option<&str>, table| Route {
            to: to.parse().expect("an address"),
            prefix,
            gateway: gateway.map(|g| g.parse().expect("an address")),
            index: 2,
            priority: 50,
            table: Some(table),
            scope: Some(0),
            mtu: 0,
            advmss: 0,
        };
        for route in [
            of("0.0.0.0", 0, Some("10.88.0.1"), 254),
            of("10.1.0.0", 16, None, 1000),
            of("::", 0, Some("fd00::1"), 254),
            of("fd01::", 32, None, 7),
        ] {
            let bytes = add(&route).bytes(1);
            assert_eq!(parse(answers(&bytes).next().expect("one message").body), Some(route));
            let bytes = add(&Route { mtu: 1400, advmss: 1360, ..route }).bytes(1);
            let body = answers(&bytes).next().expect("one message").body;
            let metrics = attributes(&body[HEADER_BYTES..]).find(|(kind, _)| *kind == RTA_METRICS);
            let read: Vec<_> = attributes(metrics.expect("metrics").1).collect();
            let (mtu, mss) = (1400_u32.to_ne_bytes(), 1360_u32.to_ne_bytes());
            assert_eq!(read, [(RTAX_MTU, &mtu[..]), (RTAX_ADVMSS, &mss[..])]);
        }
    }

    proptest! {
        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&body);
        }
    }
}
