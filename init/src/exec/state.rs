//! The state partition: facts for `plan::state`, then made or grown, fsck, mount. The file system is made before the
//! table names it, and only where `plan::state` has found no data.

use super::devices::{read_at, scan};
use super::drivers::Drivers;
use super::error::InitError;
use super::steps::{apply, apply_all};
use super::watchdog::{ArmedWatchdog, during};
use super::{machine_id, reserve};
use crate::plan::disk::{Disk, STATE_LABEL};
use crate::plan::gpt::Partition;
use crate::plan::gpt_change::{ChangeError, Editor, NewPartition};
use crate::plan::guid::{Guid, TYPE_VAR};
use crate::plan::mounts::{self, PluginDir, SYSROOT};
use crate::plan::reserve::full_message;
use crate::plan::state::{
    BYTES_MIN, COPY_OFFSET, FULL_BELOW, Facts, Plan, free_start, old_starts, partition_name, plan,
};
use crate::plan::step::{BootStep, DiskWrite};
use crate::plan::{ext4, gpt_relocate};
use crate::sys::{block, child};
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;
use orlop_config::error_chain::chain;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;

/// Where the state partition is mounted.
pub(super) const VAR: &str = "/sysroot/var";
/// Under which the kernel would ask for the file system's module.
pub const FILE_SYSTEM: &str = "fs-ext4";
/// Under which the module of quotas in files is listed. The kernel looks for it only once there is a modprobe.
pub(super) const QUOTAS: &str = "quota-format";
const MKFS: &str = "/usr/sbin/mkfs.ext4";
const FSCK: &str = "/usr/sbin/fsck.ext4";

/// A mounted state partition.
#[derive(Debug)]
pub struct Mounted {
    /// For the ledger.
    pub detail: String,
    /// What a person must know although it is mounted.
    pub warnings: Vec<String>,
}

/// Finds or makes the state partition on the disk called `name` and mounts it on /sysroot/var. Whether one that is made has
/// project quotas is asked only then. `esp` is the ESP that was booted from, if known. The watchdog of a trial gets beats while the file
/// system is made, checked, mounted and grown.
///
/// # Errors
/// It cannot be used; nothing on it was changed.
pub fn open(
    name: &str,
    esp: Option<Guid>,
    drivers: &mut Drivers,
    watchdog: Option<&ArmedWatchdog>,
    wants_quotas: impl FnOnce(&mut Drivers) -> Result<bool, InitError>,
) -> Result<Mounted, InitError> {
    let disk = rescan(name)?;
    let mut warnings = Vec::new();
    let made = match decide(&disk) {
        Plan::Refuse { problem } => return Err(InitError::Refused(problem)),
        Plan::Create => {
            let quotas = wants_quotas(drivers)?;
            during(watchdog, || create(&disk, esp, quotas))?;
            true
        }
        Plan::Use { partition, grow_partition, .. } => {
            if grow_partition && let Err(e) = grow(&disk, &partition) {
                warnings.push(format!("the state partition keeps its size: {}", chain(&e)));
            }
            false
        }
    };
    drivers.need(FILE_SYSTEM);
    // The table has changed; decide again on what is there now.
    let disk = rescan(name)?;
    match decide(&disk) {
        Plan::Use { partition, check, quotas, .. } => {
            if quotas {
                drivers.need(QUOTAS);
            }
            during(watchdog, || mount(&disk, &partition, check, made, warnings))
        }
        Plan::Refuse { problem } => Err(InitError::Refused(problem)),
        Plan::Create => Err(InitError::Refused(format!(
            "the state partition was made on /dev/{name}, but its table does not show it; nothing is made twice"
        ))),
    }
}

/// The disk as it is now.
pub(super) fn rescan(name: &str) -> Result<Disk, InitError> {
    let gone = || InitError::Refused(format!("disk /dev/{name} has disappeared"));
    scan().into_iter().find(|d| d.name == name).ok_or_else(gone)
}

