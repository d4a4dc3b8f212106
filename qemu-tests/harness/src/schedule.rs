//! The order in which the runner begins cases, and its choice if the time is too short for all. Pure.
//!
//! Without a time limit the runner begins all cases, the longest first, so that no lane ends with a long case alone.
//! With a limit the fixed set has its time in any case. Of the rest the cases that [`OVERDUE_RUNS`] runs in a row have left
//! out have a part ([`OVERDUE_SHARE`]), then those of touched areas have what they need, then all others ([`crate::gate`]);
//! of each kind first those whose last pass on this machine is the longest ago (a case that never passed, or failed since,
//! counts as the oldest; of these the cheapest comes first). The runner begins the chosen cases that are overdue, so that a
//! long one of them ends in time; then the fixed set, then the other chosen ones. The rest follows, in case time is left. So
//! successive runs that are too short for all cases run each case in turn, whatever the changes touch, and yet run what a
//! change touches.

use std::collections::BTreeMap;

use crate::case::{Case, Level};
use crate::gate::Tier;
use crate::history::History;

/// Largest number of emulated machines at once that two cores can run. Cases without one wait more than they compute,
/// and have further lanes.
pub const VM_LANES: usize = 2;

/// A case that so many runs in a row had no time for goes first in the next one.
pub const OVERDUE_RUNS: u32 = 3;

/// Overdue cases have one part in so many of the time that the fixed set leaves. Where all cases together take many runs, most
/// of them are always overdue, and would leave no time for what a change touches.
pub const OVERDUE_SHARE: u64 = 2;

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
    let past = |case: &Case| history.get(case.name).copied().unwrap_or_default();
    let expected = |case: &Case| past(case).known_s().unwrap_or(case.expected_s);
    let Some(limit) = limit else { return longest_first(units(cases, |case| (expected(case), false))) };
    let is_overdue = |case: &Case| past(case).left_out_runs >= OVERDUE_RUNS;
    let tier = |case: &Case| match (limit.tier)(case) {
        Tier::Touched | Tier::Other if is_overdue(case) => Tier::Overdue,
        tier => tier,
    };
    let planned = |case: &Case| (expected(case), tier(case) == Tier::Fixed);
    let good_since = |case: &Case| past(case).good_since().unwrap_or(0);
    let key = |case: &Case| ((limit.tier)(case), good_since(case), expected(case));
    let chosen = choose(cases, LaneTime::new(limit.time_s, jobs), key, is_overdue);
    let side = |wanted: bool| -> Vec<Case> {
        cases.iter().zip(&chosen).filter(|(_, chosen)| **chosen == wanted).map(|(case, _)| *case).collect()
    };
    let mut first = longest_first(units(&side(true), planned));
    let has = |unit: &Unit, wanted: Tier| unit.iter().any(|planned| tier(&planned.case) == wanted);
    first.sort_by_key(|unit| (!has(unit, Tier::Overdue), !has(unit, Tier::Fixed)));
    let mut rest = units(&side(false), planned);
    rest.sort_by_key(|unit| unit.iter().map(|p| (tier(&p.case), good_since(&p.case))).min());
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

/// The time of all lanes that is not given away, seconds. Cases with a VM share that of the lanes for VMs, all others that of the
/// remaining lanes; a group has the time of one lane.
struct LaneTime {
    of_lane: u64,
    vms: u64,
    others: u64,
    groups: BTreeMap<&'static str, u64>,
}

impl LaneTime {
    fn new(of_lane: u64, jobs: usize) -> LaneTime {
        let of_lanes = |lanes: usize| of_lane * lanes as u64;
        let (vms, others) = (jobs.min(VM_LANES), jobs.saturating_sub(VM_LANES).max(1));
        LaneTime { of_lane, vms: of_lanes(vms), others: of_lanes(others), groups: BTreeMap::new() }
    }

    /// What is left for cases of this kind.
    fn left(&self, level: Level) -> u64 {
        if level == Level::L4v { self.vms } else { self.others }
    }

