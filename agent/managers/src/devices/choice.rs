//! The choice of devices for one resource of one container.
//!
//! In: lists and records, the topology hint. Out: ids, or a question about the plugin's preference. Invariants: devices of init
//! containers of the same pod come first, then devices on the nodes of the hint; the plugin's preference decides only among
//! devices of equal rank. Upstream: manager.go (`devicesToAllocate`, `filterByAffinity`), KEP-2043 and KEP-693.

use std::collections::{BTreeMap, BTreeSet};

use super::inventory::Inventory;
use super::plugin::Connection;
use super::records::{NO_NODE, PodRecords};
use crate::node_mask::NodeMask;
use crate::request::ResourceName;

/// Reason for which a container gets no devices; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// The container has another number of devices than it requests.
    #[error(
        "pod {uid:?} container {container:?} changed request for resource {resource:?} from {from} to {to}"
    )]
    RequestChanged {
        /// Pod.
        uid: String,
        /// Container.
        container: String,
        /// Resource.
        resource: ResourceName,
        /// Devices that the container has.
        from: usize,
        /// Requested number of devices.
        to: usize,
    },
    /// The resource is removed, and pods still have devices of it.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(ResourceName),
    /// No device is healthy, or the plugin is away.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(ResourceName),
    /// A device that the container has is not healthy.
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(ResourceName),
    /// Too few devices are free.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {available}"
    )]
    TooFew {
        /// Resource.
        resource: ResourceName,
        /// Number of devices still needed, without those of init containers.
        needed: usize,
        /// Number of free devices.
        available: usize,
    },
    /// The plugin's endpoint is unknown.
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(ResourceName),
    /// The plugin failed to state its preference.
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    Preferred(String),
    /// The devices did not suffice after all.
    #[error("unexpectedly allocated less resources than required. Requested: {required}, Got: {got}")]
    Short {
        /// Requested number of devices.
        required: usize,
        /// Number of chosen devices.
        got: usize,
    },
}

/// A `GetPreferredAllocation` request for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferredQuestion {
    /// The plugin to ask.
    pub connection: Connection,
    /// The resource.
    pub resource: ResourceName,
    /// `available_deviceIDs`.
    pub available: BTreeSet<String>,
    /// `must_include_deviceIDs`.
    pub must_include: BTreeSet<String>,
    /// `allocation_size`.
    pub size: usize,
}

/// A container that needs devices of a resource.
#[derive(Clone, Copy)]
pub(super) struct ChoiceRequest<'r> {
    pub(super) uid: &'r str,
    pub(super) container: &'r str,
    pub(super) resource: &'r str,
    pub(super) required: usize,
    /// Nodes of the topology hint.
    pub(super) nodes: Option<NodeMask>,
    /// The container ran before the agent's start.
    pub(super) runs_already: bool,
    /// Devices of init containers of the same pod.
    pub(super) reusable: &'r BTreeSet<String>,
    /// Devices that other pods' unfinished allocations have chosen.
    pub(super) reserved: &'r BTreeSet<String>,
}

/// The outcome of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The container needs no (further) devices.
    Nothing,
    /// The chosen devices.
    Devices(BTreeSet<String>),
    /// The plugin must state its preference.
    Ask(PreferredQuestion, OpenChoice),
}

/// A choice that waits for the plugin's preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenChoice {
    pub(super) resource: ResourceName,
    pub(super) required: usize,
    /// Number of devices that are not chosen yet.
    needed: usize,
    pub(super) chosen: BTreeSet<String>,
    /// Candidates for the rest, the better ones first.
    candidates: Vec<BTreeSet<String>>,
}

/// Chooses as far as possible without the plugin.
pub(super) fn choose(
    inventory: &Inventory,
    records: &PodRecords,
    request: ChoiceRequest<'_>,
) -> Result<Choice, ChoiceError> {
    let resource = request.resource;
    let own = records.devices(request.uid, request.container, resource);
    if let Some(own) = own.as_ref().filter(|own| own.len() != request.required) {
        return Err(ChoiceError::RequestChanged {
            uid: request.uid.to_owned(),
            container: request.container.to_owned(),
            resource: resource.to_owned(),
            from: own.len(),
            to: request.required,
        });
    }
    if request.runs_already {
        return Ok(Choice::Nothing);
    }
    let unregistered = || ChoiceError::Unregistered(resource.to_owned());
    let healthy = inventory.healthy(resource).ok_or_else(unregistered)?;
    if healthy.is_empty() {
        return Err(ChoiceError::NoneHealthy(resource.to_owned()));
    }
    if own.as_ref().is_some_and(|own| !own.is_subset(healthy)) {
        return Err(ChoiceError::NoLongerHealthy(resource.to_owned()));
    }
    if own.is_some() || request.required == 0 {
        return Ok(Choice::Nothing);
    }
    let mut open = OpenChoice {
        resource: resource.to_owned(),
        required: request.required,
        needed: request.required,
        chosen: BTreeSet::new(),
        candidates: Vec::new(),
    };
    if open.take(request.reusable) {
        return Ok(Choice::Devices(open.chosen));
    }
    let in_use = records.in_use(resource);
    let is_free = |id: &&String| !in_use.contains(*id) && !request.reserved.contains(*id);
    let available: BTreeSet<String> = healthy.iter().filter(is_free).cloned().collect();
    if available.len() < open.needed {
        return Err(ChoiceError::TooFew {
            resource: resource.to_owned(),
            needed: open.needed,
            available: available.len(),
        });
    }
    open.among(inventory, available, request.nodes)
}

