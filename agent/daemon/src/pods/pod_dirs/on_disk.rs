//! State that an earlier run of the agent left on disk, read once before the first pod starts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use agent_core::allocation::Allocations;
use agent_types::ids::PodUid;
use agent_types::kill::TerminatingRecord;
use agent_types::resources::user_ranges::UserRanges;

use super::{PodDirs, chain};

/// Directories of the node that pods' files are in.
#[derive(Clone, Debug)]
pub struct Directories {
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// Directory of the links to containers' logs.
    pub log_links_dir: PathBuf,
    /// Sockets of device plugins, and the device manager's checkpoint.
    pub device_plugins_dir: PathBuf,
}

/// The pods' directories, and the state in them.
pub struct OnDisk {
    /// The directories.
    pub dirs: Arc<PodDirs>,
    /// Pods with a directory.
    pub directories: BTreeSet<PodUid>,
    /// Recorded terminations.
    pub records: Vec<TerminatingRecord>,
    /// Resources allocated to pods.
    pub allocated: Allocations,
    /// Resources that containers have.
    pub actuated: Allocations,
}

impl OnDisk {
    /// Releases volumes that no pod uses, and reads the rest. `users` are the ids for pods with user namespaces.
    ///
    /// # Errors
    /// A directory or a record that cannot be read.
    pub fn read(at: &Directories, users: UserRanges) -> anyhow::Result<OnDisk> {
        let dirs = PodDirs::new(&at.root_dir, &at.pod_logs_dir, &at.log_links_dir);
        if let Err(error) = dirs.sweep_stages() {
            tracing::warn!(error = %chain(&error), "empty directories of volumes are left");
        }
        if let Err(error) = dirs.sweep_disks() {
            tracing::warn!(error = %chain(&error), "a disk that no pod has is still mounted");
        }
        let dirs = Arc::new(dirs.with_users(users)?);
        let (directories, records) = dirs.scan()?;
        let (allocated, actuated) = dirs.restore_allocations()?;
        Ok(OnDisk { dirs, directories, records, allocated, actuated })
    }
}
