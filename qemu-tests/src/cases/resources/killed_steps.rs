//! The agent is killed before each step of giving pods a processor and devices, and of taking them back: what was recorded stays as it
//! is, nothing has two owners, and nothing is lost.
//!
//! ```text
//! life n: both pods start       ─► kill before step n ─► files of the dead agent ─► next agent: the same, or a refused pod with nothing
//!         both running pods end ─► kill before step n ─► next agent: everything is free again
//! ```
//! In: the group's cluster, upstream's sample plugin. Out: the state files, devices and processors as pods and the pod resources API show
//! them. A step is a change of a file of the managers, or a call of the runtime or of the plugin. Invariants: the plugin ends with the agent,
//! so that it registers once, at its own start, and not during a later kill; a pod whose containers do not run when the agent starts is
//! refused then, because its plugin has not registered yet, as upstream; pods that end have run, also after a refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use nix::libc::SIGTERM;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{Joined, await_pod_gone, await_serving, uid};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::{programs, ready};
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pod_resources::PodResources;
use orlop_harness::native::steps::Steps;
use orlop_harness::rng::Rng;
use orlop_harness::say;
use serde_json::{Value, json};

use crate::cases::resources::devices::{
    CHECKPOINT, DEVICES, PROGRAM, RESOURCE, await_amounts, await_healthy, device, pod, recorded, start_plugin,
};
use crate::cases::resources::processors::{STATE, configure, cpu_list};
use crate::cases::resources::{GROUP, NODE, cluster, look_until};
use crate::cases::volumes::claims::create;
use crate::cases::volumes::csi_claims::{delete_pod, restart};
use crate::cases::volumes::killed_steps::{ALL, until_step};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "resources/killed-steps",
    240,
    "an agent that dies before a step of giving and taking back processors and devices, one step after the other: no other assignment, none twice",
    killed_steps,
)];

/// A pod with a processor and a device, and one with a device.
const OWN: &str = "stepwise-own";
const PODS: [&str; 2] = [OWN, "stepwise-device"];
/// The kubelet's configuration in the node.
const CONFIGURATION: &str = "/run/e2e/kubelet.yaml";
/// Mean distance of the tested steps, unless all steps are requested.
const STRIDE: u32 = 32;
/// Limit of a pod's start or end after a kill, seconds.
const LIMIT_S: u64 = 90;

/// What the files of the managers say, by the pods' UIDs.
#[derive(Clone, Debug, Default, PartialEq)]
struct Assigned {
    cpus: BTreeMap<String, BTreeSet<i64>>,
    devices: BTreeMap<String, BTreeSet<String>>,
}

impl Assigned {
    /// From the texts of the CPU manager's state and of the device manager's checkpoint. Pure.
    ///
    /// # Errors
    /// If a text is none of theirs, or a processor or a device has two owners.
    fn of(state: Option<&str>, checkpoint: Option<&str>) -> Result<Assigned> {
        let devices = checkpoint.map_or_else(|| Ok(BTreeMap::new()), recorded)?;
        let mut owned = BTreeSet::new();
        for id in devices.values().flatten() {
            ensure!(owned.insert(id.clone()), "device {id} has two owners: {devices:?}");
        }
        let Some(text) = state else { return Ok(Assigned { devices, ..Assigned::default() }) };
        let state: Value = serde_json::from_str(text).with_context(|| format!("the state {text:?}"))?;
        let list = |value: &Value| cpu_list(value.as_str().unwrap_or_default());
        let mut taken: BTreeSet<i64> = list(&state["defaultCpuSet"]).into_iter().collect();
        let mut cpus: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
        for (uid, containers) in state["entries"].as_object().into_iter().flatten() {
            for cpu in containers.as_object().into_iter().flat_map(serde_json::Map::values).flat_map(list) {
                ensure!(taken.insert(cpu), "processor {cpu} has two owners: {text}");
                cpus.entry(uid.clone()).or_default().insert(cpu);
            }
        }
        Ok(Assigned { cpus, devices })
    }
}

