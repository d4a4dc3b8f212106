//! The disk of the running system, as an update sees it: places of both slots, boot record, ESP and partition table.
//!
//! In: sysfs and the devices. Out: the places, the record that counts; and the writes of record, directory entry and table, each of
//! which goes past the cache and is read back. Decisions are those of [`slot`](super::slot) and of init's plan modules.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use orlop_config::boot_trust::FirmwareTrust;
use orlop_config::release::ReleaseDocument;
use orlop_config::slots::{BootRecord, RING_BYTES, RecordError, RingPosition, SlotName, latest};
use orlop_init::exec::devices;
use orlop_init::exec::slot::RecordLock;
use orlop_init::exec::verity::NAME as ROOT_NAME;
use orlop_init::plan::arbiter::EspPatch;
use orlop_init::plan::esp::{EspDirectory, EspEntry, EspError, UKI_CHAIN_BYTES};
use orlop_init::plan::esp_names::EntryState;
use orlop_init::plan::gpt::Partition;
use orlop_init::plan::gpt_change::{ChangeError, Editor};
use orlop_init::plan::mounts::EFI_VARIABLES;
use orlop_init::plan::state::partition_name;
use orlop_init::plan::step::DiskWrite;

use super::boot_files::firmware_trust;
use super::device::{AreaPlace, DeviceArea};
use super::slot::places::{PlaceFault, SlotPlaces, slot_guids, slot_labels};

/// How long a writer of the record waits for another one, seconds.
const LOCK_S: u32 = 30;

/// Why the disk is not read or not written.
#[derive(Debug, thiserror::Error)]
pub enum DiskFault {
    /// The running root stands on no partitions of a disk.
    #[error(
        "the running root is not on the two partitions of a slot: this machine was not booted from an image"
    )]
    NoSlot,
    /// The kernel knows another partition table than the one that is on the disk.
    #[error("{0} is not where the disk's partition table has it: boot this node once more")]
    OtherTable(String),
    /// Its disk is not seen.
    #[error("{0} is not among the disks")]
    NoDisk(String),
    /// A partition is not where it should be.
    #[error(transparent)]
    Place(#[from] PlaceFault),
    /// A device cannot be read or written.
    #[error("{action} {}", path.display())]
    Device {
        /// What was done.
        action: &'static str,
        /// Device.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// The disk has no boot record, or none that this version knows.
    #[error("there is no boot record: boot this node once more, and init makes one")]
    NoRecord,
    /// The record is not read or does not fit.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Names or chains of the ESP.
    #[error(
        "ESP: {why}; the update stops before slot {} is activated; slot {running} is as it was",
        running.other()
    )]
    Esp {
        /// What is wrong.
        why: String,
        /// The slot that runs.
        running: SlotName,
    },
    /// The partition table is not changed.
    #[error("{0}")]
    Table(ChangeError),
}

/// Devices of an update.
#[derive(Clone, Debug)]
pub struct SlotDisk {
    /// What is where.
    pub places: SlotPlaces,
    /// What the firmware starts; none if it knows no Secure Boot.
    pub firmware: Option<FirmwareTrust>,
    /// The whole disk.
    disk: PathBuf,
    disk_bytes: u64,
    sector: u32,
    /// Each partition is a device of its own; else all are parts of the disk.
    has_nodes: bool,
}

/// The directory of the ESP, checked for an update.
#[derive(Clone, Debug)]
pub(crate) struct SlotEsp {
    directory: EspDirectory,
    /// The running slot's UKI.
    pub(crate) running: EspEntry,
    /// The other one's.
    pub(crate) target: EspEntry,
}

impl SlotDisk {
    /// The disk under the running root, by sysfs.
    ///
    /// # Errors
    /// The root does not stand on a slot, or the disk has not all partitions.
    pub fn running() -> Result<SlotDisk, DiskFault> {
        let class = Path::new("/sys/class/block");
        let (name, root, tree) = under_root(class).ok_or(DiskFault::NoSlot)?;
        let disk = devices::scan().into_iter().find(|disk| disk.name == name);
        let disk = disk.ok_or_else(|| DiskFault::NoDisk(name.clone()))?;
        let places = SlotPlaces::find(&disk, root, tree)?;
        // The places are the table's, and what is written are the kernel's partitions.
        for partition in places.all() {
            let node = partition_name(&name, partition.number);
            if !is_at(&class.join(&node), partition) {
                return Err(DiskFault::OtherTable(node));
            }
        }
        let path = Path::new("/dev").join(&name);
        let (disk_bytes, sector) = (disk.bytes, disk.sector);
        let firmware = firmware_trust(Path::new(EFI_VARIABLES));
        Ok(SlotDisk { places, firmware, disk: path, disk_bytes, sector, has_nodes: true })
    }

