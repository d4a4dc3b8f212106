//! The power of a VM is cut while a CSI driver's volume is expanded under a pod, and while it is unpublished: the next
//! boot completes both. The driver's real mounts are gone, its data exist.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::csi_driver::DISKS;
use orlop_harness::cluster::csi_here::{HANGS, STATE, VERB, state};
use orlop_harness::cluster::fixture::{
    await_pod_gone, await_pod_ready, await_ready, await_started_anew, uid_of,
};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use serde_json::{Value, json};

use crate::cases::volumes::claims::{create, put_claim, put_volume};
use crate::cases::volumes::csi_claims::{attach, await_attachment, await_grown, is_to_grow, touch};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "volumes/power-cut",
    level: Level::L4v,
    expected_s: 180,
    about: "power is cut while a driver's volume grows and while it is taken away: the next boot does it again, with no data lost, no mount twice, and no pod that stays",
    group: None,
    run: power_cut,
}];

const VM: &str = "vm";
const NAME: &str = "grows";
const DRIVER: &str = "grows.e2e.example";
/// The driver, in the guest.
pub(crate) const PROGRAM: &str = "/var/lib/kubelet/csi-driver";
/// Limit of a step under TCG on a busy machine, seconds.
const LIMIT_S: u64 = 90;

fn the_pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": {
        "nodeSelector": {LABEL.0: LABEL.1}, "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": NAME}}],
        "containers": [{"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never",
            "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}})
}

/// Starts the driver in the guest.
pub(crate) fn start_driver(vm: &mut VmNode, name: &str) -> Result<()> {
    let unit = format!("systemd-run -q --collect --unit=csi-driver {PROGRAM} {VERB} {name}");
    let serves = format!("timeout 30 sh -c 'until [ -e {STATE} ]; do sleep 0.2; done'");
    let shell = vm.vm()?.shell()?;
    let started = shell.must(&format!("{unit} && {serves}"));
    started.with_context(|| format!("see `journalctl -u csi-driver` in {VM}")).map(drop)
}

/// The call is done and never answered, in this boot.
fn hangs(vm: &mut VmNode, call: &str) -> Result<()> {
    vm.vm()?.shell()?.must(&format!("touch {HANGS}/{call}")).map(drop)
}

/// Waits until the driver has exactly these volumes and calls.
fn await_state(vm: &mut VmNode, staged: usize, published: usize, grown: usize) -> Result<()> {
    let wanted = state(staged, published, grown, 0);
    let wait = format!("timeout {LIMIT_S} sh -c \"until grep -qx '{wanted}' {STATE}; do sleep 0.2; done\"");
    let limit = Duration::from_secs(LIMIT_S + 10);
    let waited = vm.vm()?.shell()?.run(&wait, limit)?;
    let is = vm.vm()?.shell()?.run(&format!("cat {STATE}"), limit)?.text;
    ensure!(waited.status == 0, "the driver is not at {wanted:?}: {is:?}");
    Ok(())
}

/// Cuts the power, boots, and starts the driver only then: the agent has to wait for it.
fn cut(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    vm.cut_power();
    vm.boot(None)?;
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    await_ready(cluster, VM, READY_LIMIT_S)?;
    start_driver(vm, DRIVER)
}

/// The driver's mount points, one entry for each mount.
fn mounted(vm: &mut VmNode) -> Result<Vec<String>> {
    let text = vm.vm()?.shell()?.must("cat /proc/mounts")?;
    let of_driver = |at: &&str| at.ends_with("/globalmount") || at.contains("kubernetes.io~csi");
    Ok(text.lines().filter_map(|line| line.split(' ').nth(1)).filter(of_driver).map(str::to_owned).collect())
}

fn ensure_mounted_once(vm: &mut VmNode, uid: &str) -> Result<()> {
    let all = mounted(vm)?;
    let of = |part: &str| all.iter().filter(|at| at.contains(part)).count();
    ensure!(all.len() == 2 && of("/globalmount") == 1 && of(uid) == 1, "mounted: {all:?}");
    Ok(())
}

fn power_cut(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let own = std::env::current_exe().context("find this program")?;
    let disk = SecondDisk::make(&cx.artefacts, &[(&own, PROGRAM)], &[])?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.add_disk(disk.file());
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    disk.unpack(vm.vm()?.shell()?)?;
    start_driver(&mut vm, DRIVER)?;
    let client = cluster.client();
    client.create::<CSIDriver>(
        &client.all(),
        json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": true}}),
    )?;
    let source = json!({"csi": {"driver": DRIVER, "volumeHandle": NAME}});
    put_volume(&cluster, NAME, &source, "ReadWriteOnce")?;
    put_claim(&cluster, NAME, "ReadWriteOnce")?;
    create(&cluster, the_pod())?;
    let attachment = await_attachment(&cluster, DRIVER)?;
    attach(&cluster, &attachment)?;
    await_pod_ready(&cluster, NAME, LIMIT_S)?;
    await_state(&mut vm, 1, 1, 0)?;
    let uid = uid_of(&cluster, NAME)?;
    ensure_mounted_once(&mut vm, &uid)?;
    let data = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/pv-{NAME}/mount/data");
    vm.vm()?.shell()?.must(&format!("echo kept > {data} && sync {data}"))?;

    // The volume is expanded, and the call never returns.
    hangs(&mut vm, "expand")?;
    is_to_grow(&cluster, NAME, "2Mi")?;
    touch(&cluster, NAME, "1")?;
    await_state(&mut vm, 1, 1, 1)?;
    cut(&cluster, &mut vm)?;
    await_grown(&cluster, NAME, "2Mi", LIMIT_S)?;
    await_started_anew(&cluster, NAME, LIMIT_S)?;
    await_state(&mut vm, 1, 1, 1)?;
    ensure_mounted_once(&mut vm, &uid)?;
    let kept = vm.vm()?.shell()?.must(&format!("cat {data}"))?;
    ensure!(kept.trim() == "kept", "the pod's data are {kept:?}");

    // The volume is unpublished, and the call never returns.
    hangs(&mut vm, "unpublish")?;
    cluster.kubectl(&["delete", "pod", NAME, "--wait=false"])?;
    await_state(&mut vm, 1, 0, 1)?;
    cut(&cluster, &mut vm)?;
    await_pod_gone(&cluster, NAME, LIMIT_S)?;
    client.wait::<VolumeAttachment, _>(&client.all(), LIMIT_S, "the attachment to go", |all| {
        (!all.contains_key(&attachment)).then_some(())
    })?;
    await_state(&mut vm, 0, 0, 0)?;
    let left = mounted(&mut vm)?;
    ensure!(left.is_empty(), "still mounted: {left:?}");
    let shell = vm.vm()?.shell()?;
    let places = format!("/var/lib/kubelet/pods/{uid} /var/lib/kubelet/plugins/kubernetes.io/csi/{DRIVER}/*");
    let left = shell.must(&format!("ls -d {places} 2>/dev/null; true"))?;
    ensure!(left.trim().is_empty(), "left on the disk: {left}");
    let kept = shell.must(&format!("cat {DISKS}/{NAME}/data"))?;
    ensure!(kept.trim() == "kept", "the driver's data are {kept:?}");
    cluster.ensure_nothing_forbidden()
}
