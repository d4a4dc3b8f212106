//! The agent is killed before each step of its work on a pod's volumes, at set-up and at tear-down: the next agent
//! starts the pod nevertheless, and removes all of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::CSIDriver;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::csi_block::Devices;
use orlop_harness::cluster::csi_driver::{CsiDriver, DriverInfo};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, await_ready, uid,
};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::ready;
use orlop_harness::native::steps::{StepKiller, Steps};
use orlop_harness::rng::Rng;
use orlop_harness::say;
use serde_json::{Value, json};

use crate::cases::volumes::claims::{DISKS, create, local, put_claim, put_volume};
use crate::cases::volumes::csi::{await_drivers, says};
use crate::cases::volumes::csi_block::{held, put_device};
use crate::cases::volumes::files::mounts;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/killed-steps",
    90,
    "an agent that dies before a step of mounting and of unmounting, one step after the other, loses no file and leaves no mount",
    killed_steps,
)];

const NAME: &str = "stepwise";
const DRIVER: &str = "stepwise.e2e.example";
/// Claims of block devices, of the driver and of the node.
const DEVICE: &str = "stepwise-device";
const LOCAL: &str = "stepwise-local";
/// Directories of a pod's devices, below `plugins/kubernetes.io`.
const KEPT: [&str; 4] = [
    "csi/volumeDevices/staging",
    "csi/volumeDevices/publish",
    "csi/volumeDevices/pv-stepwise-device",
    "local-volume/volumeDevices/pv-stepwise-local",
];
/// Instead of every so many-th step, all of them.
pub(crate) const ALL: &str = "ORLOP_E2E_ALL_STEPS";
/// Distance of the tested steps, unless all steps are requested.
const STRIDE: u32 = 16;
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks for the pod's start or end, without a kill.
const LOOK: Duration = Duration::from_millis(100);

/// A pod with volumes of every kind that the agent makes itself or has a driver make.
fn the_pod() -> Value {
    let files = "[ \"$(cat /c/a/b)\" = one ] && [ \"$(cat /s/k)\" = two ] && [ \"$(cat /p/name)\" = stepwise ] && \
                 grep -q . /p/token && [ -d /e ] && grep -q ' /m tmpfs ' /proc/mounts && [ -e /h ] && \
                 [ \"$(cat /part)\" = one ] && grep -q . /d/f && [ -b /dev/csi ] && [ -b /dev/local ]";
    let mut pod = api_pod(NAME, "first", STAYS, 1);
    pod["spec"]["nodeName"] = json!("first");
    pod["spec"]["volumes"] = json!([
        {"name": "config", "configMap": {"name": NAME, "items": [{"key": "k", "path": "a/b"}]}},
        {"name": "secret", "secret": {"secretName": NAME}},
        {"name": "all", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "audience": "e2e.example"}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}},
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "host", "hostPath": {"path": "/var/lib/e2e-steps", "type": "DirectoryOrCreate"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": NAME}},
        {"name": "device", "persistentVolumeClaim": {"claimName": DEVICE}},
        {"name": "local", "persistentVolumeClaim": {"claimName": LOCAL}},
    ]);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([
        {"name": "config", "mountPath": "/c"}, {"name": "secret", "mountPath": "/s"},
        {"name": "all", "mountPath": "/p"}, {"name": "disk", "mountPath": "/e"},
        {"name": "memory", "mountPath": "/m"}, {"name": "host", "mountPath": "/h"},
        {"name": "config", "mountPath": "/part", "subPath": "a/b"}, {"name": "claim", "mountPath": "/d"},
    ]);
    container["volumeDevices"] =
        json!([{"name": "device", "devicePath": "/dev/csi"}, {"name": "local", "devicePath": "/dev/local"}]);
    container["readinessProbe"] = json!({"exec": {"command": ["sh", "-c", files]}, "periodSeconds": 1});
    pod
}

/// Kind of a step: the call, and the path without its variable parts. Pure.
fn kind(step: &str) -> String {
    let (call, path) = step.split_once(' ').unwrap_or((step, ""));
    let part = path.split_once("/kubelet/").map_or(path, |(_, rest)| rest);
    let plain = |part: &str| -> String {
        const TOKEN: &str = "kube-api-access-";
        match part.find(TOKEN) {
            _ if part.len() == 36 && part.matches('-').count() == 4 => "UID".to_owned(),
            _ if part.starts_with("..2") => "..VERSION".to_owned(),
            _ if part.strip_prefix("loop").is_some_and(|number| number.parse::<u32>().is_ok()) => {
                "loopN".to_owned()
            }
            Some(at) => format!("{}{TOKEN}X", &part[..at]),
            None => part.to_owned(),
        }
    };
    let parts: Vec<String> = part.split('/').map(plain).collect();
    format!("{call} {}", parts.join("/"))
}

