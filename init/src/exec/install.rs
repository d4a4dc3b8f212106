//! The installer: a first boot whose configuration has `install` copies its disk to the named one and powers off.
//!
//! The decisions are `plan::install`'s; `exec::disk_copy` moves the bytes. Every way out but one ends this boot: a stick
//! that cannot install must not become a node.

use super::clock::boottime_ms;
use super::configuration::source;
use super::devices::{Uevents, scan};
use super::disk_copy::{DiskCopy, PartSource};
use super::drivers::Drivers;
use super::error::InitError;
use super::machine_id;
use super::report::Report;
use super::sources::FoundSources;
use super::steps::apply;
use super::stop;
use crate::plan::cmdline::BootArgs;
use crate::plan::disk::{Choice, Disk, choose};
use crate::plan::disk_content::{DiskContent, EDGE, PROBE_BYTES, content, signature};
use crate::plan::disk_ids::DiskFacts;
use crate::plan::gpt::Partition;
use crate::plan::gpt_copy::CopyIdentity;
use crate::plan::guid::Guid;
use crate::plan::install::{
    Candidate, InstallFacts, InstallVerdict, PHASE, TargetMatch, copied, find_target, has_root_of, judge,
    keeps_its_node, kept, old_superblocks,
};
use crate::plan::kept::is_medium;
use crate::plan::source::BYTES_MAX;
use crate::plan::state::partition_name;
use crate::plan::step::{BootStep, Mount};
use crate::sys::block;
use nix::libc::O_EXCL;
use nix::mount::{MntFlags, MsFlags, umount2};
use orlop_config::error_chain::chain;
use orlop_config::node::{Effective, Install, Source, asks_to_install, carried, load};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// How long the target is awaited, milliseconds: as the root's disk.
const TARGET_DEADLINE_MS: u64 = 60_000;
const CLASS: &str = "/sys/class/block";
/// Where the new ESP is mounted while its configuration is written.
const MOUNT_POINT: &str = "/run/orlop/volume";
const ESP_DIR: &str = "orlop";
const ESP_FILE: &str = "node-config.yaml";

/// The disk that this boot runs from, with its verified root.
#[derive(Clone, Copy, Debug)]
pub struct BootedDisk<'a> {
    /// The disk.
    pub disk: &'a Disk,
    /// PARTUUID of the ESP that was booted from, if known.
    pub esp: Option<Guid>,
    /// Number of the root's partition.
    pub root: u32,
    /// Device of the root through dm-verity: a damaged block is an error there, and is not copied.
    pub root_device: &'a str,
}

/// An installation that did not come about.
enum InstallFailure {
    /// Nothing was written.
    Untouched(InitError),
    /// The target is half-written, and no table leads to it.
    Unfinished(InitError),
}

impl From<InitError> for InstallFailure {
    fn from(error: InitError) -> InstallFailure {
        InstallFailure::Untouched(error)
    }
}

/// Installs if the configuration asks for it. Returns if this boot goes on here: no source asked, or this is the disk that
/// was installed.
pub fn run(
    report: &mut Report,
    drivers: &mut Drivers,
    booted: &BootedDisk<'_>,
    found: &FoundSources,
    args: &BootArgs,
) {
    let sources: Vec<Source> = found.documents.iter().map(source).collect();
    let effective = load(&sources, &args.sets);
    let asked = effective.config.install.clone();
    if asked.is_none() && !sources.iter().any(asks_to_install) {
        return;
    }
    let started = boottime_ms();
    let mistakes = mistakes(&effective, sources.len() + args.sets.len(), found);
    let installed = match asked {
        Some(asked) if mistakes.is_empty() => {
            install(report, drivers, booted, found, args, &effective, &asked)
        }
        _ => Err(refused(format!("the configuration has mistakes: {mistakes}")).into()),
    };
    let why = match installed {
        Ok(Installed::Here(note)) => return report.stamp(PHASE, Some(started), &note, true),
        Ok(Installed::There(target)) => {
            report.stamp(PHASE, Some(started), &target, true);
            report.line(&format!(
                "install: DONE: {target} has this image and its configuration. Remove the stick; this machine powers off"
            ));
            report.flush();
            stop::power_off();
            "the machine does not power off; switch it off, and remove the stick".to_owned()
        }
        Err(InstallFailure::Untouched(e)) => format!(
            "nothing is installed, and nothing was changed on any disk: {}. Correct the configuration or the disk and \
             switch the machine off and on",
            chain(&e)
        ),
        Err(InstallFailure::Unfinished(e)) => format!(
            "the copy is not finished, and its disk does not boot: {}. The next boot from here begins again",
            chain(&e)
        ),
    };
    report.stamp(PHASE, Some(started), &why, false);
    stop::stay(report, &format!("install: {why}"))
}

