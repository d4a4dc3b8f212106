//! Results of effects: exactly one for each effect, the error texts, and the log line.
//!
//! In: answers of drivers, work on the disk, effects that were given up. Out: [`EffectResult`]. Invariant: a [`ResultSender`]
//! sends one result, even if it is dropped.

use agent_core::pod_worker::PodEvent;
use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::PodKey;
use agent_types::machine::EffectId;

use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;
use crate::tasks::stops::AgentStops;

/// Sends an effect's result. A sender that is dropped without a result sends that the call was given up, so there is
/// always exactly one result.
pub(super) struct ResultSender {
    id: EffectId,
    to: Sender<PodEvent>,
    tasks: Tasks,
    given: bool,
}

impl ResultSender {
    pub(super) fn new(id: EffectId, to: Sender<PodEvent>, tasks: &Tasks) -> ResultSender {
        ResultSender { id, to, tasks: tasks.clone(), given: false }
    }

    pub(super) fn give(mut self, result: EffectResult) {
        self.send(result);
    }

    fn send(&mut self, result: EffectResult) {
        self.given = true;
        let completed_at = self.tasks.now().mono;
        self.to.send(PodEvent::EffectDone { id: self.id, completed_at, result });
    }
}

impl Drop for ResultSender {
    fn drop(&mut self) {
        if !self.given {
            self.send(Err(gave_up("the call was given up")));
        }
    }
}

pub(super) fn done_or_error(result: Result<(), DriverError>) -> EffectResult {
    result.map(|()| EffectOk::Done).map_err(error)
}

/// Result of work on a disk; `None`: no effect waits for the result any more.
pub(super) fn of_disk(done: Option<Result<(), DriverError>>) -> EffectResult {
    done_or_error(done.ok_or(AgentStops)?)
}

pub(super) fn error(e: DriverError) -> EffectError {
    EffectError { class: e.class, message: e.to_string() }
}

/// Error text of statuses: the runtime's own message without the name of the call, as upstream has it. The log names
/// the call.
pub(super) fn runtime_error(e: DriverError) -> EffectError {
    EffectError { class: e.class, message: e.message }
}

pub(super) fn no_cgroups() -> EffectError {
    let message = "pods have no cgroups of their own here (cgroupsPerQOS: false)".to_owned();
    EffectError { class: Class::Invalid, message }
}

impl From<AgentStops> for EffectError {
    fn from(stops: AgentStops) -> EffectError {
        gave_up(&stops.to_string())
    }
}

pub(super) fn gave_up(why: &str) -> EffectError {
    EffectError { class: Class::DeadlineExceeded, message: why.to_owned() }
}

pub(super) fn log(key: &PodKey, id: EffectId, verb: &'static str, took_ms: u128, result: &EffectResult) {
    match result {
        Ok(_) => {
            tracing::debug!(pod = %key.name, namespace = %key.namespace, uid = %key.uid, effect = id.0, verb, took_ms, "effect done")
        }
        Err(e) => tracing::warn!(
            pod = %key.name, namespace = %key.namespace, uid = %key.uid, effect = id.0, verb, took_ms,
            class = ?e.class, error = %e.message, "effect failed"
        ),
    }
}
