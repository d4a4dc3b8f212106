//! A boot does not trust a disk because it is attached: a configuration drive that appears after the first boot, and a
//! copy of the image on a faster bus.
//!
//! Cases: `boot/drive-later`, `boot/foreign-disk`.

use std::fs;

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::fat;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;

use crate::cases::boot::refused::{STATE, await_problem, used_lab};
use crate::cases::boot::shared_vm::BOOT_LIMIT_S;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file; the first one runs before the others of its group, which damage the disk.
pub const CASES: &[Case] = &[
    STATE.case(
        "boot/drive-later",
        180,
        "a drive that appears after the first boot is named and changes nothing; on purpose it is taken and kept",
        drive_later,
    ),
    ALONE.case(
        "boot/foreign-disk",
        210,
        "a copy of the image on a faster bus is not taken: the booted disk is waited for, or both are refused by name",
        foreign_disk,
    ),
];

/// Makes init read drives again.
const ON_PURPOSE: &str = "orlop.drive=always";

/// Runs a command in a VM that has booted so far that the agent is ready, then powers it off.
fn look(vm: Vm, command: &str) -> Result<String> {
    let mut vm = vm;
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    let said = vm.shell()?.must(command)?;
    vm.power_off(120)?;
    Ok(said)
}

/// The effective configuration with the source of the node's name, modules of file systems; the record's mode and text,
/// if it exists.
const LOOK: &str = "cat /run/orlop/node-config.json; cut -d' ' -f1 /proc/modules; \
     stat -c 'record-mode=%a' /var/lib/orlop/config/first-boot.json; cat /var/lib/orlop/config/first-boot.json";

fn drive_later(cx: &mut CaseContext<'_>) -> Result<()> {
    // Its first boot had no drive.
    let lab = used_lab(cx)?;
    let drive = lab.dir().join("cidata");
    let text = "#orlop\napiVersion: orlop/v1alpha1\nkind: NodeConfig\nnode: {name: from-the-drive}\n";
    fat::write(&drive, "CIDATA", "user-data", text)?;
    lab.attach(std::slice::from_ref(&drive));
    let outcome = ignored(lab).and_then(|()| {
        lab.tell_kernel(ON_PURPOSE);
        taken(lab)
    });
    lab.tell_kernel_no_more(ON_PURPOSE);
    lab.attach(&[]);
    outcome?;
    // Neither the drive nor the word: the node has kept the text.
    let said = look(lab.boot(Firmware::Direct, None)?, LOOK).context("without the drive")?;
    ensure!(
        said.contains("from-the-drive") && said.contains("kept since the first boot"),
        "not kept: {said}"
    );
    Ok(())
}

fn ignored(lab: &Lab) -> Result<()> {
    let vm = lab.boot(Firmware::Direct, None)?;
    let line = vm.await_console(BOOT_LIMIT_S, "a word about the drive", |l| l.contains("(CIDATA)"))?;
    say::line(format!("  {}", line.trim()));
    ensure!(line.contains("/dev/vdb") && line.contains(ON_PURPOSE), "what to do is not said: {line}");
    let said = look(vm, LOOK).context("with a drive that came later")?;
    ensure!(!said.contains("from-the-drive"), "the drive was believed: {said}");
    ensure!(!said.lines().any(|l| l == "vfat"), "the drive's file system was mounted: {said}");
    ensure!(said.contains("record-mode=600"), "no record of the first boot for root alone: {said}");
    Ok(())
}

fn taken(lab: &Lab) -> Result<()> {
    let said = look(lab.boot(Firmware::Direct, None)?, LOOK).context("with the drive on purpose")?;
    let provenance = "\"node.name\": \"drive\"";
    ensure!(said.contains("from-the-drive") && said.contains(provenance), "the drive was not read: {said}");
    ensure!(!said.contains("kept since"), "it is not of the first boot: {said}");
    ensure!(said.contains("record-mode=600"), "the record is not for root alone: {said}");
    Ok(())
}

fn foreign_disk(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut own = Lab::new(&cx.run, &cx.artefacts)?.on_sata();
    let foreign = Lab::new(&cx.run, &cx.artefacts)?;
    // The copy is a node of its own: the same root, and an intact state partition.
    look(foreign.boot(Firmware::Direct, None)?, "echo foreign > /var/whose && sync")
        .context("the other disk")?;
    look(own.boot(Firmware::Uefi, None)?, "echo own > /var/whose && sync").context("the first boot")?;
    let copy = own.dir().join("foreign.raw");
    fs::hard_link(foreign.disk(), &copy).context("take the other disk along")?;
    own.attach(&[copy]);
    let command =
        "cat /var/whose; grep -A3 init.disk /run/orlop/boot.json; test -b /dev/vda && echo 'vda is there'";
    let said = look(own.boot(Firmware::Uefi, None)?, command).context("with both disks")?;
    ensure!(said.starts_with("own"), "/var is the other disk's: {said}");
    ensure!(said.contains("/dev/sda of") && said.contains("vda is there"), "another disk was chosen: {said}");
    // If QEMU passes the kernel, there is no ESP by which init could distinguish the two disks.
    let vm = own.boot(Firmware::Direct, None)?;
    let problem = await_problem(&vm, "a refusal", |m| m.contains("boot failed in init.disk"))?;
    for part in ["/dev/sda", "/dev/vda", "none is used"] {
        ensure!(problem.contains(part), "{part} is not in: {problem}");
    }
    Ok(())
}
