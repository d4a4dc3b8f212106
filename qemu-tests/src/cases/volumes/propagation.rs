//! Mount propagation between the containers of a pod and the node, in a cluster.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, last_words, named_container,
};
use serde_json::json;

use crate::cases::volumes::files::mounts as mounts_of;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/propagation",
    20,
    "what a privileged container mounts in a volume (Bidirectional) appears in a container with HostToContainer, in no other one, and goes with the pod",
    propagation,
)];

/// Upstream's kubelet makes its root directory a shared mount for it; on a native node the mount around the directory is private.
fn propagation(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let sees = |name: &str, mode: &str| {
        let script = format!(
            "until [ -e /v/mounted ]; do sleep 0.1; done; ls /v/inner > /dev/termination-log; echo {name} >> /dev/termination-log"
        );
        let mut container = named_container(name, &script);
        container["volumeMounts"] = json!([{"name": "v", "mountPath": "/v", "mountPropagation": mode}]);
        container
    };
    let script = format!(
        "mkdir /v/inner && sleep 1 && mount -t tmpfs none /v/inner && touch /v/inner/seen && touch /v/mounted && {STAYS}"
    );
    let mut pod = api_pod("propagation", "first", &script, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let mut mounts = pod["spec"]["containers"][0].take();
    mounts["securityContext"] = json!({"privileged": true});
    mounts["volumeMounts"] = json!([{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]);
    pod["spec"]["containers"] = json!([sees("private", "None"), sees("slave", "HostToContainer"), mounts]);
    client.create::<Pod>(&client.of("default"), pod)?;
    let ended =
        client.wait::<Pod, _>(&client.of("default"), 60, "both containers to have looked", |all| {
            let pod = all.get("propagation")?;
            Some((last_words(pod, "private")?, last_words(pod, "slave")?))
        })?;
    ensure!(ended == ("private\n".to_owned(), "seen\nslave\n".to_owned()), "they saw {ended:?}");
    client.delete::<Pod>(&client.of("default"), "propagation", None)?;
    await_pod_gone(&joined.cluster, "propagation", 60)?;
    let left: Vec<String> =
        mounts_of(&joined.nodes[0])?.into_iter().filter(|m| m.ends_with("/inner")).collect();
    ensure!(left.is_empty(), "still mounted: {left:?}");
    joined.cluster.ensure_nothing_forbidden()
}
