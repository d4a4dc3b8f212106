//! The topology manager's policies (`topologyManagerPolicy`) and options.
//!
//! In: lists of hints. Out: the placement, and whether the container is admitted. Upstream:
//! pkg/kubelet/cm/topologymanager/policy_*.go.

use super::Hint;
use super::merge::{Nodes, merge};

/// Strictness of the check of placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The best placement is used, also if it is not preferred.
    BestEffort,
    /// Only a preferred placement is admitted.
    Restricted,
    /// Only a placement on one NUMA node is admitted.
    SingleNumaNode,
}

impl Policy {
    /// The placement for these lists, and whether it is admitted.
    #[must_use]
    pub fn place(self, nodes: &Nodes, lists: &[Vec<Hint>]) -> (Hint, bool) {
        let best = match self {
            Policy::BestEffort | Policy::Restricted => merge(nodes, lists),
            Policy::SingleNumaNode => on_one_node(nodes, lists),
        };
        (best, self == Policy::BestEffort || best.preferred)
    }
}

/// The placement on one node: hints of several nodes, hints that are not preferred, and distances do not count.
fn on_one_node(nodes: &Nodes, lists: &[Vec<Hint>]) -> Hint {
    let fits = |hint: &Hint| hint.preferred && hint.nodes.is_none_or(|mask| mask.count() == 1);
    let lists: Vec<Vec<Hint>> =
        lists.iter().map(|list| list.iter().copied().filter(fits).collect()).collect();
    let best = merge(&nodes.without_distances(), &lists);
    // All nodes of the machine do not count as a placement: the machine has one node, or nothing fits.
    if best.nodes == Some(nodes.mask()) { Hint { nodes: None, ..best } } else { best }
}
