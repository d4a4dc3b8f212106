//! The phase `init.reset`: carries out the factory reset that the boot record, the kernel command line or SMBIOS orders.
//!
//! Decisions are `plan::reset`'s. The old state partition is erased before any other use of it in this boot; what is kept lies
//! behind the boot record meanwhile, and is put on the new partition before anything else is (docs/reference/reset.md).

use super::carried;
use super::clock::boottime_ms;
use super::devices::{read_at, scan};
use super::drivers::Drivers;
use super::error::InitError;
use super::report::Report;
use super::slot::{Arbiter, write_through};
use super::sources::DMI;
use super::state;
use crate::plan::carried_files::{self, CARRIED_BYTES_MAX, CARRIED_OFFSET, CarriedState};
use crate::plan::cmdline::BootArgs;
use crate::plan::disk::{Choice, Disk, choose};
use crate::plan::ext4;
use crate::plan::gpt::Partition;
use crate::plan::guid::Guid;
use crate::plan::reset::{ErasedBy, PHASE, ResetDisk, ResetProgress, advance, edges, parts};
use crate::plan::smbios;
use crate::plan::state::partition_name;
use crate::plan::step::DiskWrite;
use crate::sys::block::{self, RangeErasure};
use orlop_config::error_chain::chain;
use orlop_config::slots::{
    BootRecord, RESETS_REMEMBERED, ResetOrder, ResetRequest, ResetScope, ResetStage, SlotChangeError,
};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The credential of SMBIOS that orders a reset.
const CREDENTIAL: &str = "orlop.reset";
/// Why an order is not taken on a disk with a state and without a boot record.
const NEW_RECORD: &str = "this boot has made the boot record anew, so whether it was carried out before is not known; order another one by another identifier";
/// So many orders may stand on the command line. All of them stay among those that the record remembers, beside others: else the
/// oldest would be carried out anew at each boot.
const ORDERS_MAX: usize = RESETS_REMEMBERED / 2;
/// Longest text of an order in a message, characters.
const SHOWN_CHARS_MAX: usize = 80;
/// A disk erases so much at once, bytes.
const DISCARD_PART: u64 = 8 << 30;
/// Zeros are written in parts of this, bytes.
const ZERO_PART: u64 = 64 << 20;
/// Why a reset does not go on that has found what is kept a moment before.
const GONE: &str = "what is kept cannot be read";
/// How often it is said how far the zeros are, milliseconds.
const PROGRESS_MS: u64 = 15_000;

/// What a reset means for the state partition in this boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResetHold {
    /// Nothing: it is used.
    #[default]
    Free,
    /// What is kept has to be put on the new one before it is used.
    AwaitsState {
        /// The new file system counts what projects have, as the old one did.
        quotas: bool,
    },
    /// It is not used: the reset has failed in the middle, for this reason.
    Barred(String),
}

/// What a reset works with.
#[derive(Debug)]
pub struct ResetTools<'a> {
    /// Where it is said.
    pub report: &'a mut Report,
    /// Modules of the kernel.
    pub drivers: &'a mut Drivers,
    /// The boot record.
    pub arbiter: &'a mut Arbiter,
    /// The system's disk, as this boot found it.
    pub disk: &'a Disk,
}

