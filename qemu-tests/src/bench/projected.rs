//! `bench projected`: many pods with projected volumes, and objects that change under them; the agent's node, then the
//! upstream kubelet's.
//!
//! ```text
//! 5 ConfigMaps, 5 Secrets ─► 200 pods × 5 projected volumes ─► a quiet minute ─► an object changes ─► 200 files
//!                                                             └► one ConfigMap changes 20 times a second (`--rate 20`)
//! ```
//! Out: the time until all pods run, the API server's watches of their objects, processor time, and the times at which
//! the first, the middle and the last pod have the new content; with a rate, the time from a change to a pod that has it or a
//! later one.

mod changes;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use orlop_harness::cluster::client::ClusterClient;
use orlop_harness::cluster::fixture::{STAYS, await_ready, container};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::native::node::NativeNode;
use orlop_harness::run::Run;
use orlop_harness::say;
use serde_json::{Value, json};

use super::peer::await_available;
use super::scrape::{Kubelet, MeasuredNode, SETTLE, minute, natively};

/// Options of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Pods on the node.
    #[arg(long, default_value_t = 200)]
    pub pods: u32,
    /// Number of changes of an object.
    #[arg(long, default_value_t = 3)]
    pub changes: u32,
    /// Changes of one ConfigMap a second, in place of single changes.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rate: Option<u32>,
    /// For so many seconds.
    #[arg(long, default_value_t = 60, requires = "rate", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Only this one.
    #[arg(long, value_enum)]
    pub only: Option<Kubelet>,
}

const NODE: &str = "peer";
const NAME: &str = "projects";
/// Projected volumes of each pod, each with a ConfigMap, a Secret and the pod's own name.
const VOLUMES: u32 = 5;
/// Between two looks at the files.
const LOOK: Duration = Duration::from_millis(100);
/// Upstream's bound: a pod syncs after `syncFrequency` (1 m) plus up to half of it
/// (`workerResyncIntervalJitterFactor` of pkg/kubelet/pod_workers.go).
const BOUND: Duration = Duration::from_secs(90);

/// Measures both, the agent first.
///
/// # Errors
/// If a node does not become Ready, or its pods do not get the new content.
pub fn run(run: &Arc<Run>, of: &Options) -> Result<()> {
    let artefacts = run.dir().join("bench-projected");
    natively(run, &artefacts, of.only, |artefacts, kubelet| one(run, artefacts, kubelet, of))?;
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

fn one(run: &Arc<Run>, artefacts: &Path, (name, program): (&str, PathBuf), of: &Options) -> Result<()> {
    say::line(format!("== {name}, {} pods with {VOLUMES} projected volumes each ==", of.pods));
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let mut node = cluster.start_node(artefacts, NODE, program)?;
    start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(&cluster, NODE, 120)?;
    let client = cluster.client();
    for n in 0..VOLUMES {
        let (map, secret) = objects(n);
        client.create::<ConfigMap>(&client.of("default"), map)?;
        client.create::<Secret>(&client.of("default"), secret)?;
    }
    let (watched, before, start) = (watches(client)?, node.spent()?, Instant::now());
    client.create::<Deployment>(&client.of("default"), deployment(of.pods))?;
    await_available(client, NAME, of.pods)?;
    let took = start.elapsed().as_secs_f64();
    say::line(format!("from create to available {took:.1} s, {}", processor(before, node.spent()?)));
    let [maps, secrets] = watches(client)?;
    say::line(format!(
        "watches for them: ConfigMaps {}, Secrets {}",
        maps - watched[0],
        secrets - watched[1]
    ));

    node.pass(SETTLE)?;
    let quiet = minute(&mut node, |node, rest| node.pass(rest))?;
    say::line(format!("a minute in which nothing changes: {}", processor([0.0; 2], quiet)));

    let uids = uids(client)?;
    ensure!(uids.len() == of.pods as usize, "{} pods are there", uids.len());
    if let Some(rate) = of.rate {
        return changes::run(client, &mut node, &uids, rate, of.seconds);
    }
    for round in 0..of.changes {
        let (volume, value) = (round % VOLUMES, format!("changed-{round}"));
        let before = node.spent()?;
        // In turns: ConfigMaps and Secrets take different ways.
        let key = if round % 2 == 0 { "text" } else { "password" };
        change(client, key, volume, &value)?;
        let arrived = arrive(&mut node, &uids, &format!("v{volume}/{key}"), &value)?;
        let at = |n: usize| arrived.get(n).copied().unwrap_or_default().as_secs_f64();
        let (first, middle, last) = (at(0), at(arrived.len() / 2), at(arrived.len() - 1));
        say::line(format!(
            "a change of {key}: first pod after {first:.1} s, half of them {middle:.1} s, last {last:.1} s; {}",
            processor(before, node.spent()?)
        ));
        // Wait for the rest of the bound, so that every round begins at rest.
        node.pass(Duration::from_secs(10))?;
    }
    Ok(())
}

fn objects(n: u32) -> (Value, Value) {
    let metadata = json!({"name": format!("o{n}")});
    let map = json!({"metadata": metadata, "data": {"text": "first", "beside": "x".repeat(1000)}});
    (map, json!({"metadata": metadata, "stringData": {"password": "first"}}))
}

fn deployment(pods: u32) -> Value {
    let labels = json!({"app": NAME});
    let volume = |n: u32| {
        let name = format!("o{n}");
        let own = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
        json!({"name": format!("v{n}"), "projected": {"sources": [{"configMap": {"name": name}},
            {"secret": {"name": name}}, {"downwardAPI": {"items": own}}]}})
    };
    let mut container = container(STAYS);
    container["volumeMounts"] =
        (0..VOLUMES).map(|n| json!({"name": format!("v{n}"), "mountPath": format!("/v{n}")})).collect();
    let volumes: Vec<Value> = (0..VOLUMES).map(volume).collect();
    json!({"metadata": {"name": NAME}, "spec": {"replicas": pods, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes}}}})
}

