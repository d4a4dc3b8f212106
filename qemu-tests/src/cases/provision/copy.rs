//! The disk of a machine of AWS is put into another machine, which asks for itself.

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};

use super::{machine, waited};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "provision/copy",
    level: Level::L4v,
    expected_s: 150,
    about: "a VM with the disk of another machine of AWS does not use what that one was told, asks for itself, and joins",
    group: None,
    run: copy,
}];

const VM: &str = "copy";

fn copy(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    let (_dhcp, metadata) = machine(&cluster, &mut vm)?;
    vm.boot(None)?;
    vm.give_range(&cluster)?;
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    let before = report(&mut vm)?;
    let asked = metadata.fake().asked().len();

    vm.cut_power();
    vm.change_machine();
    vm.boot(None)?;
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    // The agent waits as at a first boot.
    waited(&mut vm)?;
    let after = report(&mut vm)?;
    ensure!(metadata.fake().asked().len() == 2 * asked, "not asked again: {:?}", metadata.fake().asked());
    ensure!(after.contains("\"kept\"") && after != before, "the report of another machine: {after}");
    cluster.ensure_nothing_forbidden()
}

fn report(vm: &mut VmNode) -> Result<String> {
    vm.vm()?.shell()?.must("cat /run/orlop/platform.json")
}
