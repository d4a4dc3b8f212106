//! The merge of hints into the best placement.
//!
//! In: the machine's nodes, one list of hints for each resource. Out: one hint with a mask. Invariants: the result does not depend on the
//! order of lists or hints; the work does not grow with the product of the lists' lengths (module `combined`). Upstream: pkg/kubelet/cm/topologymanager/policy.go (`HintMerger`), which compares
//! pair by pair in order of enumeration; the rules here have the same result.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::{Hint, combined};
use crate::node_mask::NodeMask;

/// The machine's NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    mask: NodeMask,
    /// Distance from node to node, by ids; empty: distances do not count.
    distances: BTreeMap<(u32, u32), u64>,
}

impl Nodes {
    /// Nodes by id.
    #[must_use]
    pub fn new(ids: impl IntoIterator<Item = u32>) -> Nodes {
        Nodes { mask: NodeMask::of(ids), distances: BTreeMap::new() }
    }

    /// The same with distances, which decide among placements of the same size (`prefer-closest-numa-nodes`).
    #[must_use]
    pub fn with_distances(self, distances: BTreeMap<(u32, u32), u64>) -> Nodes {
        Nodes { distances, ..self }
    }

    pub(super) fn without_distances(&self) -> Nodes {
        Nodes { mask: self.mask, distances: BTreeMap::new() }
    }

    /// All of them.
    #[must_use]
    pub fn mask(&self) -> NodeMask {
        self.mask
    }

    /// Sum of the distances between all ordered pairs of nodes of the mask, a node and itself included.
    fn spread(&self, mask: NodeMask) -> u64 {
        let pairs = mask.nodes().flat_map(|from| mask.nodes().map(move |to| (from, to)));
        pairs.filter_map(|pair| self.distances.get(&pair)).sum()
    }

    /// Order of two masks, the better one first: fewer nodes, then closer ones, then lower ids.
    fn order(&self, a: NodeMask, b: NodeMask) -> Ordering {
        let by_count = a.count().cmp(&b.count());
        // For the same number of nodes the sums have the same order as the averages.
        let by_distance = || self.spread(a).cmp(&self.spread(b));
        by_count.then_with(by_distance).then(a.cmp(&b))
    }
}

/// The best placement for all lists; if there is none: all nodes, not preferred.
#[must_use]
pub fn merge(nodes: &Nodes, lists: &[Vec<Hint>]) -> Hint {
    let within = |mask: Option<NodeMask>| mask.map_or(nodes.mask, |mask| mask.and(nodes.mask));
    let smallest = |masks: &mut dyn Iterator<Item = NodeMask>| masks.min_by(|a, b| nodes.order(*a, *b));
    let preferred = preferred(lists);
    let mut preferred = preferred.into_iter().map(within).filter(|mask| !mask.is_empty());
    if let Some(mask) = smallest(&mut preferred) {
        return Hint { nodes: Some(mask), preferred: true };
    }
    let all: Vec<NodeMask> = combined::masks(nodes.mask, lists);
    let wanted = narrowest_of_the_widest(lists);
    let below = all.iter().map(|mask| mask.count()).filter(|count| *count <= wanted).max();
    let best = match below {
        // The number of nodes that the widest resource needs, or the next smaller number that exists.
        Some(count) => smallest(&mut all.iter().copied().filter(|mask| mask.count() == count)),
        None => smallest(&mut all.iter().copied()),
    };
    Hint { nodes: Some(best.unwrap_or(nodes.mask)), preferred: false }
}

/// Nodes of the combinations whose hints are all preferred and name the same nodes; `None`: name no nodes.
fn preferred(lists: &[Vec<Hint>]) -> BTreeSet<Option<NodeMask>> {
    let mut agreed = BTreeSet::from([None]);
    for list in lists {
        let named: BTreeSet<Option<NodeMask>> =
            list.iter().filter(|hint| hint.preferred).map(|hint| hint.nodes).collect();
        let free = named.contains(&None);
        let next = agreed.iter().flat_map(|of| match of {
            None => named.iter().copied().collect(),
            some if free || named.contains(some) => vec![*some],
            Some(_) => Vec::new(),
        });
        agreed = next.collect();
    }
    agreed
}

/// The largest number of nodes among the narrowest hints of all lists.
fn narrowest_of_the_widest(lists: &[Vec<Hint>]) -> u32 {
    let narrowest = |list: &Vec<Hint>| list.iter().filter_map(|hint| hint.nodes).map(NodeMask::count).min();
    lists.iter().filter_map(narrowest).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
