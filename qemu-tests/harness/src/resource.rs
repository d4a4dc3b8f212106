//! Resources of a running run on the machine, recorded by id so that they can be removed by id.
//!
//! In: processes, cgroups and directories as they are made. Out: one JSON line each, and their removal. Invariants:
//! a process is only killed if its start time is the recorded one, a cgroup and a directory only removed if they
//! carry the run's id.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use orlop_config::procfs::{ProcessStat, process_stat};
use serde::{Deserialize, Serialize};

/// A resource to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Resource {
    /// A process that leads a process group of its own.
    Process {
        /// Process id.
        pid: i32,
        /// Field 22 of `/proc/PID/stat`: distinguishes it from a later process with the same id.
        start_ticks: u64,
    },
    /// A child cgroup with everything below it.
    Cgroup {
        /// Its directory.
        path: PathBuf,
    },
    /// A directory with everything below it (never across a mount).
    Dir {
        /// Its path.
        path: PathBuf,
    },
}

impl Resource {
    /// The running process `pid`, identified by its start time.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn process(pid: i32) -> Result<Resource> {
        let start_ticks = start_ticks(pid).with_context(|| format!("process {pid} is gone already"))?;
        Ok(Resource::Process { pid, start_ticks })
    }

    /// True if it exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        match self {
            Resource::Process { pid, start_ticks: t } => start_ticks(*pid) == Some(*t) && !is_zombie(*pid),
            Resource::Cgroup { path } | Resource::Dir { path } => path.exists(),
        }
    }

    /// Removes it. A missing resource is a success.
    ///
    /// # Errors
    /// The reason why it cannot be removed.
    pub fn remove(&self, run_id: &str) -> Result<()> {
        match self {
            Resource::Process { pid, .. } => {
                if self.exists() {
                    // Its process group first: a build command has children of its own.
                    let _ = killpg(Pid::from_raw(*pid), Signal::SIGKILL);
                    let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
                    await_end(*pid, Duration::from_secs(10));
                }
                Ok(())
            }
            Resource::Cgroup { path } => remove_cgroup(path, run_id),
            Resource::Dir { path } => remove_dir(path, run_id),
        }
    }
}

fn stat(pid: i32) -> Option<ProcessStat> {
    process_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Start time of a process in clock ticks since boot; `None` if there is none.
#[must_use]
pub fn start_ticks(pid: i32) -> Option<u64> {
    stat(pid).map(|of| of.started_ticks)
}

fn is_zombie(pid: i32) -> bool {
    stat(pid).is_some_and(|of| of.state == 'Z')
}

/// Waits until a process (any, not only a child) has ended, by its pidfd; false at the deadline.
pub fn await_end(pid: i32, limit: Duration) -> bool {
    let Ok(fd) = crate::process::pidfd(pid) else { return true };
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(std::os::fd::AsFd::as_fd(&fd), PollFlags::POLLIN)], timeout) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

fn carries_id(path: &Path, run_id: &str) -> bool {
    path.components().any(|c| c.as_os_str().to_string_lossy().contains(run_id))
}

fn remove_cgroup(path: &Path, run_id: &str) -> Result<()> {
    anyhow::ensure!(carries_id(path, run_id), "{} is not of run {run_id}: left alone", path.display());
    if !path.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(path).with_context(|| format!("read {}", path.display()))?.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_cgroup(&entry.path(), run_id)?;
        }
    }
    let pids: Vec<i32> = fs::read_to_string(path.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|l| l.parse().ok())
        .collect();
    for pid in &pids {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    for pid in pids {
        await_end(pid, Duration::from_secs(5));
    }
    rmdir_cgroup(path)
}

/// A killed process leaves its cgroup a moment after its pidfd became readable (when it is reaped), so after EBUSY the
/// function waits for the members that are still listed.
fn rmdir_cgroup(path: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) if e.raw_os_error() == Some(nix::libc::EBUSY) && Instant::now() < deadline => {
                // Bounded by poll's own timer; the kernel has no event for the last zombie leaving.
                let _ = poll(&mut [], PollTimeout::from(20_u8));
            }
            Err(e) => return Err(e).with_context(|| format!("remove cgroup {}", path.display())),
        }
    }
}

/// Removes a tree of the run, staying on the file system of its top: a mount below it is an error.
fn remove_dir(path: &Path, run_id: &str) -> Result<()> {
    anyhow::ensure!(carries_id(path, run_id), "{} is not of run {run_id}: left alone", path.display());
    let Ok(top) = fs::symlink_metadata(path) else { return Ok(()) };
    ensure_one_device(path, top.dev())?;
    fs::remove_dir_all(path).with_context(|| format!("remove {}", path.display()))
}

fn ensure_one_device(dir: &Path, dev: u64) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?.flatten() {
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        anyhow::ensure!(meta.dev() == dev, "{} is still a mount: left alone", entry.path().display());
        if meta.is_dir() {
            ensure_one_device(&entry.path(), dev)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_known_by_id_and_start_time() {
        let own = Resource::process(std::process::id().cast_signed()).unwrap();
        assert!(own.exists());
        let Resource::Process { pid, start_ticks } = own else { unreachable!("made as a process") };
        assert!(!Resource::Process { pid, start_ticks: start_ticks + 1 }.exists());
    }

    #[test]
    fn removing_a_process_ends_it() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let resource = Resource::process(child.id().cast_signed()).unwrap();
        resource.remove("r").unwrap();
        assert!(!resource.exists());
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_directory_without_the_run_id_is_left_alone() {
        let dir = std::env::temp_dir().join(format!("orlop-e2e-{}-t", std::process::id()));
        fs::create_dir_all(dir.join("a/b")).unwrap();
        let resource = Resource::Dir { path: dir.clone() };
        assert!(resource.remove("another-run").is_err());
        assert!(dir.exists());
        resource.remove(&format!("orlop-e2e-{}", std::process::id())).unwrap();
        assert!(!dir.exists());
        resource.remove(&format!("orlop-e2e-{}", std::process::id())).unwrap();
    }
}