/// What an installation came to.
enum Installed {
    /// Nothing is to be installed, for this reason.
    Here(String),
    /// The target holds everything.
    There(String),
}

/// All of the configuration counts, or nothing is installed: half of it would be another node than the operator wants.
fn mistakes(effective: &Effective, offered: usize, found: &FoundSources) -> String {
    let unreadable = found.problems.iter().map(ToString::to_string);
    let refused = (effective.accepted.len() < offered).then_some(effective.problems.iter());
    let refused = refused.into_iter().flatten().map(ToString::to_string);
    unreadable.chain(refused).collect::<Vec<_>>().join("; ")
}

fn refused(why: String) -> InitError {
    InitError::Refused(why)
}

fn install(
    report: &mut Report,
    drivers: &mut Drivers,
    booted: &BootedDisk<'_>,
    found: &FoundSources,
    args: &BootArgs,
    effective: &Effective,
    asked: &Install,
) -> Result<Installed, InstallFailure> {
    // Every controller has answered by now: a copy of this disk is as good a reason to write nothing as to boot nothing.
    if let Choice::Refuse { why } = choose(&args.roothash, &scan(), booted.esp) {
        return Err(refused(why).into());
    }
    let (candidate, target) = await_target(drivers, asked)?;
    let device = format!("/dev/{}", candidate.name);
    let content = if target.name == booted.disk.name { DiskContent::Empty } else { look(&device, &target)? };
    let origin = effective.provenance.get("install.disk").map_or("", String::as_str);
    let installed = has_root_of(booted.disk, booted.root, &target);
    let node = keeps_its_node(booted.disk, booted.root, &target);
    let facts = InstallFacts {
        asked,
        source: origin,
        own: booted.disk,
        target: &candidate,
        content: &content,
        installed,
        node: node.as_deref(),
    };
    match judge(&facts) {
        InstallVerdict::Here(note) => return Ok(Installed::Here(note)),
        InstallVerdict::Refuse(why) => return Err(refused(why).into()),
        InstallVerdict::Copy => {}
    }
    let medium: Vec<Source> = found.documents.iter().filter(|d| is_medium(d.kind)).map(source).collect();
    let text = carried(&medium);
    if text.as_ref().is_some_and(|text| text.len() as u64 > BYTES_MAX) {
        return Err(refused("the configuration would be larger than 1 MiB".to_owned()).into());
    }
    let parts = parts(booted)?;
    let to = open_alone(&device)?;
    report.line(&format!("install: copying this image to {}; do not switch off", candidate.shown()));
    let copy = DiskCopy { device: &device, file: &to, bytes: target.bytes, sector: target.sector };
    let written = write(report, drivers, booted, &copy, &target, &parts, text.as_deref());
    written.map(|()| Installed::There(candidate.shown())).map_err(InstallFailure::Unfinished)
}

