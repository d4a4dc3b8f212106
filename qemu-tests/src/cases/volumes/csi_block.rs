//! Volumes that are block devices: a CSI driver's, staged once and published for each pod, and one of the node.
//! Containers have the device itself; the node keeps the device open for as long as a pod uses it, over kills of the
//! agent.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::csi_block::{DEVICE_BYTES, Devices};
use orlop_harness::cluster::csi_driver::{CsiDriver, DriverInfo};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, await_pod_gone, await_pod_ready, last_words, uid,
};
use orlop_harness::cluster::plane::Cluster;
use orlop_proto::csi::v1::volume_capability::AccessType;
use serde_json::{Value, json};

use crate::cases::volumes::claims::{create, pod};
use crate::cases::volumes::csi::{await_drivers, await_event, says};
use crate::cases::volumes::csi_claims::{
    attach, await_attachment, await_grown, await_in_use, is_to_grow, restart, touch,
};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/csi-block",
    30,
    "a driver's block device, and the node's, are containers' devices, held for them over kills of the agent, read only where the claim says so, larger when the claim grew although the agent died in the middle, and given back",
    block,
)];

const DRIVER: &str = "block.e2e.example";
const HANDLE: &str = "disk-1";
const UNIQUE: &str = "kubernetes.io/csi/block.e2e.example^disk-1";
const DEVICES: &str = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices";
const LOCAL: &str = "/var/lib/kubelet/plugins/kubernetes.io/local-volume/volumeDevices";

/// Makes a volume that is a device, and its claim `name`.
pub(crate) fn put_device(cluster: &Cluster, name: &str, source: &Value) -> Result<()> {
    let mut spec = json!({"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "volumeMode": "Block", "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": "default", "name": name}});
    for (key, value) in source.as_object().context("no source")? {
        spec[key] = value.clone();
    }
    let client = cluster.client();
    let volume = json!({"metadata": {"name": format!("pv-{name}")}, "spec": spec});
    client.create::<PersistentVolume>(&client.all(), volume)?;
    let claim = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "volumeMode": "Block", "volumeName": format!("pv-{name}"), "resources": {"requests": {"storage": "1Mi"}}}});
    client.create::<PersistentVolumeClaim>(&client.of("default"), claim).map(drop)
}

/// A pod whose container has the claim's device at `/dev/d`.
pub(crate) fn with_device(name: &str, script: &str, claim: &str, read_only: bool) -> Value {
    as_device(pod(name, script, claim, read_only))
}

/// The pod with its volume `data` as a device at `/dev/d` instead of mounted.
pub(crate) fn as_device(mut pod: Value) -> Value {
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([]);
    container["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/d"}]);
    pod
}

fn kill_and_restart(joined: &mut Joined) -> Result<()> {
    joined.nodes[0].kill_agent()?;
    restart(joined)
}

fn delete_pod(joined: &Joined, name: &str) -> Result<()> {
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), name, None)?;
    await_pod_gone(&joined.cluster, name, 60)
}

/// Termination message of a pod that ends.
fn words(joined: &Joined, name: &str) -> Result<String> {
    let client = joined.cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, &format!("{name} to end"), |all| {
        last_words(all.get(name)?, "c")
    })
}

