//! Devices of a device plugin: upstream's sample in the native node, through its restart and a kill of the agent.
//!
//! In: the group's cluster. Out: amounts of the Node, the device's file inside containers, the pod resources API, a refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use nix::libc::SIGTERM;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, await_serving,
};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::{programs, ready};
use orlop_harness::native::pod_resources::PodResources;
use orlop_harness::say;
use orlop_proto::pod_resources::v1::ContainerDevices;
use serde_json::{Value, json};

use crate::cases::resources::{GROUP, NODE, cluster, look_until};
use crate::cases::volumes::csi_claims::restart;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "resources/devices",
    70,
    "upstream's sample plugin registers, pods get its devices or are refused; the plugin restarts, the agent is killed: they keep them",
    devices,
)];

pub(super) const RESOURCE: &str = "example.com/resource";
pub(super) const DEVICES: [&str; 2] = ["Dev-1", "Dev-2"];
/// Name of the plugin's program in the node.
pub(super) const PROGRAM: &str = "device-plugin";
/// The device manager's checkpoint.
pub(super) const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

pub(super) fn start_plugin(joined: &mut Joined, program: &Path) -> Result<()> {
    let node = &mut joined.nodes[0];
    let argv = [node.bring(program)?];
    node.start_beside(PROGRAM, &argv, &[])
}

/// Waits until the Node has these amounts of the resource.
pub(super) fn await_amounts(cluster: &Cluster, node: &str, capacity: &str, allocatable: &str) -> Result<()> {
    let client = cluster.client();
    let what = format!("{allocatable} of {capacity} devices in the Node");
    client.wait::<Node, _>(&client.all(), 60, &what, |all| {
        let status = all.get(node)?.status.as_ref()?;
        let amount = |of: &Option<
            BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
        >| { of.as_ref()?.get(RESOURCE).map(|quantity| quantity.0.clone()) };
        let is = (amount(&status.capacity)?, amount(&status.allocatable)?);
        (is == (capacity.to_owned(), allocatable.to_owned())).then_some(())
    })
}

fn names(devices: &[ContainerDevices]) -> BTreeSet<&str> {
    devices.iter().flat_map(|of| of.device_ids.iter().map(String::as_str)).collect()
}

/// Waits until the kubelet has this number of healthy devices: the Node may still show those of the time before.
pub(super) fn await_healthy(joined: &Joined, devices: usize) -> Result<()> {
    let api = PodResources::of(&joined.nodes[0])?;
    look_until(&joined.cluster, 60, &format!("{devices} devices"), || {
        let all = api.allocatable()?.devices;
        ensure!(names(&all).len() == devices, "there are {all:?}");
        Ok(())
    })
}

pub(super) fn pod(name: &str) -> Value {
    let mut pod = api_pod(name, NODE, STAYS, 1);
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {RESOURCE: "1"}});
    pod
}

/// The one device that a program in the pod sees.
pub(super) fn seen(cluster: &Cluster, name: &str) -> Result<String> {
    let listed = cluster.kubectl(&["exec", name, "--", "ls", "/tmp"])?;
    let seen: Vec<&str> = listed.lines().filter(|line| line.starts_with("Dev-")).collect();
    let [one] = seen[..] else { bail!("{name} sees {listed:?}") };
    ensure!(DEVICES.contains(&one), "there is no device {one}");
    Ok(one.to_owned())
}

/// Devices of pods by their UIDs, from the text of the checkpoint.
pub(super) fn recorded(checkpoint: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let checkpoint: Value =
        serde_json::from_str(checkpoint).with_context(|| format!("the checkpoint {checkpoint:?}"))?;
    let mut devices: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in checkpoint["Data"]["PodDeviceEntries"].as_array().into_iter().flatten() {
        let uid = entry["PodUID"].as_str().with_context(|| format!("an entry without a pod: {entry}"))?;
        let of_nodes = entry["DeviceIDs"].as_object().into_iter().flat_map(serde_json::Map::values);
        let ids = of_nodes.filter_map(Value::as_array).flatten().filter_map(Value::as_str);
        devices.entry(uid.to_owned()).or_default().extend(ids.map(str::to_owned));
    }
    Ok(devices)
}

/// The same device, which is the one that the kubelet shows.
pub(super) fn device(joined: &Joined, name: &str) -> Result<String> {
    let one = seen(&joined.cluster, name)?;
    let api = PodResources::of(&joined.nodes[0])?;
    let shown = api.get(name)?.with_context(|| format!("{name} is not shown"))?;
    ensure!(api.list()?.contains(&shown), "the list and the pod differ: {shown:?}");
    let entries: Vec<(&str, &[String])> = shown
        .containers
        .iter()
        .flat_map(|container| &container.devices)
        .map(|of| (of.resource_name.as_str(), &of.device_ids[..]))
        .collect();
    ensure!(entries == [(RESOURCE, &[one.clone()][..])], "{name} has {one} and is shown with {entries:?}");
    Ok(one)
}

/// A pod that the scheduler did not place finds no device.
fn ensure_refused(cluster: &Cluster) -> Result<()> {
    let mut third = pod("devices-refused");
    third["spec"]["nodeName"] = json!(NODE);
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    client.create::<Pod>(&pods, third)?;
    let status = client.wait::<Pod, _>(&pods, 60, "a pod to be refused", |all| {
        let pod = all.get("devices-refused")?;
        (ready::phase(pod) == "Failed").then(|| pod.status.clone())?
    })?;
    let message = status.message.unwrap_or_default();
    ensure!(message.contains(RESOURCE), "the pod is refused with {:?}: {message}", status.reason);
    client.delete::<Pod>(&pods, "devices-refused", Some(0))?;
    await_pod_gone(cluster, "devices-refused", 60)
}

