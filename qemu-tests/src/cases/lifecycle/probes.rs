//! Probes on a real node: readiness in conditions, restarts by liveness and startup probes, and the results after a
//! restart of the agent.
//!
//! Cases: `lifecycle/probes-readiness`, `lifecycle/probes-restart`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::native::node::NativeNode;
use serde_json::{Value, json};

/// Cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "lifecycle/probes-readiness",
        level: Level::L4n,
        expected_s: 40,
        about: "a pod is Ready as its readiness probes say, and stays so over a kill of the agent",
        group: GROUP,
        run: readiness,
    },
    Case {
        name: "lifecycle/probes-restart",
        level: Level::L4n,
        expected_s: 60,
        about: "startup gates liveness and readiness; liveness and startup that fail restart the container",
        group: GROUP,
        run: restart,
    },
];

/// The node's directory that pods see as `/data`. A file there is how a case talks to its pods: a command run in a
/// container of a native node sees the machine's root instead of the container's (its root is no pivot).
const SHARED: &str = "/var/log/e2e-probes";

/// The shared directory of a case as it is on this machine.
pub(crate) fn shared(node: &NativeNode, path: &str) -> Result<PathBuf> {
    let dir = node.logs().join(path.trim_start_matches("/var/log/"));
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    Ok(dir)
}

/// A pod of node `first` with the shared directory; `parts` are added to its container.
pub(crate) fn sharing_pod(name: &str, path: &str, script: &str, grace_s: u32, parts: &Value) -> Value {
    let mut pod = api_pod(name, "first", script, grace_s);
    pod["spec"]["volumes"] = json!([{"name": "data", "hostPath": {"path": path}}]);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    container["ports"] = json!([{"name": "web", "containerPort": 8080}]);
    for (key, part) in parts.as_object().into_iter().flatten() {
        container[key] = part.clone();
    }
    pod
}

pub(crate) fn create(cluster: &Cluster, pod: Value) -> Result<()> {
    let client = cluster.client();
    client.create(&client.of::<Pod>("default"), pod).map(|_| ())
}

pub(crate) fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

pub(crate) fn await_pod(
    cluster: &Cluster,
    name: &str,
    what: &str,
    look: impl Fn(&Pod) -> bool,
) -> Result<Pod> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, &format!("pod {name}: {what}"), |all| {
        all.get(name).filter(|pod| look(pod)).cloned()
    })
}

pub(crate) fn await_event(cluster: &Cluster, pod: &str, reason: &str, words: &str) -> Result<()> {
    let client = cluster.client();
    client.wait::<Event, _>(&client.of("default"), 30, &format!("event {reason} {words:?} of {pod}"), |all| {
        let is = |e: &&Event| {
            e.involved_object.name.as_deref() == Some(pod)
                && e.reason.as_deref() == Some(reason)
                && e.message.as_deref().is_some_and(|m| m.contains(words))
        };
        all.values().find(is).map(|_| ())
    })
}

/// The condition Ready, and since when.
fn ready_since(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready")?;
    Some(format!("{} since {:?}", ready.status, ready.last_transition_time))
}

pub(crate) fn running(pod: &Pod) -> bool {
    container(pod).and_then(|c| c.state.as_ref()).is_some_and(|s| s.running.is_some())
}

