//! Calls of the agent on their way to the API server and back, with all faults.
//!
//! ```text
//! send ─► (lost, refused) │ arrive ─► applied ─► (agent dies, answer lost) │ answer ─► (agent dies) │ machine
//! ```
//! In: an [`ApiCall`]. Out: the changed server, and exactly one answer to an agent that stays alive. Invariant: no
//! answer comes after the driver's time limit; a call that was given up may still be applied.

use std::fmt;
use std::time::Duration;

use agent_types::api::{ApiCall, ApiError, ApiResult};
use agent_types::failure::Class;
use agent_types::machine::EffectId;
use agent_types::time::Mono;

use crate::api_watch::{WatchDelivery, WatchKind};
use crate::cluster::{NODE, Owner};
use crate::fake_api::{Key, Requester, Resource, Status};
use crate::node::NodeEvent;
use crate::trace::brief_call;
use crate::world::{Event, World};

/// Time limit of the driver for one call.
const LIMIT: Duration = Duration::from_secs(10);
/// A call whose caller gave up is applied at most this much later, milliseconds.
const LATE_MS_MAX: u64 = 20_000;

/// A call under way.
#[derive(Clone)]
pub(crate) struct ApiFlight {
    pub(crate) incarnation: u32,
    pub(crate) owner: Owner,
    pub(crate) id: EffectId,
    pub(crate) call: ApiCall,
    pub(crate) limit: Mono,
}

/// Events between the agent and the API server.
#[derive(Clone)]
pub(crate) enum ApiEvent {
    /// A call reaches the server.
    Arrive(ApiFlight),
    /// An answer reaches the agent.
    Answer(ApiFlight, Box<ApiResult>),
    /// A watch event reaches the agent.
    Heard { incarnation: u32, heard: WatchDelivery },
    /// The driver opens a watch, at a version or with a list.
    Watch { incarnation: u32, which: WatchKind, from: Option<u64> },
    /// The scheduler binds a pod.
    Bind(Key),
}

impl fmt::Debug for ApiEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiEvent::Arrive(flight) => {
                write!(f, "api: {} of {:?} #{} arrives", brief_call(&flight.call), flight.owner, flight.id.0)
            }
            ApiEvent::Answer(flight, result) => {
                let call = flight.call.describe();
                match &**result {
                    Ok(_) => write!(f, "api: {call}: ok"),
                    Err(e) => write!(f, "api: {call}: {:?} {}", e.class, e.message),
                }
            }
            ApiEvent::Heard { heard, .. } => write!(f, "api: {heard:?}"),
            ApiEvent::Watch { which, from, .. } => write!(f, "api: watch {which:?} from {from:?}"),
            ApiEvent::Bind(key) => write!(f, "api: bind {key}"),
        }
    }
}

fn changes_something(call: &ApiCall) -> bool {
    !matches!(
        call,
        ApiCall::GetNode { .. } | ApiCall::FindPod { .. } | ApiCall::GetLease { .. } | ApiCall::GetCsr { .. }
    )
}

impl World {
    pub(crate) fn send_call(&mut self, owner: Owner, id: EffectId, call: ApiCall) {
        let now = self.queue.now();
        let faults = self.faults.api.clone();
        let Some(api) = &mut self.api else { return };
        api.pod_calls += u64::from(matches!(owner, Owner::Status | Owner::Mirrors));
        let (reachable, dead) = (api.is_reachable(), api.dead_until.is_some());
        let asked = api.checks.asked(&call);
        self.checks.note(now, &asked);
        let flight = ApiFlight { incarnation: self.incarnation, owner, id, call, limit: now.after(LIMIT) };
        let latency = self.rng.between(1, 20) + self.rng.below(faults.slow_ms_max + 1);
        let arrives = now.after(Duration::from_millis(latency));
        let mutates = changes_something(&flight.call);
        if dead || (!reachable && self.rng.chance(500)) {
            self.no_answer(flight);
        } else if !reachable {
            let refused = ApiError::without_status(&flight.call, Class::Unavailable, "connection refused");
            self.answer_call_at(arrives, flight, Err(refused));
        } else if self.rng.chance(faults.refused) {
            let status = self.refusal();
            let refused = status.for_call(&flight.call);
            self.answer_call_at(arrives, flight, Err(refused));
        } else if self.rng.chance(faults.call_lost) {
            self.no_answer(flight);
        } else if arrives >= flight.limit || self.rng.chance(faults.late) {
            let late = flight.limit.after(Duration::from_millis(self.rng.below(LATE_MS_MAX)));
            self.queue.at(late, Event::Api(ApiEvent::Arrive(flight.clone())));
            self.no_answer(flight);
        } else {
            self.queue.at(arrives, Event::Api(ApiEvent::Arrive(flight)));
        }
        if mutates && self.rng.chance(self.faults.crash_before_apply / 8) {
            self.crash();
        }
    }

