//! The Node object at registration: a new one, or the changes of an existing one.
//!
//! In: configuration, inputs, the Node that exists. Out: a Node. Invariants: taints and custom labels of an
//! existing Node stay: they belong to the cluster's administrators; `spec.podCIDR` never changes. Upstream:
//! pkg/kubelet/kubelet_node_status.go.

use agent_types::Quantity;
use agent_types::resources::node_allocatable::{HUGEPAGES_PREFIX, capacity};
use agent_types::resources::requests::is_extended;
use agent_types::time::Now;
use k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};

use super::NodeStatusConfig;
use super::inputs::Inputs;
use super::setters::{self, Notes, set_amount};

/// Volumes are attached by a controller, not by the node.
pub(super) const CONTROLLER_ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Until the cloud's controller has looked at the node.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Labels that registration brings in line on an existing Node, if they are wanted at all.
const DEFAULT_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// The Node to create.
pub(super) fn initial(config: &NodeStatusConfig, inputs: &Inputs, now: Now) -> (Node, Notes) {
    let mut node = Node::default();
    node.metadata.name = Some(config.node_name.to_string());
    node.metadata.labels = Some(config.all_labels(inputs));
    if config.controller_attach_detach {
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(CONTROLLER_ATTACH_DETACH.to_owned(), "true".to_owned());
    }
    let mut taints = config.taints.clone();
    if config.addresses.external_cloud_provider {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    node.spec = Some(NodeSpec {
        taints: Some(taints).filter(|t| !t.is_empty()),
        provider_id: Some(config.provider_id.clone()).filter(|id| !id.is_empty()),
        ..NodeSpec::default()
    });
    let notes = setters::fill(&mut node, config, inputs, now);
    (node, notes)
}

/// Brings an existing Node in line, its status aside.
pub(super) fn reconcile(node: &mut Node, config: &NodeStatusConfig, inputs: &Inputs) {
    let wanted = config.all_labels(inputs);
    let labels = node.metadata.labels.get_or_insert_default();
    for name in DEFAULT_LABELS {
        match wanted.get(*name) {
            Some(value) if value.is_empty() => drop(labels.remove(*name)),
            Some(value) => drop(labels.insert((*name).to_owned(), value.clone())),
            None => {}
        }
    }
    if config.controller_attach_detach {
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(CONTROLLER_ATTACH_DETACH.to_owned(), "true".to_owned());
    } else if let Some(annotations) = &mut node.metadata.annotations {
        annotations.remove(CONTROLLER_ATTACH_DETACH);
    }
    reconcile_resources(node, config, inputs);
}

/// Sizes of huge pages that are gone leave; extended resources count nothing until their plugin is back.
fn reconcile_resources(node: &mut Node, config: &NodeStatusConfig, inputs: &Inputs) {
    let status = node.status.get_or_insert_default();
    let has = status.capacity.get_or_insert_default();
    let left = status.allocatable.get_or_insert_default();
    if let Ok(machine) = inputs.machine() {
        let own = capacity(&machine.amounts, &config.reservations);
        let is_stale = |name: &str| name.starts_with(HUGEPAGES_PREFIX) && !own.contains_key(name);
        has.retain(|name, _| !is_stale(name));
        left.retain(|name, _| !is_stale(name));
    }
    if !inputs.devices.has_checkpoint {
        let extended: Vec<String> = has.keys().filter(|name| is_extended(name)).cloned().collect();
        for name in extended {
            set_amount(has, &name, Quantity::ZERO);
            set_amount(left, &name, Quantity::ZERO);
        }
    }
}