/// What the files of the node say now.
fn assigned(node: &NativeNode) -> Result<Assigned> {
    let read = |path: &str| match fs::read_to_string(node.inside(path)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {path}")),
    };
    Assigned::of(read(STATE)?.as_deref(), read(CHECKPOINT)?.as_deref())
}

/// Both pods. They are bound to the node: without a plugin the scheduler would place none.
fn pods() -> [Value; 2] {
    PODS.map(|name| {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!(NODE);
        if name == OWN {
            let limits = &mut pod["spec"]["containers"][0]["resources"]["limits"];
            limits["cpu"] = json!("1");
            limits["memory"] = json!("16Mi");
        }
        pod
    })
}

/// True if both pods are as wanted; `None` is a pod that is gone.
fn both(joined: &Joined, wanted: impl Fn(Option<&Pod>) -> bool) -> Result<bool> {
    let client = joined.cluster.client();
    for name in PODS {
        if !wanted(client.get::<Pod>(&client.of("default"), name)?.as_ref()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Kills the agent before its `nth` step, ends the plugin, and starts another agent; returns the step, and what the files of the dead
/// agent say. `None`: `done` was true earlier, and the plugin goes on.
fn without_step(
    joined: &mut Joined,
    nth: usize,
    something: impl Fn(&Joined) -> Result<()>,
    done: impl Fn(&Joined) -> Result<bool>,
) -> Result<Option<(String, Assigned)>> {
    let Some(step) = until_step(joined, Steps::Resources, nth, something, done)? else { return Ok(None) };
    joined.nodes[0].await_agent_exit()?;
    let had = assigned(&joined.nodes[0]).with_context(|| format!("after the kill before {step}"))?;
    // At the sight of the next agent's socket it would register ten seconds later, during another kill perhaps.
    joined.nodes[0].end_beside(PROGRAM, SIGTERM)?;
    restart(joined).with_context(|| format!("after the kill before {step}"))?;
    await_serving(&joined.cluster, NODE, 60)?;
    Ok(Some((step, had)))
}

/// True for the reason of a pod that is refused for want of a plugin: by the device manager, or once the Node has no devices. Pure.
fn is_for_want(reason: Option<&str>) -> bool {
    reason.is_some_and(|reason| {
        reason == "UnexpectedAdmissionError" || reason.strip_prefix("OutOf") == Some(RESOURCE)
    })
}

/// Waits until the pod is Ready, or refused for want of a plugin.
fn await_settled(cluster: &Cluster, name: &str) -> Result<Pod> {
    let client = cluster.client();
    let what = format!("{name} to be Ready or refused");
    let found = client.wait::<Pod, _>(&client.of("default"), LIMIT_S, &what, |all| {
        all.get(name).filter(|pod| ready::pod(pod) || ready::phase(pod) == "Failed").cloned()
    })?;
    let reason = found.status.as_ref().and_then(|status| status.reason.as_deref());
    ensure!(ready::pod(&found) || is_for_want(reason), "{name} failed: {reason:?}");
    Ok(found)
}

/// The files, the API and the pod itself agree about what a pod has; what `had` says of a pod that runs is the same now. Returns true if
/// both run.
fn ensure_kept(joined: &Joined, had: &Assigned) -> Result<bool> {
    let mut both_run = true;
    for name in PODS {
        let pod = await_settled(&joined.cluster, name)?;
        let (uid, runs) = (uid(&pod)?, ready::pod(&pod));
        both_run &= runs;
        look_until(&joined.cluster, 30, &format!("the records of {name}, which runs: {runs}"), || {
            let now = assigned(&joined.nodes[0])?;
            let (cpus, devices) = (now.cpus.get(&uid), now.devices.get(&uid));
            if !runs {
                ensure!(cpus.is_none() && devices.is_none(), "it has {cpus:?} and {devices:?}");
                return Ok(());
            }
            let seen = BTreeSet::from([device(joined, name)?]);
            ensure!(devices == Some(&seen), "it sees {seen:?}, recorded are {devices:?}");
            let shown = PodResources::of(&joined.nodes[0])?.get(name)?.context("it is not shown")?;
            let shown: BTreeSet<i64> =
                shown.containers.iter().flat_map(|container| container.cpu_ids.iter().copied()).collect();
            let recorded = cpus.cloned().unwrap_or_default();
            ensure!(
                shown == recorded && recorded.len() == usize::from(name == OWN),
                "processors {shown:?} are shown, {recorded:?} recorded"
            );
            let is_same = had.cpus.get(&uid).is_none_or(|before| *before == recorded)
                && had.devices.get(&uid).is_none_or(|before| *before == seen);
            ensure!(is_same, "it has {recorded:?} and {seen:?}, the dead agent had recorded {had:?}");
            Ok(())
        })?;
    }
    Ok(both_run)
}

/// Starts the plugin, which registers at once, and waits until pods can have its devices.
fn offer_devices(joined: &mut Joined, program: &Path) -> Result<()> {
    start_plugin(joined, program)?;
    await_healthy(joined, DEVICES.len())?;
    await_amounts(&joined.cluster, NODE, "2", "2")
}

fn create_both(joined: &Joined) -> Result<()> {
    pods().into_iter().try_for_each(|pod| create(&joined.cluster, pod))
}

fn delete_both(joined: &Joined) -> Result<()> {
    PODS.into_iter().try_for_each(|name| delete_pod(joined, name))
}

/// Waits until both pods are gone, and no pod has a processor or a device any more.
fn await_freed(joined: &Joined) -> Result<()> {
    for name in PODS {
        await_pod_gone(&joined.cluster, name, LIMIT_S)?;
    }
    look_until(&joined.cluster, 30, "everything to be free again", || {
        let left = assigned(&joined.nodes[0])?;
        ensure!(left == Assigned::default(), "left is {left:?}");
        Ok(())
    })
}

/// Replaces both pods by new ones, which run. The end of a refused pod would give nothing back.
fn replace_refused(joined: &Joined) -> Result<()> {
    delete_both(joined)?;
    await_freed(joined)?;
    create_both(joined)?;
    ensure!(ensure_kept(joined, &Assigned::default())?, "a pod is refused though its plugin has registered");
    Ok(())
}

/// One life of both pods, with a kill before step `nth` of their start and of their end, which are counted; true if one of them has more
/// steps. No plugin runs before and after it.
fn one_life(joined: &mut Joined, program: &Path, nth: usize, kills: &mut [u32; 2]) -> Result<bool> {
    offer_devices(joined, program)?;
    let started = |joined: &Joined| both(joined, |pod| pod.is_some_and(ready::pod));
    let at_start = without_step(joined, nth, create_both, started)?;
    let (step, had) = at_start.clone().unwrap_or_default();
    let about = || format!("start, killed before step {nth}: {step:?}");
    let both_run = ensure_kept(joined, &had).with_context(about)?;
    if at_start.is_some() {
        offer_devices(joined, program).with_context(about)?;
    }
    if !both_run {
        replace_refused(joined).with_context(about)?;
    }

    let ended = |joined: &Joined| both(joined, |pod| pod.is_none());
    let at_end = without_step(joined, nth, delete_both, ended)?;
    let (step, _) = at_end.clone().unwrap_or_default();
    await_freed(joined).with_context(|| format!("end, killed before step {nth}: {step:?}"))?;
    if at_end.is_none() {
        joined.nodes[0].end_beside(PROGRAM, SIGTERM)?;
    }
    kills[0] += u32::from(at_start.is_some());
    kills[1] += u32::from(at_end.is_some());
    Ok(at_start.is_some() || at_end.is_some())
}

/// Starts the agent again without the CPU manager's state, so that it takes another policy.
fn start_anew(joined: &mut Joined) -> Result<()> {
    fs::remove_file(joined.nodes[0].inside(STATE)).context("remove the state file")?;
    restart(joined)?;
    await_serving(&joined.cluster, NODE, 60)
}

fn killed_steps(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = programs::device_plugin(&cx.run)?;
    let mut rng = Rng::new(cx.seed);
    let all = std::env::var_os(ALL).is_some();
    let joined = cluster(cx)?;
    let before = fs::read(joined.nodes[0].inside(CONFIGURATION)).context("read the configuration")?;
    joined.nodes[0].kill_agent()?;
    configure(&joined.nodes[0], "static")?;
    start_anew(joined)?;

    let (mut nth, mut lives, mut kills) = (1, 1, [0, 0]);
    while one_life(joined, &program, nth, &mut kills)? {
        lives += 1;
        nth += if all { 1 } else { 1 + rng.below(2 * STRIDE - 1) as usize };
    }
    let [at_start, at_end] = kills;
    say::line(format!(
        "  {lives} lives, killed before {at_start} steps of the start and {at_end} of the end, of {nth} at most"
    ));
    ensure!(at_start > 0 && at_end > 0, "no step was met");

    joined.nodes[0].kill_agent()?;
    fs::write(joined.nodes[0].inside(CONFIGURATION), before).context("write the configuration")?;
    start_anew(joined)?;
    joined.cluster.ensure_nothing_forbidden()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(entries: &[(&str, &str)]) -> String {
        let entries: Vec<Value> =
            entries.iter().map(|(uid, id)| json!({"PodUID": uid, "DeviceIDs": {"-1": [id]}})).collect();
        json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}).to_string()
    }

    fn state(entries: &Value) -> String {
        json!({"policyName": "static", "defaultCpuSet": "0,4-7", "entries": entries, "checksum": 1})
            .to_string()
    }

    #[test]
    fn assignments_are_read_by_pod() {
        let state = state(&json!({"u1": {"a": "1-2", "b": "3"}}));
        let found =
            Assigned::of(Some(&state), Some(&checkpoint(&[("u1", "Dev-1"), ("u2", "Dev-2")]))).unwrap();
        assert_eq!(found.cpus, BTreeMap::from([("u1".to_owned(), BTreeSet::from([1, 2, 3]))]));
        let device = |uid: &str, id: &str| (uid.to_owned(), BTreeSet::from([id.to_owned()]));
        assert_eq!(found.devices, BTreeMap::from([device("u1", "Dev-1"), device("u2", "Dev-2")]));
        assert_eq!(Assigned::of(None, None).unwrap(), Assigned::default());
    }

    #[test]
    fn a_refusal_for_want_of_a_plugin_has_one_of_two_reasons() {
        for (reason, is) in [
            (Some("UnexpectedAdmissionError"), true),
            (Some("OutOfexample.com/resource"), true),
            (Some("OutOfcpu"), false),
            (Some("TopologyAffinityError"), false),
            (None, false),
        ] {
            assert_eq!(is_for_want(reason), is, "{reason:?}");
        }
    }

    #[test]
    fn nothing_has_two_owners() {
        for entries in [json!({"u1": {"a": "1"}, "u2": {"a": "1"}}), json!({"u1": {"a": "1", "b": "1"}})] {
            assert!(Assigned::of(Some(&state(&entries)), None).is_err(), "{entries}");
        }
        let shared = Assigned::of(Some(&state(&json!({"u1": {"a": "4"}}))), None).unwrap_err();
        assert!(shared.to_string().starts_with("processor 4 has two owners"), "{shared}");
        let device = Assigned::of(None, Some(&checkpoint(&[("u1", "Dev-1"), ("u2", "Dev-1")]))).unwrap_err();
        assert!(device.to_string().starts_with("device Dev-1 has two owners"), "{device}");
    }
}