    /// A disk in a file, for tests and for disks of other machines; `root` and `tree` are the partitions that count as running.
    ///
    /// # Errors
    /// It has no table, or not all partitions.
    pub fn of_file(path: &Path, root: u32, tree: u32) -> Result<SlotDisk, DiskFault> {
        let failed = |source| DiskFault::Device { action: "read", path: path.to_owned(), source };
        let bytes = fs::metadata(path).map_err(failed)?.len();
        let text = path.display().to_string();
        let read = |offset, length| devices::read_at(&text, offset, length).ok();
        let table = orlop_init::plan::gpt::read_table(bytes, 512, read);
        let disk =
            orlop_init::plan::disk::Disk { name: text.clone(), bytes, sector: 512, table, nodes: Vec::new() };
        let places = SlotPlaces::find(&disk, root, tree)?;
        let path = path.to_owned();
        let firmware = None;
        Ok(SlotDisk { places, firmware, disk: path, disk_bytes: bytes, sector: 512, has_nodes: false })
    }

    /// Where a partition, or a part of it, is.
    pub(crate) fn place(&self, partition: &Partition, offset: u64, length: u64) -> AreaPlace {
        if !self.has_nodes {
            let length = length.min(partition.length.saturating_sub(offset));
            return AreaPlace { path: self.disk.clone(), offset: partition.start + offset, length };
        }
        let name = self.disk.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let path = Path::new("/dev").join(partition_name(&name, partition.number));
        AreaPlace { path, offset, length: length.min(partition.length.saturating_sub(offset)) }
    }

    /// A whole partition.
    pub(crate) fn whole(&self, partition: &Partition) -> AreaPlace {
        self.place(partition, 0, partition.length)
    }

    /// Keeps other writers of the record and of the ESP away while it lives.
    pub(crate) fn lock(&self) -> Result<RecordLock, DiskFault> {
        let path = self.whole(&self.places.record).path;
        RecordLock::take(&path, LOCK_S).map_err(|source| DiskFault::Device { action: "lock", path, source })
    }

    /// The record that counts, and where it stands.
    ///
    /// # Errors
    /// There is none.
    pub fn record(&self) -> Result<(BootRecord, RingPosition), DiskFault> {
        let mut ring = vec![0; RING_BYTES];
        read_area(self.whole(&self.places.record), 0, &mut ring)?;
        let found = latest(&ring).ok_or(DiskFault::NoRecord)?;
        Ok((BootRecord::parse(found.payload)?, found.position))
    }

    /// Writes the next record behind `position`; returns where it stands.
    pub(crate) fn save(
        &self,
        record: &BootRecord,
        position: RingPosition,
    ) -> Result<RingPosition, DiskFault> {
        let write = record.write(Some(position))?;
        let (position, offset, bytes) = (write.position, write.offset, write.bytes);
        self.write_through(self.whole(&self.places.record), &DiskWrite { offset, bytes })?;
        Ok(position)
    }

    /// Reads the ESP's directory, and checks what an update relies on: both files with whole chains, apart from each other, and the
    /// running slot's to be seen by the loader.
    pub(crate) fn esp(&self) -> Result<SlotEsp, DiskFault> {
        let read = self.esp_reader();
        let fault = |why: String| DiskFault::Esp { why, running: self.places.running };
        let esp = |e: EspError| fault(e.to_string());
        let directory = EspDirectory::read(&read).map_err(esp)?;
        let (own, other) = (self.places.running, self.places.running.other());
        let running = *directory.entry(own).ok_or_else(|| esp(EspError::NoEntry(own)))?;
        let target = *directory.entry(other).ok_or_else(|| esp(EspError::NoEntry(other)))?;
        if !running.state.is_visible() {
            return Err(fault(format!("the loader does not see the UKI of slot {own}, which runs")));
        }
        let geometry = directory.geometry();
        let mut ends = Vec::new();
        for entry in [running, target] {
            let whole = geometry.is_contiguous(&read, entry.first_cluster, UKI_CHAIN_BYTES).map_err(esp)?;
            let start = geometry.offset(entry.first_cluster);
            let end = start.saturating_add(u64::from(UKI_CHAIN_BYTES));
            if !whole || end > self.places.esp.length {
                return Err(fault(format!("the chain of the UKI of slot {} is broken", entry.slot)));
            }
            ends.push((start, end));
        }
        if ends[0].0 < ends[1].1 && ends[1].0 < ends[0].1 {
            return Err(fault("the chains of both UKIs overlap".to_owned()));
        }
        // One write must be able to change the entry; it is not made here.
        directory.renamed(other, EntryState::Hidden, UKI_CHAIN_BYTES).map_err(esp)?;
        Ok(SlotEsp { directory, running, target })
    }

