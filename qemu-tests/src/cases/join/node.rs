//! Nodes in a cluster: they become Ready, run the pods that are bound to them, and survive the usual events of a
//! cluster.
//!
//! Cases: `join/node-ready`, `join/pod`, `join/pod-delete`, `join/node-labels`, `join/mirror-pod`, `join/deployment`,
//! `join/drain`, `join/agent-stopped`, `join/node-deleted`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_event, await_pod_gone, await_pod_ready, await_ready, container,
};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::ready;
use orlop_harness::native::pods::Pod as StaticPod;
use orlop_harness::say;
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "join/node-ready",
        40,
        "two nodes join with a bootstrap token, are Ready and keep their leases",
        node_ready,
    ),
    HERE.case(
        "join/pod",
        10,
        "a pod made through the API runs on its node and is Ready, with its addresses",
        pod,
    ),
    HERE.case(
        "join/pod-delete",
        30,
        "kubectl delete pod: with its own grace, with another, and by force",
        pod_delete,
    ),
    HERE.case(
        "join/node-labels",
        10,
        "labels that the Node is given later decide about pods at once",
        node_labels,
    ),
    HERE.case(
        "join/mirror-pod",
        20,
        "a static pod has a mirror pod, which comes back when it is deleted",
        mirror_pod,
    ),
    HERE.case("join/deployment", 90, "a Deployment of 20 over two nodes runs and is rolled over", deployment),
    HERE.case("join/drain", 40, "a node is drained and uncordoned with kubectl", drain),
    HERE.case(
        "join/agent-stopped",
        60,
        "a stopped agent: NotReady after the grace, Ready seconds after its start",
        stopped,
    ),
    HERE.case("join/node-deleted", 30, "a node whose object was deleted comes back", node_deleted),
];

fn node_ready(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    for name in ["first", "second"] {
        let node = await_ready(&joined.cluster, name, 10)?;
        let status = node.status.context("a node without a status")?;
        let addresses = status.addresses.unwrap_or_default();
        ensure!(
            addresses.iter().any(|a| a.type_ == "InternalIP" && a.address.starts_with("172.30.0.")),
            "{name}: {addresses:?}"
        );
        for pressure in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
            let has = status.conditions.iter().flatten().find(|c| c.type_ == pressure);
            ensure!(has.is_some_and(|c| c.status == "False"), "{name}: {pressure} is {has:?}");
        }
        let info = status.node_info.context("no nodeInfo")?;
        ensure!(info.kubelet_version.starts_with("v1.36"), "kubelet version {}", info.kubelet_version);
        for resource in ["cpu", "memory", "pods", "ephemeral-storage"] {
            let has = status.allocatable.as_ref().is_some_and(|a| a.contains_key(resource));
            ensure!(has, "{name}: no allocatable {resource}");
        }
    }
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|s| s.renew_time.as_ref().map(|t| t.0));
    let leases = client.of::<Lease>("kube-node-lease");
    let first = client.get(&leases, "first")?.context("no lease")?;
    ensure!(
        first.metadata.owner_references.is_some_and(|o| o[0].kind == "Node"),
        "a lease without its owner"
    );
    let before = renewed(&client.get(&leases, "first")?.context("no lease")?);
    client.wait::<Lease, _>(&leases, 30, "the lease to be renewed", |all| {
        (renewed(all.get("first")?) > before).then_some(())
    })?;
    let wide = joined.cluster.kubectl(&["get", "nodes", "-o", "wide"])?;
    ensure!(wide.lines().filter(|l| l.contains(" Ready ")).count() == 2, "{wide}");
    joined.cluster.ensure_nothing_forbidden()
}

