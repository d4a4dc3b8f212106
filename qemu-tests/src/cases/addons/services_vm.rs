//! Services of a booted VM with kube-proxy and CoreDNS, over kills and a reboot.
//!
//! Cases: `addons/services-vm`, `addons/services-vm-ipvs`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::addons::{AddOns, COREDNS, NAMESPACE, NodeKind, ProxyMode};
use orlop_harness::cluster::fixture::{await_pod_ready, await_ready, await_serving};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::requests::await_answer;
use orlop_harness::cluster::requests::steady::{Pace, SteadyLoad, describe};
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::say;
use serde_json::{Value, json};

use super::asking::{
    ANSWERS, PORT, ServiceAddresses, address_of, answers, answers_outside, await_named, ensure_all_answer,
    ensure_no_gap, serve, words,
};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "addons/services-vm",
        300,
        "a Service of a booted VM is reached by name, address and port, a pod by its host port; the Service goes on \
         when agent and containerd are killed, and answers again after the VM was rebooted",
        iptables,
    ),
    HERE.case("addons/services-vm-ipvs", 300, "the same with kube-proxy's mode ipvs", ipvs),
];

const VM: &str = "vm";
/// The Deployment, its pods' label and their Service.
const WEB: &str = "web";
/// Its pods.
const REPLICAS: usize = 2;
/// The pod with a port of its node.
const PORTED: &str = "ported";
/// That port.
const HOST_PORT: u16 = 8088;
/// Limit for the add-ons to be Ready: the VM unpacks large images.
const ADD_ONS_LIMIT_S: u64 = READY_LIMIT_S * 2;
/// Limit for pods, Services and the node's certificate, seconds.
const LIMIT_S: u64 = READY_LIMIT_S;
/// Pace of the requests during a kill.
const PACE: Pace = Pace { period: Duration::from_millis(250), limit: Duration::from_secs(5) };

fn iptables(cx: &mut CaseContext<'_>) -> Result<()> {
    services(cx, ProxyMode::Iptables)
}

fn ipvs(cx: &mut CaseContext<'_>) -> Result<()> {
    services(cx, ProxyMode::Ipvs)
}

fn services(cx: &mut CaseContext<'_>, mode: ProxyMode) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let addons = AddOns::make(&cluster, mode, NodeKind::Vm)?;
    let image = addons.add_shell(&cluster)?;
    addons.serve(&cluster)?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    addons.prepare(&mut vm);
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    await_serving(&cluster, VM, LIMIT_S)?;
    let start = Instant::now();
    addons.install(&cluster, 1, ADD_ONS_LIMIT_S)?;
    say::line(format!("  kube-proxy and CoreDNS are Ready after {:.1} s", start.elapsed().as_secs_f64()));
    let client = cluster.client();
    client.create::<Deployment>(&client.of("default"), deployment(&image))?;
    let mut pods = await_started(&cluster, "default", WEB, &BTreeSet::new())?;
    let service = serve(&cluster, WEB, WEB, json!({"type": "NodePort"}))?;
    ensure_mode(&mut vm, mode)?;
    ensure_reached(&cluster, &pods, &service)?;
    ensure_virtual_server(&mut vm, mode, &service)?;
    ensure_host_port(&cluster, &image)?;
    for unit in ["kubelet", "containerd"] {
        kill_under_load(&cluster, &mut vm, &service, unit)?;
        pods = replace_pod(&cluster, pods, &service).with_context(|| format!("after the kill of {unit}"))?;
    }
    reboot(&cluster, &mut vm, &pods, &service)?;
    ensure_mode(&mut vm, mode)?;
    cluster.ensure_nothing_forbidden()
}

