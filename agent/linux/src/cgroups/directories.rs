//! Cgroups as directories and files.
//!
//! In: a cgroup's path, its files. Out: the same on the unified hierarchy. Invariants: a controller is asked for in every
//! cgroup above before a file of it is written; only what differs is written. Linux,
//! Documentation/admin-guide/cgroup-v2.rst.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_types::failure::{Class, DriverError};
use agent_types::node_context::CgroupDriver;
use agent_types::resources::cgroups::CgroupName;
use futures_util::StreamExt;
use inotify::{Inotify, WatchMask};
use nix::unistd::{SysconfVar, sysconf};

use crate::files::FilesError;

/// The controllers that pods' cgroups are given values of, as far as the kernel has them.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "hugetlb"];
/// Those without which a pod runs as it should all the same.
const OPTIONAL: [&str; 2] = ["cpuset", "hugetlb"];
/// How long the kernel may take to end the processes of a cgroup.
const KILL_MAX: Duration = Duration::from_secs(10);

/// The hierarchy.
#[derive(Debug)]
pub(super) struct Directories {
    root: PathBuf,
    driver: CgroupDriver,
    /// Amounts of memory are kept in pages.
    page_bytes: u64,
}

impl Directories {
    pub(super) fn at(root: PathBuf, driver: CgroupDriver) -> Directories {
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|page| u64::try_from(page).ok());
        Directories { root, driver, page_bytes: page.unwrap_or(4096) }
    }

    pub(super) fn path(&self, name: &CgroupName) -> PathBuf {
        self.root.join(name.path(self.driver).trim_start_matches('/'))
    }

    /// Those of `files` that hold something else, or are not there.
    pub(super) fn differing(
        &self,
        path: &Path,
        files: &[(String, String)],
    ) -> Result<Vec<(String, String)>, DriverError> {
        let controllers = self.controllers(&self.root)?;
        let mut differing = Vec::new();
        for (file, wanted) in files {
            let controller = file.split('.').next().unwrap_or_default();
            if OPTIONAL.contains(&controller) && !controllers.contains(controller) {
                continue;
            }
            let text = std::fs::read_to_string(path.join(file)).unwrap_or_default();
            if !self.is_same(file, wanted, text.trim()) {
                differing.push((file.clone(), wanted.clone()));
            }
        }
        Ok(differing)
    }

    fn is_same(&self, file: &str, wanted: &str, text: &str) -> bool {
        let in_pages = |wanted: u64| wanted - wanted % self.page_bytes;
        let is_rounded = || {
            let wanted = wanted.parse::<u64>().ok().map(in_pages);
            file.starts_with("memory.") && wanted.is_some() && text.parse().ok() == wanted
        };
        wanted == text || is_rounded()
    }

    /// Makes a cgroup with those above it, and writes what differs.
    pub(super) fn write(&self, path: &Path, files: &[(String, String)]) -> Result<(), DriverError> {
        std::fs::create_dir_all(path).map_err(FilesError::at("mkdir", path))?;
        let differing = self.differing(path, files)?;
        if differing.iter().any(|(file, _)| !path.join(file).exists()) {
            self.enable(path)?;
        }
        for (file, text) in differing {
            let file = path.join(file);
            std::fs::write(&file, text).map_err(FilesError::at("write", &file))?;
        }
        Ok(())
    }

    /// Asks for the controllers in every cgroup above `path`.
    fn enable(&self, path: &Path) -> Result<(), DriverError> {
        let mut above: Vec<&Path> =
            path.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.root)).collect();
        above.reverse();
        for dir in above {
            let available = self.controllers(dir)?;
            for controller in CONTROLLERS.into_iter().filter(|c| available.contains(*c)) {
                // What this does not bring is missed when the file is written.
                let _ = std::fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
        Ok(())
    }

    fn controllers(&self, dir: &Path) -> Result<BTreeSet<String>, FilesError> {
        let file = dir.join("cgroup.controllers");
        let text = std::fs::read_to_string(&file).map_err(FilesError::at("read", &file))?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }
}

/// Ends what runs in a cgroup and below, and waits until nothing does.
pub(super) async fn empty(path: &Path) -> Result<(), DriverError> {
    let events = path.join("cgroup.events");
    let is_populated = || match std::fs::read_to_string(&events) {
        Ok(text) => text.lines().any(|line| line.trim() == "populated 1"),
        Err(_) => false,
    };
    if !is_populated() {
        return Ok(());
    }
    let inotify = Inotify::init().and_then(|inotify| {
        inotify.watches().add(&events, WatchMask::MODIFY)?;
        inotify.into_event_stream([0u8; 512])
    });
    let kill = path.join("cgroup.kill");
    std::fs::write(&kill, "1").map_err(FilesError::at("write", &kill))?;
    // Pods whose users are not mapped share the number of inotify instances with the agent. Without one the processes end all the
    // same, and the next attempt finds the cgroup empty.
    let mut changes = match inotify {
        Ok(changes) => changes,
        Err(_) if !is_populated() => return Ok(()),
        Err(error) => {
            return Err(DriverError {
                operation: "watch",
                object: events.display().to_string(),
                class: Class::Retryable { after_ms: 1000 },
                message: format!("no inotify instance is free ({error}); its processes got SIGKILL"),
            });
        }
    };
    let emptied = async {
        while is_populated() {
            if changes.next().await.is_none() {
                return;
            }
        }
    };
    if tokio::time::timeout(KILL_MAX, emptied).await.is_err() || is_populated() {
        return Err(DriverError {
            operation: "kill cgroup",
            object: path.display().to_string(),
            class: Class::Retryable { after_ms: 1000 },
            message: format!("processes are left {} s after SIGKILL", KILL_MAX.as_secs()),
        });
    }
    Ok(())
}

/// Removes a cgroup with those below it; nothing may run there. One that goes away meanwhile is gone.
pub(super) fn remove(path: &Path) -> Result<(), DriverError> {
    for name in children(path)? {
        remove(&path.join(name))?;
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FilesError::at("rmdir", path)(error).into())
        }
        _ => Ok(()),
    }
}

/// `memory.current`.
pub(super) fn memory_in_use(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path.join("memory.current")).ok()?.trim().parse().ok()
}

/// Names of the cgroups in this one.
pub(super) fn children(path: &Path) -> Result<Vec<String>, DriverError> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(FilesError::at("list", path)(error).into()),
    };
    let dirs = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(dirs.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}
