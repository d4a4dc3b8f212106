//! The phase `init.slot`: reads the boot record and the ESP's directory, has the arbiter judge, and writes what it decides.
//!
//! Decisions are `plan::arbiter`'s. Order: the record, then the ESP, sector by sector; each write goes past the kernel's
//! cache, is synced and read back. Only then a reset follows. Nothing is mounted.

use super::devices::read_at;
use super::error::InitError;
use super::stop;
use crate::plan::arbiter::{
    BootedSlot, EspPatch, Judgement, SlotEntries, SlotEntry, SlotVerdict, agree, judge, judge_corrupt,
};
use crate::plan::cmdline::RootHash;
use crate::plan::disk::{Disk, Slot};
use crate::plan::esp::{EspDirectory, EspError};
use crate::plan::guard::TrialStanding;
use crate::plan::guid::Guid;
use crate::plan::state::partition_name;
use crate::plan::step::DiskWrite;
use nix::libc::{EINVAL, O_DIRECT};
use orlop_config::error_chain::chain;
use orlop_config::slots::{
    BootRecord, RING_BYTES, RingPosition, SlotChangeError, SlotName, TrialBoot, latest,
};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Memory for writes past the cache begins at a multiple of this, bytes.
const ALIGNMENT: usize = 4096;
/// How long the guard waits for another writer of the record, seconds. Then it writes all the same: an agent that hangs does not
/// keep a node in a version on trial.
const LOCK_S: u32 = 10;

/// Keeps other writers of the boot record away while it lives: the guard, the agent, the updater. It is a lock (flock) on the
/// record's own device, which each of them can open, whatever its service sees of the file system. It ends with the process.
#[derive(Debug)]
pub struct RecordLock {
    _device: File,
}

impl RecordLock {
    /// Waits for the other writers, at most so many seconds.
    ///
    /// # Errors
    /// The device cannot be opened, or another writer holds it for so long (`TimedOut`).
    pub fn take(device: &Path, seconds: u32) -> io::Result<RecordLock> {
        let file = File::open(device)?;
        let mut waited = 0;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(RecordLock { _device: file }),
                Err(TryLockError::Error(e)) => return Err(e),
                Err(TryLockError::WouldBlock) if waited >= seconds => {
                    let held = format!("another program has held it for {seconds} s");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, held));
                }
                Err(TryLockError::WouldBlock) => {
                    waited += 1;
                    stop::wait(1);
                }
            }
        }
    }
}

/// The arbiter's places on the disk, and what it knows.
#[derive(Debug)]
pub struct Arbiter {
    booted: SlotName,
    /// The other slot holds a version, by its partition's label.
    other_filled: bool,
    /// `/dev/vda6`.
    record_path: String,
    position: Option<RingPosition>,
    /// The record that counts; none before it was judged.
    record: Option<BootRecord>,
    /// The disk had none that is understood: this boot has made it.
    is_new: bool,
    /// `/dev/vda1`.
    esp_path: Option<String>,
    directory: Option<EspDirectory>,
}

/// What a judgement came to.
#[derive(Debug)]
pub struct SlotOutcome {
    /// The machine has to be reset.
    pub resets: bool,
    /// The slot is on trial in this boot.
    pub trial: Option<TrialBoot>,
    /// The loader's variables that choose an entry are to be deleted.
    pub clear_choices: bool,
    /// For a person.
    pub said: Vec<String>,
    /// What could not be read or written.
    pub failures: Vec<String>,
    /// For the ledger.
    pub detail: String,
}

impl Arbiter {
    /// Finds the places; none on a disk of the first layout, which has no boot record.
    #[must_use]
    pub fn find(disk: &Disk, slot: &Slot, esp: Option<Guid>) -> Option<Arbiter> {
        let path = |number| format!("/dev/{}", partition_name(&disk.name, number));
        let record_path = path(disk.boot_record()?.number);
        let booted = disk.slot_name(slot.root.number)?;
        let esp_path = disk.esp(esp).map(|esp| path(esp.number));
        let other_filled = slot.other_slot;
        let (position, record, directory) = (None, None, None);
        let is_new = false;
        Some(Arbiter { booted, other_filled, record_path, position, record, is_new, esp_path, directory })
    }

