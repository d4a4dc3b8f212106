//! The machine: from a need to a stored certificate, one step after the other.
//!
//! `Idle` ─generate→ `Generating` ─create→ `Creating` ─poll→ `Approval` ─store→ `Storing` ─→ `Idle`; every failure
//! goes back to `Idle` with a pause and without the key.

use std::time::Duration;

use agent_types::api::{ApiCall, ApiReply, ApiResult};
use agent_types::api_time::text;
use agent_types::backoff::Backoff;
use agent_types::certificates::{CertConfig, CertKind, CertTemplate, CertificateFacts};
use agent_types::entropy::Entropy;
use agent_types::failure::Class;
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::NodeAddress;

use super::csr::{self, Verdict};
use super::rotation::{self, ClockProblem, RotationDue};
use super::{CertAction, CertEvent, CertFact, CertIdentity, KeyHandle, message};

/// One request is waited for this long.
const APPROVAL_MAX: Duration = Duration::from_secs(15 * 60);
/// Pauses between looks at a request.
const POLL: Backoff = Backoff::doubling(Duration::from_millis(15), Duration::from_secs(8));
/// After this pause (3.825 s after the request) the operator is informed that it waits.
const POLL_OVERDUE: Duration = Duration::from_secs(4);
/// A wrong clock is looked at this often.
const CLOCK_PERIOD: Duration = Duration::from_secs(1);
/// A clock that contradicts the certificate only is waited for this long.
const CLOCK_PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Longest sleep: the wall clock may be set meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(30);
/// Shortest time between two certificates.
const SPACING: Duration = Duration::from_secs(1);

/// A request under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    key: KeyHandle,
    template: CertTemplate,
    with: CertIdentity,
}

/// A request that the API server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingCsr {
    pub(super) name: String,
    uid: Option<String>,
    give_up: Mono,
    pause: Duration,
    look: Mono,
    pub(super) approved: bool,
}

impl PendingCsr {
    /// True once the operator should know: no controller approves it automatically.
    pub(super) fn is_overdue(&self) -> bool {
        self.pause > POLL_OVERDUE
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Generating(Request),
    Creating(Request),
    Approval(Request, PendingCsr),
    Storing(Request),
}

/// The machine; see the module.
#[derive(Clone, Debug)]
pub struct CertManager {
    pub(super) config: CertConfig,
    entropy: Entropy,
    last_id: u64,
    last_key: u64,
    in_flight: Option<EffectId>,
    pub(super) phase: Phase,
    /// What the directory holds, once it was read.
    pub(super) current: Option<Option<CertificateFacts>>,
    rotate_at: Option<Wall>,
    /// Bootstrap credentials, or the reason why there are none; `None` before the first look.
    pub(super) bootstrap: Option<Result<(), String>>,
    /// Last request in [`CertAction::Bootstrap`].
    pub(super) bootstrap_wanted: Option<bool>,
    pub(super) addresses: Vec<NodeAddress>,
    /// The API server refused the node's own certificate.
    pub(super) refused: bool,
    /// The last attempt was with bootstrap credentials and failed: while a certificate is refused the two take turns.
    pub(super) is_nodes_turn: bool,
    failures: u32,
    next_try: Mono,
    pub(super) failure: Option<String>,
    /// Somebody vouches for the clock.
    pub(super) clock_verified: bool,
    /// Since when the clock is known to be wrong.
    pub(super) clock_wrong: Option<(Mono, String)>,
    pub(super) shown: String,
    wake: Option<Mono>,
}

impl CertManager {
    /// Waits for [`CertEvent::Loaded`].
    #[must_use]
    pub fn new(config: CertConfig) -> CertManager {
        CertManager {
            entropy: Entropy::new(config.seed),
            config,
            last_id: 0,
            last_key: 0,
            in_flight: None,
            phase: Phase::Idle,
            current: None,
            rotate_at: None,
            bootstrap: None,
            bootstrap_wanted: None,
            addresses: Vec::new(),
            refused: false,
            is_nodes_turn: false,
            failures: 0,
            next_try: Mono(0),
            failure: None,
            clock_verified: true,
            clock_wrong: None,
            shown: String::new(),
            wake: None,
        }
    }

    /// Facts of the certificate in use.
    #[must_use]
    pub fn current(&self) -> Option<&CertificateFacts> {
        self.current.as_ref()?.as_ref()
    }

