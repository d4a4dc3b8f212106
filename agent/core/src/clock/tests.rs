//! The machine in a small world: a clock, an NTP server that may lie, an API server that may be away, a helper that sets the
//! clock or does not.

use std::time::Duration;

use agent_types::certificates::ServerClock;
use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now, Wall};
use proptest::prelude::*;

use super::*;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 24 * 3600 * SECOND;
const YEAR: i64 = 365 * DAY;
/// The true time at the start.
const TRUTH: Wall = Wall(1_796_000_000 * SECOND);
/// The image is this old.
const BUILT: Wall = Wall(TRUTH.0 - 10 * DAY);
/// What the API server's chain spans.
const BEGUN: Wall = Wall(TRUTH.0 - DAY);
const ENDS: Wall = Wall(TRUTH.0 + YEAR);

struct World {
    machine: NodeClock,
    mono: Mono,
    /// What the clock shows more than the true time, nanoseconds.
    offset: i64,
    server: Result<ServerClock, String>,
    /// The time by the API server less the true time.
    server_offset: i64,
    /// When NTP answers, and by how much it lies.
    ntp: Option<(Duration, i64)>,
    ntp_refused: bool,
    /// How long the NTP client goes on after it was refused, and until when.
    ntp_takes: Duration,
    ntp_ends: Option<Mono>,
    helper_works: bool,
    /// The problem with the cluster that a wrong clock makes.
    in_trouble: bool,
    other_trouble: bool,
    looks: u32,
    sets: Vec<Wall>,
    verified: Vec<bool>,
    shown: Vec<String>,
    pinned: Option<Wall>,
    own: Option<Wall>,
}

impl World {
    fn new(offset: i64) -> World {
        World {
            machine: NodeClock::new(BUILT),
            mono: Mono(5_000_000_000),
            offset,
            server: Ok(ServerClock { not_before: BEGUN, not_after: ENDS, date: Some(TRUTH) }),
            server_offset: 0,
            ntp: None,
            ntp_refused: false,
            ntp_takes: Duration::ZERO,
            ntp_ends: None,
            helper_works: true,
            in_trouble: false,
            other_trouble: false,
            looks: 0,
            sets: Vec::new(),
            verified: Vec::new(),
            shown: Vec::new(),
            pinned: None,
            own: None,
        }
    }

    fn age(&self) -> Duration {
        self.mono.since(Mono(5_000_000_000))
    }

    fn truth(&self) -> Wall {
        Wall(TRUTH.0 + i64::try_from(self.age().as_nanos()).unwrap())
    }

    fn wall(&self) -> Wall {
        Wall(self.truth().0 + self.offset)
    }

    fn answer(&self) -> ClockEvent {
        let mut result = self.server.clone();
        if let Ok(seen) = &mut result
            && seen.date.is_some()
        {
            let said = self.truth().0 + self.server_offset;
            seen.date = Some(Wall(said - said.rem_euclid(SECOND)));
        }
        ClockEvent::Looked { pinned: self.pinned, own: self.own, result }
    }

    fn step(&mut self, event: ClockEvent) {
        let mut out = Outbox::new();
        self.machine.step(Now { mono: self.mono, wall: self.wall() }, event, &mut out);
        let mut answers = Vec::new();
        for action in out.drain() {
            match action {
                ClockAction::Look => {
                    self.looks += 1;
                    self.mono = self.mono.after(Duration::from_millis(20));
                    answers.push(self.answer());
                }
                ClockAction::Set(wall) => {
                    self.sets.push(wall);
                    if self.helper_works {
                        self.offset = wall.0 - self.truth().0;
                    }
                }
                ClockAction::RefuseNtp => {
                    self.ntp_refused = true;
                    self.ntp_ends = Some(self.mono.after(self.ntp_takes));
                }
                ClockAction::Verified(is) => self.verified.push(is),
                ClockAction::Show(sentence) => self.shown.push(sentence),
                ClockAction::Fact(_) => {}
            }
        }
        for answer in answers {
            self.step(answer);
        }
    }