fn decide(disk: &Disk) -> Plan {
    // By offset into the disk: the kernel's view of partitions may lag behind the table.
    let whole = format!("/dev/{}", disk.name);
    let superblock = |offset: u64| ext4::parse(&read_at(&whole, offset, ext4::SUPERBLOCK_BYTES).ok()?);
    let state_superblock = disk.state().and_then(|p| superblock(p.start + ext4::SUPERBLOCK_OFFSET));
    let free = free_start(disk);
    let leftover = free.and_then(|start| superblock(start + ext4::SUPERBLOCK_OFFSET));
    let lost = |start: u64| superblock(start + COPY_OFFSET).is_some();
    let leftover_copy = disk.state().is_none() && old_starts(disk).into_iter().any(lost);
    plan(&Facts { disk, state_superblock, leftover, leftover_copy })
}

/// Has the disk no state partition? Only then may it be a stick that installs itself elsewhere. What stands in the place of the
/// new one does not matter: a stick that was a node once and was written again is still a stick.
#[must_use]
pub fn is_first_boot(disk: &Disk) -> bool {
    disk.state().is_none()
}

/// File system first, table last: a partition that the table names was complete once. Until then the kernel alone knows
/// the partition. With it the disk gets its identity: GUIDs of disk, ESP, state partition and file system are random, so that
/// they do not repeat on every node and no copy of the image has them (docs/decisions/disk-identity.md).
fn create(disk: &Disk, esp: Option<Guid>, quotas: bool) -> Result<(), InitError> {
    let device = format!("/dev/{}", disk.name);
    let (file, mut table) = edit(disk, &device)?;
    let failed = |action| {
        let path = device.clone();
        move |source| InitError::File { action, path, source }
    };
    let random = || {
        let uuid = machine_id::random().map_err(failed("make an identity for"))?;
        Guid::parse(&uuid).ok_or_else(|| failed("make an identity for")(io::ErrorKind::InvalidData.into()))
    };
    let identity = random()?.as_identity();
    let new =
        NewPartition { type_guid: TYPE_VAR, partuuid: random()?, label: STATE_LABEL, bytes_min: BYTES_MIN };
    let partition = table.append(&new).map_err(|e| no_change(&device, e))?;
    table.identify_disk(identity);
    if let Some(esp) = disk.esp(esp) {
        table.identify(esp.number, random()?).map_err(|e| no_change(&device, e))?;
    }
    block::add_partition(&file, &partition).map_err(|e| failed("add a partition to")(e.into()))?;
    let name = format!("/dev/{}", partition_name(&disk.name, partition.number));
    let made = make_file_system(&name, identity, quotas);
    if made.is_err() {
        // As the table has it.
        let _ = block::remove_partition(&file, &partition);
    }
    made?;
    write(&file, &table.writes()).map_err(failed("write the partition table of"))?;
    // Superblocks are looked for in the disk; this one was written through the partition.
    block::drop_cache(&file).map_err(|e| failed("read again")(e.into()))
}

/// A person's or a power cut's remains are no reason to ask (`-F`): `plan::state` has looked at them.
fn make_file_system(device: &str, identity: Guid, quotas: bool) -> Result<(), InitError> {
    let uuid = identity.to_string();
    let layout = ["-U", &uuid, "-b", "4096", "-I", "256", "-m", "0", "-E"];
    let more: &[&str] = if quotas { &ext4::WITH_QUOTAS } else { &ext4::WITHOUT_QUOTAS };
    run(MKFS, &[&["-q", "-F", "-L", STATE_LABEL], &layout[..], more, &[device]].concat(), |_| false)?;
    let sync = || OpenOptions::new().write(true).open(device)?.sync_all();
    sync().map_err(|source| InitError::File { action: "write", path: device.into(), source })
}

/// The table first: the kernel gets only a length that is on the disk.
fn grow(disk: &Disk, partition: &Partition) -> Result<(), InitError> {
    let device = format!("/dev/{}", disk.name);
    let (file, mut table) = edit(disk, &device)?;
    let partition = table.grow(partition.number).map_err(|e| no_change(&device, e))?;
    let failed =
        |source| InitError::File { action: "write the partition table of", path: device.clone(), source };
    write(&file, &table.writes()).map_err(failed)?;
    block::resize_partition(&file, &partition).map_err(|e| failed(e.into()))
}

