//! Directories of a real NFS server as volumes of a booted VM, whose kernel is the client: the host needs no client.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{STAYS, await_pod_gone, await_pod_ready, await_ready, last_words, uid};
use orlop_harness::cluster::flags::{ADDRESS, Settings};
use orlop_harness::cluster::nfs_server::{self, EXPORT, NfsServer};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use orlop_harness::native::{images, registry};
use orlop_harness::say;
use serde_json::{Value, json};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "volumes/nfs",
    level: Level::L4v,
    expected_s: 420,
    about: "a VM mounts a real NFS server's directory for a pod and a claim; another agent lets go of a pod's that went meanwhile, and of no other; one that is away is told, one that falls silent is let go of",
    group: None,
    run: nfs,
}];

const VM: &str = "vm";
/// The host of the images' names, and where its mirror listens in the control plane's network.
const HOST: &str = "images.test";
const PORT: u16 = 5002;
/// An address without a host.
const NOBODY: &str = "172.30.0.250";

struct Fixture {
    vm: VmNode,
    server: NfsServer,
    cluster: Cluster,
}

fn boot(cx: &CaseContext<'_>) -> Result<Fixture> {
    let dir = cx.artefacts.join("images");
    images::make_registry(&cx.run, &dir)?;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    registry::serve_in(cluster.pid()?, PORT, &dir)?;
    let server = nfs_server::start(&mut cluster, &cx.artefacts)?;
    fs::write(server.files.join("hello"), "from the server\n").context("write the server's file")?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.mirror(HOST, &format!("http://{ADDRESS}:{PORT}"));
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    Ok(Fixture { vm, server, cluster })
}

