//! The certificate managers against a small signer: tables, every short sequence of faults, long lives.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use agent_types::api::{ApiError, ApiReply};
use agent_types::certificates::{CertConfig, CertKind, serving_names};
use agent_types::entropy::Entropy;
use agent_types::failure::Class;
use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use proptest::prelude::*;

use super::rotation::{RotationDue, deadline, deadline_of_new, need, retry_pause};
use super::*;

const SECOND: i64 = 1_000_000_000;
const BUILT: Wall = Wall(1_795_000_000 * SECOND);

/// What happens to the next effect.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The effect fails: no key, no server, no disk.
    Broken,
    /// 401.
    Unauthorized,
    /// A call was applied, but no answer came.
    Lost,
    Denied,
    Failed,
    /// The request is gone.
    Replaced,
    /// The signer leaves out all names.
    Mangled,
}

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

struct World {
    machine: CertManager,
    now: Now,
    lifetime: Duration,
    approve: bool,
    /// What the shell finds when it looks for bootstrap credentials; `None`: it goes on looking.
    token: Option<Result<(), String>>,
    /// The cluster that the token is of cannot be reached.
    token_leads_nowhere: bool,
    wanted: Vec<bool>,
    shown: String,
    template: Option<CertTemplate>,
    keys: BTreeSet<KeyHandle>,
    actions: Vec<String>,
    facts: Vec<CertFact>,
    requests: Vec<Mono>,
}

fn config(kind: CertKind) -> CertConfig {
    CertConfig { kind, node_name: "n1".into(), rotate: true, clock_floor: BUILT, seed: 5 }
}

fn address(kind: &str, address: &str) -> NodeAddress {
    NodeAddress { type_: kind.into(), address: address.into() }
}

fn facts(from: Wall, lifetime: Duration, template: &CertTemplate) -> CertificateFacts {
    CertificateFacts {
        not_before: from,
        not_after: Wall(from.0 + i64::try_from(lifetime.as_nanos()).unwrap()),
        common_name: template.common_name.clone(),
        organizations: vec![template.organization.clone()],
        dns_names: template.dns_names.clone(),
        ips: template.ips.clone(),
        from_bootstrap: false,
    }
}

fn client_template() -> CertTemplate {
    CertTemplate::of(&config(CertKind::Client), &[]).unwrap()
}

fn hours(h: u64) -> Duration {
    Duration::from_secs(h * 3600)
}

