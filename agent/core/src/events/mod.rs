//! The event recorder: turns facts about pods, containers and the node into Event objects.
//!
//! # For the shell
//! One machine for a node that has an API server. Feed it [`RecorderEvent::Record`] (see [`Fact`]'s
//! constructors for a worker's facts, a rejection and node events), exactly one [`RecorderEvent::Answer`] for
//! each [`RecorderAction::Call`], and [`RecorderEvent::Tick`] at the deadline. The recorder drops and counts
//! facts that arrive faster than it can send them; no component waits for an event.
//!
//! In: facts. Out: POST and PATCH of events. Invariants: memory is bounded ([`QUEUE_MAX`], [`correlate`]'s
//! caches); writes about one event keep their order; a repeated fact raises a count; while the server does
//! not answer, the recorder probes it with one call at a time and keeps events in the bounded queue; an event
//! that the server refuses is not sent again. Upstream: client-go/tools/record.

pub mod correlate;
mod object;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use agent_types::api::retry::Retry;
use agent_types::api::{ApiCall, ApiError, ApiResult, ObjectName};
use agent_types::event::{ClaimId, EventFact, EventKind};
use agent_types::failure::Class;
use agent_types::ids::PodKey;
use agent_types::kill::EVICTED;
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::time::{Mono, Now};
use agent_types::token_bucket::TokenBucket;
use k8s_openapi::api::core::v1::Event;
use serde_json::json;

use correlate::Correlator;

use crate::admission::Rejection;
use crate::container_spec::dns;
use crate::eviction::Victim;
use crate::node_status::NodeEvent;
use crate::pod_source::storage::DuplicateName;

/// Writes that may wait at one time; further facts are dropped.
pub const QUEUE_MAX: usize = 1000;
/// Calls in flight at one time.
pub const CALLS_MAX: usize = 4;
/// Answers of a server in trouble (5xx, 429) after which an event is given up.
const TRIES_MAX: u32 = 12;
/// Longest message, bytes.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvolvedObject {
    /// A pod, or one container of it.
    Pod {
        /// Which; a static pod under its own UID.
        key: PodKey,
        /// `involvedObject.fieldPath`, for example `spec.containers{web}`.
        field_path: Option<String>,
        /// `involvedObject.resourceVersion`, if it is known.
        resource_version: Option<String>,
    },
    /// A claim.
    Claim {
        /// Its pod's.
        namespace: Arc<str>,
        /// Identity of the claim.
        claim: ClaimId,
    },
    /// This node.
    Node,
}

impl InvolvedObject {
    /// The whole pod, of a version that is not known.
    #[must_use]
    pub fn of_pod(key: &PodKey) -> InvolvedObject {
        InvolvedObject::Pod { key: key.clone(), field_path: None, resource_version: None }
    }
}

/// A fact to record as an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Object of the event.
    pub about: InvolvedObject,
    /// Severity.
    pub kind: EventKind,
    /// `reason` of the Event; upstream's reasons are in pkg/kubelet/events/event.go.
    pub reason: String,
    /// Message for people.
    pub message: String,
    /// For machines: annotations of the event.
    pub annotations: BTreeMap<String, String>,
}

impl Fact {
    /// A worker's fact about its pod.
    #[must_use]
    pub fn of_pod(key: &PodKey, fact: &EventFact) -> Fact {
        let (field_path, resource_version) = (fact.field_path(), fact.resource_version.clone());
        let about = InvolvedObject::Pod { key: key.clone(), field_path, resource_version };
        Fact {
            about,
            kind: fact.kind,
            reason: fact.reason.to_owned(),
            message: fact.message.clone(),
            annotations: BTreeMap::new(),
        }
    }

    /// The node's event that goes with a worker's fact: `clusterDNS` is missing.
    #[must_use]
    pub fn of_node_beside(fact: &EventFact) -> Option<Fact> {
        (fact.reason == dns::MISSING_CLUSTER_DNS)
            .then(|| Fact::of_node(fact.kind, fact.reason, dns::MISSING_CLUSTER_DNS_MESSAGE))
    }

    /// A claim's event that goes with a worker's fact.
    #[must_use]
    pub fn of_claim_beside(key: &PodKey, fact: &EventFact) -> Option<Fact> {
        let claim = fact.claim.clone()?;
        let about = InvolvedObject::Claim { namespace: key.namespace.clone(), claim };
        Some(Fact { about, ..Fact::of_pod(key, fact) })
    }