    /// The places of a trial boot, as init has left them for the guard.
    #[must_use]
    pub fn of(boot: &TrialBoot) -> Arbiter {
        let (record_path, esp_path) = (boot.record.clone(), boot.esp.clone());
        let (position, record, directory) = (None, None, None);
        // Only a boot is judged by it.
        let (other_filled, is_new) = (true, false);
        Arbiter {
            booted: boot.slot,
            other_filled,
            record_path,
            position,
            record,
            is_new,
            esp_path,
            directory,
        }
    }

    /// Is the slot still on trial, by the record that is on the disk now?
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn standing(&mut self) -> Result<TrialStanding, InitError> {
        Ok(TrialStanding::of(&self.read_record()?, self.booted))
    }

    /// Changes the record on the running system, and makes the ESP agree. Out: what could not be written of the ESP; the arbiter
    /// of the next boot makes it agree then.
    ///
    /// # Errors
    /// The record cannot be read or written, or the change is refused. Then nothing has changed.
    pub fn change(
        &mut self,
        change: impl FnOnce(&mut BootRecord) -> Result<(), SlotChangeError>,
    ) -> Result<Vec<String>, InitError> {
        let lock = RecordLock::take(Path::new(&self.record_path), LOCK_S);
        let mut record = self.read_record()?;
        change(&mut record).map_err(|e| InitError::Refused(chain(&e)))?;
        self.save(&record).map_err(InitError::Refused)?;
        let unlocked = |e: &io::Error| {
            format!("the lock of the boot record {} was not waited for: {e}", self.record_path)
        };
        let mut failures: Vec<String> = lock.as_ref().err().map(unlocked).into_iter().collect();
        match self.read_esp() {
            Ok(directory) => self.directory = Some(directory),
            Err(e) => failures.push(chain(&e)),
        }
        for patch in agree(&record, self.booted, &self.entries()) {
            failures.extend(self.patch(patch).err());
        }
        self.record = Some(record);
        drop(lock);
        Ok(failures)
    }

    /// The record that counts in this boot; none before it was judged.
    #[must_use]
    pub fn record(&self) -> Option<&BootRecord> {
        self.record.as_ref()
    }

    /// Was the record made in this boot? Then nothing is known of what happened before.
    #[must_use]
    pub fn record_is_new(&self) -> bool {
        self.is_new
    }

    /// `/dev/vda6`.
    #[must_use]
    pub fn record_path(&self) -> &str {
        &self.record_path
    }

    /// Writes another record in this boot, after it was judged. The ESP is not touched.
    ///
    /// # Errors
    /// It cannot be written: the record on the disk is the old one or this one.
    pub fn write_record(&mut self, record: BootRecord) -> Result<(), InitError> {
        self.save(&record).map_err(InitError::Refused)?;
        self.record = Some(record);
        Ok(())
    }

    /// The record on the disk, and its place.
    fn read_record(&mut self) -> Result<BootRecord, InitError> {
        let ring = read_at(&self.record_path, 0, RING_BYTES);
        let failed = |source| InitError::File { action: "read", path: self.record_path.clone(), source };
        let ring = ring.map_err(failed)?;
        let none = || InitError::Refused(format!("{} has no boot record", self.record_path));
        let found = latest(&ring).ok_or_else(none)?;
        self.position = Some(found.position);
        BootRecord::parse(found.payload).map_err(|e| InitError::Refused(chain(&e)))
    }

    /// Judges this boot, and writes the record and the ESP.
    ///
    /// # Errors
    /// The record cannot be read from its partition.
    pub fn judge(&mut self, roothash: &RootHash) -> Result<SlotOutcome, InitError> {
        let ring = read_at(&self.record_path, 0, RING_BYTES);
        let failed = |source| InitError::File { action: "read", path: self.record_path.clone(), source };
        let ring = ring.map_err(failed)?;
        let found = latest(&ring);
        self.position = found.map(|found| found.position);
        let mut failures = Vec::new();
        let record = found.and_then(|found| match BootRecord::parse(found.payload) {
            Ok(record) => Some(record),
            Err(e) => {
                failures.push(chain(&e));
                None
            }
        });
        self.is_new = record.is_none();
        match self.read_esp() {
            Ok(directory) => self.directory = Some(directory),
            Err(e) => failures.push(chain(&e)),
        }
        let roothash = roothash.to_string();
        let booted = BootedSlot { name: self.booted, roothash: &roothash, other_filled: self.other_filled };
        let judged = judge(record.as_ref(), &booted, &self.entries());
        Ok(self.carry_out(judged, failures))
    }

