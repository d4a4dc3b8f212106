//! Devices in a booted VM: upstream's sample plugin and its DRA driver for tests are pods of the VM, through a kill of the agent and a
//! power cut.
//!
//! ```text
//! second disk ─► /var/lib/e2e in the VM ─► hostPath ─► /bin of the pods `plugin` and `driver` (privileged, as upstream's manifests)
//! ```
//! In: a cluster with its scheduler and resource claim controller, a VM. Out: devices as programs in the pods see them, the device
//! manager's checkpoint, the claim's allocation, metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_pod_gone, await_pod_ready, await_started_anew, uid_of};
use orlop_harness::cluster::flags::{ADDRESS, PORT, Settings};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::cluster::{programs, ready};
use orlop_harness::native::images::host_busybox;
use orlop_harness::say;
use serde_json::{Value, json};

use crate::cases::join::vm::tools::{PROGRAMS, link};
use crate::cases::resources::claims::{
    CDI, DEVICES, DRIVER, are_whole_on, await_slices, claim_uid, ensure_variables, lay, metrics_of, using,
    variable,
};
use crate::cases::resources::devices::{CHECKPOINT, RESOURCE, await_amounts, instance, recorded, seen};
use crate::cases::resources::{await_up, look_until, mount, vm_pod};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "resources/devices-vm",
    260,
    "a VM's pods are a device plugin, a DRA driver and users of both; the agent is killed: the same devices; power is cut: they come back",
    devices_vm,
)];

const VM: &str = "devices";
const NAMES: [&str; 5] = ["sh", "cat", "env", "ls", "sleep"];
/// Programs of the plugin and of the driver in the VM, and in their pods.
const PLUGIN: &str = "sample-device-plugin";
const DRA_DRIVER: &str = "dra-test-driver";
/// Account of the driver.
const ACCOUNT: &str = "dra";
/// A pod with the claim.
const CLAIMS: &str = "claims";
/// The claim, of the objects of [`lay`].
const CLAIM: &str = "shared";
/// Limit of a pod's start under TCG on a busy machine, seconds.
const LIMIT_S: u64 = 150;

/// A privileged pod that runs this command with these directories of the node.
fn privileged(name: &str, command: &[&str], directories: &[&str]) -> Value {
    let mut pod = vm_pod(name, &json!({}));
    let container = &mut pod["spec"]["containers"][0];
    container["command"] = json!(command);
    container["securityContext"]["privileged"] = json!(true);
    for (number, path) in directories.iter().enumerate() {
        let source = json!({"path": path, "type": "DirectoryOrCreate"});
        mount(&mut pod, json!({"name": format!("d{number}"), "hostPath": source}), path);
    }
    pod
}

/// The plugin makes the files of its devices in the node's /tmp.
fn plugin() -> Value {
    privileged("plugin", &[&format!("/bin/{PLUGIN}")], &["/var/lib/kubelet/device-plugins", "/tmp"])
}

/// The driver has its account's token. Nothing routes the API server's Service, so it gets the server's own address.
fn driver() -> Value {
    let program = format!("/bin/{DRA_DRIVER}");
    let (node, cdi, number) =
        (format!("--node-name={VM}"), format!("--cdi-dir={CDI}"), format!("--num-devices={DEVICES}"));
    let own = format!("/var/lib/kubelet/plugins/{DRIVER}");
    let mut pod = privileged(
        "driver",
        &[&program, "kubelet-plugin", &node, &cdi, &number],
        &[&own, "/var/lib/kubelet/plugins_registry", CDI],
    );
    let spec = &mut pod["spec"];
    spec["hostNetwork"] = json!(true);
    spec["serviceAccountName"] = json!(ACCOUNT);
    spec["automountServiceAccountToken"] = json!(true);
    spec["containers"][0]["env"] = json!([
        {"name": "KUBERNETES_SERVICE_HOST", "value": ADDRESS},
        {"name": "KUBERNETES_SERVICE_PORT", "value": PORT.to_string()},
    ]);
    pod
}

