//! Bootstrap credentials: when the machine asks for them, uses them and forgets them.

use super::*;

#[test]
fn an_expired_certificate_needs_a_token_but_never_ends_the_agent() {
    let mut w = World { token: Some(Err("make a token".into())), ..World::new(CertKind::Client) };
    let old = facts(Wall(BUILT.0), Duration::from_secs(60), &client_template());
    w.step(CertEvent::Loaded(Some(old)), &mut std::iter::repeat(Fault::Unauthorized));
    w.run(hours(1), &mut std::iter::repeat(Fault::Unauthorized));
    let calls = w.requests.len();
    assert!((90..=125).contains(&calls), "{calls}");
    assert!(w.shown.contains("expired at 2026-") && w.shown.ends_with("make a token"), "{}", w.shown);
    assert_eq!(w.machine.state(w.now.wall).message(), w.shown);
    w.actions();
    w.step(CertEvent::Bootstrap(Ok(())), &mut peace());
    w.run(Duration::from_secs(1), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Bootstrap", "get as Bootstrap", "store"]);
    assert_eq!((w.wanted.as_slice(), w.shown.as_str()), (&[true, false][..], ""));
}

#[test]
fn with_a_token_the_server_is_not_bothered_with_an_expired_certificate() {
    let mut w = World::new(CertKind::Client);
    let old = facts(Wall(BUILT.0), Duration::from_secs(60), &client_template());
    w.step(CertEvent::Loaded(Some(old)), &mut peace());
    w.run(Duration::from_secs(60), &mut peace());
    assert!(w.actions().is_empty(), "nobody knows yet whether there is a token");
    w.step(CertEvent::Bootstrap(Ok(())), &mut peace());
    w.run(Duration::from_secs(1), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Bootstrap", "get as Bootstrap", "store"]);
}

#[test]
fn without_certificate_and_token_it_waits_for_a_token() {
    let mut w = World::new(CertKind::Client);
    w.step(CertEvent::Loaded(None), &mut peace());
    assert_eq!((w.machine.deadline(), w.shown.as_str(), &w.wanted[..]), (None, "", &[true][..]));
    w.step(CertEvent::Bootstrap(Err("make a token".into())), &mut peace());
    assert_eq!(w.machine.deadline(), None);
    assert!(matches!(w.machine.state(w.now.wall), CertState::Waiting { .. }));
    assert!(w.shown.contains("no client certificate") && w.shown.ends_with("make a token"), "{}", w.shown);
    // Another reason is news, too.
    w.step(CertEvent::Bootstrap(Err("mend the hash".into())), &mut peace());
    assert!(w.shown.ends_with("mend the hash"), "{}", w.shown);
}

#[test]
fn other_credentials_than_those_that_were_refused_are_tried_at_once() {
    let mut w = World::with_token();
    let mut refused = [Fault::None, Fault::Unauthorized].into_iter().cycle();
    w.step(CertEvent::Loaded(None), &mut refused);
    w.run(hours(1), &mut refused);
    assert!(w.shown.contains("kubeadm token create"), "{}", w.shown);
    w.actions();
    w.step(CertEvent::Bootstrap(Ok(())), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Bootstrap"]);
}

#[test]
fn a_certificate_that_the_server_refuses_is_replaced_with_the_token() {
    let mut w = World::with_token();
    let old = facts(w.now.wall, Duration::from_secs(100), &client_template());
    w.pass(Duration::from_secs(95));
    w.step(CertEvent::Loaded(Some(old)), &mut [Fault::None, Fault::Unauthorized].into_iter());
    w.run(Duration::from_secs(3), &mut peace());
    let said = w.actions();
    assert_eq!(said[..2], ["generate", "create as Node"]);
    assert_eq!(said[2..], ["generate", "create as Bootstrap", "get as Bootstrap", "store"]);
    assert_eq!(w.wanted, [false, true, false]);
}

/// The API server refused the certificate once, and the token of the first boot was forgotten long ago.
#[test]
fn a_refusal_does_not_tie_the_node_to_a_token_that_is_gone() {
    for token in [Some(Err("no token".into())), Some(Ok(())), None] {
        let mut w = World::joining();
        w.run(Duration::from_secs(10), &mut peace());
        w.token = token.clone();
        w.actions();
        // From now on neither the certificate nor any token is taken, for a while.
        let mut refused = [Fault::None, Fault::Unauthorized].into_iter().cycle();
        w.run(hours(1) - Duration::from_secs(200), &mut refused);
        let asked = w.actions();
        assert!(asked.contains(&"create as Node".to_owned()), "{token:?}: {asked:?}");
        let turns = asked.contains(&"create as Bootstrap".to_owned());
        assert_eq!(turns, token == Some(Ok(())), "{token:?}: {asked:?}");
        // Only the certificate is good again: found with the next turn or the one after it.
        w.run(Duration::from_secs(40), &mut [Fault::None, Fault::Unauthorized].into_iter());
        w.run(Duration::from_secs(40), &mut peace());
        assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }), "{token:?}");
        assert_eq!(w.shown, "", "{token:?}");
    }
}

/// The server answers one 401, and the token that the node got at its first boot is no longer valid.
#[test]
fn a_token_that_leads_nowhere_does_not_keep_a_good_certificate_from_its_renewal() {
    let mut w = World::joining();
    w.run(Duration::from_secs(10), &mut peace());
    w.token_leads_nowhere = true;
    w.actions();
    w.run(hours(1) - Duration::from_secs(20), &mut [Fault::None, Fault::Unauthorized].into_iter());
    let asked: Vec<String> = w.actions().into_iter().filter(|a| a.starts_with("create")).collect();
    assert_eq!(asked, ["create as Node", "create as Bootstrap", "create as Node"]);
    assert_eq!((w.wanted.as_slice(), w.shown.as_str()), (&[true, false, true, false][..], ""));
}
