//! Network disks (`iscsi`, `fc`): an `iscsiadm` of the harness, whose sessions are files and whose units are loop
//! devices, and a link to a loop device in place of a fabric's device. The control plane attaches them.
//!
//! Cases: `volumes/iscsi`, `volumes/fc`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::csi_block::Devices;
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, await_pod_gone, await_pod_ready};
use orlop_harness::cluster::iscsi::{Initiator, PORTAL};
use serde_json::{Value, json};

use crate::cases::volumes::claims::{await_told, create, pod, put_claim, put_volume, words_of};
use crate::cases::volumes::csi_block::{put_device, with_device};
use crate::cases::volumes::csi_claims::{await_in_use, delete_pod, restart};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/iscsi",
        60,
        "disks of an iSCSI target are logged in to once, mounted and mapped, over kills of the agent, and the session ends with the last; a node without iscsiadm says what it lacks",
        iscsi,
    ),
    HERE.case(
        "volumes/fc",
        40,
        "a disk of a fabric is found by its link, of a pod and of a claim, formatted once and let go after the last pod, over kills of the agent",
        fc,
    ),
];

const ROOT: &str = "/var/lib/kubelet/plugins/kubernetes.io";
const IQN: &str = "iqn.2026-01.example.e2e:disks";
const PASSWORD: &str = "hush-hush-hush";
const WWN: &str = "50060e801049cfd1";
const LINK: &str = "/dev/disk/by-path/pci-0000:00:00.0-fc-0x50060e801049cfd1-lun-0";
const DISK_BYTES: u64 = 16 << 20;

/// Number of mounts at the path in the node.
fn mounted(joined: &Joined, at: &str) -> Result<usize> {
    let path = format!("/proc/{}/mountinfo", joined.nodes[0].pid());
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    Ok(text.lines().filter(|line| line.split(' ').nth(4) == Some(at)).count())
}

pub(crate) fn ensure_mounted(joined: &Joined, at: &str, times: usize) -> Result<()> {
    let found = mounted(joined, at)?;
    ensure!(found == times, "{at} is mounted {found} times and not {times}");
    Ok(())
}

/// A pod that writes and stays; the claim's disk is there for it at `/d`.
pub(crate) fn writes(name: &str, claim: &str) -> Value {
    let mut writes = pod(name, &format!("echo written > /d/f && sync && {STAYS}"), claim, false);
    writes["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 2000});
    writes["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-s", "/d/f"]}, "periodSeconds": 1});
    writes
}

/// A pod that prints the file's contents, and ends.
pub(crate) fn reads(name: &str, claim: &str) -> Value {
    let mut reads = pod(name, "cat /d/f > /dev/termination-log", claim, true);
    reads["spec"]["restartPolicy"] = json!("Never");
    reads
}

pub(crate) fn gone(joined: &Joined, name: &str) -> Result<()> {
    delete_pod(joined, name)?;
    await_pod_gone(&joined.cluster, name, 60)
}

pub(crate) fn forget(joined: &Joined, claims: &[&str]) -> Result<()> {
    let client = joined.cluster.client();
    for name in claims {
        client.delete::<PersistentVolumeClaim>(&client.of("default"), name, None)?;
        client.delete::<PersistentVolume>(&client.all(), &format!("pv-{name}"), None)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}

/// Files below a directory of the node.
pub(crate) fn files(joined: &Joined, below: &str) -> Vec<PathBuf> {
    fn walk(path: &Path, all: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => walk(&entry.path(), all),
                _ => all.push(entry.path()),
            }
        }
    }
    let mut all = Vec::new();
    walk(&joined.nodes[0].inside(below), &mut all);
    all
}