fn shell_container(image: &str) -> Value {
    json!({
        "name": "c", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", ANSWERS],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    })
}

fn deployment(image: &str) -> Value {
    let labels = json!({"app": WEB});
    json!({"metadata": {"name": WEB}, "spec": {
        "replicas": REPLICAS,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {
            "terminationGracePeriodSeconds": 1, "containers": [shell_container(image)],
        }},
    }})
}

/// Waits until so many Ready pods with this prefix are not among the old ones, or were started again since; returns their
/// names. Until the node of a rebooted machine reports, the API server shows the pods as they were.
fn await_started(
    cluster: &Cluster,
    namespace: &str,
    prefix: &str,
    old: &BTreeSet<String>,
) -> Result<BTreeSet<String>> {
    let client = cluster.client();
    let restarted = |pod: &Pod| {
        let mut statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
        statuses.all(|status| status.restart_count > 0)
    };
    let what = format!("{REPLICAS} pods of {prefix} to run");
    client.wait::<Pod, _>(&client.of(namespace), LIMIT_S, &what, |all| {
        let is = |(name, pod): &(&String, &Pod)| {
            name.starts_with(prefix) && ready::pod(pod) && (!old.contains(*name) || restarted(pod))
        };
        let found: BTreeSet<String> = all.iter().filter(is).map(|(name, _)| name.clone()).collect();
        (found.len() == REPLICAS).then_some(found)
    })
}

/// Checks that kube-proxy reports this mode.
fn ensure_mode(vm: &mut VmNode, mode: ProxyMode) -> Result<()> {
    let told = vm.vm()?.shell()?.must(
        "(exec 3<>/dev/tcp/127.0.0.1/10249; printf 'GET /proxyMode HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3)",
    )?;
    let told = told.lines().last().unwrap_or_default();
    ensure!(told.trim() == mode.name(), "kube-proxy tells the mode {told:?}");
    Ok(())
}

/// In the mode `ipvs` the kernel has the Service as a virtual server.
fn ensure_virtual_server(vm: &mut VmNode, mode: ProxyMode, service: &ServiceAddresses) -> Result<()> {
    if mode != ProxyMode::Ipvs {
        return Ok(());
    }
    let IpAddr::V4(address) = service.address else { bail!("{} is no IPv4 address", service.address) };
    let servers = vm.vm()?.shell()?.must("cat /proc/net/ip_vs")?;
    let wanted = format!("{:08X}:{:04X}", u32::from(address), 80);
    ensure!(servers.contains(&wanted), "the kernel has no virtual server {wanted}:\n{servers}");
    Ok(())
}

/// By name and address from a pod, at the node's port from outside.
fn ensure_reached(cluster: &Cluster, pods: &BTreeSet<String>, service: &ServiceAddresses) -> Result<()> {
    let pod = pods.first().context("no pod")?;
    await_named(cluster, pod, WEB, &BTreeSet::from([service.address]))?;
    ensure_all_answer(pods, &answers(cluster, pod, &service.at())?, "by name and address")?;
    let port = words(service.at_node(address_of(cluster, VM)?)?);
    ensure_all_answer(pods, &answers_outside(cluster, &port)?, "at the node's port")
}

/// The network of the image has host ports.
fn ensure_host_port(cluster: &Cluster, image: &str) -> Result<()> {
    let mut container = shell_container(image);
    container["ports"] = json!([{"containerPort": PORT, "hostPort": HOST_PORT}]);
    let client = cluster.client();
    client.create::<Pod>(
        &client.of("default"),
        json!({"metadata": {"name": PORTED}, "spec": {
            "terminationGracePeriodSeconds": 1, "containers": [container],
        }}),
    )?;
    await_pod_ready(cluster, PORTED, LIMIT_S)?;
    let at = SocketAddr::from((address_of(cluster, VM)?, HOST_PORT));
    let seen = answers_outside(cluster, &words(at))?;
    ensure!(seen == [PORTED.to_owned()].into(), "at the host port {seen:?} answered");
    Ok(())
}

/// Kills the main process of a unit, which systemd starts again, under requests.
fn kill_under_load(cluster: &Cluster, vm: &mut VmNode, service: &ServiceAddresses, unit: &str) -> Result<()> {
    let (plane, node) = (cluster.pid()?, address_of(cluster, VM)?);
    let load = SteadyLoad::start(plane, vec![(WEB.to_owned(), service.at_node(node)?)], PACE)?;
    vm.vm()?.shell()?.must(&format!("systemctl kill --kill-whom=main -s KILL {unit}"))?;
    let name = format!("after-{unit}");
    let late = serve(cluster, &name, WEB, json!({"type": "NodePort"}))?;
    let routed = await_answer(plane, late.at_node(node)?, Duration::from_secs(LIMIT_S))?;
    await_serving(cluster, VM, LIMIT_S)?;
    let back = load.elapsed();
    let reports = load.finish()?;
    say::line(format!(
        "  {unit}, killed, serves {:.1} s later, a new Service worked after {:.1} s; {}",
        back.as_secs_f64(),
        routed.as_secs_f64(),
        describe(&reports)
    ));
    ensure_no_gap(&reports, unit)
}

/// Deletes one of the pods, which no kill has replaced, and waits until the Service leads to its successor too; returns the pods.
fn replace_pod(
    cluster: &Cluster,
    mut pods: BTreeSet<String>,
    service: &ServiceAddresses,
) -> Result<BTreeSet<String>> {
    let old = pods.pop_first().context("no pod")?;
    let client = cluster.client();
    client.delete::<Pod>(&client.of("default"), &old, Some(1))?;
    let what = format!("{REPLICAS} pods without {old} to be Ready");
    let now = client.wait::<Pod, _>(&client.of("default"), LIMIT_S, &what, |all| {
        let is = |(name, pod): &(&String, &Pod)| name.starts_with(WEB) && ready::pod(pod) && **name != old;
        let found: BTreeSet<String> = all.iter().filter(is).map(|(name, _)| name.clone()).collect();
        (found.len() == REPLICAS).then_some(found)
    })?;
    ensure!(pods.is_subset(&now), "the pods were {old} and {pods:?}, and are {now:?}");
    await_all_answer(cluster, &now, &words(service.at_node(address_of(cluster, VM)?)?))?;
    Ok(now)
}

/// Reboots the VM in order. The shutdown ends its pods, their controllers make new ones; the Service's address and its
/// port stay.
fn reboot(
    cluster: &Cluster,
    vm: &mut VmNode,
    pods: &BTreeSet<String>,
    service: &ServiceAddresses,
) -> Result<()> {
    let names = running(cluster, COREDNS)?;
    vm.vm()?.reboot(READY_LIMIT_S)?;
    let start = Instant::now();
    let at = service.at_node(address_of(cluster, VM)?)?;
    await_answer(cluster.pid()?, at, Duration::from_secs(READY_LIMIT_S + LIMIT_S))?;
    let answered = start.elapsed().as_secs_f64();
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    let pods = await_started(cluster, "default", WEB, pods)?;
    await_started(cluster, NAMESPACE, COREDNS, &names)?;
    await_serving(cluster, VM, LIMIT_S)?;
    await_all_answer(cluster, &pods, &words(at))?;
    say::line(format!(
        "  after the reboot the Service answers after {answered:.1} s, all of its pods after {:.1} s",
        start.elapsed().as_secs_f64()
    ));
    ensure_reached(cluster, &pods, service)
}

/// Names of the add-ons' pods with this prefix.
fn running(cluster: &Cluster, prefix: &str) -> Result<BTreeSet<String>> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of(NAMESPACE), 10, "the pods", |all| {
        Some(all.keys().filter(|name| name.starts_with(prefix)).cloned().collect())
    })
}

/// Waits until requests from outside are answered by all of these pods: kube-proxy learns of a new pod a moment after it
/// is Ready.
fn await_all_answer(cluster: &Cluster, pods: &BTreeSet<String>, at: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        // The requests take their time.
        match answers_outside(cluster, at) {
            Ok(seen) if seen == *pods => return Ok(()),
            last if start.elapsed().as_secs() >= LIMIT_S => {
                bail!("after {LIMIT_S} s: {last:?}, the pods are {pods:?}")
            }
            _ => {}
        }
    }
}
