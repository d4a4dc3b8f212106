//! Mounts that are read-only with all their submounts (KEP-3857), in a cluster.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, api_pod, await_pod_gone, last_words};
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/recursive-read-only",
    20,
    "what is mounted inside a read-only mount is writable, unless recursiveReadOnly says otherwise; the node and statuses tell",
    recursive,
)];

/// A file system that is mounted inside of what the containers mount read-only: the pod's own volume in memory.
const INNER: &str = "pods/$POD/volumes/kubernetes.io~empty-dir/mem";

fn recursive(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let node = client.get::<Node>(&client.all(), "first")?.context("no node")?;
    let handlers = node.status.and_then(|s| s.runtime_handlers).unwrap_or_default();
    let default = handlers.iter().find(|h| h.name.as_deref().unwrap_or_default().is_empty());
    let features = default.and_then(|h| h.features.as_ref());
    ensure!(
        features.is_some_and(|f| f.recursive_read_only_mounts == Some(true)),
        "the node does not tell that its runtime can: {handlers:?}"
    );

    let script = format!(
        "for m in plain if all; do touch /$m/own 2>/dev/null && echo $m itself; \
         touch /$m/{INNER}/$m 2>/dev/null && echo $m inside; done > /dev/termination-log; ls /mem >> /dev/termination-log"
    );
    let mut pod = api_pod("recursive", "first", &script, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["volumes"] = json!([
        {"name": "node", "hostPath": {"path": "/var/lib/kubelet", "type": "Directory"}},
        {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]);
    let mount = |at: &str, mode: Option<&str>| {
        let mut mount = json!({"name": "node", "mountPath": at, "readOnly": true});
        if let Some(mode) = mode {
            mount["recursiveReadOnly"] = json!(mode);
        }
        mount
    };
    let c = &mut pod["spec"]["containers"][0];
    c["env"] = json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]);
    c["volumeMounts"] = json!([
        {"name": "mem", "mountPath": "/mem"},
        mount("/plain", None),
        mount("/if", Some("IfPossible")),
        mount("/all", Some("Enabled"))]);
    client.create::<Pod>(&client.of("default"), pod)?;
    let ended = client.wait::<Pod, _>(&client.of("default"), 60, "the container to have tried", |all| {
        let pod = all.get("recursive")?;
        last_words(pod, "c").map(|_| pod.clone())
    })?;
    let seen = last_words(&ended, "c").unwrap_or_default();
    ensure!(seen == "plain inside\nplain\n", "it wrote {seen:?}");
    let statuses = ended.status.and_then(|s| s.container_statuses).unwrap_or_default();
    let mounts: Vec<Value> =
        statuses.iter().flat_map(|s| s.volume_mounts.iter().flatten()).map(|m| json!(m)).collect();
    let modes: Vec<&str> = mounts.iter().filter_map(|m| m["recursiveReadOnly"].as_str()).collect();
    // The last of them is that of the token.
    ensure!(modes.starts_with(&["Disabled", "Enabled", "Enabled"]), "statuses tell {mounts:?}");
    client.delete::<Pod>(&client.of("default"), "recursive", None)?;
    await_pod_gone(&joined.cluster, "recursive", 60)?;
    joined.cluster.ensure_nothing_forbidden()
}
