//! Slots of connections, and the way to end one that has lost its slot.
//!
//! In: connections that are accepted. Out: a [`ConnectionPermit`] for each, held until the connection ends. Invariants: those of
//! [`ConnectionSlots`]; the lock is held for moments, never across an await.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use agent_kubelet_api::server_policy::{ConnectionLimits, ConnectionSlots};
use agent_types::lock::Lock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Gives out the slots.
#[derive(Clone)]
pub(crate) struct ConnectionLimiter(Arc<Lock<ConnectionTable>>);

struct ConnectionTable {
    slots: ConnectionSlots,
    /// How to end the connections that have a slot.
    ends: BTreeMap<u64, CancellationToken>,
}

impl ConnectionLimiter {
    pub(crate) fn new(limits: ConnectionLimits) -> ConnectionLimiter {
        ConnectionLimiter(Arc::new(Lock::new(ConnectionTable {
            slots: ConnectionSlots::new(limits),
            ends: BTreeMap::new(),
        })))
    }

    /// A permit for a connection from there, for which a stranger's connection may be ended; `None` if there is none.
    pub(crate) fn take(&self, from: IpAddr) -> Option<ConnectionPermit> {
        let mut state = self.0.lock();
        let taken = state.slots.take(from)?;
        let end = CancellationToken::new();
        state.ends.insert(taken.slot, end.clone());
        let displaced = taken.displaced.and_then(|slot| state.ends.remove(&slot));
        drop(state);
        if let Some(displaced) = displaced {
            displaced.cancel();
        }
        Some(ConnectionPermit {
            number: taken.slot,
            limiter: self.clone(),
            known: watch::Sender::new(false),
            end,
        })
    }
}

/// One connection's slot, which is free once the permit is dropped.
pub(crate) struct ConnectionPermit {
    number: u64,
    limiter: ConnectionLimiter,
    known: watch::Sender<bool>,
    end: CancellationToken,
}

impl ConnectionPermit {
    /// Who has it is no stranger: a request was admitted, or a client certificate was verified.
    pub(crate) fn know(&self) {
        if !self.known.send_replace(true) {
            self.limiter.0.lock().slots.know(self.number);
        }
    }

    /// True once [`ConnectionPermit::know`] was called.
    pub(crate) fn known(&self) -> watch::Receiver<bool> {
        self.known.subscribe()
    }

    /// Cancelled once the slot was given to another connection.
    pub(crate) fn end(&self) -> CancellationToken {
        self.end.clone()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut state = self.limiter.0.lock();
        state.ends.remove(&self.number);
        state.slots.leave(self.number);
    }
}

impl std::fmt::Debug for ConnectionPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectionPermit({}, known: {})", self.number, *self.known.borrow())
    }
}
