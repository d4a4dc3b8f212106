//! Nodes whose clocks are wrong in either direction, without NTP: they join, and keep what they have.

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::say;

use super::{await_words, certificate, ensure_right};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "time/wrong",
    level: Level::L4v,
    expected_s: 500,
    about: "VMs whose clocks show 1970, 2011 and 2099 join without NTP, and one that wakes in 2036 keeps its certificate",
    group: None,
    run: wrong,
}];

/// Name of a node, and what its clock shows; the first one is right.
const CLOCKS: [(&str, Option<&str>); 4] = [
    ("right", None),
    ("y1970", Some("1970-01-01T00:00:00")),
    ("y2011", Some("2011-06-01T00:00:00")),
    ("y2099", Some("2099-06-01T00:00:00")),
];
/// After the certificate's end, and near enough to the image's age for PID 1 to leave it.
const LATER: &str = "2036-01-01T00:00:00";

fn wrong(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    for (name, clock) in CLOCKS {
        let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, name)?;
        if let Some(clock) = clock {
            vm.mislead(clock);
        }
        vm.boot(Some(cluster.token()))?;
        vm.give_range(&cluster)?;
        let ready = vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
        await_ready(&cluster, name, READY_LIMIT_S)?;
        say::line(format!("  {name}: Ready {:.1} s after the VM's kernel", ready.at_ms as f64 / 1000.0));
        // While the network card is not there yet, the agent says that the API server's clock is not known.
        let said = await_words(&mut vm, "follows the API server's", 120)?;
        ensure!(said.contains("ClockUnverified") && said.contains("time.servers"), "{said:?}");
        ensure_right(&mut vm)?;
        if name == "y2099" {
            wake_later(&cluster, &mut vm)?;
        }
        vm.cut_power();
    }
    cluster.ensure_nothing_forbidden()
}

/// Years have passed by its clock alone: the node goes on with the certificate that it has.
fn wake_later(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    let kept = certificate(vm)?;
    vm.cut_power();
    vm.mislead(LATER);
    vm.boot(None)?;
    let ready = vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    say::line(format!("  in 2036: Ready {:.1} s after the VM's kernel", ready.at_ms as f64 / 1000.0));
    await_words(vm, "follows the API server's", 120)?;
    ensure_right(vm)?;
    let now = certificate(vm)?;
    ensure!(now == kept, "another certificate: {now}, not {kept}");
    await_ready(cluster, "y2099", READY_LIMIT_S).map(drop)
}
