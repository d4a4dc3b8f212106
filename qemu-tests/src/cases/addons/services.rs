//! Services of a cluster with kube-proxy and CoreDNS.
//!
//! Cases: `addons/services`, `addons/services-nftables`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::cluster::addons::{AddOns, KUBE_PROXY, NAMESPACE, NodeKind, ProxyMode};
use orlop_harness::cluster::fixture::{Joined, STAYS, api_pod, container};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::native::images;
use orlop_harness::native::node::NativeNode;
use orlop_harness::process::must;
use orlop_harness::say;
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "addons/services",
        90,
        "kube-proxy and CoreDNS run as in any cluster; a Service is reached by its name, its address and a port of a \
         node, by its own pods too; kube-proxy, killed, is back within seconds",
        iptables,
    ),
    HERE.case("addons/services-nftables", 90, "the same with kube-proxy's mode nftables", nftables),
];

/// Nodes of the cluster.
const NODES: [&str; 2] = ["first", "second"];
/// The Deployment, its pods' label and their Service.
const WEB: &str = "web";
/// The pod that asks, on the first node.
const CLIENT: &str = "client";
/// Each pod answers with its name.
const ANSWERS: &str = "mkdir /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";
/// Requests at once. That one of two pods gets all of them by chance does not happen.
const REQUESTS: usize = 24;
/// Limit for the add-ons to be Ready: their images are large.
const ADD_ONS_LIMIT_S: u64 = 180;
/// Limit for a new Service to be routed, seconds: also by a kube-proxy that must be started again first.
const ANSWER_LIMIT_S: u32 = 30;

fn iptables(cx: &mut CaseContext<'_>) -> Result<()> {
    services(cx, ProxyMode::Iptables)
}

fn nftables(cx: &mut CaseContext<'_>) -> Result<()> {
    services(cx, ProxyMode::Nftables)
}

fn services(cx: &mut CaseContext<'_>, mode: ProxyMode) -> Result<()> {
    if let Some(module) = mode.missing_module() {
        return skip(format!("the machine's kernel lacks {module}"));
    }
    let joined = Joined::start(&cx.run, &cx.artefacts, Settings::default(), &NODES)?;
    let cluster = &joined.cluster;
    let start = Instant::now();
    let addons = AddOns::make(cluster, mode, NodeKind::Native)?;
    joined.nodes.iter().try_for_each(|node| addons.offer(node))?;
    addons.install(cluster, u8::try_from(NODES.len())?, ADD_ONS_LIMIT_S)?;
    say::line(format!("  kube-proxy and CoreDNS are Ready after {:.1} s", start.elapsed().as_secs_f64()));
    let pods = web_pods(cluster)?;
    let service = serve(cluster, WEB)?;
    joined.run_pod(api_pod(CLIENT, NODES[0], STAYS, 1))?;
    let address = resolve(cluster, WEB)?;
    ensure!(address == service.address, "the name leads to {address:?}, not to {}", service.address);
    let at = service.at();
    ensure_all_answer(&pods, &answers(cluster, CLIENT, &at)?, "by name and address")?;
    // kube-proxy must give such a request another source: the pod would get its own packet back.
    for pod in &pods {
        ensure_all_answer(&pods, &answers(cluster, pod, &at)?, "from a pod of the Service")?;
    }
    for node in NODES {
        let port = format!("{} {}", address_of(cluster, node)?, service.node_port);
        ensure_all_answer(&pods, &answers(cluster, CLIENT, &port)?, "at a node's port, from a pod")?;
        ensure_all_answer(&pods, &answers_outside(cluster, &port)?, "at a node's port, from outside")?;
    }
    ensure_back(&joined, &pods, &at)?;
    joined.cluster.ensure_nothing_forbidden()
}

/// A pod on each node; returns the names.
fn web_pods(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let client = cluster.client();
    client.create::<Deployment>(&client.of("default"), deployment())?;
    client.wait::<Pod, _>(&client.of("default"), 60, "both pods of the Deployment to be Ready", |all| {
        let ready: BTreeSet<String> = all
            .iter()
            .filter(|(name, pod)| name.starts_with(WEB) && ready::pod(pod))
            .map(|(name, _)| name.clone())
            .collect();
        (ready.len() == NODES.len()).then_some(ready)
    })
}

fn deployment() -> Value {
    let labels = json!({"app": WEB});
    let mut web = container(ANSWERS);
    web["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    json!({"metadata": {"name": WEB}, "spec": {
        "replicas": NODES.len(),
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {
            "terminationGracePeriodSeconds": 1,
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"},
            ]}},
            "containers": [web],
        }},
    }})
}

/// A Service's ways in.
struct ServiceAddresses {
    address: String,
    node_port: i32,
}

impl ServiceAddresses {
    /// Its own address and port.
    fn at(&self) -> String {
        format!("{} 80", self.address)
    }
}

/// A Service of the pods.
fn serve(cluster: &Cluster, name: &str) -> Result<ServiceAddresses> {
    let client = cluster.client();
    let made = client.create::<Service>(
        &client.of("default"),
        json!({"metadata": {"name": name}, "spec": {
            "type": "NodePort", "selector": {"app": WEB}, "ports": [{"port": 80, "targetPort": 8080}],
        }}),
    )?;
    let spec = made.spec.context("a Service without a spec")?;
    let port = spec.ports.unwrap_or_default().first().and_then(|port| port.node_port);
    Ok(ServiceAddresses {
        address: spec.cluster_ip.context("a Service without an address")?,
        node_port: port.context("a Service without a port of the nodes")?,
    })
}

