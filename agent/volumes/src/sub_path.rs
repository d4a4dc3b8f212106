//! A part of a volume that a container mounts in the place of the volume (`subPath`, `subPathExpr`).

use serde::{Deserialize, Serialize};

/// Below a pod's directory.
pub const SUB_PATHS: &str = "volume-subpaths";

/// A part of a volume, and where a container finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubPath {
    /// Name of the volume.
    pub volume: String,
    /// Name of the container.
    pub container: String,
    /// Absolute path of the volume.
    pub root: String,
    /// Which part of it: relative, without `..`.
    pub path: String,
    /// Absolute path that it is mounted at, below the pod's directory.
    pub target: String,
}
