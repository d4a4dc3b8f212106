//! The runtime that a sandbox is run by.

use agent_types::failure::Class;
use agent_types::machine::{EffectId, Machine};
use agent_types::objects::{Fetched, ObjectData, ObjectKind, ObjectRef};
use serde_json::json;

use super::world::{World, make_pod};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::{Effect, EffectError, EffectOk};

/// Performs the calls before the request for the class, and lets time pass until it; returns its id.
fn asked(w: &mut World) -> EffectId {
    loop {
        let Some((id, call)) = w.pending.iter().next() else {
            let due = w.worker.deadline().expect("on its way to the sandbox");
            w.now = w.now.max(due);
            w.step(PodEvent::Tick);
            continue;
        };
        let id = *id;
        if let Effect::FetchObjects { objects } = &call.effect {
            assert_eq!(objects, &[class()].into());
            return id;
        }
        assert!(!matches!(call.effect, Effect::RunSandbox { .. }), "its class was not asked for");
        w.perform(id);
    }
}

fn class() -> ObjectRef {
    ObjectRef { kind: ObjectKind::RuntimeClass, namespace: String::new(), name: "sealed".to_owned() }
}

fn answer(w: &mut World, id: EffectId, class_is: Fetched) {
    w.answer(id, Ok(EffectOk::Objects([(class(), class_is)].into())));
}

fn handler(handler: &str) -> Fetched {
    let data = [("handler".to_owned(), handler.as_bytes().to_vec())].into();
    Fetched::Found(ObjectData { data, ..ObjectData::default() })
}

fn run_by(w: &World) -> Vec<(EffectId, String)> {
    let runs = w.pending.iter().filter_map(|(id, call)| match &call.effect {
        Effect::RunSandbox { config } => Some((*id, config.runtime_handler.clone())),
        _ => None,
    });
    runs.collect()
}

#[test]
fn a_class_is_waited_for_and_asked_for_before_each_sandbox() {
    let mut w = World::new();
    w.desire(&make_pod(json!({"runtimeClassName": "sealed", "containers": [{"name": "a", "image": "x:1"}]})));
    let id = asked(&mut w);
    answer(&mut w, id, Fetched::Missing);
    let missing = "Failed to create pod sandbox: runtimeclass.node.k8s.io \"sealed\" not found";
    assert_eq!(w.events_of("FailedCreatePodSandBox"), [missing]);
    assert!(w.pending.is_empty(), "it waits: {:?}", w.pending);
    w.step(PodEvent::SourcesChanged);
    assert!(!w.pending.is_empty(), "it is looked up at once");
    let id = asked(&mut w);
    answer(&mut w, id, handler("kata"));
    let [(run, by)] = <[_; 1]>::try_from(run_by(&w)).expect("a sandbox");
    assert_eq!(by, "kata");
    // The class may have been replaced meanwhile.
    let refused = EffectError { class: Class::Invalid, message: "no runtime for \"kata\"".to_owned() };
    w.answer(run, Err(refused));
    assert_eq!(
        w.events_of("FailedCreatePodSandBox")[1],
        "Failed to create pod sandbox: no runtime for \"kata\""
    );
    w.step(PodEvent::SourcesChanged);
    assert!(run_by(&w).is_empty(), "what the runtime refused waits for its time");
    let id = asked(&mut w);
    answer(&mut w, id, handler("runc"));
    let [(_, by)] = <[_; 1]>::try_from(run_by(&w)).expect("a sandbox");
    assert_eq!(by, "runc");
    w.settle();
    assert_eq!(w.phase(), "Running");
}

#[test]
fn without_a_class_nobody_is_asked() {
    let mut w = World::new();
    w.desire(&make_pod(json!({"runtimeClassName": "", "containers": [{"name": "a", "image": "x:1"}]})));
    w.settle();
    assert_eq!(w.phase(), "Running");
}
