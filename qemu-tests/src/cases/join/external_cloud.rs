//! A node with an external cloud provider: it waits for the cloud controller, and keeps the controller's addresses.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_ready, await_serving, await_words,
};
use orlop_harness::cluster::join::{JoinMethod, flags};
use orlop_harness::cluster::plane::Cluster;
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/external-cloud",
    40,
    "--cloud-provider=external: tainted and without addresses until the cloud's controller has looked at the node",
    external,
)];

const NAME: &str = "cloudy";
const TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

fn external(cx: &mut CaseContext<'_>) -> Result<()> {
    let (agent, artefacts) = (built::agent(&cx.run, false)?, cx.artefacts.clone());
    let joined = Joined::shared(cx)?;
    let mut node = joined.cluster.start_node(&artefacts, NAME, agent)?;
    let mut flags = flags(JoinMethod::BootstrapKubeconfig);
    flags.push("--cloud-provider=external".to_owned());
    flags.push("--node-labels=orlop.test/cloud=yes".to_owned());
    node.start_agent_with(&flags.iter().map(String::as_str).collect::<Vec<_>>())?;
    let (cluster, client) = (&joined.cluster, joined.cluster.client());
    let found = await_ready(cluster, NAME, 90)?;
    ensure!(addresses(&found) == ["Hostname cloudy"], "addresses: {:?}", addresses(&found));
    let taints = found.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    let taint = taints.iter().find(|t| t.key == TAINT).with_context(|| format!("taints: {taints:?}"))?;
    ensure!(taint.effect == "NoSchedule" && taint.value.as_deref() == Some("true"), "{taint:?}");
    let labels = found.metadata.labels.unwrap_or_default();
    ensure!(labels.get("orlop.test/cloud").is_some_and(|v| v == "yes"), "labels: {labels:?}");
    let clouds = initialize(cluster)?;
    // The node's own word about its address would be another one.
    let known = await_ready(cluster, NAME, 30)?;
    ensure!(addresses(&known) == clouds, "addresses: {:?}", addresses(&known));
    await_serving(cluster, NAME, 60)?;
    let pod = joined.run_pod(api_pod("in-cloud", NAME, STAYS, 1))?;
    let host = pod.status.and_then(|s| s.host_ip);
    ensure!(host.as_deref().is_some_and(|ip| clouds[0] == format!("InternalIP {ip}")), "hostIP {host:?}");
    // A restarted agent keeps both, and uses HTTP/1.1 if configured.
    node.kill_agent()?;
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    node.start_agent_in(&[("DISABLE_HTTP2", "1")], &flags)?;
    await_words(&mut node, 30, &["HTTP/1.1"])?;
    await_serving(cluster, NAME, 60)?;
    // Create, show and delete a pod over HTTP/1.1.
    joined.run_pod(api_pod("over-http1", NAME, STAYS, 1))?;
    client.delete::<Pod>(&client.of("default"), "over-http1", None)?;
    await_pod_gone(cluster, "over-http1", 30)?;
    let after = client.get(&client.all::<Node>(), NAME)?.context("the Node is gone")?;
    ensure!(addresses(&after) == clouds, "addresses after a restart: {:?}", addresses(&after));
    let spec = after.spec.unwrap_or_default();
    ensure!(spec.taints.unwrap_or_default().is_empty(), "tainted again by a restart");
    client.delete::<Pod>(&client.of("default"), "in-cloud", None)?;
    await_pod_gone(cluster, "in-cloud", 30)?;
    cluster.ensure_nothing_forbidden()?;
    drop(node);
    client.delete::<Node>(&client.all(), NAME, None)
}

fn addresses(node: &Node) -> Vec<String> {
    let all = node.status.as_ref().and_then(|s| s.addresses.clone()).unwrap_or_default();
    all.iter().map(|a| format!("{} {}", a.type_, a.address)).collect()
}

/// Acts like the cloud controller: sets the node's addresses, then removes the taint. Returns the addresses, one of
/// which the machine does not have.
fn initialize(cluster: &Cluster) -> Result<Vec<String>> {
    let client = cluster.client();
    let nodes = client.all::<Node>();
    let own = cluster.newest_address()?;
    let list = [("InternalIP", own.as_str()), ("Hostname", NAME), ("InternalDNS", "cloudy.example")];
    let addresses = list.map(|(kind, address)| json!({"type": kind, "address": address}));
    let status = Patch::Merge(json!({"status": {"addresses": addresses}}));
    client
        .block_on(nodes.patch_status(NAME, &PatchParams::default(), &status))
        .context("patch the Node's addresses")?;
    client.merge(&nodes, NAME, &json!({"spec": {"providerID": "test://cloudy", "taints": null}}))?;
    Ok(list.map(|(kind, address)| format!("{kind} {address}")).to_vec())
}