    /// What went wrong last, until the next success.
    #[must_use]
    pub fn last_failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn next_id(&mut self) -> EffectId {
        self.last_id += 1;
        let id = EffectId(self.last_id);
        self.in_flight = Some(id);
        id
    }

    fn call(&mut self, with: CertIdentity, call: ApiCall, out: &mut Outbox<CertAction>) {
        let id = self.next_id();
        out.push(CertAction::Call { id, with, call });
    }

    /// Back to the start, with a pause.
    fn fail(&mut self, message: String, now: Now, out: &mut Outbox<CertAction>) {
        self.drop_request(out);
        self.failures = self.failures.saturating_add(1);
        self.next_try = now.mono.after(rotation::retry_pause(self.failures, &mut self.entropy));
        self.failure = Some(message.clone());
        out.push(CertAction::Fact(CertFact::Failed { message }));
    }

    fn drop_request(&mut self, out: &mut Outbox<CertAction>) {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        match phase {
            Phase::Idle => {}
            Phase::Generating(r) | Phase::Creating(r) | Phase::Approval(r, _) | Phase::Storing(r) => {
                self.is_nodes_turn = r.with == CertIdentity::Bootstrap;
                out.push(CertAction::DropKey { key: r.key });
            }
        }
    }

    /// True if the request's template is neither the wanted one nor that of the present certificate.
    fn is_superseded(&self, request: &Request) -> bool {
        self.template().is_none_or(|wanted| {
            wanted != request.template && self.current().is_none_or(|c| wanted.unmet(c).is_some())
        })
    }

    fn take(&mut self, facts: Option<CertificateFacts>, rotate_at: Option<Wall>) {
        self.rotate_at = rotate_at.filter(|_| self.config.rotate);
        self.current = Some(facts);
        (self.refused, self.is_nodes_turn) = (false, false);
    }

    fn loaded(&mut self, facts: Option<CertificateFacts>) {
        if self.current.as_ref() != Some(&facts) {
            let rotate_at = facts.as_ref().map(|f| rotation::deadline(f, &mut self.entropy));
            self.take(facts, rotate_at);
        }
    }

    fn generated(
        &mut self,
        request: Request,
        result: Result<String, String>,
        now: Now,
        out: &mut Outbox<CertAction>,
    ) {
        match result {
            Ok(pem) => {
                let (with, csr) = (request.with, csr::object(self.config.kind, pem));
                self.phase = Phase::Creating(request);
                self.call(with, ApiCall::CreateCsr(Box::new(csr)), out);
            }
            Err(error) => self.fail(format!("making a key and a certificate request: {error}"), now, out),
        }
    }

    fn call_failed(
        &mut self,
        with: CertIdentity,
        error: &agent_types::api::ApiError,
        now: Now,
        out: &mut Outbox<CertAction>,
    ) {
        if error.code == Some(401) && self.config.kind == CertKind::Client {
            self.refused |= with == CertIdentity::Node;
        }
        self.fail(message::call_failed(self.config.kind, with, error), now, out);
    }

    fn created(&mut self, request: Request, result: ApiResult, now: Now, out: &mut Outbox<CertAction>) {
        match result {
            Ok(ApiReply::Csr(csr)) => {
                let name = csr.metadata.name.clone().unwrap_or_default();
                let filed = PendingCsr {
                    name: name.clone(),
                    uid: csr.metadata.uid.clone(),
                    give_up: now.mono.after(APPROVAL_MAX),
                    pause: POLL.first,
                    look: now.mono.after(POLL.first),
                    approved: false,
                };
                out.push(CertAction::Fact(CertFact::Requested { csr: name }));
                self.phase = Phase::Approval(request, filed.clone());
                // A signer may have been quick, and a broken server may answer anything.
                self.judge(filed, &csr, now, out);
            }
            Ok(other) => self.fail(format!("the certificate request was answered with {other:?}"), now, out),
            Err(error) => self.call_failed(request.with, &error, now, out),
        }
    }

    fn looked(
        &mut self,
        request: Request,
        filed: PendingCsr,
        result: ApiResult,
        now: Now,
        out: &mut Outbox<CertAction>,
    ) {
        match result {
            Ok(ApiReply::Csr(csr)) => self.judge(filed, &csr, now, out),
            Ok(other) => self.fail(format!("the certificate request was answered with {other:?}"), now, out),
            Err(error) if error.class == Class::NotFound => {
                self.fail(message::replaced(&filed.name), now, out)
            }
            Err(error) if matches!(error.code, Some(401 | 403)) => {
                self.call_failed(request.with, &error, now, out)
            }
            // The server is away: look again later, as long as the request lasts.
            Err(_) => self.look_later(filed, now),
        }
    }