    /// Until this long after the start.
    fn run(&mut self, until: Duration) {
        if self.mono == Mono(5_000_000_000) {
            self.step(ClockEvent::Tick);
        }
        let mut synchronized = false;
        while self.age() < until {
            let next = self.mono.after(Duration::from_millis(500));
            let next = self.ntp_ends.map_or(next, |at| at.min(next));
            let due = self.machine.deadline().map_or(next, |at| at.min(next));
            self.mono = due.max(self.mono.after(Duration::from_millis(1)));
            if self.ntp_ends.is_some_and(|at| at <= self.mono) {
                self.ntp_ends = None;
                self.step(ClockEvent::Synchronized(false));
            }
            if let Some((at, lie)) = self.ntp
                && self.age() >= at
                && (!self.ntp_refused || self.ntp_ends.is_some())
            {
                self.offset = lie;
                if !synchronized {
                    synchronized = true;
                    self.step(ClockEvent::Synchronized(true));
                }
            }
            let wrong = !(BEGUN..ENDS).contains(&self.wall());
            let trouble = wrong || self.other_trouble;
            if trouble != self.in_trouble {
                self.in_trouble = trouble;
                self.step(ClockEvent::Trouble(trouble));
            }
            if self.machine.deadline().is_some_and(|at| at <= self.mono) {
                self.step(ClockEvent::Tick);
            }
        }
    }

    fn error(&self) -> i64 {
        self.offset.abs()
    }

