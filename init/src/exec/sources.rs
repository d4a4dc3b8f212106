//! Collects the first-boot configuration: every source is looked at, read whole and bounded, and handed on as
//! text. A source that is there but cannot be read is a problem with its name; one that is absent is normal.

use super::devices::read_at;
use super::drivers::Drivers;
use super::steps::apply;
use super::{late_media, platform};
use crate::plan::change::ORIGIN;
use crate::plan::cmdline::BootArgs;
use crate::plan::disk::Disk;
use crate::plan::guid::Guid;
use crate::plan::kept::{FirstBootRecord, complete, is_medium};
use crate::plan::mounts::SYSROOT;
use crate::plan::source::{BYTES_MAX, DRIVES_MAX, Document, Kind, drive_file, is_node_config};
use crate::plan::state::partition_name;
use crate::plan::step::{BootStep, Mount};
use crate::plan::{fat, smbios, volume};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::mount::{MntFlags, MsFlags, umount2};
use orlop_config::Problem;
use orlop_config::base64;
use orlop_config::error_chain::chain;
use orlop_config::platform::{KEPT_DIR, KEPT_DOCUMENT};
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const IMAGE: &str = "/sysroot/usr/share/orlop/node-config.yaml";
const IMAGE_ORIGIN: &str = "image:/usr/share/orlop/node-config.yaml";
const FW_CFG_ORIGIN: &str = "fw_cfg:opt/org.orlop/config";
const METADATA_ORIGIN: &str = "the platform's metadata, kept since the first boot";
const FW_CFG: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/org.orlop/config/raw";
/// The firmware's table of SMBIOS structures.
pub(super) const DMI: &str = "/sys/firmware/dmi/tables/DMI";
const CREDENTIAL: &str = "orlop.config";
const ESP_FILE: &str = "orlop/node-config.yaml";
/// Its directory.
const ESP_DIR: &str = "orlop";
/// Where a volume is mounted while it is read.
const MOUNT_POINT: &str = "/run/orlop/volume";

/// What was found.
#[derive(Debug)]
pub struct FoundSources {
    /// In rising precedence.
    pub documents: Vec<Document>,
    /// Sources that are there but unusable.
    pub problems: Vec<Problem>,
    /// The state partition's word about the first boot.
    pub kept: FirstBootRecord,
    /// One of the unusable ones is a drive or the ESP's file.
    pub unreadable_medium: bool,
    /// Drives and ESP that were not read, because this is not the first boot.
    pub ignored: Vec<String>,
}

impl Default for FoundSources {
    fn default() -> FoundSources {
        let (documents, problems, ignored) = (Vec::new(), Vec::new(), Vec::new());
        FoundSources { documents, problems, kept: FirstBootRecord::Absent, unreadable_medium: false, ignored }
    }
}

/// Where sources are looked for.
#[derive(Clone, Copy, Debug)]
pub struct SourceLocations<'a> {
    /// The system's disk.
    pub disk: &'a Disk,
    /// PARTUUID of the ESP that was booted from, if known.
    pub esp: Option<Guid>,
    /// The command line.
    pub args: &'a BootArgs,
}

/// Collects all sources. Drives and the ESP are read only where `kept` or the command line says so; else init looks at
/// their labels, mounts no file system, and takes the documents that an earlier boot kept.
#[must_use]
pub fn collect(drivers: &mut Drivers, places: SourceLocations<'_>, kept: FirstBootRecord) -> FoundSources {
    // A controller's driver is loaded when its ports have answered: what is plugged in there shows itself then.
    // That calls for drivers in turn: a bus's devices, then the CD-ROM at one of them.
    drivers.settle();
    while drivers.present() {}
    let live = kept.reads_media(places.args.drives_always);
    if live {
        late_media::wait(drivers);
    }
    let mut found = FoundSources::default();
    found.file(Kind::Image, IMAGE_ORIGIN, Path::new(IMAGE));
    found.esp(drivers, places, live);
    found.drives(drivers, places.disk, live);
    // Not there before the state partition is.
    found.metadata(Path::new(SYSROOT));
    found.file(Kind::FwCfg, FW_CFG_ORIGIN, Path::new(FW_CFG));
    found.smbios();
    found.cmdline(places.args);
    complete(&mut found.documents, &kept);
    if let FirstBootRecord::Unknown(why) = &kept {
        found.problem(
            None,
            "first boot",
            &format!("the text that it accepted from drives and the ESP does not count: {why}"),
        );
    }
    found.kept = kept;
    found
}

