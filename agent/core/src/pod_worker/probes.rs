//! The pod worker's side of its probes: the pod's state for the probes, and the worker's reaction to their
//! actions.
//!
//! In: the worker's state and ticks, answers of probes. Out: probes, cancellations and events as
//! [`PodAction`]s. Invariant: a due probe, or an answer that changes nothing, costs no pass over the whole
//! pod.

use agent_types::event::EventKind;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::time::Now;

use super::api::PodAction;
use super::base::Base;
use super::state::PodWorkerState;
use crate::probe::{Outcome, ProbeAction, ProbeId, View};

/// Shows the pod to its probes, before anything is decided from their verdicts.
pub(super) fn observe(state: &PodWorkerState, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) {
    let (p, terminating) = match state {
        PodWorkerState::Syncing(s) => (Some(&s.pod), false),
        PodWorkerState::Terminating(t) => (t.pod.as_ref(), true),
        PodWorkerState::Pending | PodWorkerState::Terminated(_) | PodWorkerState::Finished => (None, true),
    };
    let hooked = match state {
        PodWorkerState::Syncing(s) => s.chain.as_ref().filter(|c| c.hooked).and_then(|c| c.instance.as_ref()),
        _ => None,
    };
    let mut actions = Vec::new();
    match (p, b.snapshot.clone()) {
        (Some(p), Some(snapshot)) => {
            let ips = if pod::host_network(p) { b.ctx.host_ips.clone() } else { b.shown_ips() };
            let view = View {
                pod: p,
                snapshot: &snapshot,
                terminating,
                hooked,
                agent_started: b.ctx.agent_started,
                pod_ip: ips.first().map_or("", String::as_str),
                runtime_name: &b.ctx.runtime_name,
            };
            b.probes.observe(&view, now, &mut actions);
        }
        (Some(_), None) => {}
        (None, _) => b.probes.stop(&mut actions),
    }
    perform(b, actions, out);
}

/// Takes the answer of a probe; true if it changes a decision about the pod.
pub(super) fn answered(
    b: &mut Base,
    id: ProbeId,
    outcome: Outcome,
    now: Now,
    out: &mut Outbox<PodAction>,
) -> bool {
    let mut actions = Vec::new();
    let changed = b.probes.answered(id, outcome, now, &mut actions);
    perform(b, actions, out);
    changed
}

/// A probe is due at `now`, and nothing else.
pub(super) fn only_due(b: &Base, now: Now) -> bool {
    b.probes.deadline().is_some_and(|due| due <= now.mono) && b.wake.is_none_or(|wake| wake > now.mono)
}

/// Starts the due probes.
pub(super) fn tick(b: &mut Base, now: Now, out: &mut Outbox<PodAction>) {
    let mut actions = Vec::new();
    b.probes.tick(now, &mut actions);
    perform(b, actions, out);
}

fn perform(b: &Base, actions: Vec<ProbeAction>, out: &mut Outbox<PodAction>) {
    for action in actions {
        match action {
            ProbeAction::Ask(id, call) => out.push(PodAction::Probe { id, call }),
            ProbeAction::Cancel(id) => out.push(PodAction::CancelProbe(id)),
            ProbeAction::Event { reason, message, container } => {
                b.event(EventKind::Warning, reason, message, Some(&container), out);
            }
        }
    }
}
