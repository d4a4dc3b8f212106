//! Records of the resources allocated to pods and of the resources that their containers have: upstream's files
//! `<root>/allocated_pods_state` and `<root>/actuated_pods_state`.
//!
//! In: resources. Out: the same after a restart. Invariants: an allocation is durably on disk before the manager learns
//! of it; the file of actuated resources survives the agent but is not synced, because containers do not survive a
//! crash of the machine either, and an empty file, as a power cut leaves it, counts as none; a damaged file is logged, renamed to
//! `<name>.damaged`, and the agent goes on without it (upstream refuses to start). See [`agent_core::allocation`].

use std::path::Path;

use agent_core::allocation::Allocations;
use agent_core::allocation::checkpoint::{self, ACTUATED, ALLOCATED, BYTES_MAX};
use agent_core::resource_managers::{CPU_STATE, MEMORY_STATE, ManagerRecords};
use agent_linux::files::{self, Durability, FilesError};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::resources::amounts::Amounts;
use agent_types::runtime::observed::ContainerObserved;
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::{PodDirs, chain};

const FILE_MODE: u32 = 0o600;

/// The owner of actuated resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResourcesOwner {
    /// A container, by its name.
    Container(String),
    /// The pod itself (`spec.resources`).
    Pod,
}

/// Resources that containers have. A reader never waits for the disk: the runtime's own threads read, too.
#[derive(Debug, Default)]
pub(super) struct Actuated {
    /// Held for a moment, never while the file is written.
    have: Lock<ActuatedResources>,
    /// Held while the file is written, so that the file never goes back to an older state. Taken before `have`.
    file: Lock<()>,
}

#[derive(Debug, Default)]
struct ActuatedResources {
    all: Allocations,
    /// Number of changes of `all`.
    changes: u64,
    /// How many of them the file has.
    written: u64,
}

impl ActuatedResources {
    /// Sets the resources of a container, or of the pod itself.
    fn set(&mut self, uid: &PodUid, whose: ResourcesOwner, resources: ResourceRequirements) {
        let known = self.all.get(uid).and_then(|pod| match &whose {
            ResourcesOwner::Container(name) => pod.containers.get(name),
            ResourcesOwner::Pod => pod.pod.as_ref(),
        });
        let is_nothing = Amounts::of(Some(&resources)) == Amounts::default();
        if known == Some(&resources) || (known.is_none() && is_nothing) {
            return;
        }
        let pod = self.all.entry(uid.clone()).or_default();
        match whose {
            ResourcesOwner::Container(name) => drop(pod.containers.insert(name, resources)),
            ResourcesOwner::Pod => pod.pod = Some(resources),
        }
        self.changes += 1;
    }

    /// The last change, if the file does not have it.
    fn due(&self) -> Option<u64> {
        Some(self.changes).filter(|change| self.written < *change)
    }
}

impl PodDirs {
    /// Reads both records: allocated and actuated resources.
    ///
    /// # Errors
    /// A file that exists cannot be read.
    pub fn restore_allocations(&self) -> Result<(Allocations, Allocations), DriverError> {
        let (allocated, mut actuated) =
            (read(&self.root().join(ALLOCATED))?, read(&self.root().join(ACTUATED))?);
        // Drop pods that are gone: an earlier agent ended before it removed them.
        actuated.retain(|uid, _| self.pod_dir(uid).is_ok_and(|own| own.is_dir()));
        *self.actuated.have.lock() = ActuatedResources { all: actuated.clone(), changes: 0, written: 0 };
        Ok((allocated, actuated))
    }

    /// Writes the allocated resources.
    ///
    /// # Errors
    /// The step that failed; the old record is untouched.
    pub fn record_allocated(&self, all: &Allocations) -> Result<(), FilesError> {
        files::write_atomic(
            &self.root().join(ALLOCATED),
            &checkpoint::encode(all),
            FILE_MODE,
            Durability::Synced,
        )
    }

    /// Writes the managers' states that changed.
    ///
    /// # Errors
    /// The step that failed; the old record is untouched.
    pub fn record_managers(&self, records: &ManagerRecords) -> Result<(), FilesError> {
        for (name, state) in [(CPU_STATE, &records.cpus), (MEMORY_STATE, &records.memory)] {
            if let Some(state) = state {
                files::write_atomic(
                    &self.root().join(name),
                    state.as_bytes(),
                    FILE_MODE,
                    Durability::Synced,
                )?;
            }
        }
        Ok(())
    }

