//! When a pod may be told to be over.

use serde_json::json;

use super::world::{World, make_pod};

#[test]
fn a_pod_is_not_over_while_a_start_is_under_way() {
    let image = |name: &str| json!({"name": name, "image": "i:1", "imagePullPolicy": "IfNotPresent"});
    let mut side = image("side");
    side["restartPolicy"] = json!("Always");
    let p = make_pod(json!({"restartPolicy": "Never",
        "initContainers": [side, image("init")], "containers": [image("app")]}));
    let mut w = World::with(&p);
    assert_eq!((w.runtime.running("side").len(), w.runtime.running("init").len()), (1, 1));
    w.end("side", 1);
    // Until its second instance has been created, and is about to start.
    let start = loop {
        let (id, call) = w.pending.iter().next().expect("the sidecar starts again");
        if call.effect.verb() == "start_container" {
            break *id;
        }
        let id = *id;
        w.perform(id);
    };
    w.end("init", 1);
    assert_eq!(w.phase(), "Pending", "the sidecar may run any moment");
    w.perform(start);
    assert_eq!(w.runtime.running("side").len(), 1);
    w.settle();
    assert_eq!((w.phase(), w.runtime.running("side").len()), ("Failed", 0));
}
