//! allocation: the cpu and memory that each pod was granted, and their change while the pod runs (KEP-1287).
//!
//! ```text
//! desired pod ──► resize::judge ──► given (checkpoint, durable) ──► allocated pod ──► worker ──► actuate::plan ──► steps
//!                    │ deferred, infeasible                                             │
//!                    └──► condition PodResizePending                                    └──► condition PodResizeInProgress
//! ```
//! In: desired pods, allocations, resources of containers. Out: verdicts, pods with their allocated amounts,
//! steps. Pure. Invariants: every amount that the runtime gets was allocated before (ALLOC-DURABLE); the
//! allocations fit (ALLOC-CAP). The pod manager keeps the record. docs/internals/resize.md. Upstream:
//! pkg/kubelet/allocation, `doPodResizeAction` of pkg/kubelet/kuberuntime/kuberuntime_manager.go.

pub mod actuate;
pub mod checkpoint;
pub mod message;
pub mod resize;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::resources::amounts::{Amounts, List};
use agent_types::runtime::observed::{ContainerObserved, ContainerState};
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Deserializer, Serialize};

/// True if `resizePolicy` requires a restart of the container after a change of `resource`.
#[must_use]
pub fn is_restarted_for(container: &Container, resource: &str) -> bool {
    let first = container.resize_policy.iter().flatten().find(|p| p.resource_name == resource);
    first.is_some_and(|p| p.restart_policy == "RestartContainer")
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
    /// The pod's own resources (`spec.resources`).
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

    /// Records the allocations in observed containers: in those that are created or running, because an ended
    /// one has no resources. Returns the allocation of the pod itself.
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

    /// True if the pod's request differs from its allocation.
    #[must_use]
    pub fn differs(&self, p: &Pod) -> bool {
        let changed = |c: &Container| {
            self.containers.get(&c.name).is_some_and(|given| !same(Some(given), c.resources.as_ref()))
        };
        let mut all = pod::init_containers(p).iter().chain(pod::containers(p));
        all.any(changed) || !same(self.pod.as_ref(), pod::spec(p).resources.as_ref())
    }

    /// The pod with its allocated amounts; the same pod if there is no difference.
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
        // A pod cannot lose its own request, so `other` has no key here that this one lacks.
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
