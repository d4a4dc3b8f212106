//! Why a release is not staged, with the words for a person.

use std::fmt;
use std::io;

use orlop_config::boot_trust::BootRefusal;
use orlop_config::release::{ROOT_FILE, UKI_FILE, VERITY_FILE};
use orlop_config::slots::{SlotName, SlotState};

use super::disk::DiskFault;
use super::slot::area::AreaFault;
use super::slot::record::SlotObstacle;
use super::slot::tree::TreeFault;
use super::source::SourceError;

/// How often a small file is asked for.
pub(crate) const ASKED_MAX: u32 = 3;
const MIB: u64 = 1 << 20;

/// The parts of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPart {
    /// The root's file system.
    Root,
    /// The kernel with its initrd.
    Uki,
}

impl fmt::Display for SlotPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotPart::Root => "root",
            SlotPart::Uki => "UKI",
        })
    }
}

impl SlotPart {
    /// The file of a release that has it.
    pub(crate) fn file(self) -> &'static str {
        match self {
            SlotPart::Root => ROOT_FILE,
            SlotPart::Uki => UKI_FILE,
        }
    }
}

/// Why a release is not staged. The slot that runs is as it was.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// Disk, ESP, record or table.
    #[error(transparent)]
    Disk(#[from] DiskFault),
    /// No slot may be written now.
    #[error(transparent)]
    Obstacle(#[from] SlotObstacle),
    /// The boot record says something else than that this release is being written.
    #[error("the boot record calls slot {slot} {} now, and not writing: it is not staged", state.name())]
    Overtaken {
        /// The slot.
        slot: SlotName,
        /// What the record says.
        state: SlotState,
    },
    /// The release has the root that runs.
    #[error("{version} has the root of slot {slot}, which runs: build the release from a root of its own")]
    SameRoot {
        /// Version.
        version: String,
        /// The slot that runs.
        slot: SlotName,
    },
    /// The firmware would not start it.
    #[error("{version} is not staged: {why}")]
    Firmware {
        /// Version.
        version: String,
        /// What is wrong with its UKI.
        why: BootRefusal,
    },
    /// The slot is too small.
    #[error(
        "{what} of {version} needs {} MiB, slot {slot} has {}: write this disk anew",
        needed.div_ceil(MIB),
        had / MIB
    )]
    TooSmall {
        /// Root, verity tree or UKI.
        what: &'static str,
        /// Version.
        version: String,
        /// Bytes that it needs.
        needed: u64,
        /// The slot.
        slot: SlotName,
        /// Bytes that the slot has.
        had: u64,
    },
    /// The document names files that do not belong together.
    #[error("release {version}: {file} has {found} bytes, and {want} are expected: the release is damaged")]
    Size {
        /// Version.
        version: String,
        /// File.
        file: &'static str,
        /// Bytes by its document.
        found: u64,
        /// Bytes that follow from the other files.
        want: u64,
    },
    /// The source gives no file.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A small file is not the one of the document.
    #[error(
        "{file} from {place} is not the file of the release document; asked {times} times, then the source is left for 10 min",
        times = ASKED_MAX
    )]
    OtherFile {
        /// File.
        file: &'static str,
        /// Source.
        place: String,
    },
    /// The verity tree.
    #[error("{file} from {place}: {fault}", file = VERITY_FILE)]
    Tree {
        /// Source.
        place: String,
        /// What is wrong with it.
        fault: TreeFault,
    },
    /// Blocks of a file.
    #[error("{} from {place}: {fault}", part.file())]
    Blocks {
        /// Root or UKI.
        part: SlotPart,
        /// Source.
        place: String,
        /// What is wrong.
        fault: AreaFault,
    },
    /// The disk fails.
    #[error("{part} of slot {slot} {fault}")]
    ReadBack {
        /// The slot.
        slot: SlotName,
        /// Root, verity tree or UKI.
        part: &'static str,
        /// Which block.
        fault: AreaFault,
    },
    /// The slot's device.
    #[error("{action} {part} of slot {slot}")]
    Device {
        /// What was done.
        action: &'static str,
        /// The slot.
        slot: SlotName,
        /// Root or UKI.
        part: SlotPart,
        /// The system's words.
        #[source]
        source: io::Error,
    },
}

impl StageError {
    /// The source lies or is away: it is left for a while.
    #[must_use]
    pub fn is_of_source(&self) -> bool {
        match self {
            StageError::Source(fault) => fault.is_of_source(),
            StageError::OtherFile { .. } | StageError::Tree { .. } => true,
            StageError::Blocks { fault, .. } => {
                matches!(fault, AreaFault::Mismatch(_) | AreaFault::Fruitless(_))
            }
            _ => false,
        }
    }
}
