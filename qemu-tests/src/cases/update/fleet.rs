//! Three nodes of a cluster take turns: a bad version stops at the first of them, and a good one goes round.
//!
//! Cases: `update/fleet`, and `update/orders` with one node. The operator has kubectl alone: orders are annotations, and all that is
//! judged is in the API. Only what stands for the publisher (releases, the trust document of a built image) and for the bad version's
//! fault is not.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_event, await_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::say;
use orlop_harness::vm::machine::Vm;
use serde_json::json;

use super::fleet_watch::{Extremes, available, follow_fleet, group, lock};
use super::published::{Server, new_keys, publish_bootable_release, published};
use super::staging::trust;
use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, await_network};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    ALONE.case(
        "update/fleet",
        3600,
        "of three nodes one tries a bad version and comes back, the others never boot it; a good one goes round, one by one",
        fleet,
    ),
    ALONE.case(
        "update/orders",
        900,
        "annotations name a version, permit its reboot and lead the node back; one with a wrong value is refused by an event",
        orders,
    ),
];

/// The nodes.
const NODES: [&str; 3] = ["one", "two", "three"];
/// The versions: what is broken of the first one is broken in its trial.
const BAD: &str = "0.9.1";
const GOOD: &str = "0.9.2";
/// Pods of the Deployment, and those that its budget wants.
pub(super) const REPLICAS: i32 = 3;
const AVAILABLE_MIN: i32 = 2;
/// Slots are written by up to three VMs at once.
const STAGE_LIMIT_S: u64 = 1500;
/// A drain, a reboot and a firmware, next to two other VMs.
const LEAVE_LIMIT_S: u64 = 600;
/// The trial's deadline, the guard's patience, and a reboot.
const RETURN_LIMIT_S: u64 = 900;
/// Two nodes one after the other: turn, drain, reboot, trial.
const ROUND_LIMIT_S: u64 = 2400;
/// Annotations and label of the Node (docs/reference/update.md).
const STATE: &str = "orlop.org/update-state";
pub(super) const CORDONED: &str = "orlop.org/update-cordon";
const VERSION_LABEL: &str = "orlop.org/version";
/// Where the nodes of the group take turns.
pub(super) const NAMESPACE: &str = "orlop-system";
pub(super) const TURNS: &str = "orlop-reboots";

