//! Rotation: the time at which a certificate is renewed, and the pauses between attempts.

use agent_types::entropy::Entropy;
use proptest::prelude::*;

use super::*;
use crate::certs::rotation::{RotationDue, deadline, deadline_of_new, need, retry_pause};

#[test]
fn without_rotation_only_the_end_counts() {
    let mut w = World::new(CertKind::Client);
    w.machine = CertManager::new(CertConfig { rotate: false, ..config(CertKind::Client) });
    w.token = Some(Err("no token".into()));
    let cert = facts(w.now.wall, hours(1), &client_template());
    w.step(CertEvent::Loaded(Some(cert)), &mut peace());
    w.run(Duration::from_secs(3599), &mut peace());
    assert!(w.actions().is_empty());
    w.run(Duration::from_secs(2), &mut peace());
    assert_eq!(w.actions()[1], "create as Node");
}

#[test]
fn needs() {
    let template = client_template();
    let (from, wall) = (Wall(BUILT.0), Wall(BUILT.0 + 100 * SECOND));
    let good = facts(from, hours(1), &template);
    let at = Wall(BUILT.0 + 200 * SECOND);
    let now = |facts: Option<&CertificateFacts>, at| {
        matches!(need(facts, &template, at, wall), RotationDue::Now(_))
    };
    assert!(now(None, None));
    assert!(!now(Some(&good), Some(at)));
    assert!(now(Some(&good), Some(wall)));
    assert_eq!(need(Some(&good), &template, None, wall), RotationDue::At(good.not_after));
    assert!(now(Some(&CertificateFacts { from_bootstrap: true, ..good.clone() }), Some(at)));
    assert!(now(Some(&CertificateFacts { organizations: vec![], ..good.clone() }), Some(at)));
    assert!(now(Some(&CertificateFacts { common_name: "x".into(), ..good.clone() }), Some(at)));
    assert!(now(Some(&CertificateFacts { not_after: wall, ..good.clone() }), Some(at)));
    let more = CertificateFacts { dns_names: vec!["more".into()], ..good };
    assert!(!now(Some(&more), Some(at)));
}

proptest! {
    #[test]
    fn the_deadline_lies_in_its_window(from in 0i64..1 << 60, lifetime in 10i64..1 << 59, seed: u64) {
        let facts = CertificateFacts {
            not_before: Wall(from),
            not_after: Wall(from + lifetime),
            ..facts(Wall(from), Duration::from_secs(1), &client_template())
        };
        let at = deadline(&facts, &mut Entropy::new(seed)).0 - from;
        prop_assert!(at >= lifetime / 10 * 7 && at <= lifetime / 10 * 9, "{at} of {lifetime}");
        // Issued when most of it is over: still later than now, and before the end.
        let wall = Wall(from + lifetime - lifetime / 100 - 10);
        let at = deadline_of_new(&facts, wall, &mut Entropy::new(seed));
        prop_assert!(at > wall || lifetime < 2000, "{at:?} {wall:?}");
        prop_assert!(at < facts.not_after);
    }

    #[test]
    fn pauses_double_four_times_then_stay(failures in 1u32..100, seed: u64) {
        let pause = retry_pause(failures, &mut Entropy::new(seed));
        let base = Duration::from_secs(match failures { 1 => 2, 2 => 4, 3 => 8, 4 => 16, _ => 32 });
        prop_assert!(pause >= base && pause <= base + base / 10);
    }
}
