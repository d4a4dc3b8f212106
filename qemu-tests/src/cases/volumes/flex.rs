//! FlexVolume volumes of pods and of claims, with and without `attach`, over kills of the agent; drivers that are
//! missing, fail or hang affect only their own pods.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use nix::sys::statvfs::statvfs;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::csi_block::{Devices, may_grow};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, await_event, await_pod_gone, await_pod_ready, uid,
};
use orlop_harness::cluster::flex::{ATTACHING, Drivers, PLAIN, install_attacher};
use serde_json::{Value, json};

use crate::cases::volumes::claims::{await_told, create, pod, put_claim, put_volume, words_of};
use crate::cases::volumes::csi_claims::{await_grown, await_in_use, delete_pod, is_to_grow, restart, touch};
use crate::cases::volumes::network_disks::{ensure_mounted, files, forget, gone, reads, writes};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/flex",
    240,
    "drivers of flexVolume mount for pods and claims, over kills of the agent; what the cluster attaches is formatted and shared; one that is missing, fails or hangs is told and holds nobody else",
    flex,
)];

const PLUGIN: &str = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume";
const DISK_BYTES: u64 = 16 << 20;
const LARGER_BYTES: u64 = 32 << 20;

/// A pod with this volume at `/d`.
fn with(name: &str, script: &str, volume: &str, source: Value) -> Value {
    let mut with = pod(name, script, "", false);
    with["spec"]["volumes"] = json!([{"name": volume, "flexVolume": source}]);
    with["spec"]["containers"][0]["volumeMounts"] = json!([{"name": volume, "mountPath": "/d"}]);
    with
}

fn put_secret(joined: &Joined, name: &str, kind: &str) -> Result<()> {
    let client = joined.cluster.client();
    let secret = json!({"metadata": {"name": name}, "type": kind, "stringData": {"password": "hush-hush"}});
    client.create::<Secret>(&client.of("default"), secret).map(drop)
}

fn place(pod: &Pod, driver: &str, volume: &str) -> Result<String> {
    let uid = uid(pod)?;
    Ok(format!("/var/lib/kubelet/pods/{uid}/volumes/{}/{volume}", driver.replace('/', "~")))
}

/// Number of calls of the mounting driver that begin with this line.
fn times(drivers: &Drivers, line: &str) -> Result<usize> {
    Ok(drivers.driver_log("log")?.iter().filter(|told| told.starts_with(line)).count())
}