impl ResetTools<'_> {
    /// Takes orders, and carries a reset on until the new state partition is needed. `esp`: the ESP that was booted from.
    pub fn begin(mut self, args: &BootArgs, esp: Option<Guid>) -> ResetHold {
        for problem in self.take_orders(args) {
            self.report.problem(&problem);
        }
        let Some(record) = self.arbiter.record() else { return ResetHold::Free };
        let Some(request) = record.reset.clone() else { return ResetHold::Free };
        if record.trial.is_some() && request.stage == ResetStage::Ordered {
            self.report.line("factory reset: it waits for the end of the trial of the other version");
            return ResetHold::Free;
        }
        let started = boottime_ms();
        // Every controller answers first: a copy of this disk is a reason to erase nothing.
        self.drivers.settle();
        while self.drivers.present() {}
        let progress = match choose(&args.roothash, &scan(), esp) {
            Choice::Refuse { why } => Err(InitError::Refused(why)),
            _ => self.advance(false),
        };
        match progress {
            Ok(ResetProgress::AwaitsState) => match self.run().carried(&request.order.id) {
                Ok(Some(kept)) => ResetHold::AwaitsState { quotas: kept.quotas },
                Ok(None) => ResetHold::Barred(GONE.to_owned()),
                Err(e) => ResetHold::Barred(chain(&e)),
            },
            Ok(ended) => {
                self.tell(started, &request.order, &ended);
                ResetHold::Free
            }
            Err(e) => {
                let why = chain(&e);
                self.report.stamp(PHASE, Some(started), &why, false);
                ResetHold::Barred(why)
            }
        }
    }

    /// Puts what is kept on the new state partition, which is mounted, and ends the reset.
    ///
    /// # Errors
    /// The partition may not be used in this boot; the next one goes on.
    pub fn finish(mut self) -> Result<(), InitError> {
        let Some(request) = self.arbiter.record().and_then(|record| record.reset.clone()) else {
            return Ok(());
        };
        let started = boottime_ms();
        match self.advance(true) {
            Ok(ended) => {
                self.tell(started, &request.order, &ended);
                Ok(())
            }
            Err(e) => {
                self.report.stamp(PHASE, Some(started), &chain(&e), false);
                Err(e)
            }
        }
    }

    fn advance(&mut self, mounted: bool) -> Result<ResetProgress, InitError> {
        advance(&mut self.run(), mounted)
    }

    fn run(&mut self) -> ResetRun<'_> {
        let is_roomy = |p: &Partition| p.length >= CARRIED_OFFSET + CARRIED_BYTES_MAX as u64;
        let roomy = self.disk.boot_record().is_some_and(is_roomy);
        let tools = ResetTools {
            report: &mut *self.report,
            drivers: &mut *self.drivers,
            arbiter: &mut *self.arbiter,
            disk: self.disk,
        };
        ResetRun { tools, roomy }
    }

    fn tell(&mut self, started: u64, order: &ResetOrder, ended: &ResetProgress) {
        let (detail, ok) = match ended {
            ResetProgress::Done(ResetScope::Keep) => (format!("{order}: done, the identity is kept"), true),
            ResetProgress::Done(ResetScope::Forget) => (format!("{order}: done, nothing is kept"), true),
            ResetProgress::Refused(why) => (format!("{order}: refused: {why}"), false),
            ResetProgress::Nothing | ResetProgress::AwaitsState => return,
        };
        self.report.stamp(PHASE, Some(started), &detail, ok);
        let line = format!("factory reset {detail}");
        if ok { self.report.line(&line) } else { self.report.problem(&line) }
    }

    /// Writes orders from outside of the record into it; returns what a person must know.
    fn take_orders(&mut self, args: &BootArgs) -> Vec<String> {
        let table = fs::read(DMI).unwrap_or_default();
        let by_firmware = match smbios::credential(&table, CREDENTIAL) {
            Some(smbios::Credential::Value(bytes)) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Some(smbios::Credential::BadBase64) => Some("(not base64)".to_owned()),
            None => None,
        };
        let by_cmdline =
            args.resets.iter().take(ORDERS_MAX).map(|text| ("on the kernel command line", text.clone()));
        let orders = by_cmdline.chain(by_firmware.map(|text| ("by SMBIOS", text)));
        let mut problems: Vec<String> =
            orders.filter_map(|(origin, text)| self.take(origin, &text).err()).collect();
        if args.resets.len() > ORDERS_MAX {
            problems.push(format!(
                "factory reset: only the first {ORDERS_MAX} of {} orders on the kernel command line count",
                args.resets.len()
            ));
        }
        problems
    }

    fn take(&mut self, origin: &str, text: &str) -> Result<(), String> {
        let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
        let refused = |why: &str| format!("factory reset: {CREDENTIAL}={shown:?} {origin} is ignored: {why}");
        let order = ResetOrder::parse(text).ok_or_else(|| refused("it is keep:ID or forget:ID"))?;
        let Some(record) = self.arbiter.record() else {
            return Err(refused("the boot record cannot be read"));
        };
        let mut next = record.clone();
        let partition = self.disk.state().map(|state| state.partuuid.to_string()).unwrap_or_default();
        let ordered = next.order_reset(order, &partition);
        // An order that stands somewhere may have been carried out before the record was lost.
        if self.arbiter.record_is_new() && !partition.is_empty() && ordered.is_ok() {
            next.end_reset(NEW_RECORD);
            self.arbiter.write_record(next).map_err(|e| refused(&chain(&e)))?;
            return Err(refused(NEW_RECORD));
        }
        match ordered {
            // It stays where it was written; it was carried out before, or is under way.
            Ok(()) | Err(SlotChangeError::ResetOver) if next == *record => Ok(()),
            Ok(()) | Err(SlotChangeError::ResetOver) => {
                self.arbiter.write_record(next).map_err(|e| refused(&chain(&e)))
            }
            Err(e) => Err(refused(&chain(&e))),
        }
    }
}

