//! A booted VM joins a cluster next to a native node, and returns as the same node after a power cut.

mod amounts;
mod plugins;
pub(crate) mod tools;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Event, Node, NodeSystemInfo, Pod, Secret};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{
    STAYS, api_pod, await_event, await_pod_gone, await_pod_ready, await_ready, await_serving,
};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use orlop_harness::cluster::{metrics_server, ready, wires};
use orlop_harness::say;
use serde_json::json;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "join/vm",
    level: Level::L4v,
    expected_s: 150,
    about: "a VM joins with a token from SMBIOS, runs a pod, and is the same node after a power cut without token",
    group: None,
    run: vm,
}];

/// Name of the VM's node, and of its pod.
const VM: &str = "vm";
const POD: &str = "on-vm";
/// Name of the pod that `kubectl run` makes there.
const RUN: &str = "by-kubectl-run";

fn vm(cx: &mut CaseContext<'_>) -> Result<()> {
    let agent = built::agent(&cx.run, false)?;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.add_disk(tools::disk(&cx.artefacts)?);
    vm.ask_plugins(plugins::configured());
    vm.boot(Some(cluster.token()))?;
    // A native node joins while the VM boots.
    let mut native = cluster.start_node(&cx.artefacts, "native", agent)?;
    start_kubelet(&mut native, JoinMethod::JoinFile)?;
    await_ready(&cluster, "native", 120)?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    say_ready(&mut vm, "first boot")?;
    let node = await_ready(&cluster, VM, READY_LIMIT_S)?;
    let first = info(&node)?;
    ensure_described(&cluster, &mut vm, &node)?;
    // It queries the nodes while the case checks other things.
    metrics_server::start(&mut cluster)?;
    let pod = run_pods(cx, &cluster, &vm)?;
    let pod_ip = pod_ip(&pod)?;
    for (who, pid) in [("the control plane", cluster.pid()?), ("the other node", native.pid())] {
        wires::reach(pid, pod_ip, Duration::from_secs(20)).with_context(|| format!("a pod, from {who}"))?;
    }

    let requests = certificate_requests(&cluster)?;
    ensure!(requests.len() == 2, "one request for each node: {requests:?}");
    ensure_served(&cluster)?;
    ensure_memory(&cluster, &mut vm)?;
    tools::ensure_usable(cx, &cluster, &mut vm)?;
    amounts::ensure_changed(&cluster, &mut vm)?;
    plugins::ensure_asked(&cluster, &mut vm)?;
    metrics_server::stop(&mut cluster)?;
    let identity = identity(&mut vm)?;
    forget_token(&cluster, &mut vm)?;
    vm.cut_power();
    vm.boot(None)?;
    say_ready(&mut vm, "second boot")?;
    let back = await_back(&cluster, &first.boot_id)?;
    ensure!(back.metadata.uid == node.metadata.uid, "another Node object after the power cut");
    ensure_described(&cluster, &mut vm, &back)?;
    let second = info(&back)?;
    ensure!(
        (&second.machine_id, &second.system_uuid) == (&first.machine_id, &first.system_uuid),
        "another machine: {first:?}, then {second:?}"
    );
    await_rebooted(&cluster)?;
    await_event(&cluster, "UncleanShutdown", VM, 60)?;
    await_restarted(&cluster, &pod)?;
    ensure!(
        crate::cases::join::vm::identity(&mut vm)? == identity,
        "another certificate after the power cut"
    );
    let after = certificate_requests(&cluster)?;
    ensure!(after == requests, "certificates were asked for again: {requests:?}, then {after:?}");
    cluster.kubectl(&["delete", "pod", POD])?;
    await_pod_gone(&cluster, POD, 60)?;
    cluster.ensure_nothing_forbidden()
}

fn say_ready(vm: &mut VmNode, which: &str) -> Result<()> {
    let machine = vm.vm()?;
    let ready = machine.await_phase("node.ready", READY_LIMIT_S)?;
    let started = machine.await_phase("agent.started", 0)?;
    let seconds = |ms: u64| ms as f64 / 1000.0;
    say::line(format!(
        "  {which}: Ready {:.1} s after the VM's kernel, {:.1} s after the agent's start",
        seconds(ready.at_ms),
        seconds(ready.at_ms.saturating_sub(started.at_ms)),
    ));
    Ok(())
}

fn info(node: &Node) -> Result<NodeSystemInfo> {
    node.status.as_ref().and_then(|s| s.node_info.clone()).context("a node without nodeInfo")
}