fn readiness(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let cluster = &joined.cluster;
    let ok = shared(&joined.nodes[0], SHARED)?.join("ok");
    let probe = json!({"httpGet": {"path": "/ok", "port": "web"}, "periodSeconds": 1, "failureThreshold": 2});
    let script = format!("httpd -p 8080 -h /data; {STAYS}");
    create(cluster, sharing_pod("readies", SHARED, &script, 1, &json!({ "readinessProbe": probe })))?;
    let pod = await_pod(cluster, "readies", "to run unready", running)?;
    ensure!(!ready::pod(&pod) && container(&pod).is_some_and(|c| c.started == Some(true) && !c.ready));
    await_event(
        cluster,
        "readies",
        "Unhealthy",
        "Readiness probe failed: HTTP probe failed with statuscode: 404",
    )?;
    fs::write(&ok, "ok")?;
    await_pod(cluster, "readies", "to be ready", ready::pod)?;
    fs::remove_file(&ok)?;
    let pod = await_pod(cluster, "readies", "to be unready again", |p| !ready::pod(p))?;
    ensure!(container(&pod).is_some_and(|c| c.restart_count == 0), "readiness restarts nothing");
    fs::write(&ok, "ok")?;
    let before = await_pod(cluster, "readies", "to be ready again", ready::pod)?;

    // A new agent has to probe again, and keeps the last result meanwhile.
    joined.nodes[0].kill_agent()?;
    start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
    let cluster = &joined.cluster;
    let words = json!({"exec": {"command": ["sh", "-c", "echo not yet; exit 1"]}, "periodSeconds": 1});
    create(cluster, sharing_pod("says-no", SHARED, STAYS, 1, &json!({ "readinessProbe": words })))?;
    await_event(cluster, "says-no", "Unhealthy", "Readiness probe failed: not yet")?;
    let fine = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    create(cluster, sharing_pod("says-yes", SHARED, STAYS, 1, &json!({ "readinessProbe": fine })))?;
    await_pod(cluster, "says-yes", "to be ready", ready::pod)?;
    let after = await_pod(cluster, "readies", "to be there", |_| true)?;
    let (is, was) = (ready_since(&after), ready_since(&before));
    ensure!(is == was, "Ready is {is:?}, was {was:?}");
    fs::remove_file(&ok)?;
    await_pod(cluster, "readies", "to be unready by the new agent", |p| !ready::pod(p))?;
    delete(cluster, &["readies", "says-no", "says-yes"])
}

fn restart(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let cluster = &joined.cluster;
    let dir = shared(&joined.nodes[0], SHARED)?;
    let (go, alive) = (dir.join("go"), dir.join("alive"));
    fs::write(&alive, "alive")?;
    let probes = json!({
        "startupProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 1, "failureThreshold": 60},
        "livenessProbe": {"httpGet": {"path": "/alive", "port": "web"}, "periodSeconds": 1, "failureThreshold": 2},
        "readinessProbe": {"httpGet": {"path": "/alive?x", "port": 8080}, "periodSeconds": 1},
    });
    let script = format!("while [ ! -e /data/go ]; do sleep 1; done; httpd -p 8080 -h /data; {STAYS}");
    create(cluster, sharing_pod("restarts", SHARED, &script, 1, &probes))?;
    await_event(cluster, "restarts", "Unhealthy", "Startup probe failed: dial tcp ")?;
    let pod = await_pod(cluster, "restarts", "to run", running)?;
    ensure!(container(&pod).is_some_and(|c| c.started == Some(false) && !c.ready && c.restart_count == 0));
    fs::write(&go, "")?;
    let pod = await_pod(cluster, "restarts", "to be ready", ready::pod)?;
    let first = container(&pod).cloned().context("its container's status")?;
    ensure!(first.started == Some(true) && first.restart_count == 0, "{first:?}");
    fs::remove_file(&go)?;
    fs::remove_file(&alive)?;
    let words = "Liveness probe failed: HTTP probe failed with statuscode: 404";
    await_event(cluster, "restarts", "Unhealthy", words)?;
    await_event(cluster, "restarts", "Killing", "Container c failed liveness probe, will be restarted")?;
    let pod = await_pod(cluster, "restarts", "to run again", |p| {
        running(p) && container(p).is_some_and(|c| c.restart_count == 1)
    })?;
    let second = container(&pod).cloned().context("its container's status")?;
    ensure!(second.container_id != first.container_id && second.started == Some(false), "{second:?}");
    fs::write(&alive, "alive")?;
    fs::write(&go, "")?;
    await_pod(cluster, "restarts", "to be ready again", ready::pod)?;

    // One that never starts.
    let probe = json!({"exec": {"command": ["sleep", "30"]}, "periodSeconds": 1, "failureThreshold": 1});
    create(cluster, sharing_pod("never-starts", SHARED, STAYS, 1, &json!({ "startupProbe": probe })))?;
    let words = "Startup probe failed: command timed out: \"sleep 30\" timed out after 1s";
    await_event(cluster, "never-starts", "Unhealthy", words)?;
    await_event(cluster, "never-starts", "Killing", "Container c failed startup probe, will be restarted")?;
    await_pod(cluster, "never-starts", "to be restarted", |p| {
        container(p).is_some_and(|c| c.restart_count >= 1)
    })?;
    delete(cluster, &["restarts", "never-starts"])
}

/// Deletes pods and waits for their end.
pub(crate) fn delete(cluster: &Cluster, names: &[&str]) -> Result<()> {
    let client = cluster.client();
    for name in names {
        client.delete::<Pod>(&client.of("default"), name, None)?;
    }
    names.iter().try_for_each(|name| await_pod_gone(cluster, name, 60))
}
