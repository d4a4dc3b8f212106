//! Certificates of pods: asked for, issued, renewed in time, refused, lost.

use agent_types::api_time::{api_time, text};
use serde_json::{Value, json};

use super::*;

const MINUTE: i64 = 60;

struct World {
    machine: PodCertificates,
    /// Seconds.
    at: i64,
}

fn p(uid: &str) -> Arc<Pod> {
    let source = |signer: &str| {
        json!({"podCertificate": {"signerName": signer, "keyType": "ED25519", "maxExpirationSeconds": 3600,
            "userAnnotations": {"example.com/a": "b"}, "credentialBundlePath": "b.pem", "keyPath": ""}})
    };
    let p = json!({"metadata": {"namespace": "ns", "name": "web", "uid": uid}, "spec": {
        "serviceAccountName": "sa", "containers": [],
        "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}, source("one")]}},
            {"name": "w", "emptyDir": {}}]}});
    Arc::new(serde_json::from_value(p).unwrap())
}

fn place(uid: &str) -> CertificateSource {
    CertificateSource::new(&p(uid), "v", 1)
}

fn chain() -> String {
    format!("noise\n{}between\n{}", pem_of("leaf"), pem_of("root"))
}

fn pem_of(what: &str) -> String {
    agent_types::pem::certificate(what.as_bytes())
}

impl World {
    fn new() -> World {
        World { machine: PodCertificates::new(7), at: 1000 }
    }

    fn step(&mut self, event: CertificateEvent) -> Vec<CertificateAction> {
        let mut out = Outbox::new();
        let ns = self.at * 1_000_000_000;
        let now = Now { mono: Mono(u64::try_from(ns).unwrap()), wall: Wall(ns) };
        self.machine.step(now, event, &mut out);
        out.drain().collect()
    }

    fn pods(&mut self, uids: &[&str]) -> Vec<CertificateAction> {
        self.step(CertificateEvent::Pods(uids.iter().map(|uid| (PodUid::from(*uid), p(uid))).collect()))
    }

    fn asked(&mut self, answer: Result<&str, &str>) -> Vec<CertificateAction> {
        let at = Wall(self.at * 1_000_000_000);
        let answer = answer.map(|name| (name.to_owned(), at)).map_err(str::to_owned);
        self.step(CertificateEvent::Asked(place("u"), answer))
    }

    /// The watch shows the request with this status.
    fn shown(&mut self, name: &str, status: Value) -> Vec<CertificateAction> {
        let request = json!({"metadata": {"namespace": "ns", "name": name}, "spec": {"signerName": "one", "podName": "web",
            "podUID": "u", "serviceAccountName": "sa", "serviceAccountUID": "a", "nodeName": "n", "nodeUID": "i",
            "stubPKCS10Request": "aGk="}, "status": status});
        let request: PodCertificateRequest = serde_json::from_value(request).unwrap();
        self.step(CertificateEvent::Watched(WatchEvent::Applied(Arc::new(request))))
    }

    fn issued(&mut self, name: &str, refresh_in: i64, ends_in: i64) -> Vec<CertificateAction> {
        let time = |s: i64| api_time(Wall((self.at + s) * 1_000_000_000));
        let status = json!({"conditions": [condition("Issued", "Because", "")], "certificateChain": chain(),
            "beginRefreshAt": time(refresh_in), "notAfter": time(ends_in), "notBefore": time(0)});
        self.shown(name, status)
    }

    fn tick(&mut self, to: i64) -> Vec<CertificateAction> {
        self.at = to;
        self.step(CertificateEvent::Tick)
    }

    fn states(&self) -> Vec<(&str, &str, u32)> {
        let states = self.machine.states(Wall(self.at * 1_000_000_000));
        states.into_iter().map(|((signer, state), n)| (signer, state, n)).collect()
    }

    fn held(&self) -> Result<String, String> {
        self.machine.held(&place("u")).map(|(name, chain)| {
            assert_eq!(chain[..], *(pem_of("leaf") + &pem_of("root")).as_bytes(), "nothing is between them");
            name.to_owned()
        })
    }
}

fn condition(kind: &str, reason: &str, message: &str) -> Value {
    let at = text(Wall(0));
    json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": at})
}

