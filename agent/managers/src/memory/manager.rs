//! The static memory policy: containers of Guaranteed pods have memory on certain NUMA nodes.
//!
//! In: pods to admit, containers that are gone. Out: the nodes of each container's memory. Invariants: no node has more reserved than its
//! allocatable memory; later containers of a pod use the memory of its init containers. A failure frees nothing:
//! [`MemoryManager::keep_only`] does so after the pod is not active any more. Upstream: pkg/kubelet/cm/memorymanager/policy_static.go.

use std::collections::BTreeMap;

use super::hints::Amounts;
use super::state::{Block, MemoryState, charge, give_back, sum};
use crate::hints::Hint;
use crate::node_mask::NodeMask;
use crate::request::{ContainerRequest, Kind, PodRequest, ResourceName};

/// Reason for which a container gets no memory; the texts are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// No set of nodes has enough memory.
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )]
    NoNodes,
    /// The request needs more nodes than the merged hint has.
    #[error("[memorymanager] failed to find the default preferred hint")]
    NoDefault,
    /// The hint's nodes have too little, and no larger set of nodes has enough.
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    CannotExtend,
    /// The same, and the larger set is not preferred.
    #[error("[memorymanager] failed to find the extended preferred hint")]
    NoExtended,
    /// Blocks of other groups lie on the nodes.
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violates,
}

/// Memory of init containers of one pod that later containers may use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reusable {
    uid: String,
    bytes: BTreeMap<(NodeMask, ResourceName), u64>,
}

/// The manager with its state.
#[derive(Clone, Debug, Default)]
pub struct MemoryManager {
    state: MemoryState,
    reusable: Reusable,
}

impl MemoryManager {
    /// `state` was validated ([`super::start`]).
    pub(super) fn with_state(state: MemoryState) -> MemoryManager {
        MemoryManager { state, reusable: Reusable::default() }
    }

    /// The machine and the blocks.
    #[must_use]
    pub fn state(&self) -> &MemoryState {
        &self.state
    }

    /// NUMA nodes of a container's memory; empty: any node.
    #[must_use]
    pub fn nodes_of(&self, uid: &str, container: &str) -> NodeMask {
        let own = self.state.own(uid, container).unwrap_or_default();
        own.iter().fold(NodeMask::default(), |all, block| all.or(block.nodes))
    }

    pub(super) fn reusable(&self, uid: &str, nodes: NodeMask, resource: &str) -> u64 {
        if self.reusable.uid != uid {
            return 0;
        }
        self.reusable.bytes.get(&(nodes, resource.to_owned())).copied().unwrap_or(0)
    }

    /// Memory of the pod's init containers that its later containers may use, during its admission.
    pub(crate) fn all_reusable(&self, uid: &str) -> Reusable {
        if self.reusable.uid == uid { self.reusable.clone() } else { Reusable::default() }
    }

    /// The admission of a pod goes on after others: its later containers may use this memory.
    pub(crate) fn reuse(&mut self, reusable: Reusable) {
        self.reusable = reusable;
    }

    /// Gives a container its memory, on the nodes of the merged hint if that is possible. A container with memory keeps it.
    ///
    /// # Errors
    /// No nodes have enough memory.
    pub fn allocate(
        &mut self,
        pod: &PodRequest,
        container: &ContainerRequest,
        merged: Hint,
    ) -> Result<(), AllocateError> {
        if !pod.is_eligible() {
            return Ok(());
        }
        if let Some(own) = self.state.own(&pod.uid, &container.name).map(<[Block]>::to_vec) {
            self.note_reuse(pod, container, &own);
            return Ok(());
        }
        let nodes = self.choose(&pod.uid, &container.memory, merged)?;
        let mut blocks = Vec::new();
        for (resource, bytes) in &container.memory {
            blocks.push(Block { nodes, resource: resource.clone(), bytes: *bytes });
            let reused = self.reusable(&pod.uid, nodes, resource);
            charge(&mut self.state.machine, nodes, resource, bytes.saturating_sub(reused));
        }
        self.note_reuse(pod, container, &blocks);
        let of_pod = self.state.blocks.entry(pod.uid.clone()).or_default();
        of_pod.insert(container.name.clone(), blocks.clone());
        self.shrink_earlier(pod, container, &blocks);
        Ok(())
    }

