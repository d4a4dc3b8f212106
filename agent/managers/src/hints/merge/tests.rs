//! Merges on machines of one, two and four nodes; the answers are upstream's (v1.36.3), computed by its own code.

use proptest::prelude::*;

use super::*;
use crate::hints::policy::Policy;
use crate::hints::{Hints, lists};

/// `+` after the nodes: preferred, `-`: not.
fn hint(text: &str) -> Hint {
    let (nodes, preferred) = text.split_at(text.len() - 1);
    Hint {
        nodes: Some(NodeMask::of(nodes.chars().filter_map(|c| c.to_digit(10)))),
        preferred: preferred == "+",
    }
}

/// Hints of one resource, separated by spaces; `*`: no preference.
fn resource(text: &str) -> Hints {
    if text == "*" { Hints::NoPreference } else { Hints::On(text.split_whitespace().map(hint).collect()) }
}

/// Nodes (`*`: nil), `+` or `-`, `ok` or `no`.
fn place(policy: Policy, nodes: &Nodes, resources: &[&str]) -> String {
    let hints: Vec<Vec<Hints>> = resources.iter().map(|text| vec![resource(text)]).collect();
    let (best, admitted) = policy.place(nodes, &lists(&hints));
    let nodes = best.nodes.map_or("*".to_owned(), |mask| mask.nodes().map(|node| node.to_string()).collect());
    let sign = if best.preferred { "+" } else { "-" };
    format!("{nodes}{sign} {}", if admitted { "ok" } else { "no" })
}

#[test]
fn merges_and_judgements() {
    let pairs = "01+ 02+ 03+ 12+ 13+ 23+";
    for (nodes, resources, best_effort, restricted, single) in [
        (2, vec![], "01+ ok", "01+ ok", "*+ ok"),
        (2, vec!["", "*"], "01- ok", "01- no", "*- no"),
        (2, vec!["", "0+"], "0- ok", "0- no", "*- no"),
        (2, vec!["0+ 1+ 01-", "0+ 1+ 01-"], "0+ ok", "0+ ok", "0+ ok"),
        (2, vec!["0+", "1+"], "01- ok", "01- no", "*- no"),
        (2, vec!["0+ 01-", "1+ 01-"], "0- ok", "0- no", "*- no"),
        (2, vec!["01+", "0+ 1+ 01-"], "01- ok", "01- no", "*- no"),
        (2, vec!["01+", "01+"], "01+ ok", "01+ ok", "*- no"),
        (2, vec!["1+ 01-", "01-"], "01- ok", "01- no", "*- no"),
        (1, vec!["0+", "0+"], "0+ ok", "0+ ok", "*+ ok"),
        (4, vec!["01+ 23+", "02+ 13+"], "0- ok", "0- no", "*- no"),
        (4, vec![pairs, pairs], "01+ ok", "01+ ok", "*- no"),
    ] {
        let machine = Nodes::new(0..nodes);
        let answers = [Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode]
            .map(|policy| place(policy, &machine, &resources));
        assert_eq!(answers, [best_effort, restricted, single], "{nodes} nodes, {resources:?}");
    }
}

#[test]
fn closer_nodes_are_preferred_where_distances_count() {
    let rows = [[10, 21, 11, 21], [21, 10, 21, 11], [11, 21, 10, 21], [21, 11, 21, 10]];
    let mut distances = BTreeMap::new();
    for (from, row) in (0_u32..).zip(rows) {
        distances.extend((0_u32..).zip(row).map(|(to, distance)| ((from, to), distance)));
    }
    let machine = Nodes::new(0..4).with_distances(distances);
    let pairs = "01+ 02+ 03+ 12+ 13+ 23+";
    assert_eq!(place(Policy::BestEffort, &machine, &[pairs, pairs]), "02+ ok");
    assert_eq!(place(Policy::SingleNumaNode, &machine, &[pairs, pairs]), "*- no");
}

/// Upstream's way: every combination, one after the other.
fn every_combination(nodes: &Nodes, lists: &[Vec<Hint>]) -> BTreeSet<(NodeMask, bool)> {
    let mut all: Vec<Vec<Hint>> = vec![Vec::new()];
    for list in lists {
        all = all
            .iter()
            .flat_map(|of| list.iter().map(move |hint| [of.clone(), vec![*hint]].concat()))
            .collect();
    }
    let judge = |combination: Vec<Hint>| {
        let masks: Vec<NodeMask> = combination.iter().filter_map(|hint| hint.nodes).collect();
        let mask = masks.iter().fold(nodes.mask(), |all, mask| all.and(*mask));
        let equal = masks.windows(2).all(|pair| pair.first() == pair.last());
        (mask, equal && combination.iter().all(|hint| hint.preferred))
    };
    all.into_iter().map(judge).filter(|(mask, _)| !mask.is_empty()).collect()
}

prop_compose! {
    fn some_hint()(bits in proptest::option::weighted(0.9, 1_u64..16), preferred in any::<bool>()) -> Hint {
        Hint { nodes: bits.map(NodeMask::from_bits), preferred }
    }
}

proptest! {
    #[test]
    fn a_placement_is_one_of_all_combinations_and_preferred_if_one_is(
        lists in proptest::collection::vec(proptest::collection::vec(some_hint(), 1..5), 0..5)
    ) {
        let machine = Nodes::new(0..4);
        let all = every_combination(&machine, &lists);
        let best = merge(&machine, &lists);
        let mask = best.nodes.expect("a mask");
        prop_assert!(all.is_empty() || all.contains(&(mask, best.preferred)), "{best:?} of {all:?}");
        prop_assert_eq!(best.preferred, all.iter().any(|(_, preferred)| *preferred));
        if best.preferred {
            let least = all.iter().filter(|(_, preferred)| *preferred).map(|(mask, _)| (mask.count(), *mask)).min();
            prop_assert_eq!(least, Some((mask.count(), mask)));
        }
    }
}