fn flex(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let drivers = Drivers::new(&joined.nodes[0])?;
    let log = joined.nodes[0].logs().join("agent.log");
    drivers.set("hang", true)?;
    drivers.set("fail", true)?;
    put_secret(joined, "flex-own", PLAIN)?;
    put_secret(joined, "flex-other", "Opaque")?;

    // The driver is missing: the pod's event reports this, and the pod runs as soon as the driver exists. Other pods do
    // not wait.
    let own = json!({"driver": PLAIN, "fsType": "xfs", "options": {"share": "a"}, "secretRef": {"name": "flex-own"}});
    let script = format!("echo written > /d/f && {STAYS}");
    let mut writer = with("flex-own", &script, "own", own);
    writer["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 2000});
    writer["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-s", "/d/f"]}, "periodSeconds": 1});
    create(&joined.cluster, writer)?;
    let words = "failed to process volumes=[own]: failed to get Plugin from volumeSpec for volume \"own\" err=no volume plugin matched";
    await_told(joined, "flex-own", words)?;
    drivers.install()?;
    let writer = await_pod_ready(&joined.cluster, "flex-own", 150)?;
    let at = place(&writer, PLAIN, "own")?;
    ensure_mounted(joined, &at, 1)?;
    let file = fs::metadata(joined.nodes[0].inside(&format!("{at}/f"))).context("what the pod wrote")?;
    ensure!((file.uid(), file.gid()) == (1000, 2000), "written by {}:{}", file.uid(), file.gid());
    heard(&drivers, &at)?;

    // One driver call hangs, one fails, one pod has a Secret of another type: these pods wait, and no other pod does.
    for (name, volume, secret) in [
        ("flex-hangs", "hangs", "flex-own"),
        ("flex-fails", "fails", "flex-own"),
        ("flex-other", "v", "flex-other"),
    ] {
        let source = json!({"driver": PLAIN, "secretRef": {"name": secret}});
        create(&joined.cluster, with(name, STAYS, volume, source))?;
    }
    let words = "MountVolume.SetUp failed for volume \"fails\" : mount command failed, status: Failure, reason: no such share";
    await_told(joined, "flex-fails", words)?;
    let words = format!("couldn't get secret default/flex-other err: cannot get secret of type {PLAIN}");
    await_told(joined, "flex-other", &words)?;
    claimed(joined, &drivers, &at)?;
    drivers.set("fail", false)?;
    await_pod_ready(&joined.cluster, "flex-fails", 150)?;
    attached(joined, &drivers)?;

    // The call that hangs is killed.
    let client = joined.cluster.client();
    client.wait::<Event, _>(&client.of("default"), 180, "the driver that hangs to be killed", |all| {
        let words =
            "MountVolume.SetUp failed for volume \"hangs\" : mount command failed, killed after 120 s";
        let said = |e: &&Event| {
            e.involved_object.name.as_deref() == Some("flex-hangs")
                && e.message.as_deref().is_some_and(|m| m.contains(words))
        };
        all.values().find(said).map(|_| ())
    })?;
    drivers.set("hang", false)?;
    await_pod_ready(&joined.cluster, "flex-hangs", 150)?;
    for name in ["flex-hangs", "flex-fails", "flex-other"] {
        gone(joined, name)?;
    }
    let text = fs::read_to_string(log)?;
    ensure!(!text.contains("hush-hush") && !text.contains("aHVzaC1odXNo"), "a Secret is in the agent's log");
    let client = joined.cluster.client();
    for name in ["flex-own", "flex-other"] {
        client.delete::<Secret>(&client.of("default"), name, None)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}

/// The driver got the same calls as upstream's.
fn heard(drivers: &Drivers, at: &str) -> Result<()> {
    let begins = format!("mount {at} ");
    let told = drivers.driver_log("log")?;
    let told =
        told.iter().find_map(|line| line.strip_prefix(&begins)).context("it was not asked to mount")?;
    let options: Value = serde_json::from_str(told).context("its options")?;
    for (key, value) in [
        ("kubernetes.io/fsType", "xfs"),
        ("kubernetes.io/readwrite", "rw"),
        ("kubernetes.io/pvOrVolumeName", "own"),
        ("kubernetes.io/pod.name", "flex-own"),
        ("kubernetes.io/pod.namespace", "default"),
        ("kubernetes.io/serviceAccount.name", "default"),
        ("kubernetes.io/mounterArgs.FsGroup", "2000"),
        ("kubernetes.io/secret/password", "aHVzaC1odXNo"),
        ("share", "a"),
    ] {
        ensure!(options[key] == value, "{key} is {} and not {value}", options[key]);
    }
    Ok(())
}

/// A claim's volume, read-only, under the next agent; the first pod is deleted while the agent is dead.
fn claimed(joined: &mut Joined, drivers: &Drivers, at: &str) -> Result<()> {
    put_volume(&joined.cluster, "flex", &json!({"flexVolume": {"driver": PLAIN}}), "ReadOnlyMany")?;
    put_claim(&joined.cluster, "flex", "ReadOnlyMany")?;
    joined.nodes[0].kill_agent()?;
    let script = "(cat /d/how; touch /d/new || echo refused) > /dev/termination-log 2>/dev/null";
    let mut reader = pod("flex-reader", script, "flex", true);
    reader["spec"]["restartPolicy"] = json!("Never");
    create(&joined.cluster, reader)?;
    restart(joined)?;
    let seen = words_of(joined, "flex-reader")?;
    ensure!(seen == "ro\nrefused\n", "it read {seen:?}");
    await_pod_ready(&joined.cluster, "flex-own", 60)?;
    ensure!(times(drivers, &format!("mount {at} "))? == 1, "it is mounted a second time");
    ensure_mounted(joined, at, 1)?;
    gone(joined, "flex-reader")?;
    forget(joined, &["flex"])?;

    joined.nodes[0].kill_agent()?;
    delete_pod(joined, "flex-own")?;
    restart(joined)?;
    await_pod_gone(&joined.cluster, "flex-own", 60)?;
    ensure_mounted(joined, at, 0)?;
    ensure!(times(drivers, &format!("unmount {at}"))? == 1, "the driver was not asked once to unmount");
    ensure!(!joined.nodes[0].inside(at).exists(), "{at} is still there");
    Ok(())
}

