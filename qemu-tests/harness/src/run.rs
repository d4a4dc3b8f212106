//! One run of the harness: its id, its directories, and the record of everything it made.
//!
//! Out: directories under `$ORLOP_CACHE/e2e/<id>` (state, record) and a short one for sockets.
//! Invariants: the id is unique among runs on this machine; each thing that outlives a function call is
//! recorded before it exists, or under the lock in which it is made; after `close` nothing more can be made.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::resource::{Resource, start_ticks};

/// Runs of this process so far (more than one only in unit tests).
static RUNS: AtomicU32 = AtomicU32::new(0);
const RECORD: &str = "resources.jsonl";

/// A run and what it made.
pub struct Run {
    id: String,
    dir: PathBuf,
    sockets: PathBuf,
    made: Mutex<CreatedResources>,
    /// Failures, repeated at the end.
    failed: Mutex<Vec<String>>,
    /// Failures that passed when repeated, repeated at the end as well.
    unsteady: Mutex<Vec<String>>,
    left_out: Mutex<Vec<String>>,
    /// Held during the removal: a second `close` waits until all is removed.
    closing: Mutex<()>,
}

#[derive(Default)]
struct CreatedResources {
    resources: Vec<Resource>,
    closed: bool,
}

/// `$ORLOP_CACHE`, or `~/.cache/orlop`.
#[must_use]
pub fn cache_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("ORLOP_CACHE").filter(|d| !d.is_empty()) {
        return PathBuf::from(dir);
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    home.join(".cache/orlop")
}

fn runs_dir() -> PathBuf {
    cache_dir().join("e2e")
}

impl Run {
    /// Starts a run: makes its directories and its record, whose first line is this process.
    ///
    /// # Errors
    /// If the cache directory cannot be written.
    pub fn start() -> Result<Arc<Run>> {
        let pid = std::process::id();
        let stamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        // Letters and digits only: it becomes part of cgroup, interface and socket names.
        let nth = RUNS.fetch_add(1, Ordering::Relaxed);
        let id = format!("oe{pid:x}t{:x}n{nth}", stamp & 0xff_ffff);
        let dir = runs_dir().join(&id);
        let sockets = std::env::temp_dir().join(format!("orlop-{id}"));
        let run = Run {
            id,
            dir: dir.clone(),
            sockets: sockets.clone(),
            made: Mutex::default(),
            failed: Mutex::default(),
            unsteady: Mutex::default(),
            left_out: Mutex::default(),
            closing: Mutex::default(),
        };
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        run.append(&Resource::process(pid.cast_signed())?)?;
        run.record(Resource::Dir { path: sockets.clone() })?;
        fs::create_dir_all(&sockets).with_context(|| format!("make {}", sockets.display()))?;
        Ok(Arc::new(run))
    }

    /// The run's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Directory for state and artefacts of the run.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A short directory, for sockets (their paths may have 107 bytes).
    #[must_use]
    pub fn sockets(&self) -> &Path {
        &self.sockets
    }

