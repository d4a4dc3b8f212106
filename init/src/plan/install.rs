//! The installer's decisions: which disk, may it be written, and what is copied. A first boot with `install` in its
//! configuration copies the disk that it runs from to the one that the configuration names, and to no other.
//!
//! In: the disks with their lasting names, the configuration, the target's content. Out: a target, a verdict, the parts to
//! copy. Invariants: no name that the kernel gives decides; of two disks that fit none is written; a disk with content only
//! with `wipe`; one that has this image already, a node's disk that may have a newer one, and the disk that this boot runs
//! from, never. See docs/howto/install.md.

use super::disk::{Disk, EMPTY_LABEL};
use super::disk_content::{DiskContent, EDGE};
use super::disk_ids::{DiskFacts, names, normal, serial};
use super::gpt::{Partition, Table};
use super::guid::{TYPE_ROOT, TYPE_VAR};
use super::state::{BYTES_MIN, COPY_OFFSET, old_starts};
use orlop_config::node::Install;

/// Ledger name.
pub const PHASE: &str = "init.install";

/// A disk of the machine, as far as the installer decides about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Kernel name.
    pub name: String,
    /// Size, bytes.
    pub bytes: u64,
    /// Logical sector, bytes.
    pub sector: u32,
    /// The kernel refuses writes to it.
    pub read_only: bool,
    /// Its identity.
    pub facts: DiskFacts,
}

impl Candidate {
    /// For messages: device, size, model and serial number.
    #[must_use]
    pub fn shown(&self) -> String {
        let (model, serial) = (self.facts.model.trim(), serial(&self.facts));
        let serial = if serial.is_empty() { "none" } else { serial.as_str() };
        format!("/dev/{} ({} MiB, {model}, serial number {serial})", self.name, self.bytes >> 20)
    }
}

/// The disks that a name fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetMatch {
    /// One: its index.
    One(usize),
    /// None so far; the list of those that are there.
    Missing(String),
    /// Several.
    Several(String),
}

/// Finds the disk with this lasting name.
#[must_use]
pub fn find_target(asked: &str, all: &[Candidate]) -> TargetMatch {
    let wanted = normal(asked);
    let fits = |candidate: &&Candidate| names(&candidate.facts).contains(&wanted);
    let shown = |disks: &[&Candidate]| disks.iter().map(|d| d.shown()).collect::<Vec<_>>().join("; ");
    let found: Vec<&Candidate> = all.iter().filter(fits).collect();
    match found.as_slice() {
        [] => TargetMatch::Missing(format!(
            "no disk of this machine has the name, serial number or WWN \"{asked}\" of install.disk. There are: {}",
            shown(&all.iter().collect::<Vec<_>>())
        )),
        [one] => TargetMatch::One(all.iter().position(|d| d.name == one.name).unwrap_or_default()),
        several => TargetMatch::Several(format!(
            "install.disk \"{asked}\" fits several disks: {}. Give the WWN of one",
            shown(several)
        )),
    }
}

/// What is to be done about a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallVerdict {
    /// Copy.
    Copy,
    /// Nothing is to be done; the node runs here.
    Here(String),
    /// Write nothing, and say this.
    Refuse(String),
}

/// Everything that the verdict depends on.
#[derive(Clone, Copy, Debug)]
pub struct InstallFacts<'a> {
    /// The configuration's wish.
    pub asked: &'a Install,
    /// The name of the source that it is from, as provenance has it.
    pub source: &'a str,
    /// The disk that this boot runs from.
    pub own: &'a Disk,
    /// The disk that fits.
    pub target: &'a Candidate,
    /// What is on it.
    pub content: &'a DiskContent,
    /// It has this image's root ([`has_root_of`]).
    pub installed: bool,
    /// It is a node's, and is not given up to this image: why ([`keeps_its_node`]).
    pub node: Option<&'a str>,
}