/// A disk that the cluster attaches: the driver leaves all the rest to the node.
fn attached(joined: &mut Joined, drivers: &Drivers) -> Result<()> {
    let devices = Devices::default();
    devices.make(&joined.nodes[0].inside("/var/lib/e2e-disks"), "flex")?;
    devices.grow("flex", DISK_BYTES)?;
    let device = devices.node("flex")?;
    let attacher = install_attacher(&joined.cluster.flex_drivers(), &device)?;
    put_volume(&joined.cluster, "flex-disk", &json!({"flexVolume": {"driver": ATTACHING}}), "ReadWriteOnce")?;
    put_claim(&joined.cluster, "flex-disk", "ReadWriteOnce")?;
    let unique = format!("{ATTACHING}/pv-flex-disk");
    let global = format!("{PLUGIN}/{ATTACHING}/mounts/pv-flex-disk");
    create(&joined.cluster, writes("flex-one", "flex-disk"))?;
    await_in_use(joined, &unique, true)?;
    await_pod_ready(&joined.cluster, "flex-one", 150)?;
    ensure_mounted(joined, &global, 1)?;
    let told = drivers.driver_log("attaching")?;
    let waited = format!("waitforattach {} ", device.display());
    ensure!(told.iter().any(|line| line.starts_with(&waited)), "it was told {told:?}");

    // The volume grows: the driver is called, and leaves the file system to the node.
    devices.grow("flex", LARGER_BYTES)?;
    is_to_grow(&joined.cluster, "flex-disk", "32Mi")?;
    touch(&joined.cluster, "flex-one", "1")?;
    if may_grow()? {
        await_grown(&joined.cluster, "flex-disk", "32Mi", 60)?;
        let size = statvfs(&joined.nodes[0].inside(&global)).context("statvfs")?;
        let size = size.blocks() * size.fragment_size();
        ensure!(size > LARGER_BYTES / 4 * 3, "a disk of {LARGER_BYTES} bytes has {size}");
    } else {
        await_event(&joined.cluster, "VolumeResizeFailed", "flex-one", 60)?;
    }
    let asked = |line: &String| line.starts_with("expandfs {") && line.ends_with(" 33554432 1048576");
    ensure!(drivers.driver_log("attaching")?.iter().any(asked), "it was not asked to make anything larger");

    // The next agent finds the volume, and another pod shares it; the first pod is deleted while the agent is dead.
    joined.nodes[0].kill_agent()?;
    create(&joined.cluster, writes("flex-two", "flex-disk"))?;
    restart(joined)?;
    await_pod_ready(&joined.cluster, "flex-two", 60)?;
    ensure_mounted(joined, &global, 1)?;
    joined.nodes[0].kill_agent()?;
    delete_pod(joined, "flex-one")?;
    restart(joined)?;
    await_pod_gone(&joined.cluster, "flex-one", 60)?;
    ensure_mounted(joined, &global, 1)?;
    await_in_use(joined, &unique, true)?;

    // With the last pod the volume is unmounted and detached; its data stay.
    gone(joined, "flex-two")?;
    await_in_use(joined, &unique, false)?;
    ensure_mounted(joined, &global, 0)?;
    let left = files(joined, PLUGIN);
    ensure!(left.is_empty(), "left {left:?}");
    create(&joined.cluster, reads("flex-again", "flex-disk"))?;
    ensure!(words_of(joined, "flex-again")? == "written\n", "what the first pod wrote is lost");
    gone(joined, "flex-again")?;
    await_in_use(joined, &unique, false)?;
    let asked = fs::read_to_string(attacher).context("what the control plane's driver was told")?;
    ensure!(asked.contains("attach {"), "nobody attached it: {asked}");
    devices.remove("flex");
    forget(joined, &["flex-disk"])
}
