//! Claims bound to CSI volumes: attached by the cluster, staged once on the node, published for each pod, and released
//! in the reverse order, with kills of the agent in between.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::api::{Patch, PatchParams};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::csi_driver::{CAPACITY, CsiDriver, DriverInfo};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, await_pod_gone, await_pod_ready, await_ready, uid,
};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_proto::csi::v1::VolumeCapability;
use orlop_proto::csi::v1::volume_capability::AccessType;
use orlop_proto::csi::v1::volume_capability::access_mode::Mode;
use serde_json::{Value, json};
use tonic::Code;

use crate::cases::volumes::claims::{create, pod, put_claim, put_volume};
use crate::cases::volumes::csi::{await_drivers, await_event, await_told, says};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/csi-claims",
    30,
    "a driver's volume is attached, staged once and published for two pods, grows and is measured under them, over kills of the agent and errors of the driver, and goes in the reverse order",
    claims,
)];

const DRIVER: &str = "claims.e2e.example";
const HANDLE: &str = "vol-1";
const UNIQUE: &str = "kubernetes.io/csi/claims.e2e.example^vol-1";

fn in_use(node: &Node) -> BTreeSet<String> {
    node.status.iter().flat_map(|s| s.volumes_in_use.iter().flatten().cloned()).collect()
}

/// Waits until the node `first` lists the volume in `volumesInUse`, or no longer does.
pub(crate) fn await_in_use(joined: &Joined, unique: &str, is: bool) -> Result<()> {
    let client = joined.cluster.client();
    client.wait::<Node, _>(&client.all(), 30, &format!("{unique} in use: {is}"), |all| {
        (in_use(all.get("first")?).contains(unique) == is).then_some(())
    })
}

pub(crate) fn await_attachment(cluster: &Cluster, driver: &str) -> Result<String> {
    let client = cluster.client();
    client.wait::<VolumeAttachment, _>(&client.all(), 30, "an attachment", |all| {
        all.iter().find(|(_, a)| a.spec.attacher == driver).map(|(name, _)| name.clone())
    })
}

/// Reports that the volume is attached, like the driver's controller in a cluster.
pub(crate) fn attach(cluster: &Cluster, name: &str) -> Result<()> {
    let client = cluster.client();
    let status = json!({"status": {"attached": true, "attachmentMetadata": {"lun": "7"}}});
    let api = client.all::<VolumeAttachment>();
    let patched = client.block_on(api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)));
    patched.context("say that the volume is attached").map(drop)
}

fn put_secret(joined: &Joined, name: &str) -> Result<()> {
    let client = joined.cluster.client();
    let secret = json!({"metadata": {"name": name}, "stringData": {"password": name}});
    client.create::<Secret>(&client.of("default"), secret).map(drop)
}

pub(crate) fn restart(joined: &mut Joined) -> Result<()> {
    start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
    await_ready(&joined.cluster, "first", 60).map(drop)
}

pub(crate) fn delete_pod(joined: &Joined, name: &str) -> Result<()> {
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), name, None)
}

/// Checks the access mode and the file system against the claim, its volume and the driver's capabilities.
fn ensure_used_so(capability: Option<&VolumeCapability>) -> Result<()> {
    let capability = capability.context("no capability")?;
    let mode = capability.access_mode.as_ref().map(|m| m.mode());
    ensure!(mode == Some(Mode::SingleNodeMultiWriter), "the access mode is {mode:?}");
    let Some(AccessType::Mount(mount)) = &capability.access_type else {
        anyhow::bail!("the access type is {:?}", capability.access_type)
    };
    ensure!(mount.fs_type == "ext4" && mount.mount_flags == ["noatime"], "the mount is {mount:?}");
    Ok(())
}

fn target(uid: &str, volume: &str) -> String {
    format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/pv-{volume}/mount")
}

fn instance(pod: &Pod) -> Option<(Option<String>, i32)> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some((status.container_id.clone(), status.restart_count))
}

