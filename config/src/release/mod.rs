//! What is published for updates, and what a node makes of it: signed documents of three kinds. Pure; signatures are checked through
//! [`SignatureCheck`].
//!
//! ```text
//! trust n-1 ─► trust n ──┬─► channel ─► choice ─► version
//!   (root keys)          └─► release ─► judge ─► sizes and digests of the files
//! ```
//! In: texts of a stranger, and what the node knows: its version, floor, seed and time. Out: documents, or the fault with the name of
//! the document and the remedy. Design: docs/decisions/signed-documents.md. For operators: docs/reference/update.md.

mod channel;
mod choice;
mod envelope;
mod fault;
mod image_release;
mod trust;
mod values;
mod version;

#[cfg(test)]
mod tests;

pub use channel::{ChannelClock, ChannelDocument, ChannelRelease, Rollout, WithdrawnRelease};
pub use choice::{ReleaseChoice, choose, turn};
pub use envelope::{DOCUMENT_BYTES_MAX, Envelope, EnvelopeSignature, SignatureCheck, SignedDocument};
pub use fault::{DocumentError, DocumentFault, DocumentName};
pub use image_release::{
    BLOCK_BYTES, NodeRelease, RELEASE_FILES, ROOT_FILE, ReleaseDocument, ReleaseFile, ReleaseReason,
    RootTree, SBOM_FILE, UKI_BLOCKS_FILE, UKI_FILE, VERITY_ALGORITHM, VERITY_FILE, floor_after_commit,
};
pub use trust::{KeyAlgorithm, KeyRole, RoleKeys, TrustDocument, TrustedKey};
pub use values::{Base64Bytes, HexDigest, HexDigestError, UtcSecond, UtcSecondError, is_document_name};
pub use version::{ReleaseVersion, VersionError};

/// The product of this repository.
pub const PRODUCT: &str = "orlop";
/// Architecture of the machine that this program is for, as systemd names it.
pub const ARCH: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "x86-64" };
/// The trust document in the root of an image.
pub const IMAGE_TRUST_FILE: &str = "/usr/share/orlop/update/trust.json";
/// Directory of what a node keeps about updates.
pub const KEPT_DIR: &str = "/var/lib/orlop/update";

/// Path of a trust document below the directory that is published.
#[must_use]
pub fn trust_path(number: u64) -> String {
    format!("trust/{number}.json")
}

/// Path of a channel document below the directory that is published.
#[must_use]
pub fn channel_path(channel: &str) -> String {
    format!("channels/{channel}.json")
}

/// Path of a file of a release below the directory that is published; its document is `release.json`.
#[must_use]
pub fn release_path(version: ReleaseVersion, arch: &str, file: &str) -> String {
    format!("releases/{version}/{arch}/{file}")
}

/// Name of the release document among the files of a release.
pub const RELEASE_DOCUMENT: &str = "release.json";
