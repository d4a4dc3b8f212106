//! Which addresses a container gets. Pure.
//!
//! In: range sets, the container of each reserved address, the address given last from each set, addresses asked for.
//! Out: one address for each set. Invariants: never a gateway, never an address of another container; a container that
//! has an address of the set already (its ADD was killed) gets it again; otherwise the search goes round from the
//! address given last, so that an address rests as long as it can.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::range::Range;

/// One of these, in this order.
pub type RangeSet = Vec<Range>;

/// The one who has an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The container's id.
    pub container: String,
    /// Its interface; `None` for an address that a very old version gave away.
    pub interface: Option<String>,
}

impl Owner {
    /// Whether the address is the interface's of the container.
    #[must_use]
    pub fn is(&self, container: &str, interface: &str) -> bool {
        self.container == container && self.interface.as_deref().is_none_or(|own| own == interface)
    }
}

/// What is known of the network.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    /// Who has which address.
    pub owners: BTreeMap<IpAddr, Owner>,
    /// The address given last from the set of this number.
    pub last: BTreeMap<usize, IpAddr>,
}

/// An address for a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its subnet.
    pub prefix: u8,
    /// Of its subnet.
    pub gateway: IpAddr,
    /// The number of its set.
    pub set: usize,
    /// It was the container's before.
    pub kept: bool,
}

/// One address from each set.
///
/// # Errors
/// A text that says which set has none left, or which address cannot be had.
pub fn choose(
    sets: &[RangeSet],
    known: &Reservations,
    container: &str,
    interface: &str,
    asked: &[IpAddr],
) -> Result<Vec<Lease>, String> {
    let mut asked: BTreeSet<IpAddr> = asked.iter().copied().collect();
    let mut leases = Vec::new();
    for (number, set) in sets.iter().enumerate() {
        let wish = asked.iter().copied().find(|ip| set.iter().any(|range| range.contains(*ip)));
        let lease = match wish {
            Some(ip) => {
                asked.remove(&ip);
                wished(set, number, known, container, interface, ip)?
            }
            None => kept(set, number, known, container, interface)
                .or_else(|| next(set, number, known))
                .ok_or_else(|| format!("no address is left in {}", shown(set)))?,
        };
        leases.push(lease);
    }
    if asked.is_empty() {
        Ok(leases)
    } else {
        let all: Vec<String> = asked.iter().map(IpAddr::to_string).collect();
        Err(format!("addresses of no range were asked for: {}", all.join(", ")))
    }
}

fn wished(
    set: &RangeSet,
    number: usize,
    known: &Reservations,
    container: &str,
    interface: &str,
    ip: IpAddr,
) -> Result<Lease, String> {
    let range = set.iter().find(|range| range.contains(ip)).ok_or_else(|| format!("{ip} is in no range"))?;
    if ip == range.gateway {
        return Err(format!("{ip} was asked for and is the gateway"));
    }
    match known.owners.get(&ip) {
        Some(owner) if !owner.is(container, interface) => {
            Err(format!("{ip} was asked for and belongs to container {}", owner.container))
        }
        owner => Ok(lease(range, number, ip, owner.is_some())),
    }
}

fn kept(
    set: &RangeSet,
    number: usize,
    known: &Reservations,
    container: &str,
    interface: &str,
) -> Option<Lease> {
    let mut own = known.owners.iter().filter(|(_, owner)| owner.is(container, interface));
    own.find_map(|(ip, _)| {
        let range = set.iter().find(|range| range.contains(*ip) && *ip != range.gateway)?;
        Some(lease(range, number, *ip, true))
    })
}

fn next(set: &RangeSet, number: usize, known: &Reservations) -> Option<Lease> {
    let last = known.last.get(&number).copied();
    let at = last.and_then(|last| set.iter().position(|range| range.contains(last)));
    // Each range once, the first of them in two parts: behind the address given last, and up to it.
    let begin = at.unwrap_or(0);
    let last = at.and(last);
    let first_part = set.get(begin).and_then(|range| match last {
        Some(last) => range.next(last).and_then(|from| free(range, from, range.last, known)),
        None => free(range, range.first, range.last, known),
    });
    let others = || {
        let order = set.iter().skip(begin + 1).chain(set.iter().take(begin));
        order.into_iter().find_map(|range| Some((range, free(range, range.first, range.last, known)?)))
    };
    let second_part = || {
        let (range, last) = (set.get(begin)?, last?);
        Some((range, free(range, range.first, last, known)?))
    };
    let (range, ip) =
        first_part.and_then(|ip| Some((set.get(begin)?, ip))).or_else(others).or_else(second_part)?;
    Some(lease(range, number, ip, false))
}

/// The first address from `from` to `to` that no container has.
fn free(range: &Range, from: IpAddr, to: IpAddr, known: &Reservations) -> Option<IpAddr> {
    let mut ip = from;
    loop {
        if ip != range.gateway && !known.owners.contains_key(&ip) {
            return Some(ip);
        }
        ip = range.next(ip).filter(|next| *next <= to)?;
    }
}

fn lease(range: &Range, set: usize, ip: IpAddr, kept: bool) -> Lease {
    Lease { ip, prefix: range.prefix, gateway: range.gateway, set, kept }
}