    /// What the case needs: the first one of a group makes the fixture.
    fn needed(&self, case: &Case, expected_s: u64) -> u64 {
        let is_made = case.group.is_some_and(|group| self.groups.contains_key(group));
        expected_s + if is_made { 0 } else { fixture_s(case) }
    }

    fn fits(&self, case: &Case, expected_s: u64) -> bool {
        let of_group = case.group.and_then(|group| self.groups.get(group)).copied().unwrap_or(self.of_lane);
        self.needed(case, expected_s) <= of_group.min(self.left(case.level))
    }

    fn give(&mut self, case: &Case, expected_s: u64) {
        let needed = self.needed(case, expected_s);
        let of_kind = if case.level == Level::L4v { &mut self.vms } else { &mut self.others };
        *of_kind = of_kind.saturating_sub(needed);
        if let Some(group) = case.group {
            let of_group = self.groups.entry(group).or_insert(self.of_lane);
            *of_group = of_group.saturating_sub(needed);
        }
    }
}

/// The cases that fit into the time, in the order of their keys: tier, time of the last good pass, expected seconds. The fixed
/// set is always chosen. Before the others the overdue cases are asked: of each kind the first that fits, and more of them as
/// long as they take no more than their part.
fn choose(
    cases: &[Case],
    mut time: LaneTime,
    key: impl Fn(&Case) -> (Tier, u64, u64),
    is_overdue: impl Fn(&Case) -> bool,
) -> Vec<bool> {
    let mut order: Vec<usize> = (0..cases.len()).collect();
    order.sort_by_key(|i| key(&cases[*i]));
    let mut chosen = vec![false; cases.len()];
    let is_fixed = |case: &Case| key(case).0 == Tier::Fixed;
    for &i in order.iter().filter(|i| is_fixed(&cases[**i])) {
        time.give(&cases[i], key(&cases[i]).2);
        chosen[i] = true;
    }
    let after_fixed = [Level::L4v, Level::L4n].map(|level| time.left(level));
    let mut overdue: Vec<usize> = order.iter().copied().filter(|i| is_overdue(&cases[*i])).collect();
    // Whether the change touches them is their tier, and does not count here.
    overdue.sort_by_key(|i| (key(&cases[*i]).1, key(&cases[*i]).2));
    for i in overdue {
        let (case, expected_s) = (&cases[i], key(&cases[i]).2);
        let before = after_fixed[usize::from(case.level != Level::L4v)];
        let taken = before - time.left(case.level);
        let in_share = taken + time.needed(case, expected_s) <= before / OVERDUE_SHARE;
        if !chosen[i] && time.fits(case, expected_s) && (taken == 0 || in_share) {
            time.give(case, expected_s);
            chosen[i] = true;
        }
    }
    for i in order {
        let (case, expected_s) = (&cases[i], key(&cases[i]).2);
        if !chosen[i] && time.fits(case, expected_s) {
            time.give(case, expected_s);
            chosen[i] = true;
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

    fn past(passed_at: u64, took_s: u64) -> CaseHistory {
        CaseHistory { passed_at, took_s, ..CaseHistory::default() }
    }

    fn names(plan: &[Unit]) -> Vec<Vec<&'static str>> {
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
        let slow = History::from([("a".to_owned(), past(1, 11))]);
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
        let failed = CaseHistory { has_failed: true, ..past(7, 30) };
        let history = [("failed", failed), ("old", past(5, 50)), ("fresh", past(9, 10))];
        let history = History::from(history.map(|(name, past)| (name.to_owned(), past)));
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
                    history.insert(planned.case.name.to_owned(), past(now, planned.expected_s));
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
        let history = History::from([("old".to_owned(), past(1, 40)), ("touched".to_owned(), past(9, 40))]);
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

    /// The tiers of a run whose change touches `touched`; one case is of the fixed set.
    fn of_change(case: &Case) -> Tier {
        match case.name {
            "fixed" => Tier::Fixed,
            name if name.starts_with("touched") => Tier::Touched,
            _ => Tier::Other,
        }
    }

    #[test]
    fn a_case_that_three_runs_left_out_goes_first() {
        let cases = [
            case("fixed", Level::L4n, 20, None),
            case("touched", Level::L4n, 60, None),
            case("other", Level::L4n, 50, None),
            case("long", Level::L4n, 90, None),
        ];
        let after = |runs: u32| {
            let left_out = |seconds| CaseHistory { left_out_runs: runs, ..past(4, seconds) };
            let history =
                History::from([("other".to_owned(), left_out(50)), ("long".to_owned(), left_out(90))]);
            names(&within(100, &of_change, &cases, &history)).concat()
        };
        assert_eq!(after(OVERDUE_RUNS - 1), ["fixed", "touched", "other", "long"]);
        // Beside the fixed set there is room for one of the two. The other one is the next if time is left.
        assert_eq!(after(OVERDUE_RUNS), ["other", "fixed", "long", "touched"]);
        // A run without time has the fixed set alone, whatever is overdue.
        let overdue = CaseHistory { left_out_runs: 9, ..CaseHistory::default() };
        let history = History::from([("other".to_owned(), overdue), ("fixed".to_owned(), overdue)]);
        let plan = within(0, &of_change, &cases, &history);
        assert_eq!(names(&plan)[0], ["fixed"]);
        assert_eq!(plan.concat().iter().filter(|planned| planned.must_run).count(), 1);
        // What has never passed has its own estimate.
        assert_eq!(plan.concat().iter().find(|p| p.case.name == "other").unwrap().expected_s, 50);
    }

    #[test]
    fn cases_that_are_overdue_leave_half_of_the_time_to_others() {
        let cases = [
            case("due-a", Level::L4n, 20, None),
            case("due-b", Level::L4n, 20, None),
            case("due-c", Level::L4n, 20, None),
            case("touched-a", Level::L4n, 20, None),
            case("touched-b", Level::L4n, 20, None),
            case("fixed", Level::L4n, 20, None),
        ];
        let left_out = CaseHistory { left_out_runs: OVERDUE_RUNS, ..CaseHistory::default() };
        let due = |name: &&str| name.starts_with("due");
        let mut history: History =
            cases.iter().map(|c| c.name).filter(due).map(|name| (name.to_owned(), left_out)).collect();
        // 80 s beside the fixed set: 40 for two that are overdue, and as much for the touched ones.
        let first = |history: &History| names(&within(100, &of_change, &cases, history)).concat();
        assert_eq!(first(&history), ["due-a", "due-b", "fixed", "touched-a", "touched-b", "due-c"]);
        // Overdue ones of a touched area are both.
        history.insert("touched-b".to_owned(), left_out);
        let all = first(&history);
        assert!(all[..2].iter().all(|name| *name != "due-c" && *name != "fixed"), "{all:?}");
        assert!(all[..5].contains(&"touched-a") && all[..5].contains(&"touched-b"), "{all:?}");
    }

    #[test]
    fn changes_of_one_area_leave_no_case_out_for_more_than_three_runs() {
        let cases = [
            case("fixed", Level::L4n, 10, None),
            case("touched-a", Level::L4n, 15, None),
            case("touched-b", Level::L4n, 15, None),
            case("touched-c", Level::L4n, 15, None),
            case("x", Level::L4n, 15, None),
            case("y", Level::L4n, 40, None),
        ];
        let mut history = History::new();
        let mut most = 0;
        for now in 1..=24 {
            // The touched area and the fixed set fill a run.
            let mut left = 55;
            for planned in within(55, &of_change, &cases, &history).concat() {
                let of_case = history.entry(planned.case.name.to_owned()).or_default();
                if planned.must_run || planned.expected_s <= left {
                    left = left.saturating_sub(planned.expected_s);
                    *of_case = past(now, planned.expected_s);
                } else {
                    of_case.left_out_runs += 1;
                    most = most.max(of_case.left_out_runs);
                }
            }
        }
        assert!(history["x"].passed_at > 12 && history["y"].passed_at > 12, "{history:?}");
        // Two cases that are due in the same run, and fit only one at a time.
        assert!(most <= OVERDUE_RUNS + 1, "{most}: {history:?}");
    }
}
