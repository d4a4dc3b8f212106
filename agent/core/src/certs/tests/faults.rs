//! Faults: their messages, every short sequence of them, and random ones for hours.

use proptest::prelude::*;

use super::*;

const FAULTS: [Fault; 8] = [
    Fault::None,
    Fault::Broken,
    Fault::Unauthorized,
    Fault::Lost,
    Fault::Denied,
    Fault::Failed,
    Fault::Replaced,
    Fault::Mangled,
];

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    for (faults, words) in [
        (&[Fault::None, Fault::Unauthorized][..], "kubeadm token create"),
        (&[Fault::None, Fault::None, Fault::Denied], "kubectl certificate approve"),
        (&[Fault::None, Fault::None, Fault::Failed], "reason: Because, message: words"),
        (&[Fault::None, Fault::None, Fault::Replaced], "deleted or replaced"),
        (&[Fault::Broken], "making a key"),
        (&[Fault::None, Fault::None, Fault::None, Fault::Broken], "keeping the new certificate"),
        (&[Fault::None, Fault::None, Fault::None, Fault::Mangled], "common name is \"somebody\""),
    ] {
        let mut w = World::with_token();
        let mut faults = faults.iter().copied();
        w.step(CertEvent::Loaded(None), &mut faults);
        w.run(Duration::from_secs(1), &mut faults);
        assert_eq!(w.failures().len(), 1, "{words}: {:?}", w.facts);
        assert!(w.failures()[0].contains(words), "{words}: {:?}", w.failures());
        assert_eq!(w.machine.last_failure(), Some(w.failures()[0]));
        assert_eq!(w.shown, w.failures()[0]);
        w.run(Duration::from_secs(4), &mut peace());
        assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }), "{words}");
        assert_eq!((w.machine.last_failure(), w.shown.as_str()), (None, ""));
    }
}

/// Every sequence of four faults while joining: afterwards there is a certificate, no key is left over, and requests
/// never came closer than a second.
#[test]
fn every_short_sequence_of_faults_ends_with_a_certificate() {
    for number in 0..FAULTS.len().pow(4) {
        let mut rest = number;
        let mut faults = (0..4).map(|_| {
            let fault = FAULTS[rest % FAULTS.len()];
            rest /= FAULTS.len();
            fault
        });
        let mut w = World::with_token();
        w.step(CertEvent::Loaded(None), &mut faults);
        w.run(Duration::from_secs(120), &mut faults);
        let about = || format!("sequence {number}: {:?}, {:?}", w.actions, w.facts);
        assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }), "{}", about());
        assert!(w.keys.is_empty(), "{}", about());
        let close = |pair: &[Mono]| pair[1].since(pair[0]) < Duration::from_secs(1);
        assert!(!w.requests.windows(2).any(close), "{}", about());
    }
}

proptest! {
    /// Half of all effects fail for hours: no hot loop (the world asserts it), never more than a request in two
    /// seconds on average, and when peace comes there is a certificate.
    #[test]
    fn random_faults_never_make_a_hot_loop(picks in prop::collection::vec(0usize..16, 400)) {
        let mut w = World::joining();
        w.lifetime = Duration::from_secs(300);
        let mut faults = picks.into_iter().map(|p| FAULTS.get(p).copied().unwrap_or(Fault::None));
        w.run(hours(1), &mut faults);
        prop_assert!(w.requests.len() < 1800);
        w.run(Duration::from_secs(120), &mut peace());
        let valid = matches!(w.machine.state(w.now.wall), CertState::Valid { .. });
        prop_assert!(valid, "{:?}", w.machine.state(w.now.wall));
        prop_assert!(w.keys.len() <= 1);
    }
}
