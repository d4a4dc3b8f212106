//! The certificate managers against a small signer: tables, every short sequence of faults, long lives.

mod approval;
mod bootstrap;
mod clock;
mod faults;
mod rotation;
mod serving;

use std::collections::BTreeSet;
use std::time::Duration;

use agent_types::api::{ApiError, ApiReply};
use agent_types::certificates::{CertConfig, CertKind};
use agent_types::failure::Class;
use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};

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

struct World {
    machine: CertManager,
    now: Now,
    lifetime: Duration,
    /// Nanoseconds by which the node's clock is ahead of the signer's.
    ahead: i64,
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
            ahead: 0,
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
                let signed = Wall(self.now.wall.0 - self.ahead);
                let mut new = facts(signed, self.lifetime, self.template.as_ref().unwrap());
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