fn shown(set: &RangeSet) -> String {
    set.iter().map(|range| format!("{}-{}", range.first, range.last)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::range::RangeConfig;

    fn range(subnet: &str) -> Range {
        Range::new(&RangeConfig { subnet: subnet.into(), ..RangeConfig::default() }).expect(subnet)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn owner(container: &str) -> Owner {
        Owner { container: container.into(), interface: Some("eth0".into()) }
    }

    /// Gives an address to each of so many containers, and notes it.
    fn fill(sets: &[RangeSet], known: &mut Reservations, count: usize) -> Vec<String> {
        let mut given = Vec::new();
        for n in 0..count {
            let Ok(leases) = choose(sets, known, &format!("c{n}"), "eth0", &[]) else { break };
            for lease in leases {
                assert!(known.owners.insert(lease.ip, owner(&format!("c{n}"))).is_none(), "{lease:?}");
                known.last.insert(lease.set, lease.ip);
                given.push(lease.ip.to_string());
            }
        }
        given
    }

    #[test]
    fn each_address_once_and_never_the_gateway() {
        let sets = vec![vec![range("10.1.0.0/29")], vec![range("fd00::/64")]];
        let mut known = Reservations::default();
        let given = fill(&sets, &mut known, 9);
        assert_eq!(&given[..4], ["10.1.0.2", "fd00::2", "10.1.0.3", "fd00::3"]);
        assert_eq!(given.len(), 10, "five of eight: network, broadcast and gateway are kept back");
        let error = choose(&sets, &known, "x", "eth0", &[]).expect_err("nothing left");
        assert_eq!(error, "no address is left in 10.1.0.1-10.1.0.6");
    }

    #[test]
    fn an_address_rests_before_it_is_given_again() {
        let sets = vec![vec![range("10.1.0.0/29"), range("10.2.0.0/30")]];
        let mut known = Reservations::default();
        let mut given = Vec::new();
        for n in 0..8 {
            let lease = choose(&sets, &known, &format!("c{n}"), "eth0", &[]).expect("an address")[0];
            known.last.insert(0, lease.ip);
            given.push(lease.ip.to_string());
        }
        let want =
            ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.2.0.2", "10.1.0.2", "10.1.0.3"];
        assert_eq!(given, want);
        // Of another range, after a change of the configuration.
        known.last.insert(0, ip("10.9.0.1"));
        assert_eq!(choose(&sets, &known, "n", "eth0", &[]).expect("an address")[0].ip, ip("10.1.0.2"));
    }

    #[test]
    fn what_a_killed_add_has_reserved_is_used() {
        let sets = vec![vec![range("10.1.0.0/24")]];
        let mut known = Reservations::default();
        known.owners.insert(ip("10.1.0.9"), owner("c"));
        known.owners.insert(ip("10.1.0.8"), Owner { container: "old".into(), interface: None });
        for (container, want) in [("c", "10.1.0.9"), ("old", "10.1.0.8"), ("new", "10.1.0.2")] {
            let lease = choose(&sets, &known, container, "eth0", &[]).expect("an address")[0];
            assert_eq!((lease.ip, lease.kept), (ip(want), container != "new"));
        }
        assert_eq!(choose(&sets, &known, "c", "eth1", &[]).expect("an address")[0].ip, ip("10.1.0.2"));
    }

    #[test]
    fn wishes() {
        let sets = vec![vec![range("10.1.0.0/24")], vec![range("10.2.0.0/24")]];
        let mut known = Reservations::default();
        known.owners.insert(ip("10.1.0.9"), owner("c"));
        let ask = |container: &str, asked: &[&str]| {
            let asked: Vec<IpAddr> = asked.iter().map(|a| ip(a)).collect();
            choose(&sets, &known, container, "eth0", &asked)
        };
        let got = ask("n", &["10.2.0.77"]).expect("granted");
        assert_eq!([got[0].ip, got[1].ip], [ip("10.1.0.2"), ip("10.2.0.77")]);
        assert_eq!(ask("c", &["10.1.0.9"]).expect("its own")[0].ip, ip("10.1.0.9"));
        for refused in ["10.1.0.9", "10.1.0.1", "10.3.0.1", "fd00::1"] {
            assert!(ask("n", &[refused]).is_err(), "{refused}");
        }
        assert!(ask("n", &["10.1.0.7", "10.1.0.8"]).is_err(), "one of a set");
    }

    proptest! {
        #[test]
        fn all_addresses_are_found_from_wherever(
            prefix in 26_u8..=30, last in any::<u8>(), taken in proptest::collection::btree_set(any::<u8>(), 0..64),
        ) {
            let sets = vec![vec![range(&format!("10.1.0.0/{prefix}")), range("10.1.1.0/29")]];
            let mut known = Reservations::default();
            known.last.insert(0, IpAddr::from([10, 1, 0, last]));
            for taken in &taken {
                known.owners.insert(IpAddr::from([10, 1, 0, *taken]), owner("other"));
            }
            let all = |r: &Range| {
                let range = *r;
                std::iter::successors(Some(r.first), move |ip| range.next(*ip)).filter(move |ip| *ip != range.gateway)
            };
            let free = sets[0].iter().flat_map(all).filter(|ip| !known.owners.contains_key(ip)).count();
            let mut before = known.clone();
            prop_assert_eq!(fill(&sets, &mut before, 1000).len(), free);
        }
    }
}
