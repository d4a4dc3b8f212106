//! Decides whether a pod gets its requested resources now, and the order of pending requests (KEP-1287).
//!
//! In: the desired pod, its allocation, the other pods, the node. Out: yes, not now, or never. Invariants: a
//! deferred request can succeed later without a change, an infeasible one only after another request; the
//! victims of a critical pod are chosen elsewhere (`admission`). Upstream: pkg/kubelet/allocation
//! (handlers.go, allocation_manager.go).

use std::cmp::{Ordering, Reverse};

use agent_types::pod;
use agent_types::resources::amounts::Amounts;
use agent_types::resources::requests::{CPU, MEMORY, pod_request};
use agent_types::resources::{QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use super::{PodAllocation, is_restarted_for};
use crate::admission::resize_rules::Rules;
use crate::admission::{AdmissionContext, Rejection, resized};
use crate::container_spec::linux::memory::may_swap;

/// `reason` of the condition `PodResizePending`: there may be room later.
pub const DEFERRED: &str = "Deferred";
/// The same: never on this node.
pub const INFEASIBLE: &str = "Infeasible";

/// A resize that waits, or that will never be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingResize {
    /// [`DEFERRED`] or [`INFEASIBLE`].
    pub reason: String,
    /// Message for people.
    pub message: String,
    /// Generation of the requesting pod.
    pub generation: Option<i64>,
    /// Text of the event.
    pub event: String,
}

/// Reason why a pod does not get its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not now: admission's rejection, whose reason is a word of its own in the event.
    Deferred(Rejection),
    /// Never here; the second is upstream's word in `kubelet_pod_infeasible_resizes_total`.
    Infeasible(String, &'static str),
}

impl Refusal {
    /// `reason` of the condition.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::Deferred(_) => DEFERRED,
            Refusal::Infeasible(..) => INFEASIBLE,
        }
    }

    /// Text of the event, before the amounts.
    #[must_use]
    pub fn event(&self) -> String {
        let word = match self {
            Refusal::Deferred(rejection) => &rejection.reason,
            Refusal::Infeasible(..) => INFEASIBLE,
        };
        format!("Pod resize {word}")
    }

    /// The reason as text for people.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Refusal::Deferred(rejection) => &rejection.message,
            Refusal::Infeasible(message, _) => message,
        }
    }
}

/// Decides whether `desired` gets its request, next to `others`. A reason that would refuse it as a new pod defers it.
///
/// # Errors
/// The reason against it.
pub fn judge(
    desired: &Pod,
    given: &PodAllocation,
    others: &[&Pod],
    node: &AdmissionContext,
) -> Result<(), Refusal> {
    if node.resizes.limited_swap && swaps(desired, given) {
        let message = "In-place resize of containers with swap is not supported.".to_owned();
        return Err(Refusal::Infeasible(message, "swap_limitation"));
    }
    if node.resizes.fixed_pod_level && !super::same(given.pod.as_ref(), pod::spec(desired).resources.as_ref())
    {
        let message = "InPlacePodLevelResourcesVerticalScaling is disabled".to_owned();
        return Err(Refusal::Infeasible(message, "plr_feature_gate_off"));
    }
    if qos_class(desired) == QosClass::Guaranteed {
        exclusive(desired, given, node.resizes)?;
    }
    resized(desired, others, node).map_err(Refusal::Deferred)
}

/// A container that may swap, before or after, is to have another request of memory while it runs.
fn swaps(desired: &Pod, given: &PodAllocation) -> bool {
    let mut all = pod::containers(desired).iter().chain(pod::init_containers(desired));
    all.any(|c| {
        let (wanted, had) = (Amounts::of(c.resources.as_ref()), given.amounts(&c.name));
        wanted.memory_request != had.memory_request
            && !is_restarted_for(c, MEMORY)
            && [wanted, had].into_iter().any(|amounts| may_swap(desired, amounts))
    })
}

fn exclusive(desired: &Pod, given: &PodAllocation, rules: Rules) -> Result<(), Refusal> {
    let changes = |of: fn(Amounts) -> i64| {
        let mut all = pod::init_containers(desired).iter().chain(pod::containers(desired));
        all.any(|c| of(Amounts::of(c.resources.as_ref())) != of(given.amounts(&c.name)))
    };
    let refuse = |manager: &str, policy: &str, detail| {
        let words = format!(
            "Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy \"{policy}\""
        );
        Err(Refusal::Infeasible(words, detail))
    };
    if rules.static_cpus && changes(|a| a.cpu_request_milli) {
        return refuse("CPU", "static", "guaranteed_pod_cpu_manager_static_policy");
    }
    if rules.static_memory && changes(|a| a.memory_request) {
        return refuse("Memory", "Static", "guaranteed_pod_memory_manager_static_policy");
    }
    Ok(())
}

/// True if the pod requests more than its allocation.
#[must_use]
pub fn is_increase(desired: &Pod, allocated: &Pod) -> bool {
    [CPU, MEMORY].into_iter().any(|of| pod_request(desired, of) > pod_request(allocated, of))
}

/// One that waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// As it is wanted.
    pub desired: &'a Pod,
    /// As it was given.
    pub allocated: &'a Pod,
}

impl Waiting<'_> {
    /// Since when it waits by its condition in the API, nanoseconds.
    fn since(&self) -> Option<i128> {
        let conditions = self.desired.status.as_ref().and_then(|s| s.conditions.as_ref())?;
        let pending = conditions.iter().find(|c| c.type_ == "PodResizePending")?;
        Some(pending.last_transition_time.as_ref()?.0.as_nanosecond())
    }

    /// Order of judgement: pods without an increase first, then by priority, by class, by waiting time.
    #[must_use]
    pub fn order(&self, other: &Waiting<'_>) -> Ordering {
        let key = |w: &Waiting<'_>| {
            let since = w.since();
            (
                is_increase(w.desired, w.allocated),
                Reverse(pod::spec(w.desired).priority.unwrap_or(0)),
                qos_class(w.desired) != QosClass::Guaranteed,
                since.is_none(),
                since,
            )
        };
        key(self).cmp(&key(other)).then_with(|| pod::uid(self.desired).cmp(pod::uid(other.desired)))
    }
}

/// A requested change: resource, `requests` or `limits`, and `add`, `remove`, `increase` or `decrease`.
pub type Change = (&'static str, &'static str, &'static str);

/// What of a pod's containers was changed, each amount by itself (`kubelet_container_requested_resizes_total`).
#[must_use]
pub fn changes(old: &Pod, new: &Pod) -> Vec<Change> {
    let all = |p: &Pod| -> Vec<Container> {
        pod::init_containers(p).iter().chain(pod::containers(p)).cloned().collect()
    };
    let now = all(new);
    let mut out = Vec::new();
    for old in all(old) {
        let Some(new) = now.iter().find(|c| c.name == old.name) else { continue };
        let (old, new) = (Amounts::of(old.resources.as_ref()), Amounts::of(new.resources.as_ref()));
        let table = [
            (MEMORY, "requests", old.memory_request, new.memory_request),
            (MEMORY, "limits", old.memory_limit, new.memory_limit),
            (CPU, "requests", old.cpu_request_milli, new.cpu_request_milli),
            (CPU, "limits", old.cpu_limit_milli, new.cpu_limit_milli),
        ];
        for (resource, requirement, old, new) in table {
            let operation = match (old, new) {
                (old, new) if old == new => continue,
                (0, _) => "add",
                (_, 0) => "remove",
                (old, new) if new < old => "decrease",
                _ => "increase",
            };
            out.push((resource, requirement, operation));
        }
    }
    out
}