fn changed() -> CertificateAction {
    CertificateAction::Changed("u".into())
}

fn ask() -> CertificateAction {
    let wanted = RequestedCertificate {
        signer: "one".to_owned(),
        key_type: "ED25519".to_owned(),
        life_s_max: Some(3600),
        annotations: [("example.com/a".to_owned(), "b".to_owned())].into(),
        account: "sa".to_owned(),
    };
    CertificateAction::Ask(place("u"), wanted)
}

#[test]
fn asked_for_once_and_issued() {
    let mut w = World::new();
    assert_eq!(w.machine.deadline(), None);
    assert_eq!(w.held().unwrap_err(), "no credentials yet for source 1 of volume \"v\" of pod web_ns(u)");
    assert_eq!(w.pods(&["u"]), [CertificateAction::Watch(true), ask()]);
    assert_eq!(w.pods(&["u"]), [], "one request at a time");
    assert_eq!(w.held().unwrap_err(), "credential bundle is not issued yet");
    assert_eq!(w.states(), [("one", "not_yet_issued", 1)]);
    assert_eq!(w.asked(Ok("req-1")), []);
    assert_eq!(w.shown("req-1", json!({})), []);
    assert_eq!(w.shown("other", json!({"conditions": [condition("Denied", "No", "")]})), []);
    assert_eq!(w.held().unwrap_err(), "credential bundle is not issued yet");
    assert_eq!(w.issued("req-1", 30 * MINUTE, 60 * MINUTE), [changed()]);
    assert_eq!(w.held().unwrap(), "req-1");
    assert_eq!((w.machine.needed().len(), w.states()), (1, vec![("one", "fresh", 1)]));
    w.pods(&["u", "v"]);
    assert_eq!(w.states(), [("one", "fresh", 1), ("one", "not_yet_issued", 1)]);
    assert_eq!(w.pods(&[]), [CertificateAction::Watch(false)]);
    assert!(w.held().is_err() && w.machine.needed().is_empty() && w.machine.deadline().is_none());
    assert_eq!(w.states(), []);
}

#[test]
fn a_word_of_the_watch_may_be_earlier_than_the_answer() {
    let mut w = World::new();
    w.pods(&["u"]);
    assert_eq!(w.issued("req-1", 30 * MINUTE, 60 * MINUTE), []);
    assert_eq!(w.asked(Ok("req-1")), [changed()]);
    assert_eq!(w.held().unwrap(), "req-1");
}

#[test]
fn renewed_when_it_is_time_and_kept_until_then() {
    let mut w = World::new();
    w.pods(&["u"]);
    w.asked(Ok("req-1"));
    w.issued("req-1", 30 * MINUTE, 60 * MINUTE);
    assert_eq!(w.tick(1000 + 30 * MINUTE - 1), [], "not before its time");
    // At most five minutes later.
    assert_eq!(w.tick(1000 + 35 * MINUTE), [ask()]);
    w.asked(Ok("req-2"));
    w.shown("req-2", json!({}));
    assert_eq!((w.held().unwrap().as_str(), w.machine.needed().len()), ("req-1", 2));
    let told = |reason, words: &str| CertificateAction::Tell(place("u").pod, reason, words.to_owned());
    let overdue = told("CertificateOverdueForRefresh", "PodCertificate refresh overdue");
    assert_eq!(w.tick(1000 + 45 * MINUTE + 1), [overdue]);
    assert_eq!(w.states(), [("one", "overdue_for_refresh", 1)]);
    assert_eq!(w.tick(1000 + 46 * MINUTE), [], "once");
    let expired = told("CertificateExpired", "PodCertificate expired");
    assert_eq!(w.tick(1000 + 60 * MINUTE + 1), [expired]);
    assert_eq!(w.states(), [("one", "expired", 1)]);
    assert_eq!(w.held().unwrap(), "req-1", "a late one is better than none");
    assert_eq!(w.issued("req-2", 30 * MINUTE, 60 * MINUTE), [changed()]);
    assert_eq!((w.held().unwrap().as_str(), w.machine.needed().len()), ("req-2", 1));
    assert_eq!(w.states(), [("one", "fresh", 1)]);
}