/// Container and restarts of a pod with one container.
pub(super) fn instance(cluster: &Cluster, name: &str) -> Result<(Option<String>, i32)> {
    let client = cluster.client();
    let pod = client.get::<Pod>(&client.of("default"), name)?.with_context(|| format!("no pod {name}"))?;
    let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    let status = statuses.first().with_context(|| format!("{name} has no container"))?;
    Ok((status.container_id.clone(), status.restart_count))
}

/// The pods go on while the plugin and then the agent start again, and have their devices afterwards.
fn restarts(joined: &mut Joined, program: &Path, pods: [(&str, &str); 2]) -> Result<()> {
    let ensure_same = |joined: &Joined, before: &[(Option<String>, i32)]| -> Result<()> {
        for ((name, has), before) in pods.iter().zip(before) {
            let (now, found) = (instance(&joined.cluster, name)?, device(joined, name)?);
            ensure!(now == *before, "{name} was restarted: {now:?}, before {before:?}");
            ensure!(found == *has, "{name} has {found}, before {has}");
        }
        Ok(())
    };
    let before: Vec<_> =
        pods.iter().map(|(name, _)| instance(&joined.cluster, name)).collect::<Result<_>>()?;
    joined.nodes[0].end_beside(PROGRAM, SIGTERM)?;
    await_amounts(&joined.cluster, NODE, "2", "0")?;
    await_healthy(joined, 0)?;
    ensure_same(joined, &before)?;
    start_plugin(joined, program)?;
    await_amounts(&joined.cluster, NODE, "2", "2")?;
    ensure_same(joined, &before)?;
    joined.nodes[0].kill_agent()?;
    restart(joined)?;
    await_serving(&joined.cluster, NODE, 60)?;
    ensure_same(joined, &before)?;
    // The plugin sees the new socket and registers again; upstream's waits for ten seconds.
    await_healthy(joined, DEVICES.len())?;
    ensure_same(joined, &before)
}

/// A container that starts again has the device that it had.
fn restart_container(joined: &Joined, name: &str, has: &str) -> Result<()> {
    // The container may be gone before the answer.
    let _ = joined.cluster.kubectl(&["exec", name, "--", "kill", "1"]);
    let client = joined.cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, &format!("{name} to start again"), |all| {
        let pod = all.get(name)?;
        let restarts = pod.status.as_ref()?.container_statuses.as_ref()?.first()?.restart_count;
        (restarts == 1 && ready::pod(pod)).then_some(())
    })?;
    let found = device(joined, name)?;
    ensure!(found == has, "{name} has {found}, before {has}");
    Ok(())
}

fn devices(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = programs::device_plugin(&cx.run)?;
    let joined = cluster(cx)?;
    start_plugin(joined, &program)?;
    await_amounts(&joined.cluster, NODE, "2", "2")?;
    await_healthy(joined, DEVICES.len())?;
    for name in ["devices-1", "devices-2"] {
        joined.run_pod(pod(name))?;
    }
    let (one, two) = (device(joined, "devices-1")?, device(joined, "devices-2")?);
    ensure!(one != two, "both pods have {one}");
    say::line(format!("  devices-1 has {one}, devices-2 has {two}"));
    ensure_refused(&joined.cluster)?;
    restarts(joined, &program, [("devices-1", &one), ("devices-2", &two)])?;
    restart_container(joined, "devices-1", &one)?;

    let client = joined.cluster.client();
    let pods = client.of::<Pod>("default");
    client.delete::<Pod>(&pods, "devices-1", None)?;
    await_pod_gone(&joined.cluster, "devices-1", 60)?;
    client.create::<Pod>(&pods, pod("devices-3"))?;
    await_pod_ready(&joined.cluster, "devices-3", 90)?;
    let free = device(joined, "devices-3")?;
    ensure!(free == one, "the free device was {one}, and the pod has {free}");
    for name in ["devices-2", "devices-3"] {
        client.delete::<Pod>(&pods, name, None)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    joined.nodes[0].end_beside(PROGRAM, SIGTERM)?;
    joined.cluster.ensure_nothing_forbidden()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_pod_are_those_of_all_its_containers_and_numa_nodes() {
        let entry = |uid: &str, ids: Value| json!({"PodUID": uid, "ContainerName": "c", "DeviceIDs": ids});
        let entries = [
            entry("u1", json!({"-1": ["Dev-1"], "0": ["Dev-2"]})),
            entry("u1", json!({"0": ["Dev-3"], "1": null})),
            entry("u2", json!(null)),
        ];
        let text = json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1});
        let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let expected =
            [("u1".to_owned(), set(&["Dev-1", "Dev-2", "Dev-3"])), ("u2".to_owned(), BTreeSet::new())];
        assert_eq!(recorded(&text.to_string()).unwrap(), BTreeMap::from(expected));
        let none = json!({"Data": {"PodDeviceEntries": null, "RegisteredDevices": null}, "Checksum": 1});
        assert_eq!(recorded(&none.to_string()).unwrap(), BTreeMap::new());
        assert!(recorded("").is_err());
    }
}
