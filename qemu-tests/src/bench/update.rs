//! `bench update`: what an update costs one VM, next to a plain reboot of the same VM.
//!
//! The downtime is the time from the sample pod's last line (it says goodbye at SIGTERM) to its first one in the next boot, as this
//! machine sees the lines. Each version is the built image with so many new blocks behind the root's file system: as many as a new
//! agent has, or as a root has that differs in all. Bars are printed next to the figures; no test judges them.

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Image, Lab, MEMORY_MIB};
use orlop_harness::vm::machine::Vm;

use crate::cases::boot::shared_vm::{await_network, config_with_pod};
use crate::cases::update::published::{Published, Server, new_keys, publish_marked_release, published};
use crate::cases::update::staging::{PROGRAM, node_config, trust};

/// A boot, a trial, a reboot in order.
const LIMIT_S: u64 = 600;
/// Fetching and writing all of a root, on a slow machine.
const TAKE_LIMIT: Duration = Duration::from_secs(1200);
/// From the request to the pod's first line in the next boot.
const DOWN_LIMIT: Duration = Duration::from_secs(1800);
/// A short trial, which begins by itself.
const SETTINGS: &str = ", policy: automatic, trial: {deadline: 5m, soak: 10s}";
/// The pod's first and last line.
const FIRST_LINE: &str = "Hello from a pod on Orlop!";
const LAST_LINE: &str = "Goodbye.";
/// Bars.
const DOWN_MORE_S: f64 = 2.0;
const MEMORY_MAX_MIB: f64 = 32.0;
const MEBI: f64 = 1_048_576.0;

/// What is measured.
struct MeasuredUpdate {
    name: &'static str,
    version: &'static str,
    /// New blocks of 4 KiB.
    marks: Range<u64>,
    /// Most bytes from the network.
    bytes_max: u64,
}

static UPDATES: [MeasuredUpdate; 2] = [
    // The agent has 8.3 MB in the root.
    MeasuredUpdate {
        name: "the agent alone is new",
        version: "0.9.1",
        marks: 10_000..12_026,
        bytes_max: 10_000_000,
    },
    // A release root has 24,324 blocks.
    MeasuredUpdate {
        name: "all of the root is new",
        version: "0.9.2",
        marks: 20_000..44_324,
        bytes_max: 115_000_000,
    },
];

/// The updater's memory.
struct UpdaterMemory {
    /// Most that was resident, KiB.
    peak: u32,
    /// After its work, shared pages by their share, KiB.
    share: u32,
}

/// Prints the figures.
///
/// # Errors
/// If the VM does not come up, or an update is not committed.
pub fn run(run: &Arc<Run>) -> Result<()> {
    let artefacts = run.dir().join("bench-update");
    fs::create_dir_all(&artefacts)?;
    let accelerator = Image::as_released()?.accelerator()?;
    say::line(format!("accelerator {}, 2 CPUs, {MEMORY_MIB} MiB", accelerator.argument()));
    measure(run, &artefacts)?;
    say::line(
        "stock Debian with the upstream kubelet, rebooted into another kernel: not measured (the stock disk of `bench boot` has no \
         kubelet and no pods); bar: Orlop's downtime at most half of it",
    );
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

fn measure(run: &Arc<Run>, artefacts: &std::path::Path) -> Result<()> {
    let mut lab = Lab::new(run, artefacts)?.as_shipped();
    let keys = new_keys(lab.dir())?;
    let [first, _] = &UPDATES;
    let release = publish_marked_release(lab.dir(), &keys, first.version, first.marks.clone(), |_| Ok(()))?;
    let published = published(lab.dir(), release)?;
    let server = Server::start(lab.dir(), &published.dir)?;
    lab.reach_host();
    let pod = config_with_pod();
    let (_, pod) = pod.split_once("console:").context("the sample pod's configuration")?;
    let config = format!("{}console:{pod}", node_config(&server, SETTINGS));
    let mut vm = lab.boot(Firmware::Uefi, Some(&config))?;
    vm.await_phase("pod.running", LIMIT_S)?;
    let ((), plain) = downtime(&mut vm, |vm| vm.shell()?.tell("systemctl reboot"))?;
    say::line(format!("a plain reboot: downtime {plain:.1} s"));
    for update in &UPDATES {
        if update.version != first.version {
            publish_marked_release(lab.dir(), &keys, update.version, update.marks.clone(), |_| Ok(()))?;
        }
        one(&mut vm, update, &published, &server, plain)?;
    }
    vm.power_off(LIMIT_S)
}

/// Takes a version, follows it to its commit, and prints its figures.
fn one(
    vm: &mut Vm,
    update: &MeasuredUpdate,
    published: &Published,
    server: &Server,
    plain: f64,
) -> Result<()> {
    let version = update.version;
    await_network(vm)?;
    trust(vm, published)?;
    let before = server.given();
    let (memory, down) = downtime(vm, |vm| take(vm, version))?;
    let bytes = server.given().saturating_sub(before);
    let committed = format!("update: UpdateCommitted: version {version} ");
    vm.await_console(LIMIT_S, &committed, |line| line.contains(&committed))?;
    let (name, bytes_max) = (update.name, update.bytes_max);
    say::line(format!(
        "an update to {version}, {name}: downtime {down:.1} s (bar {:.1} s: a plain reboot and {DOWN_MORE_S} s)",
        plain + DOWN_MORE_S
    ));
    say::line(format!("  {bytes} bytes from the network (bar {bytes_max})"));
    let mib = |kib: u32| f64::from(kib) * 1024.0 / MEBI;
    say::line(format!(
        "  the updater: at most {:.1} MiB resident (bar {MEMORY_MAX_MIB} MiB), {:.1} MiB (PSS) after its work",
        mib(memory.peak),
        mib(memory.share)
    ));
    Ok(())
}

/// Has the updater stage the version; the node begins to try it by itself.
fn take(vm: &mut Vm, version: &str) -> Result<UpdaterMemory> {
    // One command: the node may reboot soon after.
    let output = vm.shell()?.run(
        &format!(
            "{PROGRAM} take && P=$(systemctl show -P MainPID orlop-update.service) && \
             grep -h -E '^(VmHWM|Pss):' /proc/$P/status /proc/$P/smaps_rollup"
        ),
        TAKE_LIMIT,
    )?;
    let text = &output.text;
    let is_staged = output.status == 0 && text.contains(&format!("{version} is staged"));
    ensure!(is_staged, "the updater ended with {}: {text}", output.status);
    Ok(UpdaterMemory { peak: kib(text, "VmHWM:")?, share: kib(text, "Pss:")? })
}

/// The number of a line of /proc, KiB.
fn kib(text: &str, key: &str) -> Result<u32> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("no {key} in {text:?}"))
}

