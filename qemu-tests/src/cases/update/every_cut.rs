//! Power cuts of a real update: QEMU logs all writes of the disk while a node updates itself; disks as cuts leave them are booted.
//!
//! Case: `update/every-cut`. That each prefix of such a log boots is the promise of the tests in `agent/update/src/cuts`; here some
//! of them are booted by the firmware, systemd-boot, the kernel and init.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::process::must;
use orlop_harness::rng::Rng;
use orlop_harness::say;
use orlop_harness::vm::disk;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_harness::vm::write_log::{LoggedEvent, WriteLog};

use super::published::{Published, Server, VERSION, new_keys, publish_bootable_release, published};
use super::staging::{PROGRAM, STAGE_LIMIT, boot_with, node_config, take, trust};
use super::trial::{RESTART_LIMIT_S, await_said, await_slot};
use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, await_network};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "update/every-cut",
    1200,
    "the writes of a whole update, cut at several places of the log: each disk boots until the agent is ready; the next update succeeds",
    every_cut,
)];

/// Number of cuts, whatever they take.
const CUTS_VARIABLE: &str = "ORLOP_E2E_UPDATE_CUTS";
/// Cuts without the variable, as far as the time is enough.
const CUTS: u64 = 12;
/// And at least so many.
const CUTS_MIN: u64 = 4;
/// The case takes about so long without the variable.
const TIME: Duration = Duration::from_secs(1200);
/// Boots of the next update: before it, on trial. Staging takes as long as a boot.
const NEXT_BOOTS: u32 = 3;
/// The next version.
const NEXT: &str = "0.9.1";
/// Settings of a node that updates itself.
const AUTOMATIC: &str = ", policy: automatic, trial: {deadline: 5m, soak: 10s}";
/// Writes of names and records are not longer, bytes; pieces of a slot may be.
const SMALL: u64 = 4096;
/// Events before the first one of slot B that belong to the update: the UKI is hidden, the record says what is written.
const BEFORE: usize = 40;

/// Where an update writes.
struct UpdatePlaces {
    /// Table, boot record and ESP: what decides which slot boots.
    deciding: Vec<Range<u64>>,
    /// Root and tree of the slot that is written.
    slot: Vec<Range<u64>>,
}

impl UpdatePlaces {
    /// Those of a disk whose slot B has the version.
    fn of(lab: &Lab) -> Result<UpdatePlaces> {
        let place = |label: &str| -> Result<Range<u64>> {
            let found = lab.partition(label)?;
            Ok(found.start..found.start + found.length)
        };
        let bytes = lab.disk().metadata().context("look at the disk")?.len();
        let esp: Range<u64> = place("esp")?;
        let deciding = vec![0..esp.start, bytes - (1 << 20)..bytes, place("orlop-boot")?, esp];
        let slot = vec![place(&format!("orlop_{VERSION}"))?, place(&format!("orlop_{VERSION}_verity"))?];
        Ok(UpdatePlaces { deciding, slot })
    }
}

fn touches(event: &LoggedEvent, places: &[Range<u64>]) -> bool {
    places.iter().any(|place| event.touches(place.start, place.end))
}

/// The cuts, as numbers of events before them in ascending order, and one of them in the middle of the slot.
fn chosen(
    events: &[LoggedEvent],
    places: &UpdatePlaces,
    count: usize,
    rng: &mut Rng,
) -> Result<(Vec<usize>, usize)> {
    let first = events.iter().position(|event| touches(event, &places.slot));
    let from = first.context("the log has no write to slot B")?.saturating_sub(BEFORE);
    let of = |wanted: &dyn Fn(&LoggedEvent) -> bool| -> Vec<usize> {
        let behind = events.iter().enumerate().skip(from).filter(|(_, event)| wanted(event));
        behind.map(|(number, _)| number + 1).collect()
    };
    let is_small =
        |event: &LoggedEvent| matches!(event, LoggedEvent::Write { length, .. } if *length <= SMALL);
    let mut deciding = of(&|event| is_small(event) && touches(event, &places.deciding));
    let mut slot = of(&|event| touches(event, &places.slot));
    let mut cuts = Vec::new();
    let middle = drawn(&mut slot, rng).context("nothing is written to slot B")?;
    cuts.push(middle);
    // Two of three where it is decided what boots.
    while cuts.len() < count && !(deciding.is_empty() && slot.is_empty()) {
        let is_of_slot = cuts.len() % 3 == 0 && !slot.is_empty() || deciding.is_empty();
        cuts.extend(drawn(if is_of_slot { &mut slot } else { &mut deciding }, rng));
    }
    cuts.sort_unstable();
    Ok((cuts, middle))
}

