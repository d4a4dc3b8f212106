//! Node selector and required node affinity.
//!
//! In: a pod, the node's labels and name. Out: yes, or `NodeAffinity`. Invariant: terms are alternatives, all
//! requirements of a term must hold, an empty term matches nothing. Upstream:
//! component-helpers/scheduling/corev1/nodeaffinity.

use agent_types::node_selector::any_term_holds;
use agent_types::pod;
use k8s_openapi::api::core::v1::Pod;

use super::{AdmissionContext, Rejection};

pub(super) fn check(pod: &Pod, node: &AdmissionContext) -> Result<(), Rejection> {
    let spec = pod::spec(pod);
    let selected = spec.node_selector.iter().flatten().all(|(k, v)| node.node_labels.get(k) == Some(v));
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    if selected
        && required.is_none_or(|r| any_term_holds(&r.node_selector_terms, &node.node_labels, &node.node_name))
    {
        return Ok(());
    }
    let message = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    Err(Rejection::new("NodeAffinity", message))
}