/// Loop devices of this machine that lie over a path of the node.
pub(crate) fn held(path: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/class/block")? {
        let entry = entry?;
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        // The node's root is not the machine's.
        if backing.trim_end().ends_with(path) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The pod's device is `number`, linked and held.
fn ensure_kept(joined: &Joined, link: &str, kept: &str, number: u64) -> Result<()> {
    let at = joined.nodes[0].inside(link);
    ensure!(fs::symlink_metadata(&at).is_ok_and(|found| found.is_symlink()), "{link} is no link");
    let found = in_mounts(joined, kept)?;
    ensure!(found == Some(number), "{kept} is {found:?} and not {number}");
    ensure!(held(kept)?.len() == 1, "{kept} is held by {:?}", held(kept)?);
    Ok(())
}

/// The number of a device as the node sees it.
fn in_mounts(joined: &Joined, path: &str) -> Result<Option<u64>> {
    match fs::metadata(joined.nodes[0].inside(path)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        found => {
            let found = found.with_context(|| format!("stat {path}"))?;
            Ok(found.file_type().is_block_device().then(|| found.rdev()))
        }
    }
}

fn instance(pod: &Pod) -> Option<(Option<String>, i32)> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some((status.container_id.clone(), status.restart_count))
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// An agent dies after the driver has expanded the device and before it answers: the next agent calls again, and
/// completes the resize.
fn grows(joined: &mut Joined, driver: &CsiDriver, alone: &DriverInfo, hangs: &Path) -> Result<()> {
    fs::create_dir_all(hangs).and_then(|()| fs::write(hangs.join("expand"), "")).context("have it hang")?;
    driver.say(DriverInfo { hangs_in: Some(hangs.to_owned()), ..alone.clone() });
    is_to_grow(&joined.cluster, "block", "2Mi")?;
    touch(&joined.cluster, "block-one", "1")?;
    driver.await_staged(30, |all| all.grown.len() == 1)?;
    joined.nodes[0].kill_agent()?;
    driver.say(alone.clone());
    restart(joined)?;
    await_grown(&joined.cluster, "block", "2Mi", 30)?;
    let grown = driver.staged().grown;
    let bytes = grown.iter().filter_map(|g| g.capacity_range.map(|r| r.required_bytes)).collect::<Vec<_>>();
    ensure!(bytes == [2 << 20; 2], "made larger: {bytes:?}");
    let at = grown.iter().map(|g| g.volume_path.as_str()).collect::<Vec<_>>();
    let published = format!("{DEVICES}/publish/pv-block/");
    ensure!(at.iter().all(|path| path.starts_with(&published)), "grown at {at:?}");
    Ok(())
}

fn block(cx: &mut CaseContext<'_>) -> Result<()> {
    let hangs = cx.artefacts.join("hangs");
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let handle = client.handle().clone();
    let spec = json!({"metadata": {"name": DRIVER}, "spec": {"podInfoOnMount": true}});
    client.create::<CSIDriver>(&client.all(), spec)?;
    let source = json!({"csi": {"driver": DRIVER, "volumeHandle": HANDLE, "fsType": "ext4"}});
    put_device(&joined.cluster, "block", &source)?;
    let root = joined.nodes[0].inside("/");
    let mut alone = DriverInfo { stages: true, ..says(DRIVER) };
    alone.topology.clear();
    let refuses = DriverInfo { refuses: Some("no device today".to_owned()), ..alone.clone() };
    let driver = CsiDriver::start(&handle, &root, refuses)?;

    let write = format!("echo precious > /dev/d && sync && test -b /dev/d && {STAYS}");
    let mut one = with_device("block-one", &write, "block", false);
    one["spec"]["securityContext"] = json!({"fsGroup": 2000});
    create(&joined.cluster, one)?;
    await_in_use(joined, UNIQUE, true)?;
    attach(&joined.cluster, &await_attachment(&joined.cluster, DRIVER)?)?;
    let why = "MapVolume.MapPodDevice failed for volume \"pv-block\" : rpc error: code = Internal desc = no device today";
    await_event(joined, "FailedMapVolume", "block-one", why)?;
    // An agent dies in the middle of staging: the next one stages again.
    kill_and_restart(joined)?;
    driver.say(alone.clone());
    let before = await_pod_ready(&joined.cluster, "block-one", 60)?;
    let pod_uid = uid(&before)?;
    let published = format!("{DEVICES}/publish/pv-block/{pod_uid}");
    let link = format!("/var/lib/kubelet/pods/{pod_uid}/volumeDevices/kubernetes.io~csi/pv-block");
    let kept = format!("{DEVICES}/pv-block/dev/{pod_uid}");
    let said = format!("MapVolume.MapPodDevice succeeded for volume \"pv-block\" volumeMapPath {link:?}");
    await_event(joined, "SuccessfulMountVolume", "block-one", &said)?;

    let asked = driver.published().remove(&published).context("not published for the pod")?;
    ensure!(asked.staging_target_path == format!("{DEVICES}/staging/pv-block"), "{asked:?}");
    let access = asked.volume_capability.and_then(|c| c.access_type);
    ensure!(matches!(access, Some(AccessType::Block(_))), "the access type is {access:?}");
    let name = asked.volume_context.get("csi.storage.k8s.io/pod.name").map(String::as_str);
    ensure!(name == Some("block-one"), "published without the pod's name");
    let number = in_mounts(joined, &published)?.context("no device is published")?;
    ensure_kept(joined, &link, &kept, number)?;
    let at = joined.nodes[0].inside(&published);
    ensure!(fs::metadata(&at)?.gid() == 0, "the device was given to a group");

    // A second pod reads the data of the first one, and cannot write.
    let read = "head -c 8 /dev/d > /dev/termination-log; if echo x > /dev/d; then exit 1; fi; wc -c < /dev/d >> /dev/termination-log";
    let mut two = with_device("block-two", read, "block", true);
    two["spec"]["restartPolicy"] = json!("Never");
    create(&joined.cluster, two)?;
    let said = words(joined, "block-two")?;
    ensure!(said.trim() == format!("precious{DEVICE_BYTES}"), "the second pod said {said:?}");
    delete_pod(joined, "block-two")?;
    driver.await_published(30, |all| all.keys().eq([&published]))?;

    grows(joined, &driver, &alone, &hangs)?;
    create(&joined.cluster, {
        let size = "wc -c < /dev/d > /dev/termination-log";
        let mut pod = with_device("block-size", size, "block", true);
        pod["spec"]["restartPolicy"] = json!("Never");
        pod
    })?;
    let said = words(joined, "block-size")?;
    ensure!(said.trim() == (2 * DEVICE_BYTES).to_string(), "the device has {said:?} bytes");

    // Under another agent nothing changes; the device of a pod that was deleted meanwhile is removed.
    joined.nodes[0].kill_agent()?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "block-size", None)?;
    restart(joined)?;
    await_pod_gone(&joined.cluster, "block-size", 60)?;
    let after = await_pod_ready(&joined.cluster, "block-one", 30)?;
    ensure!(instance(&before) == instance(&after), "{:?} became {:?}", instance(&before), instance(&after));
    ensure_kept(joined, &link, &kept, number)?;
    driver.await_published(30, |all| all.keys().eq([&published]))?;

    node_device(joined, &root)?;

    delete_pod(joined, "block-one")?;
    ensure!(driver.published().is_empty() && held(&kept)?.is_empty(), "the node does not let go");
    driver.await_staged(30, |all| all.now.is_empty())?;
    await_in_use(joined, UNIQUE, false)?;
    let all = root.join(DEVICES.trim_start_matches('/'));
    ensure!(names(&all).iter().all(|name| name == "staging" || name == "publish"), "left: {:?}", names(&all));
    for below in ["staging", "publish"] {
        let left = names(&all.join(below));
        ensure!(left.is_empty(), "{below} still has {left:?}");
    }
    ensure!(driver.staged().wrong.is_empty(), "the node asked for {:?}", driver.staged().wrong);
    drop(driver);
    await_drivers(joined, &json!([]))?;
    clean(joined)
}

