//! Mounts with the SELinux label of their pod, in a VM whose kernel loads a policy.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::storage::v1::CSIDriver;
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::fixture::{await_pod_gone, await_pod_ready, uid_of};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::selinux::{self, FILES};
use orlop_harness::cluster::vm_node::VmNode;
use serde_json::{Value, json};

use crate::cases::volumes::claims::{create, put_claim, put_volume};
use crate::cases::volumes::power_cut::start_driver;
use crate::cases::volumes::shared_vm::{
    Fixture, HERE, LIMIT_S, await_words as await_fitting, boot, delete, pod as in_vm,
};

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/selinux",
        120,
        "a driver's volume is mounted with its pod's SELinux label, over a kill of the agent, and anew for a pod with another one; pods and containers that disagree wait and say why",
        labels,
    ),
];

/// The default of `seLinuxChangePolicy`; setting it explicitly needs a gate of the API server.
const MOUNT: &str = "";
const DRIVER: &str = "labels.e2e.example";
/// A volume for one pod at a time, and a shared one.
const VOLUMES: [(&str, &str); 2] = [("alone", "ReadWriteOncePod"), ("shared", "ReadWriteMany")];

/// A pod whose containers have these SELinux levels.
fn pod(name: &str, claim: &str, levels: &[&str], policy: &str) -> Value {
    let mut pod = in_vm(name, claim);
    let container = pod["spec"]["containers"][0].take();
    let containers = levels.iter().enumerate().map(|(n, level)| {
        let mut container = container.clone();
        container["name"] = json!(format!("c{n}"));
        container["securityContext"] = json!({"seLinuxOptions": {"level": level}});
        container
    });
    pod["spec"]["containers"] = containers.collect();
    if !policy.is_empty() {
        pod["spec"]["securityContext"] = json!({"seLinuxChangePolicy": policy});
    }
    pod
}

/// Waits for a mount event about the pod whose message ends with these words.
fn await_words(cluster: &Cluster, about: &str, words: &str) -> Result<()> {
    await_fitting(cluster, about, words, |m, words| m.ends_with(words))
}

/// Labels of the mounts of a pod's volume and of the driver's stage; `none` for a mount without a label.
fn mounted(cluster: &Cluster, vm: &mut VmNode, name: &str, claim: &str) -> Result<Vec<String>> {
    let uid = uid_of(cluster, name)?;
    let own = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/pv-{claim}");
    let target = format!("{own}/mount");
    let shell = vm.vm()?.shell()?;
    let table = shell.must("cat /proc/self/mountinfo")?;
    let beside = shell.must(&format!("cat {own}/vol_data.json"))?;
    let data: Value = serde_json::from_str(beside.trim()).context("read vol_data.json")?;
    // The kernel quotes values with commas.
    let of = |line: &str| match line.split_once("context=") {
        Some((_, rest)) => match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next().unwrap_or_default().to_owned(),
            None => rest.split([',', ' ']).next().unwrap_or_default().to_owned(),
        },
        None => "none".to_owned(),
    };
    let mut found: Vec<String> = table.lines().filter(|line| line.contains(&target)).map(of).collect();
    ensure!(found.len() == 1, "{target} is mounted {} times", found.len());
    found.push(data["seLinuxMountContext"].as_str().unwrap_or("none").to_owned());
    Ok(found)
}

fn ensure_label(cluster: &Cluster, vm: &mut VmNode, (name, claim): (&str, &str), level: &str) -> Result<()> {
    let expected = if level.is_empty() { "none".to_owned() } else { format!("{FILES}:{level}") };
    let found = mounted(cluster, vm, name, claim)?;
    ensure!(found == [expected.clone(), expected.clone()], "{name}: {found:?} instead of {expected}");
    Ok(())
}

