//! kexec: the running kernel starts the next one. Pods end in order as for a reboot, and the firmware does not run.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::say;
use orlop_harness::vm::lab::Image;

use super::interrupted::ensure_last_end;
use super::{Fixture, HERE, OFF_LIMIT_S, Periods, VM, await_boot, await_lock, boot_id, five, fixture};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "shutdown/kexec",
    100,
    "systemctl kexec: pods end as for a reboot, the next kernel starts without the firmware and knows how it was",
    kexec,
)];

/// Path of the next kernel in the guest: the image's own, in place of an update's.
const KERNEL: &str = "/run/next-vmlinuz";
const INITRD: &str = "/run/next-initrd";

/// A disk that brings both.
pub(super) fn disk(artefacts: &Path) -> Result<SecondDisk> {
    let image = Image::test()?;
    let (kernel, initrd) = (image.path("vmlinuz"), image.path("initrd"));
    SecondDisk::make(artefacts, &[(&kernel, KERNEL), (&initrd, INITRD)], &[])
}

fn kexec(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, disk, .. } = fixture(cx, Periods::ByPriority)?;
    await_lock(vm)?;
    five::run(cluster, five::SOON)?;
    let before = boot_id(cluster)?;
    let shell = vm.vm()?.shell()?;
    disk.unpack(shell)?;
    shell.must(&format!("kexec -s -l {KERNEL} --initrd={INITRD} --reuse-cmdline"))?;
    let loaded = shell.must("cat /sys/kernel/kexec_loaded")?;
    ensure!(loaded.trim() == "1", "no kernel is loaded: {loaded}");
    let asked = Instant::now();
    vm.vm()?.kexec(OFF_LIMIT_S)?;
    say::line(format!(
        "  {VM}'s next kernel ran {:.1} s after it was asked for",
        asked.elapsed().as_secs_f64()
    ));
    await_boot(cluster, vm, &before)?;
    five::ensure_ended(cluster, vm, &before, "kexec")?;
    ensure_last_end(cluster, "False", "ShutdownInOrder").context("the boot after the kexec").map(drop)
}
