//! Ends of sandboxes: refused, discarded, stopped.

use agent_types::event::EventKind;
use agent_types::machine::Outbox;
use agent_types::restart;
use agent_types::runtime::observed::{ContainerState, PodSnapshot};
use agent_types::runtime::view;
use agent_types::time::Now;

use crate::pod_worker::api::PodAction;
use crate::pod_worker::base::Base;
use crate::pod_worker::effect::Effect;
use crate::pod_worker::tracker::{Purpose, Target};

/// Removes a sandbox: stopped first, because removal wants its network gone.
pub(super) fn discard_sandbox(
    b: &mut Base,
    id: &agent_types::ids::SandboxId,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let sandbox = id.clone();
    let (purpose, effect) = if b.stopped.contains(id) {
        (Purpose::RemoveSandbox(id.clone()), Effect::RemoveSandbox { sandbox })
    } else {
        (Purpose::StopSandbox(id.clone()), Effect::StopSandbox { sandbox })
    };
    b.issue(now, Target::Sandbox, purpose, effect, out);
}

/// Stops ready sandboxes once no container can be running; true when none is left to stop.
pub(super) fn stop_sandboxes(
    b: &mut Base,
    snapshot: &PodSnapshot,
    now: Now,
    out: &mut Outbox<PodAction>,
) -> bool {
    let up = |state| view::is_live(state) || state == ContainerState::Created;
    if b.tracker.any_container_busy() || snapshot.containers.iter().any(|c| up(c.state)) {
        return false;
    }
    if !b.tracker.all_fresh(snapshot.as_of) {
        b.want_snapshot_after(b.tracker.known_after());
        return false;
    }
    let Some(next) = snapshot.sandboxes.iter().find(|s| b.needs_stop(s)) else { return true };
    if b.may_act(&Target::Sandbox, now) {
        let id = next.id.clone();
        let effect = Effect::StopSandbox { sandbox: id.clone() };
        b.issue(now, Target::Sandbox, Purpose::StopSandbox(id), effect, out);
    }
    false
}

/// No sandbox is possible yet: sends the reason as an event and sets the time of the next try.
pub(super) fn refuse_sandbox(b: &mut Base, why: &str, now: Now, out: &mut Outbox<PodAction>) {
    let text = format!("Failed to create pod sandbox: {why}");
    b.event(EventKind::Warning, "FailedCreatePodSandBox", text, None, out);
    let until = now.mono.after(restart::jittered(restart::REQUEUE, b.key.uid.as_str(), now.mono.0));
    b.tracker.hold(&Target::Sandbox, until);
    b.wake_at(until, now);
}