/// Collects them once more after the hand-over, when the platform's metadata service has answered. Drives and the ESP are not
/// looked at: what counts of them is in `kept`.
#[must_use]
pub fn collect_again(args: &BootArgs, kept: FirstBootRecord) -> FoundSources {
    let mut found = FoundSources::default();
    found.file(Kind::Image, IMAGE_ORIGIN, Path::new(IMAGE.strip_prefix(SYSROOT).unwrap_or(IMAGE)));
    found.metadata(Path::new("/"));
    found.file(Kind::FwCfg, FW_CFG_ORIGIN, Path::new(FW_CFG));
    found.smbios();
    found.cmdline(args);
    complete(&mut found.documents, &kept);
    found.kept = kept;
    found
}

impl FoundSources {
    /// The same sources with this text as the node's own document; `None`: without one.
    pub fn own_document(&mut self, text: Option<&str>) {
        self.documents.retain(|document| document.kind != Kind::Node);
        let document =
            |text: &str| Document { kind: Kind::Node, origin: ORIGIN.into(), text: text.into(), kept: false };
        self.documents.extend(text.map(document));
        self.documents.sort_by_key(|document| document.kind);
    }

    /// User data that the provisioning unit has accepted and kept on this machine.
    fn metadata(&mut self, root: &Path) {
        if !platform::has_user_data(root) {
            return;
        }
        let path = root.join("var").join(KEPT_DIR).join(KEPT_DOCUMENT);
        self.file(Kind::Metadata, METADATA_ORIGIN, &path);
    }

    fn problem(&mut self, kind: Option<Kind>, origin: &str, reason: &str) {
        self.unreadable_medium |= kind.is_some_and(is_medium);
        self.problems.push(Problem { source: origin.into(), reason: reason.into(), ..Problem::default() });
    }

    fn document(&mut self, kind: Kind, origin: &str, bytes: Vec<u8>) {
        match String::from_utf8(bytes) {
            Ok(text) => self.documents.push(Document { kind, origin: origin.into(), text, kept: false }),
            Err(e) => {
                self.problem(
                    Some(kind),
                    origin,
                    &format!("is ignored: it is not UTF-8 text ({})", e.utf8_error()),
                );
            }
        }
    }

    fn file(&mut self, kind: Kind, origin: &str, path: &Path) {
        match read(path) {
            Ok(bytes) => self.document(kind, origin, bytes),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => self.problem(Some(kind), origin, &format!("is ignored: it cannot be read: {e}")),
        }
    }

    fn esp(&mut self, drivers: &mut Drivers, places: SourceLocations<'_>, live: bool) {
        let Some(partition) = places.disk.esp(places.esp) else { return };
        let device = format!("/dev/{}", partition_name(&places.disk.name, partition.number));
        let origin = format!("ESP {device}:/{ESP_FILE}");
        if !fat::may_hold(ESP_DIR, |at, length| read_at(&device, at, length).ok()) {
            return;
        }
        if !live {
            return self.ignored.push(origin);
        }
        drivers.need("fs-vfat");
        self.on_volume(Kind::Esp, (&device, "vfat"), &origin, |found, root| {
            found.file(Kind::Esp, &origin, &root.join(ESP_FILE))
        });
    }

    /// Every block device but the system's own disk and the partitions that the system has there: a provisioner may
    /// have put a partition of its own behind them.
    fn drives(&mut self, drivers: &mut Drivers, own: &Disk, live: bool) {
        let mut names: Vec<String> = fs::read_dir("/sys/class/block")
            .map(|d| d.flatten().filter_map(|e| e.file_name().into_string().ok()).collect())
            .unwrap_or_default();
        names.retain(|n| {
            !["loop", "ram", "zram", "dm-", "fd"].iter().any(|p| n.starts_with(p)) && !is_systems(n, own)
        });
        names.sort();
        for name in names {
            let device = format!("/dev/{name}");
            let Some(volume) = probe(&device) else { continue };
            let Some(file) = drive_file(&volume.label) else { continue };
            if !live {
                self.ignored.push(format!("drive {device} ({})", volume.label));
                continue;
            }
            let origin = format!("drive {device} ({}):/{file}", volume.label);
            if self.documents.iter().filter(|d| d.kind == Kind::Drive).count() >= DRIVES_MAX {
                let reason = format!("is ignored: {DRIVES_MAX} drives have a configuration already");
                self.problem(Some(Kind::Drive), &origin, &reason);
                continue;
            }
            drivers.need(&format!("fs-{}", volume.fstype));
            self.on_volume(Kind::Drive, (&device, volume.fstype), &origin, |found, root| {
                found.drive(&origin, &root.join(file));
            });
        }
    }