/// Mark, copy, comparison, configuration, table: until the last step no table leads to the copy.
fn write(
    report: &mut Report,
    drivers: &mut Drivers,
    booted: &BootedDisk<'_>,
    copy: &DiskCopy<'_>,
    target: &Disk,
    parts: &[PartSource],
    text: Option<&str>,
) -> Result<(), InitError> {
    copy.begin()?;
    forget_partitions(copy.file, target);
    // What `wipe` has given up must not keep the new node from making its state partition.
    copy.clear(&old_superblocks(booted.disk))?;
    for part in parts {
        report.info(&format!("install: partition {} of {} MiB", part.number, part.length >> 20));
        copy.fill(part)?;
    }
    copy.flush()?;
    for part in parts {
        copy.compare(part)?;
    }
    report.info("install: the copy is the same, byte by byte");
    let esp = booted.disk.esp(booted.esp).ok_or_else(|| refused("this disk has no ESP".to_owned()))?;
    if let Some(text) = text {
        configure(drivers, copy, &target.name, esp, text)?;
    }
    let identity = CopyIdentity { disk: random_guid()?, esp: esp.number, esp_partuuid: random_guid()? };
    let keep: Vec<u32> = kept(booted.disk).iter().map(|p| p.number).collect();
    let original = format!("/dev/{}", booted.disk.name);
    copy.finish(&open(&original)?, booted.disk.bytes, &keep, &identity)
}

/// Waits for the disk with that name. Facts of all disks are read again after each that appears.
fn await_target(drivers: &mut Drivers, asked: &Install) -> Result<(Candidate, Disk), InitError> {
    let deadline = boottime_ms() + TARGET_DEADLINE_MS;
    let uevents = Uevents::subscribe()?;
    loop {
        drivers.present();
        let mut disks = scan();
        disks.retain(|disk| number(Path::new(CLASS), &disk.name, "hidden") != Some(1));
        let mut all: Vec<Candidate> = disks.iter().map(|disk| candidate(Path::new(CLASS), disk)).collect();
        let why = match find_target(&asked.disk, &all) {
            TargetMatch::One(at) => return Ok((all.swap_remove(at), disks.swap_remove(at))),
            TargetMatch::Several(why) => return Err(refused(why)),
            TargetMatch::Missing(why) => why,
        };
        if !uevents.wait_device(deadline)? {
            return Err(refused(why));
        }
    }
}

fn number(class: &Path, disk: &str, file: &str) -> Option<u64> {
    fs::read_to_string(class.join(disk).join(file)).ok()?.trim().parse().ok()
}

/// What /sys has about a disk; each bus has its own files.
fn candidate(class: &Path, disk: &Disk) -> Candidate {
    let sys = class.join(&disk.name);
    let text = |files: &[&str]| {
        let read = |file: &&str| fs::read(sys.join(file)).ok();
        let bytes = files.iter().find_map(read).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    };
    let page = |file: &str| fs::read(sys.join(file)).unwrap_or_default();
    let facts = DiskFacts {
        name: disk.name.clone(),
        vendor: text(&["device/vendor"]),
        model: text(&["device/model", "device/name"]),
        serial: text(&["serial", "device/serial"]),
        wwid: text(&["wwid", "device/wwid"]),
        page80: page("device/vpd_pg80"),
        page83: page("device/vpd_pg83"),
    };
    let read_only = number(class, &disk.name, "ro") == Some(1);
    Candidate { name: disk.name.clone(), bytes: disk.bytes, sector: disk.sector, read_only, facts }
}

/// What is on a disk, read from its ends and from the beginnings of its partitions.
fn look(device: &str, disk: &Disk) -> Result<DiskContent, InitError> {
    let file = open(device)?;
    let read = |at: u64, length: u64| {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        let failed = |source| InitError::File { action: "read", path: device.to_owned(), source };
        file.read_exact_at(&mut bytes, at).map(|()| bytes).map_err(failed)
    };
    let edge = EDGE.min(disk.bytes);
    let (head, tail) = (read(0, edge)?, read(disk.bytes - edge, edge)?);
    let partitions = disk.table.as_ref().map(|table| table.partitions.as_slice()).unwrap_or_default();
    let kind = |p: &Partition| {
        let bytes = read(p.start, p.length.min(PROBE_BYTES as u64)).ok()?;
        signature(&bytes)
    };
    let inside: Vec<_> = partitions.iter().map(|p| (p.number, kind(p))).collect();
    Ok(content(disk.sector, (&head, &tail), &disk.table, &inside))
}

