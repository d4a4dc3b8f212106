//! Interfaces that networkd manages and their metrics, and interfaces that it leaves to add-ons. The checks run in the VM of
//! `boot/*`.

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext};

use crate::cases::boot::shared_vm::{HERE, Node, node};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "boot/network",
    10,
    "the machine's card has DHCP with its own metric; an interface that a program made keeps its MAC address and is unmanaged",
    network,
)];

fn network(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    // By its index: udev may still rename it.
    let index =
        node.must("udevadm settle; for d in /sys/class/net/*/device; do cat ${d%/device}/ifindex; done")?;
    let file = format!("/run/systemd/network/10-orlop-index{}.network", index.trim());
    await_state(node, index.trim(), &format!("NETWORK_FILE={file}")).context("of the machine's card")?;
    let checked = virtual_ones(node);
    // The VM has other cases: nothing stays, also after a failure.
    let removed =
        node.must("rm -f /run/systemd/network/40-eni.link; udevadm control --reload; modprobe -r dummy");
    checked?;
    removed?;
    let settings = node.must("systemd-analyze cat-config systemd/networkd.conf")?;
    for setting in ["ManageForeignRoutes", "ManageForeignRoutingPolicyRules", "ManageForeignNextHops"] {
        let set = settings.lines().rev().find_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
        ensure!(set == Some("no"), "{setting} is {set:?}: networkd takes what add-ons made");
    }
    Ok(())
}

/// Makes a virtual interface with a name that the pattern of the configuration matches, and one with its own, and checks that networkd
/// leaves them alone.
fn virtual_ones(node: &mut Node) -> Result<()> {
    node.must(
        "modprobe -r dummy; printf '[Match]\\nOriginalName=dummy0\\n[Link]\\nName=eni1\\nMACAddressPolicy=none\\n' \
         > /run/systemd/network/40-eni.link && udevadm control --reload && modprobe dummy numdummies=2 && \
         udevadm settle && test -d /sys/class/net/eni1",
    )?;
    for virtual_one in ["eni1", "dummy1"] {
        let index = node.must(&format!("cat /sys/class/net/{virtual_one}/ifindex"))?;
        await_state(node, index.trim(), "ADMIN_STATE=unmanaged").context(virtual_one)?;
    }
    // 1: random, as the creator has seen it; udev's persistent address would be 3.
    let kind = node.must("cat /sys/class/net/dummy1/addr_assign_type")?;
    ensure!(kind.trim() == "1", "the MAC address of dummy1 was replaced: addr_assign_type is {kind}");
    Ok(())
}

/// Waits for a line in networkd's file about the interface with the index, for less time than a command of the shell may take.
fn await_state(node: &mut Node, index: &str, line: &str) -> Result<()> {
    let read = format!("cat /run/systemd/netif/links/{index}");
    let wait = format!(
        "for n in $(seq 60); do {read} 2>/dev/null | grep -qx {line} && break; sleep 0.2; done; {read}"
    );
    let state = node.must(&wait).context("networkd's state of an interface")?;
    ensure!(state.lines().any(|l| l.trim() == line), "interface {index} has no {line}: {state}");
    Ok(())
}
