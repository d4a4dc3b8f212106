//! Sets of NUMA nodes as the hints of a placement name them.
//!
//! In: node ids below 64. Out: a mask with the order that the topology manager prefers. Invariant: a mask has at most 64 nodes, as
//! upstream's. Upstream: pkg/kubelet/cm/topologymanager/bitmask.

use std::fmt;

/// NUMA nodes; bit `n` is the node with id `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeMask(u64);

/// Ids from this number on have no bit.
pub const NODES_MAX: u32 = 64;

impl NodeMask {
    /// The mask of these nodes; ids of [`NODES_MAX`] and more are ignored.
    #[must_use]
    pub fn of(nodes: impl IntoIterator<Item = u32>) -> NodeMask {
        NodeMask(nodes.into_iter().filter(|node| *node < NODES_MAX).fold(0, |mask, node| mask | 1 << node))
    }

    /// The mask with these bits.
    #[must_use]
    pub fn from_bits(bits: u64) -> NodeMask {
        NodeMask(bits)
    }

    /// The bits as an index into a table of all masks of fewer nodes than a machine word has bits.
    pub(crate) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Number of nodes.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if the node is one of them.
    #[must_use]
    pub fn contains(self, node: u32) -> bool {
        node < NODES_MAX && self.0 & (1 << node) != 0
    }

    /// True if the mask has all nodes of the other one.
    #[must_use]
    pub fn includes(self, other: NodeMask) -> bool {
        self.0 & other.0 == other.0
    }

    /// Nodes of both.
    #[must_use]
    pub fn and(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 & other.0)
    }

    /// Nodes of either.
    #[must_use]
    pub fn or(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 | other.0)
    }

    /// Ids, ascending.
    pub fn nodes(self) -> impl Iterator<Item = u32> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let node = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(node)
        })
    }

    /// True if this mask is preferred to the other one: fewer nodes, then nodes with lower ids.
    #[must_use]
    pub fn is_narrower(self, other: NodeMask) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }

    /// All masks of one node or more out of `nodes`: by number of nodes, then in lexicographic order of `nodes`.
    #[must_use]
    pub fn subsets(nodes: &[u32]) -> Vec<NodeMask> {
        let mut all = Vec::new();
        for size in 1..=nodes.len() {
            choose(nodes, size, NodeMask::default(), &mut all);
        }
        all
    }
}

/// Adds each mask of `size` nodes out of `nodes`, joined with `with`.
fn choose(nodes: &[u32], size: usize, with: NodeMask, all: &mut Vec<NodeMask>) {
    if size == 0 {
        all.push(with);
        return;
    }
    for (at, node) in nodes.iter().enumerate().take(nodes.len() + 1 - size.min(nodes.len() + 1)) {
        choose(nodes.get(at + 1..).unwrap_or_default(), size - 1, with.or(NodeMask::of([*node])), all);
    }
}

impl fmt::Display for NodeMask {
    /// Bits, the highest node first, at least two.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02b}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_come_by_size_and_then_in_order() {
        let texts: Vec<String> = NodeMask::subsets(&[0, 1, 2]).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["01", "10", "100", "11", "101", "110", "111"]);
        assert_eq!(NodeMask::subsets(&[]), vec![]);
    }

    #[test]
    fn narrower_masks() {
        let mask = |nodes: &[u32]| NodeMask::of(nodes.iter().copied());
        assert!(mask(&[3]).is_narrower(mask(&[0, 1])));
        assert!(mask(&[0, 1]).is_narrower(mask(&[0, 2])));
        assert!(!mask(&[1]).is_narrower(mask(&[1])));
        assert!(!mask(&[64, 70]).contains(64), "ids beyond the mask are left out");
        assert!(mask(&[0, 2]).includes(mask(&[2])) && !mask(&[2]).includes(mask(&[0, 2])));
    }
}
