//! Restart back-off as tables and properties.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const S: u64 = 1_000_000_000;

fn at(seconds: u64) -> Now {
    Now { mono: Mono(seconds * S), wall: Wall(i64::try_from(seconds * S).unwrap()) }
}

fn id(n: u64) -> ContainerId {
    ContainerId::from(format!("c{n}"))
}

/// The instance ended by itself.
fn crash(instance: &ContainerId, finished: Wall) -> Exit<'_> {
    Exit { instance, finished, killed_after: None }
}

/// Restarts a container that runs `run_s` seconds each time; answers the waits in seconds.
fn waits(series: Backoff, run_s: u64, rounds: u64) -> Vec<u64> {
    let mut b = BackOff::new(series);
    let mut t = 0;
    let mut out = Vec::new();
    for n in 0..rounds {
        t += run_s;
        let finished = at(t);
        b.observe_exit("k", crash(&id(n), finished.wall), finished);
        let wait =
            b.wait("k", &id(n), finished.mono).map_or(0, |(due, _)| due.since(finished.mono).as_secs());
        t += wait;
        out.push(wait);
        b.restarted("k", at(t));
    }
    out
}

#[test]
fn the_series_of_upstream() {
    assert_eq!(waits(SERIES, 1, 8), [0, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn a_configured_maximum_caps_the_first_delay_as_well() {
    let series = Backoff { max: Duration::from_secs(4), ..SERIES };
    assert_eq!(waits(series, 1, 4), [0, 4, 4, 4]);
}

#[test]
fn running_longer_than_the_expiry_starts_over() {
    assert_eq!(waits(SERIES, 601, 4), [0, 0, 0, 0]);
    assert_eq!(waits(SERIES, 589, 4), [0, 10, 11, 10]);
}

/// The series is forgotten 600 s after the last restart, also in the middle of a wait.
#[test]
fn a_series_ends_while_its_container_waits() {
    let lives = |life: u64, rounds: usize| -> Vec<u64> {
        let mut b = BackOff::default();
        for n in 0..6 {
            b.restarted("k", at(n));
        }
        assert_eq!(b.delay("k"), Some(Duration::from_secs(300)));
        let (mut t, mut out) = (5, Vec::new());
        for n in 0..rounds {
            t += life;
            b.observe_exit("k", crash(&id(n as u64), at(t).wall), at(t));
            let wait =
                b.wait("k", &id(n as u64), at(t).mono).map_or(0, |(due, _)| due.since(at(t).mono).as_secs());
            t += wait;
            b.restarted("k", at(t));
            out.push(wait);
        }
        out
    };
    assert_eq!(lives(400, 3), [200, 10, 20], "from the last restart on, and then a new series");
    assert_eq!(lives(299, 3), [300, 300, 300]);
    assert_eq!(lives(600, 2), [0, 0]);
}

/// Upstream decides about the successor of a killed instance from the state before the kill: the end of the earlier instance.
#[test]
fn what_was_killed_to_be_replaced_has_waited_while_it_ran() {
    let waits = |life: u64, rounds: u64| -> Vec<u64> {
        let mut b = BackOff::default();
        let (mut t, mut before, mut out) = (0, None, Vec::new());
        for n in 0..rounds {
            t += life;
            let (instance, finished) = (id(n), at(t).wall);
            b.observe_exit("k", Exit { instance: &instance, finished, killed_after: Some(before) }, at(t));
            let wait =
                b.wait("k", &instance, at(t).mono).map_or(0, |(due, _)| due.since(at(t).mono).as_secs());
            t += wait;
            out.push(wait);
            // An instance without a predecessor does not count.
            if before.is_some() {
                b.restarted("k", at(t));
            }
            before = Some(finished);
        }
        out
    };
    assert_eq!(waits(30, 9), [0, 0, 0, 0, 40, 80, 160, 300, 0]);
    assert_eq!(waits(1, 5), [0, 0, 10, 20, 40]);
    assert_eq!(waits(601, 4), [0, 0, 0, 0]);
}

#[test]
fn the_wait_counts_from_the_end_not_from_when_it_was_seen() {
    let mut b = BackOff::default();
    b.restarted("k", at(0));
    b.observe_exit("k", crash(&id(1), at(5).wall), at(12));
    let (due, delay) = b.wait("k", &id(1), at(12).mono).unwrap();
    assert_eq!((due, delay), (at(15).mono, Duration::from_secs(10)));
    assert!(b.wait("k", &id(1), at(15).mono).is_none());
}

#[test]
fn a_clock_set_back_an_hour_lengthens_a_wait_by_the_delay_only() {
    let mut b = BackOff::default();
    b.restarted("k", at(7200));
    let set_back = Now { mono: at(7205).mono, wall: at(3600).wall };
    b.observe_exit("k", crash(&id(1), at(7204).wall), set_back);
    assert_eq!(b.wait("k", &id(1), set_back.mono).unwrap().0, at(7215).mono);
}

#[test]
fn a_restored_entry_waits_as_if_nothing_had_happened() {
    let mut b = BackOff::default();
    b.restore("k", Duration::from_secs(40), at(100).wall);
    b.observe_exit("k", crash(&id(3), at(103).wall), at(104));
    assert_eq!(b.wait("k", &id(3), at(104).mono).unwrap().0, at(143).mono);
    assert_eq!(b.restarted("k", at(143)), Duration::from_secs(80));
}

#[test]
fn the_series_of_an_image_doubles_and_outlasts_success_for_twice_the_maximum() {
    let mut b = ImageBackOff::default();
    let failed = |b: &mut ImageBackOff, s: u64| b.failed("i", format!("at {s}"), at(s).mono);
    assert_eq!((b.wait("i", at(0).mono), b.why("i")), (None, None));
    assert_eq!(failed(&mut b, 0), at(10).mono);
    assert_eq!(b.wait("i", at(9).mono), Some(at(10).mono));
    assert_eq!(b.wait("i", at(10).mono), None);
    assert_eq!(failed(&mut b, 10), at(30).mono);
    assert_eq!(b.why("i"), Some("at 10"));
    // A pull that succeeded meanwhile collects other series alone.
    b.forget_expired(at(40).mono);
    assert_eq!(failed(&mut b, 40), at(80).mono);
    b.forget_expired(at(640).mono);
    assert_eq!(failed(&mut b, 640), at(720).mono);
    assert_eq!(failed(&mut b, 1241), at(1251).mono, "600 s after its last failure a series is over");
    b.forget_expired(at(1842).mono);
    assert_eq!(b, ImageBackOff::default());
}

#[test]
fn keys_change_with_image_and_resources_only_for_that_container() {
    let base = key("u", "c", "img:1", "{}");
    assert_eq!(base, key("u", "c", "img:1", "{}"));
    for other in
        [key("u", "c", "img:2", "{}"), key("u", "c", "img:1", "{\"l\":1}"), key("v", "c", "img:1", "{}")]
    {
        assert_ne!(base, other);
    }
}

proptest! {
    #[test]
    fn a_wait_is_never_longer_than_the_maximum_nor_shorter_than_the_series(runs in proptest::collection::vec(0u64..700, 1..40), max in 1u64..600) {
        let series = Backoff { max: Duration::from_secs(max), ..SERIES };
        let mut b = BackOff::new(series);
        let (mut t, mut expected) = (0u64, None::<u64>);
        for (n, run) in (0u64..).zip(runs) {
            let restarted = t;
            t += run;
            b.observe_exit("k", crash(&id(n), at(t).wall), at(t));
            let wait = b.wait("k", &id(n), at(t).mono).map_or(0, |(due, _)| due.since(at(t).mono).as_secs());
            let left = 600u64.saturating_sub(t - restarted);
            prop_assert_eq!(wait, expected.unwrap_or(0).min(left));
            prop_assert!(wait <= max);
            t += wait;
            let fresh = t - restarted >= 600 || expected.is_none();
            let next = b.restarted("k", at(t)).as_secs();
            let want = if fresh { 10.min(max) } else { (expected.unwrap_or(0) * 2).min(max) };
            prop_assert_eq!(next, want);
            expected = Some(next);
        }
    }

    #[test]
    fn jitter_stays_within_half_and_replays(base_ms in 0u64..100_000, seed in "[a-z]{0,8}", n: u64) {
        let base = Duration::from_millis(base_ms);
        let j = jittered(base, &seed, n);
        prop_assert!(j >= base && j <= base + base / 2);
        prop_assert_eq!(j, jittered(base, &seed, n));
    }
}

#[test]
fn the_reduced_series_begins_at_a_second_and_a_shorter_maximum_goes_before_both() {
    let seconds = Duration::from_secs;
    assert_eq!(waits(series(true, None), 0, 9), [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(series(false, None), SERIES);
    // The configured maximum counts, with the gate KubeletCrashLoopBackOffMax also its default of 300 s.
    assert_eq!(series(true, Some(seconds(300))).max, seconds(300));
    assert_eq!(waits(series(false, Some(seconds(5))), 0, 3), [0, 5, 5]);
}

#[test]
fn jitter_spreads() {
    let distinct: std::collections::BTreeSet<_> = (0..50).map(|n| jittered(REQUEUE, "uid", n)).collect();
    assert!(distinct.len() > 30, "{}", distinct.len());
}
