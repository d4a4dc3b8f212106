//! Why no control plane was made.

use std::path::PathBuf;

use crate::failure::{NO, USAGE};

/// Why no control plane was made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlplaneError {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A file of the output is there.
    #[error("{} is there already, and nothing was written: files are never written over. Name another directory with --out", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written. Those before it are removed.
    #[error("write {}: {why}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// The directory of `--renew` has not what is needed.
    #[error("{}: {why}", path.display())]
    Renew {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A key or certificate cannot be made.
    #[error("make {what}: {why}")]
    Certificate {
        /// Name of the certificate.
        what: String,
        /// The library's words.
        why: String,
    },
    /// The system gives no random numbers.
    #[error("the system has no random numbers")]
    NoRandomness,
}

impl ControlplaneError {
    /// For scripts.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            ControlplaneError::Usage(_) | ControlplaneError::Exists(_) | ControlplaneError::Renew { .. } => {
                USAGE
            }
            ControlplaneError::Write { .. }
            | ControlplaneError::Certificate { .. }
            | ControlplaneError::NoRandomness => NO,
        }
    }
}
