//! Signals of the eviction manager on a real machine.
//!
//! In: /proc, cgroups, file systems, the runtime, pressure stall information. Out: [`Senses`]. Invariants: no call
//! takes longer than [`PATIENCE`]; a runtime that has not reported its image filesystem is asked again; without
//! pressure stall information in the kernel only the timer triggers, and the log says so once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::eviction::{Measure, PERIOD, Reclaim, Uses};
use agent_kubelet_api::drivers::{Runtime, Statistics as RuntimeStatistics, StoragePlaces};
use agent_kubelet_api::stats::ShownPod;
use agent_kubelet_api::stats::cgroup::Extent;
use agent_linux::eviction_signals::{self, SignalPaths};
use agent_linux::pressure::{self, Trigger};
use agent_types::lock::Lock;
use agent_types::resources::observation::{Layout, Observations};
use agent_types::time::Mono;

use crate::images::garbage_collection::GarbageCollection;
use crate::node::eviction::{EvictionFuture, Senses};
use crate::pods::pod_dirs::chain;
use crate::serving::statistics::{Statistics, StatisticsContext};
use crate::settings::Settings;
use crate::tasks::actor::Tasks;

/// Time limit of a call. A collection of garbage goes on after it.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the runtime may take to report its image filesystem: the memory signal does not wait longer.
const PLACES_MAX: Duration = Duration::from_secs(2);
/// Tasks that wait for memory for this long ...
const STALL: Duration = Duration::from_millis(100);
/// ... of this are a hint.
const WINDOW: Duration = Duration::from_secs(1);

/// The machine's senses.
pub struct LinuxSenses<R> {
    images: Arc<R>,
    statistics: Statistics<R>,
    /// Held for a moment only; when the runtime is asked (again).
    places: Lock<(SignalPaths, Mono)>,
    trigger: Option<Trigger>,
    garbage: GarbageCollection,
    tasks: Tasks,
}

impl<R: Runtime + RuntimeStatistics> LinuxSenses<R> {
    /// `kubepods` is the cgroup of all pods.
    #[must_use]
    pub fn new(
        settings: &Settings,
        node_name: &str,
        kubepods: String,
        runtime: Arc<R>,
        images: Arc<R>,
        garbage: GarbageCollection,
        tasks: Tasks,
    ) -> LinuxSenses<R> {
        let trigger = Trigger::open(Path::new(pressure::MEMORY), STALL, WINDOW);
        let trigger = trigger.inspect_err(|error| {
            tracing::info!(error = chain(error), "no hints that memory is short; it is looked at by time");
        });
        let places = SignalPaths {
            root_dir: PathBuf::from(&settings.options.root_dir),
            pods: kubepods.clone(),
            ..SignalPaths::default()
        };
        let place = StatisticsContext::new(settings, node_name, kubepods, tasks.now().wall);
        let period = orlop_config::Duration::from_secs(i64::try_from(PERIOD.as_secs()).unwrap_or(i64::MAX));
        // The figures of the API are as old as its configuration allows; these are not.
        let statistics = Statistics::new(place, period, PATIENCE / 2, runtime, images.clone(), tasks.clone());
        LinuxSenses {
            images,
            statistics,
            places: Lock::new((places, Mono(0))),
            trigger: trigger.ok(),
            garbage,
            tasks,
        }
    }

    /// The paths, with the runtime's if they are known.
    async fn places(&self) -> SignalPaths {
        let now = self.tasks.now().mono;
        let (mut places, next) = self.places.lock().clone();
        if places.images.is_some() || next > now {
            return places;
        }
        let asked = tokio::time::timeout(PLACES_MAX, self.images.storage_places()).await;
        match asked {
            Ok(Ok(StoragePlaces { images, containers })) => {
                places.images = images.map(PathBuf::from);
                places.containers = containers.map(PathBuf::from);
                tracing::info!(images = ?places.images, containers = ?places.containers, "the runtime's disks");
            }
            Ok(Err(error)) => tracing::warn!(error = chain(&error), "where images are is not known yet"),
            Err(_) => tracing::warn!("where images are is not known yet: the runtime does not answer"),
        }
        let mut known = self.places.lock();
        *known = (places.clone(), now.after(PERIOD));
        places
    }
}

impl<R: Runtime + RuntimeStatistics> Senses for LinuxSenses<R> {
    fn observe(&self) -> EvictionFuture<'_, (Observations, Option<Layout>)> {
        Box::pin(async move {
            let (places, at) = (self.places().await, self.tasks.now().wall);
            let read = move || (eviction_signals::observe(&places, at), places.layout());
            // `None` means that the node is being stopped; then the result is not used.
            self.tasks.blocking(read).await.unwrap_or_default()
        })
    }

    fn uses(&self, measure: Measure, pods: Vec<ShownPod>) -> EvictionFuture<'_, Result<Uses, String>> {
        Box::pin(async move {
            let (extent, storage) = match measure {
                Measure::Memory => (Extent::Resource, false),
                Measure::Processes => (Extent::Summary, false),
                Measure::Storage => (Extent::Resource, true),
            };
            let uses = self.statistics.uses(extent, storage, &pods);
            let late = || format!("no answer within {PATIENCE:?}");
            tokio::time::timeout(PATIENCE, uses).await.unwrap_or_else(|_| Err(late()))
        })
    }

    fn reclaim(&self, what: Reclaim) -> EvictionFuture<'_, ()> {
        Box::pin(async move {
            // Containers first: their images are in use until then.
            if what.containers {
                match tokio::time::timeout(PATIENCE, self.garbage.delete_unused_containers()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(error = chain(&error), "dead containers not removed"),
                    Err(_) => {
                        tracing::warn!("dead containers are still being removed; nobody waits for that")
                    }
                }
            }
            if !what.images {
                return;
            }
            match tokio::time::timeout(PATIENCE, self.garbage.delete_unused_images()).await {
                Ok(Ok(freed_bytes)) => tracing::info!(freed_bytes, "unused images removed for their room"),
                Ok(Err(error)) => tracing::warn!(error = chain(&error), "unused images not removed"),
                Err(_) => tracing::warn!("unused images are still being removed; nobody waits for that"),
            }
        })
    }

    fn pressed(&self) -> EvictionFuture<'_, ()> {
        Box::pin(async move {
            if let Some(trigger) = &self.trigger {
                match trigger.pressed().await {
                    Ok(()) => return,
                    Err(error) => tracing::warn!(error = chain(&error), "no more hints that memory is short"),
                }
            }
            std::future::pending().await
        })
    }
}
