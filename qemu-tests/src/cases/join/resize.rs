//! Resizes of running pods: up and down under load, with and without a restart, deferred, and over kills of the agent.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod, PodCondition};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_event, await_pod_gone, await_ready, named_container,
};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::say;
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/resize",
    60,
    "containers that run get more and less, one of them by a restart; what does not fit waits; kills lose nothing",
    resize,
)];

/// Memory of the container that holds memory, MiB.
const HELD_MIB: u64 = 40;

/// `cpu` and `memory` as requests and limits.
fn amounts(cpu: (&str, &str), memory: (&str, &str)) -> Value {
    json!({"requests": {"cpu": cpu.0, "memory": memory.0}, "limits": {"cpu": cpu.1, "memory": memory.1}})
}

/// Requests other resources for a container of a pod.
pub(crate) fn ask_of(joined: &Joined, pod: &str, container: &str, resources: &Value) -> Result<()> {
    let patch = json!({"spec": {"containers": [{"name": container, "resources": resources}]}}).to_string();
    joined.cluster.kubectl(&["patch", "pod", pod, "--subresource", "resize", "--patch", &patch])?;
    Ok(())
}

fn ask(joined: &Joined, container: &str, resources: &Value) -> Result<()> {
    ask_of(joined, "resized", container, resources)
}

/// Thousandths of a core as the API spells them.
pub(crate) fn millicores(milli: u32) -> String {
    if milli.is_multiple_of(1000) { (milli / 1000).to_string() } else { format!("{milli}m") }
}

fn of<'p>(pod: &'p Pod, container: &str) -> Option<&'p ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|c| c.name == container)
}

fn condition(pod: &Pod, name: &str) -> Option<PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == name).cloned()
}

/// Waits until the container is shown to have `resources`, and nothing of the resize is left.
fn has(joined: &Joined, container: &str, resources: &Value) -> Result<ContainerStatus> {
    let client = joined.cluster.client();
    let what = format!("{container} to have {resources}");
    client.wait::<Pod, _>(&client.of("default"), 60, &what, |all| {
        let pod = all.get("resized")?;
        let settled = ["PodResizeInProgress", "PodResizePending"].iter().all(|c| condition(pod, c).is_none());
        let status = of(pod, container)?;
        let shown = json!(status.resources) == *resources
            && json!(status.allocated_resources) == resources["requests"];
        (settled && shown && status.ready).then(|| status.clone())
    })
}

/// Waits for a condition with this reason.
fn await_condition(joined: &Joined, name: &str, reason: &str) -> Result<PodCondition> {
    let client = joined.cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, &format!("{name} {reason}"), |all| {
        condition(all.get("resized")?, name).filter(|c| c.reason.as_deref() == Some(reason))
    })
}

/// The container's values in the kernel.
fn kernel(joined: &Joined, container: &str) -> Result<(u64, i64)> {
    let read = |file: &str| {
        let path = format!("/sys/fs/cgroup/{file}");
        joined.cluster.kubectl(&["exec", "resized", "-c", container, "--", "cat", &path])
    };
    let memory = read("memory/memory.limit_in_bytes")?.trim().parse().context("a limit of memory")?;
    let quota = read("cpu/cpu.cfs_quota_us")?.trim().parse().context("a quota")?;
    Ok((memory, quota))
}