fn fleet(cx: &mut CaseContext<'_>) -> Result<()> {
    // A VM that shares two cores with two others may be late with its heartbeats.
    let settings = Settings { node_monitor_grace: Duration::from_secs(120), ..Settings::default() };
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, settings)?;
    let keys = new_keys(&cx.artefacts)?;
    let bad = publish_bootable_release(&cx.artefacts, &keys, BAD, 1)?;
    let published = published(&cx.artefacts, bad)?;
    let server = Server::start_inside(cluster.pid()?, &cx.artefacts, &published.dir)?;
    // A node asks for its group's ConfigMap in its first boot already: an earlier installation may have left its name there.
    allow_turns(&cluster)?;
    let mut nodes = boot(cx, &mut cluster, &server, &NODES, "shared")?;
    deploy(cx, &cluster)?;
    for node in &mut nodes {
        await_network(node.vm()?)?;
        trust(node.vm()?, &published)?;
    }
    let seen = follow_fleet(cluster.client());

    let [one, two, three] = NODES;
    let before = [boot_id(&cluster, two)?, boot_id(&cluster, three)?];
    fail_on_first(&cluster, nodes.first_mut().context("no node")?)?;
    for name in [two, three] {
        let said = await_state(&cluster, name, STAGE_LIMIT_S, |state| {
            state.starts_with("WaitingForPermit") && state.contains("is halted") && state.contains(BAD)
        })?;
        say::line(format!("  {name}: {said}"));
    }
    let after = [boot_id(&cluster, two)?, boot_id(&cluster, three)?];
    ensure!(before == after, "the bad version has gone on: boots {before:?}, then {after:?}");
    show(&cluster)?;

    publish_bootable_release(&cx.artefacts, &keys, GOOD, 2)?;
    // The document was laid over the root in the boot before.
    let first = nodes.first_mut().context("no node")?.vm()?;
    await_network(first)?;
    trust(first, &published)?;
    cluster.kubectl(&["annotate", "node", three, "orlop.org/update-paused=yes"])?;
    let refused = await_event(&cluster, "UpdateOrderRefused", three, 120)?.message.unwrap_or_default();
    ensure!(refused.contains("orlop.org/update-paused=\"yes\""), "the event says {refused:?}");
    let order = format!("orlop.org/update-to={GOOD}");
    cluster.kubectl(&["annotate", "node", "--all", "--overwrite", &order])?;
    for name in NODES {
        // The group is halted still: nothing boots before all have the version.
        await_state(&cluster, name, STAGE_LIMIT_S, |state| {
            state.starts_with("WaitingForPermit") && state.contains(GOOD)
        })?;
    }
    cluster.kubectl(&["annotate", "node", three, "--overwrite", "orlop.org/update-paused=true"])?;
    await_state(&cluster, three, 300, |state| state == "Idle")?;
    let go = json!({"data": {"default": json!({"slots": 1}).to_string()}}).to_string();
    cluster.kubectl(&["patch", "configmap", TURNS, "-n", NAMESPACE, "--type", "merge", "-p", &go])?;
    await_version(&cluster, &[one, two], GOOD, ROUND_LIMIT_S)?;
    ensure!(boot_id(&cluster, three)? == before[1], "the paused node was rebooted");
    cluster.kubectl(&["annotate", "node", three, "orlop.org/update-paused-"])?;
    await_version(&cluster, &NODES, GOOD, ROUND_LIMIT_S)?;
    show(&cluster)?;
    for name in NODES {
        await_event(&cluster, "UpdateCommitted", name, 120)?;
        let node = await_ready(&cluster, name, READY_LIMIT_S)?;
        ensure!(node.spec.unwrap_or_default().unschedulable != Some(true), "{name} is still cordoned");
    }
    let Extremes { available, away, holders } = *lock(&seen);
    say::line(format!("  at least {available} pods available, at most {away} nodes away, {holders} holders"));
    ensure!(available >= AVAILABLE_MIN, "{available} pods were available, the budget wants {AVAILABLE_MIN}");
    ensure!((away, holders) == (1, 1), "{away} nodes were away at one time, {holders} held a slot");
    cluster.ensure_nothing_forbidden()
}

fn orders(cx: &mut CaseContext<'_>) -> Result<()> {
    let [name, _, _] = NODES;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let keys = new_keys(&cx.artefacts)?;
    let good = publish_bootable_release(&cx.artefacts, &keys, GOOD, 1)?;
    let published = published(&cx.artefacts, good)?;
    let server = Server::start_inside(cluster.pid()?, &cx.artefacts, &published.dir)?;
    let mut nodes = boot(cx, &mut cluster, &server, &[name], "permit")?;
    let vm = nodes.first_mut().context("no node")?.vm()?;
    await_network(vm)?;
    trust(vm, &published)?;
    let client = cluster.client();
    let before = client.wait::<Node, _>(&client.all(), 120, "the label of the version", |all| {
        version_of(all.get(name)?).map(str::to_owned)
    })?;
    cluster.kubectl(&["annotate", "node", name, &format!("orlop.org/update-to={GOOD}")])?;
    let update = await_asked(&cluster, name, GOOD)?;
    cluster.kubectl(&["annotate", "node", name, "orlop.org/reboot-permit=yes"])?;
    let refused = await_event(&cluster, "UpdateOrderRefused", name, 120)?.message.unwrap_or_default();
    ensure!(refused.contains("orlop.org/reboot-permit=\"yes\""), "the event says {refused:?}");
    let permit = format!("orlop.org/reboot-permit={update}");
    cluster.kubectl(&["annotate", "node", name, "--overwrite", &permit])?;
    await_version(&cluster, &[name], GOOD, ROUND_LIMIT_S)?;
    await_event(&cluster, "UpdateCommitted", name, 120)?;
    // The permit was for that update only.
    cluster.kubectl(&["annotate", "node", name, &format!("orlop.org/rollback={GOOD}")])?;
    let back = await_asked(&cluster, name, &before)?;
    ensure!(back != update, "the way back has the identifier of the way there: {back}");
    let permit = format!("orlop.org/reboot-permit={back}");
    cluster.kubectl(&["annotate", "node", name, "--overwrite", &permit])?;
    await_version(&cluster, &[name], &before, ROUND_LIMIT_S)?;
    show(&cluster)?;
    cluster.ensure_nothing_forbidden()
}

