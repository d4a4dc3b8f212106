//! The files of resource claims: the checkpoint and the health of devices.
//!
//! In: texts. Out: files below the kubelet's root. Invariants: the checkpoint is on the disk before its success is reported; if several
//! texts of health wait, only the last one is written. Upstream: pkg/kubelet/cm/dra/state, pkg/kubelet/cm/dra/healthinfo.go.

use std::path::{Path, PathBuf};

use agent_linux::files::{self, Durability, FilesError};
use agent_types::failure::Class;
use tokio::sync::watch;

use super::limits::{FILE_BYTES_MAX, WRITE_GAP};
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// Mode of both files, as upstream's.
const FILE_MODE: u32 = 0o600;

/// The text of a file; `None`: there is no file, or an empty one, as a power cut leaves it (upstream refuses to start with an
/// empty checkpoint).
pub(super) fn read(path: &Path) -> Result<Option<String>, FilesError> {
    match files::read_capped(path, FILE_BYTES_MAX) {
        Ok(bytes) if bytes.is_empty() => {
            tracing::warn!(path = %path.display(), "a file of resource claims is empty: the agent starts without it");
            Ok(None)
        }
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.class() == Class::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the checkpoint.
pub(super) fn write_claims(path: &Path, text: &str) -> Result<(), String> {
    files::write_atomic(path, text.as_bytes(), FILE_MODE, Durability::Synced).map_err(|error| {
        let error = chain(&error);
        tracing::error!(%error, "the checkpoint of resource claims is not written");
        error
    })
}

/// Writes the newest text of health until the node stops.
pub(super) async fn write_health(path: PathBuf, mut texts: watch::Receiver<String>, tasks: Tasks) {
    while texts.changed().await.is_ok() {
        let (text, path) = (texts.borrow_and_update().clone(), path.clone());
        // The first report after a start writes the file again, so the loss of the file does no harm.
        let write = move || files::write_atomic(&path, text.as_bytes(), FILE_MODE, Durability::Rebuildable);
        if let Some(Err(error)) = tasks.blocking(write).await {
            tracing::warn!(error = %chain(&error), "the health of DRA devices is not written");
        }
        tasks.wait_until(tasks.now().mono.after(WRITE_GAP)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_or_empty_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        assert_eq!(read(&path).unwrap(), None);
        write_claims(&path, "x").unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("x"));
        write_claims(&path, "").unwrap();
        assert_eq!(read(&path).unwrap(), None, "a power cut left it");
        assert!(read(dir.path()).is_err());
        assert!(write_claims(&dir.path().join("a/b"), "x").is_err());
    }
}