    /// That a pod was left out because another one has its name.
    #[must_use]
    pub fn left_out(duplicate: &DuplicateName) -> Fact {
        let (pod, name) = (&duplicate.pod, &duplicate.pod.name);
        let from = duplicate.source;
        Fact {
            about: InvolvedObject::of_pod(pod),
            kind: EventKind::Warning,
            reason: "FailedValidation".to_owned(),
            message: format!(
                "Error validating pod {pod} from {from} due to duplicate pod name {name:?}, ignoring"
            ),
            annotations: BTreeMap::new(),
        }
    }

    /// That admission refused a pod.
    #[must_use]
    pub fn rejected(key: &PodKey, rejection: &Rejection) -> Fact {
        Fact {
            about: InvolvedObject::of_pod(key),
            kind: EventKind::Warning,
            reason: rejection.reason.clone(),
            message: rejection.message.clone(),
            annotations: BTreeMap::new(),
        }
    }

    /// A pod is evicted because the node is short of something, or because the pod took too much.
    #[must_use]
    pub fn evicted(victim: &Victim) -> Fact {
        Fact {
            about: InvolvedObject::of_pod(&victim.key),
            kind: EventKind::Warning,
            reason: EVICTED.to_owned(),
            message: victim.message.clone(),
            annotations: victim.annotations.clone(),
        }
    }

    /// A change of the Node's status.
    #[must_use]
    pub fn of_node_event(event: NodeEvent) -> Fact {
        let kind = if event.warning { EventKind::Warning } else { EventKind::Normal };
        Fact::of_node(kind, event.reason, event.message)
    }

    /// Something about the node.
    #[must_use]
    pub fn of_node(kind: EventKind, reason: impl Into<String>, message: impl Into<String>) -> Fact {
        let (reason, message) = (reason.into(), message.into());
        Fact { about: InvolvedObject::Node, kind, reason, message, annotations: BTreeMap::new() }
    }
}

/// What the recorder reacts to.
#[derive(Clone, Debug)]
pub enum RecorderEvent {
    /// Record this fact as an event.
    Record(Fact),
    /// The answer to a call.
    Answer {
        /// Identifier from the action.
        id: EffectId,
        /// The answer.
        result: ApiResult,
    },
    /// The deadline has passed.
    Tick,
}

/// A request of the recorder to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum RecorderAction {
    /// Send this, answer [`RecorderEvent::Answer`].
    Call {
        /// To be sent back.
        id: EffectId,
        /// Call to the API server.
        call: ApiCall,
    },
    /// Report this in the log.
    Report(RecorderReport),
}

/// What people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecorderReport {
    /// Facts were dropped because too many waited; how many so far. Said at powers of two.
    Dropped(u64),
    /// An event was given up.
    Refused(ApiError),
}

/// One write that waits or is under way.
#[derive(Clone, Debug)]
struct Pending {
    key: u128,
    event: Event,
    /// PATCH of an event that was created before.
    update: bool,
    tries: u32,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Recorder {
    node_name: String,
    correlator: Correlator,
    queue: VecDeque<Pending>,
    flights: BTreeMap<EffectId, Pending>,
    gate: Retry,
    rate: TokenBucket,
    last_name_ns: i64,
    dropped: u64,
    next_id: u64,
    wake: Option<Mono>,
}

/// Events a second and at once, on average: `eventRecordQPS`, `eventBurst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// A second; 0 for no limit.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

impl Recorder {
    /// The recorder of `node_name`.
    #[must_use]
    pub fn new(node_name: impl Into<String>, rate: Rate) -> Recorder {
        let interval = match rate.per_second {
            0 => Duration::ZERO,
            n => Duration::from_secs(1) / n,
        };
        Recorder {
            node_name: node_name.into(),
            correlator: Correlator::default(),
            queue: VecDeque::new(),
            flights: BTreeMap::new(),
            gate: Retry::default(),
            rate: TokenBucket::new(interval, rate.burst.max(1)),
            last_name_ns: 0,
            dropped: 0,
            next_id: 0,
            wake: None,
        }
    }

