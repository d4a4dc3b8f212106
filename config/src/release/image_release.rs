//! The release document: what an image consists of, and which nodes may take it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::channel::ChannelDocument;
use super::envelope::{Envelope, SignatureCheck, SignedDocument};
use super::trust::{KeyRole, NUMBER_MAX, TrustDocument};
use super::values::{HexDigest, check_count, check_name};
use super::{DocumentError, DocumentFault, DocumentName, ReleaseVersion};

/// Bytes of a block of the root, of its verity tree and of the list of the UKI's blocks.
pub const BLOCK_BYTES: u64 = 4096;
/// Digest of the verity tree, as the kernel names it.
pub const VERITY_ALGORITHM: &str = "blake2b-256";
/// The root's file system, without the zeros behind it that fill the slot.
pub const ROOT_FILE: &str = "root.erofs";
/// The verity tree of the whole slot, compressed.
pub const VERITY_FILE: &str = "root.verity.gz";
/// The UKI.
pub const UKI_FILE: &str = "orlop.efi";
/// Digests of the UKI's blocks, one after another; the last block is filled with zeros.
pub const UKI_BLOCKS_FILE: &str = "orlop.efi.blocks";
/// The packages of the image.
pub const SBOM_FILE: &str = "sbom.json";
/// Every release has these files.
pub const RELEASE_FILES: [&str; 5] = [ROOT_FILE, VERITY_FILE, UKI_FILE, UKI_BLOCKS_FILE, SBOM_FILE];

/// Most files of a release.
const FILES_MAX: usize = 16;
/// Largest file, bytes.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// Largest slot, blocks: 16 GiB.
const ROOT_BLOCKS_MAX: u64 = 4 << 20;

/// A release document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseDocument {
    /// Product.
    pub product: String,
    /// Architecture, as systemd names it (`x86-64`).
    pub arch: String,
    /// Version.
    pub version: ReleaseVersion,
    /// Rollback index: a node does not take a release with a lower one than its floor.
    pub generation: u64,
    /// After a node has committed this release, it takes no release with a lower generation, even if its other slot has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revokes: Option<u64>,
    /// A node with an older version takes another release first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<ReleaseVersion>,
    /// Minor version of Kubernetes, `1.36`.
    pub kubernetes: String,
    /// The root's verity tree.
    pub root: RootTree,
    /// The files next to the document.
    pub files: Vec<ReleaseFile>,
}

/// What leads to a root: the parameters of its verity tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootTree {
    /// Digest of blocks and of the tree, [`VERITY_ALGORITHM`].
    pub algorithm: String,
    /// Root hash.
    pub hash: HexDigest,
    /// Salt.
    pub salt: HexDigest,
    /// Blocks under the tree, of [`BLOCK_BYTES`] each: the slot's.
    pub blocks: u64,
}

/// A file of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseFile {
    /// Name in the directory of the document.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256.
    pub sha256: HexDigest,
}

impl SignedDocument for ReleaseDocument {
    const PAYLOAD_TYPE: &'static str = "application/vnd.orlop.release.v1+json";

    fn name(&self) -> DocumentName {
        DocumentName::Release(self.version)
    }

    fn check(&self) -> Result<(), DocumentFault> {
        check_name("product", &self.product)?;
        check_name("arch", &self.arch)?;
        check_name("kubernetes", &self.kubernetes)?;
        if !(1..=NUMBER_MAX).contains(&self.generation) {
            return Err(DocumentFault::field("generation", "must be 1 or more"));
        }
        if self.revokes.is_some_and(|revoked| revoked > self.generation) {
            return Err(DocumentFault::field("revokes", "is above the generation: it would refuse itself"));
        }
        if self.min_version.is_some_and(|min| min > self.version) {
            return Err(DocumentFault::field("minVersion", "is above the version"));
        }
        if self.root.algorithm != VERITY_ALGORITHM {
            let why = format!("is not {VERITY_ALGORITHM}, the only one that this node has");
            return Err(DocumentFault::field("root.algorithm", why));
        }
        if !(1..=ROOT_BLOCKS_MAX).contains(&self.root.blocks) {
            return Err(DocumentFault::field("root.blocks", format!("must be from 1 to {ROOT_BLOCKS_MAX}")));
        }
        check_count("files", self.files.len(), FILES_MAX)?;
        let mut names = BTreeSet::new();
        for (at, file) in self.files.iter().enumerate() {
            check_name(&format!("files[{at}].name"), &file.name)?;
            if !names.insert(file.name.as_str()) {
                return Err(DocumentFault::field(format!("files[{at}]"), "is in the list twice"));
            }
            if !(1..=FILE_BYTES_MAX).contains(&file.size) {
                let why = format!("must be from 1 to {FILE_BYTES_MAX}");
                return Err(DocumentFault::field(format!("files[{at}].size"), why));
            }
        }
        if let Some(missing) = RELEASE_FILES.iter().find(|name| !names.contains(**name)) {
            return Err(DocumentFault::field("files", format!("lacks {missing}")));
        }
        let root = self.file(ROOT_FILE).map_or(0, |file| file.size);
        if !root.is_multiple_of(BLOCK_BYTES) || root / BLOCK_BYTES > self.root.blocks {
            let why = format!("has {ROOT_FILE} with {root} bytes, which is not within root.blocks");
            return Err(DocumentFault::field("files", why));
        }
        Ok(())
    }
}