    /// Another system's user data is not ours to judge.
    fn drive(&mut self, origin: &str, path: &Path) {
        let before = self.documents.len();
        self.file(Kind::Drive, origin, path);
        if self.documents.len() > before && self.documents.last().is_some_and(|d| !is_node_config(&d.text)) {
            self.documents.pop();
        }
    }

    fn on_volume(
        &mut self,
        kind: Kind,
        (device, fstype): (&str, &'static str),
        origin: &str,
        work: impl FnOnce(&mut FoundSources, &Path),
    ) {
        let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let (source, target) = (device.to_string(), MOUNT_POINT.to_string());
        let mount = Mount { source, target, fstype, flags, data: String::new(), optional: false };
        if let Err(e) = apply(&BootStep::Mount(mount)) {
            self.problem(Some(kind), origin, &format!("cannot be looked for: {}", chain(&e)));
            return;
        }
        work(self, Path::new(MOUNT_POINT));
        let _ = umount2(MOUNT_POINT, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(MOUNT_POINT);
    }

    fn smbios(&mut self) {
        let Ok(table) = fs::read(DMI) else { return };
        let origin = "smbios:type 11 orlop.config";
        match smbios::credential(&table, CREDENTIAL) {
            None => {}
            Some(smbios::Credential::Value(bytes)) => self.document(Kind::Smbios, origin, bytes),
            Some(smbios::Credential::BadBase64) => {
                self.problem(None, origin, "is ignored: it is not base64");
            }
        }
    }

    fn cmdline(&mut self, args: &BootArgs) {
        let origin = "cmdline:orlop.config";
        for text in &args.configs {
            match base64::decode(text) {
                Some(bytes) => self.document(Kind::Cmdline, origin, bytes),
                None => self.problem(None, origin, "is ignored: it is not base64"),
            }
        }
    }
}

/// The system's disk as a whole, or a partition of it that is the system's. All count as the system's while the
/// partitions are unknown.
fn is_systems(name: &str, own: &Disk) -> bool {
    let mut others = own.table.iter().flat_map(|table| &table.partitions).filter(|p| !p.is_systems());
    is_part_of(name, &own.name) && !others.any(|p| partition_name(&own.name, p.number) == name)
}

/// The disk or one of its partitions (`state::partition_name`).
fn is_part_of(name: &str, disk: &str) -> bool {
    let number = |rest: &str| rest.parse::<u32>().is_ok_and(|n| partition_name(disk, n) == name);
    name.strip_prefix(disk).is_some_and(|rest| rest.is_empty() || number(rest.trim_start_matches('p')))
}

/// Reads as much of the beginning as there is.
fn probe(device: &str) -> Option<volume::Volume> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(device).ok()?;
    let mut bytes = Vec::new();
    file.take(volume::PROBE_BYTES as u64).read_to_end(&mut bytes).ok()?;
    volume::probe(&bytes)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(path, BYTES_MAX)
}

/// Reads a regular file of at most so many bytes; no link is followed.
pub(super) fn read_at_most(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it is larger than {} MiB", bytes_max >> 20)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::disk::STATE_LABEL;
    use crate::plan::gpt::{Copy, GptError, Partition, Table};
    use crate::plan::guid::{TYPE_ESP, TYPE_ROOT, TYPE_ROOT_VERITY, TYPE_VAR};

    #[test]
    fn files_are_bounded_and_regular() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("f");
        let mut found = FoundSources::default();
        found.file(Kind::Esp, "ESP", &path);
        assert!(found.documents.is_empty() && found.problems.is_empty());
        fs::write(&path, b"kind: NodeConfig").expect("fixture");
        found.file(Kind::Esp, "ESP", &path);
        assert_eq!(found.documents[0].text, "kind: NodeConfig");
        fs::write(&path, vec![b'x'; 1 << 20 | 1]).expect("fixture");
        found.file(Kind::Esp, "ESP", &path);
        fs::write(&path, [0xff, 0xfe]).expect("fixture");
        found.file(Kind::Esp, "ESP", &path);
        found.file(Kind::Esp, "ESP", dir.path());
        let want = ["larger than 1 MiB", "not UTF-8", "not a regular file"];
        assert_eq!(found.problems.len(), want.len());
        for (problem, want) in found.problems.iter().zip(want) {
            assert!(problem.reason.contains(want), "{problem}");
        }
        assert!(found.unreadable_medium);
    }

