//! Volumes of in-tree types that CSI drivers have replaced, of PersistentVolumes and in pods: attached, staged and
//! published under the driver's names, over kills of the agent; and types that no kubelet mounts any more.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::csi_driver::{CsiDriver, DriverInfo};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, container, uid,
};
use orlop_proto::csi::v1::volume_capability::AccessType;
use serde_json::{Value, json};

use crate::cases::volumes::claims::{create, put_claim, put_volume};
use crate::cases::volumes::csi::{await_drivers, await_told, says};
use crate::cases::volumes::csi_claims::{
    attach, await_grown, await_in_use, delete_pod, is_to_grow, restart, touch,
};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/csi-migrated",
    30,
    "volumes of in-tree types, in pods and of claims, are their CSI drivers' under upstream's names, over kills of the agent; those of nobody's are told and keep no pod that does not use them",
    migrated,
)];

const EBS: &str = "ebs.csi.aws.com";
const ZONE: &str = "topology.ebs.csi.aws.com/zone";
const AZURE_DISK: &str = "disk.csi.azure.com";
const AZURE_FILE: &str = "file.csi.azure.com";
const SECRET: &str = "azure-storage-account-acc-secret";

/// A pod on the node `first` with these volumes, each at `/<its name>`.
fn pod(name: &str, volumes: &Value) -> Value {
    let mut pod = api_pod(name, "first", STAYS, 1);
    pod["spec"]["nodeName"] = json!("first");
    pod["spec"]["containers"][0] = container(STAYS);
    let names = volumes.as_array().into_iter().flatten().map(|v| v["name"].as_str().unwrap_or_default());
    let mounts: Vec<Value> =
        names.map(|name| json!({"name": name, "mountPath": format!("/{name}")})).collect();
    pod["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
    pod["spec"]["volumes"] = volumes.clone();
    pod
}

fn put_driver(joined: &Joined, name: &str, attach: bool) -> Result<()> {
    let client = joined.cluster.client();
    let spec =
        json!({"metadata": {"name": name}, "spec": {"attachRequired": attach, "podInfoOnMount": true}});
    client.create::<CSIDriver>(&client.all(), spec).map(drop)
}

fn start(joined: &Joined, name: &str, topology: &[(&str, &str)]) -> Result<CsiDriver> {
    let topology = topology.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let handle = joined.cluster.client().handle().clone();
    CsiDriver::start(
        &handle,
        &joined.nodes[0].inside("/"),
        DriverInfo { stages: true, topology, ..says(name) },
    )
}

fn target(pod: &Pod, volume: &str) -> Result<String> {
    let uid = uid(pod)?;
    Ok(format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"))
}

/// The driver's attachments, once there are so many: of the claim's volume first, then of the pod's own.
fn await_attachments(joined: &Joined) -> Result<[String; 2]> {
    let client = joined.cluster.client();
    client.wait::<VolumeAttachment, _>(&client.all(), 60, "two attachments", |all| {
        let mut own = all.iter().filter(|(_, a)| a.spec.attacher == EBS);
        let of = |inline: bool| {
            let is = |a: &VolumeAttachment| a.spec.source.inline_volume_spec.is_some() == inline;
            own.clone().find(|(_, a)| is(a)).map(|(name, _)| name.clone())
        };
        let found = [of(false)?, of(true)?];
        own.next().map(|_| found)
    })
}

/// Checks the driver's publish and stage calls: handle, file system and attributes by target.
fn ensure_published(driver: &CsiDriver, expected: &[(String, &str, &str, Value)]) -> Result<()> {
    let published = driver.published();
    let places: BTreeSet<&String> = published.keys().collect();
    let wanted: BTreeSet<&String> = expected.iter().map(|(target, ..)| target).collect();
    ensure!(places == wanted, "published at {places:?} and not at {wanted:?}");
    let staged = driver.staged();
    ensure!(staged.now.len() == expected.len(), "staged at {:?}", staged.now.keys());
    ensure!(staged.wrong.is_empty(), "the node asked for {:?}", staged.wrong);
    for (target, handle, fs_type, attributes) in expected {
        let asked = &published[target];
        ensure!(asked.volume_id == *handle && !asked.readonly, "{} at {target}", asked.volume_id);
        let Some(AccessType::Mount(mount)) =
            asked.volume_capability.as_ref().and_then(|c| c.access_type.as_ref())
        else {
            anyhow::bail!("published as {:?}", asked.volume_capability)
        };
        ensure!(mount.fs_type == *fs_type, "published as {:?}", mount.fs_type);
        for (key, value) in attributes.as_object().into_iter().flatten() {
            let told = asked.volume_context.get(key).map(String::as_str);
            ensure!(told == value.as_str(), "{target} is published with {key}={told:?} and not {value}");
        }
        let ephemeral = asked.volume_context.get("csi.storage.k8s.io/ephemeral").map(String::as_str);
        ensure!(ephemeral == Some("false"), "{target} is published as ephemeral: {ephemeral:?}");
    }
    Ok(())
}

fn instances(pod: &Pod) -> BTreeMap<String, (Option<String>, i32)> {
    let all = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    all.map(|c| (c.name.clone(), (c.container_id.clone(), c.restart_count))).collect()
}

/// A claim's volume and a pod's own, both of the in-tree type: attached by the cluster, grown, and released.
fn attached(joined: &mut Joined) -> Result<()> {
    let unique = |handle: &str| format!("kubernetes.io/csi/{EBS}^{handle}");
    put_driver(joined, EBS, true)?;
    let zones = json!([{"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["r7"]}]}]);
    let source = json!({"awsElasticBlockStore": {"volumeID": "aws://r7/vol-1", "fsType": "ext4", "partition": 1},
        "nodeAffinity": {"required": {"nodeSelectorTerms": zones}}});
    put_volume(&joined.cluster, "ebs", &source, "ReadWriteOnce")?;
    put_claim(&joined.cluster, "ebs", "ReadWriteOnce")?;
    let volumes = json!([{"name": "claimed", "persistentVolumeClaim": {"claimName": "ebs"}},
        {"name": "own", "awsElasticBlockStore": {"volumeID": "vol-2", "fsType": "xfs", "readOnly": true}}]);
    create(&joined.cluster, pod("ebs", &volumes))?;
    // Before the driver is there the node is in no zone that it knows.
    let words = "MountVolume.NodeAffinity check failed for volume \"pv-ebs\" : no matching NodeSelectorTerms";
    await_told(joined, "ebs", words)?;
    let driver = start(joined, EBS, &[(ZONE, "r7")])?;
    let [of_claim, of_pod] = await_attachments(joined)?;
    await_in_use(joined, &unique("vol-1"), true)?;
    await_in_use(joined, &unique("vol-2"), true)?;
    joined.nodes[0].kill_agent()?;
    restart(joined)?;
    ensure!(driver.staged().times == 0, "staged before it is attached");
    attach(&joined.cluster, &of_claim)?;
    attach(&joined.cluster, &of_pod)?;
    let before = await_pod_ready(&joined.cluster, "ebs", 60)?;
    let expected = [
        (target(&before, "pv-ebs")?, "vol-1", "ext4", json!({"partition": "1"})),
        (target(&before, "ebs.csi.aws.com-vol-2")?, "vol-2", "xfs", json!({"partition": "0"})),
    ];
    ensure_published(&driver, &expected)?;
    is_to_grow(&joined.cluster, "ebs", "2Mi")?;
    touch(&joined.cluster, "ebs", "1")?;
    await_grown(&joined.cluster, "ebs", "2Mi", 30)?;
    let grown: Vec<String> = driver.staged().grown.iter().map(|g| g.volume_id.clone()).collect();
    ensure!(grown == ["vol-1"], "made larger: {grown:?}");
    let metrics = joined.cluster.client().raw("/api/v1/nodes/first/proxy/metrics")?;
    let series = "storage_operation_duration_seconds_count{volume_plugin=\"kubernetes.io/csi\",\
                  operation_name=\"volume_mount\",status=\"success\",migrated=\"true\"} ";
    ensure!(metrics.lines().any(|l| l.starts_with(series)), "/metrics has no line {series:?}");

    // The next agent finds both, and touches neither.
    joined.nodes[0].kill_agent()?;
    restart(joined)?;
    let after = await_pod_ready(&joined.cluster, "ebs", 60)?;
    ensure!(
        instances(&before) == instances(&after),
        "{:?} became {:?}",
        instances(&before),
        instances(&after)
    );
    ensure_published(&driver, &expected)?;
    // The pod is deleted while the agent is dead.
    joined.nodes[0].kill_agent()?;
    delete_pod(joined, "ebs")?;
    restart(joined)?;
    await_pod_gone(&joined.cluster, "ebs", 60)?;
    driver.await_staged(30, |all| all.now.is_empty())?;
    ensure!(driver.published().is_empty(), "published at {:?}", driver.published().keys());
    await_in_use(joined, &unique("vol-1"), false)?;
    await_in_use(joined, &unique("vol-2"), false)?;
    let client = joined.cluster.client();
    client.wait::<VolumeAttachment, _>(&client.all(), 60, "the attachments to go", |all| {
        (!all.contains_key(&of_claim) && !all.contains_key(&of_pod)).then_some(())
    })?;
    ensure!(driver.staged().wrong.is_empty(), "the node asked for {:?}", driver.staged().wrong);
    drop(driver);
    await_drivers(joined, &json!([]))
}

/// A disk whose name is a path, and a share with a Secret of the pod's namespace: neither is attached.
fn unattached(joined: &mut Joined) -> Result<()> {
    const URI: &str = "/subscriptions/s/disk";
    put_driver(joined, AZURE_DISK, false)?;
    put_driver(joined, AZURE_FILE, false)?;
    let client = joined.cluster.client();
    let secret = json!({"metadata": {"name": SECRET}, "stringData": {"azurestorageaccountkey": "key-7"}});
    client.create::<Secret>(&client.of("default"), secret)?;
    let disk = start(joined, AZURE_DISK, &[])?;
    let file = start(joined, AZURE_FILE, &[])?;
    let volumes = json!([
        {"name": "disk", "azureDisk": {"diskName": "disk", "diskURI": URI, "kind": "Managed", "fsType": "ext4"}},
        {"name": "share", "azureFile": {"secretName": SECRET, "shareName": "s"}}]);
    create(&joined.cluster, pod("azure", &volumes))?;
    let made = await_pod_ready(&joined.cluster, "azure", 60)?;
    let attributes = json!({"kind": "Managed", "fstype": "ext4", "cachingmode": "ReadWrite"});
    ensure_published(&disk, &[(target(&made, "~subscriptions~s~disk")?, URI, "ext4", attributes)])?;
    let handle = "#acc#s#share#default";
    ensure_published(&file, &[(target(&made, handle)?, handle, "", json!({"sharename": "s"}))])?;
    let staged = file.staged();
    let (_, asked) = staged.now.first_key_value().context("no share is staged")?;
    let key = asked.secrets.get("azurestorageaccountkey").map(String::as_str);
    ensure!(key == Some("key-7"), "staged without its Secret");
    delete_pod(joined, "azure")?;
    await_pod_gone(&joined.cluster, "azure", 60)?;
    for driver in [&disk, &file] {
        driver.await_staged(30, |all| all.now.is_empty())?;
        ensure!(driver.published().is_empty(), "published at {:?}", driver.published().keys());
        ensure!(driver.staged().wrong.is_empty(), "the node asked for {:?}", driver.staged().wrong);
    }
    drop((disk, file));
    await_drivers(joined, &json!([]))
}

/// An unusable volume is reported; a pod that does not mount it runs.
fn refused(joined: &Joined) -> Result<()> {
    let broken = json!({"awsElasticBlockStore": {"volumeID": "aws://r7/disk-1"}});
    put_volume(&joined.cluster, "broken", &broken, "ReadWriteOnce")?;
    put_claim(&joined.cluster, "broken", "ReadWriteOnce")?;
    let before = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process \
                  volumes=[v]: ";
    let untranslated = "failed to translate in-tree pv to CSI: ";
    let format =
        "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://r7/disk-1)";
    let mut ebs = broken;
    ebs["name"] = json!("v");
    let rbd = json!({"name": "v", "rbd": {"monitors": ["192.0.2.1"], "image": "x"}});
    let shared = json!({"diskName": "d", "diskURI": "https://x.example/d"});
    let table = [
        ("ebs-broken", ebs, format!("{before}{untranslated}{format}")),
        (
            "claim-broken",
            json!({"name": "v", "persistentVolumeClaim": {"claimName": "broken"}}),
            format!("{before}{untranslated}{format}"),
        ),
        (
            "disk-shared",
            json!({"name": "v", "azureDisk": shared}),
            format!("{before}{untranslated}kind(Shared) is not supported in csi migration"),
        ),
        (
            "of-nobody",
            rbd.clone(),
            format!("{before}failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched"),
        ),
        (
            "git",
            json!({"name": "v", "gitRepo": {"repository": "https://git.example/x"}}),
            "MountVolume.SetUp failed for volume \"v\" : git-repo volume plugin has been disabled; if necessary, it may \
             be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`"
                .to_owned(),
        ),
    ];
    for (name, volume, _) in &table {
        create(&joined.cluster, pod(name, &json!([volume])))?;
    }
    let mut unused = pod("unused", &json!([]));
    unused["spec"]["volumes"] = json!([rbd]);
    create(&joined.cluster, unused)?;
    for (name, _, words) in &table {
        await_told(joined, name, words)?;
    }
    await_pod_ready(&joined.cluster, "unused", 60)?;
    let names = table.iter().map(|(name, ..)| *name).chain(["unused"]);
    for name in names.clone() {
        delete_pod(joined, name)?;
    }
    names.into_iter().try_for_each(|name| await_pod_gone(&joined.cluster, name, 60))
}

fn migrated(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    attached(joined)?;
    unattached(joined)?;
    refused(joined)?;
    let client = joined.cluster.client();
    for name in ["ebs", "broken"] {
        client.delete::<PersistentVolumeClaim>(&client.of("default"), name, None)?;
        client.delete::<PersistentVolume>(&client.all(), &format!("pv-{name}"), None)?;
    }
    client.delete::<Secret>(&client.of("default"), SECRET, None)?;
    for name in [EBS, AZURE_DISK, AZURE_FILE] {
        client.delete::<CSIDriver>(&client.all(), name, None)?;
    }
    joined.cluster.ensure_nothing_forbidden()
}
