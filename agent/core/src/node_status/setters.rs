//! Fills in a Node's status from the inputs, in the order of upstream's setters.
//!
//! In: the current Node (or an empty one), inputs, the time. Out: the new Node, reasons of events, and the
//! setters that failed. Invariants: a setter that fails leaves its part unchanged and does not stop the
//! others; fields of other owners (`volumesAttached`, foreign extended resources, foreign labels) stay; an
//! amount that is equal keeps its text. Upstream: `defaultNodeStatusFuncs` of
//! pkg/kubelet/kubelet_node_status.go, pkg/kubelet/nodestatus/setters.go.

use std::collections::BTreeMap;

use agent_types::Quantity;
use agent_types::quantity_text::of_resource;
use agent_types::resources::node_allocatable::{PODS, Resources, allocatable, capacity};
use agent_types::resources::requests::{CPU, MEMORY, is_extended};
use agent_types::time::Now;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource;
use orlop_config::admin_key::NODE_ANNOTATION;

use super::addresses::{node_addresses, provided_node_ip};
use super::inputs::Inputs;
use super::{NodeStatusConfig, conditions};
use crate::node_update::report::{STATE, VERSION_LABEL};

/// Names of one image that are reported.
const NAMES_PER_IMAGE_MAX: usize = 5;
/// Annotation for a cloud's controller.
pub(super) const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Results of [`fill`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    /// Reasons of `Node … status is now` events, to be recorded once the status is reported.
    pub(super) events: Vec<&'static str>,
    /// What could not be set.
    pub(super) problems: Vec<String>,
}

/// Fills `node` from the inputs.
pub(super) fn fill(node: &mut Node, config: &NodeStatusConfig, inputs: &Inputs, now: Now) -> Notes {
    let mut notes = Notes::default();
    for (name, value) in config.platform_labels(inputs) {
        let labels = node.metadata.labels.get_or_insert_default();
        if labels.get(name) != Some(&value) {
            labels.insert(name.to_owned(), value);
        }
    }
    set_api_key(node, inputs);
    set_update(node, inputs);
    set_addresses(node, config, inputs, &mut notes);
    set_machine(node, config, inputs, &mut notes);
    set_versions(node, config, inputs);
    let status = node.status.get_or_insert_default();
    status.daemon_endpoints =
        Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: config.port }) });
    set_images(node, config, inputs);
    let info = info(node);
    info.operating_system = "linux".to_owned();
    if let Ok(machine) = inputs.machine() {
        info.architecture.clone_from(&machine.architecture);
    }
    set_runtime(node, inputs);
    notes.events = conditions::set(node, inputs, config.local_storage_capacity_isolation, now);
    let status = node.status.get_or_insert_default();
    if let Some(volumes) = &inputs.volumes_in_use {
        status.volumes_in_use = Some(volumes.clone()).filter(|v| !v.is_empty());
    }
    let mut declared = config.declared_features.clone();
    declared.sort_unstable();
    declared.dedup();
    status.declared_features = Some(declared).filter(|d| !d.is_empty());
    notes
}

fn info(node: &mut Node) -> &mut NodeSystemInfo {
    node.status.get_or_insert_default().node_info.get_or_insert_default()
}

/// A key that is not known yet leaves the annotation of an earlier agent: a node keeps its key.
fn set_api_key(node: &mut Node, inputs: &Inputs) {
    if let Some(fingerprint) = &inputs.api_key {
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(NODE_ANNOTATION.to_owned(), fingerprint.clone());
    }
}

/// Which version runs, and where an update is.
fn set_update(node: &mut Node, inputs: &Inputs) {
    let Some(shown) = &inputs.update else { return };
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(STATE.to_owned(), shown.state.clone());
    if !shown.version.is_empty() {
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert(VERSION_LABEL.to_owned(), shown.version.clone());
    }
}

fn set_addresses(node: &mut Node, config: &NodeStatusConfig, inputs: &Inputs, notes: &mut Notes) {
    match provided_node_ip(&config.addresses) {
        Some(ips) => {
            node.metadata.annotations.get_or_insert_default().insert(PROVIDED_NODE_IP.to_owned(), ips);
        }
        None => {
            if let Some(annotations) = &mut node.metadata.annotations {
                annotations.remove(PROVIDED_NODE_IP);
            }
        }
    }
    let Some(network) = &inputs.network else { return };
    let status = node.status.get_or_insert_default();
    match node_addresses(&config.addresses, network, status.addresses.as_deref().unwrap_or_default()) {
        Ok(addresses) => status.addresses = Some(addresses),
        Err(error) => notes.problems.push(error.to_string()),
    }
}

