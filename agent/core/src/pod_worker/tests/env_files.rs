//! Files of volumes are read just before a container is made from them.

use std::sync::Arc;

use agent_volumes::env_file::EnvFiles;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::world::{World, make_pod};
use crate::pod_worker::effect::{Effect, EffectOk};

fn pod(volume: &str) -> Arc<Pod> {
    let source = json!({"volumeName": volume, "path": "x", "key": "K"});
    make_pod(
        json!({"volumes": [{"name": "e", "emptyDir": {}}], "containers": [{"name": "a", "image": "r.example/x:1",
        "env": [{"name": "V", "valueFrom": {"fileKeyRef": source}}]}]}),
    )
}

#[test]
fn no_container_is_made_before_its_files_were_read() {
    let mut w = World::new();
    w.desire(&pod("e"));
    let (id, files) = loop {
        let (id, call) = w.pending.iter().next().expect("on its way to the file");
        assert!(!matches!(call.effect, Effect::CreateContainer { .. }));
        if let Effect::ReadEnvFiles { files } = &call.effect {
            break (*id, files.clone());
        }
        let id = *id;
        w.perform(id);
    };
    assert_eq!(files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["x"]);
    let read: EnvFiles = files.into_iter().map(|f| (f, Ok(b"K='v'".to_vec()))).collect();
    w.answer(id, Ok(EffectOk::EnvFiles(read)));
    assert!(w.pending.values().any(|call| matches!(call.effect, Effect::CreateContainer { .. })));
    w.settle();
    assert_eq!(w.phase(), "Running");
}

#[test]
fn a_volume_that_is_not_there_is_told() {
    let mut w = World::new();
    w.desire(&pod("none"));
    w.settle();
    assert_eq!(w.waiting_reason("a"), "CreateContainerConfigError");
    let told = w.events_of("Failed");
    assert_eq!(told, ["Error: cannot find the volume \"none\" referenced by FileKeyRef"]);
}
