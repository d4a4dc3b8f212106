//! nftables: the one rule that the node's pod network needs. Pure. Format: the kernel's `nf_tables.h`; numbers in
//! attributes have the first byte first.

use std::net::IpAddr;

use crate::address::{family, octets};
use crate::wire::{APPEND, CREATE, FRAME, Message, REQUEST};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = 0;
const NEWCHAIN: u16 = 3;
const NEWRULE: u16 = 6;
const DELRULE: u16 = 8;

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;

/// `NF_INET_POST_ROUTING`.
const POSTROUTING: u32 = 4;
/// `NF_IP_PRI_NAT_SRC`.
const SRCNAT: u32 = 100;
/// `NFT_REG_1`.
const REGISTER: u32 = 1;
/// `NFT_PAYLOAD_NETWORK_HEADER`.
const NETWORK_HEADER: u32 = 1;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;

const CHAIN: &str = "postrouting";

/// The first address of a network and the bits that it shares with the others.
pub type Network = (IpAddr, u8);

/// One transaction that leaves, in the table of this name, one rule for each network: what comes from it and goes to
/// neither itself nor a multicast group leaves under the node's own address. It may be sent again.
#[must_use]
pub fn masquerade(table: &str, networks: &[Network]) -> Vec<Message> {
    let mut batch = vec![frame(BATCH_BEGIN)];
    for (wanted, multicast) in [(2, "224.0.0.0"), (10, "ff00::")] {
        let mut of_family = networks.iter().filter(|(ip, _)| family(*ip) == wanted).peekable();
        if of_family.peek().is_none() {
            continue;
        }
        let Ok(multicast) = multicast.parse() else { continue };
        batch.push(message(NEWTABLE, CREATE, wanted).with_text(NFTA_TABLE_NAME, table));
        batch.push(message(DELRULE, 0, wanted).with_text(NFTA_RULE_TABLE, table));
        batch.push(chain(table, wanted));
        for network in of_family {
            batch.push(rule(table, wanted, *network, (multicast, if wanted == 2 { 4 } else { 8 })));
        }
    }
    batch.push(frame(BATCH_END));
    batch
}

fn chain(table: &str, family: u8) -> Message {
    let message = message(NEWCHAIN, CREATE, family).with_text(NFTA_CHAIN_TABLE, table);
    let message = message.with_text(NFTA_CHAIN_NAME, CHAIN).nested(NFTA_CHAIN_HOOK, |m| {
        number(number(m, NFTA_HOOK_HOOKNUM, POSTROUTING), NFTA_HOOK_PRIORITY, SRCNAT)
    });
    message.with_text(NFTA_CHAIN_TYPE, "nat")
}

fn rule(table: &str, family: u8, network: Network, multicast: Network) -> Message {
    let (source, destination) = if family == 2 { (12, 16) } else { (8, 24) };
    let message = message(NEWRULE, CREATE | APPEND, family).with_text(NFTA_RULE_TABLE, table);
    message.with_text(NFTA_RULE_CHAIN, CHAIN).nested(NFTA_RULE_EXPRESSIONS, |m| {
        let m = compare(m, source, EQUAL, network);
        let m = compare(m, destination, NOT_EQUAL, network);
        let m = compare(m, destination, NOT_EQUAL, multicast);
        expression(m, "masq", |m| m)
    })
}

/// The address at this offset of the packet is, or is not, of the network.
fn compare(message: Message, offset: u32, how: u32, (ip, prefix): Network) -> Message {
    let mask = mask(ip, prefix);
    let wanted: Vec<u8> = octets(ip).iter().zip(&mask).map(|(a, m)| a & m).collect();
    let length = if ip.is_ipv4() { 4 } else { 16 };
    let value = |m: Message, kind, bytes: &[u8]| m.nested(kind, |m| m.with(NFTA_DATA_VALUE, bytes));
    let message = expression(message, "payload", |m| {
        [REGISTER, NETWORK_HEADER, offset, length].iter().zip(1..).fold(m, |m, (n, kind)| number(m, kind, *n))
    });
    let message = expression(message, "bitwise", |m| {
        let m = [REGISTER, REGISTER, length].iter().zip(1..).fold(m, |m, (n, kind)| number(m, kind, *n));
        value(value(m, 4, &mask), 5, &vec![0; mask.len()])
    });
    expression(message, "cmp", |m| value(number(number(m, 1, REGISTER), 2, how), 3, &wanted))
}

fn mask(ip: IpAddr, prefix: u8) -> Vec<u8> {
    let ones = |bits: u8| 128_u32.checked_sub(bits.into()).and_then(|zeros| u128::MAX.checked_shl(zeros));
    let whole = ones(prefix).unwrap_or(0).to_be_bytes();
    whole[..octets(ip).len()].to_vec()
}

fn expression(message: Message, name: &str, data: impl FnOnce(Message) -> Message) -> Message {
    message.nested(NFTA_LIST_ELEM, |m| m.with_text(NFTA_EXPR_NAME, name).nested(NFTA_EXPR_DATA, data))
}

fn number(message: Message, kind: u16, value: u32) -> Message {
    message.with(kind, &value.to_be_bytes())
}

fn message(kind: u16, flags: u16, family: u8) -> Message {
    Message::new(SUBSYSTEM << 8 | kind, REQUEST | flags, &[family, 0, 0, 0])
}

fn frame(kind: u16) -> Message {
    let subsystem = SUBSYSTEM.to_be_bytes();
    Message::new(kind, FRAME, &[0, 0, subsystem[0], subsystem[1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_either_family() {
        let of = |ip: &str, prefix| mask(ip.parse().expect("an address"), prefix);
        assert_eq!(of("10.0.0.0", 12), [255, 240, 0, 0]);
        assert_eq!((of("10.0.0.0", 0), of("10.0.0.0", 32)), (vec![0; 4], vec![255; 4]));
        assert_eq!(of("fd00::", 9), [&[255, 128][..], &[0; 14]].concat());
        assert_eq!(of("fd00::", 128), [255; 16]);
    }

    #[test]
    fn one_table_for_each_family_and_one_rule_for_each_network() {
        let net = |ip: &str, prefix| (ip.parse().expect("an address"), prefix);
        let kinds = |networks: &[Network]| -> Vec<u16> {
            let batch = masquerade("t", networks).into_iter().map(|m| m.bytes(1));
            batch.map(|bytes| u16::from_ne_bytes([bytes[4], bytes[5]]) & 0xff).collect()
        };
        let (four, other, six) = (net("10.1.0.0", 16), net("10.2.0.0", 16), net("fd00::", 64));
        assert_eq!(kinds(&[]), [BATCH_BEGIN, BATCH_END]);
        let one = [NEWTABLE, DELRULE, NEWCHAIN, NEWRULE];
        assert_eq!(kinds(&[four]), [&[BATCH_BEGIN][..], &one, &[BATCH_END]].concat());
        let all = [&[BATCH_BEGIN][..], &one, &[NEWRULE], &one, &[BATCH_END]].concat();
        assert_eq!(kinds(&[six, four, other]), all);
    }
}