fn resize(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let first = amounts(("50m", "200m"), ("64Mi", "128Mi"));
    let mut pod = api_pod("resized", "first", STAYS, 1);
    let held = format!(
        "A=$(head -c {} /dev/zero | tr '\\0' a); touch /tmp/held; while :; do :; done",
        HELD_MIB << 20
    );
    let (mut holds, mut begins) = (named_container("holds", &held), named_container("begins", STAYS));
    holds["readinessProbe"] = json!({"exec": {"command": ["test", "-e", "/tmp/held"]}, "periodSeconds": 1});
    for container in [&mut holds, &mut begins] {
        container["resources"] = first.clone();
    }
    begins["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    pod["spec"]["containers"] = json!([holds, begins]);
    joined.run_pod(pod)?;
    ensure!(kernel(joined, "holds")? == (128 << 20, 20_000), "{:?}", kernel(joined, "holds")?);

    // Up and down under load, where it runs.
    for (resources, expected) in [
        (amounts(("100m", "500m"), ("96Mi", "256Mi")), (256 << 20, 50_000)),
        (amounts(("20m", "100m"), ("48Mi", "96Mi")), (96 << 20, 10_000)),
    ] {
        ask(joined, "holds", &resources)?;
        let status = has(joined, "holds", &resources)?;
        ensure!(status.restart_count == 0, "it was restarted: {status:?}");
        let is = kernel(joined, "holds")?;
        ensure!(is == expected, "the kernel has {is:?}, expected {expected:?}");
    }
    for reason in ["ResizeStarted", "ResizeCompleted"] {
        let event = await_event(&joined.cluster, reason, "resized", 30)?;
        say::line(format!("  {}", event.message.unwrap_or_default()));
    }

    // Less than its usage: an error until the request is feasible.
    ask(joined, "holds", &amounts(("20m", "100m"), ("16Mi", "32Mi")))?;
    let error = await_condition(joined, "PodResizeInProgress", "Error")?.message.unwrap_or_default();
    ensure!(error.contains("cannot decrease memory limits: attempting to set"), "{error}");
    await_event(&joined.cluster, "ResizeError", "resized", 30)?;
    ensure!(kernel(joined, "holds")?.0 == 96 << 20, "the limit was lowered");
    let fits = amounts(("20m", "100m"), ("48Mi", "80Mi"));
    ask(joined, "holds", &fits)?;
    let status = has(joined, "holds", &fits)?;
    ensure!(status.restart_count == 0, "it was restarted: {status:?}");

    // The memory change restarts the container, as its policy requires; processor time needs no restart.
    let cpu = amounts(("60m", "300m"), ("64Mi", "128Mi"));
    ask(joined, "begins", &cpu)?;
    ensure!(has(joined, "begins", &cpu)?.restart_count == 0, "processor time needs no restart");
    let memory = amounts(("60m", "300m"), ("64Mi", "160Mi"));
    ask(joined, "begins", &memory)?;
    let status = has(joined, "begins", &memory)?;
    ensure!(status.restart_count == 1, "it was not restarted once: {status:?}");
    ensure!(kernel(joined, "begins")? == (160 << 20, 30_000), "{:?}", kernel(joined, "begins")?);

    deferred(joined, &fits)?;
    killed(joined)?;
    whole(joined)?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "resized", None)?;
    await_pod_gone(&joined.cluster, "resized", 60)?;
    let metrics = client.raw("/api/v1/nodes/first/proxy/metrics")?;
    for family in [
        "kubelet_pod_resize_duration_milliseconds_count{success=\"true\"}",
        "kubelet_pod_in_progress_resizes 0",
    ] {
        ensure!(metrics.contains(family), "no {family}");
    }
    joined.cluster.ensure_nothing_forbidden()
}

