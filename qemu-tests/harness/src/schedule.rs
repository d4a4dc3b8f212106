//! The order in which the runner begins cases, and its choice if the time is too short for all. Pure.
//!
//! Without a time limit the runner begins all cases, the longest first, so that no lane ends with a long case alone.
//! With a limit it begins the fixed set first. Then come the cases that fit into the time: those of touched areas
//! before the others ([`crate::gate`]), of each kind those whose last pass on this machine is the longest ago (a case
//! that never passed, or failed since, counts as the oldest; of these the cheapest comes first). The rest follows, in
//! case time is left. So successive runs that are too short for all cases run each case in turn.

use std::collections::BTreeMap;

use crate::case::{Case, Level};
use crate::gate::Tier;
use crate::history::History;

/// Largest number of emulated machines at once that two cores can run. Cases without one wait more than they compute,
/// and have further lanes.
pub const VM_LANES: usize = 2;

/// Seconds for a group's fixture, when it is made for one case: a VM that boots, a cluster with its nodes.
const FIXTURE_S: [(Level, u64); 2] = [(Level::L4v, 30), (Level::L4n, 12)];

/// A case with its expected duration.
#[derive(Clone, Copy)]
pub struct Planned {
    /// The case.
    pub case: Case,
    /// Seconds: the last duration on this machine, or the case's own estimate. Includes the group's fixture if the case
    /// is the first of its unit.
    pub expected_s: u64,
    /// The runner begins the case even if the time limit has passed.
    pub must_run: bool,
}

/// A time limit, and the tier that each case has then.
pub struct Limit<'a> {
    /// Seconds until all cases must be over.
    pub time_s: u64,
    /// Tier of a case.
    pub tier: &'a dyn Fn(&Case) -> Tier,
}

/// Cases that run one after another, with one fixture: a whole group, a part of a group, or one case without a group.
pub type Unit = Vec<Planned>;

/// All cases, as units in the order in which the runner begins them in `jobs` lanes.
#[must_use]
pub fn plan(cases: &[Case], history: &History, limit: Option<&Limit<'_>>, jobs: usize) -> Vec<Unit> {
    let expected = |case: &Case| history.get(case.name).map_or(case.expected_s, |past| past.took_s);
    let Some(limit) = limit else { return longest_first(units(cases, |case| (expected(case), false))) };
    let planned = |case: &Case| (expected(case), (limit.tier)(case) == Tier::Fixed);
    let passed_at = |case: &Case| history.get(case.name).map_or(0, |past| past.passed_at);
    let chosen =
        choose(cases, limit.time_s, jobs, |case| ((limit.tier)(case), passed_at(case), expected(case)));
    let side = |wanted: bool| -> Vec<Case> {
        cases.iter().zip(&chosen).filter(|(_, chosen)| **chosen == wanted).map(|(case, _)| *case).collect()
    };
    let mut first = longest_first(units(&side(true), planned));
    first.sort_by_key(|unit| !unit.iter().any(|planned| planned.must_run));
    let mut rest = units(&side(false), planned);
    rest.sort_by_key(|unit| unit.iter().map(|p| ((limit.tier)(&p.case), passed_at(&p.case))).min());
    first.into_iter().chain(rest).collect()
}

/// `planned` answers a case's expected seconds, and whether the runner must begin the case.
fn units(cases: &[Case], planned: impl Fn(&Case) -> (u64, bool)) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for case in cases {
        let (expected_s, must_run) = planned(case);
        let planned = Planned { case: *case, expected_s, must_run };
        match units.iter_mut().find(|u| case.group.is_some() && u[0].case.group == case.group) {
            Some(unit) => unit.push(planned),
            None => units.push(vec![Planned { expected_s: planned.expected_s + fixture_s(case), ..planned }]),
        }
    }
    units
}

fn longest_first(mut units: Vec<Unit>) -> Vec<Unit> {
    units.sort_by_key(|unit| std::cmp::Reverse(unit.iter().map(|p| p.expected_s).sum::<u64>()));
    units
}

