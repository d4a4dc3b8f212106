//! Node selector and required node affinity.
//!
//! In: a pod, the node's labels and name. Out: yes, or `NodeAffinity`. Invariant: terms are alternatives, what is in
//! a term must hold together, an empty term matches nothing. Upstream: component-helpers nodeaffinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod};

use super::{AdmissionContext, Rejection};
use crate::types::pod;

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

/// One of the terms holds for a node of this name, with these labels.
pub(crate) fn any_term_holds(
    terms: &[NodeSelectorTerm],
    labels: &BTreeMap<String, String>,
    name: &str,
) -> bool {
    terms.iter().any(|term| holds(term, labels, name))
}

fn holds(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or(&[]);
    let fields = term.match_fields.as_deref().unwrap_or(&[]);
    let node_fields = BTreeMap::from([("metadata.name".to_owned(), name.to_owned())]);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|r| requirement(r, labels))
        && fields.iter().all(|r| requirement(r, &node_fields))
}

fn requirement(requirement: &NodeSelectorRequirement, values: &BTreeMap<String, String>) -> bool {
    let value = values.get(&requirement.key);
    let list = requirement.values.as_deref().unwrap_or(&[]);
    let number = |text: &String| text.parse::<i64>().ok();
    let compared = value.and_then(number).zip(list.first().and_then(number));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|v| list.contains(v)),
        "NotIn" => value.is_none_or(|v| !list.contains(v)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared.is_some_and(|(value, bound)| value > bound),
        "Lt" => compared.is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}
