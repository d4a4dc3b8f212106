//! What CSI drivers are asked, and what they can do.
//!
//! In: nothing. Out: values that `agent-plugins` sends. Invariant: neither secrets nor what may hold tokens is shown.

use std::collections::BTreeMap;
use std::fmt;

use agent_types::time::Wall;

/// What a driver's node service can do (`NodeGetCapabilities`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// It makes volumes ready on the node before it publishes them (`STAGE_UNSTAGE_VOLUME`).
    pub stages: bool,
    /// It gives volumes their group itself (`VOLUME_MOUNT_GROUP`).
    pub gives_groups: bool,
    /// It distinguishes one writer from several on one node (`SINGLE_NODE_MULTI_WRITER`).
    pub tells_writers: bool,
    /// It makes what a volume holds larger (`EXPAND_VOLUME`).
    pub expands: bool,
    /// It says how full volumes are (`GET_VOLUME_STATS`).
    pub measures: bool,
    /// It says whether volumes are well (`VOLUME_CONDITION`).
    pub tells_condition: bool,
}

/// Who may use a volume at once, as drivers know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None that is known.
    Unknown,
    /// `SINGLE_NODE_WRITER`
    SingleNodeWriter,
    /// `SINGLE_NODE_SINGLE_WRITER`
    SingleNodeSingleWriter,
    /// `SINGLE_NODE_MULTI_WRITER`
    SingleNodeMultiWriter,
    /// `MULTI_NODE_READER_ONLY`
    MultiNodeReaderOnly,
    /// `MULTI_NODE_MULTI_WRITER`
    MultiNodeMultiWriter,
}

impl Access {
    /// Of an access mode of the API; without one it is `ReadWriteOnce`.
    #[must_use]
    pub fn of(mode: Option<&str>, tells_writers: bool) -> Access {
        match (mode.unwrap_or("ReadWriteOnce"), tells_writers) {
            ("ReadWriteOnce", true) => Access::SingleNodeMultiWriter,
            ("ReadWriteOncePod", true) => Access::SingleNodeSingleWriter,
            ("ReadWriteOnce" | "ReadWriteOncePod", false) => Access::SingleNodeWriter,
            ("ReadOnlyMany", _) => Access::MultiNodeReaderOnly,
            ("ReadWriteMany", _) => Access::MultiNodeMultiWriter,
            _ => Access::Unknown,
        }
    }
}

/// How a volume is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// May be empty.
    pub fs_type: String,
    /// `mountOptions`.
    pub flags: Vec<String>,
    /// The driver gives it this group.
    pub group: Option<u32>,
    /// As a block device: then there is neither file system, nor flags, nor group.
    pub block: bool,
    /// Who may use it at once.
    pub access: Access,
}

/// A token as a driver gets it.
#[derive(Clone)]
pub struct DriverToken {
    /// For whom.
    pub audience: String,
    /// The token.
    pub text: String,
    /// When it ends.
    pub ends: Wall,
}

/// What a driver is asked to make ready on the node.
#[derive(Clone, PartialEq, Eq)]
pub struct Stage {
    /// What the driver knows the volume by.
    pub handle: String,
    /// Where it is to be.
    pub path: String,
    /// How it is used.
    pub capability: Capability,
    /// What the driver's controller says for this node.
    pub attached: BTreeMap<String, String>,
    /// The volume's attributes for the driver.
    pub context: BTreeMap<String, String>,
    /// The driver alone gets these.
    pub secrets: BTreeMap<String, String>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({} at {})", self.handle, self.path)
    }
}

/// What a driver is asked to publish.
#[derive(Clone, PartialEq, Eq)]
pub struct Publish {
    /// What the driver knows the volume by.
    pub handle: String,
    /// Where it is staged, if it is.
    pub staging: Option<String>,
    /// Where it is to be.
    pub target: String,
    /// It is read-only.
    pub read_only: bool,
    /// How it is used.
    pub capability: Capability,
    /// What the driver's controller says for this node.
    pub attached: BTreeMap<String, String>,
    /// The volume's attributes for the driver.
    pub context: BTreeMap<String, String>,
    /// The driver alone gets these.
    pub secrets: BTreeMap<String, String>,
}

impl fmt::Debug for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Publish({} at {})", self.handle, self.target)
    }
}

/// What a driver is asked to make larger.
#[derive(Clone, PartialEq, Eq)]
pub struct Expand {
    /// What the driver knows the volume by.
    pub handle: String,
    /// Where it is published.
    pub path: String,
    /// Where it is staged, if it is.
    pub staging: Option<String>,
    /// How large it is to be at least, bytes.
    pub bytes: i64,
    /// How it is used.
    pub capability: Capability,
    /// The driver alone gets these.
    pub secrets: BTreeMap<String, String>,
}

impl fmt::Debug for Expand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expand({} at {} to {} bytes)", self.handle, self.path, self.bytes)
    }
}

/// What a volume takes, what it has, and how it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of its bytes; `None` from a driver that says nothing of either.
    pub amounts: Option<BytesAndInodes>,
    /// How it is; `None` from a driver that does not say so.
    pub condition: Option<Condition>,
}

/// Amounts of bytes and of inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesAndInodes {
    /// Of its bytes.
    pub bytes: Amounts,
    /// Of its inodes.
    pub inodes: Amounts,
}

/// Whether a volume is well, as its driver sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// It is not.
    pub abnormal: bool,
    /// How it is, for people.
    pub message: String,
}

/// What there is of something. What a driver does not say is 0, as upstream has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// May still be taken.
    pub available: u64,
    /// All.
    pub total: u64,
    /// Is taken.
    pub used: u64,
}