fn change(client: &ClusterClient, key: &str, n: u32, value: &str) -> Result<()> {
    let name = format!("o{n}");
    if key == "text" {
        client.merge::<ConfigMap>(&client.of("default"), &name, &json!({"data": {key: value}}))?;
    } else {
        let value = ByteString(value.as_bytes().to_vec());
        client.merge::<Secret>(&client.of("default"), &name, &json!({"data": {key: value}}))?;
    }
    Ok(())
}

fn uids(client: &ClusterClient) -> Result<Vec<String>> {
    client.wait::<Pod, _>(&client.of("default"), 30, "the pods", |all| {
        Some(all.values().filter_map(|pod| pod.metadata.uid.clone()).collect())
    })
}

/// A file of each pod's volumes, as the node has it.
fn files(node: &NativeNode, uids: &[String], file: &str) -> Vec<PathBuf> {
    let root = PathBuf::from(format!("/proc/{}/root/var/lib/kubelet/pods", node.pid()));
    let path = |uid: &String| root.join(uid).join("volumes/kubernetes.io~projected").join(file);
    uids.iter().map(path).collect()
}

/// When each pod's file has the value, as the node has it, sorted.
fn arrive(node: &mut NativeNode, uids: &[String], file: &str, value: &str) -> Result<Vec<Duration>> {
    let mut missing = files(node, uids, file);
    let (start, mut arrived) = (Instant::now(), Vec::new());
    while !missing.is_empty() {
        let before = missing.len();
        missing.retain(|path| fs::read_to_string(path).map_or(true, |text| text != value));
        arrived.extend(std::iter::repeat_n(start.elapsed(), before - missing.len()));
        let waited = start.elapsed();
        ensure!(waited < 2 * BOUND, "{} files are not changed after {waited:?}", missing.len());
        node.pass(LOOK)?;
    }
    if arrived.last().is_some_and(|last| *last > BOUND) {
        say::line(format!("  later than the contract's {} s", BOUND.as_secs()));
    }
    Ok(arrived)
}

/// Number of watches of ConfigMaps and of Secrets at the API server, of all clients.
fn watches(client: &ClusterClient) -> Result<[i64; 2]> {
    let text = client.raw("/metrics")?;
    let of = |resource: &str| -> i64 {
        let is = |line: &&str| {
            line.starts_with("apiserver_longrunning_requests{")
                && line.contains("verb=\"WATCH\"")
                && line.contains(&format!("resource=\"{resource}\""))
        };
        let value = |line: &str| line.rsplit(' ').next()?.parse::<i64>().ok();
        text.lines().filter(is).filter_map(value).sum()
    };
    Ok(["configmaps", "secrets"].map(of))
}

fn processor(before: [f64; 2], after: [f64; 2]) -> String {
    let [kubelet, containerd] = [0, 1].map(|n| (after[n] - before[n]) * 1000.0);
    format!("kubelet {kubelet:.0} ms, containerd {containerd:.0} ms")
}
