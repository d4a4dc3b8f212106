//! CSI drivers in a cluster: registered by their sockets, published at the API server, removed with the socket; inline
//! volumes.
//!
//! Cases: `volumes/csi-drivers`, `volumes/csi-inline`.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::csi_driver::{CsiDriver, DriverInfo};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, await_ready, uid,
};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/csi-drivers",
        30,
        "CSI drivers are registered, in Node and CSINode, over a kill of the agent; one that hangs or lies keeps nobody back; one that goes is forgotten",
        drivers,
    ),
    HERE.case(
        "volumes/csi-inline",
        30,
        "an inline volume is published with the pod's name, Secret, token and group, waits for its driver, and is unpublished by an agent that did not publish it",
        inline,
    ),
];

const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
const LABEL: &str = "topology.e2e.example/rack";

pub(crate) fn says(name: &str) -> DriverInfo {
    DriverInfo {
        name: name.to_owned(),
        node_id: format!("id-of-{name}"),
        volumes_max: 7,
        topology: [(LABEL.to_owned(), "r7".to_owned())].into(),
        ..DriverInfo::default()
    }
}

/// Waits until the node `first` lists exactly these drivers.
pub(crate) fn await_drivers(joined: &Joined, expected: &Value) -> Result<()> {
    let client = joined.cluster.client();
    client.wait::<CSINode, _>(&client.all(), 30, &format!("the drivers {expected}"), |all| {
        let drivers = serde_json::to_value(&all.get("first")?.spec.drivers).ok()?;
        (drivers == *expected).then_some(())
    })
}

fn node(joined: &Joined) -> Result<Node> {
    let client = joined.cluster.client();
    client.get::<Node>(&client.all(), "first")?.context("no Node first")
}

fn node_ids(joined: &Joined) -> Result<Option<Value>> {
    let annotations = node(joined)?.metadata.annotations.unwrap_or_default();
    annotations.get(NODE_IDS).map(|text| serde_json::from_str(text)).transpose().context("the annotation")
}

fn driver(name: &str, count: i32) -> Value {
    json!({"name": name, "nodeID": format!("id-of-{name}"), "topologyKeys": [LABEL], "allocatable": {"count": count}})
}

fn drivers(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let handle = client.handle().clone();
    // The CSINode exists without any driver, and the Node owns it.
    await_drivers(joined, &json!([]))?;
    let there = client.get::<CSINode>(&client.all(), "first")?.context("no CSINode")?;
    let owner = there.metadata.owner_references.unwrap_or_default();
    let uid = node(joined)?.metadata.uid.unwrap_or_default();
    ensure!(owner.len() == 1 && owner[0].kind == "Node" && owner[0].uid == uid, "it is owned by {owner:?}");

    let root = joined.nodes[0].inside("/");
    let hangs = DriverInfo { hangs: true, ..says("hangs.e2e.example") };
    let _hangs = CsiDriver::start(&handle, &root, hangs)?;
    let first = CsiDriver::start(&handle, &root, says("a.e2e.example"))?;
    first.await_told(30, |told| told.plugin_registered && told.error.is_empty())?;
    await_drivers(joined, &json!([driver("a.e2e.example", 7)]))?;
    ensure!(
        node_ids(joined)? == Some(json!({"a.e2e.example": "id-of-a.e2e.example"})),
        "the Node says {:?}",
        node_ids(joined)?
    );
    let labels = node(joined)?.metadata.labels.unwrap_or_default();
    ensure!(labels.get(LABEL).map(String::as_str) == Some("r7"), "the Node's labels are {labels:?}");

    // A driver with another topology for the node is refused, and notified.
    let mut elsewhere = says("b.e2e.example");
    elsewhere.topology.insert(LABEL.to_owned(), "r8".to_owned());
    let second = CsiDriver::start(&handle, &root, elsewhere)?;
    second.await_told(30, |told| {
        !told.plugin_registered && told.error.contains("detected topology value collision")
    })?;
    // The driver reports another topology, and the node retries without a trigger.
    second.say(says("b.e2e.example"));
    second.await_told(30, |told| told.plugin_registered)?;
    await_drivers(joined, &json!([driver("a.e2e.example", 7), driver("b.e2e.example", 7)]))?;

    // The next agent finds both again, with the changed data of one.
    joined.nodes[0].kill_agent()?;
    first.say(DriverInfo { volumes_max: 9, ..says("a.e2e.example") });
    start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
    await_ready(&joined.cluster, "first", 60)?;
    await_drivers(joined, &json!([driver("b.e2e.example", 7), driver("a.e2e.example", 9)]))?;

    drop(second);
    await_drivers(joined, &json!([driver("a.e2e.example", 9)]))?;
    drop(first);
    await_drivers(joined, &json!([]))?;
    let client = joined.cluster.client();
    client.wait::<Node, _>(&client.all(), 30, "the annotation to go", |all| {
        let annotations = all.get("first")?.metadata.annotations.clone().unwrap_or_default();
        (!annotations.contains_key(NODE_IDS)).then_some(())
    })?;
    joined.cluster.ensure_nothing_forbidden()
}