/// The disk, open, and its table to be changed.
pub(super) fn edit(disk: &Disk, device: &str) -> Result<(File, Editor), InitError> {
    let failed =
        |source| InitError::File { action: "extend the partition table of", path: device.into(), source };
    let file = OpenOptions::new().read(true).write(true).open(device).map_err(failed)?;
    cover_disk(disk, &file).map_err(failed)?;
    let table = Editor::read(disk.bytes, disk.sector, |at, length| read_exact(&file, at, length));
    Ok((file, table.map_err(|e| no_change(device, e))?))
}

fn no_change(device: &str, why: ChangeError) -> InitError {
    InitError::Refused(format!("{device} gets no state partition, and nothing was changed: {why}"))
}

fn read_exact(file: &File, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, offset).ok()?;
    Some(buffer)
}

/// Lets the table cover the whole disk: an image written to a larger one leaves its backup in the middle.
fn cover_disk(disk: &Disk, file: &File) -> io::Result<()> {
    let read = |offset, length| read_exact(file, offset, length);
    write(file, &gpt_relocate::relocate(disk.bytes, disk.sector, read).unwrap_or_default())
}

/// In this order on the disk, not only in the cache.
pub(super) fn write(file: &File, writes: &[DiskWrite]) -> io::Result<()> {
    writes.iter().try_for_each(|write| {
        file.write_all_at(&write.bytes, write.offset)?;
        file.sync_all()
    })
}

fn fsck(device: &str) -> Result<(), InitError> {
    // 1 is "errors corrected". -p repairs only what is safe without asking.
    run(FSCK, &["-p", device], |code| code == 1)
}

fn run(program: &str, args: &[&str], also_fine: impl Fn(i32) -> bool) -> Result<(), InitError> {
    let binds = mounts::tool_chroot();
    apply_all(&binds)?;
    let result = child::run_in_root(SYSROOT, program, args);
    for step in binds.iter().rev() {
        if let BootStep::Bind { to, .. } = step {
            // Still busy would show when the hand-over moves the real mounts there.
            let _ = umount2(to.as_str(), MntFlags::MNT_DETACH);
        }
    }
    let failed = |status: String, said| InitError::Program { program: program.into(), status, said };
    let output = result.map_err(|e| failed("not started".into(), e.to_string()))?;
    if output.status.success() || output.status.code().is_some_and(also_fine) {
        return Ok(());
    }
    Err(failed(output.status.to_string(), last_words(&output)))
}

/// The last lines of what a program said, on one line.
fn last_words(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].map(String::from_utf8_lossy).concat();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

fn mount(
    disk: &Disk,
    partition: &Partition,
    check: bool,
    made: bool,
    mut warnings: Vec<String>,
) -> Result<Mounted, InitError> {
    let device = format!("/dev/{}", partition_name(&disk.name, partition.number));
    let unusable = |e: &InitError| {
        InitError::Refused(format!(
            "state partition {device} cannot be mounted; no data was wiped. Boot another system and look at the partition with `e2fsck -n`: {}",
            chain(e)
        ))
    };
    if check {
        warnings.push(format!("the file system on {device} is marked as faulty; {FSCK} -p looks at it"));
        fsck(&device).map_err(|e| unusable(&e))?;
    }
    let steps = mounts::state(&device);
    if let Err(first) = apply_all(&steps) {
        // Not marked, and yet unmountable: one repair of what is safe to repair, one more attempt.
        fsck(&device).map_err(|e| unusable(&e))?;
        apply_all(&steps).map_err(|e| unusable(&e))?;
        warnings.push(format!("{device} was repaired by {FSCK} -p after: {}", chain(&first)));
    }
    grow_file_system(disk, partition, &mut warnings);
    let free = statvfs(VAR).map_or(u64::MAX, |s| s.blocks_available().saturating_mul(s.fragment_size()));
    if free < FULL_BELOW {
        warnings.push(full_message(&device, free, reserve::release(Path::new(VAR))));
    }
    let verb = if made { "made" } else { "kept" };
    let detail = format!("{device}, {verb}, {} MiB of {} MiB free", free >> 20, partition.length >> 20);
    Ok(Mounted { detail, warnings })
}

/// The steps that complete the /var that is mounted, as `plan::mounts` has them.
#[must_use]
pub fn layout() -> Vec<BootStep> {
    mounts::var_layout(plugin_dir(Path::new(VAR)))
}