fn set_machine(node: &mut Node, config: &NodeStatusConfig, inputs: &Inputs, notes: &mut Notes) {
    let own = match inputs.machine() {
        Ok(machine) => {
            let info = info(node);
            info.machine_id.clone_from(&machine.machine_id);
            info.system_uuid.clone_from(&machine.system_uuid);
            info.boot_id.clone_from(&machine.boot_id);
            let swap = i64::try_from(machine.swap_bytes).unwrap_or(i64::MAX);
            info.swap = (swap > 0).then_some(NodeSwapStatus { capacity: Some(swap) });
            let mut own = capacity(&machine.amounts, &config.reservations);
            let devices = &inputs.devices;
            own.extend(devices.capacity.iter().map(|(k, v)| (k.clone(), Quantity::from_units(*v))));
            own.extend(devices.removed.iter().map(|k| (k.clone(), Quantity::ZERO)));
            own
        }
        Err(error) => {
            notes.problems.push(format!("the machine cannot be read: {error}"));
            Resources::from([
                (CPU.to_owned(), Quantity::ZERO),
                (MEMORY.to_owned(), Quantity::ZERO),
                (PODS.to_owned(), Quantity::from_units(config.reservations.max_pods())),
            ])
        }
    };
    set_resources(node, config, inputs, &own);
}

/// Capacity: ours over the present one. Allocatable: from the whole capacity.
fn set_resources(node: &mut Node, config: &NodeStatusConfig, inputs: &Inputs, own: &Resources) {
    let status = node.status.get_or_insert_default();
    let texts = status.capacity.get_or_insert_default();
    for (name, amount) in own {
        set_amount(texts, name, *amount);
    }
    let all: Resources = texts
        .iter()
        .map(|(name, text)| (name.clone(), Quantity::parse(&text.0).unwrap_or_default()))
        .collect();
    let left = status.allocatable.get_or_insert_default();
    left.retain(|name, _| all.contains_key(name) || !is_extended(name));
    let mut allocatable = allocatable(&all, &config.reservations);
    let healthy = inputs.devices.allocatable.iter().map(|(k, v)| (k.clone(), Quantity::from_units(*v)));
    allocatable.extend(healthy);
    for (name, amount) in &allocatable {
        set_amount(left, name, *amount);
    }
}

/// Writes an amount unless the text that is there means the same.
pub(super) fn set_amount(texts: &mut BTreeMap<String, resource::Quantity>, name: &str, amount: Quantity) {
    let same = texts.get(name).is_some_and(|text| Quantity::parse(&text.0) == Ok(amount));
    if !same {
        texts.insert(name.to_owned(), resource::Quantity(of_resource(name, amount)));
    }
}

fn set_versions(node: &mut Node, config: &NodeStatusConfig, inputs: &Inputs) {
    let machine = inputs.machine().ok();
    let version = inputs.version.as_ref();
    let info = info(node);
    if let Some(machine) = machine {
        info.kernel_version.clone_from(&machine.kernel_version);
        info.os_image.clone_from(&machine.os_image);
    }
    info.container_runtime_version = match version {
        Some(v) => format!("{}://{}", v.name, v.version.strip_prefix('v').unwrap_or(&v.version)),
        None => "containerd://Unknown".to_owned(),
    };
    info.kubelet_version.clone_from(&config.kubelet_version);
    info.kube_proxy_version.clear();
}

fn set_images(node: &mut Node, config: &NodeStatusConfig, inputs: &Inputs) {
    let Some(images) = &inputs.images else { return };
    let most = usize::try_from(config.images_max).unwrap_or(usize::MAX);
    let reported = images.iter().take(most).map(|image| ContainerImage {
        names: Some(
            image.repo_digests.iter().chain(&image.repo_tags).take(NAMES_PER_IMAGE_MAX).cloned().collect(),
        ),
        size_bytes: Some(i64::try_from(image.size_bytes).unwrap_or(i64::MAX)),
    });
    let reported: Vec<ContainerImage> = reported.collect();
    node.status.get_or_insert_default().images = Some(reported).filter(|r| !r.is_empty());
}

fn set_runtime(node: &mut Node, inputs: &Inputs) {
    let Some(runtime) = &inputs.runtime.status else { return };
    let mut handlers: Vec<NodeRuntimeHandler> = runtime
        .handlers
        .iter()
        .map(|h| NodeRuntimeHandler {
            name: Some(h.name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(h.recursive_read_only_mounts),
                user_namespaces: Some(h.user_namespaces),
            }),
        })
        .collect();
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    let status = node.status.get_or_insert_default();
    status.runtime_handlers = Some(handlers).filter(|h| !h.is_empty());
    if let Some(features) = runtime.features {
        status.features =
            Some(NodeFeatures { supplemental_groups_policy: Some(features.supplemental_groups_policy) });
    }
}
