//! A node whose only way to its cluster is a VLAN on an LACP bond, with addresses of both families.
//!
//! ```text
//! node VM: vlan100 ─ bond0 ─┬─ port1 ═══ port1 ─┬─ bond0 ─ vlan100 ─ br0 ─ uplink: VM that is the switch
//!                           └─ port2 ═══ port2 ─┘                           │
//!                                                          API server ─ cluster0
//! ```
//! The switch has the same image: an LACP partner, a VLAN and a bridge of NodeConfig.
//!
//! Case: `net/bond`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_pod_ready, await_ready, await_serving};
use orlop_harness::cluster::flags::{ADDRESS, IPV6_ADDRESS, Settings};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use orlop_image::qemu::Port;
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "net/bond",
    240,
    "a VLAN on an LACP bond with addresses of both families joins a cluster through a VM as switch, runs a pod, has a \
     static route, and stays while one cable is dead",
    bond,
)];

/// The node and the switch.
const NODE: &str = "node";
const SWITCH: &str = "switch";
/// The pod.
const POD: &str = "on-vlan";
/// Cables between the two.
const CABLES: u8 = 2;
/// A network that the node reaches by a route of its document, and the route's line in /proc/net/route: addresses there
/// are numbers of the processor's byte order.
const ROUTED: &str = "10.99.0.0/16";
const ROUTE_LINE: &str = "vlan100\t0000630A\t01001EAC";

fn bond(cx: &mut CaseContext<'_>) -> Result<()> {
    let settings = Settings { dual_stack: true, ..Settings::default() };
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, settings)?;
    let mut switch = VmNode::plug(&mut cluster, &cx.artefacts, SWITCH)?;
    let mut node = VmNode::plug(&mut cluster, &cx.artefacts, NODE)?;
    switch.give_ports(ports(SWITCH, NODE));
    node.give_ports(ports(NODE, SWITCH));
    switch.boot_as(&switch_config(&switch.wire().mac()))?;
    let addresses = json!([node.wire().address(), node.wire().ipv6_address()]);
    node.connect_by(node_network(&addresses), addresses.clone());
    node.boot(Some(cluster.token()))?;
    node.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    node.give_range(&cluster)?;
    ensure_addresses(&await_ready(&cluster, NODE, READY_LIMIT_S)?, &addresses)?;
    await_serving(&cluster, NODE, 60)?;
    await_members(&mut node, 2)?;
    ensure_configured(&mut node)?;
    run_pod(cx, &cluster)?;
    // The node's card sees no carrier change: only LACP tells it that the switch has left the cable.
    switch.vm()?.shell()?.must(
        "networkctl down \"$(awk '/^Slave Interface:/ { print $3; exit }' /proc/net/bonding/bond0)\"",
    )?;
    await_members(&mut node, 1)?;
    await_serving(&cluster, NODE, 60)?;
    ensure_logs(&cluster)?;
    cluster.ensure_nothing_forbidden()
}

fn mac(of: &str, cable: u8) -> String {
    // 52:54:00 is QEMU's own prefix; the clusters' cards have 1e behind it.
    format!("52:54:00:b0:{:02x}:{cable:02x}", u8::from(of == SWITCH))
}

/// The ends of all cables at one machine. Their UDP ports are in the cluster's network namespace, below those that the kernel
/// chooses and those of Services.
fn ports(of: &str, peer: &str) -> Vec<Port> {
    let udp = |of: &str, cable: u8| u16::from(cable) + if of == SWITCH { 29_100 } else { 29_200 };
    let port = |cable| Port { mac: mac(of, cable), local: udp(of, cable), peer: udp(peer, cable) };
    (1..=CABLES).map(port).collect()
}

/// The entries of the ports, and a VLAN on a bond of them.
fn lag(of: &str) -> (Vec<Value>, Value, Value) {
    let id = |cable: u8| format!("port{cable}");
    let entries = (1..=CABLES).map(|cable| json!({"id": id(cable), "macAddress": mac(of, cable)})).collect();
    let members: Vec<String> = (1..=CABLES).map(id).collect();
    let bond = json!({"name": "bond0", "members": members, "mode": "802.3ad", "lacpRate": "fast",
                      "hashPolicy": "layer3+4"});
    (entries, bond, json!({"name": "vlan100", "id": 100, "parent": "bond0"}))
}

/// The node's network: nothing on the card that has the cluster's own cable.
fn node_network(addresses: &Value) -> Value {
    let (entries, bond, mut vlan) = lag(NODE);
    let with_length =
        |at: usize, length: u8| format!("{}/{length}", addresses[at].as_str().unwrap_or_default());
    vlan["addresses"] = json!([with_length(0, 24), with_length(1, 64)]);
    vlan["gateway"] = ADDRESS.into();
    vlan["gateway6"] = IPV6_ADDRESS.into();
    vlan["routes"] = json!([{"to": ROUTED, "via": ADDRESS}]);
    json!({"interfaces": entries, "bonds": [bond], "vlans": [vlan]})
}