#[test]
fn a_request_that_is_gone_is_made_again() {
    let mut w = World::new();
    w.pods(&["u"]);
    w.asked(Ok("req-1"));
    assert_eq!(w.tick(1000 + 10 * MINUTE), [], "the watch may be behind");
    let again = w.tick(1000 + 15 * MINUTE);
    assert_eq!(again, []);
    assert!(
        w.held().unwrap_err().ends_with("PodCertificateRequest \"ns/req-1\" appears to have been deleted")
    );
    assert_eq!(w.tick(1000 + 15 * MINUTE + 1), [ask()]);
    w.asked(Ok("req-2"));
    // One that is seen may wait for ever.
    w.shown("req-2", json!({}));
    assert_eq!(w.tick(1000 + 600 * MINUTE), []);
}

#[test]
fn what_cannot_be_made_is_tried_again_later_each_time() {
    let mut w = World::new();
    w.pods(&["u"]);
    for (tries, wait) in [1, 1, 2, 4, 8, 16, 32, 64, 122, 122].into_iter().enumerate() {
        assert_eq!(w.asked(Err("while creating on API: forbidden")), []);
        let words = "credential bundle is not issued yet: while creating initial PodCertificateRequest: while creating \
                     on API: forbidden";
        assert_eq!(w.held().unwrap_err(), words);
        let due = w.machine.deadline().unwrap();
        assert!(due > Mono(u64::try_from(w.at * 1_000_000_000).unwrap()), "try {tries}");
        assert_eq!(w.tick(w.at + wait), [ask()], "try {tries}");
    }
    w.asked(Ok("req-1"));
    assert_eq!(w.held().unwrap_err(), "credential bundle is not issued yet");
}

#[test]
fn refusals_are_for_good() {
    for (kind, words, told) in [("Denied", "denied", "was denied"), ("Failed", "failed", "failed")] {
        let mut w = World::new();
        w.pods(&["u"]);
        w.asked(Ok("req-1"));
        let status =
            json!({"conditions": [condition("Other", "x", "y"), condition(kind, "No", "not \"you\"")]});
        let message =
            format!("PodCertificateRequest ns/req-1 {told}, reason=\"No\", message=\"not \\\"you\\\"\"");
        let tell = CertificateAction::Tell(place("u").pod, kind, message);
        assert_eq!(w.shown("req-1", status), [tell, changed()]);
        let expected = format!(
            "PodCertificateRequest was permanently {words}: reason=\"No\" message=\"not \\\"you\\\"\""
        );
        assert_eq!(w.held().unwrap_err(), expected);
        assert_eq!((w.tick(1_000_000), w.machine.deadline()), (Vec::new(), None));
        assert!(w.machine.needed().is_empty(), "its key is not needed");
        assert_eq!(w.states(), [("one", words, 1)]);
        // Another pod of the name is another one.
        assert!(matches!(w.pods(&["v"])[..], [CertificateAction::Ask(..)]));
    }
}

#[test]
fn requests_have_upstreams_shape() {
    let CertificateAction::Ask(place, wanted) = ask() else { panic!() };
    let asker = Asker { node: "n".to_owned(), node_uid: "n-1".to_owned(), account_uid: "a-1".to_owned() };
    let request = serde_json::to_value(wanted.request(&place, asker, b"hi".to_vec())).unwrap();
    let expected = json!({"apiVersion": "certificates.k8s.io/v1beta1", "kind": "PodCertificateRequest",
        "metadata": {"namespace": "ns", "generateName": "req-",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u"}]},
        "spec": {"signerName": "one", "podName": "web", "podUID": "u", "serviceAccountName": "sa",
            "serviceAccountUID": "a-1", "nodeName": "n", "nodeUID": "n-1", "maxExpirationSeconds": 3600,
            "stubPKCS10Request": "aGk=", "unverifiedUserAnnotations": {"example.com/a": "b"}}});
    assert_eq!(request, expected);
}

#[test]
fn nodes_and_pods_ask_at_different_times() {
    let of = |seed, uid| spread(seed, &place(uid), "req");
    assert_eq!(of(1, "u"), of(1, "u"));
    assert!(of(1, "u") != of(2, "u") && of(1, "u") != of(1, "v"));
    assert!((0..1000).all(|seed| of(seed, "u") < Duration::from_secs(SPREAD_S)));
}