/// The disk of a running reset.
struct ResetRun<'a> {
    tools: ResetTools<'a>,
    /// What is kept has room behind the boot record.
    roomy: bool,
}

impl ResetRun<'_> {
    fn rescanned(&self) -> Result<Disk, InitError> {
        let disk = state::rescan(&self.tools.disk.name)?;
        match &disk.table {
            Ok(_) => Ok(disk),
            Err(e) => Err(InitError::Refused(format!("/dev/{}: {}", disk.name, chain(e)))),
        }
    }

    fn carried(&self, id: &str) -> Result<Option<CarriedState>, InitError> {
        if !self.roomy {
            return Ok(None);
        }
        let path = self.tools.arbiter.record_path();
        let bytes = read_at(path, CARRIED_OFFSET, CARRIED_BYTES_MAX);
        let bytes = bytes.map_err(|source| InitError::File { action: "read", path: path.into(), source })?;
        Ok(carried_files::parse(&bytes, id))
    }

    fn write_carried(&self, bytes: Vec<u8>) -> Result<(), InitError> {
        let path = self.tools.arbiter.record_path();
        let written = write_through(path, &DiskWrite { offset: CARRIED_OFFSET, bytes });
        written.map_err(|source| InitError::File { action: "write", path: path.into(), source })
    }

    /// What is kept, read from the old state partition.
    fn kept(&mut self) -> Result<CarriedState, InitError> {
        let disk = self.rescanned()?;
        let state = disk.state().ok_or_else(|| InitError::Refused("it has no state partition".into()))?;
        self.tools.drivers.need(state::FILE_SYSTEM);
        self.tools.drivers.need(state::QUOTAS);
        let at = state.start + ext4::SUPERBLOCK_OFFSET;
        let superblock = read_at(&format!("/dev/{}", disk.name), at, ext4::SUPERBLOCK_BYTES).ok();
        let quotas = superblock.and_then(|bytes| ext4::parse(&bytes)).is_some_and(|sb| sb.has_quotas);
        let files = carried::read_from(&format!("/dev/{}", partition_name(&disk.name, state.number)))?;
        Ok(CarriedState { quotas, files })
    }

    fn write_record(&mut self, change: impl FnOnce(&mut BootRecord)) -> Result<(), InitError> {
        let none = || InitError::Refused("the boot record is gone".into());
        let mut record = self.tools.arbiter.record().cloned().ok_or_else(none)?;
        change(&mut record);
        self.tools.arbiter.write_record(record)
    }
}

