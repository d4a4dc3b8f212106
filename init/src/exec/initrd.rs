//! The initrd stage: runs the phases in order and hands over to systemd.
//!
//! Every phase is stamped. A failed phase stops the boot or lets it go on degraded, as `plan::phase` says.

use super::clock::{self, boottime_ms};
use super::devices::{Uevents, scan};
use super::drivers::Drivers;
use super::error::InitError;
use super::install::BootedDisk;
use super::loader::{self, Loader};
use super::report::Report;
use super::reset::{ResetHold, ResetTools};
use super::slot::{Arbiter, SlotOutcome};
use super::sources::{FoundSources, SourceLocations, collect};
use super::steps::{apply_all, read};
use super::verity::Opened;
use super::watchdog::{self, ArmedWatchdog, during};
use super::{
    DEGRADED, agent_memory, change, configuration, go_memory, handover, install, kept, machine_id, prefetch,
    seed, state, stop, tpm, verity,
};
use crate::plan::cmdline::{self, BootArgs};
use crate::plan::disk::{Choice, Disk, Slot, choose};
use crate::plan::failure::OtherSlot;
use crate::plan::guard;
use crate::plan::kept::{FirstBootRecord, ignored};
use crate::plan::mounts::{self, SYSROOT};
use crate::plan::phase::{OnFailure, Phase};
use crate::plan::step::BootStep;
use crate::plan::tpm::{ENTER_INITRD, LEAVE_INITRD, PCR_PHASES};
use crate::sys::block;
use orlop_config::boot_trust::TRUST_PHASE;
use orlop_config::error_chain::chain;
use orlop_config::slots::RESET_END_FILE;
use std::convert::Infallible;
use std::fs::{self, OpenOptions};
use std::path::Path;

/// How long the root's disk is awaited, milliseconds. Slow controllers need tens of seconds; a machine under
/// emulation needs a few.
const DISK_DEADLINE_MS: u64 = 60_000;

/// A boot on its way.
struct Boot {
    report: Report,
    drivers: Drivers,
    loader: Loader,
    other_slot: OtherSlot,
    /// None on a disk without a boot record.
    arbiter: Option<Arbiter>,
    /// Sources of the configuration, if they were looked at already.
    found: Option<FoundSources>,
    /// The same, looked at before it was known whether the state partition can be made.
    early: Option<FoundSources>,
    /// What a factory reset means for the state partition.
    reset: ResetHold,
    /// The hardware's, in a boot on trial.
    watchdog: Option<ArmedWatchdog>,
}

/// A boot that has to end: where and why.
struct Stopped(Phase, String);

/// Boots. Never returns.
pub fn run() -> ! {
    let mut boot = Boot {
        report: Report::new("init", "orlop-init"),
        drivers: Drivers::default(),
        loader: Loader::default(),
        other_slot: OtherSlot::default(),
        arbiter: None,
        found: None,
        early: None,
        reset: ResetHold::Free,
        watchdog: None,
    };
    boot.report.stamp("kernel", None, &kernel_version(), true);
    let Err(Stopped(phase, why)) = boot.phases();
    boot.leave_corrupt_slot(phase, &why);
    stop::stop(&mut boot.report, phase, boot.other_slot, &why)
}

