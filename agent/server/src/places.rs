//! Places of connections, and the way to end one that has lost its place.
//!
//! In: connections that are accepted. Out: a [`Place`] for each, held until the connection ends. Invariants: those of
//! [`Places`]; the lock is held for moments, never across an await.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use agent_kubelet_api::server_policy::{PlaceLimits, Places};
use agent_types::lock::Lock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Gives out places.
#[derive(Clone)]
pub(crate) struct Doors(Arc<Lock<State>>);

struct State {
    places: Places,
    /// How to end whoever has one.
    ends: BTreeMap<u64, CancellationToken>,
}

impl Doors {
    pub(crate) fn new(limits: PlaceLimits) -> Doors {
        Doors(Arc::new(Lock::new(State { places: Places::new(limits), ends: BTreeMap::new() })))
    }

    /// A place for a connection from there, for which a stranger's connection may be ended; `None` if there is none.
    pub(crate) fn take(&self, from: IpAddr) -> Option<Place> {
        let mut state = self.0.lock();
        let taken = state.places.take(from)?;
        let end = CancellationToken::new();
        state.ends.insert(taken.place, end.clone());
        let displaced = taken.displaced.and_then(|place| state.ends.remove(&place));
        drop(state);
        if let Some(displaced) = displaced {
            displaced.cancel();
        }
        Some(Place { number: taken.place, doors: self.clone(), known: watch::Sender::new(false), end })
    }
}

/// One connection's place; dropped, it is free.
pub(crate) struct Place {
    number: u64,
    doors: Doors,
    known: watch::Sender<bool>,
    end: CancellationToken,
}

impl Place {
    /// Who has it is no stranger: a request was admitted, or a client certificate was verified.
    pub(crate) fn know(&self) {
        if !self.known.send_replace(true) {
            self.doors.0.lock().places.know(self.number);
        }
    }

    /// True once [`Place::know`] was called.
    pub(crate) fn known(&self) -> watch::Receiver<bool> {
        self.known.subscribe()
    }

    /// Cancelled once the place was given to another connection.
    pub(crate) fn end(&self) -> CancellationToken {
        self.end.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.doors.0.lock();
        state.ends.remove(&self.number);
        state.places.leave(self.number);
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Place({}, known: {})", self.number, *self.known.borrow())
    }
}