    /// Reads parts of the ESP, by their offset and length.
    fn esp_reader(&self) -> impl Fn(u64, usize) -> Option<Vec<u8>> {
        let place = self.whole(&self.places.esp);
        let text = place.path.display().to_string();
        move |offset, length| {
            offset.checked_add(length as u64).filter(|end| *end <= place.length)?;
            devices::read_at(&text, place.offset.checked_add(offset)?, length).ok()
        }
    }

    /// The directory of the ESP as it is now, unchecked.
    pub(crate) fn directory(&self) -> Result<EspDirectory, DiskFault> {
        EspDirectory::read(self.esp_reader()).map_err(|e| self.esp_fault(e))
    }

    /// Gives a slot's UKI another state and length by one write; the directory as it is then.
    pub(crate) fn rename(
        &self,
        directory: &EspDirectory,
        patch: EspPatch,
    ) -> Result<EspDirectory, DiskFault> {
        let renamed = directory.renamed(patch.slot, patch.state, patch.bytes);
        let (after, write) = renamed.map_err(|e| self.esp_fault(e))?;
        self.write_through(self.whole(&self.places.esp), &write)?;
        Ok(after)
    }

    fn esp_fault(&self, error: EspError) -> DiskFault {
        DiskFault::Esp { why: error.to_string(), running: self.places.running }
    }

    /// Where a UKI's chain is.
    pub(crate) fn chain(&self, esp: &SlotEsp, entry: EspEntry) -> AreaPlace {
        let start = esp.directory.geometry().offset(entry.first_cluster);
        self.place(&self.places.esp, start, u64::from(UKI_CHAIN_BYTES))
    }

    /// Hides the other slot's UKI from the loader.
    pub(crate) fn hide(&self, esp: SlotEsp) -> Result<SlotEsp, DiskFault> {
        if !esp.target.state.is_visible() {
            return Ok(esp);
        }
        let slot = esp.target.slot;
        let patch = EspPatch { slot, state: EntryState::Hidden, bytes: UKI_CHAIN_BYTES };
        let directory = self.rename(&esp.directory, patch)?;
        let target = *directory.entry(slot).ok_or_else(|| self.esp_fault(EspError::NoEntry(slot)))?;
        Ok(SlotEsp { directory, running: esp.running, target })
    }

    /// The writes that give the written slot's partitions the identity of the release. Nothing is written here.
    ///
    /// # Errors
    /// The table cannot be changed.
    pub(crate) fn identity(&self, release: &ReleaseDocument) -> Result<Vec<DiskWrite>, DiskFault> {
        let text = self.disk.display().to_string();
        let read = |offset: u64, length: usize| devices::read_at(&text, offset, length).ok();
        let mut table = Editor::read(self.disk_bytes, self.sector, read).map_err(DiskFault::Table)?;
        let numbers = [self.places.target.root.number, self.places.target.tree.number];
        let guids = slot_guids(&release.root.hash.0);
        let labels = slot_labels(&release.version.to_string());
        for ((number, guid), label) in numbers.into_iter().zip(guids).zip(&labels) {
            table.identify(number, guid).map_err(DiskFault::Table)?;
            table.relabel(number, label).map_err(DiskFault::Table)?;
        }
        Ok(table.writes())
    }

    /// Gives the written slot's partitions the identity of the release, so that init finds them by its root hash.
    pub(crate) fn identify(&self, release: &ReleaseDocument) -> Result<(), DiskFault> {
        let disk = AreaPlace { path: self.disk.clone(), offset: 0, length: self.disk_bytes };
        for write in self.identity(release)? {
            self.write_through(disk.clone(), &write)?;
        }
        Ok(())
    }

    fn write_through(&self, place: AreaPlace, write: &DiskWrite) -> Result<(), DiskFault> {
        let path = place.path.clone();
        DeviceArea::to_write(place)
            .and_then(|mut area| area.write_through(write))
            .map_err(|source| DiskFault::Device { action: "write", path, source })
    }
}

