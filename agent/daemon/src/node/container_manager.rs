//! The shell of the container manager: pods' cgroups and those above them, by the driver of this machine.
//!
//! ```text
//! known pods (watch) ──► container manager ──Apply──► driver ──► systemd, /sys/fs/cgroup
//!                              │ ready                  ▲
//! pod workers ─► executor ─► PodCgroups ────────────────┘
//! ```
//! In: which pods there are, workers' effects. Out: cgroups, events of the node. Invariants: a pod's cgroup is made after those
//! above it; an orphan is looked at and removed while no pod's cgroup is being made, so none of a pod that just came is
//! taken for one. See [`agent_core::container_manager`].

mod metered;
pub mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agent_core::container_manager::{
    Config, ContainerManager as Machine, ContainerManagerAction, ContainerManagerEvent, Target,
};
use agent_kubelet_api::drivers::{Applied, Cgroups};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::PodUid;
use agent_types::resources::QosClass;
use agent_types::resources::cgroups::name::key;
use agent_types::resources::cgroups::pod::{self, PodCgroup};
use agent_types::resources::cgroups::tiers::{Sums, tier};
use agent_types::resources::cgroups::{CgroupName, CgroupValues};
use agent_types::time::Now;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{RwLock, watch};
use tokio::time::timeout;

use crate::node::container_manager::metered::Metered;
use crate::node::node_events::NodeEvents;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::alive::Owner;
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};
use crate::tasks::stops::AgentStops;

/// What systemd may take for one cgroup; its own calls give up after as long.
const APPLY_MAX: Duration = Duration::from_secs(30);

/// The pods of the node, for the tasks that look after their cgroups, volumes and directories.
#[derive(Clone, Debug, Default)]
pub struct KnownPods {
    /// Those that have a worker.
    pub workers: BTreeSet<PodUid>,
    /// Those that a source wants. One that waits for its worker may run since before this agent.
    pub wanted: BTreeSet<PodUid>,
    /// Those whose requests admission counts.
    pub admitted: Vec<Arc<Pod>>,
    /// Every source was read and the runtime listed: other pods do not exist.
    pub synced: bool,
}

impl KnownPods {
    /// One of the pods is that.
    fn has(&self, is_it: impl Fn(&PodUid) -> bool) -> bool {
        self.workers.iter().chain(&self.wanted).any(is_it)
    }

    /// Takes over which pods are admitted; true if that is news.
    pub fn see<'a>(&mut self, admitted: impl Iterator<Item = &'a Arc<Pod>>) -> bool {
        let admitted: Vec<&Arc<Pod>> = admitted.collect();
        let is_same = |(a, b): (&&Arc<Pod>, &Arc<Pod>)| Arc::ptr_eq(a, b);
        if admitted.len() == self.admitted.len() && admitted.iter().zip(&self.admitted).all(is_same) {
            return false;
        }
        self.admitted = admitted.into_iter().cloned().collect();
        true
    }
}

/// [`Cgroups`] as an object.
pub trait Driver: Send + Sync + 'static {
    /// [`Cgroups::apply`].
    fn apply<'a>(
        &'a self,
        name: &'a CgroupName,
        values: &'a CgroupValues,
        make: bool,
    ) -> BoxFuture<'a, Result<Applied, DriverError>>;
    /// [`Cgroups::remove`].
    fn remove<'a>(&'a self, name: &'a CgroupName) -> BoxFuture<'a, Result<bool, DriverError>>;
    /// [`Cgroups::memory_in_use`].
    fn memory_in_use<'a>(&'a self, name: &'a CgroupName) -> BoxFuture<'a, Result<Option<u64>, DriverError>>;
    /// [`Cgroups::children`].
    fn children<'a>(&'a self, name: &'a CgroupName) -> BoxFuture<'a, Result<Vec<String>, DriverError>>;
}

impl<C: Cgroups> Driver for C {
    fn apply<'a>(
        &'a self,
        name: &'a CgroupName,
        values: &'a CgroupValues,
        make: bool,
    ) -> BoxFuture<'a, Result<Applied, DriverError>> {
        Box::pin(Cgroups::apply(self, name, values, make))
    }

    fn remove<'a>(&'a self, name: &'a CgroupName) -> BoxFuture<'a, Result<bool, DriverError>> {
        Box::pin(Cgroups::remove(self, name))
    }

    fn memory_in_use<'a>(&'a self, name: &'a CgroupName) -> BoxFuture<'a, Result<Option<u64>, DriverError>> {
        Box::pin(Cgroups::memory_in_use(self, name))
    }

    fn children<'a>(&'a self, name: &'a CgroupName) -> BoxFuture<'a, Result<Vec<String>, DriverError>> {
        Box::pin(Cgroups::children(self, name))
    }
}