/// Waits until a node asks for the permit for a version; returns the identifier of the update.
fn await_asked(cluster: &Cluster, name: &str, version: &str) -> Result<String> {
    let asks = format!("orlop.org/reboot-permit={version}-");
    let state = await_state(cluster, name, STAGE_LIMIT_S, |state| state.contains(&asks))?;
    let (_, update) = state.split_once("orlop.org/reboot-permit=").context("no permit is asked for")?;
    let update = update.split(';').next().unwrap_or_default().trim();
    say::line(format!("  {name} asks for {update}"));
    Ok(update.to_owned())
}

/// The nodes, all Ready.
fn boot(
    cx: &CaseContext<'_>,
    cluster: &mut Cluster,
    server: &Server,
    names: &[&str],
    coordination: &str,
) -> Result<Vec<VmNode>> {
    let authority = orlop_config::base64::encode(server.authority.as_bytes());
    let mut nodes = Vec::new();
    for name in names {
        let mut node = VmNode::plug(cluster, &cx.artefacts, name)?;
        node.start_by_firmware();
        let mut config = node.configuration(Some(cluster.token()));
        config["trust"] = json!({"caCertificates": [authority]});
        config["update"] = json!({
            "source": server.base,
            "coordination": coordination,
            "trial": {"deadline": "6m", "soak": "1m"},
        });
        node.boot_as(&config)?;
        node.vm()?.await_phase("agent.ready", 2 * READY_LIMIT_S)?;
        node.give_range(cluster)?;
        await_ready(cluster, name, 2 * READY_LIMIT_S)?;
        nodes.push(node);
    }
    Ok(nodes)
}

/// What the nodes of a group need (docs/reference/update.md).
fn allow_turns(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["create", "namespace", NAMESPACE])?;
    let verbs = "--verb=get,create,update";
    cluster.kubectl(&["create", "role", TURNS, "-n", NAMESPACE, verbs, "--resource=configmaps"])?;
    let (role, group) = (format!("--role={TURNS}"), "--group=system:nodes");
    cluster.kubectl(&["create", "rolebinding", TURNS, "-n", NAMESPACE, &role, group]).map(drop)
}

/// A Deployment and its budget, once all pods are available.
fn deploy(cx: &CaseContext<'_>, cluster: &Cluster) -> Result<()> {
    let container = json!({"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never"});
    let labels = json!({"app": "web"});
    let pod = json!({"terminationGracePeriodSeconds": 2, "containers": [container]});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": REPLICAS,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }});
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": {
        "minAvailable": AVAILABLE_MIN,
        "selector": {"matchLabels": labels},
    }});
    let file = cx.artefacts.join("web.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [deployment, budget]});
    std::fs::write(&file, list.to_string()).context("write the Deployment")?;
    cluster.kubectl(&["create", "-f", &file.display().to_string()])?;
    let client = cluster.client();
    client.wait::<Deployment, _>(&client.of("default"), 600, "the Deployment to be available", |all| {
        (available(all.get("web")?) == REPLICAS).then_some(())
    })
}

