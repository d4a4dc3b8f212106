//! Parts of the cases of pod networks: web servers on two nodes, their Service, and the traffic between them.
//!
//! Invariant: while an add-on brings the network, the plane has no route to the pods ([`route_pods`]), so that only the
//! add-on leads from node to node.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use orlop_harness::cluster::addons::{AddOns, COREDNS, NAMESPACE};
use orlop_harness::cluster::fixture::{api_pod, await_pod_ready, await_ready, await_serving};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::wires::Wire;
use orlop_harness::say;
use serde_json::json;

/// Native nodes.
pub(super) const NODES: [&str; 2] = ["first", "second"];
/// Nodes of the cases with a VM, in the order of their wires.
pub(super) const MIXED: [&str; 2] = ["vm", "native"];
/// Label of the pods, and their Service.
pub(super) const WEB: &str = "web";
/// MTU of the network between the nodes.
pub(super) const MTU: u32 = 1500;
/// Bytes of a file that a pod loads from the other one: many packets of full size.
const BIG: usize = 1 << 20;
/// Requests at once. That one of two pods gets all of them by chance does not happen.
const REQUESTS: usize = 24;
/// Limit for a node to report that its pod network is gone, or is back.
pub(super) const NETWORK_LIMIT_S: u64 = 120;
/// Limit for a node's HTTPS API, by which pods are entered, to have its certificate: a VM's comes late.
const SERVING_LIMIT_S: u64 = 240;
/// Limit for a pod to be Ready: a VM unpacks large images.
const POD_LIMIT_S: u64 = 240;
/// Limit for the routes between the nodes, and for the rules of a policy, to be there. Daemons of BGP that missed each other try again
/// after two to four minutes.
const SETTLED: Duration = Duration::from_secs(300);
/// Time between the beginnings of two questions that wait for them.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Installs the add-ons, and waits until both nodes are Ready and pods on them can be entered.
pub(super) fn install(cluster: &Cluster, addons: &AddOns, nodes: [&str; 2], limit_s: u64) -> Result<()> {
    let start = Instant::now();
    addons.install(cluster, u8::try_from(nodes.len())?, limit_s)?;
    for node in nodes {
        await_ready(cluster, node, NETWORK_LIMIT_S)?;
        await_serving(cluster, node, SERVING_LIMIT_S)?;
    }
    say::line(format!("  {} after {:.1} s", addons.describe(), start.elapsed().as_secs_f64()));
    Ok(())
}

/// Ends or begins the plane's part in the traffic between the pods of both nodes.
pub(super) fn route_pods(cluster: &Cluster, is_routed: bool) -> Result<()> {
    for number in [0, 1] {
        Wire::new(number)?.route_pods(cluster.pid()?, is_routed)?;
    }
    Ok(())
}

/// Waits until a node without a pod network reports that it is not Ready.
pub(super) fn await_not_ready(cluster: &Cluster, node: &str) -> Result<()> {
    let client = cluster.client();
    let what = format!("{node} without a pod network to be not Ready");
    client.wait::<Node, _>(&client.all(), NETWORK_LIMIT_S, &what, |all| {
        all.get(node).is_some_and(|node| !ready::node(node)).then_some(())
    })
}

/// A pod of the case: its node is its name, too.
pub(super) struct WebPod {
    /// Its name.
    pub(super) name: String,
    /// Its address.
    pub(super) address: String,
}

