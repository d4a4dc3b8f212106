//! `bench rollover`: Deployments that are rolled over again and again under requests to their Services, while kubelet
//! and containerd are killed. First the agent, then the upstream kubelet, with the same schedule of kills.
//!
//! ```text
//! Deployments, Services ─► requests to each Service at a steady rate, from the node's network
//!                       ─► a new pod template for one Deployment after the other
//!                       ─► SIGKILL of the kubelet, then of containerd, and so on
//! ```
//! Out: requests sent and lost, with the fault of each and the kill before it; the longest time in which a Service did
//! not answer; at the end a table with a row for each kubelet. Invariant: the Deployments are as careful users write them
//! (no pod less, a readiness probe, a pause before the end, a server that ends in order), so that a lost request is a
//! defect of the node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use orlop_harness::cluster::addons::{AddOns, NodeKind, ProxyMode};
use orlop_harness::cluster::client::ClusterClient;
use orlop_harness::cluster::fixture::{await_ready, container};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::programs::{self, More};
use orlop_harness::cluster::requests::await_answer;
use orlop_harness::cluster::requests::steady::{Pace, ServiceReport, SteadyLoad, describe};
use orlop_harness::native::node::NativeNode;
use orlop_harness::run::Run;
use orlop_harness::say;
use serde_json::{Value, json};

use self::table::Figures;
use super::scrape::{Kubelet, natively};

mod table;

/// Options of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Deployments, each with two pods and a Service.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=80))]
    pub deployments: u32,
    /// Minutes of rollovers.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub minutes: u64,
    /// Deployments that are rolled over at once.
    #[arg(long, default_value_t = 3)]
    pub at_once: usize,
    /// Requests a second to each Service.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rate: u32,
    /// Seconds from one kill to the next one; 0: no kills.
    #[arg(long, default_value_t = 15)]
    pub kill_every: u64,
    /// Only this one.
    #[arg(long, value_enum)]
    pub only: Option<Kubelet>,
}

const NODE: &str = "peer";
/// Pods of a Deployment.
const REPLICAS: i32 = 2;
const PORT: u16 = 8080;
/// Pause before a pod's end, seconds: until then kube-proxy knows that the pod ends.
const DRAIN_S: u32 = 10;
/// A server that serves until SIGTERM, and then ends the requests that it has.
const SERVES: &str = "mkdir /tmp/www; hostname > /tmp/www/index.html; httpd -f -p 8080 -h /tmp/www & server=$!; \
                      trap 'kill $server; sleep 1; exit 0' TERM; wait $server";
/// Limit of connecting and of answering.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at the Deployments.
const LOOK: Duration = Duration::from_millis(500);
/// Limit for the add-ons, and for all Deployments, to be available, seconds.
const AVAILABLE_LIMIT_S: u64 = 600;
/// Limit of the last rollovers after the last kill.
const REST: Duration = Duration::from_secs(300);
/// Lost requests that are printed one by one.
const SHOWN: usize = 20;

/// The killed program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Kubelet,
    Containerd,
}

impl Victim {
    fn name(self) -> &'static str {
        match self {
            Victim::Kubelet => "the kubelet",
            Victim::Containerd => "containerd",
        }
    }

    /// They take turns, the kubelet first.
    fn nth(n: usize) -> Victim {
        if n.is_multiple_of(2) { Victim::Kubelet } else { Victim::Containerd }
    }
}

/// A kill, at a time since the load began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeKill {
    at: Duration,
    victim: Victim,
}

/// What happened under the load.
struct RolloverCourse {
    /// Rollovers that were completed.
    rollovers: usize,
    kills: Vec<NodeKill>,
}