/// Has the VM leave its boot, and returns the seconds without the pod.
fn downtime<T>(vm: &mut Vm, leave: impl FnOnce(&mut Vm) -> Result<T>) -> Result<(T, f64)> {
    let feed = vm.host_feed();
    let from = feed.len();
    let watch = std::thread::spawn(move || -> Result<f64> {
        let (at, ended) = feed.wait(from, DOWN_LIMIT, "the pod's last line", |line| {
            is_of_pod(line, LAST_LINE).then(Instant::now)
        })?;
        let (_, up) = feed.wait(at, DOWN_LIMIT, "the pod's first line", |line| {
            is_of_pod(line, FIRST_LINE).then(Instant::now)
        })?;
        Ok(up.duration_since(ended).as_secs_f64())
    });
    vm.expect_restart()?;
    let value = leave(vm)?;
    vm.restarted(LIMIT_S).context("the VM does not restart")?;
    let down =
        watch.join().map_err(|_| anyhow::anyhow!("the thread that waits for the pod's lines died"))??;
    vm.await_phase("agent.ready", LIMIT_S)?;
    Ok((value, down))
}

fn is_of_pod(message: &str, wanted: &str) -> bool {
    match serde_json::from_str(message) {
        Ok(HostMessage::PodOutput { line, .. }) => line == wanted,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_proc_are_found() {
        let text = "0.9.1 is staged in slot B\r\nVmHWM:\t   20480 kB\r\nPss:                9000 kB\r\n";
        assert_eq!(kib(text, "VmHWM:").unwrap(), 20_480);
        assert_eq!(kib(text, "Pss:").unwrap(), 9000);
        assert!(kib(text, "Rss:").is_err());
    }

    #[test]
    fn lines_of_pods_are_told_from_other_messages() {
        let line = LAST_LINE.to_owned();
        let said = HostMessage::PodOutput { pod: "default/hello".into(), container: "hello".into(), line };
        let text = serde_json::to_string(&said).unwrap();
        assert!(is_of_pod(&text, LAST_LINE) && !is_of_pod(&text, FIRST_LINE));
        let other = HostMessage::Problem { source: "agent".into(), message: LAST_LINE.into() };
        assert!(!is_of_pod(&serde_json::to_string(&other).unwrap(), LAST_LINE));
        assert!(!is_of_pod("", LAST_LINE));
    }

    #[test]
    fn the_versions_share_no_block() {
        let [agent, all] = &UPDATES;
        assert!(agent.marks.end <= all.marks.start);
        let bytes = |update: &MeasuredUpdate| (update.marks.end - update.marks.start) * 4096;
        assert!(bytes(agent) < agent.bytes_max && bytes(all) < all.bytes_max);
    }
}