    /// Records a failure, so that the end of a long output shows it.
    pub fn note_failure(&self, what: impl Into<String>) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(what.into());
    }

    /// The failures so far.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This case was not begun.
    pub fn note_left_out(&self, case: &str) {
        self.left_out.lock().unwrap_or_else(PoisonError::into_inner).push(case.to_owned());
    }

    /// Cases that were not begun.
    #[must_use]
    pub fn left_out(&self) -> Vec<String> {
        self.left_out.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that something failed and passed when it was tried again.
    pub fn note_unsteady(&self, what: impl Into<String>) {
        self.unsteady.lock().unwrap_or_else(PoisonError::into_inner).push(what.into());
    }

    /// The failures so far that passed when repeated.
    #[must_use]
    pub fn unsteady(&self) -> Vec<String> {
        self.unsteady.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CreatedResources> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, resource: &Resource) -> Result<()> {
        let path = self.dir.join(RECORD);
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        writeln!(file, "{}", serde_json::to_string(resource)?)
            .with_context(|| format!("write {}", path.display()))
    }

    /// Records a resource that is about to be made.
    ///
    /// # Errors
    /// If the run is being interrupted, or the record cannot be written.
    pub fn record(&self, resource: Resource) -> Result<()> {
        let mut made = self.lock();
        if made.closed {
            bail!("the run was interrupted");
        }
        self.append(&resource)?;
        made.resources.push(resource);
        Ok(())
    }

    /// Spawns into a process group of its own and records the child, as one step.
    ///
    /// # Errors
    /// If it cannot be started, or the run is being interrupted.
    pub fn spawn(&self, command: &mut Command) -> Result<(Child, Resource)> {
        use std::os::unix::process::CommandExt;
        let mut made = self.lock();
        if made.closed {
            bail!("the run was interrupted");
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.process_group(0).spawn().with_context(|| format!("start {program}"))?;
        let resource = Resource::process(child.id().cast_signed())?;
        self.append(&resource)?;
        made.resources.push(resource.clone());
        Ok((child, resource))
    }

    /// Ends the run: further resources are refused, and everything recorded is removed, newest first. Returns the
    /// resources that could not be removed.
    pub fn close(&self) -> Vec<String> {
        let _removing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let resources = {
            let mut made = self.lock();
            made.closed = true;
            std::mem::take(&mut made.resources)
        };
        let problems = remove_all(&resources, &self.id);
        if problems.is_empty() {
            // The record is only needed for remaining resources; artefacts of failures stay next to it.
            let _ = fs::remove_file(self.dir.join(RECORD));
            let _ = fs::remove_dir(self.dir.join("groups"));
            let _ = fs::remove_dir(&self.dir);
        }
        problems
    }
}

fn remove_all(resources: &[Resource], id: &str) -> Vec<String> {
    // Processes first: they hold the cgroups and write into the directories.
    let (processes, rest): (Vec<_>, Vec<_>) =
        resources.iter().rev().partition(|r| matches!(r, Resource::Process { .. }));
    processes.into_iter().chain(rest).filter_map(|r| r.remove(id).err().map(|e| format!("{e:#}"))).collect()
}

/// Number of runs whose artefacts of failures are kept.
const KEPT_RUNS: usize = 12;

/// Removes the remains of runs whose process is gone (killed, or the machine lost power), and the artefacts of all runs
/// except the newest dozen. Returns one line for each action and each failure.
///
/// # Errors
/// If the directory of runs cannot be read.
pub fn clean_stale() -> Result<Vec<String>> {
    let base = runs_dir();
    let mut lines = Vec::new();
    let Ok(entries) = fs::read_dir(&base) else { return Ok(lines) };
    // Without a record: the run has ended, and these are artefacts.
    let mut ended = Vec::new();
    for entry in entries {
        let dir = entry.with_context(|| format!("read {}", base.display()))?.path();
        let record = dir.join(RECORD);
        let Ok(text) = fs::read_to_string(&record) else {
            let made = fs::metadata(&dir).and_then(|m| m.modified()).unwrap_or(UNIX_EPOCH);
            ended.push((made, dir));
            continue;
        };
        let mut resources = text.lines().filter_map(|l| serde_json::from_str::<Resource>(l).ok());
        let Some(Resource::Process { pid, start_ticks: ticks }) = resources.next() else { continue };
        if start_ticks(pid) == Some(ticks) {
            continue;
        }
        let id = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let problems = remove_all(&resources.collect::<Vec<_>>(), &id);
        if problems.is_empty() {
            let _ = fs::remove_file(&record);
            let _ = fs::remove_dir(&dir);
            lines.push(format!("removed what run {id} had left"));
        }
        lines.extend(problems);
    }
    for dir in beyond(ended, KEPT_RUNS) {
        if let Err(e) = fs::remove_dir_all(&dir) {
            lines.push(format!("remove {}: {e}", dir.display()));
        }
    }
    Ok(lines)
}

/// All except the newest `kept`.
fn beyond(mut dirs: Vec<(SystemTime, PathBuf)>, kept: usize) -> impl Iterator<Item = PathBuf> {
    dirs.sort_by_key(|(made, _)| std::cmp::Reverse(*made));
    dirs.into_iter().skip(kept).map(|(_, dir)| dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_artefacts_are_kept() {
        let at = |s: u64, name: &str| (UNIX_EPOCH + std::time::Duration::from_secs(s), PathBuf::from(name));
        let left: Vec<_> = beyond(vec![at(2, "b"), at(1, "a"), at(4, "d"), at(3, "c")], 2).collect();
        assert_eq!(left, ["b", "a"].map(PathBuf::from));
        assert_eq!(beyond(vec![at(1, "a")], 2).count(), 0);
    }
}
