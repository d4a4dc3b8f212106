//! From one document to `kubectl get nodes`: the node carries its control plane, joins it, and runs a pod of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::hosted_plane::{NODE, READY_LIMIT_S};
use orlop_harness::say;
use orlop_harness::vm::shell::Shell;

use super::{HERE, POD, await_pod, await_static_pods, plane};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "controlplane/single",
    600,
    "power-on with one document of orlopctl: etcd to scheduler run as static pods, kubectl get nodes says Ready, a pod runs",
    single,
)];

/// The label by which the column ROLES has its word.
const ROLE: &str = "node-role.kubernetes.io/control-plane";

fn single(cx: &mut CaseContext<'_>) -> Result<()> {
    let plane = plane(cx)?;
    await_static_pods(plane)?;
    let client = plane.client();
    let nodes = client.all::<Node>();
    client.wait(&nodes, READY_LIMIT_S, "the label of a control plane", |all| {
        all.get(NODE)?.metadata.labels.as_ref()?.contains_key(ROLE).then_some(())
    })?;
    let listed = plane.kubectl(&["get", "nodes"])?;
    for line in listed.lines() {
        say::line(format!("  {line}"));
    }
    let row = listed.lines().find(|line| line.starts_with(NODE)).context("kubectl does not list the node")?;
    let words: Vec<&str> = row.split_whitespace().take(3).collect();
    ensure!(words == [NODE, "Ready", "control-plane"], "{listed}");
    let pod = await_pod(plane, POD)?;
    let address = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
    ensure!(address.starts_with("10.244."), "the pod's address is not of the node's range: {address:?}");
    // The API server asks the node, which must know its certificate.
    let server = format!("kube-apiserver-{NODE}");
    let logs = plane.kubectl(&["logs", "--namespace", "kube-system", "--tail", "1", &server])?;
    ensure!(!logs.is_empty(), "the API server has no log");
    ensure_secrets(plane.vm()?.shell()?)
}

/// Keys are root's alone; the node's own certificate is one that it asked for.
fn ensure_secrets(shell: &mut Shell) -> Result<()> {
    let modes = shell.must(
        "stat -L -c '%a %u' /etc/kubernetes/pki/ca.key /etc/kubernetes/super-admin.conf /etc/kubernetes/bootstrap.yaml",
    )?;
    ensure!(modes.lines().all(|line| line == "600 0"), "keys have other modes or owners: {modes}");
    let shown = shell.run("grep -l 'PRIVATE KEY' /run/orlop/node-config.json", Duration::from_secs(30))?;
    ensure!(shown.status == 1, "the shown configuration has a key: {}", shown.text);
    let current = shell.must("readlink /var/lib/kubelet/pki/kubelet-client-current.pem")?;
    ensure!(current.contains("kubelet-client-"), "the node has no certificate of its own: {current}");
    let member = shell.must("ls /var/lib/etcd")?;
    ensure!(member.contains("member"), "etcd's data are elsewhere: {member}");
    Ok(())
}