impl Boot {
    fn phases(&mut self) -> Result<Infallible, Stopped> {
        let args = self.vital(Phase::ApiFilesystems, api_filesystems)?;
        self.report.reopen_console();
        tpm::measure(&mut self.report, "the initrd's beginning", PCR_PHASES, [ENTER_INITRD.to_vec()]);
        for mistake in &args.mistakes {
            self.report.problem(mistake);
        }
        self.tolerated(Phase::Cgroup, |_| cgroup());
        self.tolerated(Phase::Modules, load);
        let (mut disk, slot) = self.vital(Phase::Disk, |b| find_disk(b, &args))?;
        self.other_slot = OtherSlot { filled: slot.other_slot, counted: self.loader.counts_tries };
        self.tolerated(Phase::Slot, |b| b.slot(&disk, &slot, &args));
        let opened = self.vital(Phase::Verity, |_| {
            let opened = verity::open(args.roothash, &disk, &slot)?;
            let detail = format!("{} root hash {}", opened.partition, args.roothash);
            Ok((opened, detail))
        })?;
        self.vital(Phase::Root, |_| {
            apply_all(&mounts::root(&opened.device))?;
            let bytes = verity::check_programs(&opened, SYSROOT)?;
            Ok(((), format!("erofs, {} KiB of programs checked", bytes / 1024)))
        })?;
        // A second processor has nothing to do until systemd runs.
        prefetch::start(SYSROOT);
        if let Some(now) = self.reset(&disk, &args) {
            disk = now;
        }
        let is_node = self.reset != ResetHold::Free || !state::is_first_boot(&disk);
        if !is_node {
            // The installer copies a disk, or waits for a person.
            self.unguard();
            self.install(&disk, &slot, &opened, &args);
        }
        self.tolerated(Phase::State, |b| b.state(&disk, &args));
        self.tolerated(Phase::Seed, |_| seed::run(Path::new(SYSROOT)));
        self.tolerated(Phase::MachineId, |_| machine_id());
        let mut found = self.found.take().unwrap_or_else(|| self.collect(&disk, &args, kept::read()));
        self.alone(&args)?;
        self.beat();
        change::begin_boot(&mut self.report, &mut found, &args);
        self.tolerated(Phase::Configuration, |b| {
            // They depend on the machine alone. Without them there are Go's defaults, and the limits of the agent's unit.
            for written in [go_memory::write(), agent_memory::write()] {
                if let Err(e) = written {
                    b.report.problem(&chain(&e));
                }
            }
            if !found.ignored.is_empty() {
                b.report.line(&ignored(&found.ignored, &found.kept));
            }
            let outcome = configuration::run(&mut b.report, &found, &args, is_node);
            change::end_boot(&mut b.report, &outcome);
            outcome
        });
        for module in self.drivers.missing() {
            self.report.info(&format!("module not loaded: {module}"));
        }
        self.hand_over()
    }

    /// A phase without which the boot ends.
    fn vital<T>(
        &mut self,
        phase: Phase,
        work: impl FnOnce(&mut Boot) -> Result<(T, String), InitError>,
    ) -> Result<T, Stopped> {
        assert_eq!(phase.on_failure(), OnFailure::Stop);
        let started = boottime_ms();
        let outcome = work(self);
        self.beat();
        match outcome {
            Ok((value, detail)) => {
                self.report.stamp(phase.name(), Some(started), &detail, true);
                Ok(value)
            }
            Err(e) => {
                let why = chain(&e);
                self.report.stamp(phase.name(), Some(started), &why, false);
                Err(Stopped(phase, why))
            }
        }
    }

    /// A phase without which the boot goes on, degraded.
    fn tolerated(&mut self, phase: Phase, work: impl FnOnce(&mut Boot) -> Result<String, InitError>) {
        assert_eq!(phase.on_failure(), OnFailure::GoOn);
        let started = boottime_ms();
        let outcome = work(self);
        self.beat();
        match outcome {
            Ok(detail) => self.report.stamp(phase.name(), Some(started), &detail, true),
            Err(e) => {
                let why = chain(&e);
                self.report.problem(&format!("{}: {why}", phase.name()));
                self.report.stamp(phase.name(), Some(started), &why, false);
            }
        }
    }