/// What a container manager is made from.
#[derive(Clone)]
pub struct ContainerManagerPlan {
    /// Who makes cgroups.
    pub driver: Arc<dyn Driver>,
    /// What they are to be.
    pub config: Config,
}

impl ContainerManagerPlan {
    /// Makes the cgroups of all pods and of their classes, as the machine will ask for them again: while the runtime
    /// starts there is time for it. The machine tries again what fails, and reports it.
    pub async fn prepare(self) {
        let Config { kubepods, root, classes, .. } = &self.config;
        let mut all = vec![(kubepods.clone(), root.clone())];
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            let values = tier(class, None, classes);
            all.push((pod::of_class(kubepods, class), values));
        }
        for (name, values) in all {
            if let Err(error) = self.driver.apply(&name, &values, true).await {
                tracing::info!(cgroup = %name, %error, "cgroup not made yet");
                return;
            }
        }
    }
}

/// Pods' own cgroups; clones share the driver.
#[derive(Clone)]
pub struct PodCgroups {
    driver: Arc<dyn Driver>,
    kubepods: CgroupName,
    /// Those above them are there.
    ready: watch::Receiver<bool>,
    /// Held for reading while one is made, for writing while an orphan is removed.
    making: Arc<RwLock<()>>,
}

impl PodCgroups {
    /// Makes a pod's cgroup, or sees to it that it is as it should be.
    ///
    /// # Errors
    /// The driver's. Those above it are waited for: the caller has a deadline.
    pub async fn ensure(&self, cgroup: &PodCgroup) -> Result<(), DriverError> {
        let mut ready = self.ready.clone();
        if ready.wait_for(|ready| *ready).await.is_err() {
            return Err(DriverError {
                operation: "make cgroup",
                object: cgroup.name.to_string(),
                class: Class::Unavailable,
                message: AgentStops.into(),
            });
        }
        // Held across awaits: several tasks may make cgroups at the same time.
        let _making = self.making.read().await;
        self.driver.apply(&cgroup.name, &cgroup.values, true).await.map(drop)
    }

    /// Bytes of memory in use in a pod's cgroup; `None` if it is gone.
    ///
    /// # Errors
    /// The driver's.
    pub async fn memory_in_use(&self, name: &CgroupName) -> Result<Option<u64>, DriverError> {
        self.driver.memory_in_use(name).await
    }

    /// Removes a pod's cgroup from the tiers of all classes, with everything that is left in it.
    ///
    /// # Errors
    /// The driver's.
    pub async fn remove(&self, uid: &PodUid) -> Result<(), DriverError> {
        for name in pod::places(&self.kubepods, uid.as_str()) {
            self.driver.remove(&name).await?;
        }
        Ok(())
    }

    /// Removes cgroups of pods that do not exist any more.
    async fn sweep(&self, known: &watch::Receiver<KnownPods>) {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let above = pod::of_class(&self.kubepods, class);
            let directories = self.driver.children(&above).await.unwrap_or_else(|error| {
                tracing::warn!(cgroup = %above, %error, "cgroups of pods cannot be listed");
                Vec::new()
            });
            let found = directories.iter().filter_map(|directory| pod::of_directory(directory));
            for (component, uid) in found {
                let _alone = self.making.write().await;
                if known.borrow().has(|known| key(known.as_str()) == uid) {
                    continue;
                }
                let name = above.child(component);
                match self.driver.remove(&name).await {
                    Ok(_) => tracing::info!(cgroup = %name, "orphaned cgroup of a pod removed"),
                    Err(error) => tracing::warn!(cgroup = %name, %error, "orphaned cgroup of a pod stays"),
                }
            }
        }
    }
}

/// A container manager that has not begun.
pub struct ContainerManager {
    config: Config,
    pods: PodCgroups,
    ready: watch::Sender<bool>,
    own: Sender<ContainerManagerEvent>,
    inbox: Inbox<ContainerManagerEvent>,
    metrics: Metrics,
}

