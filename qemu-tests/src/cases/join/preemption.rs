//! Preemption on the node: a critical pod gets the resources of a less critical one.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, api_pod, await_event, await_pod_gone, await_pod_ready};
use orlop_harness::say;
use serde_json::json;

use crate::cases::join::resize::{ask_of, millicores};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/preemption",
    20,
    "a pod that does not fit is refused; a critical one takes the room of others, which end as preempted, to begin and to \
     be resized",
    preemption,
)];

fn preemption(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let pods = client.of("default");
    let node = client.get::<Node>(&client.all(), "first")?.context("the Node")?;
    let cores: u32 = {
        let allocatable = node.status.and_then(|s| s.allocatable).unwrap_or_default();
        allocatable.get("cpu").context("its processors")?.0.parse().context("whole processors")?
    };
    let create = |name: &str, share: u32, class: Option<&str>| {
        let mut pod = api_pod(name, "first", "trap 'exit 0' TERM; sleep 3600 & wait", 10);
        pod["spec"]["containers"][0]["resources"] =
            json!({"requests": {"cpu": format!("{}m", cores * share)}});
        // Past the scheduler, which would not bind it.
        pod["spec"]["nodeName"] = json!("first");
        if let Some(class) = class {
            pod["spec"]["priorityClassName"] = json!(class);
        }
        client.create::<Pod>(&pods, pod)
    };
    let status = |name: &str| -> Result<_> {
        let found = client.wait::<Pod, _>(&pods, 60, "the pod to have failed", |all| {
            let status = all.get(name)?.status.clone()?;
            (status.phase.as_deref() == Some("Failed")).then_some(status)
        })?;
        Ok((
            found.reason.unwrap_or_default(),
            found.message.unwrap_or_default(),
            found.conditions.unwrap_or_default(),
        ))
    };
    create("victim", 600, None)?;
    await_pod_ready(&joined.cluster, "victim", 60)?;
    create("newcomer", 600, None)?;
    let (reason, message, _) = status("newcomer")?;
    let room = format!("requested: {0}, used: {0}, capacity: {1}", cores * 600, cores * 1000);
    let expected = format!("Pod was rejected: Node didn't have enough resource: cpu, {room}");
    ensure!((reason.as_str(), message.as_str()) == ("OutOfcpu", expected.as_str()), "{reason}: {message}");
    create("critical", 600, Some("system-node-critical"))?;
    await_pod_ready(&joined.cluster, "critical", 60)?;
    let preempted = |name: &str| -> Result<()> {
        let (reason, message, conditions) = status(name)?;
        let words = "Preempted in order to admit critical pod";
        ensure!((reason.as_str(), message.as_str()) == ("Preempting", words), "{reason}: {message}");
        let disrupted =
            conditions.iter().find(|c| c.type_ == "DisruptionTarget").context("a condition says so")?;
        ensure!(
            disrupted.status == "True" && disrupted.reason.as_deref() == Some("TerminationByKubelet"),
            "{disrupted:?}"
        );
        let event = await_event(&joined.cluster, "Preempting", name, 30)?;
        ensure!(event.message.as_deref() == Some(words), "{event:?}");
        say::line(format!("  {}", disrupted.message.as_deref().unwrap_or_default()));
        Ok(())
    };
    preempted("victim")?;

    // A pod that is not critical and asks for more waits; a critical one preempts another pod.
    create("bystander", 100, None)?;
    create("second", 250, None)?;
    for name in ["bystander", "second"] {
        await_pod_ready(&joined.cluster, name, 60)?;
    }
    let resize = |name: &str, share: u32| {
        let requests = json!({"cpu": format!("{}m", cores * share)});
        ask_of(joined, name, "c", &json!({"requests": requests}))
    };
    resize("bystander", 200)?;
    let event = await_event(&joined.cluster, "ResizeDeferred", "bystander", 30)?;
    let message = event.message.unwrap_or_default();
    ensure!(message.starts_with("Pod resize OutOfcpu: "), "{message}");
    resize("critical", 850)?;
    preempted("second")?;
    let has = json!({"cpu": millicores(cores * 850)});
    client.wait::<Pod, _>(&pods, 60, "the critical pod to have what it asks for", |all| {
        let status = all.get("critical")?.status.as_ref()?.container_statuses.as_ref()?.first()?;
        (json!(status.allocated_resources) == has && status.ready && status.restart_count == 0).then_some(())
    })?;
    let bystander = client.get::<Pod>(&pods, "bystander")?.context("the bystander")?;
    let phase = bystander.status.and_then(|s| s.phase);
    ensure!(phase.as_deref() == Some("Running"), "one was enough: {phase:?}");
    for name in ["victim", "newcomer", "critical", "bystander", "second"] {
        client.delete::<Pod>(&pods, name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}