/// The bad version on the first node: named, staged, tried and given up, with the others named behind it.
fn fail_on_first(cluster: &Cluster, node: &mut VmNode) -> Result<()> {
    let [one, two, three] = NODES;
    let order = format!("orlop.org/update-to={BAD}");
    let vm = node.vm()?;
    vm.expect_restart()?;
    cluster.kubectl(&["annotate", "node", one, &order])?;
    let client = cluster.client();
    let turns = client.of::<ConfigMap>(NAMESPACE);
    client.wait::<ConfigMap, _>(&turns, STAGE_LIMIT_S, &format!("{one} to hold a slot"), |all| {
        let group = group(all.get(TURNS)?)?;
        (group["holders"][0]["node"] == one).then_some(())
    })?;
    vm.restarted(LEAVE_LIMIT_S).context("the first node does not try the bad version")?;
    await_slot(vm, "slot B is on trial, boot 1 of 3")?;
    vm.expect_restart()?;
    // As init leaves it where it cannot mount the partition.
    vm.shell()?.must("echo 'the state partition is refused' > /run/orlop/degraded")?;
    cluster.kubectl(&["annotate", "node", two, three, &order])?;
    vm.restarted(RETURN_LIMIT_S).context("the bad version does not go back")?;
    await_slot(vm, "slot A")?;
    let back = await_event(cluster, "UpdateRolledBack", one, RETURN_LIMIT_S)?;
    let refused = await_event(cluster, "UpdateRefused", one, RETURN_LIMIT_S)?;
    for event in [back, refused] {
        let message = event.message.unwrap_or_default();
        ensure!(message.contains(BAD) && message.contains("state-partition"), "an event says {message:?}");
    }
    let path = "jsonpath={.status.conditions[?(@.type==\"UpdateFailed\")].message}";
    let failed = cluster.kubectl(&["get", "node", one, "-o", path])?;
    ensure!(failed.contains(BAD) && failed.contains("state-partition"), "UpdateFailed says {failed:?}");
    say::line(format!("  UpdateFailed: {failed}"));
    let halted = client.wait::<ConfigMap, _>(&turns, RETURN_LIMIT_S, "the group to be halted", |all| {
        let group = group(all.get(TURNS)?)?;
        let is_free = group["holders"].as_array().is_none_or(Vec::is_empty);
        group["halted"].as_str().filter(|why| is_free && !why.is_empty()).map(str::to_owned)
    })?;
    ensure!(halted.starts_with(&format!("{one}: ")) && halted.contains(BAD), "halted: {halted:?}");
    Ok(())
}

/// Waits for the boot of a slot, next to two other VMs.
fn await_slot(vm: &Vm, slot: &str) -> Result<()> {
    let booted = vm.await_phase("init.slot", 2 * BOOT_LIMIT_S)?;
    ensure!(booted.ok && booted.detail.contains(slot), "init.slot says {:?}", booted.detail);
    vm.await_phase("agent.ready", 2 * BOOT_LIMIT_S).map(drop)
}

/// Waits until the annotation of a Node about its update is as `is` wants it.
fn await_state(cluster: &Cluster, name: &str, limit_s: u64, is: impl Fn(&str) -> bool) -> Result<String> {
    let client = cluster.client();
    let what = format!("another {STATE} of node {name}");
    let found = client.wait::<Node, _>(&client.all(), limit_s, &what, |all| {
        all.get(name)?.metadata.annotations.as_ref()?.get(STATE).filter(|state| is(state.as_str())).cloned()
    });
    shown(cluster, found)
}

/// The result; of an error the states of all nodes are shown as well.
fn shown<T>(cluster: &Cluster, result: Result<T>) -> Result<T> {
    result.inspect_err(|_| {
        // The error itself counts.
        let _ = show(cluster);
    })
}

/// Waits until these nodes run a version and are done with it.
fn await_version(cluster: &Cluster, names: &[&str], version: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    let is_done = |node: &Node| {
        let annotations = node.metadata.annotations.as_ref();
        let state = annotations.and_then(|annotations| annotations.get(STATE));
        version_of(node) == Some(version) && state.is_some_and(|state| state == "Idle")
    };
    let what = format!("version {version} on {names:?}");
    let done = client.wait::<Node, _>(&client.all(), limit_s, &what, |all| {
        names.iter().all(|name| all.get(*name).is_some_and(is_done)).then_some(())
    });
    shown(cluster, done)
}

/// The version that a node shows by its label.
fn version_of(node: &Node) -> Option<&str> {
    node.metadata.labels.as_ref()?.get(VERSION_LABEL).map(String::as_str)
}

/// The present boot of a node.
fn boot_id(cluster: &Cluster, name: &str) -> Result<String> {
    let client = cluster.client();
    let node = client.get::<Node>(&client.all(), name)?.with_context(|| format!("no node {name}"))?;
    let info = node.status.and_then(|status| status.node_info).context("a node without nodeInfo")?;
    Ok(info.boot_id)
}

/// What an operator sees.
fn show(cluster: &Cluster) -> Result<()> {
    let columns = "custom-columns=NODE:.metadata.name,VERSION:.metadata.labels.orlop\\.org/version,\
                   UPDATE:.metadata.annotations.orlop\\.org/update-state";
    let table = cluster.kubectl(&["get", "nodes", "-o", columns])?;
    for line in table.lines() {
        say::line(format!("  {line}"));
    }
    Ok(())
}