fn pod(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let start = Instant::now();
    let mut one = api_pod("one", "first", STAYS, 1);
    // The cluster's server comes first, so there is no room for the last one.
    one["spec"]["dnsConfig"] = json!({"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]});
    let pod = joined.run_pod(one)?;
    say::line(format!("  from create to Ready {:.1} s", start.elapsed().as_secs_f64()));
    let status = pod.status.context("a pod without a status")?;
    ensure!(status.phase.as_deref() == Some("Running"), "phase {:?}", status.phase);
    ensure!(
        status.pod_ip.as_ref().is_some_and(|ip| ip.starts_with("10.88.10.")),
        "podIP {:?}",
        status.pod_ip
    );
    ensure!(status.host_ip.as_deref() == Some("172.30.0.10"), "hostIP {:?}", status.host_ip);
    ensure!(status.qos_class.as_deref() == Some("BestEffort"), "QoS class {:?}", status.qos_class);
    let containers = status.container_statuses.unwrap_or_default();
    let one = containers.first().context("no container status")?;
    ensure!(one.ready && one.started == Some(true) && one.restart_count == 0, "{one:?}");
    let id = one.container_id.clone().context("no container id")?;
    let running = joined.nodes[0].wait(5, "the container", |v| v.one_running("one"))?;
    ensure!(id == format!("containerd://{running}"), "the status says {id}, the runtime has {running}");
    let odd = await_event(&joined.cluster, "DNSConfigForming", "one", 10)?;
    ensure!(
        odd.message.as_deref().is_some_and(|m| m.ends_with("line is: 10.96.0.10 192.0.2.1 192.0.2.2")),
        "{odd:?}"
    );
    let listed = joined.cluster.kubectl(&["get", "pod", "one", "-o", "wide"])?;
    ensure!(listed.contains("Running") && listed.contains("first"), "{listed}");
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "one", None)?;
    await_pod_gone(&joined.cluster, "one", 30)?;
    joined.nodes[0].wait(30, "nothing left of the pod", |v| v.is_stopped("one").then_some(()))?;
    joined.cluster.ensure_nothing_forbidden()
}

fn node_labels(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let (cluster, client) = (&joined.cluster, joined.cluster.client());
    let picky = |name: &str| {
        let mut pod = api_pod(name, "first", STAYS, 1);
        pod["spec"]["nodeSelector"] = json!({"e2e/disk": "ssd"});
        // Bound at creation: only the node decides.
        pod["spec"]["nodeName"] = json!("first");
        pod
    };
    let refused = |name: &str| {
        client.wait::<Pod, _>(&client.of("default"), 10, &format!("pod {name} to be refused"), |all| {
            let status = all.get(name)?.status.as_ref()?;
            (status.phase.as_deref() == Some("Failed")).then(|| status.reason.clone().unwrap_or_default())
        })
    };
    client.create::<Pod>(&client.of("default"), picky("unlabelled"))?;
    let reason = refused("unlabelled")?;
    ensure!(reason == "NodeAffinity", "refused for {reason}");
    cluster.kubectl(&["label", "node", "first", "e2e/disk=ssd"])?;
    client.create::<Pod>(&client.of("default"), picky("labelled"))?;
    await_pod_ready(cluster, "labelled", 20)?;
    // A running pod goes on when the label is removed.
    cluster.kubectl(&["label", "node", "first", "e2e/disk-"])?;
    let mut names = vec!["unlabelled".to_owned(), "labelled".to_owned()];
    let mut reason = String::new();
    // The node watches its own object and its pods separately: it may still admit the first pods.
    for n in 0..5 {
        let name = format!("late-{n}");
        client.create::<Pod>(&client.of("default"), picky(&name))?;
        reason = client.wait::<Pod, _>(
            &client.of("default"),
            20,
            &format!("{name} to be let in or not"),
            |all| {
                let status = all.get(&name)?.status.as_ref()?;
                let decided = matches!(status.phase.as_deref(), Some("Failed" | "Running"));
                decided.then(|| status.reason.clone().unwrap_or_default())
            },
        )?;
        names.push(name);
        if !reason.is_empty() {
            break;
        }
    }
    ensure!(reason == "NodeAffinity", "refused for {reason:?}");
    await_pod_ready(cluster, "labelled", 1)?;
    for name in &names {
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(cluster, name, 20)?;
    }
    cluster.ensure_nothing_forbidden()
}

fn pod_delete(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let deaf = "trap '' TERM; while :; do sleep 1; done";
    let slow = "trap 'sleep 2; exit 0' TERM; while :; do sleep 3600 & wait; done";
    for (name, script) in [("slow", slow), ("deaf", deaf), ("forced", deaf)] {
        joined.run_pod(api_pod(name, "first", script, 30))?;
    }
    let start = Instant::now();
    joined.cluster.kubectl(&["delete", "pod", "slow"])?;
    let took = start.elapsed();
    ensure!(took >= Duration::from_secs(2) && took < Duration::from_secs(28), "slow ended after {took:?}");
    let start = Instant::now();
    joined.cluster.kubectl(&["delete", "pod", "deaf", "--grace-period=3"])?;
    let took = start.elapsed();
    ensure!(took >= Duration::from_secs(3) && took < Duration::from_secs(28), "deaf ended after {took:?}");
    joined.cluster.kubectl(&["delete", "pod", "forced", "--grace-period=0", "--force"])?;
    await_pod_gone(&joined.cluster, "forced", 5)?;
    for name in ["slow", "deaf", "forced"] {
        joined.nodes[0].wait(40, &format!("{name} to end"), |v| v.is_stopped(name).then_some(()))?;
    }
    joined.cluster.ensure_nothing_forbidden()
}

fn mirror_pod(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let (client, node) = (joined.cluster.client(), &joined.nodes[0]);
    let pod = StaticPod::staying("still");
    node.write_manifest(&pod.file(), &pod.manifest())?;
    let mirror = await_pod_ready(&joined.cluster, "still-first", 60)?;
    let annotations = mirror.metadata.annotations.unwrap_or_default();
    ensure!(annotations.contains_key("kubernetes.io/config.mirror"), "no mirror annotation: {annotations:?}");
    ensure!(
        mirror.metadata.owner_references.is_some_and(|o| o[0].kind == "Node"),
        "a mirror without its node"
    );
    let container = node.wait(10, "the container", |v| v.one_running("still-first"))?;
    node.write_manifest("zz-same-name.yaml", &pod.manifest())?;
    await_event(&joined.cluster, "FailedValidation", "still-first", 30)?;
    node.remove_manifest("zz-same-name.yaml")?;
    let api = client.of::<Pod>("default");
    client.delete(&api, "still-first", Some(0))?;
    let uid = mirror.metadata.uid;
    // The upstream kubelet looks after its mirror pods once in 60 to 90 s.
    client.wait::<Pod, _>(&api, 120, "another mirror pod, Ready", |all| {
        all.get("still-first").filter(|p| p.metadata.uid != uid && ready::pod(p)).map(|_| ())
    })?;
    let after = node.wait(5, "the container", |v| v.one_running("still-first"))?;
    ensure!(after == container, "deleting the mirror pod restarted the static pod");
    node.remove_manifest(&pod.file())?;
    await_pod_gone(&joined.cluster, "still-first", 60)?;
    joined.cluster.ensure_nothing_forbidden()
}

fn deployment(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let api = client.of::<Deployment>("default");
    let labels = json!({"app": "many"});
    client.create(
        &api,
        json!({"metadata": {"name": "many"}, "spec": {"replicas": 20, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "terminationGracePeriodSeconds": 1, "containers": [container(STAYS)]}}}}),
    )?;
    let start = Instant::now();
    let all_available = |d: &Deployment, generation: i64| {
        let status = d.status.as_ref()?;
        let done = status.observed_generation >= Some(generation)
            && status.replicas == Some(20)
            && status.updated_replicas == Some(20)
            && status.available_replicas == Some(20);
        done.then_some(())
    };
    client.wait(&api, 180, "20 pods to be available", |all| all_available(all.get("many")?, 1))?;
    say::line(format!("  20 pods available after {:.1} s", start.elapsed().as_secs_f64()));
    let pods = client.of::<Pod>("default");
    let nodes = client.wait(&pods, 5, "the pods", |all| {
        let of = |n: &str| {
            all.values().filter(|p| p.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(n)).count()
        };
        Some((of("first"), of("second")))
    })?;
    ensure!(nodes.0 > 4 && nodes.1 > 4, "all on one side: {nodes:?}");
    let start = Instant::now();
    joined.cluster.kubectl(&["set", "env", "deployment/many", "ROUND=2"])?;
    client.wait(&api, 240, "20 pods of the second round", |all| all_available(all.get("many")?, 2))?;
    say::line(format!("  rolled over after {:.1} s", start.elapsed().as_secs_f64()));
    client.delete(&api, "many", None)?;
    client.wait::<Pod, _>(&pods, 120, "all pods to be gone", |all| {
        all.keys().all(|n| !n.starts_with("many-")).then_some(())
    })?;
    joined.cluster.ensure_nothing_forbidden()
}

