//! The node's Lease: the machine creates it with its owner reference and renews it.
//!
//! # For the shell
//! Send [`LeaseEvent::Registered`] whenever the Node object was registered or appears with another UID, the
//! answer to each [`LeaseAction::Call`] as [`LeaseEvent::Answered`], and [`LeaseEvent::Tick`] at the
//! deadline; the first tick starts the work. On [`LeaseAction::CloseConnections`] drop idle connections to
//! the API server: they may be dead. Facts are for logs and metrics.
//!
//! Invariants: at most one call in flight; the machine never creates a lease without its owner reference; it
//! renews an existing lease without an owner and tries to add the owner at each renewal; after at most
//! [`TRIES`] replacements in a row, twice, it pauses: no failure makes a hot loop. Upstream:
//! component-helpers/apimachinery/lease, pkg/kubelet/util/nodelease.go. Differences: the machine corrects
//! holder and duration of an existing lease; registration wakes the machine, so the lease exists at once.

mod object;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use agent_types::api::{ApiCall, ApiReply, ApiResult};
use agent_types::backoff::Backoff;
use agent_types::entropy::Entropy;
use agent_types::failure::Class;
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::coordination::v1::Lease;

/// Namespace of node leases.
pub const NAMESPACE: &str = "kube-node-lease";
/// Immediate tries to replace the lease.
pub const TRIES: u32 = 5;
/// Pauses after a failed GET or POST.
const BACKOFF: Backoff = Backoff::NODE_OBJECT;
/// Spread of the renewal period, percent.
const JITTER_PERCENT: u32 = 4;

/// Settings of the Lease and of its renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Name of the node, of the lease, and its holder.
    pub node_name: Arc<str>,
    /// `nodeLeaseDurationSeconds`; renewed every quarter of it.
    pub duration_s: u32,
    /// For the spread of renewals.
    pub seed: u64,
}

