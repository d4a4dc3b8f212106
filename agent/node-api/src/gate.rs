//! Limits and records of calls, for all doors.
//!
//! In: who asks, and by which door. Out: a refusal, or none; lines in the log. Invariants: callers of one door cost the others nothing;
//! refused calls and closed connections have lines at a bounded rate.

use agent_linux::clock::boottime;
use agent_types::lock::Lock;

use crate::connection::CallPeer;
use crate::guard::{CallerClass, Door, DoorLimits, Peer};
use crate::refusal::Refusal;

/// Limits and records of calls.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    // Held for a moment only.
    unix: Lock<DoorLimits>,
    vsock: Lock<DoorLimits>,
    tcp: Lock<DoorLimits>,
    serial: Lock<DoorLimits>,
}

impl Gate {
    fn limits(&self, door: Door) -> &Lock<DoorLimits> {
        match door {
            Door::Unix => &self.unix,
            Door::Vsock => &self.vsock,
            Door::Tcp => &self.tcp,
            Door::Serial => &self.serial,
        }
    }

    /// The token of a stranger's call: a token of the cluster may be worth nothing.
    pub(crate) fn admit_token(&self, door: Door) -> Result<(), Refusal> {
        self.limits(door).lock().admit(boottime(), door, CallerClass::Stranger)
    }

    pub(crate) fn admit(&self, caller: &CallPeer) -> Result<(), Refusal> {
        let class = CallerClass::of(&caller.identity);
        if class != CallerClass::Stranger || !caller.is_counted {
            self.limits(caller.door).lock().admit(boottime(), caller.door, class)?;
        }
        caller.identity.clone().map(drop)
    }

    pub(crate) fn record(
        &self,
        caller: &CallPeer,
        method: &'static str,
        object: &str,
        refusal: Option<&Refusal>,
    ) {
        let (door, peer) = (caller.door, caller.peer);
        let (who, role) = match &caller.identity {
            Ok(identity) => (identity.name.as_str(), identity.role.name()),
            Err(_) => ("stranger", "none"),
        };
        let Some(refusal) = refusal else {
            tracing::info!(who, role, %door, %peer, method, object, verdict = "OK", "call");
            return;
        };
        if let Some(left_out) = self.limits(door).lock().say_refused(boottime()) {
            let verdict = refusal.reason.word();
            tracing::warn!(who, role, %door, %peer, method, object, verdict, %refusal, left_out, "call");
        }
    }

    /// A connection that was closed before it said anything.
    pub(crate) fn say_closed(&self, door: Door, peer: Peer, why: &str) {
        if self.limits(door).lock().say_closed(boottime()) {
            tracing::warn!(%door, %peer, why, "connection closed");
        }
    }
}