/// Has the target the root that this boot runs from, partition `root` of `own`?
#[must_use]
pub fn has_root_of(own: &Disk, root: u32, target: &Disk) -> bool {
    let of = |disk: &Disk| disk.table.as_ref().map(|table| table.partitions.clone()).unwrap_or_default();
    let Some(root) = of(own).into_iter().find(|p| p.number == root) else { return false };
    of(target).iter().any(|p| p.partuuid == root.partuuid)
}

/// Why a disk with a node's state stays as it is for any `wipe`; `None`: it is no node's, or each of its images is older
/// than the one that this boot runs from partition `root` of `own`. After two updates a node's disk has nothing left of the
/// image that it was installed from, and the stick may still be in the machine.
#[must_use]
pub fn keeps_its_node(own: &Disk, root: u32, target: &Disk) -> Option<String> {
    target.state()?;
    let roots = |disk: &Disk| -> Vec<Partition> {
        let all = disk.table.as_ref().map(|table| table.partitions.as_slice()).unwrap_or_default();
        all.iter().filter(|p| p.type_guid == TYPE_ROOT && p.label != EMPTY_LABEL).cloned().collect()
    };
    let mine = roots(own).into_iter().find(|p| p.number == root).map(|p| p.label).unwrap_or_default();
    let is_older = |p: &Partition| match (version(&p.label), version(&mine)) {
        (Some(theirs), Some(mine)) => theirs < mine,
        _ => false,
    };
    let newer: Vec<String> = roots(target).into_iter().filter(|p| !is_older(p)).map(|p| p.label).collect();
    let (newer, mine) = (newer.join(", "), if mine.is_empty() { "unknown" } else { mine.as_str() });
    (!newer.is_empty()).then(|| format!("it has {newer}, and this image is {mine}"))
}

/// The version in the label of a root (`orlop_0.4.0`); `None` for another label.
fn version(label: &str) -> Option<Vec<u64>> {
    label.strip_prefix("orlop_")?.split('.').map(|number| number.parse().ok()).collect()
}

/// What is said of `install` on a disk that has a node's state: only a first boot looks at it.
#[must_use]
pub fn too_late(asked: &Install, source: &str) -> String {
    format!(
        "install.disk \"{}\" of {source} does not count: only a first boot installs, and this disk is a node's. To install \
         another disk, start the machine from a stick",
        asked.disk
    )
}

/// Decides.
#[must_use]
pub fn judge(facts: &InstallFacts<'_>) -> InstallVerdict {
    let (own, target, shown) = (facts.own, facts.target, facts.target.shown());
    let refuse = InstallVerdict::Refuse;
    if target.name == own.name {
        // An installed disk has no `install` on its ESP. Where the machine or the root says it, every boot has it.
        if facts.source == "esp" {
            return refuse(format!(
                "install.disk is the disk that this image runs from: {shown}. Name the other one"
            ));
        }
        return InstallVerdict::Here(format!(
            "install.disk is this disk, {shown}: nothing is to be installed"
        ));
    }
    // A stick that was left in the machine must not take the node's data at its next boot, for any `wipe`.
    if facts.installed {
        return refuse(format!(
            "{shown} has this image already. Remove the stick; to install it once more, erase the disk from another system"
        ));
    }
    if let Some(why) = facts.node {
        return refuse(format!(
            "{shown} is the disk of a node that is not older than this image ({why}), and stays as it is, also with \
             install.wipe. Remove the stick; to give the node up, erase the disk from another system"
        ));
    }
    if target.read_only {
        return refuse(format!("{shown} cannot be written"));
    }
    if target.sector != own.sector {
        return refuse(format!(
            "{shown} has sectors of {} bytes, and this image is for {}: take the image for such disks",
            target.sector, own.sector
        ));
    }
    let needed = bytes_needed(own);
    if target.bytes < needed {
        return refuse(format!("{shown} is too small: {} MiB are needed", needed.div_ceil(1 << 20)));
    }
    match facts.content {
        DiskContent::Holds(found) if !facts.asked.wipe => refuse(format!(
            "{shown} is not empty: it holds {}. To lose all of it, set install.wipe to true",
            found.join(", and ")
        )),
        _ => InstallVerdict::Copy,
    }
}

