//! Pods with resource claims: the real owner of claims, with DRA drivers that are slow, fail and hang, claims that pods share, and
//! claims that get their names late.
//!
//! In: random numbers of its own, so that other runs do not change. Out: answers to effects on claims; the checkers. CLAIM-PREPARED: a
//! pod has a sandbox and running containers only if its drivers have prepared its claims. CLAIM-HELD: no claim is unprepared while a
//! container that uses it runs. CLAIM-TURN: of one agent's calls at most one at a time works on a claim. LEAK: after the end of its pods
//! no driver holds a claim, and no reference is left. The owner ends with the agent; its checkpoint and the drivers do not. Upstream:
//! pkg/kubelet/cm/dra.

mod drivers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult};
use agent_core::resource_claims::ResourceClaims;
use agent_core::resource_claims::api::{ClaimAction, ClaimEvent, ClaimGates};
use agent_types::failure::Class;
use agent_types::ids::{PodKey, PodUid};
use agent_types::machine::{Machine, Outbox};
use agent_types::pod;
use agent_types::runtime::claims::PodClaims;
use agent_types::runtime::observed::ContainerState;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use serde_json::{Value, json};

use crate::calls::{Ask, Call, CallAnswer};
use crate::cluster::NODE;
use crate::defects::Defect;
use crate::fake_api::resource::text;
use crate::node::{Node, NodeEvent};
use crate::rng::Rng;
use crate::world::{Event, World};

use drivers::Drivers;

/// Number of names of claims; few, so that pods share claims.
const NAMES: u64 = 4;
/// Time between two checks for claims of pods that are not active, seconds.
const RECONCILE_S: u64 = 60;
const GATES: ClaimGates = ClaimGates { health: true, health_message: true, workload_claims: false };

/// Events between the owner of claims, the API server, the drivers and the disk.
#[derive(Clone, Debug)]
pub(crate) enum ClaimNews {
    /// An event reaches the owner.
    Tell(ClaimEvent),
    /// A call reaches its driver.
    Call(drivers::DriverCall),
    /// A driver's answer reaches the owner.
    Answered(ClaimEvent),
    /// The checkpoint is on disk.
    Written(String),
    /// The time limit of an effect has passed.
    TimedOut(u64),
    /// The owner's deadline has come.
    Tick,
}

/// State of a run with resource claims.
#[derive(Debug)]
pub(crate) struct Claims {
    rng: Rng,
    /// The owner in the agent; `None` while the agent is down.
    owner: Option<ResourceClaims>,
    /// The owner's checkpoint on disk.
    checkpoint: Option<String>,
    /// Effects that wait for the owner's answer.
    asks: BTreeMap<u64, Call>,
    last_ask: u64,
    /// Time of the owner's timer.
    armed: Option<Mono>,
    drivers: Drivers,
    /// Claims that each pod uses.
    planned: BTreeMap<PodUid, BTreeSet<String>>,
    seconds: u64,
    calm: bool,
}

/// Name of the claim that the controller creates for an entry of a pod.
fn made_for(uid: &str, entry: &str) -> String {
    format!("made-{uid}-{entry}")
}

impl Claims {
    fn missing_of(&self, uid: &PodUid) -> Option<&String> {
        self.planned.get(uid)?.iter().find(|claim| !self.drivers.held.contains(*claim))
    }

    /// The claim in the API: allocated, and reserved for all pods that use it.
    fn object(&self, name: &str) -> Result<ClaimEventAnswer, String> {
        let users: Vec<&PodUid> =
            self.planned.iter().filter(|(_, claims)| claims.contains(name)).map(|(uid, _)| uid).collect();
        let reserved: Vec<Value> =
            users.iter().map(|uid| json!({ "resource": "pods", "name": "p", "uid": uid.as_str() })).collect();
        let made = name.starts_with("made-");
        let owners: Vec<Value> = users
            .iter()
            .filter(|_| made)
            .map(|uid| json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid.as_str(), "controller": true }))
            .collect();
        let result =
            json!({ "request": "r", "driver": drivers::driver_of(name), "pool": "pool", "device": name });
        let claim = json!({
            "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}"), "ownerReferences": owners },
            "spec": {},
            "status": { "reservedFor": reserved, "allocation": { "devices": { "results": [result] } } },
        });
        serde_json::from_value(claim).map(Arc::new).map_err(|e| e.to_string())
    }
}

type ClaimEventAnswer = Arc<k8s_openapi::api::resource::v1::ResourceClaim>;