/// The switch: frames of the VLAN to the cluster's cable and back. Its own pods' range is not that of the cluster.
fn switch_config(uplink: &str) -> Value {
    let (mut entries, bond, vlan) = lag(SWITCH);
    entries.push(json!({"id": "uplink", "macAddress": uplink}));
    let bridge = json!({"name": "br0", "members": ["uplink", "vlan100"], "dhcp": false, "acceptRA": false});
    json!({
        "apiVersion": "orlop/v1alpha1",
        "kind": "NodeConfig",
        "node": {"name": SWITCH},
        "network": {"interfaces": entries, "bonds": [bond], "vlans": [vlan], "bridges": [bridge]},
        "kubelet": {"podCIDR": "10.77.0.0/24"},
    })
}

fn ensure_addresses(node: &Node, wanted: &Value) -> Result<()> {
    let told = node.status.as_ref().and_then(|status| status.addresses.clone()).unwrap_or_default();
    let told: Vec<&str> =
        told.iter().filter(|a| a.type_ == "InternalIP").map(|a| a.address.as_str()).collect();
    ensure!(json!(told) == *wanted, "the Node has the addresses {told:?}, not {wanted}");
    Ok(())
}

/// Waits until the aggregator that carries has so many members, and a partner.
fn await_members(node: &mut VmNode, number: u8) -> Result<()> {
    let status = "cat /proc/net/bonding/bond0";
    let right = format!("grep -q '^[[:space:]]*Number of ports: {number}$'");
    let told = node
        .vm()?
        .shell()?
        .must(&format!("for n in $(seq 40); do {status} | {right} && break; sleep 0.5; done; {status}"))?;
    let value = |key: &str| {
        let line = told.lines().find_map(|line| line.trim().strip_prefix(key));
        line.map(str::trim).unwrap_or_default().to_owned()
    };
    let ports = value("Number of ports:");
    ensure!(ports == number.to_string(), "the bond has {ports} members of {number}:\n{told}");
    let partner = value("Partner Mac Address:");
    ensure!(!partner.is_empty() && partner != "00:00:00:00:00:00", "no LACP partner:\n{told}");
    ensure!(value("Bonding Mode:").contains("802.3ad"), "another mode:\n{told}");
    Ok(())
}

/// The VLAN, the static route, the way that programs take to the cluster, and the target of the network.
fn ensure_configured(node: &mut VmNode) -> Result<()> {
    let shell = node.vm()?.shell()?;
    let vlans = shell.must("cat /proc/net/vlan/config")?;
    let fields =
        |line: &str| -> Vec<String> { line.split('|').map(|field| field.trim().to_owned()).collect() };
    ensure!(vlans.lines().any(|line| fields(line) == ["vlan100", "100", "bond0"]), "{vlans}");
    let routes = shell.must("cat /proc/net/route")?;
    ensure!(routes.lines().any(|line| line.starts_with(ROUTE_LINE)), "no route to {ROUTED}:\n{routes}");
    let ways: Vec<&str> = routes.lines().filter(|line| line.split('\t').nth(1) == Some("00000000")).collect();
    ensure!(
        !ways.is_empty() && ways.iter().all(|way| way.starts_with("vlan100\t")),
        "default routes:\n{routes}"
    );
    // Members, and the card without a configuration, are not waited for.
    shell.must("/usr/lib/systemd/systemd-networkd-wait-online --timeout=30").map(drop).context("wait-online")
}

fn run_pod(cx: &CaseContext<'_>, cluster: &Cluster) -> Result<()> {
    let container = json!({"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": {
        "nodeSelector": {LABEL.0: LABEL.1}, "terminationGracePeriodSeconds": 2, "containers": [container]}});
    let file = cx.artefacts.join("pod.json");
    std::fs::write(&file, pod.to_string()).context("write the pod")?;
    cluster.kubectl(&["create", "-f", &file.display().to_string()])?;
    await_pod_ready(cluster, POD, 120)?;
    ensure_logs(cluster)
}

fn ensure_logs(cluster: &Cluster) -> Result<()> {
    let said = cluster.kubectl(&["logs", POD])?;
    ensure!(said.starts_with("Hello"), "kubectl logs {POD}: {said:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_config::node::{Source, load};

    #[test]
    fn both_documents_are_taken_whole() {
        let node = json!({"apiVersion": "orlop/v1alpha1", "kind": "NodeConfig",
                          "network": node_network(&json!(["172.30.0.11", "fd00:30::11"]))});
        for config in [switch_config("52:54:00:1e:00:00"), node] {
            let source = Source { name: "smbios".into(), origin: "SMBIOS".into(), text: config.to_string() };
            let effective = load(&[source], &[]);
            assert_eq!(effective.problems, []);
            assert_eq!(effective.config.network.bonds[0].members, ["port1", "port2"]);
            assert_eq!(effective.config.network.vlans[0].parent, "bond0");
        }
        assert_ne!(mac(NODE, 1), mac(SWITCH, 1));
    }

    #[test]
    fn each_cable_has_two_ends() {
        let (node, switch) = (ports(NODE, SWITCH), ports(SWITCH, NODE));
        assert_eq!((node.len(), switch.len()), (2, 2));
        for (here, there) in node.iter().zip(&switch) {
            assert_eq!((here.local, here.peer), (there.peer, there.local));
            assert_ne!(here.mac, there.mac);
        }
        assert_ne!(node[0].local, node[1].local);
    }
}
