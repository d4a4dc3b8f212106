//! Processors spread evenly over as few NUMA nodes as hold them (`distribute-cpus-across-numa`).
//!
//! In: as for [`super::accumulator`], and the size of the groups that stay together. Out: as there. Invariant: among the combinations of
//! the fewest nodes that can serve the request, the chosen one leaves the most even numbers of free processors on all nodes. A
//! deliberate difference from upstream: upstream keeps a reference to the best combination, and its search overwrites it later, so
//! combinations of 4, 6 and 7 nodes may end with another last node than the evaluated one (kubernetes v1.36.3,
//! `iterateCombinations`); here the evaluated combination is used. Upstream: cpu_assignment.go (`takeByTopologyNUMADistributed`).

use super::accumulator::{Run, Sorting, TakeError, take_packed};
use crate::cpu_set::CpuSet;
use crate::topology::{CpuTopology, Unit};

/// Takes `requested` processors out of `available`, evenly over NUMA nodes, in groups of `group` (processors of a core with
/// `full-pcpus-only`, else 1).
///
/// # Errors
/// Fewer processors are free, or the distribution does not add up.
pub fn take_distributed(
    topology: &CpuTopology,
    available: &CpuSet,
    requested: usize,
    group: usize,
    sorting: Sorting,
) -> Result<CpuSet, TakeError> {
    let packed = || take_packed(topology, available, requested, sorting, false);
    if group == 0 || !requested.is_multiple_of(group) {
        return packed();
    }
    let mut run = Run::new(topology, available, requested)?;
    if run.is_satisfied() {
        return Ok(run.taken());
    }
    let sizes = run.free.sizes(Unit::Node);
    let nodes = run.order(Unit::Node);
    let search = Search {
        free: nodes.iter().map(|id| sizes.get(id).copied().unwrap_or(0)).collect(),
        requested,
        group,
    };
    for count in search.node_counts(topology) {
        let Some(plan) = search.best(count) else { continue };
        let each = search.each(count);
        let mut take_of = |node: usize, cpus: usize| -> Result<bool, TakeError> {
            let Some(id) = nodes.get(node) else { return Ok(false) };
            let free = run.free.in_group(Unit::Node, *id);
            if free.len() < cpus {
                return Ok(false);
            }
            run.take(&take_packed(topology, &free, cpus, sorting, false)?);
            Ok(true)
        };
        for node in &plan.nodes {
            take_of(*node, each)?;
        }
        let mut rest = requested - each * count;
        while rest > 0 {
            let before = rest;
            for node in &plan.rest {
                if rest > 0 && take_of(*node, group)? {
                    rest = rest.saturating_sub(group);
                }
            }
            if rest == before {
                break;
            }
        }
        return if run.is_satisfied() { Ok(run.taken()) } else { Err(TakeError::Accounting(run.needed())) };
    }
    packed()
}

/// Nodes of a distribution, by their place in the order of nodes.
struct Plan {
    /// Each of these nodes gives the same number.
    nodes: Vec<usize>,
    /// These nodes give the remainder, a group at a time.
    rest: Vec<usize>,
    /// Deviation of the nodes' free processors afterwards, in thousandths.
    balance: u64,
}

struct Search {
    /// Free processors of each node, in the order of nodes.
    free: Vec<usize>,
    requested: usize,
    group: usize,
}

impl Search {
    /// Numbers of nodes that may hold the request, ascending.
    fn node_counts(&self, topology: &CpuTopology) -> std::ops::RangeInclusive<usize> {
        let groups = topology.cpus().len().div_ceil(self.group);
        let groups_of_node = groups.div_ceil(topology.nodes().max(1)).max(1);
        let needed = self.requested.div_ceil(self.group);
        needed.div_ceil(groups_of_node)..=needed.min(self.free.len())
    }

    /// Number of processors that each of `count` nodes gives.
    fn each(&self, count: usize) -> usize {
        self.requested / count / self.group * self.group
    }

    fn free_of(&self, node: usize) -> usize {
        self.free.get(node).copied().unwrap_or(0)
    }

