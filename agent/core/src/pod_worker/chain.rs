//! Steps of a start chain that several of its parts take: the next effect, and the failure.

use agent_types::event::EventKind;
use agent_types::machine::Outbox;
use agent_types::restart;

use crate::pod_worker::api::PodAction;
use crate::pod_worker::base::Base;
use crate::pod_worker::effect::Effect;
use crate::pod_worker::pass::Pass;
use crate::pod_worker::tracker::{Purpose, Target};
use crate::status::WaitingReason;

/// Issues the chain's next effect that needs nothing but the chain.
pub(super) fn step(pass: &mut Pass<'_>, purpose: Purpose) {
    let Some(chain) = &pass.state.chain else { return };
    let effect = match purpose {
        Purpose::ContainerFiles => {
            let slot = &chain.start.slot;
            let files = pass.base.ctx.specs.container_files(
                &pass.state.pod,
                slot.container_ref(),
                chain.start.attempt,
                &pass.base.pod_ips(),
            );
            files.into()
        }
        _ => {
            let wanted = chain.wanted();
            Effect::InspectImage { image: wanted.image.clone(), user: wanted.user.clone() }
        }
    };
    pass.issue(Target::Container(chain.start.slot.name.clone()), purpose, effect);
}

/// Event about a container that cannot start: for images the reason in a word, otherwise the error.
pub(super) fn told_error(b: &Base, name: &str, what: &str, out: &mut Outbox<PodAction>) {
    b.event(EventKind::Warning, "Failed", format!("Error: {what}"), Some(name), out);
}

/// Ends the chain without a failed effect, by the worker's own decision: sets the waiting reason and retries
/// later.
pub(super) fn fail(pass: &mut Pass<'_>, name: &str, reason: &str, message: String) {
    pass.state.waiting.insert(name.to_owned(), WaitingReason { reason: reason.to_owned(), message });
    let seed = format!("{}/{name}", pass.base.key.uid);
    let until = pass.now.mono.after(restart::jittered(restart::REQUEUE, &seed, pass.now.mono.0));
    pass.base.tracker.hold(&Target::Container(name.to_owned()), until);
    pass.base.wake_at(until, pass.now);
    pass.state.chain = None;
}
