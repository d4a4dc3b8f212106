//! Room on the node: who gets it, and who goes for it.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use crate::case::{Case, CaseContext, Level, Place};
use crate::cluster::fixture::{GROUP, Joined, api_pod, await_event, await_pod_gone, await_pod_ready};
use crate::say;

const HERE: Place = Place { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/preemption",
    20,
    "a pod that does not fit is refused; a critical one takes the room of another, which ends as preempted",
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
    let create = |name: &str, class: Option<&str>| {
        let mut pod = api_pod(name, "first", "trap 'exit 0' TERM; sleep 3600 & wait", 10);
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": format!("{}m", cores * 600)}});
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
    create("victim", None)?;
    await_pod_ready(&joined.cluster, "victim", 60)?;
    create("newcomer", None)?;
    let (reason, message, _) = status("newcomer")?;
    let room = format!("requested: {0}, used: {0}, capacity: {1}", cores * 600, cores * 1000);
    let expected = format!("Pod was rejected: Node didn't have enough resource: cpu, {room}");
    ensure!((reason.as_str(), message.as_str()) == ("OutOfcpu", expected.as_str()), "{reason}: {message}");
    create("critical", Some("system-node-critical"))?;
    await_pod_ready(&joined.cluster, "critical", 60)?;
    let (reason, message, conditions) = status("victim")?;
    let words = "Preempted in order to admit critical pod";
    ensure!((reason.as_str(), message.as_str()) == ("Preempting", words), "{reason}: {message}");
    let disrupted =
        conditions.iter().find(|c| c.type_ == "DisruptionTarget").context("a condition says so")?;
    ensure!(
        disrupted.status == "True" && disrupted.reason.as_deref() == Some("TerminationByKubelet"),
        "{disrupted:?}"
    );
    let event = await_event(&joined.cluster, "Preempting", "victim", 30)?;
    ensure!(event.message.as_deref() == Some(words), "{event:?}");
    say::line(format!("  {}", disrupted.message.as_deref().unwrap_or_default()));
    for name in ["victim", "newcomer", "critical"] {
        client.delete::<Pod>(&pods, name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}