/// One of them, which is taken away.
fn drawn(list: &mut Vec<usize>, rng: &mut Rng) -> Option<usize> {
    let number = usize::try_from(rng.below(u32::try_from(list.len()).ok()?)).ok()?;
    (number < list.len()).then(|| list.swap_remove(number))
}

/// Has a node update itself, with all writes to its disk in a log; says how long its first boot took.
fn record(lab: &Lab, server: &Server, published: &Published) -> Result<Duration> {
    let begun = Instant::now();
    let mut vm = boot_with(lab, server, published, AUTOMATIC)?;
    let took = begun.elapsed();
    vm.expect_restart()?;
    take(&mut vm)?;
    vm.restarted(RESTART_LIMIT_S).context("the node does not try what it has staged")?;
    await_slot(&vm, "slot B is on trial, boot 1 of 3")?;
    await_said(&vm, "UpdateCommitted", 300)?;
    vm.power_off(120)?;
    Ok(took)
}

/// How many cuts there is time for.
fn count(begun: Instant, boot: Duration) -> Result<usize> {
    if let Ok(asked) = std::env::var(CUTS_VARIABLE) {
        return asked.parse().with_context(|| format!("{CUTS_VARIABLE} is a number of power cuts"));
    }
    let left = TIME.saturating_sub(begun.elapsed()).saturating_sub(boot * NEXT_BOOTS);
    let fit = left.as_secs() / boot.as_secs().max(1);
    Ok(usize::try_from(fit.clamp(CUTS_MIN, CUTS))?)
}

/// The node takes the next version, tries it and keeps it.
fn next_update(vm: &mut Vm, published: &Published) -> Result<()> {
    await_network(vm)?;
    trust(vm, published)?;
    vm.expect_restart()?;
    let output = vm.shell()?.run(&format!("{PROGRAM} take"), STAGE_LIMIT)?;
    let is_staged = output.status == 0 && output.text.contains(&format!("{NEXT} is staged in slot B"));
    ensure!(is_staged, "the updater says {:?}", output.text);
    vm.restarted(RESTART_LIMIT_S).context("the node does not try the next version")?;
    await_slot(vm, "slot B is on trial, boot 1 of 3")?;
    let said = await_said(vm, "UpdateCommitted", 300)?;
    ensure!(said.contains(NEXT), "the agent says {said:?}");
    Ok(())
}

/// A qcow2 file over the copy of the disk, which it leaves as it is.
fn overlay(lab: &Lab, disk: &Path, path: &Path) -> Result<()> {
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(disk).arg(path);
    must(lab.run(), &mut create).context("make an overlay").map(drop)
}