/// The Node describes the machine, in the API and in kubectl's output.
fn ensure_described(cluster: &Cluster, vm: &mut VmNode, node: &Node) -> Result<()> {
    let address = vm.wire().address();
    let addresses = node.status.as_ref().and_then(|s| s.addresses.clone()).unwrap_or_default();
    let mut addresses: Vec<_> = addresses.iter().map(|a| (a.type_.as_str(), a.address.as_str())).collect();
    addresses.sort_unstable();
    ensure!(addresses == [("Hostname", VM), ("InternalIP", &address)], "addresses: {addresses:?}");
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let wanted = [("kubernetes.io/hostname", VM), ("kubernetes.io/os", "linux"), LABEL];
    for (key, value) in wanted {
        ensure!(labels.get(key).is_some_and(|v| v == value), "label {key}: {labels:?}");
    }
    let (info, uuid) = (info(node)?, vm.wire().uuid());
    let shell = vm.vm()?.shell()?;
    let mut read = |command: &str| shell.must(command).map(|text| text.trim().to_owned());
    let os = read(". /etc/os-release; echo \"$PRETTY_NAME\"")?;
    for (what, said, is) in [
        ("machineID", &info.machine_id, read("cat /etc/machine-id")?),
        ("systemUUID", &info.system_uuid, uuid),
        ("bootID", &info.boot_id, read("cat /proc/sys/kernel/random/boot_id")?),
        ("kernelVersion", &info.kernel_version, read("cat /proc/sys/kernel/osrelease")?),
        ("osImage", &info.os_image, os),
    ] {
        ensure!(*said == is && !is.is_empty(), "{what} is {is:?}, the Node says {said:?}");
    }
    let wide = cluster.kubectl(&["get", "nodes", "-o", "wide"])?;
    for name in [VM, "native"] {
        let line = wide.lines().find(|l| l.split_whitespace().next() == Some(name));
        ensure!(line.is_some_and(|l| l.contains(" Ready ")), "{name} is not shown as Ready:\n{wide}");
    }
    for shown in [&address, &info.os_image, &info.kernel_version] {
        ensure!(wide.contains(shown.as_str()), "{shown} is not shown:\n{wide}");
    }
    Ok(())
}

/// Makes a pod on each node with kubectl; returns the VM's.
fn run_pods(cx: &CaseContext<'_>, cluster: &Cluster, vm: &VmNode) -> Result<Pod> {
    let container = json!({"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never"});
    let on_vm = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": {
        "nodeSelector": {LABEL.0: LABEL.1}, "terminationGracePeriodSeconds": 2, "containers": [container]}});
    let mut on_native = api_pod("on-native", "native", STAYS, 1);
    on_native["apiVersion"] = "v1".into();
    on_native["kind"] = "Pod".into();
    let file = cx.artefacts.join("pods.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [on_vm, on_native]});
    std::fs::write(&file, list.to_string()).context("write the pods")?;
    cluster.kubectl(&["create", "-f", &file.display().to_string()])?;
    await_pod_ready(cluster, "on-native", 60)?;
    let pod = await_pod_ready(cluster, POD, 120)?;
    let status = pod.status.as_ref().context("a pod without a status")?;
    ensure!(status.host_ip.as_ref() == Some(&vm.wire().address()), "hostIP {:?}", status.host_ip);
    let subnet = vm.wire().pods();
    let prefix = subnet.trim_end_matches("0/24");
    ensure!(status.pod_ip.as_ref().is_some_and(|ip| ip.starts_with(prefix)), "podIP {:?}", status.pod_ip);
    Ok(pod)
}

/// The VM serves its pods' logs to kubectl, which runs one of its own there.
/// The journal by the names of services, as `/logs/` shows it.
fn journal(cluster: &Cluster) -> Result<()> {
    let ask = |query: &str| {
        cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{VM}/proxy/logs/?query={query}")])
    };
    let of_agent = ask("kubelet&tailLines=3")?;
    ensure!(of_agent.lines().filter(|line| line.contains("orlop-agent[")).count() == 3, "{of_agent}");
    let of_runtime = ask("containerd&pattern=containerd.*boot")?;
    let only = |line: &str| line.contains("containerd[") && line.contains("boot") || line.starts_with("-- ");
    ensure!(of_runtime.contains("containerd[") && of_runtime.lines().all(only), "{of_runtime}");
    ensure!(
        ask("containerd&untilTime=2001-01-01T00:00:00Z")?.trim() == "-- No entries --",
        "before it was there"
    );
    Ok(())
}

