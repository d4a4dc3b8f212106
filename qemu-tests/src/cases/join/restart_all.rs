//! The restart rule `RestartAllContainers`: all containers of a pod start again in its sandbox.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone, named_container};
use serde_json::json;

use crate::cases::join::debug::runs;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/restart-all",
    40,
    "RestartAllContainers: one container's end makes all begin anew in the same sandbox, counted and told",
    restart_all,
)];

fn restart_all(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let (cluster, client) = (&joined.cluster, joined.cluster.client());
    let mut pod = api_pod("anew", "first", STAYS, 1);
    // The container ends once, as soon as the other one runs, and stays the second time: the volume survives the
    // restart.
    let once = format!(
        "echo run >> /scratch/runs; cat /scratch/inits /scratch/runs; [ -e /scratch/over ] || {{ \
         until [ -e /scratch/go ]; do busybox sleep 0.1; done; echo > /scratch/over; exit 42; }}; {STAYS}"
    );
    let scratch = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    let named = |name: &str, script: &str| {
        let mut c = named_container(name, script);
        c["volumeMounts"] = scratch.clone();
        c
    };
    let mut asks = named("asks", &once);
    asks["restartPolicy"] = json!("Never");
    asks["restartPolicyRules"] = json!([
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": {}}]);
    pod["spec"]["initContainers"] = json!([named("first", "echo init >> /scratch/inits")]);
    pod["spec"]["containers"] = json!([asks, named("beside", &format!("echo > /scratch/go; {STAYS}"))]);
    let api = client.of::<Pod>("default");
    client.create::<Pod>(&api, pod)?;
    let again = client.wait::<Pod, _>(&api, 60, "all containers to run again", |all| {
        let status = all.get("anew")?.status.as_ref()?;
        let of = status.container_statuses.as_ref()?;
        let all_again = of.iter().all(|c| c.restart_count == 1 && runs(c));
        (of.len() == 2 && all_again).then(|| status.clone())
    })?;
    ensure!(again.phase.as_deref() == Some("Running"), "{again:?}");
    for c in again.container_statuses.iter().chain(&again.init_container_statuses).flatten() {
        let last = c.last_state.as_ref().and_then(|s| s.terminated.clone()).context("no last state")?;
        let reason = last.reason.as_deref();
        ensure!(reason == Some("RestartingAllContainers") && c.restart_count == 1, "{}: {last:?}", c.name);
    }
    let condition = again.conditions.iter().flatten().find(|c| c.type_ == "AllContainersRestarting");
    ensure!(condition.is_some_and(|c| c.status == "False"), "{condition:?}");
    let said = cluster.kubectl(&["logs", "anew", "-c", "asks"])?;
    ensure!(said == "init\ninit\nrun\nrun", "the second run saw {said:?}");
    let events = client.of::<Event>("default");
    let told = client.wait::<Event, _>(&events, 10, "the events", |all| {
        let of = |e: &&Event| e.involved_object.name.as_deref() == Some("anew");
        let reasons: Vec<String> = all.values().filter(of).filter_map(|e| e.reason.clone()).collect();
        reasons.contains(&"Killing".to_owned()).then_some(reasons)
    })?;
    ensure!(!told.contains(&"SandboxChanged".to_owned()), "another sandbox: {told:?}");
    client.delete::<Pod>(&api, "anew", None)?;
    await_pod_gone(cluster, "anew", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}