/// A node, as far as releases are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRelease<'a> {
    /// Architecture.
    pub arch: &'a str,
    /// Version that runs.
    pub running: ReleaseVersion,
    /// Least generation that it takes.
    pub floor: u64,
}

/// Who has asked for a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReason {
    /// The channel has it.
    Offered,
    /// A person has named it: it may be older than the one that runs.
    ByName,
}

impl ReleaseDocument {
    /// Reads the document of the release `version` for `arch`.
    ///
    /// # Errors
    /// It is not readable, not signed by enough keys of the role `release`, or another release's.
    pub fn read(
        trust: &TrustDocument,
        version: ReleaseVersion,
        arch: &str,
        text: &[u8],
        check: &impl SignatureCheck,
    ) -> Result<ReleaseDocument, DocumentError> {
        let read = || -> Result<ReleaseDocument, DocumentFault> {
            let envelope = Envelope::read(text)?;
            envelope.verify(trust, KeyRole::Release, check)?;
            let document: ReleaseDocument = envelope.document()?;
            if document.product != trust.product {
                let (found, want) = (document.product, trust.product.clone());
                return Err(DocumentFault::OtherProduct { found, want });
            }
            if document.arch != arch {
                return Err(DocumentFault::OtherArch { found: document.arch, want: arch.to_owned() });
            }
            if document.version != version {
                return Err(DocumentFault::OtherDocument { found: document.name() });
            }
            Ok(document)
        };
        read().map_err(|fault| fault.of(DocumentName::Release(version)))
    }

    /// Whether the node may install it. `channel` is the newest document of the node's channel, if it has one.
    ///
    /// # Errors
    /// The reason why not.
    pub fn judge(
        &self,
        node: &NodeRelease<'_>,
        channel: Option<&ChannelDocument>,
        reason: ReleaseReason,
    ) -> Result<(), DocumentError> {
        self.obstacle(node, channel, reason).map_or(Ok(()), |fault| Err(fault.of(self.name())))
    }

    fn obstacle(
        &self,
        node: &NodeRelease<'_>,
        channel: Option<&ChannelDocument>,
        reason: ReleaseReason,
    ) -> Option<DocumentFault> {
        if self.arch != node.arch {
            let (found, want) = (self.arch.clone(), node.arch.to_owned());
            return Some(DocumentFault::OtherArch { found, want });
        }
        if self.generation < node.floor {
            return Some(DocumentFault::BelowFloor { generation: self.generation, floor: node.floor });
        }
        if let Some(why) = channel.and_then(|channel| channel.withdrawal(self.version)) {
            return Some(DocumentFault::Withdrawn(why.to_owned()));
        }
        if reason == ReleaseReason::Offered && self.version <= node.running {
            return Some(DocumentFault::NotNewer(node.running));
        }
        let min = self.min_version.filter(|min| node.running < *min)?;
        Some(DocumentFault::BelowMinVersion { min, running: node.running })
    }

    /// A file by its name.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&ReleaseFile> {
        self.files.iter().find(|file| file.name == name)
    }
}

/// The node's floor after a release was committed: the least generation of the slots that may boot, so that the way back
/// stays open, unless the release gives it up. It never falls.
#[must_use]
pub fn floor_after_commit(floor: u64, bootable: &[u64], revokes: Option<u64>) -> u64 {
    let least = bootable.iter().copied().min().unwrap_or(0);
    floor.max(least).max(revokes.unwrap_or(0))
}