/// A PersistentVolume of type `local` that is a device, and one that is not.
fn node_device(joined: &mut Joined, root: &Path) -> Result<()> {
    let devices = Devices::default();
    let disks = root.join("var/lib/e2e-disks");
    devices.make(&disks, "local")?;
    let at = disks.join("device");
    devices.publish("local", &at)?;
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["first"]}]}]);
    let source = |path: &str| json!({"local": {"path": path}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}});
    put_device(&joined.cluster, "local", &source("/var/lib/e2e-disks/device"))?;
    create(
        &joined.cluster,
        with_device("block-local", &format!("echo mine > /dev/d && sync && {STAYS}"), "local", false),
    )?;
    let made = await_pod_ready(&joined.cluster, "block-local", 60)?;
    let pod_uid = uid(&made)?;
    let link = format!("/var/lib/kubelet/pods/{pod_uid}/volumeDevices/kubernetes.io~local-volume/pv-local");
    let kept = format!("{LOCAL}/pv-local/{pod_uid}");
    let number = fs::metadata(&at)?.rdev();
    ensure_kept(joined, &link, &kept, number)?;
    kill_and_restart(joined)?;
    ensure_kept(joined, &link, &kept, number)?;
    delete_pod(joined, "block-local")?;
    ensure!(held(&kept)?.is_empty() && in_mounts(joined, &kept)?.is_none(), "the node does not let go");
    ensure!(in_mounts(joined, "/var/lib/e2e-disks/device")?.is_some(), "the node's own device is gone");
    fs::remove_file(&at)?;

    put_device(&joined.cluster, "none", &source("/var/lib/e2e-disks"))?;
    create(&joined.cluster, with_device("block-none", STAYS, "none", false))?;
    let why =
        "MapVolume.SetUpDevice failed for volume \"pv-none\" : /var/lib/e2e-disks is not a block device";
    await_event(joined, "FailedMapVolume", "block-none", why)?;
    create(&joined.cluster, pod("block-mounted", STAYS, "none", false))?;
    await_event(
        joined,
        "FailedMount",
        "block-mounted",
        "has volumeMode Block, but is specified in volumeMounts",
    )?;
    delete_pod(joined, "block-none")?;
    delete_pod(joined, "block-mounted")
}

fn clean(joined: &Joined) -> Result<()> {
    let client = joined.cluster.client();
    for name in ["block", "local", "none"] {
        client.delete::<PersistentVolumeClaim>(&client.of("default"), name, None)?;
        client.delete::<PersistentVolume>(&client.all(), &format!("pv-{name}"), None)?;
    }
    client.delete::<CSIDriver>(&client.all(), DRIVER, None)?;
    joined.cluster.ensure_nothing_forbidden()
}
