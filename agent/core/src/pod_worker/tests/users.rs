//! Pods with user namespaces of their own.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::world::{World, make_pod};
use crate::pod_worker::effect::Effect;

fn pod(host_users: Value) -> Arc<Pod> {
    make_pod(json!({"hostUsers": host_users, "containers": [{"name": "a", "image": "r.example/x:1"}]}))
}

/// The ids in the runtime's calls for the pod: of the sandbox, of each container.
fn mapped_ids(w: &mut World) -> Vec<(&'static str, Option<u32>)> {
    let mut seen = Vec::new();
    while let Some((id, call)) = w.pending.iter().next() {
        let id = *id;
        let first = |users: Option<agent_types::ids::IdMapping>| users.map(|m| m.host_id);
        match &call.effect {
            Effect::MapUsers { .. } => seen.push(("asked", None)),
            Effect::RunSandbox { config } => seen.push(("sandbox", first(config.security.users))),
            Effect::CreateContainer { config, sandbox_config, .. } => {
                assert_eq!(config.security.users, sandbox_config.security.users);
                seen.push(("container", first(config.security.users)));
            }
            _ => {}
        }
        w.perform(id);
    }
    seen
}

#[test]
fn a_pods_ids_are_known_before_anything_is_made() {
    let mut w = World::new();
    w.desire(&pod(json!(false)));
    let ids = Some(131_072);
    assert_eq!(mapped_ids(&mut w), [("asked", None), ("sandbox", ids), ("container", ids)]);
    w.settle();
    assert_eq!(w.phase(), "Running");
    for of_the_host in [json!(true), json!(null)] {
        let mut w = World::new();
        w.desire(&pod(of_the_host));
        assert_eq!(mapped_ids(&mut w), [("sandbox", None), ("container", None)]);
    }
}

#[test]
fn a_new_agent_asks_again_for_what_it_did_not_give() {
    let mut w = World::new();
    w.desire(&pod(json!(false)));
    w.settle();
    w.restart_agent();
    w.desire(&pod(json!(false)));
    assert_eq!(mapped_ids(&mut w), [], "what runs wants nothing");
    w.exit("a", 1);
    w.settle();
    assert_eq!(w.count("map_users"), 2);
}