fn fixture_s(case: &Case) -> u64 {
    let of_level = FIXTURE_S.iter().find(|(level, _)| *level == case.level);
    case.group.and(of_level).map_or(0, |(_, seconds)| *seconds)
}

/// The cases that fit into the time, in the order of their keys: tier, time of the last pass, expected seconds. Cases
/// with a VM share the time of the lanes for VMs, all others that of the remaining lanes; a group has the time of one
/// lane. The fixed set is always chosen.
fn choose(cases: &[Case], time_s: u64, jobs: usize, key: impl Fn(&Case) -> (Tier, u64, u64)) -> Vec<bool> {
    let mut order: Vec<usize> = (0..cases.len()).collect();
    order.sort_by_key(|i| key(&cases[*i]));
    let mut chosen = vec![false; cases.len()];
    let (mut vms, mut others) =
        (time_s * jobs.min(VM_LANES) as u64, time_s * jobs.saturating_sub(VM_LANES).max(1) as u64);
    let mut groups: BTreeMap<&str, u64> = BTreeMap::new();
    for i in order {
        let case = &cases[i];
        let (tier, _, expected_s) = key(case);
        let known = case.group.and_then(|group| groups.get(group));
        let needed = expected_s + if known.is_some() { 0 } else { fixture_s(case) };
        let of_lane = known.copied().unwrap_or(time_s);
        let of_kind = if case.level == Level::L4v { &mut vms } else { &mut others };
        if tier == Tier::Fixed || (needed <= of_lane && needed <= *of_kind) {
            *of_kind = of_kind.saturating_sub(needed);
            chosen[i] = true;
            if let Some(group) = case.group {
                groups.insert(group, of_lane.saturating_sub(needed));
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::CaseHistory;

    fn case(name: &'static str, level: Level, expected_s: u64, group: Option<&'static str>) -> Case {
        Case { name, level, expected_s, about: "", group, run: |_| Ok(()) }
    }

    fn within(time_s: u64, tier: &dyn Fn(&Case) -> Tier, cases: &[Case], history: &History) -> Vec<Unit> {
        plan(cases, history, Some(&Limit { time_s, tier }), 3)
    }

    fn names(plan: &[Unit]) -> Vec<Vec<&str>> {
        plan.iter().map(|unit| unit.iter().map(|p| p.case.name).collect()).collect()
    }

    #[test]
    fn groups_stay_together_and_the_longest_comes_first() {
        let cases = [
            case("a", Level::L3, 9, None),
            case("b", Level::L3, 5, Some("g")),
            case("c", Level::L3, 5, Some("g")),
        ];
        let plan_of = |history: &History| plan(&cases, history, None, 3);
        assert_eq!(names(&plan_of(&History::new())), [vec!["b", "c"], vec!["a"]]);
        // The duration on this machine counts more than the case's estimate.
        let slow = History::from([("a".to_owned(), CaseHistory { passed_at: 1, took_s: 11 })]);
        assert_eq!(names(&plan_of(&slow)), [vec!["a"], vec!["b", "c"]]);
    }

    #[test]
    fn the_first_of_a_unit_pays_for_the_fixture() {
        let cases = [
            case("a", Level::L4v, 5, Some("g")),
            case("b", Level::L4v, 5, Some("g")),
            case("c", Level::L4v, 5, None),
        ];
        let expected: Vec<Vec<u64>> = plan(&cases, &History::new(), None, 3)
            .iter()
            .map(|u| u.iter().map(|p| p.expected_s).collect())
            .collect();
        assert_eq!(expected, [vec![35, 5], vec![5]]);
    }

    #[test]
    fn of_what_does_not_fit_the_longest_not_passed_is_chosen() {
        let cases = [
            case("new", Level::L4n, 60, None),
            case("failed", Level::L4n, 30, None),
            case("old", Level::L4n, 50, None),
            case("fresh", Level::L4n, 10, None),
        ];
        let past = |name: &str, passed_at, took_s| (name.to_owned(), CaseHistory { passed_at, took_s });
        let history = History::from([past("failed", 0, 30), past("old", 5, 50), past("fresh", 9, 10)]);
        // 100 s in the one lane of cases without a VM: `failed` and `new` are certain; then there is room for `fresh`
        // alone, but not for `old`, which runs last if the others take less.
        assert_eq!(
            names(&within(100, &|_| Tier::Other, &cases, &history)),
            [vec!["new"], vec!["failed"], vec!["fresh"], vec!["old"]]
        );
        // With time for one case only: the cheapest of those that never passed.
        let short = within(30, &|_| Tier::Other, &cases, &history);
        assert_eq!(names(&short)[0], ["failed"]);
    }

    #[test]
    fn a_group_gets_no_more_than_a_lane_has_and_the_rest_of_it_comes_later() {
        let long = |name| case(name, Level::L4v, 40, Some("g"));
        let cases = [
            long("a"),
            long("b"),
            long("c"),
            case("alone", Level::L4v, 90, None),
            case("other", Level::L4n, 90, None),
        ];
        // Two lanes of 120 s for VMs: two of the group with its fixture, and the one that is alone.
        let plan = within(120, &|_| Tier::Other, &cases, &History::new());
        assert_eq!(names(&plan), [vec!["a", "b"], vec!["alone"], vec!["other"], vec!["c"]]);
    }

    #[test]
    fn runs_that_are_too_short_ask_every_case_in_turn() {
        let labels = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let cases: Vec<Case> =
            labels.iter().zip(1..).map(|(name, n)| case(name, Level::L4n, 5 * n, None)).collect();
        let mut history = History::new();
        for now in 1..=8 {
            let mut left = 60;
            for planned in within(60, &|_| Tier::Other, &cases, &history).concat() {
                if planned.expected_s <= left {
                    left -= planned.expected_s;
                    let past = CaseHistory { passed_at: now, took_s: planned.expected_s };
                    history.insert(planned.case.name.to_owned(), past);
                }
            }
        }
        // Three runs are enough for all: 180 s in runs of 60 s; cases that do not fit exactly need a few more runs.
        assert!(history.len() == 8 && history.values().all(|past| past.passed_at >= 4), "{history:?}");
    }

    #[test]
    fn the_fixed_set_comes_first_and_runs_without_time_then_touched_areas_then_the_rest() {
        let cases = [
            case("old", Level::L4n, 40, None),
            case("touched", Level::L4n, 40, None),
            case("fixed", Level::L4n, 10, Some("g")),
            case("of-its-group", Level::L4n, 10, Some("g")),
            case("fixed-vm", Level::L4v, 30, None),
        ];
        let tier = |case: &Case| match case.name {
            "fixed" | "fixed-vm" => Tier::Fixed,
            "touched" => Tier::Touched,
            _ => Tier::Other,
        };
        let past = |name: &str, passed_at| (name.to_owned(), CaseHistory { passed_at, took_s: 40 });
        let history = History::from([past("old", 1), past("touched", 9)]);
        // The lane of native nodes has 100 s: 22 for the fixed case, 40 for the touched area, then the other case of
        // the group (it never passed), and no more.
        let plan = within(100, &tier, &cases, &history);
        assert_eq!(
            names(&plan),
            [vec!["fixed", "of-its-group"], vec!["fixed-vm"], vec!["touched"], vec!["old"]]
        );
        let plan = within(0, &tier, &cases, &history);
        assert_eq!(
            names(&plan),
            [vec!["fixed-vm"], vec!["fixed"], vec!["touched"], vec!["of-its-group"], vec!["old"]]
        );
        let must_run: Vec<&str> = plan
            .concat()
            .iter()
            .filter(|planned| planned.must_run)
            .map(|planned| planned.case.name)
            .collect();
        assert_eq!(must_run, ["fixed-vm", "fixed"]);
    }
}