fn restart(joined: &mut Joined) -> Result<()> {
    joined.nodes[0].await_agent_exit()?;
    start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
    await_ready(&joined.cluster, "first", 60).map(drop)
}

/// Runs `something` and kills the agent before its `nth` step; returns that step, or `None` if `done` was true earlier and the agent
/// lives. A killed agent may not have ended yet.
pub(crate) fn until_step(
    joined: &Joined,
    steps: Steps,
    nth: usize,
    something: impl Fn(&Joined) -> Result<()>,
    done: impl Fn(&Joined) -> Result<bool>,
) -> Result<Option<String>> {
    let killer = StepKiller::set(joined.cluster.run(), joined.nodes[0].agent_pid()?, steps, nth)?;
    something(joined)?;
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(step) = killer.killed(LOOK)? {
            return Ok(Some(step));
        }
        if done(joined)? {
            // The kill may have come after the last look.
            return Ok(killer.end());
        }
        ensure!(Instant::now() < deadline, "neither step {nth} nor the end came within {LIMIT:?}");
    }
}

/// The same for steps on volumes; the agent starts again.
fn without_step(
    joined: &mut Joined,
    nth: usize,
    something: impl Fn(&Joined) -> Result<()>,
    done: impl Fn(&Joined) -> Result<bool>,
) -> Result<Option<String>> {
    let step = until_step(joined, Steps::Volumes, nth, something, done)?;
    if let Some(step) = &step {
        restart(joined).with_context(|| format!("after the kill before {step}"))?;
    }
    Ok(step)
}

fn the_pod_now(joined: &Joined) -> Result<Option<Pod>> {
    let client = joined.cluster.client();
    client.get::<Pod>(&client.of("default"), NAME)
}

/// Nothing of the pod is left on the node or with the driver.
fn ensure_nothing_left(joined: &Joined, driver: &CsiDriver, uid: &str) -> Result<()> {
    driver.await_staged(30, |all| all.now.is_empty())?;
    ensure!(driver.published().is_empty(), "published at {:?}", driver.published().keys());
    let left: Vec<_> = mounts(&joined.nodes[0])?.into_iter().filter(|m| m.contains(uid)).collect();
    ensure!(left.is_empty(), "mounts are left: {left:?}");
    let dir = joined.nodes[0].inside(&format!("/var/lib/kubelet/pods/{uid}"));
    let stage = joined.nodes[0].inside(&format!("/var/lib/kubelet/plugins/kubernetes.io/csi/{DRIVER}"));
    let is_empty = |dir: &Path| fs::read_dir(dir).map_or(true, |mut all| all.next().is_none());
    let kept =
        |below: &str| joined.nodes[0].inside(&format!("/var/lib/kubelet/plugins/kubernetes.io/{below}"));
    let gone =
        || (!dir.exists() && is_empty(&stage) && KEPT.iter().all(|k| is_empty(&kept(k)))).then_some(());
    joined.nodes[0].wait(30, "the pod's directory, its devices and the driver's stage to go", |_| gone())?;
    let loops = held(uid)?;
    ensure!(loops.is_empty(), "devices are held by {loops:?}");
    Ok(())
}

/// Kinds of steps that were killed, and how often.
type KillCounts = BTreeMap<String, u32>;

/// One life of the pod, with a kill before step `nth` of set-up and of tear-down; true if both have more steps.
fn one_life(
    joined: &mut Joined,
    driver: &CsiDriver,
    nth: usize,
    met: &mut (KillCounts, KillCounts),
) -> Result<bool> {
    let is_there = |joined: &Joined| Ok(the_pod_now(joined)?.is_some_and(|pod| ready::pod(&pod)));
    let on_the_way_in = without_step(joined, nth, |joined| create(&joined.cluster, the_pod()), is_there)?;
    let about =
        |step: &Option<String>| format!("after the kill before {}", step.as_deref().unwrap_or("nothing"));
    let pod = await_pod_ready(&joined.cluster, NAME, 60).with_context(|| about(&on_the_way_in))?;
    let uid = uid(&pod)?;
    let delete = |joined: &Joined| {
        let client = joined.cluster.client();
        client.delete::<Pod>(&client.of("default"), NAME, None)
    };
    let is_gone = |joined: &Joined| Ok(the_pod_now(joined)?.is_none());
    let on_the_way_out = without_step(joined, nth, delete, is_gone)?;
    await_pod_gone(&joined.cluster, NAME, 60).with_context(|| about(&on_the_way_out))?;
    ensure_nothing_left(joined, driver, &uid).with_context(|| about(&on_the_way_out))?;
    let more = on_the_way_in.is_some() || on_the_way_out.is_some();
    for (step, of) in [(on_the_way_in, &mut met.0), (on_the_way_out, &mut met.1)] {
        if let Some(step) = step {
            *of.entry(kind(&step)).or_default() += 1;
        }
    }
    Ok(more)
}