    /// The boot goes on.
    fn beat(&self) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.beat();
        }
    }

    /// A hang from now on is a person's to end.
    fn unguard(&mut self) {
        if let Some(Err(e)) = self.watchdog.take().map(ArmedWatchdog::stop) {
            let why = chain(&e);
            self.report.problem(&format!(
                "the hardware watchdog of this trial cannot be stopped: {why}; it is going to reset this machine"
            ));
        }
    }

    /// May this slot boot? A machine that has to start another one is reset here.
    fn slot(&mut self, disk: &Disk, slot: &Slot, args: &BootArgs) -> Result<String, InitError> {
        let Some(mut arbiter) = Arbiter::find(disk, slot, self.loader.esp) else {
            return Ok("this disk has no boot record".to_owned());
        };
        let judged = arbiter.judge(&args.roothash);
        self.arbiter = Some(arbiter);
        let SlotOutcome { resets, trial, clear_choices, said, failures, detail } = judged?;
        if clear_choices {
            match loader::clear_choices(&mut self.drivers) {
                Ok(cleared) if cleared.is_empty() => {}
                Ok(cleared) => {
                    self.report.info(&format!("deleted the boot loader's {}", cleared.join(" and ")));
                }
                Err(e) => self.report.info(&format!("cannot delete a variable of the boot loader: {e}")),
            }
        }
        if resets {
            self.report.stamp(Phase::Slot.name(), None, &detail, true);
            stop::reset(&mut self.report, &said.join("; "));
        }
        said.iter().for_each(|line| self.report.line(line));
        self.watchdog = watchdog::arm(&mut self.report, &mut self.drivers, trial.is_some());
        if let Some(trial) = &trial {
            apply_all(&guard::steps(trial))?;
        }
        if failures.is_empty() { Ok(detail) } else { Err(InitError::Refused(failures.join("; "))) }
    }

    /// A slot that does not match its root hash is hidden from the loader, if the other one is good. Else it returns.
    fn leave_corrupt_slot(&mut self, phase: Phase, why: &str) {
        if !matches!(phase, Phase::Verity | Phase::Root) {
            return;
        }
        if let Some(outcome) = self.arbiter.as_mut().and_then(|arbiter| arbiter.leave(why)) {
            let line = format!("boot failed in {}: {why}; {}", phase.name(), outcome.said.join("; "));
            stop::reset(&mut self.report, &line);
        }
    }

    fn collect(&mut self, disk: &Disk, args: &BootArgs, kept: FirstBootRecord) -> FoundSources {
        collect(&mut self.drivers, SourceLocations { disk, esp: self.loader.esp, args }, kept)
    }

    /// A stick at its first boot may be there to copy itself to another disk. Returns if this boot goes on here.
    fn install(&mut self, disk: &Disk, slot: &Slot, opened: &Opened, args: &BootArgs) {
        let found = self.collect(disk, args, FirstBootRecord::Absent);
        let booted =
            BootedDisk { disk, esp: self.loader.esp, root: slot.root.number, root_device: &opened.device };
        install::run(&mut self.report, &mut self.drivers, &booted, &found, args);
        self.early = Some(found);
    }

    /// The disk was used as soon as it appeared. Every controller has answered by now, and no program has run from the
    /// disk's /var: a copy that appeared later is as good a reason to stop as one that was there before.
    fn alone(&mut self, args: &BootArgs) -> Result<(), Stopped> {
        match choose(&args.roothash, &scan(), self.loader.esp) {
            Choice::Refuse { why } => {
                state::close();
                self.report.stamp(Phase::Disk.name(), None, &why, false);
                Err(Stopped(Phase::Disk, why))
            }
            _ => Ok(()),
        }
    }

    /// Carries out a factory reset as far as it goes without the new state partition. Out: the disk as it is then, if a reset was
    /// ordered.
    fn reset(&mut self, disk: &Disk, args: &BootArgs) -> Option<Disk> {
        let Boot { report, drivers, arbiter, watchdog, loader, .. } = self;
        let arbiter = arbiter.as_mut()?;
        let before = arbiter.record().cloned();
        let (watchdog, esp) = (watchdog.as_ref(), loader.esp);
        // It may write zeros to a whole partition.
        self.reset = during(watchdog, || ResetTools { report, drivers, arbiter, disk }.begin(args, esp));
        let after = self.arbiter.as_ref()?.record();
        (before.as_ref() != after).then(|| state::rescan(&disk.name).ok()).flatten()
    }

    /// The state partition, mounted, with what a factory reset keeps.
    fn usable_state(&mut self, disk: &Disk, args: &BootArgs) -> Result<state::Mounted, InitError> {
        if let ResetHold::Barred(why) = &self.reset {
            return Err(InitError::Refused(format!(
                "a factory reset is not finished, the next boot repeats it: {why}"
            )));
        }
        let mounted = self.open_state(disk, args)?;
        let Boot { report, drivers, arbiter: Some(arbiter), reset: ResetHold::AwaitsState { .. }, .. } = self
        else {
            return Ok(mounted);
        };
        match (ResetTools { report, drivers, arbiter, disk }).finish() {
            Ok(()) => Ok(mounted),
            Err(e) => {
                state::close();
                Err(e)
            }
        }
    }

    fn open_state(&mut self, disk: &Disk, args: &BootArgs) -> Result<state::Mounted, InitError> {
        // How it is made is for the configuration to say; one that is there is as it was made.
        let esp = self.loader.esp;
        if let ResetHold::AwaitsState { quotas } = self.reset {
            return state::open(&disk.name, esp, &mut self.drivers, self.watchdog.as_ref(), |_| Ok(quotas));
        }
        let early = self.early.take();
        let wants_quotas = |drivers: &mut Drivers| {
            let places = SourceLocations { disk, esp, args };
            let found = early.unwrap_or_else(|| collect(drivers, places, FirstBootRecord::Absent));
            let found = self.found.insert(found);
            // Nothing is made on a disk that may be a copy; `alone` ends the boot.
            match choose(&args.roothash, &scan(), esp) {
                Choice::Refuse { why } => Err(InitError::Refused(why)),
                _ => Ok(configuration::wants_project_quotas(found, args)),
            }
        };
        state::open(&disk.name, esp, &mut self.drivers, self.watchdog.as_ref(), wants_quotas)
    }

    fn state(&mut self, disk: &Disk, args: &BootArgs) -> Result<String, InitError> {
        match self.usable_state(disk, args) {
            Ok(mounted) => {
                for warning in &mounted.warnings {
                    self.report.problem(warning);
                }
                // On a full partition some of these fail; that it is full has been said.
                if let Err(e) = apply_all(&state::layout()) {
                    self.report.problem(&chain(&e));
                }
                match clock::raise(Path::new(&format!("{SYSROOT}{}", clock::STAMP))) {
                    Ok(None) => {}
                    Ok(Some(s)) => self.report.info(&format!("the clock was {s} s behind the last run's")),
                    Err(e) => self.report.problem(&chain(&e)),
                }
                // Without the flag the journal stays in memory: less of it, nothing worse.
                let _ = apply_all(&[mounts::journal_is_on_disk()]);
                Ok(mounted.detail)
            }
            Err(e) => {
                let why = format!("{}; /var is volatile in this boot and no pod is started", chain(&e));
                state::open_volatile()?;
                apply_all(&state::layout())?;
                let content = format!("{why}\n").into_bytes();
                apply_all(&[BootStep::WriteFile { path: DEGRADED.into(), mode: 0o644, content }])?;
                Err(InitError::Refused(why))
            }
        }
    }

    fn hand_over(&mut self) -> Result<Infallible, Stopped> {
        let started = boottime_ms();
        let stopped = |e: &InitError| Stopped(Phase::Handover, chain(e));
        for mount in mounts::services() {
            // systemd's own unit tries again, and says what is wrong.
            let _ = apply_all(&[mount]);
        }
        let record = self.arbiter.as_ref().and_then(Arbiter::record);
        if let Some(end) = record.and_then(|record| record.last_reset.as_ref()) {
            let content = end.text();
            // Who has ordered a reset through the management API learns less without it.
            let _ = apply_all(&[BootStep::WriteFile { path: RESET_END_FILE.into(), mode: 0o644, content }]);
        }
        // What may be read only in the initrd is not to be read by any program of the root.
        tpm::measure(&mut self.report, "the initrd's end", PCR_PHASES, [LEAVE_INITRD.to_vec()]);
        handover::switch_root().map_err(|e| stopped(&e))?;
        // /run is at its place again in the new root: the ledger's path holds.
        self.report.stamp(Phase::Handover.name(), Some(started), "", true);
        self.report.flush();
        self.beat();
        // Only one program can have it open. It runs on, and systemd takes it.
        drop(self.watchdog.take());
        handover::execute().map_err(|e| stopped(&e))
    }
}

