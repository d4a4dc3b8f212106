//! The image for arm64 boots on QEMU's board `virt` through AAVMF, systemd-boot and its UKI, and runs a pod
//! (docs/internals/arm64.md).
//!
//! Case: `arm64/boot`.

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Image, Lab};
use orlop_image::arch::Arch;

use crate::cases::boot::shared_vm::config_with_pod;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "arm64/boot",
    180,
    "the image for arm64 stamps every phase on an emulated machine, and its pod's output arrives",
    boot,
)];

/// A boot to the running pod, with each instruction translated, seconds.
const LIMIT_S: u64 = 420;

fn boot(cx: &mut CaseContext<'_>) -> Result<()> {
    if Image::of(Arch::Arm64).is_err() {
        return skip("there is no image for arm64: `cargo e2e arm64` builds it and runs this case");
    }
    let lab = Lab::of(&cx.run, &cx.artefacts, &Image::of(Arch::Arm64)?)?;
    let mut vm = lab.boot(Firmware::Uefi, Some(&config_with_pod()))?;
    let disk = vm.await_phase("init.disk", LIMIT_S)?;
    let pod = vm.await_phase("pod.running", LIMIT_S)?;
    ensure!(pod.detail.contains("hello"), "pod.running says {:?}", pod.detail);
    say::line(format!("  {}; pod running after {} ms", disk.detail, pod.at_ms));
    let kernel = vm.await_message("the pod's output", LIMIT_S, |message| match message {
        HostMessage::PodOutput { pod, line, .. } if pod.starts_with("default/hello") => {
            line.contains("kernel").then_some(line)
        }
        _ => None,
    })?;
    ensure!(kernel.contains("-arm64"), "the pod sees another kernel: {kernel}");
    for message in vm.messages() {
        if let HostMessage::Ledger(entry) = message {
            say::line(format!("  {:>8} ms  {}", entry.at_ms, entry.phase));
        }
    }
    let shell = vm.shell()?;
    let machine = shell.must("uname -m")?;
    ensure!(machine.trim() == "aarch64", "uname -m says {machine:?}");
    shell.must("test -d /sys/firmware/efi").context("the firmware started the UKI")?;
    let cmdline = shell.must("cat /proc/cmdline")?;
    ensure!(cmdline.contains("console=ttyAMA0,115200") && cmdline.contains("roothash="), "{cmdline}");
    shell.must("test ! -e /run/orlop/degraded").context("the state partition is not used")?;
    vm.power_off(LIMIT_S)
}
