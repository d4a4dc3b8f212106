//! Steps of a start chain that several of its parts take: the next effect, and the failure.

use agent_types::event::EventKind;
use agent_types::machine::Outbox;
use agent_types::restart;
use agent_types::time::Now;

use crate::pod_worker::api::PodAction;
use crate::pod_worker::base::Base;
use crate::pod_worker::effect::Effect;
use crate::pod_worker::ledger::{Purpose, Target};
use crate::pod_worker::state::Syncing;
use crate::status::WaitingReason;

/// Issues the chain's next effect that needs nothing but the chain.
pub(super) fn step(s: &Syncing, b: &mut Base, purpose: Purpose, now: Now, out: &mut Outbox<PodAction>) {
    let Some(chain) = &s.chain else { return };
    let effect = match purpose {
        Purpose::ContainerFiles => {
            let slot = &chain.start.slot;
            let files =
                b.ctx.specs.container_files(&s.pod, slot.container_ref(), chain.start.attempt, &b.pod_ips());
            files.into()
        }
        _ => {
            let wanted = chain.wanted();
            Effect::InspectImage { image: wanted.image.clone(), user: wanted.user.clone() }
        }
    };
    b.issue(now, Target::Container(chain.start.slot.name.clone()), purpose, effect, out);
}

/// Event about a container that cannot start: for images the reason in a word, otherwise the error.
pub(super) fn told_error(b: &Base, name: &str, what: &str, out: &mut Outbox<PodAction>) {
    b.event(EventKind::Warning, "Failed", format!("Error: {what}"), Some(name), out);
}

/// Ends the chain without a failed effect, by the worker's own decision: sets the waiting reason and retries
/// later.
pub(super) fn fail(
    s: &mut Syncing,
    b: &mut Base,
    name: &str,
    reason: &str,
    message: String,
    now: Now,
    _out: &mut Outbox<PodAction>,
) {
    s.waiting.insert(name.to_owned(), WaitingReason { reason: reason.to_owned(), message });
    let seed = format!("{}/{name}", b.key.uid);
    let until = now.mono.after(restart::jittered(restart::REQUEUE, &seed, now.mono.0));
    b.ledger.hold(&Target::Container(name.to_owned()), until);
    b.wake_at(until, now);
    s.chain = None;
}