impl ResetDisk for ResetRun<'_> {
    type Error = InitError;

    fn request(&self) -> Option<ResetRequest> {
        self.tools.arbiter.record()?.reset.clone()
    }

    fn state(&mut self) -> Result<Option<Guid>, InitError> {
        Ok(self.rescanned()?.state().map(|state| state.partuuid))
    }

    fn has_carried(&mut self, id: &str) -> Result<bool, InitError> {
        Ok(self.carried(id)?.is_some())
    }

    fn carry(&mut self, id: &str) -> Result<(), String> {
        if !self.roomy {
            return Err("the boot record's partition has no room for what is kept".into());
        }
        let again = |e: InitError| {
            format!("what is to be kept cannot be read: {}. Order a reset that keeps nothing", chain(&e))
        };
        let kept = self.kept().map_err(again)?;
        self.tools.report.info(&format!("factory reset: {} files are kept", kept.files.len()));
        let bytes = carried_files::render(id, &kept)?;
        self.write_carried(bytes).map_err(|e| chain(&e))
    }

    fn erase(&mut self, partition: Guid) -> Result<(), InitError> {
        let disk = self.rescanned()?;
        let Some(state) = disk.state().filter(|state| state.partuuid == partition) else { return Ok(()) };
        let device = format!("/dev/{}", disk.name);
        let name = format!("/dev/{}", partition_name(&disk.name, state.number));
        let report = &mut *self.tools.report;
        report.line(&format!(
            "factory reset: erasing {name} of {} MiB; a power cut repeats it",
            state.length >> 20
        ));
        let failed = |source| InitError::File { action: "erase", path: name.clone(), source };
        let (file, mut table) = state::edit(&disk, &device)?;
        clear_edges(&file, state).map_err(failed)?;
        let by = erase_all(&file, state, report).map_err(|e| failed(e.into()))?;
        clear_edges(&file, state).map_err(failed)?;
        report.line(&format!("factory reset: {name}: {}", by.words()));
        // Only the kernel's list; the table follows.
        let _ = block::remove_partition(&file, state);
        let removed = table.remove(state.number);
        removed.map_err(|e| InitError::Refused(format!("{device}: {}", chain(&e))))?;
        state::write(&file, &table.writes()).map_err(|source| InitError::File {
            action: "write the partition table of",
            path: device,
            source,
        })?;
        block::drop_cache(&file).map_err(|e| failed(e.into()))
    }

    fn restore(&mut self, id: &str) -> Result<(), InitError> {
        let kept = self.carried(id)?.ok_or_else(|| InitError::Refused(GONE.into()))?;
        carried::write_to(Path::new(state::VAR), &kept.files)
    }

    fn forget_carried(&mut self) -> Result<(), InitError> {
        if self.roomy { self.write_carried(vec![0; CARRIED_BYTES_MAX]) } else { Ok(()) }
    }

    fn enter(&mut self, stage: ResetStage) -> Result<(), InitError> {
        self.write_record(|record| {
            if let Some(reset) = &mut record.reset {
                reset.stage = stage;
            }
        })
    }

    fn end(&mut self, refused: &str) -> Result<(), InitError> {
        self.write_record(|record| record.end_reset(refused))
    }
}

/// Zeros where a superblock stands.
fn clear_edges(disk: &File, partition: &Partition) -> std::io::Result<()> {
    for (at, length) in edges(partition.length) {
        let zeros = vec![0; usize::try_from(length).unwrap_or_default()];
        disk.write_all_at(&zeros, partition.start + at)?;
    }
    disk.sync_all()
}

/// As well as the device can.
fn erase_all(disk: &File, partition: &Partition, report: &mut Report) -> Result<ErasedBy, nix::errno::Errno> {
    for (how, by) in
        [(RangeErasure::SecureDiscard, ErasedBy::SecureDiscard), (RangeErasure::Discard, ErasedBy::Discard)]
    {
        let mut all = parts(partition.length, DISCARD_PART);
        if all.all(|(at, length)| block::erase_range(disk, how, partition.start + at, length).is_ok()) {
            return Ok(by);
        }
    }
    let mut said = boottime_ms();
    for (at, length) in parts(partition.length, ZERO_PART) {
        block::erase_range(disk, RangeErasure::Zeros, partition.start + at, length)?;
        if boottime_ms().saturating_sub(said) >= PROGRESS_MS {
            said = boottime_ms();
            let (done, whole) = ((at + length) >> 20, partition.length >> 20);
            report.line(&format!("factory reset: {done} of {whole} MiB are overwritten"));
        }
    }
    Ok(ErasedBy::Zeros)
}
