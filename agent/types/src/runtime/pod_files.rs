//! Directories and files of a pod that must exist before a sandbox or a container is made.

use serde::{Deserialize, Serialize};

/// Directories and files of a pod, made in this order: the log directory with 0755, then `dirs` (an existing one keeps its
/// mode), then `files`. Parents of `<root>/pods` are made as needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFiles {
    /// Absolute log directory of the pod.
    pub log_directory: String,
    /// Absolute paths, the pod directory first, each with its mode regardless of the umask.
    pub dirs: Vec<(String, u32)>,
    /// Files below the pod directory, written atomically.
    pub files: Vec<PodFile>,
    /// Log directory of a container, to find its newest attempt.
    pub log_of: Option<String>,
}

/// Treatment of a file that exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileWrite {
    /// Replaced atomically (written aside, then renamed).
    Replace,
    /// Left unchanged: a container may have written to it.
    KeepExisting,
}

/// A file below the pod directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFile {
    /// Absolute path of the file.
    pub path: String,
    /// The whole contents.
    pub content: String,
    /// Permission bits, regardless of the umask.
    pub mode: u32,
    /// Treatment of an existing file.
    pub write: FileWrite,
}
