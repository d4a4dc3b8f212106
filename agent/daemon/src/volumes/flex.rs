//! FlexVolume drivers: programs in a directory of the node. The module calls them and caches their capabilities.
//!
//! In: a driver, a call. Out: the driver's answer; cleaned-up volumes that no pod uses. Invariants: a program is asked
//! for its capabilities once per version of its file, so that a replaced program is asked again; each call has a time
//! limit, and a late program is killed with all its children; a driver that hangs delays only its own volumes. No state
//! must survive a kill. The decisions are `agent_volumes::flex`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_linux::files::FilesError;
use agent_linux::volumes::{self, flex as on_disk};
use agent_types::lock::Lock;
use agent_volumes::flex::answer::{self, Capabilities, DriverResponse, Refusal};
use agent_volumes::flex::call::{Call, Command};
use agent_volumes::flex::source::Driver;
use agent_volumes::flex::{Record, Release, release};
use agent_volumes::plugin::NO_PLUGIN;

use crate::pods::execute::programs;
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;
use crate::tasks::keyed_locks::KeyedLocks;
use crate::tasks::stops::AgentStops;

/// The drivers of the node; clones share the cached capabilities.
#[derive(Clone, Debug, Default)]
pub struct Drivers(Arc<FlexInner>);

#[derive(Debug, Default)]
struct FlexInner {
    directory: PathBuf,
    state: Lock<FlexState>,
    /// A task that asks a driver for its capabilities holds the driver's lock.
    locks: KeyedLocks<Driver>,
}

#[derive(Debug, Default)]
struct FlexState {
    known: BTreeMap<Driver, FlexDriverInfo>,
    /// Paths of volumes that this agent has set up: not every driver mounts a file system.
    set_up: BTreeSet<String>,
}

/// A driver's capabilities.
#[derive(Clone, Debug)]
struct FlexDriverInfo {
    file: FileId,
    capabilities: Capabilities,
    unsupported: BTreeSet<Command>,
}

/// A program as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileId {
    place: (u64, u64),
    size: u64,
    changed: [i64; 4],
}

impl FileId {
    /// `None`: there is no program.
    fn of(path: &Path) -> Option<FileId> {
        let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        let changed = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
        Some(FileId { place: (found.dev(), found.ino()), size: found.size(), changed })
    }
}

impl Drivers {
    /// Drivers in this directory (`volumePluginDir`).
    #[must_use]
    pub fn new(directory: &Path) -> Drivers {
        Drivers(Arc::new(FlexInner { directory: directory.to_owned(), ..FlexInner::default() }))
    }

    /// The capabilities of a driver.
    ///
    /// # Errors
    /// The driver does not exist, or does not report its capabilities.
    pub(crate) async fn find(&self, driver: &Driver, tasks: &Tasks) -> Result<Capabilities, String> {
        let _alone = self.0.locks.alone(driver).await;
        let program = self.0.directory.join(driver.program());
        let file = tasks.blocking(move || FileId::of(&program)).await.ok_or(AgentStops)?;
        let Some(file) = file else {
            self.0.state.lock().known.remove(driver);
            return Err(NO_PLUGIN.to_owned());
        };
        if let Some(known) = self.0.state.lock().known.get(driver).filter(|known| known.file == file) {
            return Ok(known.capabilities);
        }
        let answer = self.run(driver, &Call::init()).await.map_err(|why| {
            format!(
                "{NO_PLUGIN} (error creating Flexvolume plugin from directory {}, skipping. Error: {why})",
                driver.directory()
            )
        })?;
        let capabilities = answer.capabilities;
        tracing::info!(driver = driver.name(), ?capabilities, "a driver of flexVolume is there");
        self.0
            .state
            .lock()
            .known
            .insert(driver.clone(), FlexDriverInfo { file, capabilities, unsupported: BTreeSet::new() });
        Ok(capabilities)
    }

