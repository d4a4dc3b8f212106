//! Volumes in a VM, where the native node cannot have them: a disk that grows (the machine of the tests may lack
//! CAP_SYS_RESOURCE), and mounts with the SELinux label of their pod.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use serde_json::{Value, json};

use super::join_claims::{create, put_claim, put_volume};
use super::join_csi_claims::{await_grown, is_to_grow, touch};
use super::join_csi_power::{PROGRAM, start_driver};
use crate::case::{Case, CaseContext, Level, Place};
use crate::cluster::fixture::{await_event, await_pod_gone, await_pod_ready, await_ready};
use crate::cluster::flags::Settings;
use crate::cluster::plane::Cluster;
use crate::cluster::second_disk::SecondDisk;
use crate::cluster::selinux::{self, FILES, KERNEL, POLICY};
use crate::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use crate::run::Run;

const HERE: Place = Place { level: Level::L4v, group: Some("volumes-vm") };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/disk-grows",
        90,
        "what is on a disk of the VM grows under its pod when the disk and its claim have grown",
        disk_grows,
    ),
    HERE.case(
        "volumes/selinux",
        120,
        "a driver's volume is mounted with its pod's SELinux label, over a kill of the agent, and anew for a pod with another one; pods and containers that disagree wait and say why",
        labels,
    ),
];

const VM: &str = "vm";
/// What `seLinuxChangePolicy` is by itself; saying so takes a gate of the API server.
const MOUNT: &str = "";
const DRIVER: &str = "labels.e2e.example";
/// One pod's at a time, and everybody's.
const VOLUMES: [(&str, &str); 2] = [("alone", "ReadWriteOncePod"), ("shared", "ReadWriteMany")];
/// How long something may take under TCG on a busy machine, seconds.
const LIMIT_S: u64 = 90;

/// A pod whose containers have these levels.
fn pod(name: &str, claim: &str, levels: &[&str], policy: &str) -> Value {
    let containers: Vec<Value> = levels
        .iter()
        .enumerate()
        .map(|(n, level)| {
            json!({"name": format!("c{n}"), "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never",
                "securityContext": {"seLinuxOptions": {"level": level}},
                "volumeMounts": [{"name": "data", "mountPath": "/d"}]})
        })
        .collect();
    let security = if policy.is_empty() { json!({}) } else { json!({"seLinuxChangePolicy": policy}) };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeSelector": {LABEL.0: LABEL.1}, "terminationGracePeriodSeconds": 1,
        "securityContext": security,
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        "containers": containers}})
}

/// With which labels a pod's volume and the driver's stage are mounted; without one it is `none`.
fn mounted(cluster: &Cluster, vm: &mut VmNode, name: &str, claim: &str) -> Result<Vec<String>> {
    let client = cluster.client();
    let pod = client.get::<Pod>(&client.of("default"), name)?.context("no pod")?;
    let uid = pod.metadata.uid.context("no UID")?;
    let own = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/pv-{claim}");
    let target = format!("{own}/mount");
    let shell = vm.vm()?.shell()?;
    let table = shell.must("cat /proc/self/mountinfo")?;
    let beside = shell.must(&format!("cat {own}/vol_data.json"))?;
    let data: Value = serde_json::from_str(beside.trim()).context("read vol_data.json")?;
    // The kernel quotes what has commas.
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

/// Waits for an event of a mount about the pod whose words end so.
fn await_words(cluster: &Cluster, about: &str, words: &str) -> Result<()> {
    let client = cluster.client();
    client.wait::<Event, _>(&client.of("default"), LIMIT_S, &format!("{words:?} about {about}"), |all| {
        all.values()
            .any(|e| {
                e.reason.as_deref() == Some("FailedMount")
                    && e.involved_object.name.as_deref() == Some(about)
                    && e.message.as_deref().is_some_and(|m| m.ends_with(words))
            })
            .then_some(())
    })
}

fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.kubectl(&["delete", "pod", name, "--wait=false"]).map(drop)
}

struct Fixture {
    // Dropped first: it has a wire of the cluster.
    vm: VmNode,
    cluster: Cluster,
}

