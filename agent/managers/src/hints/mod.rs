//! Hints: the NUMA nodes on which a manager could serve a container, and their merge into one placement.
//!
//! In: for each resource of each manager a list of hints. Out: one hint, and whether the topology policy admits it. Upstream:
//! pkg/kubelet/cm/topologymanager (KEP-693, KEP-3545).

mod combined;
pub mod merge;
pub mod policy;

use crate::node_mask::NodeMask;

/// A set of NUMA nodes that can provide a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hint {
    /// The nodes; `None`: any.
    pub nodes: Option<NodeMask>,
    /// True if no smaller set of nodes can provide the resource.
    pub preferred: bool,
}

impl Hint {
    /// Any node can provide it.
    pub const ANY: Hint = Hint { nodes: None, preferred: true };
    /// No node can provide it.
    pub const NONE: Hint = Hint { nodes: None, preferred: false };
}

/// A manager's answer about one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hints {
    /// The resource has no preference.
    NoPreference,
    /// Each of these sets can provide the resource; an empty list: none can.
    On(Vec<Hint>),
}

/// The lists to merge: one for each resource, or one for a manager without a resource.
#[must_use]
pub fn lists(managers: &[Vec<Hints>]) -> Vec<Vec<Hint>> {
    let of_manager = |resources: &Vec<Hints>| match resources.as_slice() {
        [] => vec![vec![Hint::ANY]],
        some => some.iter().map(list).collect(),
    };
    managers.iter().flat_map(of_manager).collect()
}

fn list(hints: &Hints) -> Vec<Hint> {
    match hints {
        Hints::NoPreference => vec![Hint::ANY],
        Hints::On(hints) if hints.is_empty() => vec![Hint::NONE],
        Hints::On(hints) => hints.clone(),
    }
}