pub(crate) fn await_told(joined: &Joined, about: &str, words: &str) -> Result<()> {
    await_event(joined, "FailedMount", about, words)
}

pub(crate) fn await_event(joined: &Joined, reason: &str, about: &str, words: &str) -> Result<()> {
    let client = joined.cluster.client();
    let what = format!("{reason} with the words {words:?} about {about}");
    client.wait::<Event, _>(&client.of("default"), 60, &what, |all| {
        let said = |e: &&Event| {
            e.reason.as_deref() == Some(reason)
                && e.involved_object.name.as_deref() == Some(about)
                && e.message.as_deref().is_some_and(|m| m.contains(words))
        };
        all.values().find(said).map(|_| ())
    })
}

fn inline(cx: &mut CaseContext<'_>) -> Result<()> {
    const DRIVER: &str = "inline.e2e.example";
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let handle = client.handle().clone();
    client.create::<CSIDriver>(
        &client.all(),
        json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": false, "podInfoOnMount": true,
            "volumeLifecycleModes": ["Ephemeral"], "fsGroupPolicy": "File",
            "tokenRequests": [{"audience": "csi.e2e.example"}]}}),
    )?;
    client.create::<Secret>(
        &client.of("default"),
        json!({"metadata": {"name": "csi-inline"}, "stringData": {"password": "s3cret"}}),
    )?;
    let mut pod = api_pod("inline", "first", STAYS, 1);
    pod["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 2000});
    pod["spec"]["volumes"] = json!([{"name": "data", "csi": {"driver": DRIVER,
        "volumeAttributes": {"colour": "blue"}, "nodePublishSecretRef": {"name": "csi-inline"}}}]);
    let c = &mut pod["spec"]["containers"][0];
    c["volumeMounts"] = json!([{"name": "data", "mountPath": "/d"}]);
    c["readinessProbe"] = json!({"exec": {"command": ["test", "-w", "/d/f"]}, "periodSeconds": 1});
    let made = client.create::<Pod>(&client.of("default"), pod)?;
    let uid = uid(&made)?;
    await_told(
        joined,
        "inline",
        &format!("driver name {DRIVER} not found in the list of registered CSI drivers"),
    )?;

    let root = joined.nodes[0].inside("/");
    let refuses = Some("not today".to_owned());
    let mut alone = says(DRIVER);
    alone.topology.clear();
    let driver = CsiDriver::start(&handle, &root, DriverInfo { refuses, ..alone.clone() })?;
    await_told(joined, "inline", "rpc error: code = Internal desc = not today")?;
    driver.say(alone);
    let before = await_pod_ready(&joined.cluster, "inline", 60)?;
    let target = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/data/mount");
    let asked =
        driver.published().remove(&target).with_context(|| format!("nothing is published at {target}"))?;
    let context = |key: &str| asked.volume_context.get(key).cloned().unwrap_or_default();
    ensure!(
        context("colour") == "blue"
            && context("csi.storage.k8s.io/pod.name") == "inline"
            && context("csi.storage.k8s.io/pod.uid") == uid
            && context("csi.storage.k8s.io/ephemeral") == "true",
        "the driver was told {:?}",
        asked.volume_context
    );
    let tokens: Value = serde_json::from_str(&context("csi.storage.k8s.io/serviceAccount.tokens"))?;
    let token = &tokens["csi.e2e.example"];
    ensure!(token["token"].as_str().is_some_and(|t| t.split('.').count() == 3), "no token for it");
    ensure!(token["expirationTimestamp"].is_string(), "a token without an end");
    ensure!(asked.secrets.get("password").map(String::as_str) == Some("s3cret"), "no Secret");
    let on_disk = joined.nodes[0].inside(&target);
    let group = fs::metadata(on_disk.join("f")).context("what the driver made")?.gid();
    ensure!(group == 2000, "it is group {group}'s");
    let log = fs::read_to_string(joined.nodes[0].logs().join("agent.log"))?;
    ensure!(!log.contains("s3cret"), "the Secret is in the agent's log");

    // An agent that is killed keeps the pod's volume; one that was dead when the pod was deleted unpublishes it.
    joined.nodes[0].kill_agent()?;
    start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
    await_ready(&joined.cluster, "first", 60)?;
    let after = await_pod_ready(&joined.cluster, "inline", 30)?;
    let instance = |pod: &Pod| {
        let status = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref()?.first().cloned());
        status.map(|s| (s.container_id, s.restart_count))
    };
    ensure!(instance(&before) == instance(&after), "{:?} became {:?}", instance(&before), instance(&after));
    joined.nodes[0].kill_agent()?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "inline", None)?;
    start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
    await_pod_gone(&joined.cluster, "inline", 60)?;
    ensure!(driver.published().is_empty(), "still published: {:?}", driver.published().keys());
    ensure!(!on_disk.exists(), "{} is still there", on_disk.display());
    drop(driver);
    await_drivers(joined, &json!([]))?;
    let client = joined.cluster.client();
    client.delete::<CSIDriver>(&client.all(), DRIVER, None)?;
    client.delete::<Secret>(&client.of("default"), "csi-inline", None)?;
    joined.cluster.ensure_nothing_forbidden()
}
