//! The agent's own cgroups: made, given their values, removed.
//!
//! In: names and values. Out: the unified hierarchy, through systemd's slices or by itself. Invariants: a value that is
//! as it should be is not written; with systemd every cgroup that is made is a slice that systemd knows, and the agent
//! itself writes the values for which systemd has no property; nothing is removed while anything runs in it. Upstream:
//! pkg/kubelet/cm, github.com/opencontainers/cgroups.

mod directories;
mod systemd;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_kubelet_api::drivers::{Applied, Cgroups};
use agent_types::failure::{Class, DriverError};
use agent_types::node_context::CgroupDriver;
use agent_types::resources::cgroups::{CgroupName, CgroupValues};

use directories::Directories;
use systemd::Systemd;

/// Where the unified hierarchy is mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// [`Cgroups`] of this machine; clones share it.
#[derive(Clone)]
pub struct LinuxCgroups {
    directories: Arc<Directories>,
    /// systemd, if it writes the hierarchy together with us.
    systemd: Option<Arc<Systemd>>,
}

impl LinuxCgroups {
    /// The hierarchy of this machine by `driver`. Does not connect to systemd yet.
    #[must_use]
    pub fn new(driver: CgroupDriver) -> LinuxCgroups {
        let systemd = (driver == CgroupDriver::Systemd).then(|| Arc::new(Systemd::of_machine()));
        LinuxCgroups { directories: Arc::new(Directories::at(PathBuf::from(ROOT), driver)), systemd }
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: &CgroupName,
        work: impl FnOnce(&Directories, &Path) -> Result<T, DriverError> + Send + 'static,
    ) -> Result<T, DriverError> {
        let (directories, path) = (self.directories.clone(), self.directories.path(name));
        let object = path.display().to_string();
        let ended = tokio::task::spawn_blocking(move || work(&directories, &path)).await;
        ended.unwrap_or_else(|_| {
            let message = "the agent stops".to_owned();
            Err(DriverError { operation, object, class: Class::DeadlineExceeded, message })
        })
    }
}

impl Cgroups for LinuxCgroups {
    async fn apply(
        &self,
        name: &CgroupName,
        values: &CgroupValues,
        make: bool,
    ) -> Result<Applied, DriverError> {
        let wanted = values.files();
        let files = wanted.clone();
        let look = move |at: &Directories, path: &Path| -> Result<(bool, bool), DriverError> {
            Ok((path.is_dir(), at.differing(path, &files)?.is_empty()))
        };
        let (is_there, is_right) = self.on_disk("look at cgroup", name, look).await?;
        if is_there && is_right {
            return Ok(Applied::Unchanged);
        }
        if !is_there && !make {
            let object = self.directories.path(name).display().to_string();
            let message = "no such cgroup".to_owned();
            return Err(DriverError { operation: "update cgroup", object, class: Class::NotFound, message });
        }
        if let Some(systemd) = &self.systemd {
            systemd.apply(name, values).await?;
        }
        let write = move |at: &Directories, path: &Path| at.write(path, &wanted);
        self.on_disk("write cgroup", name, write).await?;
        Ok(if is_there { Applied::Changed } else { Applied::Made })
    }

    async fn remove(&self, name: &CgroupName) -> Result<bool, DriverError> {
        if !self.on_disk("look at cgroup", name, |_, path| Ok(path.is_dir())).await? {
            return Ok(false);
        }
        directories::empty(&self.directories.path(name)).await?;
        if let Some(systemd) = &self.systemd {
            systemd.stop(name).await?;
        }
        self.on_disk("remove cgroup", name, |_, path| directories::remove(path)).await?;
        Ok(true)
    }

    async fn memory_in_use(&self, name: &CgroupName) -> Result<Option<u64>, DriverError> {
        self.on_disk("read cgroup", name, |_, path| Ok(directories::memory_in_use(path))).await
    }

    async fn children(&self, name: &CgroupName) -> Result<Vec<String>, DriverError> {
        self.on_disk("list cgroup", name, |_, path| directories::children(path)).await
    }
}