    /// Leaves a slot that does not match its root hash for the other one; none if that is no way out.
    pub fn leave(&mut self, why: &str) -> Option<SlotOutcome> {
        let judged = judge_corrupt(self.record.as_ref()?, self.booted, &self.entries(), why)?;
        let outcome = self.carry_out(judged, Vec::new());
        (outcome.resets && outcome.failures.is_empty()).then_some(outcome)
    }

    fn read_esp(&self) -> Result<EspDirectory, EspError> {
        let path = self.esp_path.as_deref().ok_or(EspError::Unreadable)?;
        EspDirectory::read(|offset, length| read_at(path, offset, length).ok())
    }

    fn entries(&self) -> SlotEntries {
        let entry = |slot| {
            let entry = self.directory.as_ref()?.entry(slot)?;
            Some(SlotEntry { state: entry.state, bytes: entry.bytes })
        };
        SlotEntries { a: entry(SlotName::A), b: entry(SlotName::B) }
    }

    fn carry_out(&mut self, judged: Judgement, mut failures: Vec<String>) -> SlotOutcome {
        let saved = self.save(&judged.record);
        let is_saved = saved.is_ok();
        failures.extend(saved.err());
        for patch in &judged.patches {
            failures.extend(self.patch(*patch).err());
        }
        let verdict = judged.settled(is_saved);
        let resets = verdict == SlotVerdict::Reset;
        let trial = match (&judged.record.trial, verdict) {
            (Some(trial), SlotVerdict::Go { trial: true }) => Some(TrialBoot {
                slot: self.booted,
                update: trial.update.clone(),
                deadline_s: trial.deadline_s,
                record: self.record_path.clone(),
                esp: self.esp_path.clone(),
            }),
            _ => None,
        };
        let number = self.position.map_or(0, |position| position.sequence);
        let said: String = judged.said.iter().map(|line| format!("; {line}")).collect();
        let detail = format!("slot {}, boot record {number}{said}", self.booted);
        self.record = Some(judged.record);
        let (clear_choices, said) = (judged.clear_choices, judged.said);
        SlotOutcome { resets, trial, clear_choices, said, failures, detail }
    }

    fn save(&mut self, record: &BootRecord) -> Result<(), String> {
        let write = record.write(self.position).map_err(|e| chain(&e))?;
        let (position, offset, bytes) = (write.position, write.offset, write.bytes);
        let written = write_through(&self.record_path, &DiskWrite { offset, bytes });
        written.map_err(|e| format!("cannot write the boot record to {}: {e}", self.record_path))?;
        self.position = Some(position);
        Ok(())
    }

    fn patch(&mut self, patch: EspPatch) -> Result<(), String> {
        let (Some(directory), Some(path)) = (&self.directory, &self.esp_path) else {
            return Err(chain(&EspError::Unreadable));
        };
        let (after, write) =
            directory.renamed(patch.slot, patch.state, patch.bytes).map_err(|e| chain(&e))?;
        write_through(path, &write).map_err(|e| format!("cannot write the ESP {path}: {e}"))?;
        self.directory = Some(after);
        Ok(())
    }
}

/// Writes past the cache, syncs, and reads back. Place and length are whole sectors.
pub(super) fn write_through(path: &str, write: &DiskWrite) -> io::Result<()> {
    match write_with(path, write, O_DIRECT) {
        // A file system may refuse that; a disk does not.
        Err(e) if e.raw_os_error() == Some(EINVAL) => write_with(path, write, 0),
        done => done,
    }
}

fn write_with(path: &str, write: &DiskWrite, flags: i32) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    let (mut buffer, from) = aligned(write.bytes.len());
    let bytes = &mut buffer[from..from + write.bytes.len()];
    bytes.copy_from_slice(&write.bytes);
    file.write_all_at(bytes, write.offset)?;
    file.sync_data()?;
    bytes.fill(0);
    file.read_exact_at(bytes, write.offset)?;
    if *bytes == write.bytes {
        Ok(())
    } else {
        Err(io::Error::other("it does not keep what is written to it"))
    }
}