    fn says(&self) -> &str {
        self.shown.last().map_or("", String::as_str)
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_clock_that_is_certainly_wrong_is_set_at_once() {
    for offset in [-56 * YEAR, -15 * YEAR, -9 * DAY, 9 * YEAR, 73 * YEAR] {
        let mut w = World::new(offset);
        w.run(seconds(3));
        assert!(w.error() <= SECOND, "{offset}: still {} s away", w.error() / SECOND);
        assert_eq!((w.looks, w.sets.len()), (1, 1), "{offset}");
        assert_eq!(w.verified, [false, true], "{offset}");
        assert_eq!(w.says(), "", "NTP still has time to answer");
        w.run(seconds(40));
        assert!(w.says().contains("ClockUnverified") && w.says().contains("time.servers"), "{}", w.says());
    }
}

/// The chain began years ago, so by the chain alone the clock may be right. The problem is not said yet, or is over.
#[test]
fn a_certificate_that_begins_later_than_the_clock_shows_is_reason_enough_to_set_it() {
    let issued = Some(Wall(TRUTH.0 - 300 * SECOND));
    for (own, pinned, sets) in [(None, None, 0), (issued, None, 1), (None, issued, 1)] {
        let mut w = World::new(-9 * DAY);
        w.server =
            Ok(ServerClock { not_before: Wall(TRUTH.0 - 6 * YEAR), not_after: ENDS, date: Some(TRUTH) });
        (w.own, w.pinned) = (own, pinned);
        w.step(ClockEvent::Tick);
        let answer = w.answer();
        w.step(answer);
        assert_eq!(w.sets.len(), sets, "{own:?} {pinned:?}");
        assert_eq!(w.error() <= SECOND, sets == 1, "{} s", w.error() / SECOND);
    }
}

#[test]
fn a_problem_causes_a_look_and_a_setting_at_once() {
    let mut w = World::new(200 * DAY);
    w.run(seconds(10));
    assert_eq!((w.looks, w.sets.len()), (0, 0));
    w.other_trouble = true;
    w.run(seconds(12));
    assert_eq!((w.looks, w.sets.len()), (1, 1));
    assert!(w.error() <= SECOND, "{} s", w.error() / SECOND);
}

#[test]
fn a_clock_that_may_be_right_waits_for_ntp() {
    let mut w = World::new(200 * DAY);
    w.run(seconds(29));
    assert_eq!((w.looks, w.sets.len()), (0, 0));
    w.run(seconds(33));
    assert!(w.error() <= SECOND, "{}", w.error());
    assert!(w.says().contains("ClockUnverified"));
    // NTP comes late, and is right: nothing needs attention any more.
    w.ntp = Some((seconds(100), 0));
    w.run(seconds(110));
    assert_eq!(w.says(), "");
    let looks = w.looks;
    w.run(seconds(3600));
    assert!(w.looks <= looks + 1, "{} looks", w.looks);
}

#[test]
fn a_right_clock_is_left_alone() {
    for ntp in [None, Some((seconds(4), 0))] {
        let mut w = World::new(0);
        w.ntp = ntp;
        w.run(seconds(3000));
        assert_eq!((w.looks, w.sets.len()), (1, 0));
        assert_eq!(w.verified, [false, true]);
        assert_eq!(w.says().is_empty(), ntp.is_some(), "{}", w.says());
        // Nothing is said in the moment between the question and its answer.
        assert!(w.shown.iter().all(|said| said.contains("follows the API server's")), "{:?}", w.shown);
    }
}

#[test]
fn ntp_that_lies_by_years_is_refused_and_named() {
    for (lie, at) in [(3 * YEAR, 5), (-2 * YEAR, 5), (300 * DAY, 5), (20 * YEAR, 90)] {
        let mut w = World::new(0);
        w.ntp = Some((seconds(at), lie));
        w.run(seconds(at + 60));
        assert!(w.ntp_refused, "{lie}");
        assert!(w.error() <= SECOND, "{lie}: {} s", w.error() / SECOND);
        assert!(w.says().contains("days apart") && w.says().contains("time.servers"), "{}", w.says());
        let sets = w.sets.len();
        w.run(seconds(3000));
        assert_eq!(w.sets.len(), sets);
        assert!(w.says().contains("days apart"), "it stays until the next boot");
    }
}

#[test]
fn the_clock_is_set_when_the_refused_ntp_client_has_ended_and_not_before() {
    for takes in [0, 3, 9] {
        let mut w = World::new(0);
        (w.ntp, w.ntp_takes) = (Some((seconds(5), 3 * YEAR)), seconds(takes));
        w.run(seconds(7));
        assert!(w.ntp_refused, "the wrong clock is a problem, and the first look finds why");
        // Another problem in this time is no reason: what is set now would not stay.
        w.step(ClockEvent::Trouble(false));
        w.step(ClockEvent::Trouble(true));
        if takes > 2 {
            assert_eq!((w.looks, w.sets.len()), (1, 0), "{takes}");
        }
        w.run(seconds(takes + 7));
        assert_eq!((w.looks, w.sets.len()), (2, 1), "{takes}");
        assert!(w.error() <= SECOND, "{takes}: {} s", w.error() / SECOND);
    }
}

#[test]
fn an_ntp_client_that_does_not_end_is_not_waited_for_without_bound() {
    let mut w = World::new(0);
    (w.ntp, w.ntp_takes) = (Some((seconds(5), 3 * YEAR)), seconds(25));
    w.run(seconds(20));
    assert!(w.looks >= 2, "{} looks", w.looks);
    w.run(seconds(60));
    assert!(w.error() <= SECOND, "{} s", w.error() / SECOND);
}

#[test]
fn a_small_difference_is_ntps_to_decide() {
    let mut w = World::new(0);
    w.server_offset = 3600 * SECOND;
    w.ntp = Some((seconds(2), 0));
    w.run(seconds(300));
    assert!(!w.ntp_refused && w.sets.is_empty());
    assert_eq!(w.says(), "");
}

#[test]
fn without_any_answer_dates_count_after_a_while_and_the_reason_is_said() {
    let mut w = World::new(-56 * YEAR);
    w.server = Err("cannot connect".to_owned());
    w.pinned = Some(BEGUN);
    w.run(seconds(299));
    assert_eq!(w.verified, [false]);
    // The authority's certificate was made then.
    assert_eq!(w.sets, [BEGUN]);
    assert!(w.says().contains("cannot connect"), "{}", w.says());
    assert!((30..60).contains(&w.looks), "{} looks", w.looks);
    w.run(seconds(302));
    assert_eq!(w.verified, [false, true]);
    // The server is back.
    w.server = World::new(0).server;
    w.run(seconds(320));
    assert!(w.error() <= SECOND, "{}", w.error());
}

#[test]
fn an_old_chain_proves_nothing() {
    for (own, ends) in [(None, Wall(BUILT.0 - DAY)), (Some(BEGUN), Wall(BEGUN.0 - DAY))] {
        let mut w = World::new(0);
        w.other_trouble = true;
        w.own = own;
        w.server_offset = -400 * DAY;
        w.server = Ok(ServerClock {
            not_before: Wall(ends.0 - YEAR),
            not_after: ends,
            date: Some(Wall(ends.0 - 1)),
        });
        w.run(seconds(100));
        assert!(w.sets.is_empty(), "{:?}", w.sets);
        assert!(w.says().contains("past for certain"), "{}", w.says());
    }
}

#[test]
fn the_clock_is_never_set_before_the_image_or_the_chain() {
    let mut w = World::new(-56 * YEAR);
    w.server_offset = -30 * YEAR;
    w.run(seconds(60));
    assert!(!w.sets.is_empty() && w.sets.iter().all(|wall| *wall >= BEGUN), "{:?}", w.sets);
}

#[test]
fn an_answer_without_a_date_still_proves_the_least() {
    let mut w = World::new(-56 * YEAR);
    w.server = Ok(ServerClock { not_before: BEGUN, not_after: ENDS, date: None });
    w.run(seconds(60));
    assert_eq!(w.sets, [BEGUN]);
    assert!(w.says().contains("no Date"), "{}", w.says());
}

#[test]
fn a_helper_that_fails_is_named_and_asked_again() {
    let mut w = World::new(-56 * YEAR);
    w.helper_works = false;
    w.run(seconds(60));
    assert!(w.says().contains("orlop-clock.service"), "{}", w.says());
    assert!((2..8).contains(&w.sets.len()), "{}", w.sets.len());
    w.helper_works = true;
    w.run(seconds(90));
    assert!(w.error() <= SECOND);
    assert!(w.says().contains("follows the API server's"), "{}", w.says());
}

proptest! {
    /// Whatever the clock shows at first: with an API server that is right, it is right in the end, NTP or not.
    #[test]
    fn in_the_end_the_clock_is_right(
        offset_days in -20_000_i64..30_000,
        ntp in proptest::option::of((0_u64..200, prop_oneof![Just(0_i64), 2_i64..9_000, -9_000_i64..-2])),
        away_s in 0_u64..100,
        other_trouble: bool,
    ) {
        let mut w = World::new(offset_days * DAY);
        w.ntp = ntp.map(|(at, lie)| (seconds(at), lie * DAY));
        w.other_trouble = other_trouble;
        let server = std::mem::replace(&mut w.server, Err("away".to_owned()));
        w.run(seconds(away_s));
        w.server = server;
        w.run(seconds(400));
        prop_assert!(w.error() <= SECOND + SECOND / 2, "{} s, {:?}", w.error() / SECOND, w.sets);
        prop_assert_eq!(w.verified.last(), Some(&true));
        prop_assert!(w.looks < 90, "{} looks", w.looks);
        prop_assert!(w.sets.iter().all(|wall| *wall >= BUILT));
        let lies = matches!(w.ntp, Some((_, lie)) if lie != 0);
        prop_assert_eq!(w.ntp_refused, lies);
    }
}
