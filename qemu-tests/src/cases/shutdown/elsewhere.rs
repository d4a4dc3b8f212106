//! Replicas of a node that goes down are created on another one: after a shutdown, and by the taint `out-of-service`
//! after a power cut. The node that comes back has nothing left of them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use serde_json::{Value, json};

use super::{
    OFF_LIMIT_S, Periods, ReceiptFile, VM, await_boot, boot_id, ensure_terminated, five, whole_receipt,
};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "shutdown/elsewhere",
    level: Level::L4v,
    expected_s: 190,
    about: "a Deployment and a StatefulSet go on on another node: after systemctl poweroff, and by the taint \
            out-of-service after a power cut",
    group: None,
    run: elsewhere,
}];

const NATIVE: &str = "native";
/// The taint of a node that is out of service.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// One container that stays, preferably on the VM.
fn template(app: &str) -> Value {
    let preference = json!({"matchExpressions": [{"key": LABEL.0, "operator": "Exists"}]});
    let here = json!([{"weight": 100, "preference": preference}]);
    json!({"metadata": {"labels": {"app": app}}, "spec": {
        "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": false,
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": here}},
        "containers": [{"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never"}],
    }})
}

fn workloads(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let of = |app: &str| json!({"matchLabels": {"app": app}});
    client.create::<Deployment>(
        &client.of("default"),
        json!({"metadata": {"name": "deployed"},
            "spec": {"replicas": 2, "selector": of("deployed"), "template": template("deployed")}}),
    )?;
    client.create::<StatefulSet>(
        &client.of("default"),
        json!({"metadata": {"name": "stateful"}, "spec": {"replicas": 1, "serviceName": "none",
            "selector": of("stateful"), "template": template("stateful")}}),
    )?;
    Ok(())
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// All replicas are Ready on this node.
fn await_on(cluster: &Cluster, node: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    let what = format!("two replicas of the Deployment and the StatefulSet's on {node}");
    client.wait::<Pod, _>(&client.of("default"), limit_s, &what, |all| {
        let here = |prefix: &str| {
            let fine = |(name, pod): &(&String, &Pod)| {
                name.starts_with(prefix) && ready::pod(pod) && node_of(pod) == Some(node)
            };
            all.iter().filter(fine).count()
        };
        (here("deployed") == 2 && here("stateful") == 1).then_some(())
    })
}

/// Number of containers that run on the VM.
fn runs(vm: &mut VmNode) -> Result<String> {
    vm.vm()?.shell()?.must("ctr -n k8s.io tasks ls | grep -c RUNNING; true").map(|n| n.trim().to_owned())
}

fn elsewhere(cx: &mut CaseContext<'_>) -> Result<()> {
    // Short, so that a silent node is known as one soon.
    let settings = Settings { node_monitor_grace: Duration::from_secs(20), ..Settings::default() };
    let agent = built::agent(&cx.run, false)?;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, settings)?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    Periods::ByPriority.configure(&mut vm);
    vm.boot(Some(cluster.token()))?;
    let mut native = cluster.start_node(&cx.artefacts, NATIVE, agent)?;
    start_kubelet(&mut native, JoinMethod::JoinFile)?;
    await_ready(&cluster, NATIVE, 120)?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    let idle = runs(&mut vm)?;
    workloads(&cluster)?;
    await_on(&cluster, VM, 120)?;

    five::create_class(&cluster)?;
    five::run(&cluster, five::SOON)?;

    // An ordered shutdown: the pods end first, and are created on the other node.
    let before = boot_id(&cluster)?;
    vm.vm()?.shell()?.tell("systemctl poweroff")?;
    vm.await_off(OFF_LIMIT_S)?;
    await_on(&cluster, NATIVE, 60)?;
    let client = cluster.client();
    let left: Vec<Pod> = {
        let all = client.block_on(client.of::<Pod>("default").list(&kube::api::ListParams::default()))?;
        let of_workloads =
            |pod: &Pod| pod.metadata.owner_references.as_ref().is_some_and(|by| !by.is_empty());
        all.items.into_iter().filter(|pod| node_of(pod) == Some(VM) && of_workloads(pod)).collect()
    };
    ensure!(left.len() == 2, "the Deployment's ended replicas: {left:?}");
    left.iter().try_for_each(|pod| ensure_terminated(pod).map(drop))?;
    vm.boot(None)?;
    await_boot(&cluster, &mut vm, &before)?;
    five::ensure_in_order(&cluster)?;
    let written = whole_receipt(&mut vm, &before, "poweroff")?;
    let (ours, theirs): (Vec<_>, Vec<_>) =
        written.pods.into_iter().partition(|pod| five::NAMES.contains(&pod.name.as_str()));
    five::ensure_written(&cluster, &ReceiptFile { pods: ours, ..written })?;
    ensure!(theirs.len() == 3 && theirs.iter().all(|pod| pod.ended && pod.told), "{theirs:?}");
    five::clear(&cluster)?;
    client.wait::<Pod, _>(&client.of("default"), 60, "the ended replicas to be taken away", |all| {
        all.values().all(|pod| node_of(pod) != Some(VM)).then_some(())
    })?;
    ensure!(runs(&mut vm)? == idle, "something of them runs again");

    // A power cut: the taint marks the node as out of service, and its pods are deleted.
    cluster.kubectl(&["cordon", NATIVE])?;
    cluster.kubectl(&["delete", "pod", "--all", "--wait=false"])?;
    await_on(&cluster, VM, 120)?;
    cluster.kubectl(&["uncordon", NATIVE])?;
    let before = boot_id(&cluster)?;
    vm.cut_power();
    client.wait::<Node, _>(&client.all(), 90, "the silent node to be known as one", |all| {
        (!ready::node(all.get(VM)?)).then_some(())
    })?;
    cluster.kubectl(&["taint", "nodes", VM, &format!("{OUT_OF_SERVICE}=nodeshutdown:NoExecute")])?;
    await_on(&cluster, NATIVE, 120)?;
    vm.boot(None)?;
    await_boot(&cluster, &mut vm, &before)?;
    cluster.kubectl(&["taint", "nodes", VM, &format!("{OUT_OF_SERVICE}-")])?;
    let all = client.block_on(client.of::<Pod>("default").list(&kube::api::ListParams::default()))?;
    let stuck: Vec<&Pod> = all.items.iter().filter(|pod| node_of(pod) == Some(VM)).collect();
    ensure!(stuck.is_empty(), "pods that were given up: {stuck:?}");
    ensure!(runs(&mut vm)? == idle, "something of them runs again");
    let shell = vm.vm()?.shell()?;
    let gone = "i=0; while [ \"$(ls /var/lib/kubelet/pods)\" ] && [ $i -lt 60 ]; do sleep 0.5; i=$((i+1)); done; \
                ls /var/lib/kubelet/pods | wc -l";
    let left = shell.run(gone, Duration::from_secs(60)).context("directories of pods")?.text;
    ensure!(left.trim() == "0", "{left} directories of pods are left");
    cluster.ensure_nothing_forbidden()
}