fn is_empty(path: &Path) -> Result<bool> {
    match fs::read_dir(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(true),
        entries => Ok(entries.with_context(|| format!("read {}", path.display()))?.next().is_none()),
    }
}

/// Changes an annotation of the pod, so that the node looks at its volumes.
pub(crate) fn touch(cluster: &Cluster, name: &str, times: &str) -> Result<()> {
    let client = cluster.client();
    let patch = json!({"metadata": {"annotations": {"e2e.example/touched": times}}});
    client.merge::<Pod>(&client.of("default"), name, &patch).map(drop)
}

/// The cluster grew the volume; the driver does the same on the node when it no longer refuses.
fn grows(joined: &Joined, driver: &CsiDriver, alone: &DriverInfo) -> Result<()> {
    driver.say(DriverInfo { refuses_growth: Some((Code::Internal, "no room".to_owned())), ..alone.clone() });
    let client = joined.cluster.client();
    let api = client.of::<PersistentVolumeClaim>("default");
    is_to_grow(&joined.cluster, "csi", "2Mi")?;
    touch(&joined.cluster, "csi-two", "1")?;
    let why = "failed for volume \"pv-csi\" : Expander.NodeExpand failed to expand the volume : rpc error: code = Internal \
               desc = no room";
    await_event(joined, "VolumeResizeFailed", "csi-two", why)?;
    let claim = client.get::<PersistentVolumeClaim>(&api, "csi")?.context("no claim")?;
    let conditions = claim.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    ensure!(conditions.iter().any(|c| c.type_ == "NodeResizeError"), "its conditions are {conditions:?}");
    driver.say(alone.clone());
    touch(&joined.cluster, "csi-two", "2")?;
    await_grown(&joined.cluster, "csi", "2Mi", 30)?;
    let words = "MountVolume.NodeExpandVolume succeeded for volume \"pv-csi\" first";
    // Events of the pod and of its claim.
    await_event(joined, "FileSystemResizeSuccessful", "csi-two", words)?;
    await_event(joined, "FileSystemResizeSuccessful", "csi", words)?;
    let grown = driver.staged().grown;
    let bytes = grown.iter().filter_map(|g| g.capacity_range.map(|r| r.required_bytes)).collect::<Vec<_>>();
    ensure!(bytes == [2 << 20], "made larger: {bytes:?}");
    never_grows(joined, driver, alone)
}

/// Waits until the claim has this capacity and no pending resize.
pub(crate) fn await_grown(cluster: &Cluster, claim: &str, size: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    let api = client.of::<PersistentVolumeClaim>("default");
    client.wait::<PersistentVolumeClaim, _>(&api, limit_s, "the claim to be larger", |all| {
        let status = all.get(claim)?.status.clone()?;
        let has = status.capacity?.get("storage")?.0.clone();
        let busy = status.allocated_resource_statuses.is_some_and(|all| !all.is_empty());
        (has == size && !busy && status.conditions.unwrap_or_default().is_empty()).then_some(())
    })
}