    fn refusal(&mut self) -> Status {
        let of = |code: u16, reason: &'static str| Status {
            code,
            reason,
            message: "injected".to_owned(),
            retry_after_s: None,
        };
        match self.rng.below(4) {
            0 => Status::too_many_requests(u32::try_from(self.rng.between(1, 5)).unwrap_or(1)),
            1 => Status::internal("injected"),
            2 => of(503, "ServiceUnavailable"),
            _ => of(504, "Timeout"),
        }
    }

    fn no_answer(&mut self, flight: ApiFlight) {
        let refused = ApiError::without_status(&flight.call, Class::DeadlineExceeded, "no answer in time");
        self.answer_call_at(flight.limit, flight, Err(refused));
    }

    fn answer_call_at(&mut self, at: Mono, flight: ApiFlight, result: ApiResult) {
        let at = at.min(flight.limit);
        self.queue.at(at, Event::Api(ApiEvent::Answer(flight, Box::new(result))));
    }

    /// Processes an event between the agent and the API server.
    pub(crate) fn api_event(&mut self, event: ApiEvent) {
        match event {
            ApiEvent::Arrive(flight) => self.arrive(flight),
            ApiEvent::Answer(flight, result) => self.call_answered(flight, result),
            ApiEvent::Heard { incarnation, heard } if incarnation == self.incarnation => {
                self.tell(NodeEvent::Heard(heard));
            }
            ApiEvent::Watch { incarnation, which, from } if incarnation == self.incarnation => {
                self.try_watch(which, from);
            }
            ApiEvent::Heard { .. } | ApiEvent::Watch { .. } => {}
            ApiEvent::Bind(key) => {
                self.disturb();
                // The pod may be gone or bound by now.
                self.on_server(|server, now| server.bind(now, &key, NODE));
            }
        }
    }

    fn arrive(&mut self, flight: ApiFlight) {
        let wall = self.now().wall;
        let Some(api) = &mut self.api else { return };
        let result = api.server.call(wall, &Requester::Node(NODE.to_owned()), &flight.call);
        self.server_changed(Some(&flight.call));
        if let (ApiCall::PatchPodStatus { pod, .. }, Ok(_)) = (&flight.call, &result) {
            self.look_at_told(pod);
        }
        let now = self.queue.now();
        if flight.incarnation != self.incarnation || now >= flight.limit {
            return; // The agent that waited for the answer is dead.
        }
        if changes_something(&flight.call) && self.rng.chance(self.faults.crash_before_ack / 8) {
            return self.crash();
        }
        if self.rng.chance(self.faults.api.answer_lost) {
            return match self.rng.below(3) {
                0 => self.no_answer(flight),
                kind => {
                    let code = if kind == 1 { 500 } else { 504 };
                    let status = Status { code, ..Status::internal("injected after the fact") };
                    let refused = status.for_call(&flight.call);
                    self.answer_call_at(now.after(Duration::from_millis(3)), flight, Err(refused));
                }
            };
        }
        let back = now.after(Duration::from_millis(self.rng.between(1, 5)));
        self.answer_call_at(back, flight, result);
    }

    fn call_answered(&mut self, flight: ApiFlight, result: Box<ApiResult>) {
        if flight.incarnation != self.incarnation {
            return;
        }
        if changes_something(&flight.call) && self.rng.chance(self.faults.crash_before_process / 8) {
            return self.crash();
        }
        self.tell(NodeEvent::ApiReply { owner: flight.owner, id: flight.id, result });
    }

    /// The node has a static pod of this name: its mirror pod is the node's own object.
    pub(crate) fn owns(&mut self, namespace: &str, name: &str) {
        if let Some(api) = &mut self.api {
            api.checks.owns(namespace, name);
        }
    }

    /// Key of the Node object, of its lease, or of a pod.
    #[must_use]
    pub fn stored(&self, resource: Resource, namespace: &str, name: &str) -> Option<&serde_json::Value> {
        let api = self.api.as_ref()?;
        api.server.object(&Key::new(resource, namespace, name)).map(|object| &**object)
    }
}