    /// The nodes for these amounts: those of the hint, or the smallest set that includes them and has enough.
    fn choose(&self, uid: &str, wanted: &Amounts, merged: Hint) -> Result<NodeMask, AllocateError> {
        let (mut nodes, mut preferred) = (merged.nodes, merged.preferred);
        if nodes.is_none() {
            let best = best(self.nodes_for(uid, wanted)).ok_or(AllocateError::NoNodes)?;
            if !best.preferred && preferred {
                return Err(AllocateError::NoDefault);
            }
            (nodes, preferred) = (best.nodes, best.preferred);
        }
        let mut nodes = nodes.unwrap_or_default();
        let machine = &self.state.machine;
        let has =
            wanted.iter().all(|(resource, bytes)| sum(machine, nodes, resource, |of| of.free) >= *bytes);
        if !has {
            let wider = self.nodes_for(uid, wanted);
            let wider = wider.into_iter().filter(|hint| hint.nodes.is_some_and(|mask| mask.includes(nodes)));
            let best = best(wider).ok_or(AllocateError::CannotExtend)?;
            if !best.preferred && preferred {
                return Err(AllocateError::NoExtended);
            }
            nodes = best.nodes.unwrap_or_default();
        }
        if self.violates_groups(nodes) { Err(AllocateError::Violates) } else { Ok(nodes) }
    }

    /// Notes memory that later containers of the same pod may use.
    fn note_reuse(&mut self, pod: &PodRequest, container: &ContainerRequest, blocks: &[Block]) {
        if self.reusable.uid != pod.uid {
            self.reusable = Reusable { uid: pod.uid.clone(), bytes: BTreeMap::new() };
        }
        for block in blocks {
            let bytes = self.reusable.bytes.entry((block.nodes, block.resource.clone())).or_default();
            *bytes = match container.kind {
                Kind::Init => (*bytes).max(block.bytes),
                Kind::Sidecar | Kind::App => bytes.saturating_sub(block.bytes),
            };
        }
    }

    /// Removes the memory that the container uses again from the blocks of earlier init containers, so that a pod's blocks add up to its
    /// charge.
    fn shrink_earlier(&mut self, pod: &PodRequest, container: &ContainerRequest, blocks: &[Block]) {
        let Some(of_pod) = self.state.blocks.get_mut(&pod.uid) else { return };
        for block in blocks {
            let mut left = block.bytes;
            let init = pod.containers.iter().filter(|other| other.kind != Kind::App);
            let earlier = init.take_while(|other| other.name != container.name);
            for other in earlier.filter(|other| other.kind == Kind::Init) {
                let theirs = of_pod.get_mut(&other.name).into_iter().flatten();
                for their in
                    theirs.filter(|their| their.resource == block.resource && their.nodes == block.nodes)
                {
                    let reused = their.bytes.min(left);
                    their.bytes -= reused;
                    left -= reused;
                }
            }
        }
    }

    /// Gives the container these blocks if all of them are free.
    pub(super) fn keep(&mut self, uid: &str, container: &str, blocks: &[Block]) {
        let machine = &self.state.machine;
        let fits = |block: &Block| {
            let has =
                |node: u32| machine.get(&node).is_some_and(|node| node.memory.contains_key(&block.resource));
            block.nodes.nodes().all(has)
                && !self.violates_groups(block.nodes)
                && sum(machine, block.nodes, &block.resource, |of| of.free) >= block.bytes
        };
        if blocks.is_empty() || !blocks.iter().all(fits) {
            return;
        }
        for block in blocks {
            charge(&mut self.state.machine, block.nodes, &block.resource, block.bytes);
        }
        let of_pod = self.state.blocks.entry(uid.to_owned()).or_default();
        of_pod.insert(container.to_owned(), blocks.to_vec());
    }

    /// A container is about to be created: the init containers before it have ended, and their memory becomes free. True if something
    /// changed.
    pub fn release_earlier(&mut self, pod: &PodRequest, container: &str) -> bool {
        let before = pod.containers.iter().take_while(|other| other.name != container);
        let ended: Vec<&str> =
            before.filter(|other| other.kind == Kind::Init).map(|other| other.name.as_str()).collect();
        ended.into_iter().filter(|name| self.release(&pod.uid, name)).count() > 0
    }

    /// Frees the memory of all containers that no active pod has. True if something changed.
    pub fn keep_only(&mut self, is_active: impl Fn(&str, &str) -> bool) -> bool {
        let all = self.state.blocks.iter();
        let gone =
            all.flat_map(|(uid, containers)| containers.keys().map(move |name| (uid.clone(), name.clone())));
        let gone: Vec<(String, String)> = gone.filter(|(uid, name)| !is_active(uid, name)).collect();
        for (uid, name) in &gone {
            self.release(uid, name);
        }
        !gone.is_empty()
    }

    fn release(&mut self, uid: &str, container: &str) -> bool {
        let Some(of_pod) = self.state.blocks.get_mut(uid) else { return false };
        let Some(blocks) = of_pod.remove(container) else { return false };
        if of_pod.is_empty() {
            self.state.blocks.remove(uid);
        }
        for block in &blocks {
            give_back(&mut self.state.machine, block);
        }
        true
    }
}

/// The best hint: a preferred one, then the narrowest; the first of equals.
fn best(hints: impl IntoIterator<Item = Hint>) -> Option<Hint> {
    let order = |hint: &Hint| {
        let nodes = hint.nodes.unwrap_or_default();
        (!hint.preferred, nodes.count(), nodes)
    };
    hints.into_iter().min_by_key(order)
}

#[cfg(test)]
mod tests;
