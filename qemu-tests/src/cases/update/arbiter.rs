//! The boot record and the names on the ESP, damaged on purpose between boots through OVMF and systemd-boot.
//!
//! Cases: `update/arbiter-record`, `update/arbiter-names`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use orlop_config::slots::{BootRecord, RING_BYTES, SlotName, SlotState, latest};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_init::plan::esp::{EspDirectory, UKI_CHAIN_BYTES};
use orlop_init::plan::esp_names::EntryState;

use crate::cases::boot::shared_vm::BOOT_LIMIT_S;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    ALONE.case(
        "update/arbiter-record",
        200,
        "a destroyed boot record is made again, and a variable by which the loader chooses is deleted",
        record_destroyed,
    ),
    ALONE.case(
        "update/arbiter-names",
        260,
        "with wrong names on the ESP the good slot boots, and what the arbiter mends is right for the firmware",
        wrong_names,
    ),
];

/// By this the loader chooses an entry.
const VARIABLE: &str = "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// Attributes, then `orlop-b*` in UTF-16, as `printf` takes it.
const ENTRY_OF_B: &str = r"\007\000\000\000o\000r\000l\000o\000p\000-\000b\000*\000\000\000";

/// Boots through the firmware until the agent is ready; returns the ledger's detail of `init.slot` as well.
fn boot(lab: &Lab) -> Result<(Vm, String)> {
    let vm = lab.boot(Firmware::Uefi, None)?;
    let entry = vm.await_phase("init.slot", BOOT_LIMIT_S)?;
    ensure!(entry.ok, "init.slot: {}", entry.detail);
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    Ok((vm, entry.detail))
}

/// The disk, and where a partition begins; only while no VM runs.
pub(crate) fn open(lab: &Lab, label: &str) -> Result<(File, u64)> {
    let disk = lab.disk();
    let file = File::options().read(true).write(true).open(&disk);
    Ok((file.with_context(|| format!("open {}", disk.display()))?, lab.partition(label)?.start))
}

pub(crate) fn record(lab: &Lab) -> Result<BootRecord> {
    let (disk, start) = open(lab, "orlop-boot")?;
    let mut ring = vec![0; RING_BYTES];
    disk.read_exact_at(&mut ring, start).context("read the boot record")?;
    let found = latest(&ring).context("the disk has no boot record")?;
    BootRecord::parse(found.payload).context("parse the boot record")
}

pub(crate) fn directory(disk: &File, start: u64) -> Result<EspDirectory> {
    let read = |offset: u64, length: usize| {
        let mut bytes = vec![0; length];
        disk.read_exact_at(&mut bytes, start + offset).ok().map(|()| bytes)
    };
    EspDirectory::read(read).context("read the ESP")
}

fn record_destroyed(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let (mut vm, detail) = boot(&lab).context("first boot")?;
    ensure!(detail.contains("slot A, boot record 1"), "init.slot says {detail:?}");
    vm.shell()?.must(&format!("printf '{ENTRY_OF_B}' > {VARIABLE}"))?;
    vm.power_off(120)?;
    let made = record(&lab)?;
    // The agent was ready and the machine was switched off in order: both are noted.
    ensure!((made.desired, made.unready, made.b.state) == (SlotName::A, 0, SlotState::Empty), "{made:?}");
    ensure!(!made.boot_open && !made.a.version.is_empty(), "{made:?}");
    ensure!(made.a.roothash.len() == 64 && made.a.uki_bytes > 1 << 20, "{made:?}");

    let (disk, start) = open(&lab, "orlop-boot")?;
    disk.write_all_at(&vec![0xa5; RING_BYTES], start).context("destroy the boot record")?;
    let (mut vm, detail) = boot(&lab).context("without a boot record")?;
    ensure!(detail.contains("slot A, boot record 1"), "init.slot says {detail:?}");
    vm.shell()?.must(&format!("test ! -e {VARIABLE}")).context("the variable is still there")?;
    vm.power_off(120)?;
    ensure!(record(&lab)?.desired == SlotName::A, "another slot is desired");

    // A record that stays is counted on.
    let (vm, detail) = boot(&lab).context("with the new boot record")?;
    // init, the node's readiness, the end of the boot, init.
    ensure!(detail.contains("boot record 4"), "init.slot says {detail:?}");
    vm.power_off(120)
}

fn wrong_names(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let (vm, _) = boot(&lab).context("first boot")?;
    vm.power_off(120)?;
    let uki_bytes = u32::try_from(record(&lab)?.a.uki_bytes)?;
    // The empty slot looks good, and the good one as if its only try were used.
    let (disk, start) = open(&lab, "esp")?;
    for (slot, state, bytes) in
        [(SlotName::B, EntryState::Good, 4096), (SlotName::A, EntryState::Tried, uki_bytes)]
    {
        let (_, write) = directory(&disk, start)?.renamed(slot, state, bytes)?;
        disk.write_all_at(&write.bytes, start + write.offset).context("change a name on the ESP")?;
    }
    // Twice: the second boot is through what the arbiter wrote.
    for when in ["with wrong names", "with mended names"] {
        let (vm, detail) = boot(&lab).context(when)?;
        ensure!(detail.contains("slot A"), "init.slot says {detail:?}");
        vm.power_off(120)?;
        let names = directory(&disk, start)?;
        for (slot, want) in [
            (SlotName::A, (EntryState::Good, uki_bytes)),
            (SlotName::B, (EntryState::Hidden, UKI_CHAIN_BYTES)),
        ] {
            let entry = names.entry(slot).with_context(|| format!("slot {slot} has no entry"))?;
            ensure!((entry.state, entry.bytes) == want, "{when}: {entry:?}");
        }
    }
    Ok(())
}