impl World {
    fn new(kind: CertKind) -> World {
        World {
            machine: CertManager::new(config(kind)),
            now: Now { mono: Mono(0), wall: Wall(BUILT.0 + 1000 * SECOND) },
            lifetime: hours(1),
            approve: true,
            token: None,
            token_leads_nowhere: false,
            wanted: Vec::new(),
            shown: String::new(),
            template: None,
            keys: BTreeSet::new(),
            actions: Vec::new(),
            facts: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// A client manager with nothing but a token.
    fn joining() -> World {
        let mut w = World::with_token();
        w.step(CertEvent::Loaded(None), &mut peace());
        w
    }

    fn with_token() -> World {
        World { token: Some(Ok(())), ..World::new(CertKind::Client) }
    }

    fn pass(&mut self, d: Duration) {
        self.now.mono = self.now.mono.after(d);
        self.now.wall.0 += i64::try_from(d.as_nanos()).unwrap();
    }

    fn step(&mut self, event: CertEvent, faults: &mut dyn Iterator<Item = Fault>) {
        let mut events = vec![event];
        let mut flying = false;
        while let Some(event) = events.pop() {
            flying &= matches!(event, CertEvent::Bootstrap(_));
            let mut out = Outbox::new();
            self.machine.step(self.now, event, &mut out);
            for action in out.drain() {
                let effect = matches!(
                    action,
                    CertAction::GenerateKeyAndCsr { .. } | CertAction::Call { .. } | CertAction::Store { .. }
                );
                let fault = if effect { faults.next().unwrap_or(Fault::None) } else { Fault::None };
                if let Some(answer) = self.serve(action, fault) {
                    assert!(!effect || !std::mem::replace(&mut flying, true), "one effect in flight");
                    self.pass(Duration::from_millis(5));
                    events.push(answer);
                }
            }
        }
        if self.machine.deadline().is_none() {
            assert!(self.keys.len() <= 1);
        }
    }

    fn serve(&mut self, action: CertAction, fault: Fault) -> Option<CertEvent> {
        let broken = || "broken".to_owned();
        match action {
            CertAction::GenerateKeyAndCsr { id, key, template } => {
                self.actions.push("generate".into());
                assert!(self.keys.insert(key), "a new name for each key");
                self.template = Some(template);
                let result = if fault == Fault::Broken { Err(broken()) } else { Ok("PEM".to_owned()) };
                Some(CertEvent::Generated { id, result })
            }
            CertAction::Call { id, with, call } => {
                Some(CertEvent::Answered { id, result: self.call(with, &call, fault) })
            }
            CertAction::Store { id, key, .. } => {
                self.actions.push("store".into());
                let mut new = facts(self.now.wall, self.lifetime, self.template.as_ref().unwrap());
                if fault == Fault::Mangled {
                    new.common_name = "somebody".into();
                }
                if fault != Fault::Broken {
                    assert!(self.keys.remove(&key), "stored with a key that was dropped");
                }
                let result = if fault == Fault::Broken { Err(broken()) } else { Ok(new) };
                Some(CertEvent::Stored { id, result })
            }
            CertAction::DropKey { key } => {
                assert!(self.keys.remove(&key), "dropped twice");
                None
            }
            CertAction::Bootstrap { wanted } => {
                assert_ne!(self.wanted.last(), Some(&wanted), "said once");
                self.wanted.push(wanted);
                self.token.clone().filter(|_| wanted).map(CertEvent::Bootstrap)
            }
            CertAction::Show(sentence) => {
                assert_ne!(self.shown, sentence, "said once");
                self.shown = sentence;
                None
            }
            CertAction::Fact(fact) => {
                self.facts.push(fact);
                None
            }
        }
    }

    fn call(&mut self, with: CertIdentity, call: &ApiCall, fault: Fault) -> ApiResult {
        let error = |class, code, message: &str| {
            Err(ApiError {
                call: call.describe(),
                class,
                code,
                reason: String::new(),
                message: message.into(),
            })
        };
        let get = match call {
            ApiCall::CreateCsr(csr) => {
                self.requests.push(self.now.mono);
                assert_eq!(csr.metadata.generate_name.as_deref(), Some("csr-"));
                assert_eq!(csr.spec.request.0, b"PEM");
                false
            }
            ApiCall::GetCsr { name } => {
                assert_eq!(name, "csr-1");
                true
            }
            other => panic!("{other:?}"),
        };
        self.actions.push(format!("{} as {with:?}", if get { "get" } else { "create" }));
        let mut csr = CertificateSigningRequest::default();
        csr.metadata.name = Some("csr-1".into());
        csr.metadata.uid = Some(if fault == Fault::Replaced && get { "u2" } else { "u1" }.into());
        let condition = |kind: &str| CertificateSigningRequestCondition {
            type_: kind.into(),
            reason: Some("Because".into()),
            message: Some("words".into()),
            ..Default::default()
        };
        let kinds = match fault {
            _ if self.token_leads_nowhere && with == CertIdentity::Bootstrap => {
                return error(Class::Unavailable, None, "connection refused");
            }
            Fault::Broken => return error(Class::Unavailable, None, "connection refused"),
            Fault::Unauthorized => return error(Class::Unavailable, Some(401), "Unauthorized"),
            Fault::Lost => return error(Class::DeadlineExceeded, None, "no answer"),
            Fault::Denied => vec![condition("Denied")],
            Fault::Failed => vec![condition("Approved"), condition("Failed")],
            _ if get && self.approve => vec![condition("Approved")],
            _ => Vec::new(),
        };
        let certificate = (get && self.approve).then(|| ByteString(b"CHAIN".to_vec()));
        csr.status = Some(CertificateSigningRequestStatus { certificate, conditions: Some(kinds) });
        Ok(ApiReply::Csr(Box::new(csr)))
    }

    fn run(&mut self, d: Duration, faults: &mut dyn Iterator<Item = Fault>) {
        let end = self.now.mono.after(d);
        while let Some(at) = self.machine.deadline().filter(|at| *at <= end) {
            let wait = at.since(self.now.mono);
            assert!(!wait.is_zero(), "hot loop: {:?}", self.actions);
            self.pass(wait);
            self.step(CertEvent::Tick, faults);
        }
        let rest = end.since(self.now.mono);
        self.pass(rest);
    }

    fn actions(&mut self) -> Vec<String> {
        std::mem::take(&mut self.actions)
    }

    fn failures(&self) -> Vec<&str> {
        let text = self.facts.iter().filter_map(|f| match f {
            CertFact::Failed { message } => Some(message.as_str()),
            _ => None,
        });
        text.collect()
    }
}

fn peace() -> impl Iterator<Item = Fault> {
    std::iter::empty()
}

#[test]
fn a_token_becomes_a_certificate_and_the_certificate_renews_itself() {
    let mut w = World::joining();
    w.run(Duration::from_secs(1), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Bootstrap", "get as Bootstrap", "store"]);
    assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }));
    assert_eq!(w.wanted, [true, false], "a token that was used is forgotten");
    w.run(hours(100), &mut peace());
    let rounds: Vec<String> = w.actions();
    assert!(rounds.iter().all(|a| !a.contains("Bootstrap")), "{rounds:?}");
    let lived = |f: &CertFact| if let CertFact::Rotated { lived_s, .. } = f { Some(*lived_s) } else { None };
    let lives: Vec<Option<u64>> = w.facts.iter().filter_map(lived).collect();
    assert!((110..=144).contains(&lives.len()), "{}", lives.len());
    assert!(lives[1..].iter().flatten().all(|s| (2520..=3243).contains(s)), "{lives:?}");
    assert!(w.failures().is_empty() && w.keys.is_empty());
}

