//! Boots with something wrong: a damaged root, a damaged or missing state partition, bad configuration; and
//! the boot through the real firmware. Each case has a VM of its own.
//!
//! Cases: `boot/flipped-byte`, `boot/state-corrupt`, `boot/state-missing`, `boot/bad-config`, `boot/uefi`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::disk;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, config_with_pod};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };
pub(crate) const STATE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("vm-state") };

/// Cases of this file.
pub const CASES: &[Case] = &[
    ALONE.case(
        "boot/flipped-byte",
        30,
        "one flipped byte in the root is refused with a clear line, without a boot loop",
        flipped_byte,
    ),
    STATE.case(
        "boot/state-corrupt",
        90,
        "a damaged state partition is reported and left as it is",
        state_corrupt,
    ),
    STATE.case(
        "boot/state-missing",
        50,
        "a state partition gone from the table is reported, its data left as they are",
        state_missing,
    ),
    ALONE.case(
        "boot/bad-config",
        45,
        "bad configuration: defaults are used, and what was wrong where is said",
        bad_config,
    ),
    ALONE.case("boot/uefi", 80, "the same through OVMF, systemd-boot and the UKI", uefi),
];

/// The first problem of the current boot for which `wanted` holds.
pub(crate) fn await_problem(vm: &Vm, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
    let problem = vm.await_message(what, BOOT_LIMIT_S, |m| match m {
        HostMessage::Problem { source, message } if wanted(&message) => Some(format!("{source}: {message}")),
        _ => None,
    })?;
    say::line(format!("  {problem}"));
    Ok(problem)
}

fn flipped_byte(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let root = lab.partition("orlop_")?;
    // A byte of the file system's superblock, which every mount reads.
    disk::invert(&lab.disk(), root.start + 1024 + 64, 1)?;
    let mut vm = lab.boot(Firmware::Direct, None)?;
    let problem = await_problem(&vm, "a refusal", |m| m.contains("boot failed"))?;
    ensure!(
        problem.contains("init.verity") || problem.contains("init.root"),
        "the refusal names no phase: {problem}"
    );
    ensure!(problem.contains("nothing was changed"), "{problem}");
    let line = vm.await_console(10, "the refusal on the console", |l| l.contains("boot failed"))?;
    ensure!(line.contains("init."), "console: {line}");
    // There is no other slot, so the machine stays in this state; a reset would come ten seconds after the line.
    let reset = vm.qmp.await_event("RESET", Duration::from_secs(15));
    ensure!(reset.is_err(), "the machine reboots again and again");
    Ok(())
}

/// A disk whose state partition a first boot has made.
pub(crate) fn used_lab<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Lab> {
    cx.shared_or(|run, artefacts| {
        let lab = Lab::new(run, artefacts)?;
        let vm = lab.boot(Firmware::Direct, None)?;
        vm.await_phase("agent.ready", BOOT_LIMIT_S).context("first boot")?;
        vm.power_off(120)?;
        Ok(lab)
    })
}

/// Enough to hold superblocks, group descriptors and the first inodes.
const COMPARED: u64 = 64 << 20;

fn state_corrupt(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = used_lab(cx)?;
    let state = lab.partition("orlop-state")?;
    let superblock = state.start + 1024;
    disk::invert(&lab.disk(), superblock, 1024)?;
    let before = disk::digest(&lab.disk(), state.start, COMPARED)?;
    let vm = lab.boot(Firmware::Direct, None)?;
    let problem = await_problem(&vm, "a word about the state partition", |m| m.contains("state"))?;
    ensure!(problem.contains("nothing was changed"), "{problem}");
    vm.await_phase("agent.ready", BOOT_LIMIT_S).context("with a damaged state partition")?;
    vm.power_off(120)?;
    ensure!(disk::digest(&lab.disk(), state.start, COMPARED)? == before, "the damaged partition was written");
    // Mended again for the next case.
    disk::invert(&lab.disk(), superblock, 1024)
}

fn state_missing(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = used_lab(cx)?;
    let state = lab.partition("orlop-state")?;
    disk::delete_partition(lab.run(), &lab.disk(), state.number)?;
    ensure!(lab.partition("orlop-state").is_err(), "the entry is still there");
    let before = disk::digest(&lab.disk(), state.start, COMPARED)?;
    let vm = lab.boot(Firmware::Direct, None)?;
    let problem = await_problem(&vm, "a word about the state partition", |m| m.contains("missing"))?;
    ensure!(problem.contains("nothing was changed"), "{problem}");
    vm.await_phase("agent.ready", BOOT_LIMIT_S).context("without a state partition")?;
    vm.power_off(120)?;
    ensure!(
        disk::digest(&lab.disk(), state.start, COMPARED)? == before,
        "the lost partition's data were written"
    );
    Ok(())
}

fn bad_config(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let text = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\nkubelet:\n  maxPods: many\nnoSuchField: 1\n";
    let mut vm = lab.boot(Firmware::Direct, Some(text))?;
    let problem = await_problem(&vm, "a word about the configuration", |m| {
        m.contains("maxPods") || m.contains("noSuchField")
    })?;
    ensure!(problem.contains("fw_cfg") || problem.contains("fw-cfg"), "the source is not named: {problem}");
    vm.await_phase("agent.ready", BOOT_LIMIT_S).context("with bad configuration")?;
    let said = vm.shell()?.must("cat /run/orlop/node-config.json")?;
    ensure!(said.contains("problems") && said.contains("noSuchField"), "node-config.json: {said}");
    Ok(())
}

fn uefi(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let mut vm = lab.boot(Firmware::Uefi, Some(&config_with_pod()))?;
    let entry = vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    ensure!(entry.detail.contains("hello"), "pod.running says {:?}", entry.detail);
    let cmdline = vm.shell()?.must("cat /proc/cmdline")?;
    for word in ["roothash=", "panic=10", "module.sig_enforce=1"] {
        ensure!(cmdline.contains(word), "command line of the UKI: {cmdline}");
    }
    vm.shell()?.must("test -d /sys/firmware/efi")?;
    Ok(())
}