/// Measures both, the agent first.
///
/// # Errors
/// If a node does not become Ready, its pods do not run, or a rollover does not end.
pub fn run(run: &Arc<Run>, of: &Options) -> Result<()> {
    programs::prepare(run, &[More::AddOns])?;
    let artefacts = run.dir().join("bench-rollover");
    let mut rows = Vec::new();
    natively(run, &artefacts, of.only, |artefacts, kubelet| {
        rows.push(one(run, artefacts, kubelet, of)?);
        Ok(())
    })?;
    say::line(table::render(&rows).trim_end());
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

fn one(run: &Arc<Run>, artefacts: &Path, (name, program): (&str, PathBuf), of: &Options) -> Result<Figures> {
    say::line(format!("== {name}, {} Deployments of {REPLICAS} pods, {} min ==", of.deployments, of.minutes));
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let mut node = cluster.start_node(artefacts, NODE, program)?;
    start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(&cluster, NODE, 120)?;
    let addons = AddOns::make(&cluster, ProxyMode::Iptables, NodeKind::Native)?;
    addons.offer(&node)?;
    addons.install(&cluster, 1, AVAILABLE_LIMIT_S)?;
    let (services, available) = deploy(cluster.client(), of.deployments)?;
    for (name, at) in &services {
        await_answer(node.pid(), *at, Duration::from_secs(60)).with_context(|| name.clone())?;
    }
    let pace = Pace { period: Duration::from_secs(1) / of.rate, limit: REQUEST_LIMIT };
    let load = SteadyLoad::start(node.pid(), services, pace)?;
    let course = roll_over(cluster.client(), &mut node, &load, of)?;
    let took = load.elapsed();
    let reports = load.finish()?;
    say::line(describe(&reports));
    lost_lines(&reports, &course.kills).iter().for_each(say::line);
    let of_kubelet = course.kills.iter().filter(|kill| kill.victim == Victim::Kubelet).count();
    say::line(format!(
        "{} rollovers in {:.0} s; kills: {of_kubelet} of the kubelet, {} of containerd",
        course.rollovers,
        took.as_secs_f64(),
        course.kills.len() - of_kubelet
    ));
    Ok(Figures::of(name, available, (course.rollovers, course.kills.len()), &reports))
}

/// Makes all Deployments with their Services and waits until they are available; returns the Services' addresses, and the
/// time that the pods took.
fn deploy(client: &ClusterClient, number: u32) -> Result<(Vec<(String, SocketAddr)>, Duration)> {
    let start = Instant::now();
    let mut services = Vec::new();
    for n in 0..number {
        let name = format!("web{n:02}");
        client.create::<Deployment>(&client.of("default"), deployment(&name))?;
        let made = client.create::<Service>(
            &client.of("default"),
            json!({"metadata": {"name": name}, "spec": {
                "selector": {"app": name}, "ports": [{"port": 80, "targetPort": PORT}],
            }}),
        )?;
        let address = made.spec.and_then(|spec| spec.cluster_ip).context("a Service without an address")?;
        let address: IpAddr = address.parse().with_context(|| format!("the address {address:?}"))?;
        services.push((name, SocketAddr::from((address, 80))));
    }
    let number = usize::try_from(number)?;
    client.wait::<Deployment, _>(
        &client.of("default"),
        AVAILABLE_LIMIT_S,
        "all Deployments to be available",
        |all| (all.len() == number && all.values().all(is_rolled)).then_some(()),
    )?;
    let took = start.elapsed();
    say::line(format!("all available after {:.1} s", took.as_secs_f64()));
    Ok((services, took))
}

fn deployment(name: &str) -> Value {
    let labels = json!({"app": name});
    let mut server = container(SERVES);
    server["readinessProbe"] = json!({"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1});
    server["lifecycle"] = json!({"preStop": {"sleep": {"seconds": DRAIN_S}}});
    json!({"metadata": {"name": name}, "spec": {
        "replicas": REPLICAS,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": labels}, "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 30,
            "containers": [server],
        }},
    }})
}

/// Rolls over and kills until the time is over; then waits for the last rollovers.
fn roll_over(
    client: &ClusterClient,
    node: &mut NativeNode,
    load: &SteadyLoad,
    of: &Options,
) -> Result<RolloverCourse> {
    let (length, every) = (Duration::from_secs(of.minutes * 60), Duration::from_secs(of.kill_every));
    let mut course = RolloverCourse { rollovers: 0, kills: Vec::new() };
    let mut waiting: VecDeque<String> = deployments(client)?.into_keys().collect();
    let mut under_way = BTreeSet::new();
    let mut next_kill = every;
    loop {
        node.pass(LOOK)?;
        let is_over = load.elapsed() >= length;
        if !is_over && !every.is_zero() && load.elapsed() >= next_kill {
            let victim = Victim::nth(course.kills.len());
            course.kills.push(NodeKill { at: load.elapsed(), victim });
            kill(node, victim).with_context(|| format!("kill {}", victim.name()))?;
            next_kill += every;
        }
        let all = deployments(client)?;
        let (ended, still): (BTreeSet<String>, BTreeSet<String>) =
            under_way.into_iter().partition(|name: &String| all.get(name).is_some_and(is_rolled));
        course.rollovers += ended.len();
        waiting.extend(ended);
        under_way = still;
        if is_over && under_way.is_empty() {
            return Ok(course);
        }
        ensure!(load.elapsed() < length + REST, "not rolled over in {} s: {under_way:?}", REST.as_secs());
        while !is_over
            && under_way.len() < of.at_once
            && let Some(name) = waiting.pop_front()
        {
            let number = course.rollovers + under_way.len();
            let annotations = json!({"rollover": number.to_string()});
            let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
            client.merge::<Deployment>(&client.of("default"), &name, &patch)?;
            under_way.insert(name);
        }
    }
}

fn deployments(client: &ClusterClient) -> Result<BTreeMap<String, Deployment>> {
    client.wait::<Deployment, _>(&client.of("default"), 60, "the Deployments", |all| Some(all.clone()))
}

fn kill(node: &mut NativeNode, victim: Victim) -> Result<()> {
    match victim {
        Victim::Kubelet => {
            node.kill_agent()?;
            start_kubelet(node, JoinMethod::BootstrapKubeconfig)
        }
        Victim::Containerd => {
            node.kill_containerd()?;
            node.start_containerd()
        }
    }
}

/// True if all pods are of the present template and available. Pure.
fn is_rolled(deployment: &Deployment) -> bool {
    let Some(status) = &deployment.status else { return false };
    let counts = [status.replicas, status.updated_replicas, status.available_replicas];
    status.observed_generation >= deployment.metadata.generation && counts == [Some(REPLICAS); 3]
}

/// A line for each lost request, in the order of time; the last line counts those that are left out. Pure.
fn lost_lines(reports: &[ServiceReport], kills: &[NodeKill]) -> Vec<String> {
    let of = |report: &ServiceReport| -> Vec<(Duration, String)> {
        let lost = report.lost.iter();
        lost.map(|lost| (lost.at, format!("{} {}", report.name, lost.fault))).collect()
    };
    let mut all: Vec<(Duration, String)> = reports.iter().flat_map(of).collect();
    all.sort();
    let mut lines: Vec<String> = all
        .iter()
        .take(SHOWN)
        .map(|(at, lost)| format!("  at {:.1} s: {lost}{}", at.as_secs_f64(), after_kill(*at, kills)))
        .collect();
    if all.len() > SHOWN {
        lines.push(format!("  and {} more", all.len() - SHOWN));
    }
    lines
}

/// The last kill before a time, in words. Pure.
fn after_kill(at: Duration, kills: &[NodeKill]) -> String {
    kills.iter().rfind(|kill| kill.at <= at).map_or_else(String::new, |kill| {
        format!(", {:.1} s after the kill of {}", (at - kill.at).as_secs_f64(), kill.victim.name())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_status(generation: i64, status: &Value) -> Deployment {
        let metadata = json!({"name": "web", "generation": generation});
        let spec = json!({"selector": {}, "template": {}});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn a_deployment_is_rolled_when_nothing_old_is_left() {
        let status = |observed: i64, [all, updated, available]: [i32; 3]| {
            json!({"observedGeneration": observed, "replicas": all, "updatedReplicas": updated,
                "availableReplicas": available})
        };
        assert!(is_rolled(&of_status(3, &status(3, [2, 2, 2]))));
        for not_yet in [
            status(2, [2, 2, 2]),
            status(3, [3, 2, 3]),
            status(3, [3, 1, 2]),
            status(3, [2, 2, 1]),
            json!({"observedGeneration": 3}),
        ] {
            assert!(!is_rolled(&of_status(3, &not_yet)), "{not_yet}");
        }
    }

    #[test]
    fn a_lost_request_is_told_with_the_kill_before_it() {
        let second = Duration::from_secs;
        let kills = [
            NodeKill { at: second(15), victim: Victim::nth(0) },
            NodeKill { at: second(30), victim: Victim::nth(1) },
        ];
        assert_eq!(after_kill(second(14), &kills), "");
        assert_eq!(after_kill(second(29), &kills), ", 14.0 s after the kill of the kubelet");
        assert_eq!(after_kill(second(45), &kills), ", 15.0 s after the kill of containerd");
    }

    #[test]
    fn the_deployment_is_of_the_api_and_loses_no_pod() {
        let read: Deployment = serde_json::from_value(deployment("web")).unwrap();
        // The API's type has every field of the object: none is misspelt.
        assert_eq!(serde_json::to_value(&read).unwrap()["spec"], deployment("web")["spec"]);
        let spec = read.spec.unwrap();
        assert_eq!(spec.replicas, Some(REPLICAS));
        let grace_s = spec.template.spec.unwrap().termination_grace_period_seconds.unwrap();
        assert!(grace_s > i64::from(DRAIN_S), "{grace_s}");
    }
}