/// The cluster has grown the volume and leaves the rest to the node.
pub(crate) fn is_to_grow(cluster: &Cluster, claim: &str, size: &str) -> Result<()> {
    let client = cluster.client();
    let larger = json!({"spec": {"capacity": {"storage": size}}});
    client.merge::<PersistentVolume>(&client.all(), &format!("pv-{claim}"), &larger)?;
    let waits = json!({"status": {"allocatedResources": {"storage": size},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    let api = client.of::<PersistentVolumeClaim>("default");
    let patched = client.block_on(api.patch_status(claim, &PatchParams::default(), &Patch::Merge(&waits)));
    patched.context("say that the node is to make the volume larger").map(drop)
}

/// After an infeasible resize the controller has to act: the node does not ask a second time.
fn never_grows(joined: &Joined, driver: &CsiDriver, alone: &DriverInfo) -> Result<()> {
    let refuses = Some((Code::OutOfRange, "too large".to_owned()));
    driver.say(DriverInfo { refuses_growth: refuses, ..alone.clone() });
    is_to_grow(&joined.cluster, "csi", "3Mi")?;
    touch(&joined.cluster, "csi-two", "3")?;
    let client = joined.cluster.client();
    let api = client.of::<PersistentVolumeClaim>("default");
    let stands = |claim: &PersistentVolumeClaim| {
        let status = claim.status.clone()?;
        status.allocated_resource_statuses?.get("storage").cloned()
    };
    client.wait::<PersistentVolumeClaim, _>(&api, 30, "the claim to say that it is impossible", |all| {
        let claim = all.get("csi")?;
        let told = claim.status.as_ref()?.conditions.iter().flatten().any(|c| c.type_ == "NodeResizeError");
        (told && stands(claim)? == "NodeResizeInfeasible").then_some(())
    })?;
    driver.say(alone.clone());
    touch(&joined.cluster, "csi-two", "4")?;
    let claim = client.get::<PersistentVolumeClaim>(&api, "csi")?.context("no claim")?;
    ensure!(stands(&claim).as_deref() == Some("NodeResizeInfeasible"), "it is {:?}", stands(&claim));
    // The controller requests another size.
    is_to_grow(&joined.cluster, "csi", "4Mi")?;
    touch(&joined.cluster, "csi-two", "5")?;
    client.wait::<PersistentVolumeClaim, _>(&api, 30, "the claim to be larger", |all| {
        let claim = all.get("csi")?;
        let size = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?.0.clone();
        (size == "4Mi" && stands(claim).is_none()).then_some(())
    })?;
    let grown = driver.staged().grown;
    let bytes = grown.iter().filter_map(|g| g.capacity_range.map(|r| r.required_bytes)).collect::<Vec<_>>();
    ensure!(bytes == [2 << 20, 4 << 20], "the driver was asked again: {bytes:?}");
    Ok(())
}

/// The pod's volume in the summary.
fn summary(joined: &Joined, name: &str) -> Result<Value> {
    let text = joined.cluster.client().raw("/api/v1/nodes/first/proxy/stats/summary")?;
    let all: Value = serde_json::from_str(&text)?;
    let pods = all["pods"].as_array().context("no pods")?;
    let pod = pods.iter().find(|p| p["podRef"]["name"] == name).with_context(|| format!("no {name}"))?;
    let volumes = pod["volume"].as_array().context("no volumes")?;
    let of = json!({"name": "csi", "namespace": "default"});
    volumes.iter().find(|v| v["pvcRef"] == of).cloned().with_context(|| format!("{volumes:?}"))
}

/// The pod's volume is abnormal: the summary, a metric and an event report this.
fn ensure_ill(joined: &Joined, name: &str) -> Result<()> {
    let found = summary(joined, name)?;
    ensure!(found["volumeHealthStats"] == json!({"abnormal": true}), "{found}");
    let metrics = joined.cluster.client().raw("/api/v1/nodes/first/proxy/metrics")?;
    let line =
        "kubelet_volume_stats_health_status_abnormal{namespace=\"default\",persistentvolumeclaim=\"csi\"} 1";
    ensure!(metrics.lines().any(|l| l == line), "/metrics has no line {line:?}");
    await_event(joined, "VolumeConditionAbnormal", name, "Volume data: a disk of it is gone")
}

/// The summary has the driver's figures of the pod's volume.
fn is_measured(joined: &Joined, name: &str) -> Result<()> {
    let found = summary(joined, name)?;
    ensure!(found["volumeHealthStats"] == json!({"abnormal": false}), "{found}");
    let figures = ["capacityBytes", "usedBytes", "inodes", "inodesUsed"].map(|key| found[key].as_i64());
    let expected = [CAPACITY, CAPACITY / 10, CAPACITY, CAPACITY / 10].map(Some);
    ensure!(figures == expected, "{figures:?} and not {expected:?}");
    let metrics = joined.cluster.client().raw("/api/v1/nodes/first/proxy/metrics")?;
    let claim = "{namespace=\"default\",persistentvolumeclaim=\"csi\"}";
    for (series, value) in [
        (format!("kubelet_volume_stats_capacity_bytes{claim}"), CAPACITY),
        (format!("kubelet_volume_stats_available_bytes{claim}"), CAPACITY / 10 * 9),
        (format!("kubelet_volume_stats_used_bytes{claim}"), CAPACITY / 10),
        (format!("kubelet_volume_stats_health_status_abnormal{claim}"), 0),
        (format!("kubelet_volume_stats_inodes{claim}"), CAPACITY),
        (format!("kubelet_volume_stats_inodes_free{claim}"), CAPACITY / 10 * 9),
        (format!("kubelet_volume_stats_inodes_used{claim}"), CAPACITY / 10),
    ] {
        let line = format!("{series} {value}");
        ensure!(metrics.lines().any(|l| l == line), "/metrics has no line {line:?}");
    }
    for state in ["desired", "actual"] {
        let of = format!("{{plugin_name=\"kubernetes.io/csi\",state=\"{state}_state_of_world\"}} 2");
        let line = format!("volume_manager_total_volumes{of}");
        ensure!(metrics.lines().any(|l| l == line), "/metrics has no line {line:?}");
    }
    Ok(())
}

fn claims(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let handle = joined.cluster.client().handle().clone();
    let client = joined.cluster.client();
    client.create::<CSIDriver>(
        &client.all(),
        json!({"metadata": {"name": DRIVER}, "spec": {"podInfoOnMount": true, "fsGroupPolicy": "File"}}),
    )?;
    put_secret(joined, "csi-stage")?;
    put_secret(joined, "csi-publish")?;
    let secret = |name: &str| json!({"namespace": "default", "name": name});
    let source = json!({"mountOptions": ["noatime"], "csi": {"driver": DRIVER, "volumeHandle": HANDLE, "fsType": "ext4",
        "volumeAttributes": {"colour": "blue"}, "nodeStageSecretRef": secret("csi-stage"),
        "nodePublishSecretRef": secret("csi-publish")}});
    put_volume(&joined.cluster, "csi", &source, "ReadWriteOnce")?;
    put_claim(&joined.cluster, "csi", "ReadWriteOnce")?;
    let root = joined.nodes[0].inside("/");
    let mut alone = DriverInfo { stages: true, ..says(DRIVER) };
    alone.topology.clear();
    let refuses = DriverInfo { refuses_stage: Some("no stage today".to_owned()), ..alone.clone() };
    let driver = CsiDriver::start(&handle, &root, refuses)?;

    let mut one = pod("csi-one", STAYS, "csi", false);
    one["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 2000});
    one["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-w", "/d/f"]}, "periodSeconds": 1});
    create(&joined.cluster, one)?;
    // The volume waits for its attachment, also under another agent.
    let attachment = await_attachment(&joined.cluster, DRIVER)?;
    await_in_use(joined, UNIQUE, true)?;
    joined.nodes[0].kill_agent()?;
    restart(joined)?;
    ensure!(driver.staged().times == 0, "staged before it is attached");
    attach(&joined.cluster, &attachment)?;
    let words = "MountVolume.MountDevice failed for volume \"pv-csi\" : rpc error: code = Internal desc = no stage today";
    await_told(joined, "csi-one", words)?;
    // An agent dies in the middle of staging: the next one stages again.
    driver.say(DriverInfo { hangs_after_stage: true, ..alone.clone() });
    driver.await_staged(30, |all| all.times == 1)?;
    joined.nodes[0].kill_agent()?;
    driver.say(alone.clone());
    restart(joined)?;
    let before = await_pod_ready(&joined.cluster, "csi-one", 60)?;

    let staged = driver.staged();
    ensure!(
        (staged.times, staged.now.len()) == (2, 1),
        "staged {} times at {:?}",
        staged.times,
        staged.now.keys()
    );
    let (place, asked) = staged.now.first_key_value().context("nothing is staged")?;
    ensure!(
        place.starts_with(&format!("/var/lib/kubelet/plugins/kubernetes.io/csi/{DRIVER}/")),
        "at {place}"
    );
    ensure!(place.ends_with("/globalmount") && asked.volume_id == HANDLE, "{} at {place}", asked.volume_id);
    ensure_used_so(asked.volume_capability.as_ref())?;
    let has = |of: &std::collections::HashMap<String, String>, key: &str, value: &str| {
        of.get(key).map(String::as_str) == Some(value)
    };
    ensure!(has(&asked.publish_context, "lun", "7"), "staged without what the attachment says");
    ensure!(has(&asked.volume_context, "colour", "blue"), "staged without its attributes");
    ensure!(has(&asked.secrets, "password", "csi-stage"), "staged without its Secret");
    let published = driver.published();
    let asked = published.get(&target(&uid(&before)?, "csi")).context("not published for the pod")?;
    ensure_used_so(asked.volume_capability.as_ref())?;
    ensure!(asked.staging_target_path == *place, "published from {:?}", asked.staging_target_path);
    ensure!(has(&asked.publish_context, "lun", "7"), "published without what the attachment says");
    ensure!(has(&asked.secrets, "password", "csi-publish"), "published without its Secret");
    ensure!(has(&asked.volume_context, "csi.storage.k8s.io/pod.name", "csi-one"), "without the pod's name");
    ensure!(has(&asked.volume_context, "csi.storage.k8s.io/ephemeral", "false"), "as an inline volume");
    let on_disk = joined.nodes[0].inside(&target(&uid(&before)?, "csi"));
    let group = fs::metadata(on_disk.join("f")).context("what the driver made")?.gid();
    ensure!(group == 2000, "it is group {group}'s");

    // A second pod shares the staged volume.
    create(&joined.cluster, pod("csi-two", STAYS, "csi", false))?;
    let two = await_pod_ready(&joined.cluster, "csi-two", 60)?;
    ensure!(driver.staged().times == 2, "staged {} times", driver.staged().times);
    ensure!(driver.published().len() == 2, "published at {:?}", driver.published().keys());

    grows(joined, &driver, &alone)?;
    is_measured(joined, "csi-two")?;

    // The first pod is deleted while the agent is dead: it is unpublished, and the second pod keeps the volume.
    joined.nodes[0].kill_agent()?;
    delete_pod(joined, "csi-one")?;
    restart(joined)?;
    await_pod_gone(&joined.cluster, "csi-one", 60)?;
    let after = await_pod_ready(&joined.cluster, "csi-two", 30)?;
    ensure!(instance(&two) == instance(&after), "{:?} became {:?}", instance(&two), instance(&after));
    let left: Vec<String> = driver.published().into_keys().collect();
    ensure!(left == [target(&uid(&two)?, "csi")], "published at {left:?}");
    ensure!(driver.staged().now.len() == 1, "no longer staged under a pod");
    await_in_use(joined, UNIQUE, true)?;
    // This agent has not queried the driver yet.
    driver.say(DriverInfo { ill: Some("a disk of it is gone".to_owned()), ..alone.clone() });
    ensure_ill(joined, "csi-two")?;

    // A driver that does not let go keeps no pod back, and the volume in use until it does, also under another agent.
    driver.say(DriverInfo { refuses_unstage: Some("still busy".to_owned()), ..alone.clone() });
    delete_pod(joined, "csi-two")?;
    await_pod_gone(&joined.cluster, "csi-two", 60)?;
    ensure!(driver.published().is_empty(), "published at {:?}", driver.published().keys());
    await_in_use(joined, UNIQUE, true)?;
    joined.nodes[0].kill_agent()?;
    driver.say(alone);
    restart(joined)?;
    driver.await_staged(30, |all| all.now.is_empty())?;
    await_in_use(joined, UNIQUE, false)?;
    let client = joined.cluster.client();
    client.wait::<VolumeAttachment, _>(&client.all(), 60, "the attachment to go", |all| {
        (!all.contains_key(&attachment)).then_some(())
    })?;
    let stages = root.join(format!("var/lib/kubelet/plugins/kubernetes.io/csi/{DRIVER}"));
    ensure!(is_empty(&stages)?, "{} is not empty", stages.display());
    ensure!(driver.staged().wrong.is_empty(), "the node asked for {:?}", driver.staged().wrong);
    drop(driver);
    await_drivers(joined, &json!([]))?;
    unattached(joined, &handle, &root)?;
    let log = fs::read_to_string(joined.nodes[0].logs().join("agent.log"))?;
    ensure!(!log.contains("csi-stage\"") && !log.contains("password"), "a Secret is in the agent's log");
    clean(joined)
}

/// A driver without attachment and without staging: the node waits for neither.
fn unattached(joined: &mut Joined, handle: &tokio::runtime::Handle, root: &Path) -> Result<()> {
    const PLAIN: &str = "plain.e2e.example";
    let client = joined.cluster.client();
    let spec = json!({"metadata": {"name": PLAIN}, "spec": {"attachRequired": false}});
    client.create::<CSIDriver>(&client.all(), spec)?;
    put_volume(
        &joined.cluster,
        "plain",
        &json!({"csi": {"driver": PLAIN, "volumeHandle": "vol-2"}}),
        "ReadWriteOncePod",
    )?;
    put_claim(&joined.cluster, "plain", "ReadWriteOncePod")?;
    create(&joined.cluster, pod("csi-plain", STAYS, "plain", false))?;
    let words =
        "attacher.MountDevice failed to create newCsiDriverClient: driver name plain.e2e.example not found";
    await_told(joined, "csi-plain", words)?;
    let mut plain = says(PLAIN);
    plain.topology.clear();
    let driver = CsiDriver::start(handle, root, plain)?;
    let made = await_pod_ready(&joined.cluster, "csi-plain", 60)?;
    let published = driver.published();
    let asked = published.get(&target(&uid(&made)?, "plain")).context("not published for the pod")?;
    ensure!(asked.staging_target_path.is_empty() && asked.publish_context.is_empty(), "{asked:?}");
    create(&joined.cluster, pod("csi-too", STAYS, "plain", false))?;
    let words = "MountVolume.SetUp failed for volume \"pv-plain\" : volume uses the ReadWriteOncePod access mode and is \
                 already in use by another pod";
    await_told(joined, "csi-too", words)?;
    let client = joined.cluster.client();
    let node = client.get::<Node>(&client.all(), "first")?.context("no Node")?;
    ensure!(in_use(&node).is_empty(), "in use: {:?}", in_use(&node));
    for name in ["csi-too", "csi-plain"] {
        delete_pod(joined, name)?;
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    ensure!(driver.published().is_empty(), "published at {:?}", driver.published().keys());
    drop(driver);
    await_drivers(joined, &json!([]))?;
    let client = joined.cluster.client();
    client.delete::<CSIDriver>(&client.all(), PLAIN, None)
}

fn clean(joined: &Joined) -> Result<()> {
    let client = joined.cluster.client();
    for name in ["csi", "plain"] {
        client.delete::<PersistentVolumeClaim>(&client.of("default"), name, None)?;
        client.delete::<PersistentVolume>(&client.all(), &format!("pv-{name}"), None)?;
    }
    for name in ["csi-stage", "csi-publish"] {
        client.delete::<Secret>(&client.of("default"), name, None)?;
    }
    client.delete::<CSIDriver>(&client.all(), DRIVER, None)?;
    joined.cluster.ensure_nothing_forbidden()
}
