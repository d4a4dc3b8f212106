//! Contract 7.3 as tables and properties.

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

/// Restarts a container that runs `run_s` seconds each time; answers the waits in seconds.
fn waits(policy: Policy, run_s: u64, rounds: u64) -> Vec<u64> {
    let mut b = BackOff::new(policy);
    let mut t = 0;
    let mut out = Vec::new();
    for n in 0..rounds {
        t += run_s;
        let finished = at(t);
        b.observe_exit("k", &id(n), finished.wall, finished);
        let wait =
            b.wait("k", &id(n), finished.mono).map_or(0, |(due, _)| due.since(finished.mono).as_secs());
        t += wait;
        out.push(wait);
        b.restarted("k", finished.wall, at(t).wall);
    }
    out
}

#[test]
fn the_series_of_the_contract() {
    assert_eq!(waits(Policy::default(), 1, 8), [0, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn a_configured_maximum_caps_the_first_delay_as_well() {
    let policy = Policy { initial: Duration::from_secs(10), max: Duration::from_secs(4) };
    assert_eq!(waits(policy, 1, 4), [0, 4, 4, 4]);
}

#[test]
fn running_longer_than_the_expiry_starts_over() {
    assert_eq!(waits(Policy::default(), 601, 4), [0, 0, 0, 0]);
    assert_eq!(waits(Policy::default(), 599, 4), [0, 10, 20, 40]);
}

#[test]
fn the_wait_counts_from_the_end_not_from_when_it_was_seen() {
    let mut b = BackOff::default();
    b.restarted("k", at(0).wall, at(0).wall);
    b.observe_exit("k", &id(1), at(5).wall, at(12));
    let (due, delay) = b.wait("k", &id(1), at(12).mono).unwrap();
    assert_eq!((due, delay), (at(15).mono, Duration::from_secs(10)));
    assert!(b.wait("k", &id(1), at(15).mono).is_none());
}

#[test]
fn a_clock_set_back_an_hour_lengthens_a_wait_by_the_delay_only() {
    let mut b = BackOff::default();
    b.restarted("k", at(7200).wall, at(7200).wall);
    let set_back = Now { mono: at(7205).mono, wall: at(3600).wall };
    b.observe_exit("k", &id(1), at(7204).wall, set_back);
    assert_eq!(b.wait("k", &id(1), set_back.mono).unwrap().0, at(7215).mono);
}

#[test]
fn a_restored_entry_waits_as_if_nothing_had_happened() {
    let mut b = BackOff::default();
    b.restore("k", Duration::from_secs(40), at(100).wall);
    b.observe_exit("k", &id(3), at(103).wall, at(104));
    assert_eq!(b.wait("k", &id(3), at(104).mono).unwrap().0, at(143).mono);
    assert_eq!(b.restarted("k", at(103).wall, at(143).wall), Duration::from_secs(80));
}

#[test]
fn image_series_doubles_and_ends_with_success() {
    let mut b = ImageBackOff::default();
    assert_eq!(b.wait("i", at(0).mono), None);
    assert_eq!(b.failed("i", at(0).mono), at(10).mono);
    assert_eq!(b.wait("i", at(9).mono), Some(at(10).mono));
    assert_eq!(b.wait("i", at(10).mono), None);
    assert_eq!(b.failed("i", at(10).mono), at(30).mono);
    b.succeeded("i");
    assert_eq!(b.failed("i", at(40).mono), at(50).mono);
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
        let policy = Policy { initial: Duration::from_secs(10), max: Duration::from_secs(max) };
        let mut b = BackOff::new(policy);
        let (mut t, mut expected) = (0u64, None::<u64>);
        for (n, run) in (0u64..).zip(runs) {
            let restarted = t;
            t += run;
            b.observe_exit("k", &id(n), at(t).wall, at(t));
            let wait = b.wait("k", &id(n), at(t).mono).map_or(0, |(due, _)| due.since(at(t).mono).as_secs());
            let fresh = t - restarted > 600 || expected.is_none();
            prop_assert_eq!(wait, if fresh { 0 } else { expected.unwrap_or(0) });
            prop_assert!(wait <= max);
            let finished = t;
            t += wait;
            let next = b.restarted("k", at(finished).wall, at(t).wall).as_secs();
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
fn jitter_spreads() {
    let distinct: std::collections::BTreeSet<_> = (0..50).map(|n| jittered(REQUEUE, "uid", n)).collect();
    assert!(distinct.len() > 30, "{}", distinct.len());
}
