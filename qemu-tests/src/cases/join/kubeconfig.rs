//! A node that joins with a kubeconfig instead of a bootstrap token, and the clients that such a node accepts.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_ready, await_serving,
};
use orlop_harness::cluster::join::{
    BOOTSTRAP, CERT_DIR, JOIN_FILE, JoinMethod, KUBECONFIG, kubelet_configuration, start_kubelet, write,
};
use orlop_harness::cluster::kubeconfig::render;
use orlop_harness::cluster::plane::server_url;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "join/kubeconfig",
    60,
    "a kubeconfig with a certificate is as good as a token; with --join the cluster's CA is the client CA",
    kubeconfig,
)];

fn kubeconfig(cx: &mut CaseContext<'_>) -> Result<()> {
    const NAME: &str = "third";
    let (agent, artefacts) = (built::agent(&cx.run, false)?, cx.artefacts.clone());
    let joined = Joined::shared(cx)?;
    let mut node = joined.cluster.start_node(&artefacts, NAME, agent)?;
    let cluster = &joined.cluster;
    for told in [BOOTSTRAP, JOIN_FILE] {
        std::fs::remove_file(node.inside(told)).with_context(|| format!("remove {told}"))?;
    }
    let user = format!("system:node:{NAME}");
    let credentials = cluster.pki().client(NAME, &user, Some("system:nodes"))?.credentials()?;
    write(&node, KUBECONFIG, &render(&server_url(), &cluster.pki().ca.pem, &credentials))?;
    node.start_agent_with(&[&format!("--kubeconfig={KUBECONFIG}"), &format!("--cert-dir={CERT_DIR}")])?;
    await_ready(cluster, NAME, 60)?;
    let client = cluster.client();
    let asked = client.wait::<CertificateSigningRequest, _>(&client.all(), 10, "the requests", |all| {
        let of_node = all.values().filter(|r| r.spec.username.as_deref() == Some(user.as_str()));
        let of_clients = of_node.filter(|r| r.spec.signer_name.ends_with("-client-kubelet"));
        Some(of_clients.count())
    })?;
    ensure!(asked == 0, "a node with a certificate of its own asked for {asked} others");
    let talks = |name: &str| -> Result<()> {
        await_serving(cluster, NAME, 60)?;
        joined.run_pod(api_pod(name, NAME, &format!("echo hello; {STAYS}"), 1))?;
        let said = cluster.kubectl(&["logs", name])?;
        ensure!(said == "hello", "kubectl logs {name}: {said:?}");
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(cluster, name, 30)
    };
    talks("by-kubeconfig")?;
    let status = node.stop_agent()?;
    ensure!(status == 0, "the agent ended with {status}");

    // A node with --join and without a client CA accepts clients of the cluster's CA.
    let line = "  x509:\n    clientCAFile: /var/lib/kubelet/ca.crt\n";
    let configuration = kubelet_configuration();
    ensure!(configuration.contains(line), "the configuration names no client CA: {configuration}");
    write(&node, "/run/e2e/kubelet.yaml", &configuration.replace(line, ""))?;
    start_kubelet(&mut node, JoinMethod::JoinFile)?;
    node.await_agent_status(60, &[])?;
    talks("by-join")?;
    cluster.ensure_nothing_forbidden()?;
    drop(node);
    client.delete::<Node>(&client.all(), NAME, None)
}