impl World {
    /// From now on pods have resource claims.
    pub(crate) fn claim_devices(&mut self, seed: u64) {
        self.claims = Some(Box::new(Claims {
            rng: Rng::new(seed ^ 0x0D2A),
            owner: None,
            checkpoint: None,
            asks: BTreeMap::new(),
            last_ask: 0,
            armed: None,
            drivers: Drivers::default(),
            planned: BTreeMap::new(),
            seconds: 0,
            calm: false,
        }));
    }

    /// Makes a new pod use claims, if this run has them. Only the API has the names of claims that are created from templates.
    pub(crate) fn give_claims(&mut self, pod: &mut Value, is_static: bool) {
        let Some(claims) = &mut self.claims else { return };
        if !claims.rng.chance(700) {
            return;
        }
        let mut entries = Vec::new();
        for number in 0..claims.rng.between(1, 2) {
            let name = format!("r{number}");
            let of_template = !is_static && claims.rng.chance(400);
            let shared = format!("c{}", claims.rng.below(NAMES));
            entries.push(match of_template {
                true => json!({ "name": name, "resourceClaimTemplateName": "t" }),
                false => json!({ "name": name, "resourceClaimName": shared }),
            });
        }
        for list in ["/spec/containers", "/spec/initContainers"] {
            for container in pod.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                if claims.rng.chance(600) && container.get("resources").is_none() {
                    container["resources"] = json!({ "claims": [{ "name": "r0" }] });
                }
            }
        }
        pod["spec"]["resourceClaims"] = json!(entries);
    }

    /// A pod was created.
    pub(crate) fn claims_planned(&mut self, p: &Pod) {
        let Some(claims) = &mut self.claims else { return };
        let uid = pod::uid(p);
        let entries = pod::spec(p).resource_claims.iter().flatten();
        let name = |entry: &PodResourceClaim| {
            entry.resource_claim_name.clone().unwrap_or_else(|| made_for(uid, &entry.name))
        };
        claims.planned.insert(PodUid::from(uid), entries.map(name).collect());
    }

    /// No driver fails any more.
    pub(crate) fn calm_claims(&mut self) {
        if let Some(claims) = &mut self.claims {
            claims.calm = true;
        }
    }

    /// The agent died, and its owner of claims is gone.
    pub(crate) fn forget_claims(&mut self) {
        if let Some(claims) = &mut self.claims {
            (claims.owner, claims.armed) = (None, None);
            claims.asks.clear();
        }
    }

    /// The agent starts: the owner reads its checkpoint, and the drivers register.
    pub(crate) fn start_claims(&mut self) {
        let now = self.now();
        let Some(claims) = &mut self.claims else { return };
        match ResourceClaims::restore(GATES, claims.checkpoint.as_deref(), None, now) {
            Ok(owner) => claims.owner = Some(owner),
            Err(e) => {
                return self.checks.report("CLAIM-PREPARED", format!("the checkpoint cannot be read: {e}"));
            }
        }
        let registrations = claims.drivers.register(&mut claims.rng, claims.calm);
        for (after, event) in registrations {
            self.claim_news(after, ClaimNews::Tell(event));
        }
        self.tell_claims(ClaimEvent::Tick);
    }

    fn claim_news(&mut self, after: Duration, news: ClaimNews) {
        self.queue.after(after, Event::Claims { incarnation: self.incarnation, news });
    }

    pub(crate) fn claims_event(&mut self, incarnation: u32, news: ClaimNews) {
        let is_dead = incarnation != self.incarnation;
        match news {
            // A driver does not notice that its caller has died.
            ClaimNews::Call(call) if is_dead => {
                if let Some(claims) = &mut self.claims {
                    claims.drivers.serve_dead(&call);
                }
            }
            _ if is_dead => {}
            ClaimNews::Tell(event) => self.tell_claims(event),
            ClaimNews::Call(call) => self.serve_driver(call),
            ClaimNews::Answered(event) => {
                if let Some(claims) = &mut self.claims {
                    claims.drivers.note_answer(&event);
                }
                self.tell_claims(event);
            }
            ClaimNews::Written(text) => {
                if let Some(claims) = &mut self.claims {
                    claims.checkpoint = Some(text);
                }
                self.tell_claims(ClaimEvent::Written(Ok(())));
            }
            ClaimNews::TimedOut(ask) => {
                if let Some(call) = self.claims.as_mut().and_then(|claims| claims.asks.remove(&ask)) {
                    self.time_out(call);
                }
            }
            ClaimNews::Tick => {
                let now = self.queue.now();
                let due = self.claims.as_mut().and_then(|claims| claims.armed.take_if(|at| *at <= now));
                if due.is_some() {
                    self.tell_claims(ClaimEvent::Tick);
                }
            }
        }
    }

    fn serve_driver(&mut self, call: drivers::DriverCall) {
        let Some(claims) = &mut self.claims else { return };
        let served = claims.drivers.serve(&call);
        let gone = served.gone.clone();
        let planned = &claims.planned;
        let uses =
            |uid: &PodUid| planned.get(uid).is_some_and(|of| gone.iter().any(|claim| of.contains(claim)));
        let mut running =
            self.runtime.containers.values().filter(|c| c.observed.state == ContainerState::Running);
        if let Some(c) = running.find(|c| uses(&c.pod.uid)) {
            let text = format!("{gone:?} is given back while {} of {} runs", c.observed.id, c.pod);
            self.checks.report("CLAIM-HELD", text);
        }
        self.claim_news(served.answers_after, ClaimNews::Answered(served.answer));
    }

    fn tell_claims(&mut self, event: ClaimEvent) {
        let now = self.now();
        let Some(owner) = self.claims.as_mut().and_then(|claims| claims.owner.as_mut()) else { return };
        let mut actions = Outbox::new();
        owner.step(now, event, &mut actions);
        let incarnation = self.incarnation;
        for action in actions.drain() {
            self.act_on_claims(action);
            if incarnation != self.incarnation {
                return;
            }
        }
        self.arm_claims();
    }

    fn arm_claims(&mut self) {
        let now = self.queue.now();
        let Some(claims) = &mut self.claims else { return };
        let Some(at) = claims.owner.as_ref().and_then(Machine::deadline) else { return };
        let at = at.max(now);
        if claims.armed.is_none_or(|armed| at < armed) {
            claims.armed = Some(at);
            self.queue.at(at, Event::Claims { incarnation: self.incarnation, news: ClaimNews::Tick });
        }
    }

    fn act_on_claims(&mut self, action: ClaimAction) {
        let Some(claims) = &mut self.claims else { return };
        let soon = Duration::from_millis(claims.rng.between(1, 300));
        match action {
            ClaimAction::Fetch { fetch, name, .. } => {
                let fails = !claims.calm && claims.rng.chance(100);
                let answer = if fails { Err("injected".to_owned()) } else { claims.object(&name) };
                self.claim_news(soon, ClaimNews::Tell(ClaimEvent::Fetched { fetch, answer }));
            }
            ClaimAction::Call { call, method, claims: asked, .. } => {
                if let Some(claim) = claims.drivers.note_call(call, &asked) {
                    let text = format!("call {call} works on {claim}, an earlier call still does");
                    self.checks.report("CLAIM-TURN", text);
                }
                if self.defect == Some(Defect::EndsTurnsEarly) {
                    let answer = Err("rpc error: code = Unavailable desc = injected".to_owned());
                    let early = ClaimNews::Tell(ClaimEvent::Called { call, answer });
                    self.queue.after(soon, Event::Claims { incarnation: self.incarnation, news: early });
                }
                let (after, call) = claims.drivers.send(&mut claims.rng, claims.calm, (call, method, asked));
                self.claim_news(after, ClaimNews::Call(call));
            }
            ClaimAction::Write(text) => self.claim_news(soon, ClaimNews::Written(text)),
            ClaimAction::Answer { ask, answer } => {
                let Some(call) = claims.asks.remove(&ask) else { return };
                let result = answer.map(|claims| answered(&call, claims));
                let error = |message| EffectError { class: Class::Retryable { after_ms: 0 }, message };
                self.answer_claims(call, result.map_err(error));
            }
            ClaimAction::NotGivenBack { .. } => {}
            ClaimAction::Changed { uid, claims } => self.tell(NodeEvent::Claims(uid, Arc::new(claims))),
            ClaimAction::WriteHealth(_) | ClaimAction::DeleteSlices { .. } => {}
        }
    }

    /// The owner answers an effect; the agent may die before it receives the answer.
    fn answer_claims(&mut self, call: Call, result: EffectResult) {
        if call.ask.mutates() && self.rng.chance(self.faults.crash_before_ack) {
            return self.crash();
        }
        if call.ask.mutates() && self.rng.chance(self.faults.reply_lost) {
            return self.time_out(call);
        }
        let answer = Box::new(CallAnswer::Worker(result));
        self.queue.after(Duration::from_millis(1), Event::Answer(call, answer));
    }

    /// Passes an effect on claims to their owner. False if the effect does not concern claims.
    pub(crate) fn ask_claims(&mut self, call: &Call) -> bool {
        let Ask::Effect { key, effect, .. } = &call.ask else { return false };
        let Some(claims) = &mut self.claims else { return false };
        claims.last_ask += 1;
        let ask = claims.last_ask;
        let event = match effect {
            Effect::PrepareClaims { .. } if self.defect == Some(Defect::PreparesNothing) => None,
            Effect::UnprepareClaims if self.defect == Some(Defect::KeepsClaims) => None,
            Effect::PrepareClaims { claims } => {
                Some(ClaimEvent::Prepare { ask, pod: Arc::new((**claims).clone()) })
            }
            Effect::FindClaims { claims } => {
                Some(ClaimEvent::Find { ask, pod: Arc::new((**claims).clone()) })
            }
            Effect::UnprepareClaims => Some(ClaimEvent::Unprepare { ask, uid: key.uid.clone() }),
            _ => return false,
        };
        let Some(event) = event else {
            let result = Ok(answered(call, PodClaims::default()));
            self.answer_claims(call.clone(), result);
            return true;
        };
        claims.asks.insert(ask, call.clone());
        if let Some(deadline) = call.deadline {
            let news = ClaimNews::TimedOut(ask);
            self.queue.at(deadline, Event::Claims { incarnation: self.incarnation, news });
        }
        self.tell_claims(event);
        true
    }

    /// Actions of controllers, of drivers and of the owner's shell that need no event, once a second.
    pub(crate) fn claims_second(&mut self) {
        let Some(claims) = &mut self.claims else { return };
        claims.seconds += 1;
        let reconciles =
            claims.seconds.is_multiple_of(RECONCILE_S) && self.defect != Some(Defect::KeepsClaims);
        let news = if claims.calm { Vec::new() } else { claims.drivers.misbehave(&mut claims.rng) };
        for (after, event) in news {
            self.claim_news(after, ClaimNews::Tell(event));
        }
        self.name_claims();
        if reconciles && let Some(active) = self.node.as_ref().and_then(Node::active) {
            self.tell_claims(ClaimEvent::ActivePods(active));
        }
    }

    /// The controller that makes claims from templates writes their names into the pods' statuses.
    fn name_claims(&mut self) {
        let nameless = |pod: &Value| {
            let made = |entry: &Value| entry.get("resourceClaimTemplateName").is_some();
            let entries = pod.pointer("/spec/resourceClaims").and_then(Value::as_array);
            text(pod, "/spec/nodeName") == NODE
                && pod.pointer("/status/resourceClaimStatuses").is_none()
                && entries.is_some_and(|entries| entries.iter().any(made))
        };
        for pod in self.pods_where(nameless) {
            if !self.claims.as_mut().is_some_and(|claims| claims.rng.chance(300)) {
                continue;
            }
            let uid = text(&pod, "/metadata/uid").to_owned();
            let entries = pod.pointer("/spec/resourceClaims").and_then(Value::as_array);
            let made = entries
                .into_iter()
                .flatten()
                .filter(|entry| entry.get("resourceClaimTemplateName").is_some());
            let made: Vec<Value> = made
                .map(|entry| {
                    json!({ "name": entry["name"], "resourceClaimName": made_for(&uid, text(entry, "/name")) })
                })
                .collect();
            self.patch_status(&pod, json!({ "resourceClaimStatuses": made }));
        }
    }

    /// CLAIM-PREPARED: a sandbox is created only if the pod's claims are prepared.
    pub(crate) fn wants_claims(&mut self, key: &PodKey, effect: &Effect) {
        let missing = self.claims.as_ref().and_then(|claims| claims.missing_of(&key.uid));
        if let (Effect::RunSandbox { .. }, Some(claim)) = (effect, missing) {
            let text = format!("a sandbox of {key} is made, claim {claim} is not prepared");
            self.checks.report("CLAIM-PREPARED", text);
        }
    }

    /// Checks CLAIM-PREPARED after each event.
    pub(crate) fn look_at_claims(&mut self) {
        let Some(claims) = &self.claims else { return };
        let running =
            self.runtime.containers.values().filter(|c| c.observed.state == ContainerState::Running);
        let mut without = running.filter_map(|c| Some((c, claims.missing_of(&c.pod.uid)?)));
        if let Some((c, claim)) = without.next() {
            let text = format!("{} of {} runs, claim {claim} is not prepared", c.observed.id, c.pod);
            self.checks.report("CLAIM-PREPARED", text);
        }
    }

    /// Number of references to claims and of claims that drivers hold, for leak checks.
    pub(crate) fn claims_left(&self) -> usize {
        let left = |claims: &Claims| {
            let referenced = claims.owner.as_ref().is_some_and(ResourceClaims::has_references);
            claims.drivers.held.len() + usize::from(referenced)
        };
        self.claims.as_deref().map_or(0, left)
    }
}

/// The result of an effect on claims.
fn answered(call: &Call, claims: PodClaims) -> EffectOk {
    match &call.ask {
        Ask::Effect { effect: Effect::UnprepareClaims, .. } => EffectOk::Done,
        _ => EffectOk::Claims(Box::new(claims)),
    }
}
