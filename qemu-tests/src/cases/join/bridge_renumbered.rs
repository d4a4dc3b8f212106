//! The pod network that containerd makes from the Node's ranges (`network.podNetwork: bridge`).

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_config::node::{Source, derive, load};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_ready, await_words, container,
};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet, write};
use orlop_harness::cluster::plane::{Cluster, server_url};
use orlop_harness::native::node::NativeNode;
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/bridge-renumbered",
    60,
    "a bridge of the Node's ranges; a Node made anew with others makes the bridge theirs",
    renumbered,
)];

const NAME: &str = "bridged";
/// Template of the bridge; this tree's.
const TEMPLATE: &str = include_str!("../../../../image/rootfs/common/usr/share/orlop/pod-network.conflist");

fn renumbered(cx: &mut CaseContext<'_>) -> Result<()> {
    let (agent, artefacts) = (built::agent(&cx.run, false)?, cx.artefacts.clone());
    let joined = Joined::shared(cx)?;
    let mut node = joined.cluster.start_node(&artefacts, NAME, agent)?;
    bridge(&mut node)?;
    let (cluster, client) = (&joined.cluster, joined.cluster.client());
    start_kubelet(&mut node, JoinMethod::JoinFile)?;
    give_range(cluster, None, "10.89.1.0/24")?;
    let before = await_ready(cluster, NAME, 60)?.metadata.uid;
    has_address(joined, "early", "10.89.1.")?;
    client.delete::<Node>(&client.all(), NAME, None)?;
    give_range(cluster, before.as_deref(), "10.89.2.0/24")?;
    await_words(&mut node, 30, &["ranges are known to the runtime", "10.89.2.0/24"])?;
    await_ready(cluster, NAME, 60)?;
    has_address(joined, "late", "10.89.2.")?;
    cluster.ensure_nothing_forbidden()?;
    drop(node);
    client.delete::<Node>(&client.all(), NAME, None)
}

/// The node's containerd gets the appliance's configuration, and has no other network.
fn bridge(node: &mut NativeNode) -> Result<()> {
    let text = json!({
        "apiVersion": "orlop/v1alpha1",
        "kind": "NodeConfig",
        "network": {"podNetwork": "bridge"},
        "join": {"server": server_url(), "token": "abcdef.0123456789abcdef",
            "caCertHashes": [format!("sha256:{}", "ab".repeat(32))]},
    });
    let source = Source { name: "case".into(), origin: "case".into(), text: text.to_string() };
    let files = derive::run_files(&load(&[source], &[]), "0");
    let told = files.iter().find(|f| f.path.ends_with("/pod-network.toml")).context("no pod-network.toml")?;
    let dir = node.inside("/run/orlop/containerd");
    std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    write(node, &told.path, &told.text)?;
    write(node, "/usr/share/orlop/pod-network.conflist", TEMPLATE)?;
    node.remove_network()?;
    node.kill_containerd()?;
    node.start_containerd()
}

/// Acts like the cluster's controller: sets the Node's ranges, when the Node exists and is not that of `other_than`.
fn give_range(cluster: &Cluster, other_than: Option<&str>, range: &str) -> Result<()> {
    let client = cluster.client();
    let nodes = client.all::<Node>();
    client.wait(&nodes, 60, &format!("node {NAME} to register"), |all| {
        all.get(NAME).filter(|n| n.metadata.uid.as_deref() != other_than).map(|_| ())
    })?;
    client.merge(&nodes, NAME, &json!({"spec": {"podCIDR": range, "podCIDRs": [range]}}))?;
    Ok(())
}

/// A pod that reaches its node through the bridge runs, and has an address of that range.
fn has_address(joined: &Joined, name: &str, range: &str) -> Result<()> {
    let mut pod = api_pod(name, NAME, STAYS, 1);
    let mut reaches = container(&format!("busybox ping -c 1 -W 5 {range}1"));
    reaches["name"] = json!("reaches");
    pod["spec"]["initContainers"] = json!([reaches]);
    let pod = joined.run_pod(pod)?;
    let ip = pod.status.and_then(|s| s.pod_ip).context("a pod without an address")?;
    ensure!(ip.starts_with(range), "{name} has {ip}, not of {range}0/24");
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), name, None)?;
    await_pod_gone(&joined.cluster, name, 30)
}