/// The partitions that the copy has: the image's, without state and without what stands behind them.
#[must_use]
pub fn kept(own: &Disk) -> Vec<&Partition> {
    let all = own.table.as_ref().map(|table| table.partitions.as_slice()).unwrap_or_default();
    all.iter().filter(|p| p.is_systems() && p.type_guid != TYPE_VAR).collect()
}

/// Those of them whose content is copied; an empty slot has none.
#[must_use]
pub fn copied(own: &Disk) -> Vec<&Partition> {
    kept(own).into_iter().filter(|p| p.label != EMPTY_LABEL).collect()
}

/// Where the superblock of an old state partition and its first copy may be on the target, bytes: a first boot makes
/// nothing over them.
#[must_use]
pub fn old_superblocks(own: &Disk) -> Vec<u64> {
    let partitions: Vec<Partition> = kept(own).into_iter().cloned().collect();
    let table = own.table.clone().map(|table| Table { partitions, ..table });
    let copy = Disk { bytes: u64::MAX, table, ..own.clone() };
    old_starts(&copy).into_iter().flat_map(|start| [start, start + COPY_OFFSET]).collect()
}

/// The least size of a target: partitions, state, tables. Bytes.
#[must_use]
pub fn bytes_needed(own: &Disk) -> u64 {
    let end = kept(own).iter().map(|p| p.start + p.length).max().unwrap_or(EDGE);
    end + BYTES_MIN + EDGE
}

#[cfg(test)]
mod tests {
    use super::super::disk::STATE_LABEL;
    use super::super::gpt::Copy;
    use super::super::guid::{Guid, TYPE_ESP, TYPE_ROOT_VERITY};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn own() -> Disk {
        let part = |number, type_guid, label: &str, start: u64| Partition {
            number,
            type_guid,
            partuuid: Guid::from_u128(u128::from(number)),
            label: label.into(),
            start: start * MIB,
            length: 10 * MIB,
        };
        let partitions = vec![
            part(1, TYPE_ESP, "esp", 1),
            part(2, TYPE_ROOT, "orlop_1", 11),
            part(3, TYPE_ROOT_VERITY, "orlop_1_verity", 21),
            part(4, TYPE_ROOT, EMPTY_LABEL, 31),
            part(5, TYPE_ROOT_VERITY, EMPTY_LABEL, 41),
            part(6, TYPE_VAR, STATE_LABEL, 51),
            part(7, Guid::from_u128(7), "config-2", 61),
        ];
        let table = Ok(Table { disk: Guid::default(), copy: Copy::Primary, partitions });
        Disk { name: "sda".into(), bytes: 100 * MIB, sector: 512, table, nodes: vec![] }
    }

    fn candidate(name: &str, serial: &str) -> Candidate {
        let facts = DiskFacts { name: name.into(), serial: serial.into(), ..DiskFacts::default() };
        Candidate { name: name.into(), bytes: 4096 * MIB, sector: 512, read_only: false, facts }
    }

    fn verdict(source: &str, wipe: bool, target: &Candidate, content: &DiskContent) -> InstallVerdict {
        let asked = Install { disk: "s".into(), wipe };
        judge(&InstallFacts {
            asked: &asked,
            source,
            own: &own(),
            target,
            content,
            installed: false,
            node: None,
        })
    }

