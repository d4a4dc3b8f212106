//! The slots of the disk, as the driver of updates uses them: one call at a time, on a thread that nothing else waits for.
//!
//! In: calls. Out: the boot record, changes of it and of the ESP ([`orlop_update`]). Invariant: each answer comes, or its caller has a
//! time limit: a disk that hangs keeps the thread and nobody else.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_linux::files;
use orlop_config::error_chain::chain;
use orlop_config::slots::{BootRecord, SlotName};
use orlop_update::service::running_version;
use orlop_update::{DiskFault, SlotDisk};
use tokio::time::timeout;

use crate::tasks::actor::Tasks;
use crate::tasks::stops::AgentStops;

/// Names the version that runs.
const OS_RELEASE: &str = "/usr/lib/os-release";
/// Longest such file that is read, bytes.
const OS_RELEASE_BYTES_MAX: u64 = 64 << 10;
/// A disk that does not answer keeps the agent from its start for so long.
const FIND_MAX: Duration = Duration::from_secs(20);
/// And from its end. A record that was not written makes the next boot look like one after a power cut.
const ENDS_MAX: Duration = Duration::from_secs(10);

/// Boot record and ESP of a node. Errors are for people.
pub trait SlotStore: Send + Sync + 'static {
    /// The slot that runs.
    fn booted(&self) -> SlotName;

    /// The version that runs; empty if it is not known.
    fn version(&self) -> &str;

    /// The record that counts.
    ///
    /// # Errors
    /// It cannot be read.
    fn record(&self) -> Result<BootRecord, String>;

    /// Orders a trial of the other slot, and shows it to the loader. `deadline_s` counts from the boot on, seconds.
    ///
    /// # Errors
    /// Nothing was ordered, or the same call has to go on.
    fn order(&self, update: &str, deadline_s: u32) -> Result<(), String>;

    /// Takes back an order of a trial that has not begun.
    ///
    /// # Errors
    /// Record or ESP cannot be written.
    fn withdraw(&self) -> Result<(), String>;

    /// Says what was found out about the other slot.
    ///
    /// # Errors
    /// Record or ESP cannot be written.
    fn settle(&self, refused: Option<&str>) -> Result<(), String>;

    /// The node was ready in this boot.
    ///
    /// # Errors
    /// The record cannot be written.
    fn is_ready(&self) -> Result<(), String>;

    /// The machine stops in order.
    ///
    /// # Errors
    /// The record cannot be written.
    fn ends(&self) -> Result<(), String>;
}

/// Those of the machine's disk.
struct DiskSlots {
    disk: SlotDisk,
    version: String,
}

impl SlotStore for DiskSlots {
    fn booted(&self) -> SlotName {
        self.disk.places.running
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn record(&self) -> Result<BootRecord, String> {
        self.disk.record().map(|(record, _)| record).map_err(|e| chain(&e))
    }

    fn order(&self, update: &str, deadline_s: u32) -> Result<(), String> {
        self.disk.order_trial(update, deadline_s, &self.version).map_err(|e| chain(&e))
    }

    fn withdraw(&self) -> Result<(), String> {
        self.disk.withdraw_trial().map_err(|e| chain(&e))
    }

    fn settle(&self, refused: Option<&str>) -> Result<(), String> {
        self.disk.settle_trial(refused).map_err(|e| chain(&e))
    }

    fn is_ready(&self) -> Result<(), String> {
        self.disk.boot_is_ready(&self.version).map_err(|e| chain(&e))
    }

    fn ends(&self) -> Result<(), String> {
        self.disk.boot_ends().map_err(|e| chain(&e))
    }
}

/// The slots of this machine; clones share them.
#[derive(Clone)]
pub struct Slots {
    store: Arc<dyn SlotStore>,
    tasks: Tasks,
}

impl Slots {
    /// Those of a store.
    #[must_use]
    pub fn new(store: Arc<dyn SlotStore>, tasks: &Tasks) -> Slots {
        Slots { store, tasks: tasks.clone() }
    }

    /// Those of the disk that this system was booted from; none if it was not booted from a slot.
    pub async fn of_machine(tasks: &Tasks) -> Option<Slots> {
        let found = tasks.blocking_update(|| {
            let disk = SlotDisk::running()?;
            disk.record()?;
            let text = files::read_capped(Path::new(OS_RELEASE), OS_RELEASE_BYTES_MAX).unwrap_or_default();
            let version = running_version(&String::from_utf8_lossy(&text));
            Ok::<_, DiskFault>(DiskSlots {
                disk,
                version: version.map(|v| v.to_string()).unwrap_or_default(),
            })
        });
        let Ok(found) = timeout(FIND_MAX, found).await else {
            tracing::error!(
                limit_s = FIND_MAX.as_secs(),
                "the disk does not answer: updates of this node are not driven"
            );
            return None;
        };
        match found? {
            Ok(store) => Some(Slots::new(Arc::new(store), tasks)),
            Err(DiskFault::NoSlot) => {
                tracing::debug!("not booted from a slot: updates are not this agent's matter");
                None
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "updates of this node are not driven");
                None
            }
        }
    }

    /// The slot that runs.
    #[must_use]
    pub fn booted(&self) -> SlotName {
        self.store.booted()
    }

    /// The version that runs; empty if it is not known.
    #[must_use]
    pub fn version(&self) -> &str {
        self.store.version()
    }

    /// Runs a call of the store.
    ///
    /// # Errors
    /// The call's, or the agent stops.
    pub async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn SlotStore) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let store = Arc::clone(&self.store);
        let done = self.tasks.blocking_update(move || call(&*store)).await;
        done.unwrap_or_else(|| Err(AgentStops.into()))
    }

    /// Notes in the boot record that the node was ready in this boot: boots that never were are counted anew.
    pub async fn boot_is_ready(self) {
        if let Err(error) = self.run(|slots| slots.is_ready()).await {
            tracing::warn!(error, "the boot record does not say that the node was ready");
        }
    }

    /// Notes in the boot record that the machine stops in order: the next boot finds no power cut.
    pub async fn boot_ends(&self) {
        let ended = timeout(ENDS_MAX, self.run(|slots| slots.ends())).await;
        let ended = ended.unwrap_or_else(|_| Err(format!("no answer within {} s", ENDS_MAX.as_secs())));
        if let Err(error) = ended {
            tracing::warn!(error, "the boot record does not say that the machine stops in order");
        }
    }
}
