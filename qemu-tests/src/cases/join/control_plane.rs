//! The control plane of the tests itself, the basis of every other case of this area.

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Patch, PatchParams};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::pki::node_request;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::{audit, bootstrap};
use orlop_harness::say;
use serde_json::json;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "join/control-plane",
    level: Level::L3,
    expected_s: 40,
    about: "API server, controllers, scheduler, tokens and certificate requests of the test cluster do their work",
    group: None,
    run: control_plane,
}];

fn control_plane(cx: &mut CaseContext<'_>) -> Result<()> {
    let start = std::time::Instant::now();
    let cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    say::line(format!("  a control plane after {:.1} s", start.elapsed().as_secs_f64()));
    discovery(&cluster)?;
    controllers(&cluster)?;
    client_certificate(&cluster)?;
    serving_certificate(&cluster)?;
    node_restriction(&cluster)
}

/// Anonymous clients may read cluster-info; it leads to the API server and is signed for the token.
fn discovery(cluster: &Cluster) -> Result<()> {
    let info = cluster.client().get::<ConfigMap>(&cluster.client().of("kube-public"), "cluster-info")?;
    let data = info.and_then(|i| i.data).context("cluster-info has no data")?;
    ensure!(data.contains_key(&format!("jws-kubeconfig-{}", cluster.token().id)), "no signature: {data:?}");
    // Anonymous clients may read no list and no other object.
    let path = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
    let seen = cluster.kubectl(&["get", "--raw", path, "--as=system:anonymous"])?;
    ensure!(seen.contains("jws-kubeconfig-"), "anonymous sees no cluster-info: {seen}");
    Ok(())
}

/// Two controllers handle a Deployment; its pod reaches the scheduler, which has no node for it.
fn controllers(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    bootstrap::add_namespace(client, "work")?;
    let labels = json!({"app": "w"});
    let container = json!({"name": "c", "image": "none.invalid/none:1"});
    client.create::<Deployment>(
        &client.of("work"),
        json!({"metadata": {"name": "w"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}}),
    )?;
    client.wait::<ReplicaSet, _>(&client.of("work"), 30, "a ReplicaSet", |all| {
        (!all.is_empty()).then_some(())
    })?;
    client.wait::<Pod, _>(&client.of("work"), 30, "the scheduler's word about a pod", |all| {
        let conditions = all.values().next()?.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|c| c.reason.as_deref() == Some("Unschedulable")).map(|_| ())
    })
}

/// With a bootstrap token a client certificate is approved and signed automatically.
fn client_certificate(cluster: &Cluster) -> Result<()> {
    let (request, key) = node_request("made-up", &[])?;
    let object = json!({"metadata": {"name": "client"}, "spec": {
        "request": ByteString(request.into_bytes()),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    }});
    let path = cx_file(cluster, "bootstrap.kubeconfig", &cluster.host_bootstrap_kubeconfig(cluster.token()))?;
    let node = orlop_harness::cluster::client::ClusterClient::new(&path)?;
    node.create::<CertificateSigningRequest>(&node.all(), object)?;
    let certificate = await_certificate(cluster, "client")?;
    let kubeconfig = cluster.host_kubeconfig(certificate, key.serialize_pem());
    cx_file(cluster, "node.kubeconfig", &kubeconfig).map(|_| ())
}

/// With that certificate, the approver approves a serving certificate.
fn serving_certificate(cluster: &Cluster) -> Result<()> {
    let node = orlop_harness::cluster::client::ClusterClient::new(&cluster.dir().join("node.kubeconfig"))?;
    let (request, _) = node_request("made-up", &["172.30.0.99", "made-up"])?;
    node.create::<CertificateSigningRequest>(
        &node.all(),
        json!({"metadata": {"name": "serving"}, "spec": {
            "request": ByteString(request.into_bytes()),
            "signerName": "kubernetes.io/kubelet-serving",
            "usages": ["digital signature", "server auth"],
        }}),
    )?;
    await_certificate(cluster, "serving").map(|_| ())
}

/// A node's certificate allows access to its own node only, and the audit log has refused requests.
fn node_restriction(cluster: &Cluster) -> Result<()> {
    let node = orlop_harness::cluster::client::ClusterClient::new(&cluster.dir().join("node.kubeconfig"))?;
    let nodes = node.all::<k8s_openapi::api::core::v1::Node>();
    node.create(&nodes, json!({"metadata": {"name": "made-up"}}))?;
    cluster.ensure_nothing_forbidden()?;
    ensure!(
        node.create(&nodes, json!({"metadata": {"name": "another"}})).is_err(),
        "a node made another node"
    );
    let patch = Patch::Merge(json!({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}}));
    let patched = node.block_on(nodes.patch("made-up", &PatchParams::default(), &patch));
    ensure!(patched.is_err(), "a node gave itself a restricted label");
    let requests = cluster.audit()?;
    let refused = audit::forbidden(&requests);
    ensure!(refused.len() == 2, "two refusals were to be in the audit log: {refused:#?}");
    Ok(())
}

fn await_certificate(cluster: &Cluster, name: &str) -> Result<String> {
    let client = cluster.client();
    let what = format!("request {name} to be approved and signed");
    let pem = client.wait::<CertificateSigningRequest, _>(&client.all(), 30, &what, |all| {
        all.get(name)?.status.as_ref()?.certificate.clone()
    })?;
    String::from_utf8(pem.0).context("a certificate is PEM")
}

fn cx_file(cluster: &Cluster, name: &str, text: &str) -> Result<std::path::PathBuf> {
    let path = cluster.dir().join(name);
    orlop_harness::cluster::pki::write_private(&path, text)?;
    Ok(path)
}
