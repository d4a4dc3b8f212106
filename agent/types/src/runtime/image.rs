//! Images as the runtime reports them (CRI `Image`), and the policy of pulls.

use serde::{Deserialize, Serialize};

use crate::ids::ImageId;

/// A container's pull policy (`imagePullPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullPolicy {
    /// Pull before every start.
    Always,
    /// Pull unless present.
    IfNotPresent,
    /// `Never`: use a present image or fail.
    Never,
}

/// An image as the runtime holds it (CRI `Image`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// CRI image id.
    pub id: ImageId,
    /// Numeric user id in the image, if any.
    pub uid: Option<i64>,
    /// User name in the image, empty if none.
    pub username: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Names with a tag.
    #[serde(default)]
    pub repo_tags: Vec<String>,
    /// Names with a digest.
    #[serde(default)]
    pub repo_digests: Vec<String>,
    /// The runtime itself needs the image (pinned): it is never removed.
    #[serde(default)]
    pub pinned: bool,
}