#[test]
fn a_serving_certificate_waits_for_an_address_and_follows_it() {
    let mut w = World::new(CertKind::Serving);
    w.step(CertEvent::Loaded(None), &mut peace());
    w.step(CertEvent::Addresses(vec![address("Hostname", "n1")]), &mut peace());
    assert!(w.actions().is_empty() && w.machine.deadline().is_none());
    assert!(w.machine.state(w.now.wall).message().contains("no IP address"));
    let first = vec![address("InternalIP", "192.0.2.1"), address("Hostname", "n1")];
    w.step(CertEvent::Addresses(first.clone()), &mut peace());
    w.run(Duration::from_secs(3), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Node", "get as Node", "store"]);
    // Fewer names are no reason, others are.
    w.step(CertEvent::Addresses(first[..1].to_vec()), &mut peace());
    w.run(Duration::from_secs(3), &mut peace());
    assert!(w.actions().is_empty());
    w.step(CertEvent::Addresses(vec![address("InternalIP", "192.0.2.2")]), &mut peace());
    w.run(Duration::from_secs(3), &mut peace());
    assert_eq!(w.actions().len(), 4);
    assert_eq!(w.machine.current().unwrap().ips, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
    // An address that changes while a request waits makes another request, and the key is dropped.
    w.approve = false;
    w.step(CertEvent::Addresses(vec![address("InternalIP", "192.0.2.3")]), &mut peace());
    w.run(Duration::from_secs(60), &mut peace());
    w.actions();
    w.step(CertEvent::Addresses(vec![address("InternalIP", "192.0.2.4")]), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Node"]);
    assert_eq!(w.keys.len(), 1);
}

#[test]
fn names_of_a_serving_certificate() {
    let (dns, ips) = serving_names(&[
        address("InternalIP", "192.0.2.10"),
        address("ExternalIP", "192.0.2.1"),
        address("Hostname", "b"),
        address("InternalDNS", "a"),
        address("ExternalDNS", ""),
        address("InternalIP", "not an address"),
        address("Hostname", "::1"),
        address("InternalIP", "192.0.2.10"),
    ]);
    assert_eq!(dns, ["a", "b"]);
    assert_eq!(ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.1", "192.0.2.10", "::1"]);
}

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

#[test]
fn an_unapproved_request_is_looked_at_gently_and_replaced_after_a_quarter_of_an_hour() {
    let mut w = World::joining();
    w.approve = false;
    w.run(Duration::from_secs(14 * 60), &mut peace());
    let message = w.machine.state(w.now.wall).message().to_owned();
    assert!(message.contains("kubectl certificate approve csr-1"), "{message}");
    assert_eq!(w.shown, message);
    assert_eq!(w.requests.len(), 1);
    assert!(w.actions().len() < 120);
    w.run(Duration::from_secs(120), &mut peace());
    assert_eq!(w.requests.len(), 2);
    w.approve = true;
    w.run(Duration::from_secs(10), &mut peace());
    assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }));
}

#[test]
fn a_request_is_not_called_overdue_before_somebody_could_have_approved_it() {
    let mut w = World::joining();
    w.approve = false;
    w.run(Duration::from_secs(3), &mut peace());
    assert_eq!(w.shown, "");
    w.run(Duration::from_secs(2), &mut peace());
    assert!(w.shown.contains("kubectl certificate approve csr-1"), "{}", w.shown);
    w.approve = true;
    w.run(Duration::from_secs(5), &mut peace());
    assert_eq!(w.shown, "");
    // The same for the renewal of a good certificate: there is time left to approve it.
    w.approve = false;
    w.run(hours(1) - Duration::from_secs(120), &mut peace());
    assert!(matches!(w.machine.state(w.now.wall), CertState::Valid { .. }));
    assert!(w.shown.contains("kubectl certificate approve csr-1"), "{}", w.shown);
}

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

/// A single 401, and what the node was told at its first boot leads nowhere any more.
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