/// A VM with the driver and the policy on its disk; neither is in force.
fn boot(run: &Arc<Run>, artefacts: &Path) -> Result<Fixture> {
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let own = std::env::current_exe().context("find this program")?;
    let policy = selinux::policy(artefacts)?;
    let disk = SecondDisk::make(artefacts, &[(&own, PROGRAM), (&policy, POLICY)], &[])?;
    let mut vm = VmNode::plug(&mut cluster, artefacts, VM)?;
    vm.add_disk(disk.file());
    vm.tell_kernel(KERNEL);
    vm.configure("featureGates", json!({"SELinuxMount": true}));
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    disk.unpack(vm.vm()?.shell()?)?;
    Ok(Fixture { vm, cluster })
}

/// How large the file system at a directory is.
fn bytes_of(vm: &mut VmNode, at: &str) -> Result<u64> {
    let text = vm.vm()?.shell()?.must(&format!("mountpoint -q {at} && stat -f -c '%b %S' {at}"))?;
    let mut figures = text.split_whitespace().map(str::parse::<u64>);
    let (blocks, bytes) = (figures.next().context("no blocks")??, figures.next().context("no size")??);
    Ok(blocks * bytes)
}

fn disk_grows(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { vm, cluster } = cx.shared_or(boot)?;
    let (file, mib) =
        ("/var/lib/kubelet/disk", |from: u32| format!("bs=1M seek={from} count=16 conv=notrunc"));
    let shell = vm.vm()?.shell()?;
    shell.must(&format!("dd if=/dev/zero of={file} {} status=none", mib(0)))?;
    let device = shell.must(&format!("modprobe loop; losetup -f --show {file}"))?.trim().to_owned();
    let here = json!([{"matchExpressions": [{"key": LABEL.0, "operator": "In", "values": [LABEL.1]}]}]);
    let source =
        json!({"local": {"path": device}, "nodeAffinity": {"required": {"nodeSelectorTerms": here}}});
    put_volume(cluster, "disk", &source, "ReadWriteOnce")?;
    put_claim(cluster, "disk", "ReadWriteOnce")?;
    create(cluster, pod("disk", "disk", &[""], MOUNT))?;
    await_pod_ready(cluster, "disk", LIMIT_S)?;
    let at = "/var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts/pv-disk";
    let before = bytes_of(vm, at)?;
    ensure!(before < 16 << 20, "16 MiB have {before}");
    let shell = vm.vm()?.shell()?;
    shell.must(&format!("dd if=/dev/zero of={file} {} status=none && losetup -c {device}", mib(16)))?;
    is_to_grow(cluster, "disk", "32Mi")?;
    touch(cluster, "disk", "1")?;
    await_grown(cluster, "disk", "32Mi", LIMIT_S)?;
    await_event(cluster, "FileSystemResizeSuccessful", "disk", LIMIT_S)?;
    let after = bytes_of(vm, at)?;
    ensure!(after > 24 << 20, "32 MiB have {after}");
    delete(cluster, "disk")?;
    await_pod_gone(cluster, "disk", LIMIT_S)?;
    ensure!(bytes_of(vm, at).is_err(), "the disk is still mounted");
    vm.vm()?.shell()?.must(&format!("losetup -d {device}"))?;
    cluster.ensure_nothing_forbidden()
}

fn labels(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { vm, cluster } = cx.shared_or(boot)?;
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
    // Two containers of a pod that disagree; who may not have it waits for as long.
    create(cluster, pod("torn", "shared", &["s0:c1", "s0:c2"], MOUNT))?;
    await_words(cluster, "torn", &format!("multiple SELinux labels found: {FILES}:s0:c1,{FILES}:s0:c2"))?;
    ensure_label(cluster, vm, ("first", "alone"), "s0:c1,c2")?;
    delete(cluster, "torn")?;
    delete(cluster, "first")?;
    create(cluster, pod("second", "alone", &["s0:c3", "s0:c3"], MOUNT))?;
    await_pod_ready(cluster, "second", LIMIT_S)?;
    ensure_label(cluster, vm, ("second", "alone"), "s0:c3")?;

    // Everybody's: who needs another label waits until nobody has it.
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
