//! Disks of a Fibre Channel fabric (`fc`): their names, and their links on the node.
//!
//! In: WWNs and a LUN, or WWIDs; names of links below /dev/disk. Out: names, the device to use. Invariant: a
//! device with several paths is preferred to any one of its paths. Upstream: pkg/volume/fc.

use serde::{Deserialize, Serialize};

/// Links by the way to a disk.
pub const BY_PATH: &str = "disk/by-path";
/// Links by what a disk calls itself.
pub const BY_ID: &str = "disk/by-id";

/// A disk of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fc {
    /// A logical unit of target ports.
    Ports {
        /// `targetWWNs`.
        wwns: Vec<String>,
        /// `lun`.
        lun: i32,
    },
    /// A disk by what it calls itself.
    Ids {
        /// `wwids`.
        wwids: Vec<String>,
    },
}

impl Fc {
    /// What a volume says.
    ///
    /// # Errors
    /// It names no disk.
    pub fn new(wwns: Vec<String>, lun: Option<i32>, wwids: Vec<String>) -> Result<Fc, String> {
        match lun {
            Some(lun) if !wwns.is_empty() => Ok(Fc::Ports { wwns, lun }),
            _ if !wwids.is_empty() => Ok(Fc::Ids { wwids }),
            _ => Err("fc: no fc disk information found. failed to make a new mounter".to_owned()),
        }
    }

    /// What follows the plugin in its unique name (upstream prints lists with blanks, in brackets).
    #[must_use]
    pub fn handle(&self) -> String {
        match self {
            Fc::Ports { wwns, lun } => format!("[{}]:{lun}", wwns.join(" ")),
            Fc::Ids { wwids } => format!("[{}]", wwids.join(" ")),
        }
    }

    /// Its directory.
    #[must_use]
    pub fn directory(&self) -> String {
        match self {
            Fc::Ports { wwns, lun } => format!("{}-lun-{lun}", wwns.join("-")),
            Fc::Ids { wwids } => wwids.iter().map(|id| linked(id)).collect::<Vec<_>>().join("-"),
        }
    }

    /// Where its links are, below the directory of devices.
    #[must_use]
    pub fn links(&self) -> &'static str {
        match self {
            Fc::Ports { .. } => BY_PATH,
            Fc::Ids { .. } => BY_ID,
        }
    }

    /// Which of these links are the disk's: for each of its names the first.
    #[must_use]
    pub fn choose<'n>(&self, names: &'n [String]) -> Vec<&'n str> {
        let mut sorted: Vec<&str> = names.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        let first = |is: &dyn Fn(&str) -> bool| sorted.iter().copied().find(|name| is(name));
        match self {
            Fc::Ports { wwns, lun } => {
                let of = |wwn: &String| {
                    let end = format!("fc-0x{wwn}-lun-{lun}");
                    first(&|name: &str| {
                        name.strip_suffix(end.as_str()).is_some_and(|way| {
                            way.is_empty() || way.starts_with("pci-") && way.ends_with('-')
                        })
                    })
                };
                wwns.iter().filter_map(of).collect()
            }
            Fc::Ids { wwids } => {
                let of = |wwid: &String| {
                    let name = format!("scsi-{}", linked(wwid));
                    first(&|found: &str| found == name)
                };
                wwids.iter().filter_map(of).collect()
            }
        }
    }
}

/// How udev writes an id.
fn linked(wwid: &str) -> String {
    wwid.replace(' ', "_")
}

/// A path of a disk, and the device that joins it with others, if one does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FcPath {
    /// For example `/dev/sdb`.
    pub path: String,
    /// For example `/dev/dm-0`.
    pub joined: Option<String>,
}

/// The device that is to be mounted, of those that were found.
#[must_use]
pub fn device(found: &[FcPath]) -> Option<String> {
    let joined = found.iter().find_map(|f| f.joined.clone());
    joined.or_else(|| found.first().map(|f| f.path.clone()))
}

/// Said when there is none.
pub const NOT_FOUND: &str = "no fc disk found";
