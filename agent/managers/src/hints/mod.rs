//! Hints: the NUMA nodes on which a manager could serve a container, and their merge into one placement.
//!
//! In: for each resource of each manager a list of hints. Out: one hint, and whether the topology policy admits it. Upstream:
//! pkg/kubelet/cm/topologymanager (KEP-693, KEP-3545).

mod combined;
pub mod merge;
pub mod policy;

use crate::node_mask::NodeMask;

/// A set of NUMA nodes on which a resource can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hint {
    /// The nodes; `None`: any.
    pub nodes: Option<NodeMask>,
    /// No other set of nodes serves the resource with fewer of them.
    pub preferred: bool,
}

impl Hint {
    /// Any node will do.
    pub const ANY: Hint = Hint { nodes: None, preferred: true };
    /// No node will do.
    pub const NONE: Hint = Hint { nodes: None, preferred: false };
}

/// A manager's answer about one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hints {
    /// The resource has no preference.
    NoPreference,
    /// The resource can be had on each of these; an empty list: on none.
    On(Vec<Hint>),
}

/// The lists that are merged: one a resource, or one for a manager that answers about none.
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