fn ensure_served(cluster: &Cluster) -> Result<()> {
    await_serving(cluster, VM, 60)?;
    let greets = |pod: &str| -> Result<()> {
        let said = cluster.kubectl(&["logs", pod])?;
        let host = format!("host name {pod}");
        ensure!(said.starts_with("Hello") && said.contains(&host), "kubectl logs {pod}: {said:?}");
        Ok(())
    };
    greets(POD)?;
    let overrides = json!({"spec": {"nodeName": VM, "automountServiceAccountToken": false}}).to_string();
    let (image, overrides) = ("--image=localhost/orlop/hello:1", format!("--overrides={overrides}"));
    cluster.kubectl(&["run", RUN, image, "--image-pull-policy=Never", &overrides])?;
    await_pod_ready(cluster, RUN, 120)?;
    greets(RUN)?;
    journal(cluster)?;
    let metrics =
        cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{VM}/proxy/metrics/resource")])?;
    let amount = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        line.and_then(|value| value.parse::<f64>().ok())
    };
    let of_pod = format!("namespace=\"default\",pod=\"{RUN}\"");
    for more_than_none in [
        "node_cpu_usage_seconds_total".to_owned(),
        "node_memory_working_set_bytes".to_owned(),
        format!("pod_memory_working_set_bytes{{{of_pod}}}"),
        format!("container_cpu_usage_seconds_total{{container=\"{RUN}\",{of_pod}}}"),
        format!("container_memory_working_set_bytes{{container=\"{RUN}\",{of_pod}}}"),
        format!("container_start_time_seconds{{container=\"{RUN}\",{of_pod}}}"),
    ] {
        ensure!(amount(&more_than_none).is_some_and(|value| value > 0.0), "{more_than_none}:\n{metrics}");
    }
    ensure!(amount("resource_scrape_error") == Some(0.0), "{metrics}");
    ensure_summary(cluster)?;
    ensure_cadvisor(cluster)?;
    cluster.kubectl(&["delete", "pod", RUN, "--grace-period=1"])?;
    await_pod_gone(cluster, RUN, 60)
}

/// The node's working set is that of the root cgroup: the kernel's own memory is not in it.
fn ensure_memory(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    const CHANGES_BY: i64 = 20 << 20;
    let told = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{VM}/proxy/stats/summary")])?;
    let told: serde_json::Value = serde_json::from_str(&told).context("the summary")?;
    let told = told["node"]["memory"]["workingSetBytes"].as_i64().context("no working set")?;
    let of_root = vm.vm()?.shell()?.must(
        "u=0; while read k v; do case $k in anon|file) u=$((u + v));; inactive_file) u=$((u - v));; esac; done \
         < /sys/fs/cgroup/memory.stat; echo $u",
    )?;
    let of_root: i64 = of_root.trim().parse().with_context(|| format!("the root's: {of_root:?}"))?;
    say::line(format!("  working set: {} MiB, the root cgroup's {} MiB", told >> 20, of_root >> 20));
    ensure!(
        (told - of_root).abs() < CHANGES_BY,
        "the node tells {told} bytes, its root cgroup has {of_root}"
    );
    Ok(())
}

/// Figures that only a unified hierarchy has: pressure, the parts of the machine, pods' own cgroups.
fn ensure_summary(cluster: &Cluster) -> Result<()> {
    let text = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{VM}/proxy/stats/summary")])?;
    let summary: serde_json::Value = serde_json::from_str(&text).context("the summary")?;
    let all = |list: &serde_json::Value| list.as_array().cloned().unwrap_or_default();
    let pod = all(&summary["pods"]).into_iter().find(|pod| pod["podRef"]["name"] == RUN);
    let pod = pod.with_context(|| format!("pod {RUN} is not in the summary: {text}"))?;
    for (of, fields) in [
        (&summary["node"], &["/cpu/psi/some/total", "/memory/psi/full/avg10", "/io/psi/some/total"][..]),
        (&pod["containers"][0], &["/cpu/psi/some/total", "/memory/psi/some/total", "/io/psi/full/avg300"]),
        (
            &pod,
            &[
                "/cpu/psi/some/avg60",
                "/io/psi/some/total",
                "/network/rxBytes",
                "/process_stats/process_count",
            ],
        ),
        (&pod, &["/cpu/usageCoreNanoSeconds", "/memory/workingSetBytes"]),
    ] {
        for field in fields {
            ensure!(of.pointer(field).is_some_and(serde_json::Value::is_number), "no {field}: {of:#}");
        }
    }
    let parts: BTreeSet<_> =
        all(&summary["node"]["systemContainers"]).iter().map(|part| part["name"].to_string()).collect();
    let expected = ["kubelet", "pods", "runtime"].map(|name| format!("{name:?}"));
    ensure!(parts == expected.into(), "parts of the machine: {parts:?}");
    Ok(())
}