fn plugin_dir(var: &Path) -> PluginDir {
    let kind = |path: &str| std::fs::symlink_metadata(var.join(path)).map(|m| m.file_type());
    let opt_is_link = kind("opt/cni/bin").is_ok_and(|k| k.is_symlink());
    PluginDir::of(opt_is_link, kind("lib/orlop/cni/bin").is_ok_and(|k| k.is_dir()))
}

/// Lets go of it again: a boot that ends leaves it clean.
pub fn close() {
    let _ = umount2(VAR, MntFlags::empty());
}

fn grow_file_system(disk: &Disk, partition: &Partition, warnings: &mut Vec<String>) {
    let whole = format!("/dev/{}", disk.name);
    let offset = partition.start + ext4::SUPERBLOCK_OFFSET;
    let superblock = read_at(&whole, offset, ext4::SUPERBLOCK_BYTES).ok().and_then(|b| ext4::parse(&b));
    let Some(sb) = superblock else { return };
    // Less than a block group is not worth the write.
    if partition.length.saturating_sub(sb.bytes) < 128 << 20 {
        return;
    }
    let blocks = partition.length / u64::from(sb.block);
    let grown = File::open(VAR).map_err(|e| e.to_string());
    let grown = grown.and_then(|f| block::ext4_resize(&f, blocks).map_err(|e| e.to_string()));
    if let Err(e) = grown {
        warnings.push(format!("the state file system keeps its size of {} MiB: {e}", sb.bytes >> 20));
    }
}

/// The stand-in: a /var that is lost at power-off, so that the node can be looked at.
///
/// # Errors
/// Not even that could be mounted.
pub fn open_volatile() -> Result<(), InitError> {
    mounts::volatile_state()
        .iter()
        .try_for_each(|step| apply(step).map_err(|source| InitError::Step { step: step.describe(), source }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::disk::STATE_LABEL;
    use crate::plan::gpt::{Copy, Table};
    use crate::plan::guid::TYPE_VAR;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_a_state_partition_makes_a_disk_a_nodes() {
        let with = |partitions| {
            let table = Ok(Table { disk: Guid::default(), copy: Copy::Primary, partitions });
            is_first_boot(&Disk { name: "none".into(), bytes: 1 << 30, sector: 512, table, nodes: vec![] })
        };
        let of_a_node = Partition {
            number: 6,
            type_guid: TYPE_VAR,
            partuuid: Guid::default(),
            label: STATE_LABEL.into(),
            start: 1 << 20,
            length: 1 << 20,
        };
        assert!(with(vec![]), "and no byte of the disk was read for it");
        assert!(!with(vec![of_a_node]));
    }

    #[test]
    fn plugins_of_networks_are_looked_for_where_they_are() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let var = dir.path();
        assert_eq!(plugin_dir(var), PluginDir::Opt, "a new partition");
        // As `PluginDir::Opt` leaves it.
        fs::create_dir_all(var.join("opt/cni/bin")).expect("fixture");
        fs::create_dir_all(var.join("lib/orlop/cni")).expect("fixture");
        symlink("../../../opt/cni/bin", var.join("lib/orlop/cni/bin")).expect("fixture");
        assert!(var.join("lib/orlop/cni/bin").is_dir(), "the link leads to the directory");
        assert_eq!(plugin_dir(var), PluginDir::Opt);
        // As an older image leaves it, and then as `PluginDir::Orlop` does.
        fs::remove_file(var.join("lib/orlop/cni/bin")).expect("fixture");
        fs::remove_dir(var.join("opt/cni/bin")).expect("fixture");
        fs::create_dir(var.join("lib/orlop/cni/bin")).expect("fixture");
        assert_eq!(plugin_dir(var), PluginDir::Orlop);
        symlink("../../lib/orlop/cni/bin", var.join("opt/cni/bin")).expect("fixture");
        assert!(var.join("opt/cni/bin").is_dir(), "the link leads to the directory");
        assert_eq!(plugin_dir(var), PluginDir::Orlop);
        fs::remove_dir(var.join("lib/orlop/cni/bin")).expect("fixture");
        assert_eq!(plugin_dir(var), PluginDir::Orlop, "a link that leads nowhere");
    }
}
