//! A credential provider plugin of NodeConfig, whose program is installed while the node runs.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::cluster::fixture::{await_event, await_pod_gone};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::VmNode;
use serde_json::{Value, json};

use crate::cases::join::vm::VM;

const NAME: &str = "by-plugin";
const IMAGE: &str = "plugin.invalid/team/app";
/// The appliance's directory of plugin programs.
const DIR: &str = "/var/lib/kubelet/credential-providers";

/// `registries.credentialProviders`.
pub(super) fn configured() -> Value {
    json!([{
        "name": "asked",
        "matchImages": ["plugin.invalid"],
        "defaultCacheDuration": "0s",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "env": [{"name": "ASKED", "value": format!("{DIR}/request")}],
    }])
}

/// The node runs without the program, and uses it as soon as it exists.
pub(super) fn ensure_asked(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    let told = "journalctl -u kubelet -b -o cat --no-pager | grep -c 'plugin cannot be asked'";
    vm.vm()?.shell()?.must(told).context("the log of a node whose plugin's program is missing")?;
    let answer = json!({"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
        "cacheKeyType": "Image", "auth": {"plugin.invalid": {"username": "u", "password": "p"}}});
    let program = format!("#!/bin/bash\ncat > \"$ASKED\"\necho '{answer}'\n").replace('\'', "'\\''");
    vm.vm()?
        .shell()?
        .must(&format!("mkdir -p {DIR} && printf %s '{program}' > {DIR}/asked && chmod 0755 {DIR}/asked"))?;
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": {
        "nodeName": VM, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": format!("{IMAGE}:1")}]}}))?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    client.block_on(pods.create(&kube::api::PostParams::default(), &pod))?;
    // The pull fails, because there is no such registry.
    await_event(cluster, "Failed", NAME, 60)?;
    let request = vm.vm()?.shell()?.must(&format!("cat {DIR}/request"))?;
    let request: Value = serde_json::from_str(request.trim()).context("the plugin's request")?;
    ensure!(request["image"] == IMAGE, "the plugin was asked {request}");
    client.delete::<Pod>(&pods, NAME, None)?;
    await_pod_gone(cluster, NAME, 60)
}