/// What the machine reacts to.
#[derive(Clone, Debug)]
pub enum LeaseEvent {
    /// The Node object exists under this UID.
    Registered {
        /// `metadata.uid` of the Node.
        uid: String,
    },
    /// The answer to [`LeaseAction::Call`].
    Answered {
        /// Of the call.
        id: EffectId,
        /// Result of the call.
        result: ApiResult,
    },
    /// The deadline has passed.
    Tick,
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseAction {
    /// Send it; answer [`LeaseEvent::Answered`] exactly once.
    Call {
        /// Comes back with the answer.
        id: EffectId,
        /// What to send.
        call: ApiCall,
    },
    /// Renewals failed more than once in a row: drop idle connections to the API server.
    CloseConnections,
    /// For logs and metrics.
    Fact(LeaseFact),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseFact {
    /// The lease was created.
    Created,
    /// The lease was renewed.
    Renewed,
    /// A call failed; it is tried again.
    Failed {
        /// What failed and why.
        message: String,
    },
}

/// The call in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseCall {
    Get,
    GetOwner,
    Create,
    Renew,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct NodeLease {
    config: LeaseConfig,
    entropy: Entropy,
    last_id: u64,
    in_flight: Option<(EffectId, LeaseCall)>,
    next: Mono,
    /// As the API server had it last.
    latest: Option<Lease>,
    /// UID of the Node.
    owner: Option<String>,
    /// Failed replacements since the last GET.
    tries: u32,
    /// True once this round has read the lease from the API server.
    asked: bool,
    /// Failed GETs and POSTs in a row.
    failures: u32,
    /// When it was renewed or created last.
    renewed: Option<Mono>,
}

impl NodeLease {
    /// A machine without knowledge: the first tick reads the lease.
    #[must_use]
    pub fn new(config: LeaseConfig) -> NodeLease {
        NodeLease {
            entropy: Entropy::new(config.seed),
            config,
            last_id: 0,
            in_flight: None,
            next: Mono(0),
            latest: None,
            owner: None,
            tries: 0,
            asked: false,
            failures: 0,
            renewed: None,
        }
    }

    /// When the lease was renewed last; `None` before the first success.
    #[must_use]
    pub fn renewed(&self) -> Option<Mono> {
        self.renewed
    }

    fn call(&mut self, step: LeaseCall, call: ApiCall, out: &mut Outbox<LeaseAction>) {
        self.last_id += 1;
        let id = EffectId(self.last_id);
        self.in_flight = Some((id, step));
        out.push(LeaseAction::Call { id, call });
    }

    /// A new round: renews the known lease, or reads it.
    fn begin(&mut self, now: Now, out: &mut Outbox<LeaseAction>) {
        if self.latest.is_some() { self.prepare(now, out) } else { self.get(out) }
    }

    fn get(&mut self, out: &mut Outbox<LeaseAction>) {
        self.asked = true;
        self.call(LeaseCall::Get, ApiCall::GetLease { name: self.config.node_name.clone() }, out);
    }

    /// Create or renew, after finding the owner if it is needed and not known.
    fn prepare(&mut self, now: Now, out: &mut Outbox<LeaseAction>) {
        let has_owner = self.latest.as_ref().is_some_and(object::has_owner);
        if !has_owner && self.owner.is_none() {
            return self.call(
                LeaseCall::GetOwner,
                ApiCall::GetNode { name: self.config.node_name.clone() },
                out,
            );
        }
        self.send(now, out);
    }

    fn send(&mut self, now: Now, out: &mut Outbox<LeaseAction>) {
        let lease = object::renewed(&self.config, self.latest.as_ref(), self.owner.as_deref(), now.wall);
        if self.latest.is_some() {
            self.call(LeaseCall::Renew, ApiCall::ReplaceLease(Box::new(lease)), out);
        } else {
            self.call(LeaseCall::Create, ApiCall::CreateLease(Box::new(lease)), out);
        }
    }

    /// This round is over.
    fn rest(&mut self, now: Mono) {
        let period = Duration::from_millis(u64::from(self.config.duration_s) * 250);
        self.next = now.after(self.entropy.jittered(period.max(BACKOFF.first), JITTER_PERCENT));
        self.tries = 0;
        self.asked = false;
    }

    fn done(&mut self, lease: Lease, fact: LeaseFact, now: Mono, out: &mut Outbox<LeaseAction>) {
        self.latest = Some(lease);
        self.failures = 0;
        self.renewed = Some(now);
        self.rest(now);
        out.push(LeaseAction::Fact(fact));
    }

    /// A GET or POST failed: the pause before the next doubles.
    fn back_off(&mut self, now: Mono) {
        self.next = now.after(BACKOFF.next(self.failures));
        self.failures = self.failures.saturating_add(1);
    }

    fn answered(&mut self, step: LeaseCall, result: ApiResult, now: Now, out: &mut Outbox<LeaseAction>) {
        match (step, result) {
            (LeaseCall::Create, Ok(ApiReply::Lease(lease))) => {
                self.done(*lease, LeaseFact::Created, now.mono, out)
            }
            (LeaseCall::Renew, Ok(ApiReply::Lease(lease))) => {
                self.done(*lease, LeaseFact::Renewed, now.mono, out)
            }
            (LeaseCall::Get, Ok(ApiReply::Lease(lease))) => {
                self.failures = 0;
                self.latest = Some(*lease);
                self.prepare(now, out);
            }
            (LeaseCall::GetOwner, Ok(ApiReply::Node(node))) => {
                self.owner = node.metadata.uid.clone();
                self.owner_asked(now, out);
            }
            (step, Ok(other)) => {
                let message = format!("{step:?} of the node's lease was answered with {other:?}");
                out.push(LeaseAction::Fact(LeaseFact::Failed { message }));
                self.back_off(now.mono);
            }
            (LeaseCall::Get, Err(error)) if error.class == Class::NotFound => {
                self.latest = None;
                self.prepare(now, out);
            }
            (LeaseCall::Create, Err(error)) if error.class == Class::AlreadyExists && !self.asked_twice() => {
                self.get(out)
            }
            (step, Err(error)) => {
                out.push(LeaseAction::Fact(LeaseFact::Failed { message: error.to_string() }));
                match step {
                    LeaseCall::Renew => self.renewal_failed(error.class, now, out),
                    LeaseCall::GetOwner => self.owner_asked(now, out),
                    LeaseCall::Get | LeaseCall::Create => self.back_off(now.mono),
                }
            }
        }
    }

    /// Another client creates and deletes the lease as we look: count it as a failure.
    fn asked_twice(&mut self) -> bool {
        self.tries += 1;
        self.tries > 1
    }

    /// An existing lease is renewed without an owner; a new one is not created without.
    fn owner_asked(&mut self, now: Now, out: &mut Outbox<LeaseAction>) {
        if self.latest.is_some() || self.owner.is_some() { self.send(now, out) } else { self.rest(now.mono) }
    }

    fn renewal_failed(&mut self, class: Class, now: Now, out: &mut Outbox<LeaseAction>) {
        self.tries += 1;
        if self.tries > 1 && !matches!(class, Class::Conflict | Class::NotFound) {
            out.push(LeaseAction::CloseConnections);
        }
        if self.tries >= TRIES {
            self.latest = None;
            if self.asked {
                return self.rest(now.mono);
            }
            self.tries = 0;
            return self.get(out);
        }
        match class {
            Class::Conflict | Class::NotFound => self.get(out),
            _ => self.prepare(now, out),
        }
    }
}

impl Machine for NodeLease {
    type Event = LeaseEvent;
    type Action = LeaseAction;

    fn step(&mut self, now: Now, event: LeaseEvent, out: &mut Outbox<LeaseAction>) {
        match event {
            LeaseEvent::Registered { uid } => {
                if self.owner.as_ref() != Some(&uid) {
                    self.owner = Some(uid);
                    // Waiting for the node, not for the server: there is nothing to wait for any more.
                    if self.latest.is_none() && self.failures == 0 {
                        self.next = now.mono;
                    }
                }
            }
            LeaseEvent::Answered { id, result } => {
                if let Some((_, step)) = self.in_flight.take_if(|(flying, _)| *flying == id) {
                    self.answered(step, result, now, out);
                }
            }
            LeaseEvent::Tick => {}
        }
        if self.in_flight.is_none() && self.next <= now.mono {
            self.begin(now, out);
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.in_flight.is_none().then_some(self.next)
    }
}