impl ContainerManager {
    /// One that does nothing yet.
    #[must_use]
    pub fn new(plan: ContainerManagerPlan, metrics: &Metrics, tasks: &Tasks) -> ContainerManager {
        let (ready, is_ready) = watch::channel(false);
        let (own, inbox) = tasks.mailbox();
        let pods = PodCgroups {
            driver: Arc::new(Metered { driver: plan.driver, metrics: metrics.clone() }),
            kubepods: plan.config.kubepods.clone(),
            ready: is_ready,
            making: Arc::default(),
        };
        ContainerManager { config: plan.config, pods, ready, own, inbox, metrics: metrics.clone() }
    }

    /// For workers' effects.
    #[must_use]
    pub fn pods(&self) -> PodCgroups {
        self.pods.clone()
    }

    /// Begins; `known` are the node's pods.
    pub fn start(self, known: watch::Receiver<KnownPods>, node_events: NodeEvents, tasks: &Tasks) -> Owner {
        let ContainerManager { config, pods, ready, own, inbox, metrics } = self;
        let memory = config.classes.memory;
        let shell = ContainerManagerShell {
            pods,
            known: known.clone(),
            ready,
            own: own.clone(),
            node_events,
            tasks: tasks.clone(),
        };
        tasks.own(Machine::new(config), shell, inbox);
        tasks.start(follow(known, own.clone(), move |sums| metrics.memory_qos(memory, sums)));
        own.send(ContainerManagerEvent::Tick);
        Owner::new("container manager", own)
    }
}

/// Sends the sums of the pods' requests as soon as all pods are known, and once that they are known.
async fn follow(
    mut known: watch::Receiver<KnownPods>,
    to: Sender<ContainerManagerEvent>,
    count: impl Fn(Sums) + Send,
) {
    let mut synced = false;
    loop {
        let (sums, now_synced) = {
            let known = known.borrow_and_update();
            (Sums::of(&known.admitted), known.synced)
        };
        count(sums);
        if now_synced {
            to.send(ContainerManagerEvent::Pods(sums));
            if !std::mem::replace(&mut synced, true) {
                to.send(ContainerManagerEvent::Synced);
            }
        }
        if known.changed().await.is_err() {
            return;
        }
    }
}

struct ContainerManagerShell {
    pods: PodCgroups,
    known: watch::Receiver<KnownPods>,
    ready: watch::Sender<bool>,
    own: Sender<ContainerManagerEvent>,
    node_events: NodeEvents,
    tasks: Tasks,
}

impl ContainerManagerShell {
    fn apply(&self, target: Target, name: CgroupName, mut values: CgroupValues, make: bool) {
        let (driver, own) = (self.pods.driver.clone(), self.own.clone());
        self.tasks.start(async move {
            if let (Target::Class(_), Some(max)) = (target, values.memory_max) {
                // Less than is in use would have the kernel kill pods that did nothing; the next look tries again.
                let in_use = driver.memory_in_use(&name).await.ok().flatten().unwrap_or_default();
                values.memory_max = Some(max.max(in_use));
            }
            let applied = timeout(APPLY_MAX, driver.apply(&name, &values, make)).await;
            let result = match applied {
                Ok(result) => result.map(drop).map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer within {} s", APPLY_MAX.as_secs())),
            };
            match &result {
                Ok(()) => tracing::debug!(cgroup = %name, "cgroup is as it should be"),
                Err(error) => tracing::warn!(cgroup = %name, %error, "cgroup not made or not changed"),
            }
            own.send(ContainerManagerEvent::Applied { target, result });
        });
    }
}

impl Shell for ContainerManagerShell {
    type Machine = Machine;

    fn tick(&self) -> ContainerManagerEvent {
        ContainerManagerEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: ContainerManagerAction) {
        match action {
            ContainerManagerAction::Apply { target, name, values, make } => {
                self.apply(target, name, values, make);
            }
            ContainerManagerAction::Ready => {
                tracing::info!(cgroup = %self.pods.kubepods, "cgroups of all pods and their classes are there");
                self.ready.send_replace(true);
            }
            ContainerManagerAction::Sweep => {
                let (pods, known, own) = (self.pods.clone(), self.known.clone(), self.own.clone());
                self.tasks.start(async move {
                    pods.sweep(&known).await;
                    own.send(ContainerManagerEvent::Swept);
                });
            }
            ContainerManagerAction::Tell(fact) => self.node_events.of_node(fact),
        }
    }
}

impl Coalesce for ContainerManagerEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (ContainerManagerEvent::Pods(_), ContainerManagerEvent::Pods(_))
            | (ContainerManagerEvent::Tick, ContainerManagerEvent::Tick) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}

#[cfg(test)]
mod tests;