fn labels(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { vm, cluster, .. } = cx.shared_or(boot)?;
    selinux::load(vm.vm()?.shell()?)?;
    start_driver(vm, DRIVER)?;
    let registry = vm.vm()?.shell()?.must("stat -c %C /var/lib/kubelet/plugins_registry")?;
    ensure!(registry.trim() == format!("{FILES}:s0"), "where drivers register is labelled {registry:?}");
    let client = cluster.client();
    client.create::<CSIDriver>(
        &client.all(),
        json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": false, "seLinuxMount": true}}),
    )?;
    for (name, mode) in VOLUMES {
        put_volume(cluster, name, &json!({"csi": {"driver": DRIVER, "volumeHandle": name}}), mode)?;
        put_claim(cluster, name, mode)?;
    }

    // One pod's, over a kill of the agent, then another's with another label.
    create(cluster, pod("first", "alone", &["s0:c1,c2"], MOUNT))?;
    await_pod_ready(cluster, "first", LIMIT_S)?;
    ensure_label(cluster, vm, ("first", "alone"), "s0:c1,c2")?;
    vm.vm()?.shell()?.must("systemctl kill --signal=KILL kubelet")?;
    // A pod whose containers need different labels does not start.
    create(cluster, pod("torn", "shared", &["s0:c1", "s0:c2"], MOUNT))?;
    await_words(cluster, "torn", &format!("multiple SELinux labels found: {FILES}:s0:c1,{FILES}:s0:c2"))?;
    ensure_label(cluster, vm, ("first", "alone"), "s0:c1,c2")?;
    delete(cluster, "torn")?;
    delete(cluster, "first")?;
    create(cluster, pod("second", "alone", &["s0:c3", "s0:c3"], MOUNT))?;
    await_pod_ready(cluster, "second", LIMIT_S)?;
    ensure_label(cluster, vm, ("second", "alone"), "s0:c3")?;

    // The shared volume: a pod that needs another label waits until no pod uses the volume.
    create(cluster, pod("holds", "shared", &["s0:c1"], MOUNT))?;
    await_pod_ready(cluster, "holds", LIMIT_S)?;
    create(cluster, pod("agrees", "shared", &["s0:c1"], MOUNT))?;
    create(cluster, pod("differs", "shared", &["s0:c4"], MOUNT))?;
    create(cluster, pod("opts-out", "shared", &["s0:c4"], "Recursive"))?;
    await_pod_ready(cluster, "agrees", LIMIT_S)?;
    let conflict = |wanted: &str| {
        format!("conflicting SELinux labels of volume pv-shared: \"{FILES}:s0:c1\" and {wanted:?}")
    };
    await_words(cluster, "differs", &conflict(&format!("{FILES}:s0:c4")))?;
    await_words(cluster, "opts-out", &conflict(""))?;
    ensure_label(cluster, vm, ("holds", "shared"), "s0:c1")?;
    for gone in ["opts-out", "holds", "agrees"] {
        delete(cluster, gone)?;
    }
    await_pod_ready(cluster, "differs", LIMIT_S)?;
    ensure_label(cluster, vm, ("differs", "shared"), "s0:c4")?;
    delete(cluster, "differs")?;
    await_pod_gone(cluster, "differs", LIMIT_S)?;
    create(cluster, pod("plain", "shared", &["s0:c4"], "Recursive"))?;
    await_pod_ready(cluster, "plain", LIMIT_S)?;
    ensure_label(cluster, vm, ("plain", "shared"), "")?;

    for gone in ["plain", "second"] {
        delete(cluster, gone)?;
        await_pod_gone(cluster, gone, LIMIT_S)?;
    }
    let left = "while grep -qE 'globalmount|kubernetes.io~csi' /proc/mounts; do sleep 0.2; done";
    let waited = vm
        .vm()?
        .shell()?
        .run(&format!("timeout {LIMIT_S} sh -c {left:?}"), Duration::from_secs(LIMIT_S + 10))?;
    ensure!(waited.status == 0, "something of the driver is still mounted");
    cluster.ensure_nothing_forbidden()
}
