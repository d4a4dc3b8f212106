//! A machine of AWS joins by its user data, and is the same node after a power cut without asking again.

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::say;

use super::{machine, waited};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "provision/aws",
    level: Level::L4v,
    expected_s: 150,
    about: "a VM that SMBIOS calls a machine of AWS joins by its user data, keeps them, and asks no more after a power cut",
    group: None,
    run: aws,
}];

const VM: &str = "ec2";

fn aws(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    let (_dhcp, metadata) = machine(&cluster, &mut vm)?;
    vm.boot(None)?;
    vm.give_range(&cluster)?;
    let ready = vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    let waited_ms = waited(&mut vm)?;
    say::line(format!(
        "  Ready {:.1} s after the VM's kernel, the agent's start {waited_ms} ms after the user data",
        ready.at_ms as f64 / 1000.0
    ));
    let asked = metadata.fake().asked();
    ensure!(asked.first().is_some_and(|first| first == "PUT /latest/api/token"), "{asked:?}");

    let shell = vm.vm()?.shell()?;
    let report = shell.must("cat /run/orlop/platform.json")?;
    for part in ["\"aws\"", "\"kept\"", "aws:///eu-west-1a/i-0123456789abcdef0"] {
        ensure!(report.contains(part), "{part} is not in the report: {report}");
    }
    let mode = shell.must("stat -c %a /var/lib/orlop/config/metadata.yaml")?;
    ensure!(mode.trim() == "600", "the kept user data have mode {mode}");
    let effective = shell.must("cat /run/orlop/node-config.json")?;
    ensure!(effective.contains("\"join.server\": \"metadata\""), "the source of join.server: {effective}");

    vm.cut_power();
    vm.boot(None)?;
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    ensure!(metadata.fake().asked() == asked, "asked again: {:?}", metadata.fake().asked());
    cluster.ensure_nothing_forbidden()
}