    #[test]
    fn a_node_has_one_document_of_its_own_below_the_command_line() {
        let document = |kind: Kind| Document { kind, origin: "x".into(), text: "x".into(), kept: false };
        let mut found = FoundSources {
            documents: vec![document(Kind::Image), document(Kind::Cmdline), document(Kind::Cmdline)],
            ..FoundSources::default()
        };
        let kinds = |found: &FoundSources| found.documents.iter().map(|d| d.kind).collect::<Vec<_>>();
        for text in ["one", "two"] {
            found.own_document(Some(text));
            assert_eq!(kinds(&found), [Kind::Image, Kind::Node, Kind::Cmdline, Kind::Cmdline]);
            assert_eq!(found.documents[1].text, text);
        }
        found.own_document(None);
        assert_eq!(kinds(&found), [Kind::Image, Kind::Cmdline, Kind::Cmdline]);
    }

    #[test]
    fn command_line_documents() {
        let roothash = crate::plan::cmdline::RootHash([0; 32]);
        let configs = vec!["a2luZDogTm9kZUNvbmZpZw==".into(), "%".into()];
        let (sets, resets, mistakes) = (vec![], vec![], vec![]);
        let args = BootArgs { roothash, configs, sets, drives_always: false, resets, mistakes };
        let mut found = FoundSources::default();
        found.cmdline(&args);
        assert_eq!(found.documents[0].text, "kind: NodeConfig");
        assert_eq!(found.problems.len(), 1);
    }

    #[test]
    fn a_partition_behind_the_systems_may_be_a_drive() {
        let part = |number, type_guid, label: &str| {
            let (partuuid, label) = (Guid::default(), label.to_string());
            Partition { number, type_guid, partuuid, label, start: 0, length: 0 }
        };
        let partitions = vec![
            part(1, TYPE_ESP, "esp"),
            part(2, TYPE_ROOT, "orlop_1"),
            part(3, TYPE_ROOT_VERITY, "orlop_1_verity"),
            part(4, TYPE_VAR, STATE_LABEL),
            part(5, Guid::default(), "config-2"),
            part(6, TYPE_VAR, "another system's"),
        ];
        let table = Ok(Table { disk: Guid::default(), copy: Copy::Primary, partitions });
        let own = Disk { name: "vda".into(), bytes: 0, sector: 512, table, nodes: vec![] };
        for systems in ["vda", "vda1", "vda2", "vda3", "vda4", "vda7"] {
            assert!(is_systems(systems, &own), "{systems}");
        }
        for other in ["vda5", "vda6", "vdb", "vdb1"] {
            assert!(!is_systems(other, &own), "{other}");
        }
        let unread = Disk { table: Err(GptError::Unreadable), ..own };
        assert!(is_systems("vda5", &unread));
    }

    #[test]
    fn own_partitions() {
        assert!(is_part_of("vda3", "vda") && is_part_of("vda", "vda") && is_part_of("nvme0n1p2", "nvme0n1"));
        for (other, disk) in [
            ("vdb1", "vda"),
            ("vdaa", "vda"),
            ("nvme0n10", "nvme0n1"),
            ("nvme0n10p1", "nvme0n1"),
            ("nvme0n1p", "nvme0n1"),
            ("vdap1", "vda"),
        ] {
            assert!(!is_part_of(other, disk), "{other}");
        }
    }
}