fn pod(name: &str, script: &str, volume: Value) -> Value {
    let mut volume = volume;
    volume["name"] = json!("v");
    json!({"metadata": {"name": name}, "spec": {
        "nodeSelector": {LABEL.0: LABEL.1}, "terminationGracePeriodSeconds": 1, "restartPolicy": "Never",
        "volumes": [volume],
        "containers": [{"name": "c", "image": format!("{HOST}/e2e/busybox:1"), "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}})
}

fn of_server(server: &str) -> Value {
    json!({"nfs": {"server": server, "path": EXPORT}})
}

fn create(cluster: &Cluster, pod: Value) -> Result<()> {
    let client = cluster.client();
    client.create::<Pod>(&client.of("default"), pod).map(drop)
}

fn put_claim(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let mut spec = of_server(ADDRESS);
    spec["capacity"] = json!({"storage": "1Mi"});
    spec["accessModes"] = json!(["ReadWriteMany"]);
    spec["storageClassName"] = json!("");
    spec["mountOptions"] = json!(["nfsvers=4.1", "retry=1"]);
    spec["persistentVolumeReclaimPolicy"] = json!("Retain");
    spec["claimRef"] = json!({"namespace": "default", "name": "shared"});
    client.create::<PersistentVolume>(
        &client.all(),
        json!({"metadata": {"name": "pv-shared"}, "spec": spec}),
    )?;
    let claim = json!({"metadata": {"name": "shared"}, "spec": {"accessModes": ["ReadWriteMany"],
        "storageClassName": "", "volumeName": "pv-shared", "resources": {"requests": {"storage": "1Mi"}}}});
    client.create::<PersistentVolumeClaim>(&client.of("default"), claim).map(drop)
}

/// Mounts of NFS servers in the VM.
fn mounts(vm: &mut VmNode) -> Result<Vec<String>> {
    let text = vm.vm()?.shell()?.must("cat /proc/mounts")?;
    Ok(text
        .lines()
        .filter(|line| line.split(' ').nth(2).is_some_and(|k| k.starts_with("nfs")))
        .map(str::to_owned)
        .collect())
}

/// Each pod's containers, and how often they were started again.
fn instances(cluster: &Cluster, names: &[&str]) -> Result<Vec<(String, i32)>> {
    let client = cluster.client();
    let mut all = Vec::new();
    for name in names {
        let pod =
            client.get::<Pod>(&client.of("default"), name)?.with_context(|| format!("no pod {name}"))?;
        let statuses = pod.status.and_then(|s| s.container_statuses).unwrap_or_default();
        all.extend(statuses.into_iter().map(|c| (c.container_id.unwrap_or_default(), c.restart_count)));
    }
    Ok(all)
}

/// A pod is deleted while the agent is dead: the next agent unmounts that pod's volume and does not touch the others'.
fn under_another_agent(cluster: &Cluster, vm: &mut VmNode, claim: Value) -> Result<()> {
    create(cluster, pod("leaves", STAYS, claim))?;
    let uid = uid(&await_pod_ready(cluster, "leaves", 60)?)?;
    let stay = ["own", "stays"];
    let (before, containers) = (mounts(vm)?, instances(cluster, &stay)?);
    vm.while_agent_is_dead(|| {
        let client = cluster.client();
        client.delete::<Pod>(&client.of("default"), "leaves", None).map(drop)
    })?;
    await_pod_gone(cluster, "leaves", 120)?;
    let (of_it, others): (Vec<_>, Vec<_>) = before.into_iter().partition(|mount| mount.contains(&uid));
    let after = mounts(vm)?;
    ensure!(of_it.len() == 1, "the pod had mounted {of_it:?}");
    ensure!(after == others, "{others:?} were to stay, and mounted is {after:?}");
    let now = instances(cluster, &stay)?;
    ensure!(now == containers, "{containers:?} became {now:?}");
    Ok(())
}

fn nfs(cx: &mut CaseContext<'_>) -> Result<()> {
    // Dropped in the reverse order.
    let Fixture { mut cluster, server, mut vm } = boot(cx)?;
    let client = cluster.client();

    // A pod's own, to be written to.
    let script = format!("cat /v/hello > /dev/termination-log; echo written > /v/by-pod; {STAYS}");
    create(&cluster, pod("own", &script, of_server(ADDRESS)))?;
    await_pod_ready(&cluster, "own", 120)?;
    let mut written = String::new();
    for _ in 0..100 {
        // The file exists before it has contents.
        written = fs::read_to_string(server.files.join("by-pod")).unwrap_or_default();
        if !written.is_empty() {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    ensure!(written == "written\n", "of what the pod wrote, the server has {written:?}");

    // A claim's, to be read.
    put_claim(&cluster)?;
    let script =
        "(cat /v/hello /v/by-pod; touch /v/more || echo read only) > /dev/termination-log 2>/dev/null";
    let claim = json!({"persistentVolumeClaim": {"claimName": "shared", "readOnly": true}});
    create(&cluster, pod("reader", script, claim.clone()))?;
    let seen = client.wait::<Pod, _>(&client.of("default"), 120, "the reader to have read", |all| {
        last_words(all.get("reader")?, "c")
    })?;
    ensure!(seen == "from the server\nwritten\nread only\n", "it read {seen:?}");
    create(&cluster, pod("stays", STAYS, claim.clone()))?;
    await_pod_ready(&cluster, "stays", 60)?;
    let found = mounts(&mut vm)?;
    let has = |name: &str, option: &str| {
        found.iter().any(|m| m.contains(&format!("kubernetes.io~nfs/{name} ")) && m.contains(option))
    };
    ensure!(has("v", "vers=4.2") && has("pv-shared", "vers=4.1"), "mounted is {found:?}");

    under_another_agent(&cluster, &mut vm, claim)?;

    // A missing server affects only its own pod, whose event has the reason.
    create(&cluster, pod("away", STAYS, of_server(NOBODY)))?;
    create(&cluster, pod("beside", STAYS, json!({"emptyDir": {}})))?;
    await_pod_ready(&cluster, "beside", 60)?;
    let begins = "MountVolume.SetUp failed for volume \"v\" : mount failed: ";
    let told = client.wait::<Event, _>(
        &client.of("default"),
        240,
        "FailedMount of the server that is away",
        |all| {
            let mut told = all.values().filter(|e| e.involved_object.name.as_deref() == Some("away"));
            told.find_map(|e| e.message.clone().filter(|m| m.starts_with(begins)))
        },
    )?;
    say::line(format!("  {}", told.replace('\n', " | ")));
    ensure!(told.contains(NOBODY), "{told:?}");

    // The volume of a server that no longer answers is unmounted with its open files.
    nfs_server::silence(&mut cluster, true)?;
    let client = cluster.client();
    let names = ["own", "stays", "reader", "away", "beside"];
    for name in names {
        client.delete::<Pod>(&client.of("default"), name, None)?;
    }
    for name in names {
        await_pod_gone(&cluster, name, 300)?;
    }
    let left = mounts(&mut vm)?;
    ensure!(left.is_empty(), "still mounted: {left:?}");
    nfs_server::silence(&mut cluster, false)?;
    ensure!(server.files.join("hello").exists(), "a file of the server is gone");
    cluster.ensure_nothing_forbidden()
}