/// The address that the cluster's DNS has for a Service, as the client sees it. CoreDNS learns of a new Service within a
/// moment.
fn resolve(cluster: &Cluster, name: &str) -> Result<String> {
    let script = format!(
        "i=0; while [ $i -lt 20 ]; do \
         a=$(nslookup {name}.default.svc.cluster.local 2>/dev/null | \
         awk '/^Name:/ {{ named = 1 }} named && /^Address/ {{ print $NF }}'); \
         [ -n \"$a\" ] && break; i=$((i + 1)); sleep 1; done; echo $a"
    );
    let said = cluster.kubectl(&["exec", CLIENT, "--", "sh", "-c", &script])?;
    Ok(said.trim().to_owned())
}

/// Shell command that prints the last line of an answer, or nothing; `$0` is busybox. Debian's static busybox cannot
/// look up the name of a port, as its wget does.
fn ask(at: &str, limit_s: u32) -> String {
    format!(
        "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | \"$0\" nc -w {limit_s} {at} 2>/dev/null | \"$0\" tail -n 1"
    )
}

/// Script that asks until there is an answer: kube-proxy learns of a new Service within a moment.
fn first_answer(at: &str) -> String {
    let ask = ask(at, 1);
    format!(
        "i=0; until [ -n \"$({ask})\" ]; do i=$((i + 1)); \
         [ $i -lt {ANSWER_LIMIT_S} ] || {{ echo no answer; exit 1; }}; \"$0\" sleep 1; done"
    )
}

/// Script of several requests; each must be answered after the first one was.
fn requests(at: &str) -> String {
    let (first, ask) = (first_answer(at), ask(at, 5));
    format!(
        "{first}; for i in $(\"$0\" seq {REQUESTS}); do a=$({ask}); \
         [ -n \"$a\" ] || {{ echo no answer to request $i; exit 1; }}; echo $a; done"
    )
}

/// Names of the pods that answer the requests of a pod; `at` is an address and a port.
fn answers(cluster: &Cluster, from: &str, at: &str) -> Result<BTreeSet<String>> {
    let said = cluster
        .kubectl(&["exec", from, "--", "sh", "-c", &requests(at), "busybox"])
        .with_context(|| format!("{from} asks {at}"))?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

/// The same for requests from the control plane's host.
fn answers_outside(cluster: &Cluster, at: &str) -> Result<BTreeSet<String>> {
    let busybox = images::host_busybox()?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--target={}", cluster.pid()?)).args(["--net", "--"]).arg(&busybox);
    command.args(["sh", "-c", &requests(at)]).arg(&busybox);
    let said = must(cluster.run(), &mut command).with_context(|| format!("the host asks {at}"))?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

fn ensure_all_answer(pods: &BTreeSet<String>, answers: &BTreeSet<String>, how: &str) -> Result<()> {
    ensure!(answers == pods, "{how}: {answers:?} answered, the pods are {pods:?}");
    Ok(())
}

fn address_of(cluster: &Cluster, node: &str) -> Result<String> {
    let client = cluster.client();
    let object = client.get::<Node>(&client.all(), node)?.with_context(|| format!("no node {node}"))?;
    ready::internal_ip(&object).with_context(|| format!("{node} has no address"))
}

/// kube-proxy of the client's node dies: the known Service goes on, and a Service that is made after that works, too.
fn ensure_back(joined: &Joined, pods: &BTreeSet<String>, at: &str) -> Result<()> {
    let cluster = &joined.cluster;
    let before = await_proxy(cluster, "kube-proxy to run", |_| true)?;
    kill(Pid::from_raw(kube_proxy(&joined.nodes[0])?), Signal::SIGKILL).context("kill kube-proxy")?;
    let start = Instant::now();
    let late = serve(cluster, "late")?;
    ensure_all_answer(pods, &answers(cluster, CLIENT, at)?, "without kube-proxy")?;
    let late = late.at();
    cluster
        .kubectl(&["exec", CLIENT, "--", "sh", "-c", &first_answer(&late), "busybox"])
        .context("a Service that was made after kube-proxy was killed")?;
    say::line(format!("  a new Service works {:.1} s after the kill", start.elapsed().as_secs_f64()));
    await_proxy(cluster, "kube-proxy to have been started again", |restarts| restarts > before)?;
    ensure_all_answer(pods, &answers(cluster, CLIENT, &late)?, "the new Service")
}

/// Waits until kube-proxy's pod on the client's node is Ready with an accepted number of restarts; returns the number.
fn await_proxy(cluster: &Cluster, what: &str, accepts: impl Fn(i32) -> bool) -> Result<i32> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of(NAMESPACE), 30, what, |all| {
        let here = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(NODES[0]);
        let (_, pod) = all.iter().find(|(name, pod)| name.starts_with(KUBE_PROXY) && here(pod))?;
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        let restarts = statuses.iter().map(|container| container.restart_count).sum::<i32>();
        (ready::pod(pod) && accepts(restarts)).then_some(restarts)
    })
}

/// The process of kube-proxy in the node's network, as the host numbers it.
fn kube_proxy(node: &NativeNode) -> Result<i32> {
    let network = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = network(node.pid()).context("the node's network")?;
    let is = |pid: &i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == KUBE_PROXY && network(*pid).as_ref() == Some(&own)
    };
    let entries = fs::read_dir("/proc").context("read /proc")?;
    let mut pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(is).context("no kube-proxy runs on the node")
}