fn drain(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    joined.run_pod(api_pod("loose", "second", STAYS, 1))?;
    joined.cluster.kubectl(&["drain", "second", "--force", "--timeout=60s"])?;
    await_pod_gone(&joined.cluster, "loose", 30)?;
    let client = joined.cluster.client();
    let unschedulable = |all: &std::collections::BTreeMap<String, Node>| {
        all.get("second").and_then(|n| n.spec.as_ref()?.unschedulable).unwrap_or(false)
    };
    client
        .wait(&client.all::<Node>(), 10, "the node to be cordoned", |all| unschedulable(all).then_some(()))?;
    joined.cluster.kubectl(&["uncordon", "second"])?;
    joined.run_pod(api_pod("loose", "second", STAYS, 1))?;
    client.delete::<Pod>(&client.of("default"), "loose", None)?;
    await_pod_gone(&joined.cluster, "loose", 30)
}

fn stopped(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    joined.run_pod(api_pod("lives-on", "second", STAYS, 1))?;
    let before = joined.nodes[1].wait(10, "the pod", |v| v.one_running("lives-on"))?;
    joined.nodes[1].stop_agent()?;
    let start = Instant::now();
    let client = joined.cluster.client();
    client.wait::<Node, _>(&client.all(), 90, "the node to be NotReady", |all| {
        (ready::node_condition(all.get("second")?, "Ready")? == "Unknown").then_some(())
    })?;
    let silent = start.elapsed();
    start_kubelet(&mut joined.nodes[1], JoinMethod::BootstrapKubeconfig)?;
    let start = Instant::now();
    await_ready(&joined.cluster, "second", 60)?;
    say::line(format!(
        "  NotReady after {:.0} s, Ready {:.1} s after the start",
        silent.as_secs_f64(),
        start.elapsed().as_secs_f64()
    ));
    let after = joined.nodes[1].wait(30, "the pod", |v| v.one_running("lives-on"))?;
    ensure!(after == before, "the pod was restarted");
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "lives-on", None)?;
    await_pod_gone(&joined.cluster, "lives-on", 60)?;
    joined.cluster.ensure_nothing_forbidden()
}

fn node_deleted(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let uid = client.get(&client.all::<Node>(), "second")?.and_then(|n| n.metadata.uid);
    client.delete::<Node>(&client.all(), "second", None)?;
    let start = Instant::now();
    client.wait::<Node, _>(&client.all(), 90, "another Node object, Ready", |all| {
        all.get("second").filter(|n| n.metadata.uid != uid && ready::node(n)).map(|_| ())
    })?;
    say::line(format!("  back after {:.1} s", start.elapsed().as_secs_f64()));
    joined.run_pod(api_pod("again", "second", STAYS, 1))?;
    client.delete::<Pod>(&client.of("default"), "again", None)?;
    await_pod_gone(&joined.cluster, "again", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}
