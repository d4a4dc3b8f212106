//! Tests of windows: the days of a week, midnight, and the next opening as a property.

use crate::node_update::windows::{UpdateWindow, WindowError, is_open, next_opening};
use orlop_config::release::UtcSecond;
use proptest::prelude::*;

fn at(text: &str) -> UtcSecond {
    text.parse().expect("a time")
}

fn window(days: &[&str], start: &str, minutes: u32) -> UpdateWindow {
    UpdateWindow::new(days, start, minutes).expect("a window")
}

#[test]
fn a_window_is_open_on_its_days() {
    let windows = [window(&["tue", "thu"], "02:00", 180)];
    // 1 December 2026 is a Tuesday.
    for (time, want) in [
        ("2026-12-01T01:59:59Z", false),
        ("2026-12-01T02:00:00Z", true),
        ("2026-12-01T04:59:59Z", true),
        ("2026-12-01T05:00:00Z", false),
        ("2026-12-02T03:00:00Z", false),
        ("2026-12-03T03:00:00Z", true),
    ] {
        assert_eq!(is_open(&windows, at(time)), want, "{time}");
    }
    assert_eq!(next_opening(&windows, at("2026-12-01T05:00:00Z")), at("2026-12-03T02:00:00Z"));
    assert_eq!(next_opening(&windows, at("2026-12-03T05:00:00Z")), at("2026-12-08T02:00:00Z"));
    assert_eq!(next_opening(&windows, at("2026-12-01T03:00:00Z")), at("2026-12-01T03:00:00Z"));
    assert!(is_open(&[], at("2026-12-02T03:00:00Z")));
}

#[test]
fn a_window_lasts_past_midnight() {
    let windows = [window(&["mon"], "23:30", 60)];
    for (time, want) in [
        ("2026-11-30T23:29:00Z", false),
        ("2026-11-30T23:30:00Z", true),
        ("2026-12-01T00:29:00Z", true),
        ("2026-12-01T00:30:00Z", false),
        ("2026-12-01T23:40:00Z", false),
    ] {
        assert_eq!(is_open(&windows, at(time)), want, "{time}");
    }
    assert!(is_open(&[window(&["mon"], "00:00", 10_080)], at("2026-12-06T23:59:59Z")));
}

#[test]
fn texts_that_are_no_window_are_refused() {
    assert_eq!(UpdateWindow::new(&["day"], "02:00", 1), Err(WindowError::Day("day".into())));
    for start in ["2:00", "24:00", "02:60", "0200", "", "02:00:00", "aa:00", "+2:00"] {
        assert_eq!(UpdateWindow::new(&[], start, 1), Err(WindowError::Start(start.into())));
    }
    for minutes in [0, 10_081] {
        assert_eq!(UpdateWindow::new(&[], "02:00", minutes), Err(WindowError::Minutes(minutes)));
    }
}

proptest! {
    #[test]
    fn the_next_opening_is_the_first(now in 0_u64..4_000_000_000, hour in 0_u32..24, minutes in 1_u32..3000) {
        let windows = [window(&["wed", "sun"], &format!("{hour:02}:15"), minutes)];
        let now = UtcSecond::new(now);
        let next = next_opening(&windows, now);
        prop_assert!(is_open(&windows, next) && next >= now);
        if next > now {
            prop_assert!(!is_open(&windows, UtcSecond::new(next.seconds() - 1)));
            prop_assert!(!is_open(&windows, now));
        }
    }
}
