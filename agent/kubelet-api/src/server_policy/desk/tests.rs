//! Reviews against their limits: tables, and a property with any order of requests, answers and failures.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::time::Mono;
use proptest::prelude::*;

use super::*;

const LIMITS: DeskLimits =
    DeskLimits { interval: Duration::from_millis(40), burst: 50, under_way: 16, waiting: 20, remembered: 4 };
const HOUR: Duration = Duration::from_secs(3600);

fn at(milliseconds: u64) -> Mono {
    Mono(0).after(Duration::from_millis(milliseconds))
}

#[test]
fn one_review_of_a_key_is_under_way_and_its_answer_is_remembered() {
    let mut desk = ReviewDesk::new(LIMITS);
    assert_eq!(desk.request(&1, at(0)), ReviewStep::Ask);
    assert_eq!(desk.request(&1, at(0)), ReviewStep::Join);
    desk.ended(1, Some((Some("one"), HOUR)), at(1));
    assert_eq!(desk.request(&1, at(2)), ReviewStep::Known(Some("one")));
    assert_eq!(desk.request(&2, at(2)), ReviewStep::Ask);
    desk.ended(2, None, at(3));
    assert_eq!(desk.request(&2, at(3)), ReviewStep::Ask, "a failure is not remembered");
    desk.ended(2, Some((None, HOUR)), at(4));
    assert_eq!(desk.request(&2, at(5)), ReviewStep::Known(None));
}

#[test]
fn strangers_leave_places_and_rate_to_clients_that_were_believed() {
    let mut desk = ReviewDesk::new(LIMITS);
    for key in 0..2 {
        assert_eq!(desk.request(&key, at(0)), ReviewStep::Ask);
        desk.ended(key, Some((Some(()), Duration::from_secs(1))), at(0));
        desk.left();
    }
    let strangers = (100..200).filter(|key| desk.request(key, at(2000)) == ReviewStep::Ask).count();
    assert_eq!((strangers, desk.under_way()), (12, 12));
    assert_eq!(desk.request(&0, at(2000)), ReviewStep::Ask, "an answer that has ended is asked for again");
    // They come and go as fast as they can, and use up their part of the rate.
    let mut begun = 0;
    for key in 200..1000 {
        if desk.request(&key, at(2000)) == ReviewStep::Ask {
            begun += 1;
        }
        for under_way in 100..1000 {
            desk.ended(under_way, Some((None, HOUR)), at(2000));
        }
        while desk.waiting > 0 {
            desk.left();
        }
    }
    assert_eq!(begun, 23, "36 at once in all, 13 were begun before");
    assert_eq!(desk.request(&1, at(2000)), ReviewStep::Ask);
}

#[test]
fn refusals_do_not_displace_answers_that_are_believed() {
    let mut desk = ReviewDesk::new(LIMITS);
    assert_eq!(desk.request(&0, at(0)), ReviewStep::Ask);
    desk.ended(0, Some((Some(()), HOUR)), at(0));
    desk.left();
    for key in 1..1000 {
        assert_eq!(desk.request(&key, at(key * 40)), ReviewStep::Ask);
        desk.ended(key, Some((None, HOUR)), at(key * 40));
        desk.left();
    }
    assert_eq!(desk.request(&0, at(40_000)), ReviewStep::Known(Some(())));
    assert_eq!(desk.request(&999, at(40_000)), ReviewStep::Known(None));
}

#[test]
fn an_answer_of_another_sort_takes_the_place_of_the_first() {
    let mut desk = ReviewDesk::new(LIMITS);
    for (answer, now) in [(Some(()), 0), (None, 10), (Some(()), 20)] {
        assert_eq!(desk.request(&0, at(now * 1000)), ReviewStep::Ask);
        desk.ended(0, Some((answer, Duration::from_secs(5))), at(now * 1000));
        assert_eq!(desk.request(&0, at(now * 1000 + 1)), ReviewStep::Known(answer));
    }
}

#[test]
fn no_more_requests_wait_than_may() {
    let mut desk: ReviewDesk<u32, ()> = ReviewDesk::new(LIMITS);
    let steps: Vec<ReviewStep<()>> = (0..30).map(|_| desk.request(&0, at(0))).collect();
    assert_eq!(steps.iter().filter(|step| **step == ReviewStep::Join).count(), 19);
    assert_eq!(steps.iter().filter(|step| **step == ReviewStep::Busy).count(), 10);
    desk.left();
    assert_eq!(desk.request(&0, at(0)), ReviewStep::Join);
}

#[test]
fn lines_are_rare_and_counted() {
    let mut line = RareLine::new(Duration::from_secs(10));
    let said: Vec<_> = [0, 1, 9_999, 10_000, 10_001].iter().map(|ms| line.admit(at(*ms))).collect();
    assert_eq!(said, [Some(0), None, None, Some(2), None]);
}

proptest! {
    #[test]
    fn the_limits_hold_whatever_comes(
        steps in proptest::collection::vec((0_u8..40, 0_u8..4, 0_u64..100), 1..300),
    ) {
        let mut desk: ReviewDesk<u8, ()> = ReviewDesk::new(LIMITS);
        let (mut now, mut begun, mut open) = (0, Vec::new(), BTreeMap::new());
        for (key, what, passes) in steps {
            now += passes;
            match what {
                0 | 1 => if desk.request(&key, at(now)) == ReviewStep::Ask {
                    begun.push(now);
                    prop_assert!(open.insert(key, ()).is_none(), "two reviews of one key");
                },
                2 => {
                    open.remove(&key);
                    desk.ended(key, Some((None, Duration::from_millis(50))), at(now));
                    desk.left();
                }
                _ => {
                    open.remove(&key);
                    desk.ended(key, None, at(now));
                    desk.left();
                }
            }
            prop_assert!(desk.under_way() <= LIMITS.under_way);
            prop_assert_eq!(desk.under_way(), open.len());
        }
        for (first, from) in begun.iter().enumerate() {
            for (last, to) in begun.iter().enumerate().skip(first) {
                let most = u64::from(LIMITS.burst) + (to - from) / 40;
                prop_assert!(u64::try_from(last - first).unwrap() < most.max(1));
            }
        }
    }
}