/// There is no room: the resize is deferred, over a kill of the agent, and is carried out when there is room.
fn deferred(joined: &mut Joined, has_now: &Value) -> Result<()> {
    let cores: u32 = {
        let client = joined.cluster.client();
        let node = client.get::<Node>(&client.all(), "first")?.context("the Node")?;
        let allocatable = node.status.and_then(|s| s.allocatable).unwrap_or_default();
        allocatable.get("cpu").context("its processors")?.0.parse().context("whole processors")?
    };
    let mut neighbour = api_pod("neighbour", "first", STAYS, 1);
    neighbour["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": format!("{}m", cores * 600)}});
    joined.run_pod(neighbour)?;
    let half = format!("{}m", cores * 500);
    let wanted = amounts((&half, &half), ("48Mi", "80Mi"));
    ask(joined, "holds", &wanted)?;
    let pending = await_condition(joined, "PodResizePending", "Deferred")?;
    say::line(format!("  {}", pending.message.clone().unwrap_or_default()));
    ensure!(
        pending
            .message
            .as_ref()
            .is_some_and(|m| m.starts_with("Node didn't have enough resource: cpu, requested: ")),
        "{pending:?}"
    );
    await_event(&joined.cluster, "ResizeDeferred", "resized", 30)?;
    let node = joined.nodes.first_mut().context("the node")?;
    node.kill_agent()?;
    start_kubelet(node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(&joined.cluster, "first", 60)?;
    let client = joined.cluster.client();
    let pods = client.of::<Pod>("default");
    let shown = client.get::<Pod>(&pods, "resized")?.context("the pod")?;
    let status = of(&shown, "holds").context("its container")?;
    ensure!(json!(status.resources) == *has_now && status.restart_count == 0, "{status:?}");
    client.delete::<Pod>(&pods, "neighbour", None)?;
    let spelled = json!(millicores(cores * 500));
    let mut expected = wanted;
    for list in ["requests", "limits"] {
        expected[list]["cpu"] = spelled.clone();
    }
    let status = has(joined, "holds", &expected)?;
    ensure!(status.restart_count == 0, "it was restarted: {status:?}");
    await_pod_gone(&joined.cluster, "neighbour", 60)
}

/// The pod's own resources change, and with them the limits of the container without limits of its own.
fn whole(joined: &Joined) -> Result<()> {
    let mut pod = api_pod("whole", "first", STAYS, 1);
    let own = amounts(("100m", "200m"), ("32Mi", "64Mi"));
    pod["spec"]["resources"] = own.clone();
    joined.run_pod(pod)?;
    let client = joined.cluster.client();
    let shows = |own: &Value| {
        client.wait::<Pod, _>(&client.of("default"), 60, &format!("the pod to have {own}"), |all| {
            let status = all.get("whole")?.status.as_ref()?;
            let shown =
                json!(status.resources) == *own && json!(status.allocated_resources) == own["requests"];
            let settled = condition(all.get("whole")?, "PodResizeInProgress").is_none();
            (shown && settled).then_some(())
        })
    };
    let limit = || {
        let path = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        joined.cluster.kubectl(&["exec", "whole", "--", "cat", path])
    };
    shows(&own)?;
    ensure!(limit()?.trim() == (64 << 20).to_string(), "{}", limit()?);
    let more = amounts(("150m", "300m"), ("48Mi", "96Mi"));
    let patch = json!({"spec": {"resources": more}}).to_string();
    joined.cluster.kubectl(&["patch", "pod", "whole", "--subresource", "resize", "--patch", &patch])?;
    shows(&more)?;
    ensure!(limit()?.trim() == (96 << 20).to_string(), "{}", limit()?);
    let pods = client.of::<Pod>("default");
    let pod = client.get::<Pod>(&pods, "whole")?.context("the pod")?;
    let statuses = pod.status.and_then(|s| s.container_statuses).unwrap_or_default();
    ensure!(statuses.iter().all(|c| c.restart_count == 0), "it was restarted: {statuses:?}");
    client.delete::<Pod>(&pods, "whole", None)?;
    await_pod_gone(&joined.cluster, "whole", 60)
}

/// The agent, or its runtime, is killed while it changes amounts.
fn killed(joined: &mut Joined) -> Result<()> {
    for round in 1..=6 {
        let resources =
            amounts((&format!("{round}0m"), &format!("{round}00m")), ("48Mi", &format!("{}Mi", 90 + round)));
        ask(joined, "holds", &resources)?;
        let node = joined.nodes.first_mut().context("the node")?;
        if round % 3 == 0 {
            node.kill_containerd()?;
            node.start_containerd()?;
        } else {
            node.kill_agent()?;
            start_kubelet(node, JoinMethod::BootstrapKubeconfig)?;
        }
        let status = has(joined, "holds", &resources)?;
        ensure!(status.restart_count == 0, "it was restarted: {status:?}");
    }
    Ok(())
}
