//! Assigns places among the connections of the HTTPS API, and of the ports without authentication.
//!
//! In: connections that arrive (with their address), become known and end. Out: whether a connection gets a
//! place, and which other one it displaces. Invariants: the number of places is fixed; a connection belongs
//! to a stranger until a request on it was admitted or its client certificate was verified; one source has at
//! most [`ConnectionLimits::per_source`] strangers, and all sources together [`ConnectionLimits::strangers`], so that
//! places remain for known clients; when strangers have all their slots, a newcomer displaces the oldest
//! stranger of the source with the most, or of its own source if that has as many. A source without any stranger always
//! displaces one: a client needs its place as a stranger for one handshake only, so thousands of addresses with
//! one silent connection each keep no client out. Known connections are never displaced.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Places in all.
    pub all: usize,
    /// Places for strangers.
    pub strangers: usize,
    /// Places for strangers of one source.
    pub per_source: usize,
}

impl ConnectionLimits {
    /// Three quarters of `all` for strangers, and one quarter for those of one source.
    #[must_use]
    pub fn of(all: usize) -> ConnectionLimits {
        ConnectionLimits { all, strangers: all - all / 4, per_source: (all / 4).max(1) }
    }
}

/// A connection that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedConnection {
    /// Its number, for [`ConnectionSlots::know`] and [`ConnectionSlots::leave`].
    pub slot: u64,
    /// The connection that has lost its slot for it and must be ended.
    pub displaced: Option<u64>,
}

/// The places and their connections.
#[derive(Clone, Debug)]
pub struct ConnectionSlots {
    limits: ConnectionLimits,
    strangers: BTreeMap<IpAddr, BTreeSet<u64>>,
    /// Source of each stranger.
    sources: BTreeMap<u64, IpAddr>,
    known: BTreeSet<u64>,
    next: u64,
}

impl ConnectionSlots {
    /// All are free.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> ConnectionSlots {
        ConnectionSlots {
            limits,
            strangers: BTreeMap::new(),
            sources: BTreeMap::new(),
            known: BTreeSet::new(),
            next: 0,
        }
    }

    /// A connection has come; `None` if it must be refused.
    pub fn take(&mut self, from: IpAddr) -> Option<AcceptedConnection> {
        let source = source(from);
        let own = self.strangers.get(&source).map_or(0, BTreeSet::len);
        let full = self.sources.len() >= self.limits.strangers || self.taken() >= self.limits.all;
        let displaced = if own >= self.limits.per_source {
            Some(self.oldest(&source)?)
        } else if full {
            Some(self.displaceable(&source, own)?)
        } else {
            None
        };
        if let Some(slot) = displaced {
            self.forget_stranger(slot);
        }
        let slot = self.next;
        self.next += 1;
        self.strangers.entry(source).or_default().insert(slot);
        self.sources.insert(slot, source);
        Some(AcceptedConnection { slot, displaced })
    }

    /// The connection is no stranger's any more.
    pub fn know(&mut self, slot: u64) {
        if self.forget_stranger(slot) {
            self.known.insert(slot);
        }
    }

    /// The connection has ended; a displaced one has no place any more.
    pub fn leave(&mut self, slot: u64) {
        self.known.remove(&slot);
        self.forget_stranger(slot);
    }

    /// How many places are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.sources.len() + self.known.len()
    }

    /// The oldest stranger of the source with the most (of several such sources, of the one whose oldest came first), where
    /// those are more than `own` and the newcomer, or `source` has none; else the oldest of `source`.
    fn displaceable(&self, source: &IpAddr, own: usize) -> Option<u64> {
        let size = |slots: &&BTreeSet<u64>| (slots.len(), Reverse(slots.first().copied()));
        let heaviest = self.strangers.values().max_by_key(size)?;
        if own == 0 || heaviest.len() > own + 1 { heaviest.first().copied() } else { self.oldest(source) }
    }

    fn oldest(&self, source: &IpAddr) -> Option<u64> {
        self.strangers.get(source)?.first().copied()
    }

    fn forget_stranger(&mut self, slot: u64) -> bool {
        let Some(source) = self.sources.remove(&slot) else { return false };
        if let Some(slots) = self.strangers.get_mut(&source) {
            slots.remove(&slot);
            if slots.is_empty() {
                self.strangers.remove(&source);
            }
        }
        true
    }
}

/// The unit of one source: an IPv4 address, or the /64 of an IPv6 address, because one host may use all of
/// it.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests;