    fn look_later(&mut self, mut filed: PendingCsr, now: Now) {
        filed.look = now.mono.after(filed.pause);
        filed.pause = POLL.following(filed.pause);
        if let Phase::Approval(_, current) = &mut self.phase {
            *current = filed;
        }
    }

    fn judge(
        &mut self,
        mut filed: PendingCsr,
        csr: &CertificateSigningRequest,
        now: Now,
        out: &mut Outbox<CertAction>,
    ) {
        match csr::verdict(csr, filed.uid.as_deref()) {
            Verdict::Pending => self.look_later(filed, now),
            Verdict::Approved => {
                filed.approved = true;
                self.look_later(filed, now);
            }
            Verdict::Issued(certificate) => {
                if let Phase::Approval(request, _) = std::mem::replace(&mut self.phase, Phase::Idle) {
                    let (key, with) = (request.key, request.with);
                    self.phase = Phase::Storing(request);
                    let id = self.next_id();
                    out.push(CertAction::Store { id, key, with, certificate });
                }
            }
            Verdict::Denied(why) => self.fail(message::denied(&filed.name, &why), now, out),
            Verdict::Failed(why) => self.fail(message::failed(&filed.name, &why), now, out),
            Verdict::Replaced => self.fail(message::replaced(&filed.name), now, out),
        }
    }

    fn stored(
        &mut self,
        request: &Request,
        result: Result<CertificateFacts, String>,
        now: Now,
        out: &mut Outbox<CertAction>,
    ) {
        let facts = match result {
            Ok(facts) => facts,
            Err(error) => return self.fail(format!("keeping the new certificate: {error}"), now, out),
        };
        self.phase = Phase::Idle;
        let lived_s = self.current().map(|old| now.wall.since(old.not_before).as_secs());
        let not_after = facts.not_after;
        let problem = match request.template.unmet(&facts) {
            Some(why) => Some(format!("the signer gave a certificate that does not do: {why}")),
            // An unverified clock may be the one that is wrong.
            None if self.clock_verified && facts.not_after <= now.wall => {
                Some(format!("the signer gave a certificate that expired at {}", text(facts.not_after)))
            }
            None => None,
        };
        let rotate_at = if self.clock_verified {
            rotation::deadline_of_new(&facts, now.wall, &mut self.entropy)
        } else {
            rotation::deadline(&facts, &mut self.entropy)
        };
        self.take(Some(facts), Some(rotate_at));
        out.push(CertAction::Fact(CertFact::Rotated { not_after, lived_s }));
        match problem {
            Some(problem) => self.fail(problem, now, out),
            None => {
                self.failures = 0;
                self.failure = None;
                self.next_try = now.mono.after(SPACING);
            }
        }
    }

    /// True if no request may be sent because the clock is wrong.
    fn clock_is_wrong(&mut self, now: Now, out: &mut Outbox<CertAction>) -> bool {
        let since = self.clock_wrong.as_ref().map_or(now.mono, |(since, _)| *since);
        let patience = now.mono.since(since) < CLOCK_PATIENCE;
        let problem = rotation::clock_problem(self.config.clock_floor, self.current(), now.wall)
            .filter(|p| patience || matches!(p, ClockProblem::BeforeImage(_)));
        match (problem, &self.clock_wrong) {
            (Some(problem), None) => {
                let message = problem.message().to_owned();
                out.push(CertAction::Fact(CertFact::ClockWrong { message: message.clone() }));
                self.clock_wrong = Some((now.mono, message));
                true
            }
            (Some(_), Some(_)) => true,
            (None, Some(_)) => {
                // The end of the patience is not a set clock: the next check must not start the patience
                // again.
                if rotation::clock_problem(self.config.clock_floor, self.current(), now.wall).is_none() {
                    self.clock_wrong = None;
                    out.push(CertAction::Fact(CertFact::ClockSet));
                    (self.failures, self.next_try) = (0, now.mono);
                }
                false
            }
            (None, None) => false,
        }
    }