    /// Remembers what a container or the pod itself has, or is about to have.
    ///
    /// # Errors
    /// The step that failed. The value stays in memory, and the next write includes it.
    pub fn record_actuated(
        &self,
        uid: &PodUid,
        whose: ResourcesOwner,
        resources: ResourceRequirements,
    ) -> Result<(), DriverError> {
        let due = {
            let mut have = self.actuated.have.lock();
            have.set(uid, whose, resources);
            have.due()
        };
        due.map_or(Ok(()), |change| Ok(self.write_actuated(change)?))
    }

    /// Records the resources in the pod's observed containers, and returns those of the pod itself:
    /// [`PodAllocation::recall`](agent_core::allocation::PodAllocation::recall).
    pub fn recall_actuated(&self, uid: &PodUid, observed: &mut [ContainerObserved]) -> Option<Amounts> {
        self.actuated.have.lock().all.get(uid).and_then(|had| had.recall(observed))
    }

    /// Removes the pod from the record.
    pub(super) fn forget_actuated(&self, uid: &PodUid) {
        let change = {
            let mut have = self.actuated.have.lock();
            let known = have.all.remove(uid).is_some();
            have.changes += u64::from(known);
            known.then_some(have.changes)
        };
        if let Some(change) = change
            && let Err(error) = self.write_actuated(change)
        {
            tracing::warn!(%uid, error = %chain(&error), "what the pod's containers had is not forgotten on disk");
        }
    }

    /// Returns when the file has the change. The file has all containers of all pods, and many may be created at the same time: who
    /// waits for the file finds that the writer before had written its change, too.
    fn write_actuated(&self, change: u64) -> Result<(), FilesError> {
        let _alone = self.actuated.file.lock();
        let (changes, text) = {
            let have = self.actuated.have.lock();
            if have.written >= change {
                return Ok(());
            }
            (have.changes, checkpoint::encode(&have.all))
        };
        let path = self.root().join(ACTUATED);
        files::write_atomic(&path, &text, FILE_MODE, Durability::Rebuildable)?;
        self.actuated.have.lock().written = changes;
        Ok(())
    }
}

fn read(path: &Path) -> Result<Allocations, DriverError> {
    let bytes = match files::read_capped(path, BYTES_MAX) {
        Err(e) if e.class() == Class::NotFound => return Ok(Allocations::new()),
        Ok(bytes) if bytes.is_empty() => {
            tracing::warn!(path = %path.display(), "record of allocations is empty, as a power cut leaves it");
            return Ok(Allocations::new());
        }
        read => read?,
    };
    checkpoint::decode(&bytes).or_else(|error| {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".damaged");
        std::fs::rename(path, &aside).map_err(|e| DriverError {
            operation: "rename",
            object: path.display().to_string(),
            class: Class::Invalid,
            message: e.to_string(),
        })?;
        tracing::error!(
            path = %path.display(), aside = %Path::new(&aside).display(), error = %chain(&error),
            "record of allocations is damaged and was put aside: pods are given what they ask for"
        );
        Ok(Allocations::new())
    })
}

#[cfg(test)]
mod tests {
    use agent_core::allocation::PodAllocation;
    use agent_types::time::Wall;
    use serde_json::json;

    use super::*;

    fn dirs(at: &Path) -> PodDirs {
        std::fs::create_dir_all(at.join("pods/u")).unwrap();
        PodDirs::new(at, &at.join("logs"), &at.join("links"))
    }

    fn of(container: &str) -> ResourcesOwner {
        ResourcesOwner::Container(container.to_owned())
    }

    fn cpu(amount: &str) -> ResourceRequirements {
        serde_json::from_value(json!({"requests": {"cpu": amount}})).unwrap()
    }

    #[test]
    fn what_was_recorded_outlives_the_agent() {
        let at = tempfile::tempdir().unwrap();
        let first = dirs(at.path());
        let containers = [("c".to_owned(), cpu("250m"))].into();
        let given: Allocations = [("u".into(), PodAllocation { containers, pod: None })].into();
        first.record_allocated(&given).unwrap();
        first.record_actuated(&"u".into(), of("c"), cpu("1")).unwrap();
        first.record_actuated(&"u".into(), of("none"), ResourceRequirements::default()).unwrap();
        first.record_actuated(&"u".into(), ResourcesOwner::Pod, cpu("2")).unwrap();
        let second = dirs(at.path());
        let (allocated, actuated) = second.restore_allocations().unwrap();
        assert_eq!(allocated, given);
        let containers = [("c".to_owned(), cpu("1"))].into();
        let had = PodAllocation { containers, pod: Some(cpu("2")) };
        assert_eq!(actuated[&PodUid::from("u")], had, "nothing is not remembered");
        let mut seen = [ContainerObserved::created("1", "s", "c", 0, Wall(1))];
        let own = second.recall_actuated(&"u".into(), &mut seen);
        assert_eq!(
            (own, seen[0].actuated),
            (Some(Amounts::of(Some(&cpu("2")))), Some(Amounts::of(Some(&cpu("1")))))
        );
        assert_eq!(second.recall_actuated(&"other".into(), &mut seen), None);
        second.forget_actuated(&"u".into());
        second.record_actuated(&"gone".into(), of("c"), cpu("1")).unwrap();
        assert!(dirs(at.path()).restore_allocations().unwrap().1.is_empty());
    }