/// Reads a part of an area.
pub(crate) fn read_area(place: AreaPlace, offset: u64, bytes: &mut [u8]) -> Result<(), DiskFault> {
    let path = place.path.clone();
    DeviceArea::to_read(place)
        .and_then(|mut area| area.read(offset, bytes))
        .map_err(|source| DiskFault::Device { action: "read", path, source })
}

/// The disk under the root, and the numbers of the root's and of the verity tree's partition: what stands below the device-mapper
/// device of that name.
fn under_root(class: &Path) -> Option<(String, u32, u32)> {
    let number = |name: &str| {
        let text = fs::read_to_string(class.join(name).join("partition")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    for entry in fs::read_dir(class).ok()?.flatten() {
        let name = fs::read_to_string(entry.path().join("dm/name")).unwrap_or_default();
        if name.trim() != ROOT_NAME {
            continue;
        }
        let slaves = fs::read_dir(entry.path().join("slaves")).ok()?.flatten();
        let names: Vec<String> = slaves.filter_map(|slave| slave.file_name().into_string().ok()).collect();
        let mut parts: Vec<(u32, String)> =
            names.iter().filter_map(|name| Some((number(name)?, disk_of(class, name)?))).collect();
        // A slot's root stands before its tree.
        parts.sort_unstable();
        return match parts.as_slice() {
            [(root, disk), (tree, other)] if disk == other => Some((disk.clone(), *root, *tree)),
            _ => None,
        };
    }
    None
}

/// Has the kernel a partition where the table has it? sysfs counts in 512 bytes, whatever the disk's sector is.
fn is_at(sys: &Path, partition: &Partition) -> bool {
    let bytes = |file: &str| {
        let text = fs::read_to_string(sys.join(file)).ok()?;
        text.trim().parse::<u64>().ok()?.checked_mul(512)
    };
    (bytes("start"), bytes("size")) == (Some(partition.start), Some(partition.length))
}

/// The disk of a partition: the directory in which sysfs has it.
fn disk_of(class: &Path, partition: &str) -> Option<String> {
    let real = fs::canonicalize(class.join(partition)).ok()?;
    Some(real.parent()?.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_init::plan::guid::{Guid, TYPE_ROOT};
    use std::os::unix::fs::symlink;

    #[test]
    fn the_kernel_has_a_partition_where_the_table_has_it() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let partition = Partition {
            number: 4,
            type_guid: TYPE_ROOT,
            partuuid: Guid([4; 16]),
            label: String::new(),
            start: 1 << 20,
            length: 8192,
        };
        assert!(!is_at(dir.path(), &partition), "no such partition");
        for (start, size, same) in [("2048", "16", true), ("2056", "16", false), ("2048", "24", false)] {
            for (file, number) in [("start", start), ("size", size)] {
                fs::write(dir.path().join(file), format!("{number}\n")).expect("written");
            }
            assert_eq!(is_at(dir.path(), &partition), same, "{start} {size}");
        }
    }

    #[test]
    fn sysfs_leads_to_the_slot() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let class = dir.path().join("class/block");
        fs::create_dir_all(&class).expect("made");
        assert_eq!(under_root(&class), None);
        for (disk, part, number) in [("vda", "vda2", "2\n"), ("vda", "vda3", "3\n"), ("vdb", "vdb3", "3\n")] {
            let real = dir.path().join("devices").join(disk).join(part);
            fs::create_dir_all(&real).expect("made");
            fs::write(real.join("partition"), number).expect("written");
            symlink(&real, class.join(part)).expect("linked");
        }
        let device = |dm: &str, name: &str, below: &[&str]| {
            let real = class.join(dm);
            fs::create_dir_all(real.join("slaves")).expect("made");
            fs::create_dir_all(real.join("dm")).expect("made");
            fs::write(real.join("dm/name"), format!("{name}\n")).expect("written");
            for part in below {
                symlink(class.join(part), real.join("slaves").join(part)).expect("linked");
            }
        };
        device("dm-0", "other", &["vdb3"]);
        assert_eq!(under_root(&class), None);
        device("dm-1", ROOT_NAME, &["vda3", "vda2"]);
        assert_eq!(under_root(&class), Some(("vda".to_owned(), 2, 3)));
        fs::remove_dir_all(class.join("dm-1")).expect("removed");
        device("dm-2", ROOT_NAME, &["vda2", "vdb3"]);
        assert_eq!(under_root(&class), None);
    }
}