    /// Nothing is under way: is something needed? Says when to look again.
    fn consider(&mut self, now: Now, out: &mut Outbox<CertAction>) -> Option<Mono> {
        let current = self.current.clone()?;
        let template = self.template()?;
        if self.clock_is_wrong(now, out) {
            return Some(now.mono.after(CLOCK_PERIOD));
        }
        match rotation::need(current.as_ref(), &template, self.rotate_at, now.wall) {
            RotationDue::At(at) => {
                // The certificate will do until then: what failed before is over, for example a certificate that had expired only
                // by a clock that is right now.
                (self.failures, self.failure) = (0, None);
                Some(now.mono.after(at.since(now.wall).min(SLEEP_MAX)))
            }
            // The clock may be the one that is wrong.
            RotationDue::Now(_) if !self.clock_verified && self.is_good(&template, now.wall) => {
                Some(now.mono.after(CLOCK_PERIOD))
            }
            RotationDue::Now(_) if self.next_try > now.mono => Some(self.next_try),
            RotationDue::Now(_) => {
                let with = self.identity(now.wall)?;
                self.last_key += 1;
                let key = KeyHandle(self.last_key);
                self.phase = Phase::Generating(Request { key, template: template.clone(), with });
                let id = self.next_id();
                out.push(CertAction::GenerateKeyAndCsr { id, key, template });
                None
            }
        }
    }

    fn advance(&mut self, now: Now, out: &mut Outbox<CertAction>) -> Option<Mono> {
        if self.in_flight.is_some() {
            return None;
        }
        if let Phase::Approval(request, filed) = &self.phase {
            let (with, name) = (request.with, filed.name.clone());
            if self.is_superseded(request) {
                self.drop_request(out);
            } else if filed.give_up <= now.mono {
                self.fail(message::not_approved(&name, APPROVAL_MAX.as_secs() / 60), now, out);
            } else if filed.look > now.mono {
                return Some(filed.look.min(filed.give_up));
            } else {
                self.call(with, ApiCall::GetCsr { name }, out);
                return None;
            }
        }
        self.consider(now, out)
    }

    /// A late answer is ignored; an answer of the wrong kind must not leave the machine waiting.
    fn mismatch(&mut self, phase: Option<Phase>, now: Now, out: &mut Outbox<CertAction>) {
        if phase.is_some() {
            self.fail("an effect was answered with another kind of answer".to_owned(), now, out);
        }
    }

    fn answer(&mut self, id: EffectId) -> Option<Phase> {
        self.in_flight.take_if(|flying| *flying == id).map(|_| self.phase.clone())
    }
}

impl Machine for CertManager {
    type Event = CertEvent;
    type Action = CertAction;

    fn step(&mut self, now: Now, event: CertEvent, out: &mut Outbox<CertAction>) {
        match event {
            CertEvent::Loaded(facts) => self.loaded(facts),
            CertEvent::Bootstrap(credentials) => {
                if credentials.is_ok() {
                    (self.failures, self.next_try) = (0, now.mono);
                    self.is_nodes_turn = false;
                }
                self.bootstrap = Some(credentials);
            }
            CertEvent::ClockVerified(is) => self.clock_verified = is,
            CertEvent::Addresses(addresses) => self.addresses = addresses,
            CertEvent::Generated { id, result } => match self.answer(id) {
                Some(Phase::Generating(request)) => self.generated(request, result, now, out),
                other => self.mismatch(other, now, out),
            },
            CertEvent::Answered { id, result } => match self.answer(id) {
                Some(Phase::Creating(request)) => self.created(request, result, now, out),
                Some(Phase::Approval(request, filed)) => self.looked(request, filed, result, now, out),
                other => self.mismatch(other, now, out),
            },
            CertEvent::Stored { id, result } => match self.answer(id) {
                Some(Phase::Storing(request)) => self.stored(&request, result, now, out),
                other => self.mismatch(other, now, out),
            },
            CertEvent::Tick => {}
        }
        self.wake = self.advance(now, out);
        self.tell(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.wake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_looks_at_a_request() {
        let mut pause = POLL.first;
        let pauses: Vec<u128> = std::iter::from_fn(|| {
            let wait = pause;
            pause = POLL.following(pause);
            Some(wait.as_millis())
        })
        .take(12)
        .collect();
        assert_eq!(pauses, [15, 30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 8000, 8000]);
    }
}
