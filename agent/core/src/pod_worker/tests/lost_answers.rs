//! Calls whose outcome the worker does not know, and snapshots that are older than its last call.

use std::sync::Arc;

use agent_types::failure::{CANCELLED_CALL_MAX, Class};
use agent_types::time::Mono;

use super::world::{SECOND, World, context};
use super::{one, secs};
use crate::pod_worker::effect::{Effect, EffectError};
use crate::pod_worker::{PodEvent, PodWorker};

#[test]
fn a_lost_answer_to_run_sandbox_is_looked_at_not_repeated() {
    let mut w = World::new();
    w.desire(&one("Always"));
    while !w.pending.values().any(|c| matches!(c.effect, Effect::RunSandbox { .. })) {
        let id = *w.pending.keys().next().expect("on its way to the sandbox");
        w.perform(id);
    }
    let (id, call) = w.pending.pop_first().expect("the sandbox");
    assert!(w.apply(&call.effect).is_ok());
    let lost = EffectError { class: Class::Unavailable, message: "connection reset".to_owned() };
    w.answer(id, Err(lost));
    w.settle();
    assert_eq!(w.count("run_sandbox"), 1);
    assert_eq!(w.phase(), "Running", "what is there is adopted at once");
}

/// A world with a RunSandbox in flight, and its deadline. The answer is an error of the class; the call was
/// not applied.
fn sandbox_unanswered(class: Class) -> (World, Mono) {
    let mut w = World::new();
    w.desire(&one("Always"));
    while !w.pending.values().any(|c| matches!(c.effect, Effect::RunSandbox { .. })) {
        let id = *w.pending.keys().next().expect("on its way to the sandbox");
        w.perform(id);
    }
    let (id, call) = w.pending.pop_first().expect("the sandbox");
    w.answer(id, Err(EffectError { class, message: "connection reset".to_owned() }));
    (w, call.deadline.expect("every call but a pull has one"))
}

#[test]
fn silence_counts_as_absence_only_after_the_calls_deadline() {
    let (mut w, deadline) = sandbox_unanswered(Class::DeadlineExceeded);
    w.wait(deadline.since(w.now) - secs(1));
    assert_eq!(w.count("run_sandbox"), 0);
    w.wait(secs(3));
    assert_eq!(w.count("run_sandbox"), 1);
    assert_eq!(w.phase(), "Running");
}

#[test]
fn a_call_whose_connection_broke_is_over_soon() {
    let (mut w, _) = sandbox_unanswered(Class::Interrupted);
    w.wait(CANCELLED_CALL_MAX - secs(1));
    assert_eq!(w.count("run_sandbox"), 0);
    w.wait(secs(3));
    assert_eq!((w.count("run_sandbox"), w.phase()), (1, "Running"));
}

#[test]
fn what_never_reached_the_runtime_is_asked_again_after_its_back_off() {
    let (mut w, _) = sandbox_unanswered(Class::Unavailable);
    w.wait(secs(2));
    assert_eq!((w.count("run_sandbox"), w.phase()), (1, "Running"));
}

#[test]
fn a_new_incarnation_creates_nothing_before_the_fence() {
    let mut w = World::new();
    w.worker = PodWorker::new(w.worker.key().clone(), context(), Mono(30 * SECOND));
    w.desire(&one("Always"));
    w.wait(secs(28));
    assert_eq!(w.count("run_sandbox"), 0);
    w.wait(secs(3));
    assert_eq!(w.phase(), "Running");
}

#[test]
fn a_stale_snapshot_starts_nothing_twice() {
    let mut w = World::with(&one("Always"));
    let old = agent_types::runtime::observed::PodSnapshot { containers: Vec::new().into(), ..w.snapshot() };
    let stale =
        Arc::new(agent_types::runtime::observed::PodSnapshot { as_of: Mono(w.now.0 - 10_000_000), ..old });
    w.step(PodEvent::Observed(stale));
    w.settle();
    assert_eq!(w.count("create_container"), 1);
}
