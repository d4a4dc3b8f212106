//! A node with an NTP server that lies by years, then with one that is right.

use anyhow::{Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::flags::{ADDRESS, Settings};
use orlop_harness::cluster::ntp::NtpServer;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};

use super::{await_words, certificate, ensure_right};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "time/ntp",
    level: Level::L4v,
    expected_s: 200,
    about: "a VM whose NTP server lies by years follows the API server and says so; one whose NTP server is right follows that",
    group: None,
    run: ntp,
}];

const VM: &str = "ntp";
/// Three years, seconds.
const LIE_S: i64 = 3 * 365 * 86_400;
/// The agent waits this long for NTP before it says that there is none, and looks once, seconds.
const SETTLED_S: u64 = 45;

fn ntp(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let liar = NtpServer::start(cluster.pid()?, LIE_S)?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.ask_time_server(ADDRESS);
    vm.boot(Some(cluster.token()))?;
    vm.give_range(&cluster)?;
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    let said = await_words(&mut vm, "days apart", 120)?;
    ensure!(said.contains("time.servers"), "{said:?}");
    // The set follows the words by seconds.
    let shell = vm.vm()?.shell()?;
    shell.must("(for n in $(seq 40); do [ $(date +%Y) -lt 2029 ] && exit 0; sleep 1; done; exit 1)")?;
    let state = shell.run("systemctl is-active systemd-timesyncd", std::time::Duration::from_secs(30))?;
    ensure!(state.text.trim() == "inactive", "systemd-timesyncd is {:?}", state.text);
    ensure_right(&mut vm)?;
    drop(liar);

    let kept = certificate(&mut vm)?;
    let _right = NtpServer::start(cluster.pid()?, 0)?;
    vm.cut_power();
    vm.mislead("2036-01-01T00:00:00");
    vm.boot(None)?;
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    let shell = vm.vm()?.shell()?;
    let up = "read up rest < /proc/uptime; echo ${up%.*}";
    shell.must(&format!("(for n in $(seq 55); do [ $({up}) -gt {SETTLED_S} ] && exit 0; sleep 1; done)"))?;
    shell.must("test -e /run/systemd/timesync/synchronized && systemctl is-active systemd-timesyncd")?;
    ensure_right(&mut vm)?;
    let now = certificate(&mut vm)?;
    ensure!(now == kept, "another certificate: {now}, not {kept}");
    let unverified = vm.vm()?.messages().into_iter().find(|message| {
        matches!(message, HostMessage::Problem { message, .. } if message.contains("ClockUnverified"))
    });
    ensure!(unverified.is_none(), "{unverified:?}");
    // The last run's stamp is a time that an NTP server vouched for.
    let stamp = vm.vm()?.shell()?.must("stat -c %Y /var/lib/systemd/timesync/clock")?;
    ensure!(stamp.trim().parse::<i64>()? <= jiff::Timestamp::now().as_second() + 60, "stamp {stamp}");
    cluster.ensure_nothing_forbidden()
}
