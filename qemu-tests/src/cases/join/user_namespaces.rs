//! Pods with user namespaces of their own (`hostUsers: false`).

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, api_pod, await_pod_gone};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::native::node::NativeNode;
use orlop_proto::cri::v1::StopContainerRequest;
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/user-namespaces",
    45,
    "pods have ids of their own: root of the container is nobody on the host, volumes show its files, also after a kill",
    user_namespaces,
)];

/// Prints its view of itself and of its volumes, then a mark, and stays.
const LOOKS: &str = "\
    { cat /proc/self/uid_map /proc/self/gid_map; id -u; touch /disk/mine /memory/mine /host/mine; \
    stat -c '%n %u %g' /disk/mine /memory/mine /host/mine /etc/hosts; stat -L -c '%n %u %g' /map/k; \
    grep -c ' /proc/' /proc/self/mounts; } > /dev/termination-log 2>&1; \
    cp /dev/termination-log /disk/said; touch /tmp/done; \
    trap 'exit 0' TERM; while :; do sleep 3600 & wait; done";

fn pod(name: &str, proc_mount: &str) -> Value {
    let mut pod = api_pod(name, "first", LOOKS, 1);
    pod["spec"]["hostUsers"] = json!(false);
    pod["spec"]["securityContext"] = json!({"fsGroup": 2000});
    pod["spec"]["volumes"] = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "host", "hostPath": {"path": "/var/lib/e2e-users", "type": "DirectoryOrCreate"}},
        {"name": "map", "configMap": {"name": "users"}},
    ]);
    let volumes = ["disk", "memory", "host", "map"];
    pod["spec"]["containers"][0]["volumeMounts"] =
        volumes.iter().map(|v| json!({"name": v, "mountPath": format!("/{v}")})).collect();
    pod["spec"]["containers"][0]["securityContext"] = json!({"procMount": proc_mount});
    // In the container's own layer: each instance writes its mark again.
    pod["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/done"]}, "periodSeconds": 1, "failureThreshold": 90});
    pod
}

/// The pod's first id on the host, as its record has it.
fn recorded(node: &NativeNode, pod: &Pod) -> Result<u64> {
    let path = node.inside(&format!("/var/lib/kubelet/pods/{}/userns", uid(pod)));
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let record: Value = serde_json::from_str(&text)?;
    let first = record["uidMappings"][0]["hostId"].as_u64().context("no id in the record")?;
    let one = json!([{"hostId": first, "containerId": 0, "length": 65536}]);
    ensure!(record == json!({"uidMappings": one, "gidMappings": one}), "the record is {record}");
    ensure!(first >= 65536 && first % 65536 == 0, "ids begin at {first}");
    Ok(first)
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod's output.
fn pod_output(node: &NativeNode, pod: &Pod) -> Result<Vec<String>> {
    let volume = format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~empty-dir/disk", uid(pod));
    let own = fs::metadata(node.inside(&format!("{volume}/mine")))?;
    ensure!((own.uid(), own.gid()) == (0, 2000), "on disk its file is {}:{}'s", own.uid(), own.gid());
    let text = fs::read_to_string(node.inside(&format!("{volume}/said")))?;
    Ok(text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect())
}

fn check(node: &NativeNode, pod: &Pod, masked: bool) -> Result<u64> {
    let first = recorded(node, pod)?;
    let seen = pod_output(node, pod)?;
    let map = format!("0 {first} 65536");
    let expected = [
        map.as_str(),
        &map,
        "0",
        "/disk/mine 0 2000",
        "/memory/mine 0 2000",
        "/host/mine 0 0",
        "/etc/hosts 0 0",
        "/map/k 0 2000",
    ];
    ensure!(seen.get(..8).is_some_and(|s| s == expected), "it saw {seen:?} and not {expected:?}");
    let over_proc = seen.get(8).and_then(|n| n.parse::<u32>().ok()).context("no count of mounts")?;
    ensure!((over_proc > 0) == masked, "{over_proc} mounts over /proc");
    Ok(first)
}

fn user_namespaces(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let node = client.get::<Node>(&client.all(), "first")?.context("the node")?;
    let handlers = node.status.and_then(|s| s.runtime_handlers).unwrap_or_default();
    let able = |h: &k8s_openapi::api::core::v1::NodeRuntimeHandler| {
        h.features.as_ref().and_then(|f| f.user_namespaces) == Some(true)
    };
    ensure!(
        handlers.iter().any(able),
        "no handler of the node says that it runs user namespaces: {handlers:?}"
    );
    client.create::<ConfigMap>(
        &client.of("default"),
        json!({"metadata": {"name": "users"}, "data": {"k": "v"}}),
    )?;

    let one = joined.run_pod(pod("users-one", "Default"))?;
    let two = joined.run_pod(pod("users-two", "Unmasked"))?;
    let ids = (check(&joined.nodes[0], &one, true)?, check(&joined.nodes[0], &two, false)?);
    ensure!(ids.0 != ids.1, "both have the ids from {} on", ids.0);

    // A new agent reads the old one's records: another pod gets other ids, a new instance the same.
    let node = &mut joined.nodes[0];
    node.kill_agent()?;
    start_kubelet(node, JoinMethod::BootstrapKubeconfig)?;
    let three = joined.run_pod(pod("users-three", "Default"))?;
    let third = check(&joined.nodes[0], &three, true)?;
    ensure!(third != ids.0 && third != ids.1, "the third pod has ids of another one");
    let container = {
        let view = joined.nodes[0].cri().view()?;
        view.of("users-one").first().map(|c| c.id.clone()).context("no container")?
    };
    let cri = joined.nodes[0].cri();
    let stop = StopContainerRequest { container_id: container, timeout: 5 };
    cri.block_on(cri.runtime_client().stop_container(stop)).context("StopContainer")?;
    let client = joined.cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, "a second instance", |all| {
        let status = all.get("users-one")?.status.as_ref()?.container_statuses.clone()?.into_iter().next()?;
        (status.ready && status.restart_count == 1).then_some(())
    })?;
    ensure!(check(&joined.nodes[0], &one, true)? == ids.0, "the second instance has other ids");

    for name in ["users-one", "users-two", "users-three"] {
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    client.delete::<ConfigMap>(&client.of("default"), "users", None)?;
    joined.cluster.ensure_nothing_forbidden()
}
