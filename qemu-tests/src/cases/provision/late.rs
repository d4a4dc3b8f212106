//! A metadata service that answers only after many tries: the agent waits, and joins then.

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::metadata::MetadataFault;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};

use super::{machine, waited};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "provision/late",
    level: Level::L4v,
    expected_s: 150,
    about: "a VM whose metadata service is broken in every way for three quarters of a minute waits for it, and joins",
    group: None,
    run: late,
}];

const VM: &str = "late";

/// What goes wrong with the first requests. The pauses between them are 0.2 s and twice as long each time, 10 s at most.
const FAULTS: [MetadataFault; 8] = [
    MetadataFault::Status(503),
    MetadataFault::Cut,
    MetadataFault::Redirect,
    MetadataFault::Status(401),
    MetadataFault::Silent,
    MetadataFault::TooLarge,
    MetadataFault::Status(404),
    MetadataFault::Status(500),
];

fn late(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    let (_dhcp, metadata) = machine(&cluster, &mut vm)?;
    // Each fails the request for the token: nothing else is asked before that.
    metadata.fake().fail(FAULTS);
    vm.boot(None)?;
    vm.give_range(&cluster)?;
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    waited(&mut vm)?;
    let asked = metadata.fake().asked();
    let tokens = asked.iter().filter(|request| *request == "PUT /latest/api/token").count();
    ensure!(tokens == FAULTS.len() + 1, "{tokens} requests for a token: {asked:?}");
    // What went wrong is in the journal, once for each kind of fault.
    let words = "journalctl -b -u orlop-provision.service -o cat --no-pager";
    let said = vm.vm()?.shell()?.must(words)?;
    ensure!(said.contains("hop limit"), "{said}");
    cluster.ensure_nothing_forbidden()
}