/// Two claims of block devices, and the node's own file for each.
fn put_devices(joined: &Joined) -> Result<(Devices, PathBuf)> {
    put_device(&joined.cluster, DEVICE, &json!({"csi": {"driver": DRIVER, "volumeHandle": DEVICE}}))?;
    let devices = Devices::default();
    let disks = joined.nodes[0].inside(DISKS);
    devices.make(&disks, LOCAL)?;
    let at = disks.join("device");
    devices.publish(LOCAL, &at)?;
    put_device(&joined.cluster, LOCAL, &local("device"))?;
    Ok((devices, at))
}

fn killed_steps(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut rng = Rng::new(cx.seed);
    let all = std::env::var_os(ALL).is_some();
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let handle = client.handle().clone();
    client.create::<ConfigMap>(
        &client.of("default"),
        json!({"metadata": {"name": NAME}, "data": {"k": "one"}}),
    )?;
    client.create::<Secret>(
        &client.of("default"),
        json!({"metadata": {"name": NAME}, "stringData": {"k": "two"}}),
    )?;
    let spec = json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": false}});
    client.create::<CSIDriver>(&client.all(), spec)?;
    let source = json!({"csi": {"driver": DRIVER, "volumeHandle": NAME, "fsType": "ext4"}});
    put_volume(&joined.cluster, NAME, &source, "ReadWriteOnce")?;
    put_claim(&joined.cluster, NAME, "ReadWriteOnce")?;
    let mut plain = DriverInfo { stages: true, ..says(DRIVER) };
    plain.topology.clear();
    let driver = CsiDriver::start(&handle, &joined.nodes[0].inside("/"), plain)?;
    let (_devices, disk) = put_devices(joined)?;

    let mut met = (KillCounts::new(), KillCounts::new());
    let (mut nth, mut lives) = (1, 0);
    while one_life(joined, &driver, nth, &mut met)? {
        lives += 1;
        nth += if all { 1 } else { 1 + rng.below(2 * STRIDE - 1) as usize };
    }
    let (way_in, way_out) = (met.0.values().sum::<u32>(), met.1.values().sum::<u32>());
    say::line(format!(
        "  {lives} lives, killed before {way_in} steps of mounting and {way_out} of unmounting, of {nth} at most"
    ));
    for (way, of) in [("mounting", &met.0), ("unmounting", &met.1)] {
        ensure!(!of.is_empty(), "no step of {way} was met");
        of.iter().filter(|_| all).for_each(|(step, times)| say::line(format!("    {way}: {times} × {step}")));
    }
    ensure!(driver.staged().wrong.is_empty(), "the node asked for {:?}", driver.staged().wrong);
    drop(driver);
    await_drivers(joined, &json!([]))?;
    let client = joined.cluster.client();
    fs::remove_file(&disk).context("remove the node's device")?;
    for name in [NAME, DEVICE, LOCAL] {
        client.delete::<PersistentVolumeClaim>(&client.of("default"), name, None)?;
        client.delete::<PersistentVolume>(&client.all(), &format!("pv-{name}"), None)?;
    }
    client.delete::<CSIDriver>(&client.all(), DRIVER, None)?;
    client.delete::<ConfigMap>(&client.of("default"), NAME, None)?;
    client.delete::<Secret>(&client.of("default"), NAME, None)?;
    joined.cluster.ensure_nothing_forbidden()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_one_kind_are_one() {
        let of = |path: &str| {
            kind(&format!("mkdir /n/var/lib/kubelet/pods/4e9c1f2a-1b2c-4d5e-8f90-1a2b3c4d5e6f/{path}"))
        };
        assert_eq!(kind("LOOP_SET_FD /dev/loop12"), "LOOP_SET_FD /dev/loopN");
        for (path, expected) in [
            ("volumes", "mkdir pods/UID/volumes"),
            (
                "volumes/p/kube-api-access-64zkr/..2026_11_25_17_16_45.0",
                "mkdir pods/UID/volumes/p/kube-api-access-X/..VERSION",
            ),
            (
                "plugins/wrapped_kube-api-access-abcde/ready",
                "mkdir pods/UID/plugins/wrapped_kube-api-access-X/ready",
            ),
            ("volumes/s/..data_tmp", "mkdir pods/UID/volumes/s/..data_tmp"),
        ] {
            assert_eq!(of(path), expected);
        }
    }
}
