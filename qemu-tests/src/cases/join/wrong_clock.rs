//! A node whose clock is wrong by years at its first boot: it reports this, and joins when the clock is set.

use std::fs;

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::say;
use orlop_image::lock::Lock;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "join/wrong-clock",
    level: Level::L4v,
    expected_s: 120,
    about: "a VM whose clock is wrong by years at its first boot says so, and joins once the clock is set",
    group: None,
    run: wrong_clock,
}];

const VM: &str = "early";
const SHOWN: &str = "2001-01-01T00:00:00";

fn wrong_clock(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.mislead(SHOWN);
    vm.boot(Some(cluster.token()))?;
    let machine = vm.vm()?;
    machine.await_phase("agent.ready", READY_LIMIT_S)?;
    let said = machine.await_message("a word about the clock", 60, |m| match m {
        HostMessage::Problem { source, message } if source == "join" && message.contains("clock") => {
            Some(message)
        }
        _ => None,
    })?;
    say::line(format!("  {said}"));
    ensure!(said.contains("the clock shows") && said.contains("set it by hand"), "it says {said:?}");
    let shell = machine.shell()?;
    let before: i64 = shell.must("date +%s")?.trim().parse().context("the VM's time")?;
    let now = jiff::Timestamp::now().as_second();
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../image/image.lock"))?;
    let floor = i64::try_from(Lock::parse(&text).context("the image's lock")?.epoch)?;
    let epoch: i64 =
        shell.must("stat -c %Y /usr/lib/clock-epoch")?.trim().parse().context("the file's time")?;
    ensure!(epoch == floor && before >= floor, "{before} in an image of {epoch}, whose lock says {floor}");
    // A certificate begins five minutes before its creation.
    ensure!(now - before > 600, "the image is too young to tell: {before}, and it is {now}");
    shell.must(&format!("date -u -s @{now}"))?;
    let start = std::time::Instant::now();
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, 120)?;
    say::line(format!("  Ready {:.1} s after the clock was set", start.elapsed().as_secs_f64()));
    cluster.ensure_nothing_forbidden()
}