    /// The best combination of `count` nodes; the first of equals.
    fn best(&self, count: usize) -> Option<Plan> {
        let mut best: Option<Plan> = None;
        let all: Vec<usize> = (0..self.free.len()).collect();
        combinations(&all, count, &mut |nodes| {
            if let Some(plan) = self.judge(nodes)
                && best.as_ref().is_none_or(|best| plan.balance < best.balance)
            {
                best = Some(plan);
            }
            best.as_ref().is_none_or(|best| best.balance > 0)
        });
        best
    }

    /// The combination with its best remainder; `None` if it cannot serve the request.
    fn judge(&self, nodes: &[usize]) -> Option<Plan> {
        let (total, groups) = nodes.iter().fold((0, 0), |(total, groups), node| {
            (total + self.free_of(*node), groups + self.free_of(*node) / self.group)
        });
        let each = self.each(nodes.len());
        let serves = total >= self.requested
            && groups * self.group >= self.requested
            && nodes.iter().all(|node| self.free_of(*node) >= each);
        if !serves {
            return None;
        }
        let mut after = self.free.clone();
        for node in nodes {
            if let Some(free) = after.get_mut(*node) {
                *free -= each;
            }
        }
        let rest = self.requested - each * nodes.len();
        if rest == 0 {
            return Some(Plan { nodes: nodes.to_vec(), rest: Vec::new(), balance: deviation(&after) });
        }
        let may: Vec<usize> = nodes
            .iter()
            .copied()
            .filter(|node| after.get(*node).is_some_and(|free| *free >= self.group))
            .collect();
        let mut best: Option<(u64, Vec<usize>)> = None;
        for count in (1..=may.len()).rev() {
            combinations(&may, count, &mut |subset| {
                if let Some(balance) = self.hand_out(&after, subset, rest)
                    && best.as_ref().is_none_or(|(least, _)| balance < *least)
                {
                    best = Some((balance, subset.to_vec()));
                }
                true
            });
        }
        best.map(|(balance, rest)| Plan { nodes: nodes.to_vec(), rest, balance })
    }

    /// Deviation of the free processors after the subset has given the rest, round robin; `None` if it cannot.
    fn hand_out(&self, after: &[usize], subset: &[usize], mut rest: usize) -> Option<u64> {
        let mut after = after.to_vec();
        let can: usize = subset
            .iter()
            .filter_map(|node| after.get(*node))
            .map(|free| free / self.group * self.group)
            .sum();
        if can < rest {
            return None;
        }
        while rest > 0 {
            for node in subset {
                if let Some(free) = after.get_mut(*node)
                    && rest > 0
                    && *free >= self.group
                {
                    *free -= self.group;
                    rest = rest.saturating_sub(self.group);
                }
            }
        }
        Some(deviation(&after))
    }
}

/// Standard deviation in thousandths, rounded as upstream: the mean first, then the result.
fn deviation(values: &[usize]) -> u64 {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    let count = to_f64(values.len());
    let mean = round(values.iter().map(|value| to_f64(*value)).sum::<f64>() / count);
    let squares: f64 = values.iter().map(|value| (to_f64(*value) - mean).powi(2)).sum();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a deviation of processor counts is small and not negative"
    )]
    let thousandths = ((squares / count).sqrt() * 1000.0).round() as u64;
    thousandths
}

/// The conversion is exact, because there are fewer than 2^32 processors.
fn to_f64(value: usize) -> f64 {
    f64::from(u32::try_from(value).unwrap_or(u32::MAX))
}

/// Calls `visit` with each combination of `count` items, in lexicographic order of their positions, until it returns false.
fn combinations(items: &[usize], count: usize, visit: &mut dyn FnMut(&[usize]) -> bool) {
    let mut chosen = Vec::with_capacity(count);
    if count > 0 {
        choose(items, count, &mut chosen, visit);
    }
}

fn choose(
    items: &[usize],
    count: usize,
    chosen: &mut Vec<usize>,
    visit: &mut dyn FnMut(&[usize]) -> bool,
) -> bool {
    if count == 0 {
        return visit(chosen);
    }
    for (at, item) in items.iter().enumerate() {
        if items.len() - at < count {
            break;
        }
        chosen.push(*item);
        let go_on = choose(items.get(at + 1..).unwrap_or_default(), count - 1, chosen, visit);
        chosen.pop();
        if !go_on {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