/// A buffer, and where in it so many bytes begin that the kernel can move to a disk.
fn aligned(length: usize) -> (Vec<u8>, usize) {
    let buffer = vec![0; length + ALIGNMENT];
    let from = buffer.as_ptr().addr().next_multiple_of(ALIGNMENT) - buffer.as_ptr().addr();
    (buffer, from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::esp::tests::slots;
    use crate::plan::esp_names::EntryState;
    use crate::plan::gpt::{Copy, Partition, Table};
    use crate::plan::guid::{TYPE_BOOT_RECORD, TYPE_ESP, TYPE_ROOT, TYPE_ROOT_VERITY};
    use orlop_config::slots::SlotState;
    use std::fs;
    use std::path::Path;

    /// The record's partition and the ESP as files; slot A runs.
    fn arbiter(dir: &Path, a: EntryState, b: EntryState) -> Arbiter {
        let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let (record_path, esp_path) = (path("record"), path("esp"));
        if !dir.join("record").exists() {
            fs::write(&record_path, vec![0; 1 << 20]).expect("record");
        }
        fs::write(&esp_path, slots(a, b)).expect("ESP");
        let (position, record, directory) = (None, None, None);
        let (booted, other_filled, esp_path) = (SlotName::A, true, Some(esp_path));
        Arbiter { booted, other_filled, record_path, position, record, is_new: false, esp_path, directory }
    }

    fn hash(digits: &str) -> RootHash {
        RootHash::parse(&digits.repeat(32)).expect("64 digits")
    }

    fn record(dir: &Path) -> BootRecord {
        let ring = fs::read(dir.join("record")).expect("record");
        BootRecord::parse(latest(&ring[..RING_BYTES]).expect("a record").payload).expect("readable")
    }

    fn states(dir: &Path) -> [Option<EntryState>; 2] {
        let volume = fs::read(dir.join("esp")).expect("ESP");
        let read = |at: u64, length: usize| {
            let at = usize::try_from(at).ok()?;
            Some(volume.get(at..at.checked_add(length)?)?.to_vec())
        };
        let directory = EspDirectory::read(read).expect("sound");
        SlotName::ALL.map(|slot| directory.entry(slot).map(|entry| entry.state))
    }

    #[test]
    fn a_disk_of_the_first_layout_has_no_arbiter() {
        let part = |number: u32, type_guid: Guid| {
            let (partuuid, start) = (Guid::from_u128(u128::from(number)), u64::from(number) << 20);
            Partition { number, type_guid, partuuid, label: String::new(), start, length: 1 << 20 }
        };
        let layout = [TYPE_ESP, TYPE_ROOT, TYPE_ROOT_VERITY, TYPE_ROOT, TYPE_ROOT_VERITY];
        let partitions: Vec<Partition> = (1u32..).zip(layout).map(|(n, kind)| part(n, kind)).collect();
        let (root, hash) = (partitions[3].clone(), partitions[4].clone());
        let slot = Slot { disk: 0, root, hash, other_slot: true };
        let mut table = Table { disk: Guid::default(), copy: Copy::Primary, partitions };
        let disk = |table: &Table| Disk {
            name: "nvme0n1".into(),
            bytes: 1 << 30,
            sector: 512,
            table: Ok(table.clone()),
            nodes: Vec::new(),
        };
        assert!(Arbiter::find(&disk(&table), &slot, None).is_none());
        table.partitions.push(part(6, TYPE_BOOT_RECORD));
        let found = Arbiter::find(&disk(&table), &slot, None).expect("a boot record");
        assert_eq!((found.booted, found.other_filled), (SlotName::B, true));
        assert_eq!(found.record_path, "/dev/nvme0n1p6");
        assert_eq!(found.esp_path.as_deref(), Some("/dev/nvme0n1p1"));
    }

    #[test]
    fn a_first_boot_makes_a_record_and_the_next_one_counts_on() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (boot, cleared) in [(1, true), (2, false)] {
            let mut booted = arbiter(dir.path(), EntryState::Good, EntryState::Hidden);
            let outcome = booted.judge(&hash("11")).expect("judged");
            assert_eq!(booted.record_is_new(), boot == 1);
            assert_eq!((outcome.resets, outcome.clear_choices), (false, cleared));
            assert!(outcome.failures.is_empty() && outcome.said.is_empty(), "{outcome:?}");
            assert_eq!(outcome.detail, format!("slot A, boot record {boot}"));
            let record = record(dir.path());
            assert_eq!((record.desired, record.unready, record.a.uki_bytes), (SlotName::A, boot, 1500));
        }
        assert_eq!(states(dir.path()), [Some(EntryState::Good), Some(EntryState::Hidden)]);
    }

    #[test]
    fn a_trial_boot_is_committed_or_comes_back() {
        for commits in [true, false] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let mut old = arbiter(dir.path(), EntryState::Good, EntryState::Hidden);
            old.judge(&hash("11")).expect("judged");
            let mut staged = record(dir.path());
            (staged.b.state, staged.b.uki_bytes) = (SlotState::Staged, 1500);
            staged.order_trial(SlotName::A, "u-1", 600).expect("staged");
            old.save(&staged).expect("saved");
            // The loader has used the try.
            let mut tried = arbiter(dir.path(), EntryState::Good, EntryState::Tried);
            tried.booted = SlotName::B;
            let outcome = tried.judge(&hash("22")).expect("judged");
            let boot = outcome.trial.expect("on trial");
            assert_eq!((boot.slot, boot.update.as_str(), boot.deadline_s), (SlotName::B, "u-1", 600));
            let mut guarded = Arbiter::of(&boot);
            assert_eq!(guarded.standing().expect("read"), TrialStanding::OnTrial);
            let slot = boot.slot;
            let failures = if commits {
                guarded.change(|record| record.commit_trial(slot, None))
            } else {
                guarded.change(|record| record.return_from_trial(slot, "gateway", "it is silent"))
            };
            assert_eq!(failures.expect("changed"), Vec::<String>::new());
            let end = if commits { TrialStanding::Committed } else { TrialStanding::Over };
            assert_eq!(guarded.standing().expect("read"), end);
            let (now, esp) = (record(dir.path()), states(dir.path()));
            if commits {
                assert_eq!((now.desired, now.b.state), (SlotName::B, SlotState::Good));
                assert_eq!(esp, [Some(EntryState::Behind), Some(EntryState::Good)]);
            } else {
                assert_eq!((now.desired, now.b.failed_check.as_str()), (SlotName::A, "gateway"));
                assert_eq!(esp, [Some(EntryState::Good), Some(EntryState::Hidden)]);
            }
            assert!(guarded.change(|record| record.commit_trial(slot, None)).is_err());
        }
    }

    #[test]
    fn one_writer_at_a_time() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("record");
        assert!(RecordLock::take(&path, 0).is_err(), "no device");
        fs::write(&path, [0]).expect("record");
        let held = RecordLock::take(&path, 0).expect("free");
        assert_eq!(RecordLock::take(&path, 0).expect_err("held").kind(), io::ErrorKind::TimedOut);
        drop(held);
        RecordLock::take(&path, 0).expect("free again");
    }

    #[test]
    fn a_corrupt_slot_is_left_once() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut first = arbiter(dir.path(), EntryState::Good, EntryState::Behind);
        first.judge(&hash("11")).expect("judged");
        assert_eq!(record(dir.path()).b.state, SlotState::Good);
        let outcome = first.leave("the first block").expect("a way out");
        assert!(outcome.resets && outcome.detail.contains("slot B boots"), "{outcome:?}");
        assert_eq!(states(dir.path()), [Some(EntryState::Hidden), Some(EntryState::Good)]);
        let now = record(dir.path());
        assert_eq!((now.desired, now.a.state), (SlotName::B, SlotState::Refused));
        assert!(first.leave("again").is_none());
    }

    #[test]
    fn what_cannot_be_written_stops_no_boot() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut other = arbiter(dir.path(), EntryState::Good, EntryState::Tried);
        other.booted = SlotName::B;
        // The record's partition is shorter than the ring.
        fs::write(&other.record_path, vec![0; 4096]).expect("record");
        assert!(other.judge(&hash("11")).is_err());
        assert!(other.leave("").is_none());
        // No ESP: the record alone.
        fs::write(&other.record_path, vec![0; 1 << 20]).expect("record");
        let mut blind = Arbiter { esp_path: None, ..other };
        let outcome = blind.judge(&hash("11")).expect("judged");
        assert!(!outcome.resets && outcome.failures.len() == 1, "{outcome:?}");
        assert_eq!(record(dir.path()).desired, SlotName::B);
        // A device that is gone.
        blind.record_path = dir.path().join("none").to_string_lossy().into_owned();
        assert!(blind.save(&BootRecord::new(SlotName::A)).is_err());
    }

    #[test]
    fn memory_for_the_disk_is_aligned() {
        for length in [512, 4096, 5000] {
            let (buffer, from) = aligned(length);
            assert_eq!(buffer[from..].as_ptr().addr() % ALIGNMENT, 0);
            assert!(from + length <= buffer.len());
        }
    }
}
