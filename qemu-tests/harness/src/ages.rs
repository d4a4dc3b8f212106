//! How long ago each case passed last on this machine, as a short table, and the cases that run after run had no time for.
//!
//! In: cases and their [`History`]. Out: lines. Pure.

use std::fmt::Write as _;

use crate::case::Case;
use crate::history::{CaseHistory, History};
use crate::schedule::OVERDUE_RUNS;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AgeClass {
    ThisRun,
    Day,
    Week,
    Older,
    FailedSince,
    Never,
}

impl AgeClass {
    /// All, in the order of the table.
    const ALL: [AgeClass; 6] = [
        AgeClass::ThisRun,
        AgeClass::Day,
        AgeClass::Week,
        AgeClass::Older,
        AgeClass::FailedSince,
        AgeClass::Never,
    ];

    fn of(past: &CaseHistory, begun_at: u64, now: u64) -> AgeClass {
        match now.saturating_sub(past.passed_at) {
            _ if past.passed_at == 0 => AgeClass::Never,
            _ if past.has_failed => AgeClass::FailedSince,
            _ if past.passed_at >= begun_at => AgeClass::ThisRun,
            age if age <= DAY => AgeClass::Day,
            age if age <= 7 * DAY => AgeClass::Week,
            _ => AgeClass::Older,
        }
    }

    fn label(self) -> &'static str {
        match self {
            AgeClass::ThisRun => "in this run",
            AgeClass::Day => "in the last day",
            AgeClass::Week => "in the last week",
            AgeClass::Older => "before that",
            AgeClass::FailedSince => "and failed since",
            AgeClass::Never => "never",
        }
    }
}

/// A row for each class of ages that has cases, the oldest last, and in it the cases with their ages, the oldest first (those
/// of this run have been printed before). Then the cases that [`OVERDUE_RUNS`] runs in a row, the present one among them, had
/// no time for. `begun_at` is when the run's cases began, `now` the present, seconds since 1970.
#[must_use]
pub fn table(cases: &[Case], history: &History, begun_at: u64, now: u64) -> Vec<String> {
    let mut all: Vec<(&Case, CaseHistory)> =
        cases.iter().map(|case| (case, history.get(case.name).copied().unwrap_or_default())).collect();
    all.sort_by_key(|(case, past)| (past.passed_at, case.name));
    let mut lines = vec!["last pass         cases".to_owned()];
    for class in AgeClass::ALL {
        let of_class: Vec<&(&Case, CaseHistory)> =
            all.iter().filter(|(_, past)| AgeClass::of(past, begun_at, now) == class).collect();
        if of_class.is_empty() {
            continue;
        }
        let mut line = format!("{:<18}{:>5}", class.label(), of_class.len());
        if class != AgeClass::ThisRun {
            let named = of_class.iter().map(|(case, past)| named(case, past, now));
            let _ = write!(line, "  {}", named.collect::<Vec<_>>().join(", "));
        }
        lines.push(line);
    }
    lines.push(overdue(&all));
    lines
}

fn named(case: &Case, past: &CaseHistory, now: u64) -> String {
    if past.passed_at == 0 {
        return case.name.to_owned();
    }
    let age_s = now.saturating_sub(past.passed_at);
    if age_s >= 2 * DAY {
        format!("{} {} d", case.name, age_s / DAY)
    } else {
        format!("{} {} h", case.name, age_s / HOUR)
    }
}

/// Those that were left out most often come first.
fn overdue(all: &[(&Case, CaseHistory)]) -> String {
    let mut overdue: Vec<&(&Case, CaseHistory)> =
        all.iter().filter(|(_, past)| past.left_out_runs >= OVERDUE_RUNS).collect();
    if overdue.is_empty() {
        return format!("no case was left out of {OVERDUE_RUNS} runs in a row");
    }
    overdue.sort_by_key(|(_, past)| std::cmp::Reverse(past.left_out_runs));
    let named = overdue.iter().map(|(case, past)| {
        let seconds = past.known_s().unwrap_or(case.expected_s);
        format!("{} ({} runs, takes {seconds} s)", case.name, past.left_out_runs)
    });
    format!(
        "left out of {OVERDUE_RUNS} runs in a row or more, first in the next one: {}",
        named.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Level;

    fn case(name: &'static str) -> Case {
        Case { name, level: Level::L4n, expected_s: 75, about: "", group: None, run: |_| Ok(()) }
    }

    fn at(passed_at: u64) -> CaseHistory {
        CaseHistory { passed_at, took_s: 9, ..CaseHistory::default() }
    }

    const NOW: u64 = 1_800_000_000;

    fn of(all: &[(&'static str, CaseHistory)]) -> Vec<String> {
        let cases: Vec<Case> = all.iter().map(|(name, _)| case(name)).collect();
        let history: History = all.iter().map(|(name, past)| ((*name).to_owned(), *past)).collect();
        table(&cases, &history, NOW - 600, NOW)
    }

    #[test]
    fn each_case_has_its_age_and_the_oldest_come_first() {
        let failed = CaseHistory { has_failed: true, ..at(NOW - 30 * HOUR) };
        let lines = of(&[
            ("a/now", at(NOW - 600)),
            ("a/late", at(NOW)),
            ("a/hours", at(NOW - 601)),
            ("a/day", at(NOW - DAY)),
            ("a/days", at(NOW - 3 * DAY - 5)),
            ("a/new", CaseHistory::default()),
            ("a/bad", failed),
            ("a/old", at(NOW - 8 * DAY)),
        ]);
        let want = [
            "last pass         cases",
            "in this run           2",
            "in the last day       2  a/day 24 h, a/hours 0 h",
            "in the last week      1  a/days 3 d",
            "before that           1  a/old 8 d",
            "and failed since      1  a/bad 30 h",
            "never                 1  a/new",
            "no case was left out of 3 runs in a row",
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn cases_that_runs_leave_out_are_named() {
        let left_out = |runs, past| CaseHistory { left_out_runs: runs, ..past };
        let lines = of(&[
            ("a/two", left_out(2, at(NOW - HOUR))),
            ("a/three", left_out(3, at(NOW - HOUR))),
            ("a/never", left_out(5, CaseHistory::default())),
        ]);
        assert_eq!(
            lines[3],
            "left out of 3 runs in a row or more, first in the next one: a/never (5 runs, takes 75 s), a/three (3 runs, \
             takes 9 s)"
        );
        // A clock that was set back, and a case that the file does not know.
        assert_eq!(of(&[("a/ahead", at(NOW + DAY))])[1], "in this run           1");
        assert_eq!(table(&[case("a/b")], &History::new(), NOW, NOW)[1], "never                 1  a/b");
        assert_eq!(of(&[]), ["last pass         cases", "no case was left out of 3 runs in a row"]);
    }
}