impl OpenChoice {
    /// Takes devices as long as some are needed. True if none is needed any more.
    fn take<'d>(&mut self, from: impl IntoIterator<Item = &'d String>) -> bool {
        for id in from {
            if self.needed > 0 && self.chosen.insert(id.clone()) {
                self.needed -= 1;
            }
        }
        self.needed == 0
    }

    /// Chooses among free devices, or asks the plugin.
    fn among(
        mut self,
        inventory: &Inventory,
        available: BTreeSet<String>,
        nodes: Option<NodeMask>,
    ) -> Result<Choice, ChoiceError> {
        let Split { aligned, unaligned, rest } = split(inventory, &self.resource, &available, nodes);
        let among = if self.needed < aligned.len() {
            self.candidates = vec![aligned.clone()];
            aligned
        } else {
            if self.take(&aligned) {
                return Ok(Choice::Devices(self.chosen));
            }
            self.candidates = vec![unaligned, rest];
            available
        };
        let resource = self.resource.clone();
        let endpoint = inventory.endpoint(&resource);
        let endpoint = endpoint.ok_or_else(|| ChoiceError::NoEndpoint(resource.clone()))?;
        if !endpoint.options.is_some_and(|options| options.preferred_allocation) {
            return Ok(Choice::Devices(self.finish(&BTreeSet::new())?));
        }
        let connection = endpoint.open().ok_or_else(|| ChoiceError::Preferred(stopped(&resource)))?;
        let question = PreferredQuestion {
            connection,
            resource,
            available: among.union(&self.chosen).cloned().collect(),
            must_include: self.chosen.clone(),
            size: self.required,
        };
        Ok(Choice::Ask(question, self))
    }

    /// Takes the candidates that the plugin prefers, then other candidates.
    pub(super) fn finish(mut self, preferred: &BTreeSet<String>) -> Result<BTreeSet<String>, ChoiceError> {
        let candidates = std::mem::take(&mut self.candidates);
        let is_candidate = |id: &&String| candidates.iter().any(|of| of.contains(*id));
        self.take(preferred.iter().filter(is_candidate));
        self.take(candidates.iter().flatten());
        if self.needed > 0 {
            return Err(ChoiceError::Short { required: self.required, got: self.required - self.needed });
        }
        Ok(self.chosen)
    }
}

/// The text of an endpoint whose connection ended; upstream prints a pointer in place of the name.
pub(super) fn stopped(resource: &str) -> String {
    format!("endpoint {resource} has been stopped")
}

/// Free devices by their relation to the hint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    /// On a node of the hint.
    pub(super) aligned: BTreeSet<String>,
    /// On other nodes.
    pub(super) unaligned: BTreeSet<String>,
    /// Devices without topology, or all devices if topology does not matter.
    pub(super) rest: BTreeSet<String>,
}

/// Splits free devices. A device of several nodes belongs to the first of them in the order: nodes of the hint, other nodes, each by
/// ascending number of free devices.
pub(super) fn split(
    inventory: &Inventory,
    resource: &str,
    available: &BTreeSet<String>,
    nodes: Option<NodeMask>,
) -> Split {
    let Some(hint) = nodes.filter(|_| inventory.has_topology(resource)) else {
        return Split { rest: available.clone(), ..Split::default() };
    };
    let in_hint = |node: i64| u32::try_from(node).is_ok_and(|node| hint.contains(node));
    let mut by_node: BTreeMap<i64, BTreeSet<&String>> = BTreeMap::new();
    for id in available {
        let nodes = inventory.nodes_of(resource, id);
        let nodes = if nodes.is_empty() { BTreeSet::from([NO_NODE]) } else { nodes };
        for node in nodes {
            by_node.entry(node).or_default().insert(id);
        }
    }
    let mut order: Vec<(i64, BTreeSet<&String>)> = by_node.into_iter().collect();
    order.sort_by_key(|(node, ids)| (!in_hint(*node), *node == NO_NODE, ids.len(), *node));
    let mut split = Split::default();
    let mut placed = BTreeSet::new();
    for (node, ids) in order {
        let class = match node {
            node if in_hint(node) => &mut split.aligned,
            NO_NODE => &mut split.rest,
            _ => &mut split.unaligned,
        };
        class.extend(ids.into_iter().filter(|id| placed.insert(*id)).cloned());
    }
    split
}

#[cfg(test)]
mod tests;
