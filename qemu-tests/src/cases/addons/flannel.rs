//! flannel as the pod network, in the place of the harness's own one.
//!
//! Cases: `addons/flannel`, `addons/flannel-vm`. Invariant: meanwhile the plane has no route to the pods, so that only the
//! overlay leads from node to node.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::cluster::addons::flannel::{self, OVERHEAD};
use orlop_harness::cluster::addons::{AddOns, COREDNS, Cni, NAMESPACE, NATIVE_LIMIT_S, NodeKind, ProxyMode};
use orlop_harness::cluster::fixture::{Joined, api_pod, await_pod_ready, await_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::cluster::wires::Wire;
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };
const IN_VM: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "addons/flannel",
        150,
        "flannel (VXLAN) is the pod network of two nodes: pods reach each other and a Service, the MTU inside is right; it \
         goes, and the node's own network takes its place without another start of the node",
        native,
    ),
    IN_VM.case(
        "addons/flannel-vm",
        400,
        "flannel (VXLAN) between a VM and a native node: pods reach each other and a Service, the MTU inside is right",
        vm,
    ),
];

/// Native nodes.
const NODES: [&str; 2] = ["first", "second"];
/// Nodes of the other case, in the order of their wires.
const MIXED: [&str; 2] = ["vm", "native"];
/// Label of the pods, and their Service.
const WEB: &str = "web";
/// MTU of the network between the nodes.
const MTU: u32 = 1500;
/// Bytes of a file that a pod loads from the other one: many packets of full size.
const BIG: usize = 1 << 20;
/// Requests at once. That one of two pods gets all of them by chance does not happen.
const REQUESTS: usize = 24;
/// Limit for a node to report that its pod network is gone, or is back.
const NETWORK_LIMIT_S: u64 = 60;

/// Why this machine cannot have the native node of the cases.
fn missing() -> Option<String> {
    if let Some(module) = ProxyMode::Iptables.missing_module() {
        return Some(format!("the machine's kernel lacks {module}"));
    }
    (!flannel::is_possible_here()).then(|| "the machine's kernel has no VXLAN".to_owned())
}

fn native(cx: &mut CaseContext<'_>) -> Result<()> {
    if let Some(why) = missing() {
        return skip(why);
    }
    let joined = Joined::start(&cx.run, &cx.artefacts, Settings::default(), &NODES)?;
    let cluster = &joined.cluster;
    let addons = make(cluster)?;
    for node in &joined.nodes {
        addons.offer(node)?;
        flannel::make_room(cluster, node)?;
    }
    route_pods(cluster, false)?;
    NODES.iter().try_for_each(|node| await_not_ready(cluster, node))?;
    install(cluster, &addons, NODES, NATIVE_LIMIT_S)?;
    let pods = web_pods(cluster, NODES, None)?;
    let service = serve(cluster)?;
    ensure_connected(cluster, &pods, &service, MTU - OVERHEAD)?;
    replace(&joined)?;
    let pods = web_pods(cluster, NODES, None)?;
    ensure_connected(cluster, &pods, &service, MTU)?;
    scale_names(cluster, 2)?;
    cluster.ensure_nothing_forbidden()
}

fn vm(cx: &mut CaseContext<'_>) -> Result<()> {
    if let Some(why) = missing() {
        return skip(why);
    }
    let agent = built::agent(&cx.run, false)?;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let addons = make(&cluster)?;
    addons.serve(&cluster)?;
    let [name, other] = MIXED;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, name)?;
    addons.prepare(&mut vm);
    vm.boot(Some(cluster.token()))?;
    // A native node joins while the VM boots.
    let mut node = cluster.start_node(&cx.artefacts, other, agent)?;
    start_kubelet(&mut node, JoinMethod::JoinFile)?;
    addons.offer(&node)?;
    await_ready(&cluster, other, 120)?;
    flannel::make_room(&cluster, &node)?;
    vm.give_range(&cluster)?;
    route_pods(&cluster, false)?;
    install(&cluster, &addons, MIXED, READY_LIMIT_S * 2)?;
    let pods = web_pods(&cluster, MIXED, Some(&flannel::image()?))?;
    let service = serve(&cluster)?;
    ensure_connected(&cluster, &pods, &service, MTU - OVERHEAD)?;
    cluster.ensure_nothing_forbidden()
}

