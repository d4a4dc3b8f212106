//! declared_features: the features that this node declares (`status.declaredFeatures`), and those that a
//! change of a pod needs.
//!
//! In: a pod before and after an update. Out: features that the update needs and this node does not declare.
//! Invariants: the node declares only features that it has; names are in the order of upstream's registry.
//! Upstream: component-helpers/nodedeclaredfeatures (KEP-5328).

use k8s_openapi::api::core::v1::Pod;
use orlop_config::kubelet::FeatureGates;

use crate::node_context::Features;
use crate::pod;

/// One container restarts all of its pod (KEP-5532); a gate.
const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";

/// The API server leaves WebSockets of exec, attach and port-forward to a node that declares it, untranslated; a gate.
const WEBSOCKETS: &str = "ExtendWebSocketsToKubelet";

/// The features that a node with these gates declares.
#[must_use]
pub fn declared(gates: &FeatureGates) -> Vec<String> {
    if !gates.node_declared_features {
        return Vec::new();
    }
    let gated = [
        (RESTART_ALL, gates.restart_all_containers_on_container_exits),
        (POD_LEVEL_RESIZE, gates.in_place_pod_level_resources_vertical_scaling),
        (WEBSOCKETS, gates.extend_web_sockets_to_kubelet),
        (INIT_CONTAINER_RESIZE, gates.in_place_pod_vertical_scaling_init_containers),
    ];
    gated.into_iter().filter(|&(_, is_on)| is_on).map(|(feature, _)| feature.to_owned()).collect()
}

/// Feature gate: a pod's own requests (`spec.resources`) can change while it runs.
const POD_LEVEL_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";
const INIT_CONTAINER_RESIZE: &str = "InPlacePodVerticalScalingInitContainers";

/// Features that the update from `old` to `new` needs and this node does not declare.
#[must_use]
pub fn missing_for_update(old: &Pod, new: &Pod, features: Features) -> Vec<&'static str> {
    // The node resizes init containers in any case: the gate concerns the client.
    let needed = pod::spec(old).resources != pod::spec(new).resources;
    Some(POD_LEVEL_RESIZE).filter(|_| needed && !features.pod_level_resize).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_feature_is_declared_with_its_gate() {
        let of = |set: &[(&str, bool)]| {
            let map = set.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
            declared(&FeatureGates::resolve(&map).unwrap())
        };
        let all = [RESTART_ALL, POD_LEVEL_RESIZE, WEBSOCKETS, INIT_CONTAINER_RESIZE];
        assert_eq!(of(&[]), all);
        assert_eq!(of(&[(WEBSOCKETS, false)]), [all[0], all[1], all[3]]);
        assert_eq!(of(&[(INIT_CONTAINER_RESIZE, false)]), all[..3]);
        assert_eq!(of(&[(RESTART_ALL, false)]), all[1..]);
        let needing = [
            "NodeDeclaredFeatures",
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
            RESTART_ALL,
            WEBSOCKETS,
        ];
        assert!(of(&needing.map(|gate| (gate, false))).is_empty());
    }

    #[test]
    fn only_resizes_need_anything() {
        let of = |spec: Value| -> Pod { serde_json::from_value(json!({"spec": spec})).unwrap() };
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        let init = |policy: Value, amount: &str| json!({"containers": [], "initContainers": [{"name": "i", "restartPolicy": policy, "resources": cpu(amount)}]});
        let regular = |amount: &str| json!({"containers": [{"name": "c", "resources": cpu(amount)}]});
        let whole = |amount: &str| json!({"containers": [], "resources": cpu(amount)});
        for (old, new, missing) in [
            (regular("1"), regular("2"), vec![]),
            (init(json!(null), "1"), init(json!(null), "1"), vec![]),
            (init(json!("Always"), "1"), init(json!("Always"), "2"), vec![]),
            (init(json!(null), "1"), init(json!(null), "2"), vec![]),
            (whole("1"), whole("1"), vec![]),
            (whole("1"), whole("2"), vec![POD_LEVEL_RESIZE]),
            (regular("1"), whole("1"), vec![POD_LEVEL_RESIZE]),
            (init(json!(null), "1"), regular("1"), vec![]),
        ] {
            let (old, new) = (of(old), of(new));
            let without = Features { pod_level_resize: false, ..Features::default() };
            assert_eq!(missing_for_update(&old, &new, without), missing, "{old:?} to {new:?}");
            assert!(missing_for_update(&old, &new, Features::default()).is_empty());
        }
    }
}
