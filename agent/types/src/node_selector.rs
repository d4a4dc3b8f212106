//! Node selectors: terms over the labels and fields of a Node (API type `NodeSelectorTerm`).
//!
//! In: terms, labels, the Node's name. Out: true if one of the terms matches. Upstream:
//! component-helpers/scheduling/corev1/nodeaffinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

/// One of the terms holds for a node of this name, with these labels.
#[must_use]
pub fn any_term_holds(terms: &[NodeSelectorTerm], labels: &BTreeMap<String, String>, name: &str) -> bool {
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
