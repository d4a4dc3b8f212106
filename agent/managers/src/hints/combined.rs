//! The common nodes of all combinations of hints.
//!
//! In: lists of hints. Out: each set of nodes that is the common part of one hint from each list, once. Invariant: with up to
//! [`DENSE_NODES`] nodes the work is `nodes × 2^nodes` for each list, also for long lists: eight nodes have 255 sets,
//! and three resources 16 million combinations, which upstream goes through one by one.

use std::collections::BTreeSet;

use super::Hint;
use crate::node_mask::NodeMask;

/// On machines with more nodes the hints are combined pair by pair.
const DENSE_NODES: u32 = 16;

/// Common parts that are not empty, ascending by mask.
pub(super) fn masks(all: NodeMask, lists: &[Vec<Hint>]) -> Vec<NodeMask> {
    let within = |hint: &Hint| hint.nodes.map_or(all, |mask| mask.and(all));
    let sets = lists.iter().map(|list| list.iter().map(within).collect::<BTreeSet<NodeMask>>());
    let common = if all.nodes().all(|node| node < DENSE_NODES) {
        sets.fold(BTreeSet::from([all]), |common, list| dense(all, &common, &list))
    } else {
        sets.fold(BTreeSet::from([all]), |common, list| pairwise(&common, &list))
    };
    common.into_iter().filter(|mask| !mask.is_empty()).collect()
}

fn pairwise(a: &BTreeSet<NodeMask>, b: &BTreeSet<NodeMask>) -> BTreeSet<NodeMask> {
    a.iter().flat_map(|a| b.iter().map(|b| a.and(*b))).collect()
}

/// The same by counting. For each mask: the number of masks of each side that include it; the product is the number of pairs whose common
/// part includes it; subtracting the pairs with a larger common part leaves the pairs with exactly this common part.
fn dense(all: NodeMask, a: &BTreeSet<NodeMask>, b: &BTreeSet<NodeMask>) -> BTreeSet<NodeMask> {
    let nodes = all.nodes().max().map_or(0, |last| last + 1);
    let size = 1_usize << nodes;
    let count = |masks: &BTreeSet<NodeMask>| {
        let mut counts = vec![0_i64; size];
        for mask in masks {
            if let Some(count) = counts.get_mut(mask.index()) {
                *count += 1;
            }
        }
        over_supersets(&mut counts, nodes, |count, of_superset| count + of_superset);
        counts
    };
    let mut pairs: Vec<i64> = count(a).iter().zip(count(b)).map(|(a, b)| a * b).collect();
    over_supersets(&mut pairs, nodes, |count, of_superset| count - of_superset);
    let found = (0_u64..).zip(pairs).filter(|(_, pairs)| *pairs > 0);
    found.map(|(bits, _)| NodeMask::from_bits(bits)).collect()
}

/// For each node, folds the count of the mask with the node into that of the mask without.
fn over_supersets(counts: &mut [i64], nodes: u32, fold: impl Fn(i64, i64) -> i64) {
    for node in 0..nodes {
        let bit = 1_usize << node;
        for mask in (0..counts.len()).filter(|mask| mask & bit == 0) {
            let with = counts.get(mask | bit).copied().unwrap_or(0);
            if let Some(count) = counts.get_mut(mask) {
                *count = fold(*count, with);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counting_finds_what_pairs_have_in_common(
            a in proptest::collection::btree_set(0_u64..32, 0..9),
            b in proptest::collection::btree_set(0_u64..32, 0..9),
        ) {
            let set = |bits: BTreeSet<u64>| bits.into_iter().map(NodeMask::from_bits).collect::<BTreeSet<NodeMask>>();
            let (a, b) = (set(a), set(b));
            prop_assert_eq!(dense(NodeMask::of(0..5), &a, &b), pairwise(&a, &b));
        }
    }
}
