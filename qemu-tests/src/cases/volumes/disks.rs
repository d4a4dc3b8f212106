//! Disks of the node with a file system as volumes of claims (`local`, `volumeMode: Filesystem`). A loop device over a
//! file of the node represents the disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use nix::sys::statvfs::statvfs;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::csi_block::{Devices, may_grow};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, await_event, await_pod_gone, await_pod_ready};
use serde_json::{Value, json};

use crate::cases::volumes::claims::{
    DISKS, await_told, create, local, pod, put_claim, put_volume, remove, words_of,
};
use crate::cases::volumes::csi_claims::{await_grown, delete_pod, is_to_grow, restart, touch};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/disks",
    30,
    "a blank disk is formatted once and mounted for all its pods, over kills of the agent, grows under them, and is let go after the last; one that holds something else is left as it is",
    disks,
)];

const MOUNTS: &str = "/var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts";
const DISK_BYTES: u64 = 16 << 20;
const LARGER_BYTES: u64 = 32 << 20;
/// The group that the volume names.
const OWNER: u32 = 4321;

/// Number of the node's own mounts of the volume's disk.
fn mounted(joined: &Joined, name: &str) -> Result<usize> {
    let path = format!("/proc/{}/mountinfo", joined.nodes[0].pid());
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let at = format!("{MOUNTS}/pv-{name}");
    Ok(text.lines().filter(|line| line.split(' ').nth(4) == Some(at.as_str())).count())
}

fn ensure_let_go(joined: &Joined, name: &str) -> Result<()> {
    ensure!(mounted(joined, name)? == 0, "the disk of {name} is still mounted");
    let left = joined.nodes[0].inside(&format!("{MOUNTS}/pv-{name}"));
    ensure!(!left.exists(), "{} is still there", left.display());
    Ok(())
}

/// Makes a disk on the node, and a volume of it with a claim.
fn put_disk(joined: &Joined, devices: &Devices, name: &str, fs_type: Option<&str>) -> Result<()> {
    let directory = joined.nodes[0].inside(DISKS);
    devices.make(&directory, name)?;
    devices.grow(name, DISK_BYTES)?;
    devices.publish(name, &directory.join(name))?;
    let mut source = local(name);
    if let Some(kind) = fs_type {
        source["local"]["fsType"] = json!(kind);
    }
    put_volume(&joined.cluster, name, &source, "ReadWriteOnce")?;
    put_claim(&joined.cluster, name, "ReadWriteOnce")
}

/// A pod that prints the file's contents and whether it is in [`OWNER`], and ends.
fn reads(name: &str, claim: &str) -> Value {
    let script = format!("(cat /d/f; id -G | tr ' ' '\\n' | grep -cx {OWNER}) > /dev/termination-log");
    let mut pod = pod(name, &script, claim, true);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod
}

fn disks(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let devices = Devices::default();
    put_disk(joined, &devices, "blank", None)?;
    let client = joined.cluster.client();
    let annotation = json!({"metadata": {"annotations": {"pv.beta.kubernetes.io/gid": OWNER.to_string()}}});
    client.merge::<PersistentVolume>(&client.all(), "pv-blank", &annotation)?;
    let mut writes = pod("disk-writes", &format!("echo written > /d/f && sync && {STAYS}"), "blank", false);
    writes["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 2000});
    writes["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-s", "/d/f"]}, "periodSeconds": 1});
    create(&joined.cluster, writes)?;
    await_pod_ready(&joined.cluster, "disk-writes", 60)?;
    ensure!(mounted(joined, "blank")? == 1, "mounted {} times", mounted(joined, "blank")?);
    ensure_measured(joined)?;

    grows(joined, &devices)?;

    // The next agent finds it, and a second pod shares it.
    joined.nodes[0].kill_agent()?;
    create(&joined.cluster, reads("disk-reads", "blank"))?;
    restart(joined)?;
    ensure!(words_of(joined, "disk-reads")? == "written\n1\n", "not what the first pod wrote");
    ensure!(mounted(joined, "blank")? == 1, "mounted {} times", mounted(joined, "blank")?);
    delete_pod(joined, "disk-reads")?;
    await_pod_gone(&joined.cluster, "disk-reads", 60)?;
    ensure!(mounted(joined, "blank")? == 1, "a pod has it still");

    // The last pod is deleted while the agent is dead.
    joined.nodes[0].kill_agent()?;
    delete_pod(joined, "disk-writes")?;
    restart(joined)?;
    await_pod_gone(&joined.cluster, "disk-writes", 60)?;
    ensure_let_go(joined, "blank")?;

    // The disk is not formatted a second time, and the agent that mounted it unmounts it.
    create(&joined.cluster, reads("disk-again", "blank"))?;
    ensure!(words_of(joined, "disk-again")? == "written\n1\n", "what the first pod wrote is lost");
    remove(joined, &["disk-again"], &["blank"])?;
    ensure_let_go(joined, "blank")?;

    left_alone(joined, &devices)?;
    for name in ["blank", "other"] {
        fs::remove_file(joined.nodes[0].inside(&format!("{DISKS}/{name}")))?;
        devices.remove(name);
    }
    Ok(())
}

