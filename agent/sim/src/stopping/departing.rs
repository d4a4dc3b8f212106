//! The stop of the units, the agent's own among them, also if logind did not wait for the pods.
//!
//! In: a shutdown after the delay, or without one. Out: PID 1's answer to an agent that asks in its own stop
//! ([`ShutdownEvent::GoingDown`]); the machine's end after that stop. STOP-AWAITED: an agent that could ask and
//! survived its stop has recorded how its pods ended. Invariants: systemd waits no longer than the unit's limit; a
//! shutdown at this stage is not cancelled.

use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::node_shutdown::{NodeShutdown, ShutdownEvent, budget};

use super::{LogindEvent, MARGIN};
use crate::defects::Defect;
use crate::node::NodeEvent;
use crate::world::{Event, World};

/// Longest time for the stop of the agent's unit.
const UNIT_STOP_MAX: Duration = Duration::from_secs(120);

/// Progress of the stop of the agent's unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unit {
    /// The unit runs, or the agent is dead.
    #[default]
    Up,
    /// The agent ends its pods, and systemd waits.
    Stopping,
    /// The agent has asked PID 1, and its unit has stopped by itself.
    Stopped,
}

impl World {
    /// The delay is over: units stop, the agent's unit after some others.
    pub(super) fn units_stop(&mut self, stop: u32) {
        let Some(stopping) = &mut self.stopping else { return };
        let after = Duration::from_millis(stopping.rng.between(10, 1_000));
        self.queue.after(after, Event::Logind(LogindEvent::UnitStops { stop }));
    }

    /// SIGTERM reaches the agent, which asks PID 1 about the machine.
    pub(super) fn unit_stops(&mut self, stop: u32) {
        let now = self.queue.now();
        let Some(stopping) = self.stopping.as_mut().filter(|s| s.unit == Unit::Up) else { return };
        let answers = stopping.rng.chance(900);
        let Some(node) = self.node.as_ref().filter(|_| answers) else { return self.machine_goes(stop) };
        let leaves = node.defect == Some(Defect::LeavesItsPods);
        if leaves || node.shutdown.as_ref().is_some_and(NodeShutdown::is_over) {
            stopping.unit = Unit::Stopped;
            return self.machine_goes(stop);
        }
        stopping.unit = Unit::Stopping;
        let (kind, whole) = (stopping.stop.clone().unwrap_or_default(), budget(&stopping.groups));
        if !std::mem::replace(&mut stopping.told, true) {
            self.checks.note(now, &TraceEvent::ShutdownTold { budget: whole });
        }
        let most = (whole + MARGIN).min(UNIT_STOP_MAX);
        self.queue.after(most, Event::Logind(LogindEvent::UnitKilled { stop }));
        self.tell(NodeEvent::Shutdown(ShutdownEvent::GoingDown { kind }));
    }

    /// systemd does not wait any longer.
    pub(super) fn unit_is_killed(&mut self, stop: u32) {
        if self.leaves_unit(Unit::Up) {
            self.checks.note(self.queue.now(), &TraceEvent::StopNotAwaited);
            self.machine_goes(stop);
        }
    }

    /// The agent has terminated its pods; true if its unit was waiting for this.
    pub(super) fn unit_has_stopped(&mut self) -> bool {
        self.leaves_unit(Unit::Stopped)
    }

    /// The agent died: a unit that was stopping has stopped.
    pub(crate) fn unit_died(&mut self) {
        let was_stopping = self.leaves_unit(Unit::Up);
        let Some(stopping) = &mut self.stopping else { return };
        // The simulated agent starts again, and may write another receipt.
        stopping.unit = Unit::Up;
        let stop = stopping.stops;
        if was_stopping {
            self.machine_goes(stop);
        }
    }

    fn leaves_unit(&mut self, next: Unit) -> bool {
        let Some(stopping) = self.stopping.as_mut().filter(|s| s.unit == Unit::Stopping) else {
            return false;
        };
        stopping.unit = next;
        true
    }

    /// Checks STOP-AWAITED when the power fails.
    pub(super) fn ensure_awaited(&mut self) {
        let Some(stopping) = self.stopping.as_ref().filter(|s| s.unit == Unit::Stopped) else { return };
        let written = stopping.receipt.as_ref().is_some_and(|receipt| receipt.is_of(&stopping.boot_id()));
        if !written {
            let detail = format!("the agent stopped with the machine and left {:?}", stopping.receipt);
            self.checks.report("STOP-AWAITED", detail);
        }
    }
}
