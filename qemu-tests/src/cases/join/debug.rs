//! Ephemeral containers (`kubectl debug`) of a pod that runs.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::native::images;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/debug",
    30,
    "kubectl debug: ephemeral containers run once, see their target's processes, and outlive an agent",
    debug,
)];

/// The status of an ephemeral container of pod `debugged`, when it fulfils `what`.
fn await_ephemeral(
    cluster: &Cluster,
    name: &str,
    to_be: &str,
    what: impl Fn(&ContainerStatus) -> bool,
) -> Result<ContainerStatus> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 30, &format!("debugger {name} to be {to_be}"), |all| {
        let status = all.get("debugged")?.status.as_ref()?;
        let of = status.ephemeral_container_statuses.iter().flatten().find(|c| c.name == name)?;
        what(of).then(|| of.clone())
    })
}

/// True if the container runs.
pub(crate) fn runs(c: &ContainerStatus) -> bool {
    c.state.as_ref().is_some_and(|s| s.running.is_some())
}

fn ended(c: &ContainerStatus) -> bool {
    c.state.as_ref().is_some_and(|s| s.terminated.is_some())
}

fn debug(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let marker = "sleep 98765";
    let script = format!("{marker} & {STAYS}");
    let made = joined.run_pod(api_pod("debugged", "first", &script, 1))?;
    let started = made.status.and_then(|s| s.container_statuses).context("no container statuses")?;
    let image = format!("--image={}", images::busybox());
    let look = |cluster: &Cluster, name: &str, target: &[&str], script: &str| -> Result<String> {
        let container = format!("--container={name}");
        let mut words =
            vec!["debug", "debugged", "--attach=false", &*image, "--profile=general", &*container];
        words.extend(target);
        words.extend(["--", "sh", "-c", script]);
        cluster.kubectl(&words)
    };
    let cluster = &joined.cluster;
    // With a target the debugger sees the target's processes, without one only its own.
    let list = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; exit 3";
    look(cluster, "with", &["--target=c"], list)?;
    look(cluster, "alone", &[], list)?;
    let with = await_ephemeral(cluster, "with", "over", ended)?;
    let code = with.state.as_ref().and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code);
    ensure!(code == Some(3) && with.restart_count == 0, "{with:?}");
    await_ephemeral(cluster, "alone", "over", ended)?;
    let said = cluster.kubectl(&["logs", "debugged", "-c", "with"])?;
    ensure!(said.contains(marker), "a debugger with a target sees {said:?}");
    let said = cluster.kubectl(&["logs", "debugged", "-c", "alone"])?;
    ensure!(!said.contains(marker), "a debugger without a target sees {said:?}");
    look(cluster, "stays", &["--target=c"], &format!("echo looking; {STAYS}"))?;
    let stays = await_ephemeral(cluster, "stays", "running", runs)?;
    let said = cluster.kubectl(&["exec", "debugged", "-c", "stays", "--", "echo", "hello"])?;
    ensure!(said == "hello", "exec in a debugger: {said:?}");
    // Neither an end nor a new agent starts an ephemeral container again, and the pod is unchanged.
    joined.nodes[0].kill_agent()?;
    start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
    look(&joined.cluster, "later", &[], "exit 0")?;
    await_ephemeral(&joined.cluster, "later", "over", ended)?;
    let after = await_ephemeral(&joined.cluster, "stays", "running", runs)?;
    ensure!(after.container_id == stays.container_id, "another debugger: {after:?}");
    let cluster = &joined.cluster;
    let client = cluster.client();
    let events = client.of::<Event>("default");
    let begun = client.wait::<Event, _>(&events, 10, "the events", |all| {
        let of = |e: &&Event| {
            e.reason.as_deref() == Some("Started")
                && e.involved_object.name.as_deref() == Some("debugged")
                && e.involved_object
                    .field_path
                    .as_deref()
                    .is_some_and(|p| p.starts_with("spec.ephemeralContainers{"))
        };
        Some(all.values().filter(of).map(|e| e.count.unwrap_or(1)).sum::<i32>())
    })?;
    ensure!(begun == 4, "{begun} starts of four debuggers");
    let pod = client.get(&client.of::<Pod>("default"), "debugged")?.context("the pod is gone")?;
    let status = pod.status.context("no status")?;
    ensure!(status.phase.as_deref() == Some("Running"), "{:?}", status.phase);
    let now = status.container_statuses.unwrap_or_default();
    ensure!(now.len() == 1 && now[0].container_id == started[0].container_id, "{now:?}");
    client.delete::<Pod>(&client.of("default"), "debugged", None)?;
    await_pod_gone(cluster, "debugged", 30)?;
    joined.nodes[0].wait(30, "nothing left of the pod", |v| v.is_stopped("debugged").then_some(()))?;
    joined.cluster.ensure_nothing_forbidden()
}