/// A pod with a device of the plugin.
fn with_device(name: &str) -> Value {
    vm_pod(name, &json!({"limits": {RESOURCE: "1"}}))
}

fn run(cluster: &Cluster, pod: Value) -> Result<String> {
    let client = cluster.client();
    let name = client.create::<Pod>(&client.of("default"), pod)?.metadata.name.unwrap_or_default();
    await_pod_ready(cluster, &name, LIMIT_S)?;
    Ok(name)
}

fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    let client = cluster.client();
    client.delete::<Pod>(&client.of("default"), name, Some(1))?;
    await_pod_gone(cluster, name, 60)
}

/// A VM with the programs, Ready.
fn start(cx: &CaseContext<'_>, cluster: &mut Cluster) -> Result<VmNode> {
    let (busybox, plugin, driver) =
        (host_busybox()?, programs::device_plugin(&cx.run)?, programs::claims_driver(&cx.run)?);
    let places = ["busybox", PLUGIN, DRA_DRIVER].map(|name| format!("{PROGRAMS}/{name}"));
    let [first, second, third] = &places;
    let parts: [(&Path, &str); 3] = [(&busybox, first), (&plugin, second), (&driver, third)];
    let disk = SecondDisk::make(&cx.artefacts, &parts, &[])?;
    let mut vm = VmNode::plug(cluster, &cx.artefacts, VM)?;
    vm.add_disk(disk.file());
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(cluster)?;
    await_up(&mut vm, cluster, VM)?;
    let shell = vm.vm()?.shell()?;
    shell.must(&format!("mkdir -p {PROGRAMS}"))?;
    disk.unpack(shell)?;
    link(shell, &NAMES)?;
    Ok(vm)
}

/// Waits until the plugin has registered with this agent: the Node may still show the devices of the time before.
fn await_registered(cluster: &Cluster, vm: &VmNode) -> Result<()> {
    let name = format!("kubelet_device_plugin_registration_total{{resource_name={RESOURCE:?}}}");
    look_until(cluster, LIMIT_S, "the plugin to register", || {
        let calls = metrics_of(cluster, &vm.wire().address())?.get(&name).copied();
        ensure!(calls.is_some_and(|calls| calls >= 1.0), "{name} is {calls:?}");
        Ok(())
    })?;
    await_amounts(cluster, VM, "2", "2")
}

/// Devices of pods by their UIDs, as the checkpoint in the VM has them.
fn checkpoint(vm: &mut VmNode) -> Result<BTreeMap<String, BTreeSet<String>>> {
    recorded(&vm.vm()?.shell()?.must(&format!("cat {CHECKPOINT}"))?)
}

/// A program in the pod sees the device that the checkpoint has for it; returns the device.
fn device(cluster: &Cluster, vm: &mut VmNode, name: &str) -> Result<String> {
    let (seen, all) = (seen(cluster, name)?, checkpoint(vm)?);
    let of_pod = all.get(&uid_of(cluster, name)?);
    let is_it = of_pod.is_some_and(|ids| ids.len() == 1 && ids.contains(&seen));
    ensure!(is_it, "{name} sees {seen}, the checkpoint has {of_pod:?}");
    Ok(seen)
}

fn allocation(cluster: &Cluster) -> Result<AllocationResult> {
    let client = cluster.client();
    let claim = client.get::<ResourceClaim>(&client.of("default"), CLAIM)?.context("no claim")?;
    claim.status.and_then(|status| status.allocation).context("the claim has no devices")
}

/// What the pods have.
#[derive(Debug, PartialEq)]
struct PodDevices {
    /// Containers and restarts of the pods.
    instances: Vec<(Option<String>, i32)>,
    device: String,
    checkpoint: BTreeMap<String, BTreeSet<String>>,
    allocation: AllocationResult,
}

