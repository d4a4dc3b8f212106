//! An outage of the API server, while static pods change and containers crash.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, await_ready,
};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::native::cri::View;
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pods::Pod as StaticPod;
use orlop_harness::say;
use orlop_proto::cri::v1::Container;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/api-server-down",
    60,
    "static pods live without the API server; their mirrors are right after it",
    api_down,
)];

/// How long the API server is away in `join/api-server-down`, seconds.
const DOWN_VARIABLE: &str = "ORLOP_E2E_API_DOWN_S";
const DOWN_S: u64 = 20;

fn api_down(cx: &mut CaseContext<'_>) -> Result<()> {
    let down_s = match std::env::var(DOWN_VARIABLE) {
        Ok(text) => text.parse().with_context(|| format!("{DOWN_VARIABLE}={text}: seconds"))?,
        Err(_) => DOWN_S,
    };
    let joined = Joined::shared(cx)?;
    let (stays, goes, comes) =
        (StaticPod::staying("stays"), StaticPod::staying("goes"), StaticPod::staying("comes"));
    let crashes = "sleep 3; exit 7";
    let falls = StaticPod::script("falls", crashes);
    for pod in [&stays, &goes, &falls] {
        joined.nodes[0].write_manifest(&pod.file(), &pod.manifest())?;
    }
    joined.run_pod(api_pod("bound", "first", STAYS, 1))?;
    joined.run_pod(api_pod("limps", "first", crashes, 1))?;
    for mirror in ["stays-first", "goes-first"] {
        await_pod_ready(&joined.cluster, mirror, 60)?;
    }
    let running = |node: &NativeNode, pods: &[&str]| -> Result<Vec<String>> {
        pods.iter().map(|pod| node.wait(10, pod, |v| v.one_running(pod))).collect()
    };
    let before = running(&joined.nodes[0], &["stays-first", "bound"])?;
    joined.cluster.kill_apiserver()?;
    let node = &mut joined.nodes[0];
    node.write_manifest(&comes.file(), &comes.manifest())?;
    node.remove_manifest(&goes.file())?;
    node.wait(60, "the new static pod", |v| v.one_running("comes-first"))?;
    node.wait(60, "the old static pod to end", |v| v.is_stopped("goes-first").then_some(()))?;
    let down = Instant::now();
    node.pass(Duration::from_secs(down_s))?;
    for pod in ["falls-first", "limps"] {
        node.wait(40, &format!("{pod} to be started again"), |v| (attempts(v, pod) > 0).then_some(()))?;
    }
    let new = running(node, &["comes-first"])?;
    let down = down.elapsed();
    joined.cluster.restart_apiserver()?;
    let start = Instant::now();
    let view = joined.nodes[0].cri().view()?;
    let fell = ["falls-first", "limps"].map(|pod| (pod, attempts(&view, pod)));
    await_pod_ready(&joined.cluster, "comes-first", 90)?;
    await_pod_gone(&joined.cluster, "goes-first", 90)?;
    for (pod, attempts) in fell {
        await_restarts(&joined.cluster, pod, attempts)?;
    }
    await_ready(&joined.cluster, "first", 60)?;
    say::line(format!(
        "  away for {:.0} s; all right {:.1} s after the API server",
        down.as_secs_f64(),
        start.elapsed().as_secs_f64()
    ));
    let after = running(&joined.nodes[0], &["stays-first", "bound", "comes-first"])?;
    ensure!(after == [before, new].concat(), "containers were restarted");
    for pod in [&stays, &comes, &falls] {
        joined.nodes[0].remove_manifest(&pod.file())?;
    }
    let client = joined.cluster.client();
    for pod in ["bound", "limps"] {
        client.delete::<Pod>(&client.of("default"), pod, None)?;
    }
    for pod in ["bound", "limps", "stays-first", "comes-first", "falls-first"] {
        await_pod_gone(&joined.cluster, pod, 60)?;
    }
    // After one refusal the scheduler pauses for a minute or more, and the next case needs the scheduler.
    client.create::<Pod>(&client.of("default"), api_pod("next", "first", STAYS, 1))?;
    await_pod_ready(&joined.cluster, "next", 240)?;
    client.delete::<Pod>(&client.of("default"), "next", None)?;
    await_pod_gone(&joined.cluster, "next", 60)?;
    joined.cluster.ensure_nothing_forbidden()
}

/// Attempt of the pod's newest container.
fn attempts(view: &View, pod: &str) -> u32 {
    let attempt = |c: &&Container| c.metadata.as_ref().map_or(0, |m| m.attempt);
    view.of(pod).iter().map(attempt).max().unwrap_or(0)
}

/// The API shows at least so many restarts, and how the container ended before.
fn await_restarts(cluster: &Cluster, pod: &str, attempts: u32) -> Result<()> {
    let client = cluster.client();
    let what = format!("{pod} to be shown with {attempts} restarts");
    client.wait::<Pod, _>(&client.of("default"), 30, &what, |all| {
        let status = all.get(pod)?.status.as_ref()?.container_statuses.as_ref()?.first()?;
        let ends = [&status.state, &status.last_state];
        let ended = ends.into_iter().flatten().find_map(|s| s.terminated.as_ref())?;
        (i64::from(status.restart_count) >= i64::from(attempts) && ended.exit_code == 7).then_some(())
    })
}
