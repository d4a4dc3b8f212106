//! admission: decides whether a pod may run on this node. Checks that need the API server or devices are
//! elsewhere.
//!
//! In: a pod, the pods that run or start already, the node. Out: yes, the pods to preempt, or the first
//! [`Rejection`]. Invariants: pure; a rejected pod is Failed with the reason of the rejection and is not
//! tried again; admission never changes a pod; the handlers ask in upstream's order: pressure, sysctls,
//! operating system, resources, node affinity, node name, host ports, taints, AppArmor, features. Before
//! them, [`validate::runnable`] rejects pods that no API server would accept. Upstream:
//! pkg/kubelet/lifecycle, pkg/kubelet/sysctl, scheduler node predicates.

pub(crate) mod affinity;
mod fit;
mod preempt;
mod pressure;
pub mod resize_rules;
mod sysctl;
mod taints;

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_managers::placement::Refusal;
use agent_types::api::WatchEvent;
use agent_types::kill::KillReason;
use agent_types::pressures::Pressures;
use agent_types::resource_claims;
use agent_types::resources::requests::is_extended;
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};

use crate::container_spec::{apparmor, unsupported};
use crate::pod_source::validate;
use fit::Shortage;

/// What admission must know about the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionContext {
    /// Name of the Node object.
    pub node_name: String,
    /// Labels of the Node object.
    pub node_labels: BTreeMap<String, String>,
    /// Taints of the Node object.
    pub node_taints: Vec<Taint>,
    /// Most pods at one time; `None` is not checked.
    pub max_pods: Option<u32>,
    /// Allocatable amounts by resource name (`cpu`, `memory`, `hugepages-2Mi`); a missing resource is not
    /// checked.
    pub allocatable: BTreeMap<String, Quantity>,
    /// `allowedUnsafeSysctls`: names, or prefixes that end in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Version of the kernel, major and minor.
    pub kernel: (u32, u32),
    /// What forbids resizes.
    pub resizes: resize_rules::Rules,
    /// True if the kernel enforces AppArmor.
    pub apparmor_enabled: bool,
    /// True if the runtime knows `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// What the node runs short of.
    pub pressures: Pressures,
    /// The gate DRAExtendedResource is off: claims of extended resources do not count.
    pub no_extended_claims: bool,
}

/// The part of the Node object that admission reads; clients change it at any time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeMarks {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// Extended resources in `status.allocatable`, which people and other programs write there: they are counted, nothing
    /// else.
    pub extended: BTreeMap<String, Quantity>,
}

impl NodeMarks {
    /// Those of `node`.
    #[must_use]
    pub fn of(node: &Node) -> NodeMarks {
        NodeMarks {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default(),
            extended: extended_resources(node),
        }
    }

    /// The new marks from an event of the watch on the own Node, `Some(None)` if there is no Node; `None` if
    /// they did not change. The marks of a deleted Node stay: the Node comes back, and pods are bound to it
    /// only then.
    #[must_use]
    pub fn heard(event: &WatchEvent<Node>) -> Option<Option<NodeMarks>> {
        match event {
            WatchEvent::Listed(nodes) => Some(nodes.first().map(|node| NodeMarks::of(node))),
            WatchEvent::Applied(node) => Some(Some(NodeMarks::of(node))),
            WatchEvent::Deleted(_) | WatchEvent::Lost(_) => None,
        }
    }
}

/// What a Node object has of extended resources; an amount that does not parse is none.
fn extended_resources(node: &Node) -> BTreeMap<String, Quantity> {
    let shown = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
    let extended = shown.into_iter().flatten().filter(|(name, _)| is_extended(name));
    extended.map(|(name, text)| (name.clone(), Quantity::parse(&text.0).unwrap_or_default())).collect()
}

impl AdmissionContext {
    /// The same node with the labels, taints and extended resources that its Node object has now.
    #[must_use]
    pub fn marked(&self, marks: NodeMarks) -> AdmissionContext {
        let mut allocatable = self.allocatable.clone();
        allocatable.retain(|name, _| !is_extended(name));
        allocatable.extend(marks.extended);
        AdmissionContext { node_labels: marks.labels, node_taints: marks.taints, allocatable, ..self.clone() }
    }

    /// The pod as the node sees it: without the claim of its extended resources where the node does not have that feature.
    #[must_use]
    pub fn with_known_claims(&self, mut pod: Arc<Pod>) -> Arc<Pod> {
        if self.no_extended_claims && resource_claims::extended(&pod).is_some() {
            let status = Arc::make_mut(&mut pod).status.as_mut();
            status.and_then(|status| status.extended_resource_claim_status.take());
        }
        pod
    }

    /// The same node under these pressures.
    #[must_use]
    pub fn pressed(&self, pressures: Pressures) -> AdmissionContext {
        AdmissionContext { pressures, ..self.clone() }
    }
}

/// Why a pod may not run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// `status.reason`, and the reason of the event.
    pub reason: String,
    /// The event's message; the status has `Pod was rejected: ` before it.
    pub message: String,
}

impl Rejection {
    fn new(reason: impl Into<String>, message: impl Into<String>) -> Rejection {
        Rejection { reason: reason.into(), message: message.into() }
    }

    /// Message for a pod that is preempted.
    #[must_use]
    pub fn preempted() -> Rejection {
        Rejection::new("Preempting", "Preempted in order to admit critical pod")
    }