/// kube-proxy of the kind for native nodes works in a VM too.
fn make(cluster: &Cluster) -> Result<AddOns> {
    let mut addons = AddOns::make(cluster, ProxyMode::Iptables, NodeKind::Native)?;
    addons.add_network(cluster, Cni::Flannel)?;
    Ok(addons)
}

fn install(cluster: &Cluster, addons: &AddOns, nodes: [&str; 2], limit_s: u64) -> Result<()> {
    let start = Instant::now();
    addons.install(cluster, u8::try_from(nodes.len())?, limit_s)?;
    for node in nodes {
        await_ready(cluster, node, NETWORK_LIMIT_S)?;
    }
    say::line(format!("  {} after {:.1} s", addons.describe(), start.elapsed().as_secs_f64()));
    Ok(())
}

/// Ends or begins the plane's part in the traffic between the pods of both nodes.
fn route_pods(cluster: &Cluster, is_routed: bool) -> Result<()> {
    for number in [0, 1] {
        Wire::new(number)?.route_pods(cluster.pid()?, is_routed)?;
    }
    Ok(())
}

fn await_not_ready(cluster: &Cluster, node: &str) -> Result<()> {
    let client = cluster.client();
    let what = format!("{node} without a pod network to be not Ready");
    client.wait::<Node, _>(&client.all(), NETWORK_LIMIT_S, &what, |all| {
        all.get(node).is_some_and(|node| !ready::node(node)).then_some(())
    })
}

/// A pod of the case: its node is its name, too.
struct WebPod {
    name: String,
    address: String,
}

/// A web server on each node; each answers with its name.
fn web_pods(cluster: &Cluster, nodes: [&str; 2], image: Option<&str>) -> Result<Vec<WebPod>> {
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
        let pod = await_pod_ready(cluster, &name, 120)?;
        let address = pod.status.and_then(|status| status.pod_ip);
        Ok(WebPod { address: address.with_context(|| format!("{name} has no address"))?, name })
    };
    nodes.into_iter().map(await_pod).collect()
}

/// Address of a Service of the pods.
fn serve(cluster: &Cluster) -> Result<String> {
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

fn run(cluster: &Cluster, pod: &WebPod, script: &str) -> Result<String> {
    let said = cluster.kubectl(&["exec", &pod.name, "--", "sh", "-c", script])?;
    Ok(said.trim().to_owned())
}

/// Each pod loads a large file from the other one and gets answers of both through the Service, and has this MTU.
fn ensure_connected(cluster: &Cluster, pods: &[WebPod], service: &str, mtu: u32) -> Result<()> {
    let names: BTreeSet<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    for pod in pods {
        let inside = run(cluster, pod, "cat /sys/class/net/eth0/mtu")?;
        ensure!(inside == mtu.to_string(), "{} has MTU {inside}, not {mtu}", pod.name);
        for other in pods.iter().filter(|other| other.name != pod.name) {
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
    let (first, next) = (ask(at, "/", 1), ask(at, "/", 5));
    format!(
        "i=0; until {first} | grep -q on-; do i=$((i + 1)); [ $i -lt 30 ] || exit 1; sleep 1; done; \
         for i in $(seq {REQUESTS}); do {next} | tail -n 1; done"
    )
}

/// Number of CoreDNS' pods, and waits until there are as many.
fn scale_names(cluster: &Cluster, replicas: i32) -> Result<()> {
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

/// flannel and its pods go; the nodes get their own pod network again. Nothing of the nodes is started again.
fn replace(joined: &Joined) -> Result<()> {
    let cluster = &joined.cluster;
    cluster.kubectl(&["delete", "pod", "--selector", &format!("app={WEB}"), "--timeout=60s"])?;
    scale_names(cluster, 0)?;
    flannel::remove(cluster)?;
    joined.nodes.iter().try_for_each(flannel::clean)?;
    NODES.iter().try_for_each(|node| await_not_ready(cluster, node))?;
    joined.nodes.iter().try_for_each(NativeNode::restore_network)?;
    NODES.iter().try_for_each(|node| await_ready(cluster, node, NETWORK_LIMIT_S).map(drop))?;
    route_pods(cluster, true)
}