    #[test]
    fn a_change_that_another_write_had_is_not_written_again() {
        let at = tempfile::tempdir().unwrap();
        let (first, path) = (dirs(at.path()), at.path().join(ACTUATED));
        for (container, amount) in [("a", "1"), ("b", "2")] {
            first.record_actuated(&"u".into(), of(container), cpu(amount)).unwrap();
        }
        std::fs::remove_file(&path).unwrap();
        first.write_actuated(1).unwrap();
        first.record_actuated(&"u".into(), of("b"), cpu("2")).unwrap();
        first.forget_actuated(&"other".into());
        assert!(!path.exists(), "the file had both changes");
        first.record_actuated(&"u".into(), of("b"), cpu("3")).unwrap();
        let read = dirs(at.path()).restore_allocations().unwrap().1;
        assert_eq!(read[&PodUid::from("u")].containers.len(), 2);
    }

    #[test]
    fn a_change_that_could_not_be_written_is_written_with_the_next_try() {
        let at = tempfile::tempdir().unwrap();
        let (first, path) = (dirs(at.path()), at.path().join(ACTUATED));
        // A directory in the place of the file.
        std::fs::create_dir_all(path.join("in-the-way")).unwrap();
        assert!(first.record_actuated(&"u".into(), of("a"), cpu("1")).is_err());
        std::fs::remove_dir_all(&path).unwrap();
        first.record_actuated(&"u".into(), of("a"), cpu("1")).unwrap();
        assert!(path.is_file());
    }

    #[test]
    fn what_is_recorded_at_the_same_time_is_all_in_the_file() {
        let at = tempfile::tempdir().unwrap();
        let first = dirs(at.path());
        std::thread::scope(|scope| {
            for n in 0..16 {
                let first = &first;
                scope.spawn(move || {
                    first.record_actuated(&"u".into(), of(&format!("c{n}")), cpu("1")).unwrap()
                });
            }
        });
        let read = dirs(at.path()).restore_allocations().unwrap().1;
        assert_eq!(read[&PodUid::from("u")].containers.len(), 16);
    }

    #[test]
    fn an_empty_record_counts_as_none() {
        let at = tempfile::tempdir().unwrap();
        let first = dirs(at.path());
        first.record_actuated(&"u".into(), of("c"), cpu("1")).unwrap();
        for name in [ALLOCATED, ACTUATED] {
            std::fs::write(at.path().join(name), "").unwrap();
        }
        let second = dirs(at.path());
        let (allocated, actuated) = second.restore_allocations().unwrap();
        assert!(allocated.is_empty() && actuated.is_empty());
        assert!(
            !at.path().join(format!("{ACTUATED}.damaged")).exists(),
            "nothing is lost that could be looked at"
        );
        second.record_actuated(&"u".into(), of("c"), cpu("2")).unwrap();
        assert_eq!(dirs(at.path()).restore_allocations().unwrap().1.len(), 1);
    }

    #[test]
    fn a_damaged_record_is_put_aside_and_the_other_one_read() {
        let at = tempfile::tempdir().unwrap();
        let first = dirs(at.path());
        first.record_actuated(&"u".into(), of("c"), cpu("1")).unwrap();
        for garbage in [" ", "{}", "\0\0\0", "{\"data\":\"{}\",\"checksum\":1}"] {
            std::fs::write(at.path().join(ALLOCATED), garbage).unwrap();
            let (allocated, actuated) = dirs(at.path()).restore_allocations().unwrap();
            assert!(allocated.is_empty() && actuated.len() == 1, "{garbage:?}");
            let aside = at.path().join(format!("{ALLOCATED}.damaged"));
            assert_eq!(std::fs::read_to_string(aside).unwrap(), garbage);
        }
    }
}
