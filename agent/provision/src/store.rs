//! What is read and kept: the report of this boot, the accepted document, the report for later boots.
//!
//! Invariant: the document is on disk before the report that ends the asking, so that a power cut leaves a node that asks again; a
//! document without a report that names it does not count.

use orlop_config::platform::{KEPT_DIR, KEPT_DOCUMENT, KEPT_REPORT, PlatformReport, REPORT_BYTES_MAX};
use orlop_files::{Durability, ReplaceError, replace};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why the unit cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The report of this boot is not there.
    #[error("read {}", path.display())]
    Read {
        /// The report.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// It is no report.
    #[error("{} {why}", path.display())]
    Report {
        /// The report.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something cannot be kept.
    #[error("keep what the platform says")]
    Write(#[from] ReplaceError),
    /// The user data of another machine cannot be removed.
    #[error("remove {}", path.display())]
    Remove {
        /// The document.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// The directory of what is kept cannot be made.
    #[error("make {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
}

/// Reads the report that init wrote.
pub(crate) fn read(path: &Path) -> Result<PlatformReport, StoreError> {
    let failed = |source| StoreError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(REPORT_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    PlatformReport::parse(&text).map_err(|why| StoreError::Report { path: path.to_owned(), why })
}

/// Shows the report of this boot.
pub(crate) fn show(path: &Path, report: &PlatformReport) -> Result<(), StoreError> {
    Ok(replace(path, report.render().as_bytes(), 0o644, Durability::Rebuildable)?)
}

/// Keeps what counts from now on.
pub(crate) fn keep(var: &Path, document: Option<&str>, report: &PlatformReport) -> Result<(), StoreError> {
    let directory = var.join(KEPT_DIR);
    std::fs::create_dir_all(&directory)
        .map_err(|source| StoreError::Directory { path: directory.clone(), source })?;
    let kept = directory.join(KEPT_DOCUMENT);
    if let Some(text) = document {
        replace(&kept, text.as_bytes(), 0o600, Durability::Synced)?;
    }
    replace(&directory.join(KEPT_REPORT), report.render().as_bytes(), 0o644, Durability::Synced)?;
    if document.is_none() {
        // What another machine was given, of which this disk is a copy. The report says that it does not count.
        match std::fs::remove_file(&kept) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::Remove { path: kept, source });
            }
            _ => {}
        }
    }
    Ok(())
}