    /// Calls a driver. A command that the driver does not support is not sent again.
    ///
    /// # Errors
    /// The reason why the call failed.
    pub(crate) async fn call(&self, driver: &Driver, call: &Call) -> Result<DriverResponse, Refusal> {
        let knows_not = |known: &FlexDriverInfo| known.unsupported.contains(&call.command);
        if self.0.state.lock().known.get(driver).is_some_and(knows_not) {
            return Err(Refusal::NotSupported);
        }
        let answer = self.run(driver, call).await;
        if answer == Err(Refusal::NotSupported)
            && let Some(known) = self.0.state.lock().known.get_mut(driver)
        {
            known.unsupported.insert(call.command);
        }
        answer
    }

    async fn run(&self, driver: &Driver, call: &Call) -> Result<DriverResponse, Refusal> {
        let program = self.0.directory.join(driver.program());
        let (command, limit) = (call.command, call.command.limit());
        match programs::ask(&program, &call.line(), limit).await {
            Ok(ended) => answer::read(command, &ended),
            Err(failed) => Err(Refusal::Failed(format!("{} command failed, {}", command.word(), failed.why))),
        }
    }

    /// True if this agent has set up the volume at the path.
    pub(crate) fn has_set_up(&self, path: &str) -> bool {
        self.0.state.lock().set_up.contains(path)
    }

    /// Records that this agent has set up the volume at the path.
    pub(crate) fn set_up(&self, path: &str) {
        self.0.state.lock().set_up.insert(path.to_owned());
    }

    /// The volume may be gone.
    pub(crate) fn forget(&self, path: &str) {
        self.0.state.lock().set_up.remove(path);
    }

    /// Unmounts and detaches a volume that no pod uses, and removes its files and its record.
    ///
    /// # Errors
    /// The step that failed; a repeated call continues there.
    pub(crate) async fn give_back(&self, record: &Record, root: &Path, tasks: &Tasks) -> Result<(), String> {
        let found = self.find(&record.driver, tasks).await;
        let there = found.as_ref().map(drop).map_err(String::as_str);
        let at = record.global.clone();
        let mounted = disk(tasks, move || on_disk::is_mounted(&at)).await?;
        if mounted {
            let asked = match release(there, mounted, true) {
                Release::Ask => self.call(&record.driver, &record.unmount_device()).await,
                Release::Own => Err(Refusal::NotSupported),
                Release::Wait(why) => Err(Refusal::Failed(why)),
            };
            self.or_own(asked, &record.global, tasks).await?;
        }
        let (at, own) = (record.global.clone(), root.to_owned());
        let released = disk(tasks, move || {
            on_disk::released(Path::new(&at))?;
            // The cluster may attach the volume to another node next, and later to this node again.
            volumes::disk::forget(&own, Path::new(&at))
        });
        released.await?;
        if let Some(node) = &record.attached_by {
            there.map_err(|why| format!("DetachVolume.FindAttachablePluginBySpec failed: {why}"))?;
            match self.call(&record.driver, &record.detach(node)).await {
                Ok(_) | Err(Refusal::NotSupported) => {}
                Err(why) => return Err(format!("DetachVolume.Detach failed: {why}")),
            }
        }
        let (root, of) = (root.to_owned(), record.clone());
        disk(tasks, move || on_disk::forget(&root, &of)).await
    }

    /// Unmounts the volume itself if the driver does not support the command.
    pub(crate) async fn or_own(
        &self,
        asked: Result<DriverResponse, Refusal>,
        path: &str,
        tasks: &Tasks,
    ) -> Result<(), String> {
        match asked {
            Ok(_) => Ok(()),
            Err(Refusal::NotSupported) => {
                let path = path.to_owned();
                disk(tasks, move || on_disk::unmount(Path::new(&path))).await
            }
            Err(Refusal::Failed(why)) => Err(why),
        }
    }
}

/// Work on the disk, where blocking is allowed.
async fn disk<T: Send + 'static>(
    tasks: &Tasks,
    work: impl FnOnce() -> Result<T, FilesError> + Send + 'static,
) -> Result<T, String> {
    tasks.blocking(work).await.ok_or(AgentStops)?.map_err(|e| chain(&e))
}

#[cfg(test)]
pub(crate) mod tests;
