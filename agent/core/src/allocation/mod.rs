//! allocation: what each pod was given of cpu and memory, and how that is changed while it runs (KEP-1287).
//!
//! ```text
//! desired pod ──► resize::judge ──► given (checkpoint, durable) ──► allocated pod ──► worker ──► actuate::plan ──► steps
//!                    │ deferred, infeasible                                             │
//!                    └──► condition PodResizePending                                    └──► condition PodResizeInProgress
//! ```
//! In: pods as they are wanted, what was given, what containers have. Out: verdicts, pods with the amounts that were given to
//! them, steps. Pure. Invariants: whatever the runtime is told of a pod's amounts was given to it before (ALLOC-DURABLE); what
//! was given fits (ALLOC-CAP). Who keeps the record is the pod manager. docs/resize.md.
//! Upstream: pkg/kubelet/allocation, doPodResizeAction.

pub mod actuate;
pub mod checkpoint;
pub mod message;
pub mod resize;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Deserializer, Serialize};

use crate::resources::requests::{CPU, MEMORY, resources_in_pod};
use crate::runtime::PodUid;
use crate::runtime::observed::{ContainerObserved, ContainerState};
use crate::types::{Quantity, pod, quantity_text};

type List = BTreeMap<String, ApiQuantity>;

/// `resizePolicy` wants the container to begin anew when its amount of `resource` is changed.
#[must_use]
pub fn is_restarted_for(container: &Container, resource: &str) -> bool {
    let first = container.resize_policy.iter().flatten().find(|p| p.resource_name == resource);
    first.is_some_and(|p| p.restart_policy == "RestartContainer")
}

/// The amounts that can be changed while a container runs; zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// Thousandths of a core.
    pub cpu_request_milli: i64,
    /// Thousandths of a core.
    pub cpu_limit_milli: i64,
    /// Bytes.
    pub memory_request: i64,
    /// Bytes.
    pub memory_limit: i64,
}

impl Amounts {
    /// Those of a container's `resources`.
    #[must_use]
    pub fn of(resources: Option<&ResourceRequirements>) -> Amounts {
        let requests = resources.and_then(|r| r.requests.as_ref());
        let limits = resources.and_then(|r| r.limits.as_ref());
        Amounts {
            cpu_request_milli: amount(requests, CPU).milli_value(),
            cpu_limit_milli: amount(limits, CPU).milli_value(),
            memory_request: amount(requests, MEMORY).value(),
            memory_limit: amount(limits, MEMORY).value(),
        }
    }

    /// Those of a container in its pod, whose own limits count where the container has none.
    #[must_use]
    pub fn in_pod(p: &Pod, container: &Container) -> Amounts {
        Amounts::of(Some(&resources_in_pod(p, container)))
    }

    /// Those of the pod itself (`spec.resources`).
    #[must_use]
    pub fn of_pod(p: &Pod) -> Amounts {
        Amounts::of(pod::spec(p).resources.as_ref())
    }

    /// The memory of these, the processor time of `other`.
    #[must_use]
    pub fn with_cpu_of(self, other: Amounts) -> Amounts {
        Amounts { cpu_request_milli: other.cpu_request_milli, cpu_limit_milli: other.cpu_limit_milli, ..self }
    }

    /// `resources` with these amounts in the place of its own; what is zero is left out.
    #[must_use]
    pub fn put_into(self, resources: Option<&ResourceRequirements>) -> ResourceRequirements {
        let mut out = resources.cloned().unwrap_or_default();
        let milli = Quantity::from_milli;
        let units = Quantity::from_units;
        put(&mut out.requests, CPU, milli(self.cpu_request_milli));
        put(&mut out.requests, MEMORY, units(self.memory_request));
        put(&mut out.limits, CPU, milli(self.cpu_limit_milli));
        put(&mut out.limits, MEMORY, units(self.memory_limit));
        out
    }
}

fn amount(list: Option<&List>, name: &str) -> Quantity {
    list.and_then(|l| l.get(name)).and_then(|q| Quantity::parse(&q.0).ok()).unwrap_or_default()
}

/// Keeps the spelling of an amount that is the same.
fn put(list: &mut Option<List>, name: &str, is: Quantity) {
    if amount(list.as_ref(), name) == is {
        return;
    }
    let list = list.get_or_insert_default();
    if is.is_zero() {
        list.remove(name);
    } else {
        list.insert(name.to_owned(), ApiQuantity(quantity_text::of_resource(name, is)));
    }
}