fn ensure_cadvisor(cluster: &Cluster) -> Result<()> {
    let text = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{VM}/proxy/metrics/cadvisor")])?;
    let value = |name: &str, labels: &[String]| {
        let is = |line: &&str| {
            line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label.as_str()))
        };
        text.lines().find(is)?.rsplit("} ").next()?.split(' ').next()?.parse::<f64>().ok()
    };
    let pod = || format!("pod=\"{RUN}\"");
    let container = [format!("container=\"{RUN}\""), pod(), "id=\"/kubepods.slice/".to_owned()];
    for name in
        ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_threads"]
    {
        ensure!(value(name, &container).is_some_and(|value| value > 0.0), "{name}:\n{text}");
    }
    for what in ["cpu", "io", "memory"] {
        for how in ["stalled", "waiting"] {
            let name = format!("container_pressure_{what}_{how}_seconds_total");
            ensure!(value(&name, &container).is_some(), "{name}:\n{text}");
        }
    }
    let sandbox = [pod(), "container=\"\"".to_owned(), "interface=\"eth0\"".to_owned()];
    ensure!(
        value("container_network_receive_packets_total", &sandbox).is_some(),
        "no network of {RUN}:\n{text}"
    );
    ensure!(value("machine_memory_bytes", &[]).is_some_and(|bytes| bytes > 1e8), "{text}");
    Ok(())
}

fn pod_ip(pod: &Pod) -> Result<std::net::IpAddr> {
    let ip = pod.status.as_ref().and_then(|s| s.pod_ip.as_deref()).context("a pod without an address")?;
    ip.parse().with_context(|| format!("podIP {ip}"))
}

fn container_id(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.container_id.as_deref()
}

/// Waits until the same pod is Ready again, in another container.
fn await_restarted(cluster: &Cluster, before: &Pod) -> Result<()> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 120, "the pod to run again", |all| {
        let pod = all.get(POD).filter(|p| ready::pod(p) && p.metadata.uid == before.metadata.uid)?;
        (container_id(pod)? != container_id(before)?).then_some(())
    })
}

fn await_back(cluster: &Cluster, old_boot: &str) -> Result<Node> {
    let client = cluster.client();
    client.wait::<Node, _>(&client.all(), READY_LIMIT_S, "the VM to be back and Ready", |all| {
        let node = all.get(VM).filter(|n| ready::node(n))?;
        (node.status.as_ref()?.node_info.as_ref()?.boot_id != old_boot).then(|| node.clone())
    })
}

/// Waits until the cluster has the event about the restart of the machine.
fn await_rebooted(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    client.wait::<Event, _>(&client.of("default"), 60, "the event Rebooted", |all| {
        let of_vm = |e: &&Event| e.involved_object.name.as_deref() == Some(VM);
        all.values().filter(of_vm).find(|e| e.reason.as_deref() == Some("Rebooted")).map(|_| ())
    })
}

/// Names of the requests for client certificates so far.
fn certificate_requests(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let client = cluster.client();
    client.wait::<CertificateSigningRequest, _>(&client.all(), 30, "certificate requests", |all| {
        let of_nodes = all.iter().filter(|(_, r)| r.spec.signer_name.ends_with("-client-kubelet"));
        Some(of_nodes.map(|(name, _)| name.clone()).collect())
    })
}

/// The certificate in use: the name of its file and its digest.
fn identity(vm: &mut VmNode) -> Result<String> {
    let current = "/var/lib/kubelet/pki/kubelet-client-current.pem";
    vm.vm()?.shell()?.must(&format!("readlink {current} && sha256sum < {current}"))
}

/// The token is on no disk of the node; from now on it is good for nothing in the cluster either.
fn forget_token(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    let token = cluster.token();
    let search = format!("grep -rlF {} /var/lib/kubelet /var/lib/orlop /var/log", token.secret);
    let found = vm.vm()?.shell()?.run(&search, Duration::from_secs(60))?;
    // 1: read everything and found nothing.
    ensure!(found.status == 1, "the token on the state partition? status {}: {}", found.status, found.text);
    let secrets = cluster.client().of::<Secret>("kube-system");
    cluster.client().delete(&secrets, &format!("bootstrap-token-{}", token.id), None)
}