/// A web server on each node; each answers with its name.
pub(super) fn web_pods(cluster: &Cluster, nodes: [&str; 2], image: Option<&str>) -> Result<Vec<WebPod>> {
    let script = format!(
        "mkdir -p /tmp/www; hostname > /tmp/www/index.html; head -c {BIG} /dev/zero > /tmp/www/big; \
         exec httpd -f -p 8080 -h /tmp/www"
    );
    let client = cluster.client();
    for node in nodes {
        let mut pod = api_pod(&format!("on-{node}"), node, &script, 1);
        pod["metadata"]["labels"] = json!({"app": WEB});
        let container = &mut pod["spec"]["containers"][0];
        container["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
        if let Some(image) = image {
            container["image"] = json!(image);
        }
        client.create::<Pod>(&client.of("default"), pod)?;
    }
    let await_pod = |node: &str| -> Result<WebPod> {
        let name = format!("on-{node}");
        let pod = await_pod_ready(cluster, &name, POD_LIMIT_S)?;
        let address = pod.status.and_then(|status| status.pod_ip);
        Ok(WebPod { address: address.with_context(|| format!("{name} has no address"))?, name })
    };
    nodes.into_iter().map(await_pod).collect()
}

/// Address of a Service of the pods.
pub(super) fn serve(cluster: &Cluster) -> Result<String> {
    let client = cluster.client();
    let made = client.create::<Service>(
        &client.of("default"),
        json!({"metadata": {"name": WEB}, "spec": {
            "selector": {"app": WEB}, "ports": [{"port": 80, "targetPort": 8080}],
        }}),
    )?;
    made.spec.and_then(|spec| spec.cluster_ip).context("a Service without an address")
}

/// Command of a shell in a pod that prints an answer to an HTTP request.
fn ask(at: &str, path: &str, limit_s: u32) -> String {
    format!("printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' | nc -w {limit_s} {at}")
}

/// Runs a script in a pod.
fn run(cluster: &Cluster, pod: &WebPod, script: &str) -> Result<String> {
    let said = cluster.kubectl(&["exec", &pod.name, "--", "sh", "-c", script])?;
    Ok(said.trim().to_owned())
}

/// Waits until a pod has, or has no longer, an answer of the web server at `address`: routes and rules need a moment.
pub(super) fn await_answers(cluster: &Cluster, from: &str, address: &str, expected: bool) -> Result<()> {
    let script = format!("{} 2>/dev/null | tail -n 1", ask(&format!("{address} 8080"), "/", 3));
    let (begun, client) = (Instant::now(), cluster.client());
    let mut again = client.block_on(async { tokio::time::interval(ASK_AGAIN) });
    loop {
        client.block_on(again.tick());
        let said = cluster.kubectl(&["exec", from, "--", "sh", "-c", &script])?;
        if said.trim().starts_with("on-") == expected {
            return Ok(());
        }
        let outcome = if expected { "no answer" } else { "answers" };
        ensure!(begun.elapsed() < SETTLED, "{from} has {outcome} from {address} for {} s", SETTLED.as_secs());
    }
}

/// Each pod loads a large file from the other one and gets answers of both through the Service, and has this MTU.
pub(super) fn ensure_connected(cluster: &Cluster, pods: &[WebPod], service: &str, mtu: u32) -> Result<()> {
    let names: BTreeSet<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    for pod in pods {
        let inside = run(cluster, pod, "cat /sys/class/net/eth0/mtu")?;
        ensure!(inside == mtu.to_string(), "{} has MTU {inside}, not {mtu}", pod.name);
        for other in pods.iter().filter(|other| other.name != pod.name) {
            await_answers(cluster, &pod.name, &other.address, true)?;
            let load = format!("{} | wc -c", ask(&format!("{} 8080", other.address), "/big", 20));
            let loaded: usize = run(cluster, pod, &load)?.parse().context("a number of bytes")?;
            ensure!(loaded > BIG, "{} got {loaded} bytes of {BIG} from {}", pod.name, other.name);
        }
        let said = run(cluster, pod, &requests(&format!("{service} 80")))?;
        let answered: BTreeSet<&str> = said.split_whitespace().collect();
        ensure!(answered == names, "{}: {answered:?} answered through the Service", pod.name);
    }
    Ok(())
}

/// Script of several requests; kube-proxy learns of a new Service within a moment.
fn requests(at: &str) -> String {
    let (first, next) = (ask(at, "/", 3), ask(at, "/", 5));
    format!(
        "i=0; until {first} | grep -q on-; do i=$((i + 1)); [ $i -lt 30 ] || exit 1; sleep 1; done; \
         for i in $(seq {REQUESTS}); do {next} | tail -n 1; done"
    )
}

/// Number of CoreDNS' pods, and waits until there are as many.
pub(super) fn scale_names(cluster: &Cluster, replicas: i32) -> Result<()> {
    let number = format!("--replicas={replicas}");
    cluster.kubectl(&["scale", "deployment", COREDNS, "--namespace", NAMESPACE, &number])?;
    let client = cluster.client();
    let what = format!("{replicas} pods of {COREDNS}");
    client.wait::<Deployment, _>(&client.of(NAMESPACE), 120, &what, |all| {
        let status = all.get(COREDNS)?.status.as_ref()?;
        let is = |number: Option<i32>| number.unwrap_or(0) == replicas;
        (is(status.replicas) && is(status.available_replicas)).then_some(())
    })?;
    client.wait::<Pod, _>(&client.of(NAMESPACE), 60, &what, |all| {
        let wanted = usize::try_from(replicas).unwrap_or(0);
        (all.keys().filter(|name| name.starts_with(COREDNS)).count() == wanted).then_some(())
    })
}