/// What one pod was given; upstream's names, for it is written to disk like this.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodAllocation {
    /// By container name, init containers too.
    #[serde(rename = "ContainerResources", default, deserialize_with = "or_none")]
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// `spec.resources`.
    #[serde(rename = "PodLevelResources", default)]
    pub pod: Option<ResourceRequirements>,
}

/// Go writes a map that is not there as `null`.
fn or_none<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, ResourceRequirements>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// What pods were given.
pub type Allocations = BTreeMap<PodUid, PodAllocation>;

impl PodAllocation {
    /// What the pod says itself.
    #[must_use]
    pub fn of(p: &Pod) -> PodAllocation {
        let all = pod::init_containers(p).iter().chain(pod::containers(p));
        let containers = all.map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect();
        PodAllocation { containers, pod: pod::spec(p).resources.clone() }
    }

    /// The amounts of a container; none if it has none, or is not known.
    #[must_use]
    pub fn amounts(&self, container: &str) -> Amounts {
        Amounts::of(self.containers.get(container))
    }

    /// Notes what was given with containers that were observed: with those that are made or run, for an ended one has nothing
    /// any more. Answers what the pod itself was given.
    pub fn recall(&self, observed: &mut [ContainerObserved]) -> Option<Amounts> {
        let has =
            |c: &&mut ContainerObserved| matches!(c.state, ContainerState::Created | ContainerState::Running);
        for c in observed.iter_mut().filter(has) {
            c.actuated = self.containers.get(&c.name).map(|resources| Amounts::of(Some(resources)));
        }
        self.pod.as_ref().map(|own| Amounts::of(Some(own)))
    }

    /// Neither a container nor the pod itself has any: there is nothing that could be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let none = Amounts::default();
        self.containers.keys().all(|name| self.amounts(name) == none)
            && Amounts::of(self.pod.as_ref()) == none
    }

    /// The pod asks for something else than it was given.
    #[must_use]
    pub fn differs(&self, p: &Pod) -> bool {
        let changed = |c: &Container| {
            self.containers.get(&c.name).is_some_and(|given| !same(Some(given), c.resources.as_ref()))
        };
        let mut all = pod::init_containers(p).iter().chain(pod::containers(p));
        all.any(changed) || !same(self.pod.as_ref(), pod::spec(p).resources.as_ref())
    }

    /// The pod with the amounts that it was given; the same one if it asks for nothing else.
    #[must_use]
    pub fn apply(&self, p: &Arc<Pod>) -> Arc<Pod> {
        if !self.differs(p) {
            return Arc::clone(p);
        }
        let mut allocated = Pod::clone(p);
        if let Some(spec) = &mut allocated.spec {
            spec.resources.clone_from(&self.pod);
            let init = spec.init_containers.iter_mut().flatten();
            for c in init.chain(&mut spec.containers) {
                if let Some(given) = self.containers.get(&c.name)
                    && !same(Some(given), c.resources.as_ref())
                {
                    c.resources = Some(given.clone());
                }
            }
        }
        Arc::new(allocated)
    }

    /// This with requests that are at least those of `other`: the room that a pod needs while it is between the two.
    #[must_use]
    pub fn at_least(&self, other: &PodAllocation) -> PodAllocation {
        let larger = |resources: &mut ResourceRequirements, others: Amounts| {
            let own = Amounts::of(Some(resources));
            let larger = Amounts {
                cpu_request_milli: own.cpu_request_milli.max(others.cpu_request_milli),
                memory_request: own.memory_request.max(others.memory_request),
                ..own
            };
            *resources = larger.put_into(Some(resources));
        };
        let mut out = self.clone();
        for (name, resources) in &mut out.containers {
            larger(resources, other.amounts(name));
        }
        // A pod cannot lose what it asks for itself, so `other` has nothing here that this has not.
        if let Some(own) = &mut out.pod {
            larger(own, Amounts::of(other.pod.as_ref()));
        }
        out
    }
}

/// Equal in amount, however they are spelled.
fn same(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    let list = |l: Option<&List>| -> BTreeMap<String, Quantity> {
        let parsed = |(name, q): (&String, &ApiQuantity)| Some((name.clone(), Quantity::parse(&q.0).ok()?));
        l.into_iter().flatten().filter_map(parsed).collect()
    };
    let both = |r: Option<&ResourceRequirements>| {
        (list(r.and_then(|r| r.limits.as_ref())), list(r.and_then(|r| r.requests.as_ref())))
    };
    both(a) == both(b)
}
