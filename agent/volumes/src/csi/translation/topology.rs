//! Topology of a PersistentVolume: translates the cluster's labels of zones and regions to the driver's,
//! which its nodes have.
//!
//! In: `nodeAffinity` and labels of a PersistentVolume. Out: `nodeAffinity` with the driver's keys, which the
//! node must match before the volume is mounted. Invariant: terms are kept, and a PersistentVolume without a
//! zone gets none. Upstream: csi-translation-lib/plugins (in_tree_volume.go, vsphere_volume.go).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume};

/// The label of a zone.
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
/// Its old name.
pub(super) const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Between several zones in the label of a PersistentVolume.
pub(super) const SEPARATOR: &str = "__";

/// A driver's labels.
pub(super) struct Keys {
    pub(super) zone: &'static str,
    /// `None`: the cluster's own label is kept, under its new name.
    pub(super) region: Option<&'static str>,
    pub(super) labels: Labels,
}

/// What labels of PersistentVolumes hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Labels {
    /// Several zones.
    Zones,
    /// One value, taken as it is.
    AsTheyAre,
}

/// Gives the PersistentVolume the driver's keys.
pub(super) fn translate(volume: &mut PersistentVolume, keys: &Keys) {
    let (zone, region) = cluster_keys(volume);
    replace_or_add(volume, zone, (keys.zone, keys.labels));
    if let Some(own) = keys.region {
        replace_or_add(volume, region, (own, keys.labels));
    } else if region == BETA_REGION {
        // Nodes have the new name only.
        replace(volume, region, REGION);
    }
}

/// What the terms do not say, the PersistentVolume's label may.
fn replace_or_add(volume: &mut PersistentVolume, from: &str, (to, labels): (&str, Labels)) {
    if !replace(volume, from, to) {
        add_label(volume, from, (to, labels));
    }
}

fn terms(volume: &mut PersistentVolume) -> impl Iterator<Item = &mut NodeSelectorRequirement> {
    let affinity = volume.spec.as_mut().and_then(|s| s.node_affinity.as_mut());
    let required = affinity.and_then(|a| a.required.as_mut());
    let terms = required.into_iter().flat_map(|r| r.node_selector_terms.iter_mut());
    terms.flat_map(|term| term.match_expressions.iter_mut().flatten())
}

/// The cluster's labels of zone and region that the PersistentVolume uses: the old ones only where the new ones are not.
fn cluster_keys(volume: &mut PersistentVolume) -> (&'static str, &'static str) {
    let keys: BTreeSet<String> = terms(volume).map(|r| r.key.clone()).collect();
    let labels = volume.metadata.labels.as_ref();
    let (new, old) = ((ZONE, REGION), (BETA_ZONE, BETA_REGION));
    let labelled = |key: &str| labels.is_some_and(|all| all.contains_key(key));
    if keys.contains(ZONE) {
        new
    } else if keys.contains(BETA_ZONE) || (!labelled(ZONE) && labelled(BETA_ZONE)) {
        old
    } else {
        new
    }
}

/// Replaces a key if some requirement has values for it; false: there is none.
fn replace(volume: &mut PersistentVolume, from: &str, to: &str) -> bool {
    let has_values = |r: &NodeSelectorRequirement| r.values.as_ref().is_some_and(|v| !v.is_empty());
    if !terms(volume).any(|r| r.key == from && has_values(r)) {
        return false;
    }
    for requirement in terms(volume).filter(|r| r.key == from) {
        requirement.key = to.to_owned();
    }
    true
}

/// What the PersistentVolume's label says is required in all terms.
fn add_label(volume: &mut PersistentVolume, label: &str, (key, labels): (&str, Labels)) {
    let Some(value) = volume.metadata.labels.as_ref().and_then(|all| all.get(label)) else { return };
    let parts: Vec<&str> = match labels {
        Labels::Zones => value.split(SEPARATOR).collect(),
        Labels::AsTheyAre => vec![value],
    };
    let values: BTreeSet<String> =
        parts.into_iter().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty()).collect();
    if values.is_empty() {
        return;
    }
    let requirement = NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(values.into_iter().collect()),
    };
    let spec = volume.spec.get_or_insert_default();
    let required = spec.node_affinity.get_or_insert_default().required.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_expressions.get_or_insert_default().push(requirement.clone());
    }
}
