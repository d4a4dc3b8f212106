//! A node whose clock is wrong by years at its first boot: the API server's certificate and its clock set it, and it joins.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
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
    about: "a VM whose clock is wrong by years at its first boot sets it by the API server's, and joins",
    group: None,
    run: wrong_clock,
}];

const VM: &str = "early";
const SHOWN: &str = "2001-01-01T00:00:00";
/// The clock may be this far from the host's, seconds: whole seconds of `Date`, and a slow shell.
const NEAR_S: i64 = 5;
/// The certificate, which proves that the clock is early, and the Node come within the same second; the clock's service is another
/// process of the VM.
const SET_LIMIT_S: u64 = 60;

fn wrong_clock(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.mislead(SHOWN);
    vm.boot(Some(cluster.token()))?;
    vm.give_range(&cluster)?;
    let ready = vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    let since = Instant::now();
    await_ready(&cluster, VM, 120)?;
    say::line(format!("  Ready {:.1} s after the VM's kernel", ready.at_ms as f64 / 1000.0));
    let shell = vm.vm()?.shell()?;
    let soonest = jiff::Timestamp::now().as_second() - NEAR_S;
    let is_set = format!(
        "(for n in $(seq {SET_LIMIT_S}); do [ $(date +%s) -ge {soonest} ] && exit 0; sleep 1; done; \
         journalctl -b -o cat --no-pager -u kubelet -u orlop-clock | grep -i clock | tail -n 20; exit 1)"
    );
    let set = shell.run(&is_set, Duration::from_secs(2 * SET_LIMIT_S))?;
    ensure!(set.status == 0, "nothing set the clock within {SET_LIMIT_S} s: {}", set.text);
    say::line(format!("  the clock was right at most {:.1} s after that", since.elapsed().as_secs_f64()));
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../image/image.lock"))?;
    let floor = i64::try_from(Lock::parse(&text).context("the image's lock")?.epoch)?;
    let epoch: i64 =
        shell.must("stat -c %Y /usr/lib/clock-epoch")?.trim().parse().context("the file's time")?;
    let shown: i64 = shell.must("date +%s")?.trim().parse().context("the VM's time")?;
    let now = jiff::Timestamp::now().as_second();
    ensure!(epoch == floor, "an image of {epoch}, whose lock says {floor}");
    // A certificate begins five minutes before its creation.
    ensure!(now - epoch > 600, "the image is too young to tell: {epoch}, and it is {now}");
    ensure!((shown - now).abs() <= NEAR_S, "the clock shows {shown}, and it is {now}");
    cluster.ensure_nothing_forbidden()
}