fn every_cut(cx: &mut CaseContext<'_>) -> Result<()> {
    let begun = Instant::now();
    let mut rng = Rng::new(cx.seed);
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let keys = new_keys(lab.dir())?;
    let release = publish_bootable_release(lab.dir(), &keys, VERSION, 1)?;
    let published = published(lab.dir(), release)?;
    let server = Server::start(lab.dir(), &published.dir)?;
    lab.reach_host();
    let copy = lab.dir().join("cut.raw");
    let gib = lab.disk().metadata().context("look at the disk")?.len() >> 30;
    disk::copy(lab.run(), &lab.disk(), &copy, gib)?;
    let log = lab.log_writes()?;
    let boot = record(&lab, &server, &published)?;
    lab.log_no_more();
    let places = UpdatePlaces::of(&lab)?;
    publish_bootable_release(lab.dir(), &keys, NEXT, 2)?;

    let mut log = WriteLog::open(&log, &copy)?;
    let events = log.events().len();
    let (cuts, middle) = chosen(log.events(), &places, count(begun, boot)?, &mut rng)?;
    say::line(format!("  {events} writes and flushes, {} cuts", cuts.len()));
    let (automatic, manual) = (node_config(&server, AUTOMATIC), node_config(&server, ", policy: manual"));
    let file = lab.dir().join("cut.qcow2");
    for (number, after) in cuts.iter().copied().enumerate() {
        // Every second one has torn writes.
        let torn = if number % 2 == 1 { Some(&mut rng) } else { None };
        let how = if torn.is_some() { "torn, " } else { "" };
        let named = format!("cut after {after} of {events} events, {how}seed {}", cx.seed);
        let written = log.cut(after, torn)?;
        overlay(&lab, &copy, &file)?;
        let config = if after == middle { &automatic } else { &manual };
        let mut vm = lab.boot_overlay(Firmware::Uefi, &file, Some(config))?;
        // The arbiter may reset the machine once.
        let ready = vm.await_phase("agent.ready", 2 * BOOT_LIMIT_S).with_context(|| named.clone())?;
        ensure!(ready.ok, "{named}: {}", ready.detail);
        let slots = slots_of(&vm);
        let is_kept = !slots.is_empty() && slots.iter().all(|said| has_kept_record(said));
        ensure!(is_kept, "{named}: the boot record is lost: {slots:?}");
        say::line(format!("  {named}: ready, {}", slots.join(", then ")));
        if after == middle {
            next_update(&mut vm, &published).with_context(|| format!("{named}: the next update"))?;
        }
        drop(vm);
        log.take_back(written)?;
    }
    Ok(())
}

/// Init has found the node's record: one that it makes itself, because none is readable, is the first of the ring.
fn has_kept_record(said: &str) -> bool {
    let number = said.split_once("boot record ").and_then(|(_, rest)| rest.split(';').next()?.parse().ok());
    number.is_some_and(|number: u64| number > 1) && !said.contains("another installation")
}

/// What init said about the slots in the boots of a VM.
fn slots_of(vm: &Vm) -> Vec<String> {
    let said = vm.messages().into_iter().filter_map(|message| match message {
        HostMessage::Ledger(entry) if entry.phase == "init.slot" => Some(entry.detail),
        _ => None,
    });
    said.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, length: u64) -> LoggedEvent {
        LoggedEvent::Write { offset, length, content: 0 }
    }

    #[test]
    fn a_record_that_init_has_made_is_none_of_the_node() {
        assert!(has_kept_record("slot A, boot record 12"));
        assert!(has_kept_record("slot B, boot record 7; slot B is on trial, boot 1 of 3"));
        assert!(!has_kept_record("slot A, boot record 1; slot A is good"));
        assert!(!has_kept_record(
            "slot A, boot record 9; the boot record is of another installation: a new one is made"
        ));
        assert!(!has_kept_record("no boot record"));
    }

    #[test]
    fn cuts_are_of_the_update_and_mostly_where_it_is_decided() {
        let deciding = vec![0..2000, 2000..10_000];
        let places = UpdatePlaces { deciding, slot: vec![100_000..500_000, 500_000..1_000_000] };
        // A first boot, the slot's blocks with flushes, then names and records.
        let mut events = vec![write(512, 512); 100];
        for n in 0..60 {
            events.extend([write(100_000 + n * 4096, 4096), LoggedEvent::Flush]);
        }
        events.extend(vec![write(4096, 4096); 20]);
        events.extend(vec![write(5_000_000, 4096); 50]);
        for seed in 0..20 {
            let (cuts, middle) = chosen(&events, &places, 12, &mut Rng::new(seed)).expect("chosen");
            assert_eq!(cuts.len(), 12, "{seed}");
            assert!(cuts.is_sorted() && cuts.contains(&middle), "{cuts:?}");
            assert!(cuts.iter().all(|cut| (100 - BEFORE + 1..=240).contains(cut)), "{cuts:?}");
            assert!(touches(&events[middle - 1], &places.slot), "{seed}");
            let deciding = cuts.iter().filter(|cut| touches(&events[**cut - 1], &places.deciding)).count();
            assert_eq!(deciding, 8, "{cuts:?}");
        }
        // Fewer events than cuts.
        let few = [write(100_000, 512), LoggedEvent::Flush, write(512, 512)];
        let (cuts, middle) = chosen(&few, &places, 12, &mut Rng::new(1)).expect("chosen");
        assert_eq!((cuts, middle), (vec![1, 3], 1));
        assert!(chosen(&[], &places, 12, &mut Rng::new(1)).is_err());
    }
}
