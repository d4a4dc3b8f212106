//! One pass of a worker that syncs its pod: what the pass may change, when it is, and where its actions go.

use agent_types::event::EventKind;
use agent_types::machine::Outbox;
use agent_types::time::Now;

use super::api::PodAction;
use super::base::Base;
use super::effect::Effect;
use super::state::Syncing;
use super::tracker::{Purpose, Target};

/// One pass.
pub(super) struct Pass<'a> {
    /// The pod's state, as far as only syncing has it.
    pub(super) state: &'a mut Syncing,
    /// The state that all states of a worker have.
    pub(super) base: &'a mut Base,
    /// The time of the step.
    pub(super) now: Now,
    /// The step's actions.
    pub(super) out: &'a mut Outbox<PodAction>,
}

impl Pass<'_> {
    /// [`Base::issue`].
    pub(super) fn issue(&mut self, target: Target, purpose: Purpose, effect: Effect) {
        self.base.issue(self.now, target, purpose, effect, self.out);
    }

    /// [`Base::event`].
    pub(super) fn event(
        &mut self,
        kind: EventKind,
        reason: &'static str,
        message: impl Into<String>,
        container: Option<&str>,
    ) {
        self.base.event(kind, reason, message, container, self.out);
    }
}
