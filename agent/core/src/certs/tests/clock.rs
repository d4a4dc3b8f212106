//! A clock that is wrong.

use super::*;

#[test]
fn a_wrong_clock_is_said_once_waited_for_and_then_the_node_joins() {
    let mut w = World::new(CertKind::Client);
    w.now.wall = Wall(0);
    w.token = Some(Ok(()));
    w.step(CertEvent::Loaded(None), &mut peace());
    w.run(hours(1), &mut peace());
    assert!(w.actions().is_empty());
    assert!(matches!(&w.facts[..], [CertFact::ClockWrong { message }] if message.contains("1970-01-01")));
    assert!(w.machine.state(w.now.wall).message().contains("this image was built"));
    w.now.wall = Wall(BUILT.0 + 7 * SECOND);
    w.run(Duration::from_secs(2), &mut peace());
    assert_eq!(w.facts[1], CertFact::ClockSet);
    assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }));

    // A certificate of the future: likely our clock, but not for ever.
    let mut w = World::with_token();
    let future = facts(Wall(w.now.wall.0 + 100_000 * SECOND), hours(1), &client_template());
    w.step(CertEvent::Loaded(Some(future)), &mut peace());
    w.run(Duration::from_secs(14 * 60), &mut peace());
    assert!(w.actions().is_empty());
    w.run(Duration::from_secs(120), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Bootstrap", "get as Bootstrap", "store"]);
}

/// The machine of the clock looks at the API server's when a problem is said: it must be said with the certificate, not later.
#[test]
fn a_new_certificate_that_begins_later_than_the_clock_shows_is_said_at_once() {
    const EARLY_S: i64 = 9 * 24 * 3600;
    let mut w = World::with_token();
    w.ahead = -EARLY_S * SECOND;
    w.step(CertEvent::ClockVerified(false), &mut peace());
    w.step(CertEvent::Loaded(None), &mut peace());
    w.run(Duration::from_millis(100), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Bootstrap", "get as Bootstrap", "store"]);
    assert!(w.shown.contains("the node's certificate is valid from"), "{:?}", w.shown);
    w.run(Duration::from_secs(60), &mut peace());
    assert!(w.actions().is_empty(), "no other certificate helps");
    // The clock is set.
    (w.ahead, w.now.wall.0) = (0, w.now.wall.0 + EARLY_S * SECOND);
    w.step(CertEvent::ClockVerified(true), &mut peace());
    w.run(Duration::from_secs(2), &mut peace());
    assert_eq!(w.facts.last(), Some(&CertFact::ClockSet));
    assert_eq!(w.shown, "");
    assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }));
    assert!(w.actions().is_empty());
}

#[test]
fn while_nobody_vouches_for_the_clock_no_certificate_has_expired() {
    for token in [None, Some(Ok(()))] {
        let mut w = World::new(CertKind::Client);
        w.token = token;
        let facts = facts(w.now.wall, hours(1), &client_template());
        // The clock shows a time years after the end.
        w.now.wall = Wall(w.now.wall.0 + 100_000_000 * SECOND);
        w.step(CertEvent::ClockVerified(false), &mut peace());
        w.step(CertEvent::Loaded(Some(facts.clone())), &mut peace());
        w.run(Duration::from_secs(20), &mut peace());
        assert!(w.actions().is_empty(), "{:?}", w.actions());
        assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }));
        // The clock is set: the certificate is as good as before.
        w.now.wall = Wall(facts.not_before.0 + 60 * SECOND);
        w.step(CertEvent::ClockVerified(true), &mut peace());
        w.run(Duration::from_secs(20), &mut peace());
        assert!(w.actions().is_empty(), "{:?}", w.actions());
        assert_eq!(w.machine.current(), Some(&facts));
    }

    // It has expired indeed.
    let mut w = World::with_token();
    let facts = facts(w.now.wall, hours(1), &client_template());
    w.now.wall = Wall(w.now.wall.0 + 7_200 * SECOND);
    w.step(CertEvent::ClockVerified(false), &mut peace());
    w.step(CertEvent::Loaded(Some(facts)), &mut peace());
    assert!(w.actions().is_empty());
    w.step(CertEvent::ClockVerified(true), &mut peace());
    w.run(Duration::from_secs(20), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Bootstrap", "get as Bootstrap", "store"]);
}

#[test]
fn a_certificate_that_is_signed_while_the_clock_is_ahead_is_good_and_renewed_in_time() {
    let mut w = World::with_token();
    w.ahead = 100_000_000 * SECOND;
    let signed = w.now.wall;
    w.now.wall.0 += w.ahead;
    w.step(CertEvent::ClockVerified(false), &mut peace());
    w.step(CertEvent::Loaded(None), &mut peace());
    w.run(Duration::from_secs(20), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Bootstrap", "get as Bootstrap", "store"]);
    assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }), "{}", w.shown);
    assert!(!w.shown.contains("expired"), "{}", w.shown);

    // The clock is set: nothing is asked for before 70 % of the lifetime, and all is renewed before the end.
    (w.ahead, w.now.wall.0) = (0, w.now.wall.0 - w.ahead);
    w.step(CertEvent::ClockVerified(true), &mut peace());
    w.run(Duration::from_secs(2_400), &mut peace());
    assert!(w.actions.is_empty(), "{:?}", w.actions);
    w.run(Duration::from_secs(1_100), &mut peace());
    assert_eq!(w.actions().last().map(String::as_str), Some("store"));
    assert!(
        w.machine
            .current()
            .is_some_and(|now| now.not_after > facts(signed, hours(1), &client_template()).not_after)
    );
}

#[test]
fn a_failure_is_over_when_the_certificate_will_do() {
    let mut w = World::with_token();
    // The clock is ahead, and it is believed: the new certificate counts as expired.
    w.ahead = 100_000_000 * SECOND;
    w.now.wall.0 += w.ahead;
    w.step(CertEvent::Loaded(None), &mut peace());
    w.run(Duration::from_secs(5), &mut peace());
    assert!(w.shown.contains("expired"), "{}", w.shown);
    // The clock is set, and the certificate is good.
    (w.ahead, w.now.wall.0) = (0, w.now.wall.0 - w.ahead);
    w.step(CertEvent::ClockVerified(true), &mut peace());
    w.run(Duration::from_secs(20), &mut peace());
    assert_eq!((w.shown.as_str(), w.machine.last_failure()), ("", None));
}