    /// Facts that were dropped because too many waited.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes that wait, at most [`QUEUE_MAX`] (checker BOUNDED).
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn record(&mut self, fact: Fact, now: Now, out: &mut Outbox<RecorderAction>) {
        // Two events of one moment must not have one name.
        self.last_name_ns = now.wall.0.max(self.last_name_ns.saturating_add(1));
        let event = object::event(fact, &self.node_name, now.wall, self.last_name_ns);
        let Some((key, event)) = self.correlator.correlate(event, now) else { return };
        let update = event.count.unwrap_or(1) > 1;
        if let Some(waiting) = self.queue.iter_mut().find(|p| p.key == key) {
            waiting.event = event;
        } else if self.queue.len() < QUEUE_MAX {
            self.queue.push_back(Pending { key, event, update, tries: 0 });
        } else {
            self.correlator.forget(key);
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                out.push(RecorderAction::Report(RecorderReport::Dropped(self.dropped)));
            }
        }
    }

    fn answered(&mut self, id: EffectId, result: ApiResult, now: Now, out: &mut Outbox<RecorderAction>) {
        let Some(mut pending) = self.flights.remove(&id) else { return };
        let Err(error) = result else {
            self.gate.succeeded();
            return;
        };
        match error.class {
            Class::Unavailable | Class::Interrupted | Class::DeadlineExceeded | Class::Retryable { .. } => {
                self.gate.failed(now.mono, error.class, "events");
                // No server answered: the event keeps its place. An answer from a server in trouble
                // counts as a try.
                pending.tries += u32::from(error.code.is_some());
                if pending.tries < TRIES_MAX {
                    self.requeue(pending);
                } else {
                    out.push(RecorderAction::Report(RecorderReport::Refused(error)));
                }
                return;
            }
            // It expired in the API: create it again, with its count.
            Class::NotFound if pending.update => {
                pending.update = false;
                self.requeue(pending);
            }
            // An answer to an earlier try was lost.
            Class::AlreadyExists => {}
            _ => out.push(RecorderAction::Report(RecorderReport::Refused(error))),
        }
        self.gate.succeeded();
    }

    /// Back to the front of the queue; later writes about the same event are newer.
    fn requeue(&mut self, pending: Pending) {
        if let Some(newer) = self.queue.iter_mut().find(|p| p.key == pending.key) {
            newer.update = pending.update;
            newer.tries = pending.tries;
        } else {
            self.queue.push_front(pending);
        }
    }

    /// The time of the next token, unless there is one now.
    fn no_token_until(&self, now: Mono) -> Option<Mono> {
        let wait = self.rate.wait(now);
        (!wait.is_zero()).then(|| now.after(wait))
    }

    fn advance(&mut self, now: Now, out: &mut Outbox<RecorderAction>) {
        self.wake = None;
        let limit = if self.gate.failures() > 0 { 1 } else { CALLS_MAX };
        while self.flights.len() < limit {
            let free = |p: &Pending| !self.flights.values().any(|f| f.key == p.key);
            let Some(next) = self.queue.iter().position(free) else { return };
            let until = self.gate.held(now.mono).or_else(|| self.no_token_until(now.mono));
            if let Some(until) = until {
                self.wake = Some(until);
                return;
            }
            let Some(pending) = self.queue.remove(next) else { return };
            if self.queue.is_empty() {
                // What a burst needed is not kept.
                self.queue = VecDeque::new();
            }
            self.rate.take(now.mono);
            let id = EffectId(self.next_id);
            self.next_id += 1;
            out.push(RecorderAction::Call { id, call: call(&pending) });
            self.flights.insert(id, pending);
        }
    }
}

fn call(pending: &Pending) -> ApiCall {
    let event = &pending.event;
    if !pending.update {
        return ApiCall::CreateEvent(Box::new(event.clone()));
    }
    let text = |t: Option<&String>| t.map_or("", String::as_str).into();
    let name = ObjectName {
        namespace: text(event.metadata.namespace.as_ref()),
        name: text(event.metadata.name.as_ref()),
    };
    let patch = json!({
        "count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message,
    });
    ApiCall::PatchEvent { event: name, patch }
}

impl Machine for Recorder {
    type Event = RecorderEvent;
    type Action = RecorderAction;

    fn step(&mut self, now: Now, event: RecorderEvent, out: &mut Outbox<RecorderAction>) {
        match event {
            RecorderEvent::Record(fact) => self.record(fact, now, out),
            RecorderEvent::Answer { id, result } => self.answered(id, result, now, out),
            RecorderEvent::Tick => {}
        }
        self.advance(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.wake
    }
}