/// A pod that has the claim's device.
fn maps(name: &str, claim: &str) -> Value {
    let mut maps = with_device(name, &format!("echo raw > /dev/d && {STAYS}"), claim, false);
    maps["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["sh", "-c", "head -c 3 /dev/d | grep -q raw"]}, "periodSeconds": 1});
    maps
}

fn iscsi(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let devices = Devices::default();
    let initiator = Initiator::new(&joined.nodes[0], IQN, PASSWORD)?;
    let directory = joined.nodes[0].inside("/var/lib/e2e-disks");
    for (lun, name) in ["unit-0", "unit-1"].into_iter().enumerate() {
        devices.make(&directory, name)?;
        devices.grow(name, DISK_BYTES)?;
        initiator.put_unit(lun, &devices.node(name)?)?;
    }
    let secret = json!({"metadata": {"name": "iscsi-chap"}, "type": "kubernetes.io/iscsi-chap",
        "stringData": {"node.session.auth.username": "u", "node.session.auth.password": PASSWORD}});
    let client = joined.cluster.client();
    client.create::<Secret>(&client.of("default"), secret)?;
    let target = |lun: u32| {
        json!({"iscsi": {"targetPortal": PORTAL, "iqn": IQN, "lun": lun, "chapAuthSession": true,
            "secretRef": {"name": "iscsi-chap", "namespace": "default"}}})
    };
    put_volume(&joined.cluster, "iscsi", &target(0), "ReadWriteOnce")?;
    put_claim(&joined.cluster, "iscsi", "ReadWriteOnce")?;
    put_device(&joined.cluster, "iscsi-raw", &target(1))?;
    let unique = |lun: u32| format!("kubernetes.io/iscsi/{PORTAL}:{IQN}:{lun}");
    let global = format!("{ROOT}/iscsi/iface-default/{PORTAL}:3260-{IQN}-lun-0");

    // The program is missing: the pod's event reports this, and the pod runs as soon as the program exists.
    create(&joined.cluster, writes("iscsi-one", "iscsi"))?;
    let words =
        "MountVolume.WaitForAttach failed for volume \"pv-iscsi\" : this node has no program \"iscsiadm\"";
    await_told(joined, "iscsi-one", words)?;
    await_in_use(joined, &unique(0), true)?;
    initiator.install()?;
    await_pod_ready(&joined.cluster, "iscsi-one", 90)?;
    ensure_mounted(joined, &global, 1)?;
    ensure!(initiator.sessions()? == 1, "{} sessions", initiator.sessions()?);
    ensure!(initiator.log()?.contains("-n node.startup -v manual"), "it would log in by itself");

    // The next agent finds the disk, and a second pod uses another unit of the same session.
    joined.nodes[0].kill_agent()?;
    create(&joined.cluster, maps("iscsi-two", "iscsi-raw"))?;
    restart(joined)?;
    await_pod_ready(&joined.cluster, "iscsi-two", 60)?;
    await_pod_ready(&joined.cluster, "iscsi-one", 60)?;
    ensure_mounted(joined, &global, 1)?;
    ensure!(initiator.sessions()? == 1, "{} sessions", initiator.sessions()?);

    // The first pod is deleted while the agent is dead: the second pod keeps the session.
    joined.nodes[0].kill_agent()?;
    delete_pod(joined, "iscsi-one")?;
    restart(joined)?;
    await_pod_gone(&joined.cluster, "iscsi-one", 60)?;
    await_in_use(joined, &unique(0), false)?;
    ensure_mounted(joined, &global, 0)?;
    ensure!(!joined.nodes[0].inside(&global).exists(), "{global} is still there");
    ensure!(initiator.sessions()? == 1, "the session of another pod's disk has ended");
    await_in_use(joined, &unique(1), true)?;

    // The session ends with its last pod.
    gone(joined, "iscsi-two")?;
    await_in_use(joined, &unique(1), false)?;
    ensure!(initiator.sessions()? == 0 && initiator.links().is_empty(), "links {:?}", initiator.links());
    let left = files(joined, &format!("{ROOT}/iscsi"));
    ensure!(left.is_empty(), "left {left:?}");

    // The disk is not formatted a second time.
    create(&joined.cluster, reads("iscsi-again", "iscsi"))?;
    ensure!(words_of(joined, "iscsi-again")? == "written\n", "what the first pod wrote is lost");
    gone(joined, "iscsi-again")?;
    await_in_use(joined, &unique(0), false)?;
    ensure!(initiator.sessions()? == 0, "{} sessions", initiator.sessions()?);
    let log = fs::read_to_string(joined.nodes[0].logs().join("agent.log"))?;
    ensure!(!log.contains(PASSWORD), "a Secret is in the agent's log");
    ensure!(initiator.log()?.contains(PASSWORD), "the target was not shown its Secret");
    drop(initiator);
    for name in ["unit-0", "unit-1"] {
        devices.remove(name);
    }
    let client = joined.cluster.client();
    client.delete::<Secret>(&client.of("default"), "iscsi-chap", None)?;
    forget(joined, &["iscsi", "iscsi-raw"])
}

/// A link that is removed with its value.
struct Link(PathBuf);

impl Link {
    fn new(at: &str, to: &Path) -> Result<Link> {
        let at = PathBuf::from(at);
        fs::create_dir_all(at.parent().context("no directory")?)?;
        let _ = fs::remove_file(&at);
        std::os::unix::fs::symlink(to, &at).with_context(|| format!("link {}", at.display()))?;
        Ok(Link(at))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn fc(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let devices = Devices::default();
    devices.make(&joined.nodes[0].inside("/var/lib/e2e-disks"), "fabric")?;
    devices.grow("fabric", DISK_BYTES)?;
    let source = json!({"fc": {"targetWWNs": [WWN], "lun": 0}});
    put_volume(&joined.cluster, "fc", &source, "ReadWriteOnce")?;
    put_claim(&joined.cluster, "fc", "ReadWriteOnce")?;
    put_device(&joined.cluster, "fc-raw", &source)?;
    let unique = format!("kubernetes.io/fc/[{WWN}]:0");
    let global = format!("{ROOT}/fc/{WWN}-lun-0");

    create(&joined.cluster, writes("fc-one", "fc"))?;
    await_told(joined, "fc-one", "MountVolume.WaitForAttach failed for volume \"pv-fc\" : no fc disk found")?;
    // The node's devices are the machine's.
    let link = Link::new(LINK, &devices.node("fabric")?)?;
    await_pod_ready(&joined.cluster, "fc-one", 90)?;
    ensure_mounted(joined, &global, 1)?;

    // A pod that names the disk itself shares it, with the next agent.
    joined.nodes[0].kill_agent()?;
    let mut own = reads("fc-own", "");
    own["spec"]["volumes"] =
        json!([{"name": "data", "fc": {"targetWWNs": [WWN], "lun": 0, "readOnly": true}}]);
    create(&joined.cluster, own)?;
    restart(joined)?;
    ensure!(words_of(joined, "fc-own")? == "written\n", "not what the first pod wrote");
    ensure_mounted(joined, &global, 1)?;
    gone(joined, "fc-own")?;
    ensure_mounted(joined, &global, 1)?;

    // The last pod is deleted while the agent is dead.
    joined.nodes[0].kill_agent()?;
    delete_pod(joined, "fc-one")?;
    restart(joined)?;
    await_pod_gone(&joined.cluster, "fc-one", 60)?;
    await_in_use(joined, &unique, false)?;
    ensure_mounted(joined, &global, 0)?;
    let left = files(joined, &format!("{ROOT}/fc"));
    ensure!(left.is_empty(), "left {left:?}");

    // The same as a block device; its contents do not matter.
    create(&joined.cluster, maps("fc-two", "fc-raw"))?;
    await_pod_ready(&joined.cluster, "fc-two", 60)?;
    joined.nodes[0].kill_agent()?;
    restart(joined)?;
    await_pod_ready(&joined.cluster, "fc-two", 60)?;
    gone(joined, "fc-two")?;
    await_in_use(joined, &unique, false)?;
    let left = files(joined, &format!("{ROOT}/fc"));
    ensure!(left.is_empty(), "left {left:?}");
    drop(link);
    devices.remove("fabric");
    forget(joined, &["fc", "fc-raw"])
}