    /// The machine is about to stop.
    #[must_use]
    pub fn shutdown() -> Rejection {
        Rejection::new(agent_types::kill::REFUSED_REASON, "Pod was rejected as the node is shutting down.")
    }

    /// `status.message`.
    #[must_use]
    pub fn status_message(&self) -> String {
        format!("Pod was rejected: {}", self.message)
    }
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Rejection {
        Rejection::new(refusal.reason(), refusal.to_string())
    }
}

impl From<Rejection> for KillReason {
    fn from(rejection: Rejection) -> KillReason {
        KillReason::Failed { message: rejection.status_message(), reason: rejection.reason, disruption: None }
    }
}

/// The checks before the one for processors and memory that a pod has for itself. [`admit`] repeats them.
///
/// # Errors
/// The first reason against the pod.
pub fn may_be_placed(pod: &Pod, node: &AdmissionContext) -> Result<(), Rejection> {
    well_formed(pod)?;
    pressure::check(pod, node)?;
    sysctl::check(pod, node)
}

/// Decides whether `pod` may run next to `active`. Yes, after the end of the returned pods, which a critical
/// pod preempts. Unlike upstream, no pod ends for a pod that is rejected for another reason in the end.
///
/// # Errors
/// The first reason against it.
pub fn admit<'p>(
    pod: &Pod,
    active: impl IntoIterator<Item = &'p Pod>,
    node: &AdmissionContext,
) -> Result<Vec<&'p Pod>, Rejection> {
    let active: Vec<&Pod> = active.into_iter().collect();
    let short = check(pod, &active, node)?;
    preempt::victims(pod, &active, &short).map_err(|why| unrecovered(&why))
}

/// Decides whether a running pod gets its requests now, next to `others`. Every check of a pod's start is made
/// again, as upstream does: the node may have become another since.
///
/// # Errors
/// The first reason against it; for a critical pod also a resource of which other pods may have to give some up.
pub fn resized(pod: &Pod, others: &[&Pod], node: &AdmissionContext) -> Result<(), Rejection> {
    check(pod, others, node)?.first().map_or(Ok(()), |short| Err(short.into()))
}

/// Every check, in order. A shortage rejects only a pod that is not critical; returns those of a critical one.
fn check(pod: &Pod, active: &[&Pod], node: &AdmissionContext) -> Result<Vec<Shortage>, Rejection> {
    may_be_placed(pod, node)?;
    operating_system(pod, node)?;
    let short = fit::shortages(pod, active, node);
    if let Some(first) = short.first().filter(|_| !pod::is_critical(pod)) {
        return Err(first.into());
    }
    affinity::check(pod, node)?;
    if pod::spec(pod).node_name.as_deref().is_some_and(|name| name != node.node_name) {
        let message = "Predicate NodeName failed: node(s) didn't match the requested node name";
        return Err(Rejection::new("NodeName", message));
    }
    fit::host_ports(pod, active)?;
    taints::check(pod, node)?;
    app_armor(pod, node)?;
    let missing = unsupported(pod);
    if missing.is_empty() {
        return Ok(short);
    }
    let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let message = format!("Pod requires node features that are not available: {}", names.join(", "));
    Err(Rejection::new("PodFeatureUnsupported", message))
}

/// The first resource that is short if the pod runs next to `active`.
#[must_use]
pub fn short_of<'p>(
    pod: &Pod,
    active: impl IntoIterator<Item = &'p Pod>,
    node: &AdmissionContext,
) -> Option<String> {
    let active: Vec<&Pod> = active.into_iter().collect();
    fit::shortages(pod, &active, node).into_iter().next().map(|short| short.resource)
}

fn unrecovered(why: &str) -> Rejection {
    let attempt = "Unexpected error while attempting to recover from admission failure";
    let message = format!("{attempt}: preemption: error finding a set of pods to preempt: {why}");
    Rejection::new("UnexpectedAdmissionError", message)
}

/// Static pods were validated whole when they were read.
fn well_formed(pod: &Pod) -> Result<(), Rejection> {
    let mistakes = if pod::is_static(pod) { Vec::new() } else { validate::runnable(pod) };
    let Some(first) = mistakes.first() else { return Ok(()) };
    let more = if mistakes.len() > 1 { format!(" (and {} more)", mistakes.len() - 1) } else { String::new() };
    Err(Rejection::new("FailedValidation", format!("Pod cannot be run on any node: {first}{more}")))
}

fn operating_system(pod: &Pod, node: &AdmissionContext) -> Result<(), Rejection> {
    if pod::labels(pod).get("kubernetes.io/os").is_some_and(|os| os != "linux") {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(Rejection::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    if pod::spec(pod).os.as_ref().is_some_and(|os| os.name != "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Rejection::new("PodOSNotSupported", message));
    }
    let context = pod::spec(pod).security_context.as_ref();
    let strict = context.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict");
    if strict && !node.supplemental_groups_policy {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        return Err(Rejection::new("SupplementalGroupsPolicyNotSupported", message));
    }
    Ok(())
}

/// Not checked for pods that run already, or have ended.
fn app_armor(pod: &Pod, node: &AdmissionContext) -> Result<(), Rejection> {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
    if phase != "Pending" || !apparmor::is_required(pod) {
        return Ok(());
    }
    let why = match apparmor::nameless(pod) {
        _ if !node.apparmor_enabled => "AppArmor is not enabled on the host".to_owned(),
        Some(name) => format!("invalid empty AppArmor profile name: {name:?}"),
        None => return Ok(()),
    };
    Err(Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {why}")))
}

#[cfg(test)]
mod tests;