fn held(cluster: &Cluster, vm: &mut VmNode, first: &str) -> Result<PodDevices> {
    ensure_variables(cluster, CLAIMS, "c", &[variable(CLAIM, "only")])?;
    let pods = [first, CLAIMS, "plugin", "driver"];
    Ok(PodDevices {
        instances: pods.iter().map(|name| instance(cluster, name)).collect::<Result<_>>()?,
        device: device(cluster, vm, first)?,
        checkpoint: checkpoint(vm)?,
        allocation: allocation(cluster)?,
    })
}

/// After a boot no container runs and no plugin has registered yet: the pod is refused, as upstream.
fn await_refused(cluster: &Cluster, name: &str) -> Result<()> {
    let client = cluster.client();
    let what = format!("{name} to be refused");
    let status = client.wait::<Pod, _>(&client.of("default"), LIMIT_S, &what, |all| {
        let pod = all.get(name)?;
        (ready::phase(pod) == "Failed").then(|| pod.status.clone())?
    })?;
    let message = status.message.unwrap_or_default();
    let is = status.reason.as_deref() == Some("UnexpectedAdmissionError") && message.contains(RESOURCE);
    ensure!(is, "{name} is refused with {:?}: {message}", status.reason);
    Ok(())
}

fn devices_vm(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = start(cx, &mut cluster)?;
    let cluster = &cluster;
    cluster.kubectl(&["create", "serviceaccount", ACCOUNT])?;
    let (role, account) = ("--clusterrole=cluster-admin", format!("--serviceaccount=default:{ACCOUNT}"));
    cluster.kubectl(&["create", "clusterrolebinding", ACCOUNT, role, &account])?;
    lay(cluster)?;
    run(cluster, plugin())?;
    run(cluster, driver())?;
    await_registered(cluster, &vm)?;
    await_slices(cluster, LIMIT_S, "the driver's slices", |own| are_whole_on(VM, own))?;

    let first = run(cluster, with_device("device-1"))?;
    run(cluster, using(vm_pod(CLAIMS, &json!({})), CLAIM))?;
    let before = held(cluster, &mut vm, &first)?;
    say::line(format!("  {first} has {}", before.device));

    vm.vm()?.shell()?.must("systemctl kill --signal=KILL kubelet.service")?;
    await_up(&mut vm, cluster, VM)?;
    let after = held(cluster, &mut vm, &first)?;
    ensure!(after == before, "the agent was killed: {after:?}, before: {before:?}");
    // The plugin sees the new socket, and waits for ten seconds before it registers.
    await_registered(cluster, &vm)?;
    let second = run(cluster, with_device("device-2"))?;
    let other = device(cluster, &mut vm, &second)?;
    ensure!(other != before.device, "both pods have {other}");

    // Programs of the pods are on the disk first.
    vm.vm()?.shell()?.must("sync")?;
    vm.vm()?.reset()?;
    await_up(&mut vm, cluster, VM)?;
    for name in [&first, &second] {
        await_refused(cluster, name)?;
        delete(cluster, name)?;
    }
    for name in ["plugin", "driver", CLAIMS] {
        await_started_anew(cluster, name, LIMIT_S)?;
    }
    ensure_variables(cluster, CLAIMS, "c", &[variable(CLAIM, "only")])?;
    ensure!(allocation(cluster)? == before.allocation, "the claim has other devices after the boot");
    await_registered(cluster, &vm)?;
    let third = run(cluster, with_device("device-3"))?;
    let device = device(cluster, &mut vm, &third)?;
    let owned = checkpoint(&mut vm)?;
    ensure!(owned.len() == 1, "pods that are gone have devices next to {device} of {third}: {owned:?}");

    let file = format!("{CDI}/{DRIVER}-{}-only.json", claim_uid(cluster, CLAIM)?);
    vm.vm()?.shell()?.must(&format!("test -e {file}")).context("the claim's file before its end")?;
    for name in [third.as_str(), CLAIMS] {
        delete(cluster, name)?;
    }
    vm.vm()?.shell()?.must(&format!("test ! -e {file}")).context("the claim's file after its end")?;
    for name in ["plugin", "driver"] {
        delete(cluster, name)?;
    }
    cluster.ensure_nothing_forbidden()
}