fn kernel_version() -> String {
    nix::sys::utsname::uname().map(|u| u.release().to_string_lossy().into_owned()).unwrap_or_default()
}

fn api_filesystems(_: &mut Boot) -> Result<(BootArgs, String), InitError> {
    apply_all(&mounts::api_filesystems())?;
    Ok((cmdline::parse(&read("/proc/cmdline")?)?, String::new()))
}

fn cgroup() -> Result<String, InitError> {
    apply_all(&mounts::cgroup2())?;
    let controllers =
        fs::read_to_string(format!("{}/cgroup.controllers", mounts::CGROUP)).unwrap_or_default();
    // systemd does both again, and says what fails.
    let _ = fs::write(format!("{}/cgroup.subtree_control", mounts::CGROUP), mounts::FIRST_CONTROLLERS);
    let _ = fs::create_dir(format!("{}/{}", mounts::CGROUP, mounts::FIRST_GROUP));
    Ok(controllers.trim_end().to_string())
}

fn load(boot: &mut Boot) -> Result<String, InitError> {
    boot.drivers = Drivers::read()?;
    let efi = loader::is_efi().then_some(loader::FILE_SYSTEM);
    let soon: Vec<&str> = efi.into_iter().chain([state::FILE_SYSTEM]).collect();
    boot.drivers.start(&soon);
    Ok(boot.drivers.detail())
}

