//! Persistent volumes of pods in a cluster: claims that are bound late, directories of the node that survive their pods
//! and a kill of the agent, ephemeral claims of a pod, volumes of another node.
//!
//! Cases: `volumes/claims`, `volumes/claims-refused`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, container, last_words, uid,
};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use serde_json::{Value, json};

use crate::cases::volumes::files::mounts;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "volumes/claims",
        30,
        "a claim is waited for; a directory of the node is mounted for its pods, keeps what they wrote, and stays mounted while the agent is dead",
        claims,
    ),
    HERE.case(
        "volumes/claims-refused",
        30,
        "volumes of another node, of a missing directory, of one pod alone, and of kinds that are not there are told in upstream's words",
        refused,
    ),
];

/// Directory of these cases' volumes in the node.
pub(crate) const DISKS: &str = "/var/lib/e2e-disks";

/// Makes a directory on the node `first`, and answers where the host sees it.
fn disk(joined: &Joined, name: &str) -> Result<PathBuf> {
    let path = joined.nodes[0].inside(&format!("{DISKS}/{name}"));
    fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
    Ok(path)
}

pub(crate) fn local(name: &str) -> Value {
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["first"]}]}]);
    json!({"local": {"path": format!("{DISKS}/{name}")},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}})
}

/// Makes a volume for the claim `name`.
pub(crate) fn put_volume(cluster: &Cluster, name: &str, source: &Value, mode: &str) -> Result<()> {
    let mut spec = json!({"capacity": {"storage": "1Mi"}, "accessModes": [mode], "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "default", "name": name}});
    for (key, value) in source.as_object().context("no source")? {
        spec[key] = value.clone();
    }
    let client = cluster.client();
    client.create::<PersistentVolume>(
        &client.all(),
        json!({"metadata": {"name": format!("pv-{name}")}, "spec": spec}),
    )?;
    Ok(())
}

fn claim_spec(name: &str, mode: &str) -> Value {
    json!({"accessModes": [mode], "storageClassName": "", "volumeName": format!("pv-{name}"),
        "resources": {"requests": {"storage": "1Mi"}}})
}

pub(crate) fn put_claim(cluster: &Cluster, name: &str, mode: &str) -> Result<()> {
    let client = cluster.client();
    let claim = json!({"metadata": {"name": name}, "spec": claim_spec(name, mode)});
    client.create::<PersistentVolumeClaim>(&client.of("default"), claim)?;
    Ok(())
}

/// A pod on the node `first`, without the scheduler, with the claim at `/d`.
pub(crate) fn pod(name: &str, script: &str, claim: &str, read_only: bool) -> Value {
    let mut pod = api_pod(name, "first", script, 1);
    pod["spec"]["nodeName"] = json!("first");
    pod["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}]);
    pod["spec"]["containers"][0] = container(script);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/d"}]);
    pod
}

pub(crate) fn create(cluster: &Cluster, pod: Value) -> Result<()> {
    let client = cluster.client();
    client.create::<Pod>(&client.of("default"), pod).map(drop)
}

pub(crate) fn await_told(joined: &Joined, about: &str, words: &str) -> Result<()> {
    let client = joined.cluster.client();
    client.wait::<Event, _>(&client.of("default"), 60, &format!("the words {words:?} about {about}"), |all| {
        let said = |e: &&Event| {
            e.reason.as_deref() == Some("FailedMount")
                && e.involved_object.name.as_deref() == Some(about)
                && e.message.as_deref().is_some_and(|m| m.contains(words))
        };
        all.values().find(said).map(|_| ())
    })
}

pub(crate) fn words_of(joined: &Joined, name: &str) -> Result<String> {
    let client = joined.cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, &format!("{name} to end"), |all| {
        last_words(all.get(name)?, "c")
    })
}

pub(crate) fn remove(joined: &Joined, pods: &[&str], claims: &[&str]) -> Result<()> {
    let client = joined.cluster.client();
    for name in pods {
        client.delete::<Pod>(&client.of("default"), name, None)?;
    }
    for name in pods {
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    for name in claims {
        client.delete::<PersistentVolumeClaim>(&client.of("default"), name, None)?;
        client.delete::<PersistentVolume>(&client.all(), &format!("pv-{name}"), None)?;
    }
    let left = mounts(joined.nodes.first().context("no node")?)?;
    let left: Vec<_> = left.iter().filter(|m| m.contains("/pv-")).collect();
    ensure!(left.is_empty(), "left {left:?}");
    joined.cluster.ensure_nothing_forbidden()
}

fn claims(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let on_disk = disk(joined, "data")?;
    // The claim is there before its volume: the pod waits.
    put_claim(&joined.cluster, "data", "ReadWriteOnce")?;
    let mut keeps = pod("keeps", &format!("echo written > /d/f && {STAYS}"), "data", false);
    keeps["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 2000});
    keeps["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-s", "/d/f"]}, "periodSeconds": 1});
    create(&joined.cluster, keeps)?;
    await_told(joined, "keeps", "Unable to attach or mount volumes: unmounted volumes=[data")?;
    await_told(joined, "keeps", "error processing PVC default/data: PVC is not bound")?;
    put_volume(&joined.cluster, "data", &local("data"), "ReadWriteOnce")?;
    let before = await_pod_ready(&joined.cluster, "keeps", 60)?;
    let found = fs::metadata(on_disk.join("f")).context("what the pod wrote")?;
    ensure!((found.uid(), found.gid()) == (1000, 2000), "written by {}:{}", found.uid(), found.gid());
    let uid = uid(&before)?;
    let place = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~local-volume/pv-data");
    let count = |joined: &Joined| -> Result<usize> {
        Ok(mounts(&joined.nodes[0])?.iter().filter(|m| **m == place).count())
    };
    ensure!(count(joined)? == 1, "{place} is mounted {} times", count(joined)?);

    // A killed agent keeps no state in memory, and the next agent finds the mounts.
    joined.nodes[0].kill_agent()?;
    create(&joined.cluster, {
        let mut reads = pod(
            "reads",
            "cat /d/f > /dev/termination-log; touch /d/new || echo refused >> /dev/termination-log",
            "data",
            true,
        );
        reads["spec"]["restartPolicy"] = json!("Never");
        reads
    })?;
    start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
    let seen = words_of(joined, "reads")?;
    ensure!(seen == "written\nrefused\n", "{seen}");
    let after = await_pod_ready(&joined.cluster, "keeps", 60)?;
    let instance = |pod: &Pod| {
        let status = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref()?.first().cloned());
        status.map(|s| (s.container_id, s.restart_count))
    };
    ensure!(instance(&before) == instance(&after), "{:?} became {:?}", instance(&before), instance(&after));
    ensure!(count(joined)? == 1, "{place} is mounted {} times", count(joined)?);

    // An ephemeral claim, of a directory by its path; it is deleted with the pod.
    let own = disk(joined, "own")?;
    let path = json!({"hostPath": {"path": format!("{DISKS}/own"), "type": "Directory"}});
    put_volume(&joined.cluster, "owner-data", &path, "ReadWriteOnce")?;
    let mut owner = pod("owner", "echo mine > /d/f; echo ended > /dev/termination-log", "", false);
    owner["spec"]["restartPolicy"] = json!("Never");
    owner["spec"]["volumes"] = json!([{"name": "data",
        "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec("owner-data", "ReadWriteOnce")}}}]);
    create(&joined.cluster, owner)?;
    ensure!(words_of(joined, "owner")? == "ended\n", "the pod with a claim of its own");
    ensure!(fs::read_to_string(own.join("f")).context("what it wrote")? == "mine\n", "not on the disk");

    // A pod that is deleted while the agent is dead leaves no mount, and its data stay.
    joined.nodes[0].kill_agent()?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "keeps", None)?;
    start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
    await_pod_gone(&joined.cluster, "keeps", 60)?;
    ensure!(count(joined)? == 0, "{place} is still mounted");
    ensure!(fs::read_to_string(on_disk.join("f"))? == "written\n", "what the pod wrote is lost");
    remove(joined, &["reads", "owner"], &["data"])?;
    let client = joined.cluster.client();
    client.wait::<PersistentVolumeClaim, _>(
        &client.of("default"),
        60,
        "the pod's own claim to go",
        |all| (!all.contains_key("owner-data")).then_some(()),
    )?;
    client.delete::<PersistentVolume>(&client.all(), "pv-owner-data", None)
}

fn refused(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    disk(joined, "alone")?;
    let mut elsewhere = local("alone");
    elsewhere["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] =
        json!(["second"]);
    let rbd = json!({"rbd": {"monitors": ["192.0.2.1"], "image": "x"}});
    let nfs = json!({"nfs": {"server": "server with blanks", "path": "/"}});
    let volumes = [
        ("alone", local("alone"), "ReadWriteOncePod"),
        ("elsewhere", elsewhere, "ReadWriteOnce"),
        ("absent", local("absent"), "ReadWriteOnce"),
        ("far", rbd, "ReadWriteOnce"),
        ("unknown", nfs, "ReadWriteMany"),
    ];
    for (name, source, mode) in &volumes {
        put_volume(&joined.cluster, name, source, mode)?;
        put_claim(&joined.cluster, name, mode)?;
    }
    create(&joined.cluster, pod("alone", STAYS, "alone", false))?;
    await_pod_ready(&joined.cluster, "alone", 60)?;
    let absent =
        format!("MountVolume.SetUp failed for volume \"pv-absent\" : path \"{DISKS}/absent\" does not exist");
    let table = [
        (
            "elsewhere",
            "elsewhere",
            "MountVolume.NodeAffinity check failed for volume \"pv-elsewhere\" : no matching NodeSelectorTerms",
        ),
        ("absent", "absent", absent.as_str()),
        ("far", "far", "no volume plugin matched"),
        ("unknown", "unknown", "MountVolume.SetUp failed for volume \"pv-unknown\" : "),
        (
            "missing",
            "missing",
            "failed to fetch PVC from API server: persistentvolumeclaims \"missing\" not found",
        ),
        (
            "too",
            "alone",
            "MountVolume.SetUp failed for volume \"pv-alone\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod",
        ),
    ];
    for (name, claim, _) in table {
        create(&joined.cluster, pod(name, STAYS, claim, false))?;
    }
    for (name, _, words) in table {
        await_told(joined, name, words)?;
    }
    // A missing directory is found as soon as it exists.
    disk(joined, "absent")?;
    await_pod_ready(&joined.cluster, "absent", 30)?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "alone", None)?;
    await_pod_gone(&joined.cluster, "alone", 60)?;
    await_pod_ready(&joined.cluster, "too", 30)?;
    let pods: Vec<&str> = table.iter().map(|(name, ..)| *name).collect();
    let claims: Vec<&str> = volumes.iter().map(|(name, ..)| *name).collect();
    remove(joined, &pods, &claims)
}
