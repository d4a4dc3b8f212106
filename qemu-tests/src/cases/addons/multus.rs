//! A second interface of pods by Multus, next to the harness's own pod network.
//!
//! Case: `addons/multus`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::cluster::addons::{AddOns, NATIVE_LIMIT_S, NodeKind, ProxyMode, multus};
use orlop_harness::cluster::fixture::{Joined, STAYS, api_pod, await_pod_gone};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use serde_json::json;

/// Cases of this file.
pub const CASES: &[Case] = &[CaseDefaults { level: Level::L4n, group: None }.case(
    "addons/multus",
    120,
    "Multus puts itself before the pod network; pods that ask for it have a second interface on a bridge and reach each \
     other there, another pod has one interface",
    second_interface,
)];

const NODE: &str = "first";
/// The second network, and its range.
const SECOND: &str = "second";
const RANGE: &str = "10.99.0.0/24";
/// Pods of the second network, and one without it.
const PODS: [&str; 2] = ["left", "right"];
const PLAIN: &str = "plain";
/// Limit for the addresses of removed pods to be free.
const REMOVAL_LIMIT: Duration = Duration::from_secs(60);

fn second_interface(cx: &mut CaseContext<'_>) -> Result<()> {
    if let Some(module) = ProxyMode::Iptables.missing_module() {
        return skip(format!("the machine's kernel lacks {module}"));
    }
    let mut joined = Joined::start(&cx.run, &cx.artefacts, Settings::default(), &[NODE])?;
    let mut addons = AddOns::make(&joined.cluster, ProxyMode::Iptables, NodeKind::Native)?;
    addons.add_multus(&joined.cluster)?;
    joined.nodes.iter().try_for_each(|node| addons.offer(node))?;
    let start = Instant::now();
    addons.install(&joined.cluster, 1, NATIVE_LIMIT_S)?;
    say::line(format!("  {} after {:.1} s", addons.describe(), start.elapsed().as_secs_f64()));
    await_configuration(&mut joined)?;
    let config = json!({
        "cniVersion": "1.0.0", "name": SECOND, "type": "bridge", "bridge": "second0",
        "ipam": {"type": "host-local", "ranges": [[{"subnet": RANGE}]]},
    });
    multus::define(&joined.cluster, SECOND, &config)?;
    for name in PODS {
        let mut pod = api_pod(name, NODE, STAYS, 1);
        pod["metadata"]["annotations"] = json!({(multus::NETWORKS): SECOND});
        joined.run_pod(pod)?;
    }
    joined.run_pod(api_pod(PLAIN, NODE, STAYS, 1))?;
    let addresses = [second_address(&joined, PODS[0])?, second_address(&joined, PODS[1])?]
        .map(|address| address.unwrap_or_default());
    let prefix = RANGE.trim_end_matches("0/24");
    ensure!(addresses.iter().all(|address| address.starts_with(prefix)), "second interfaces: {addresses:?}");
    ensure!(second_address(&joined, PLAIN)?.is_none(), "{PLAIN} did not ask for a second interface");
    for (from, to) in [(PODS[0], &addresses[1]), (PODS[1], &addresses[0])] {
        let reached =
            joined.cluster.kubectl(&["exec", from, "--", "ping", "-c", "1", "-W", "5", "-I", "net1", to]);
        reached.with_context(|| format!("{from} reaches {to} by its second interface"))?;
    }
    ensure_removed(&mut joined)?;
    joined.cluster.ensure_nothing_forbidden()
}

/// Multus makes its configuration of that of the pod network. containerd reads it as soon as it is there, and reports nothing.
fn await_configuration(joined: &mut Joined) -> Result<()> {
    let file = joined.nodes[0].inside(multus::CONFIGURATION);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !file.exists() {
        ensure!(Instant::now() < deadline, "Multus has not made {}", multus::CONFIGURATION);
        joined.nodes[0].pass(Duration::from_millis(250))?;
    }
    joined.nodes[0].pass(Duration::from_secs(3))
}

/// The IPv4 address of a pod's second interface; `None` without one.
fn second_address(joined: &Joined, pod: &str) -> Result<Option<String>> {
    let script = "ip -4 addr show dev net1 2>/dev/null | awk '/inet / { print $2 }' | cut -d / -f 1";
    let said = joined.cluster.kubectl(&["exec", pod, "--", "sh", "-c", script])?;
    let said = said.trim();
    Ok((!said.is_empty()).then(|| said.to_owned()))
}

/// The pods go, and with them their second addresses.
fn ensure_removed(joined: &mut Joined) -> Result<()> {
    let client = joined.cluster.client();
    for name in PODS {
        client.delete::<Pod>(&client.of("default"), name, Some(1))?;
    }
    for name in PODS {
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    // The API server may forget a pod before the node has given back its addresses.
    let deadline = Instant::now() + REMOVAL_LIMIT;
    loop {
        let left = reserved(&joined.nodes[0])?;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "addresses of removed pods are still reserved: {left:?}");
        joined.nodes[0].pass(Duration::from_millis(250))?;
    }
}

/// Addresses of the second network that the node has given away.
fn reserved(node: &NativeNode) -> Result<Vec<String>> {
    let dir = node.inside(&format!("/var/lib/cni/networks/{SECOND}"));
    let prefix = RANGE.trim_end_matches("0/24");
    let entries = std::fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.starts_with(prefix)).collect())
}