fn find_disk(boot: &mut Boot, args: &BootArgs) -> Result<((Disk, Slot), String), InitError> {
    let deadline = boottime_ms() + DISK_DEADLINE_MS;
    let uevents = Uevents::subscribe()?;
    let (variables, trust) = loader::read(&mut boot.drivers);
    boot.loader = variables;
    if let Some(trust) = trust {
        boot.report.stamp(TRUST_PHASE, None, &trust.to_string(), true);
    }
    loop {
        // A controller's driver brings devices of its own, which call for drivers in turn.
        boot.drivers.present();
        let mut disks = scan();
        let why = match choose(&args.roothash, &disks, boot.loader.esp) {
            Choice::Use(slot) => {
                let disk = disks.swap_remove(slot.disk);
                let detail = format!("/dev/{} of {} MiB", disk.name, disk.bytes >> 20);
                return Ok(((disk, slot), detail));
            }
            Choice::AddPartitions { disk, missing } => {
                add_partitions(boot, &disks[disk], &missing);
                format!("the kernel shows no partition {} of /dev/{}", missing[0].number, disks[disk].name)
            }
            Choice::Wait { why } => why,
            Choice::Refuse { why } => return Err(InitError::Refused(why)),
        };
        if !uevents.wait_device(deadline)? {
            return Err(InitError::NoDisk { seconds: DISK_DEADLINE_MS / 1000, why });
        }
    }
}

/// The kernel scans a new disk before it announces it; partitions it has not made by then are ones it will not
/// make by itself (a damaged primary table). Adding one raises the uevent that the caller waits for.
fn add_partitions(boot: &mut Boot, disk: &Disk, missing: &[crate::plan::gpt::Partition]) {
    let path = format!("/dev/{}", disk.name);
    boot.report.problem(&format!("the primary partition table of {path} is damaged; using its backup"));
    for partition in missing {
        let added = OpenOptions::new().read(true).open(&path).map_err(|e| e.to_string());
        let added = added.and_then(|f| block::add_partition(&f, partition).map_err(|e| e.to_string()));
        if let Err(e) = added {
            boot.report.info(&format!("cannot add partition {} of {path}: {e}", partition.number));
        }
    }
}

fn machine_id() -> Result<String, InitError> {
    let (id, new, failed) = match machine_id::persistent(Path::new("/sysroot/var/lib/orlop")) {
        Ok((id, new)) => (id, new, None),
        Err(e) => {
            let fail = |source| InitError::File {
                action: "read",
                path: "/proc/sys/kernel/random/uuid".into(),
                source,
            };
            (machine_id::random().map_err(fail)?, true, Some(e))
        }
    };
    let run = "/run/machine-id".to_string();
    let content = format!("{id}\n").into_bytes();
    apply_all(&[
        BootStep::WriteFile { path: run.clone(), mode: 0o444, content },
        BootStep::Bind { from: run, to: "/sysroot/etc/machine-id".into() },
    ])?;
    match failed {
        Some(e) => Err(InitError::Refused(format!("this boot has a machine id of its own: {}", chain(&e)))),
        None => Ok(format!("{id}{}", if new { ", new" } else { "" })),
    }
}