/// The claim's figures are those of the disk: its size, without the file system's own blocks.
fn ensure_measured(joined: &Joined) -> Result<()> {
    let metrics = joined.cluster.client().raw("/api/v1/nodes/first/proxy/metrics")?;
    let of = "{namespace=\"default\",persistentvolumeclaim=\"blank\"} ";
    let figure = |name: &str| -> Result<f64> {
        let series = format!("kubelet_volume_stats_{name}{of}");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
        line.with_context(|| format!("no {series}"))?.parse().context("a figure")
    };
    let [size, free, used, inodes] =
        ["capacity_bytes", "available_bytes", "used_bytes", "inodes"].map(figure);
    let (size, free, used, disk) = (size?, free?, used?, DISK_BYTES as f64);
    ensure!(size > disk / 2.0 && size <= disk, "a disk of {disk} bytes has {size}");
    ensure!(free + used <= size && used > 0.0 && free > size / 2.0, "{used} used, {free} free of {size}");
    ensure!(inodes? > 0.0, "no inodes");
    Ok(())
}

/// The disk has grown, and the cluster says so: the file system grows under the pod. A test machine may lack the
/// required capability (CAP_SYS_RESOURCE): then the claim shows the error, and the pod goes on; a VM has it
/// (`volumes/disk-grows`).
fn grows(joined: &Joined, devices: &Devices) -> Result<()> {
    devices.grow("blank", LARGER_BYTES)?;
    is_to_grow(&joined.cluster, "blank", "32Mi")?;
    touch(&joined.cluster, "disk-writes", "1")?;
    if !may_grow()? {
        let told = await_event(&joined.cluster, "VolumeResizeFailed", "disk-writes", 60)?;
        let words = told.message.unwrap_or_default();
        ensure!(words.contains("resize2fs: ") && words.contains("pv-blank"), "it is told {words:?}");
        return await_pod_ready(&joined.cluster, "disk-writes", 10).map(drop);
    }
    await_grown(&joined.cluster, "blank", "32Mi", 60)?;
    await_event(&joined.cluster, "FileSystemResizeSuccessful", "disk-writes", 30)?;
    let at = joined.nodes[0].inside(&format!("{MOUNTS}/pv-blank"));
    let found = statvfs(&at).with_context(|| format!("statvfs {}", at.display()))?;
    let size = found.blocks() * found.fragment_size();
    ensure!(size > LARGER_BYTES / 4 * 3, "a disk of {LARGER_BYTES} bytes has {size}");
    Ok(())
}

/// The node does not touch existing data on a disk, even if the volume has another `fsType`.
fn left_alone(joined: &Joined, devices: &Devices) -> Result<()> {
    const SAYS: &[u8] = b"somebody's own format";
    let file = joined.nodes[0].inside(&format!("{DISKS}/disk-of-other"));
    devices.make(Path::new(file.parent().context("no directory")?), "other")?;
    // At its very end, where no file system has begun.
    devices.grow("other", DISK_BYTES)?;
    let at = DISK_BYTES - 512;
    File::options().write(true).open(&file)?.write_all_at(SAYS, at).context("write to the disk")?;
    put_disk(joined, devices, "other", None)?;
    create(&joined.cluster, pod("disk-other", STAYS, "other", false))?;
    let why = format!(
        "MountVolume.SetUp failed for volume \"pv-other\" : {DISKS}/other holds something that is neither ext2, ext3, ext4 nor xfs"
    );
    await_told(joined, "disk-other", &why)?;
    let mut found = vec![0; SAYS.len()];
    File::open(&file)?.read_exact_at(&mut found, at)?;
    ensure!(found == SAYS, "the disk was written to");
    remove(joined, &["disk-other"], &["other"])?;
    ensure_let_go(joined, "other")
}