/// The parts of the copy. The root is read through dm-verity as far as that reaches.
fn parts(booted: &BootedDisk<'_>) -> Result<Vec<PartSource>, InitError> {
    let whole = format!("/dev/{}", booted.disk.name);
    let mut parts = Vec::new();
    for p in copied(booted.disk) {
        let part = |from: &str, offset: u64, skipped: u64, length: u64| -> Result<PartSource, InitError> {
            let (file, path) = (open(from)?, from.to_owned());
            Ok(PartSource { number: p.number, file, path, offset, start: p.start + skipped, length })
        };
        let mut verified = 0;
        if p.number == booted.root {
            let name = booted.root_device.trim_start_matches("/dev/");
            let bytes = number(Path::new(CLASS), name, "size").unwrap_or(0).saturating_mul(512);
            verified = bytes.min(p.length);
            parts.push(part(booted.root_device, 0, 0, verified)?);
        }
        if verified < p.length {
            parts.push(part(&whole, p.start + verified, verified, p.length - verified)?);
        }
    }
    Ok(parts)
}

fn open(path: &str) -> Result<File, InitError> {
    File::open(path).map_err(|source| InitError::File { action: "open", path: path.to_owned(), source })
}

/// Opens a disk that nothing else uses: the kernel gives a mounted one, or a member of an array, to no other user.
fn open_alone(device: &str) -> Result<File, InitError> {
    let failed = |source| InitError::File { action: "write", path: device.to_owned(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    // Given back at once: while it is held, no partition of it can be mounted.
    drop(options.clone().custom_flags(O_EXCL).open(device).map_err(failed)?);
    options.open(device).map_err(failed)
}

/// Takes the old table's partitions from the kernel: they would be in the way of the new ESP. One that stays is seen there.
fn forget_partitions(file: &File, target: &Disk) {
    for (number, _) in &target.nodes {
        let _ = block::remove_partition(file, &bare(*number));
    }
}

fn bare(number: u32) -> Partition {
    let (type_guid, partuuid, label) = (Guid::default(), Guid::default(), String::new());
    Partition { number, type_guid, partuuid, label, start: 0, length: 0 }
}

/// Writes the configuration to the new ESP, and reads it back through another mount.
fn configure(
    drivers: &mut Drivers,
    copy: &DiskCopy<'_>,
    disk: &str,
    esp: &Partition,
    text: &str,
) -> Result<(), InitError> {
    let device = format!("/dev/{}", partition_name(disk, esp.number));
    let added = block::add_partition(copy.file, esp);
    added.map_err(|e| InitError::File {
        action: "add a partition to",
        path: copy.device.to_owned(),
        source: e.into(),
    })?;
    drivers.need("fs-vfat");
    let path = Path::new(MOUNT_POINT).join(ESP_DIR).join(ESP_FILE);
    let failed = |action| {
        let path = format!("{device}:/{ESP_DIR}/{ESP_FILE}");
        move |source| InitError::File { action, path, source }
    };
    on_volume(&device, MsFlags::empty(), || write_file(&path, text.as_bytes()).map_err(failed("write")))?;
    let now = on_volume(&device, MsFlags::MS_RDONLY, || fs::read(&path).map_err(failed("read")))?;
    if now != text.as_bytes() {
        return Err(refused(format!("{device} does not keep what is written to it")));
    }
    let removed = block::remove_partition(copy.file, esp);
    removed.map_err(|e| InitError::Kernel("remove a partition that was in use for the configuration", e))?;
    copy.drop_cache()
}

fn on_volume<T>(
    device: &str,
    flags: MsFlags,
    work: impl FnOnce() -> Result<T, InitError>,
) -> Result<T, InitError> {
    let flags = flags | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let (source, target) = (device.to_owned(), MOUNT_POINT.to_owned());
    let step = BootStep::Mount(Mount {
        source,
        target,
        fstype: "vfat",
        flags,
        data: String::new(),
        optional: false,
    });
    apply(&step).map_err(|source| InitError::Step { step: step.describe(), source })?;
    let done = work();
    // In order, so that all of it is on the disk: a lazy one would leave that to a later moment.
    let unmounted = umount2(MOUNT_POINT, MntFlags::empty());
    let value = done?;
    unmounted.map_err(|e| InitError::Kernel("unmount the new ESP", e))?;
    Ok(value)
}

fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn random_guid() -> Result<Guid, InitError> {
    let failed =
        |source| InitError::File { action: "make an identity for", path: "the copy".to_owned(), source };
    let text = machine_id::random().map_err(failed)?;
    Guid::parse(&text).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::gpt::GptError;
    use orlop_config::Problem;

    fn disk(name: &str, bytes: u64) -> Disk {
        Disk { name: name.into(), bytes, sector: 512, table: Err(GptError::None), nodes: vec![] }
    }

    #[test]
    fn facts_of_each_bus_are_found() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("parent"))
                .and_then(|()| fs::write(path, text))
                .expect("fixture");
        };
        for (file, text) in [
            ("nvme0n1/device/serial", "S1  \n"),
            ("nvme0n1/device/model", "A disk \n"),
            ("nvme0n1/wwid", "eui.01\n"),
            ("vdb/serial", "S2"),
            ("vdb/ro", "1\n"),
            ("mmcblk0/device/name", "SD64G\n"),
            ("mmcblk0/device/serial", "0x12\n"),
            ("sda/device/vpd_pg80", "\0\u{1}\0\u{2}S3"),
        ] {
            write(file, text);
        }
        let found = |name: &str| candidate(dir.path(), &disk(name, 1 << 30));
        let nvme = found("nvme0n1").facts;
        assert_eq!(
            (nvme.serial.as_str(), nvme.model.as_str(), nvme.wwid.as_str()),
            ("S1", "A disk", "eui.01")
        );
        assert!(found("vdb").read_only && found("vdb").facts.serial == "S2");
        let card = found("mmcblk0");
        assert!(!card.read_only && card.facts.model == "SD64G" && card.facts.serial == "0x12");
        let all = ["nvme0n1", "vdb", "mmcblk0", "sda"].map(found);
        for (name, want) in [("s1", 0), ("virtio-S2", 1), ("mmc-SD64G_0x12", 2), ("S3", 3)] {
            assert_eq!(find_target(name, &all), TargetMatch::One(want), "{name}");
        }
    }

    #[test]
    fn a_disk_is_looked_at_from_both_ends() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("disk");
        let device = path.to_string_lossy().into_owned();
        let mut bytes = vec![0; 3 << 20];
        let mut found = |change: &dyn Fn(&mut Vec<u8>)| {
            change(&mut bytes);
            fs::write(&path, &bytes).expect("fixture");
            look(&device, &disk("vdb", bytes.len() as u64)).expect("readable")
        };
        assert_eq!(found(&|_| ()), DiskContent::Empty);
        assert!(matches!(found(&|bytes| bytes[(3 << 20) - 1] = 1), DiskContent::Holds(_)));
        // Between the ends there is no table that leads to it.
        assert_eq!(found(&|bytes| bytes.rotate_right(1 << 20 | 7)), DiskContent::Empty);
        assert!(look(&device, &disk("vdb", 4 << 20)).is_err(), "shorter than it says");
    }

    #[test]
    fn half_of_a_configuration_installs_nothing() {
        let head = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n";
        let text =
            |body: &str| Source { name: "esp".into(), origin: "ESP".into(), text: format!("{head}{body}") };
        let whole = load(&[text("install: {disk: S1}")], &[]);
        assert_eq!(mistakes(&whole, 1, &FoundSources::default()), "");
        let half = load(&[text("install: {disk: S1}"), text("nod: {}")], &[]);
        assert!(mistakes(&half, 2, &FoundSources::default()).contains("nod"));
        let unread =
            Problem { source: "drive".into(), reason: "cannot be read".into(), ..Problem::default() };
        let found = FoundSources { problems: vec![unread], ..FoundSources::default() };
        assert!(mistakes(&whole, 1, &found).contains("cannot be read"));
    }
}