    fn refused(target: &Candidate, content: &DiskContent) -> String {
        match verdict("esp", false, target, content) {
            InstallVerdict::Refuse(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_disk_fits_or_none_is_taken() {
        let all =
            [candidate("sda", "S1"), candidate("vdb", "s2"), candidate("vdc", "s3"), candidate("vdd", "s3")];
        assert_eq!(find_target("S2", &all), TargetMatch::One(1));
        assert_eq!(find_target("/dev/disk/by-id/virtio-s2", &all), TargetMatch::One(1));
        let TargetMatch::Several(why) = find_target("s3", &all) else { panic!("two") };
        assert!(why.contains("/dev/vdc") && why.contains("/dev/vdd") && !why.contains("/dev/vdb"), "{why}");
        for missing in ["vdb", "s", ""] {
            let TargetMatch::Missing(why) = find_target(missing, &all) else { panic!("{missing}") };
            assert!(why.contains("/dev/sda") && why.contains("serial number s2"), "{why}");
        }
    }

    #[test]
    fn an_empty_or_half_written_disk_is_taken() {
        let target = candidate("vdb", "s");
        for content in [DiskContent::Empty, DiskContent::Unfinished] {
            assert_eq!(verdict("esp", false, &target, &content), InstallVerdict::Copy);
        }
    }

    #[test]
    fn content_only_on_purpose() {
        let (target, holds) = (candidate("vdb", "s"), DiskContent::Holds(vec!["ext4".into(), "LVM".into()]));
        let why = refused(&target, &holds);
        assert!(
            why.contains("/dev/vdb") && why.contains("ext4, and LVM") && why.contains("install.wipe"),
            "{why}"
        );
        assert_eq!(verdict("esp", true, &target, &holds), InstallVerdict::Copy);
    }

    #[test]
    fn a_stick_that_stayed_in_takes_no_node() {
        let (own, target) = (own(), candidate("vdb", "s"));
        let disk = Disk { name: "vdb".into(), ..own.clone() };
        assert!(has_root_of(&own, 2, &disk) && !has_root_of(&own, 9, &disk));
        let mut other = disk;
        if let Ok(table) = &mut other.table {
            table.partitions.retain(|p| p.number != 2);
        }
        assert!(!has_root_of(&own, 2, &other));
        let (asked, content) =
            (Install { disk: "s".into(), wipe: true }, DiskContent::Holds(vec!["it".into()]));
        let facts = InstallFacts {
            asked: &asked,
            source: "esp",
            own: &own,
            target: &target,
            content: &content,
            installed: true,
            node: None,
        };
        let InstallVerdict::Refuse(why) = judge(&facts) else { panic!("refused") };
        assert!(why.contains("has this image already"), "{why}");
        assert_eq!(judge(&InstallFacts { installed: false, ..facts }), InstallVerdict::Copy);
    }

    /// The disk of a node with these images in its slots, as `own` has the places.
    fn node_with(labels: [&str; 2], is_node: bool) -> Disk {
        let mut disk = Disk { name: "vdb".into(), ..own() };
        if let Ok(table) = &mut disk.table {
            table.partitions.retain(|p| is_node || p.type_guid != TYPE_VAR);
            for (number, label) in [2, 4].into_iter().zip(labels) {
                let slot = table.partitions.iter_mut().find(|p| p.number == number).expect("a slot");
                (slot.label, slot.partuuid) = (label.into(), Guid::from_u128(u128::from(number) << 64));
            }
        }
        disk
    }

    #[test]
    fn a_stick_that_stayed_in_takes_no_node_after_two_updates_either() {
        let mut own = own();
        if let Ok(table) = &mut own.table {
            table.partitions[1].label = "orlop_0.4.0".into();
        }
        for (labels, is_node, kept) in [
            (["orlop_0.6.0", "orlop_0.5.0"], true, Some("orlop_0.6.0, orlop_0.5.0")),
            (["orlop_0.3.0", "orlop_0.10.0"], true, Some("orlop_0.10.0")),
            // Another build of the same version, and one whose version says nothing.
            (["orlop_0.4.0", EMPTY_LABEL], true, Some("orlop_0.4.0")),
            (["orlop_next", EMPTY_LABEL], true, Some("orlop_next")),
            (["orlop_0.3.9", EMPTY_LABEL], true, None),
            (["orlop_0.2.0", "orlop_0.3.0"], true, None),
            // A copy that was never a node.
            (["orlop_0.6.0", EMPTY_LABEL], false, None),
        ] {
            let target = node_with(labels, is_node);
            assert!(!has_root_of(&own, 2, &target));
            let why = keeps_its_node(&own, 2, &target);
            assert_eq!(why, kept.map(|k| format!("it has {k}, and this image is orlop_0.4.0")), "{labels:?}");
            let (asked, content) = (
                Install { disk: "s".into(), wipe: true },
                DiskContent::Holds(vec!["partition table".into()]),
            );
            let facts = InstallFacts {
                asked: &asked,
                source: "esp",
                own: &own,
                target: &candidate("vdb", "s"),
                content: &content,
                installed: false,
                node: why.as_deref(),
            };
            match judge(&facts) {
                InstallVerdict::Copy => assert_eq!(kept, None, "{labels:?}"),
                InstallVerdict::Refuse(said) => {
                    assert!(kept.is_some() && said.contains("also with install.wipe"), "{said}");
                }
                InstallVerdict::Here(said) => panic!("{said}"),
            }
        }
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(
            version("orlop_0.9.0") < version("orlop_0.10.0") && version("orlop_1") < version("orlop_1.0")
        );
        for none in ["orlop_", "orlop_1.x", "other_1", "_empty", "orlop_1_verity"] {
            assert_eq!(version(none), None, "{none}");
        }
    }

    #[test]
    fn a_node_that_is_asked_to_install_says_that_it_does_not() {
        let said = too_late(&Install { disk: "S1".into(), wipe: true }, "fw-cfg");
        assert!(
            said.starts_with("install.disk \"S1\" of fw-cfg does not count: only a first boot"),
            "{said}"
        );
    }

    #[test]
    fn the_disk_of_this_boot_is_never_written() {
        let target = candidate("sda", "s");
        for wipe in [false, true] {
            let InstallVerdict::Refuse(why) = verdict("esp", wipe, &target, &DiskContent::Empty) else {
                panic!("refused")
            };
            assert!(why.contains("runs from"), "{why}");
            // What the machine or the root says is there in the boots of the installed disk, too.
            for lasting in ["image", "smbios", "fw-cfg", "cmdline", "drive"] {
                let verdict = verdict(lasting, wipe, &target, &DiskContent::Empty);
                assert!(matches!(verdict, InstallVerdict::Here(_)), "{lasting}");
            }
        }
    }

    #[test]
    fn a_disk_that_cannot_hold_the_copy() {
        let with = |change: fn(&mut Candidate)| {
            let mut target = candidate("vdb", "s");
            change(&mut target);
            refused(&target, &DiskContent::Empty)
        };
        assert!(with(|t| t.read_only = true).contains("cannot be written"));
        assert!(with(|t| t.sector = 4096).contains("sectors of 4096 bytes"));
        // Five partitions to 51 MiB, the state partition, the tables.
        assert_eq!(bytes_needed(&own()), (51 + 512 + 1) * MIB);
        assert!(with(|t| t.bytes = (51 + 512 + 1) * MIB - 512).contains("564 MiB are needed"));
        let fits = Candidate { bytes: 564 * MIB, ..candidate("vdb", "s") };
        assert_eq!(verdict("esp", false, &fits, &DiskContent::Empty), InstallVerdict::Copy);
    }

    #[test]
    fn neither_state_nor_foreign_partitions_go_along() {
        let own = own();
        let numbers = |list: Vec<&Partition>| list.iter().map(|p| p.number).collect::<Vec<_>>();
        assert_eq!((numbers(kept(&own)), numbers(copied(&own))), (vec![1, 2, 3, 4, 5], vec![1, 2, 3]));
        // The state will begin behind them, also where the stick ends there.
        let mut full = own.clone();
        full.bytes = 51 * MIB;
        for disk in [&own, &full] {
            assert_eq!(old_superblocks(disk), [51 * MIB, 51 * MIB + COPY_OFFSET]);
        }
    }
}
