//! The machine: registers, then compares the actual state with the API server's in every cycle.
//!
//! `Unregistered` ─create→ (exists? ─get→ ─patch→) `Registered` ─ compute, patch, compute, … ─ deleted →
//! `Unregistered`.

use std::sync::Arc;
use std::time::Duration;

use agent_types::api::{ApiCall, ApiError, ApiReply, ApiResult, WatchEvent};
use agent_types::backoff::Backoff;
use agent_types::entropy::Entropy;
use agent_types::failure::Class;
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Node;

use super::inputs::{Inputs, NodeInput};
use super::setters::{self, Notes};
use super::{
    NodeEvent, NodeFact, NodeStatusAction, NodeStatusConfig, NodeStatusEvent, conditions, object, patch,
};

/// Tries in one cycle.
const TRIES: u32 = 5;
/// Pauses between tries to register.
const BACKOFF: Backoff = Backoff::NODE_OBJECT;
/// Spread of the cycle, percent.
const JITTER_PERCENT: u32 = 4;
/// Registration waits this long for the first inputs.
const FIRST_INPUTS_MAX: Duration = Duration::from_secs(1);
/// Longest wait of a registration of an existing Node, from its first event, for the state of its CSINode:
/// otherwise it would be not ready for a moment.
const STORAGE_MAX: Duration = Duration::from_secs(3);
/// What cannot wait for the cycle is reported at most this often.
const PROMPT_PERIOD: Duration = Duration::from_secs(1);

/// Reason of a call, and its facts after success.
#[derive(Clone, Debug)]
enum NodeStatusCall {
    Create(Notes),
    /// The Node exists, or creating is forbidden: the error to show if there is none.
    GetExisting(ApiError),
    Reconcile(Notes),
    /// Is it still there?
    Get,
    Patch(Notes),
}

/// The machine; see the module.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    config: NodeStatusConfig,
    entropy: Entropy,
    inputs: Inputs,
    last_id: u64,
    in_flight: Option<(EffectId, NodeStatusCall)>,
    started: Option<Mono>,
    registered: bool,
    /// As the API server has it.
    known: Option<Arc<Node>>,
    /// Before registration: the Node that the watch shows.
    found: Option<Arc<Node>>,
    /// Time of the watch's first list.
    listed: Option<Mono>,
    /// The next cycle.
    next: Mono,
    /// Nothing is sent before.
    earliest: Mono,
    /// Failed tries to register in a row.
    failures: u32,
    /// Failed tries in this cycle.
    tries: u32,
    /// The known Node may be out of date: read it first.
    doubt: bool,
    /// Something may be urgent: compare before the next cycle.
    look: bool,
    reported: Option<Mono>,
    /// Time from the last report to the next, changed or not.
    report_after: Duration,
    pod_cidrs: Vec<String>,
    unschedulable: bool,
    reboot_said: bool,
    problems: Vec<String>,
}

impl NodeStatus {
    /// Nothing known: the first tick starts the work.
    #[must_use]
    pub fn new(config: NodeStatusConfig) -> NodeStatus {
        NodeStatus {
            entropy: Entropy::new(config.seed),
            inputs: Inputs::default(),
            last_id: 0,
            in_flight: None,
            started: None,
            registered: !config.register,
            known: None,
            found: None,
            listed: None,
            next: Mono(0),
            earliest: Mono(0),
            failures: 0,
            tries: 0,
            doubt: false,
            look: false,
            reported: None,
            report_after: config.report_period,
            pod_cidrs: Vec::new(),
            unschedulable: false,
            reboot_said: false,
            problems: Vec::new(),
            config,
        }
    }

    /// The Node as the API server had it last.
    #[must_use]
    pub fn known(&self) -> Option<&Arc<Node>> {
        self.known.as_ref()
    }

    /// True once the API server has a Ready Node.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.registered
            && self.known.as_ref().is_some_and(|n| conditions::status_of(n, "Ready") == Some(true))
    }

    fn call(&mut self, step: NodeStatusCall, call: ApiCall, out: &mut Outbox<NodeStatusAction>) {
        self.last_id += 1;
        let id = EffectId(self.last_id);
        self.in_flight = Some((id, step));
        out.push(NodeStatusAction::Call { id, call });
    }

    fn get(&mut self, step: NodeStatusCall, out: &mut Outbox<NodeStatusAction>) {
        self.call(step, ApiCall::GetNode { name: self.config.node_name.clone() }, out);
    }

    fn patch(&mut self, step: NodeStatusCall, patch: serde_json::Value, out: &mut Outbox<NodeStatusAction>) {
        self.call(step, ApiCall::PatchNodeStatus { name: self.config.node_name.clone(), patch }, out);
    }

    fn say(fact: NodeFact, out: &mut Outbox<NodeStatusAction>) {
        out.push(NodeStatusAction::Fact(fact));
    }

    fn event(&self, reason: &'static str) -> NodeStatusAction {
        let message = format!("Node {} status is now: {reason}", self.config.node_name);
        NodeStatusAction::Event(NodeEvent { warning: false, reason, message })
    }

    /// The desired Node, next to the known one.
    fn desired(&self, base: &Node, now: Now) -> (Node, Notes) {
        let mut node = base.clone();
        let notes = setters::fill(&mut node, &self.config, &self.inputs, now);
        (node, notes)
    }

    fn start(&mut self, now: Mono, out: &mut Outbox<NodeStatusAction>) -> Mono {
        if let Some(at) = self.started {
            return at;
        }
        self.started = Some(now);
        let message = "Starting kubelet.".to_owned();
        out.push(NodeStatusAction::Event(NodeEvent { warning: false, reason: "Starting", message }));
        now
    }

    /// The first try spares itself the refusal if the watch has shown the Node already; all others create.
    fn register(&mut self, now: Now, out: &mut Outbox<NodeStatusAction>) {
        if let Some(node) = self.found.take().filter(|_| self.failures == 0) {
            return self.existing(Arc::unwrap_or_clone(node), now, out);
        }
        let (node, notes) = object::initial(&self.config, &self.inputs, now);
        self.problems(&notes, out);
        self.call(NodeStatusCall::Create(notes), ApiCall::CreateNode(Box::new(node)), out);
    }

    /// Time until which registration waits for missing inputs.
    fn inputs_until(&self, started: Mono) -> Mono {
        let first = started.after(FIRST_INPUTS_MAX);
        let inputs = if self.inputs.are_complete() { Mono(0) } else { first };
        let storage = match self.listed {
            _ if self.inputs.is_storage_known() => Mono(0),
            Some(at) if self.found.is_some() => at.after(STORAGE_MAX),
            // A Node that is new has no CSINode before.
            Some(_) => Mono(0),
            None => first,
        };
        inputs.max(storage)
    }

    fn back_off(&mut self, message: String, now: Mono, out: &mut Outbox<NodeStatusAction>) {
        self.next = now.after(BACKOFF.next(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.earliest = self.next;
        Self::say(NodeFact::Failed { message }, out);
    }

    fn cycle_over(&mut self, now: Mono) {
        self.tries = 0;
        self.next = now.after(self.entropy.jittered(self.config.update_period, JITTER_PERCENT));
    }

    /// A status was taken, by a PATCH or at creation.
    fn reported(&mut self, node: Node, notes: Notes, now: Now, out: &mut Outbox<NodeStatusAction>) {
        self.reported = Some(now.mono);
        self.doubt = false;
        self.failures = 0;
        self.know(Arc::new(node), out);
        for reason in notes.events {
            out.push(self.event(reason));
        }
        Self::say(NodeFact::Reported { ready: self.is_ready() }, out);
        self.cycle_over(now.mono);
        self.earliest = now.mono.after(PROMPT_PERIOD);
    }

    fn now_registered(
        &mut self,
        node: Node,
        created: bool,
        notes: Notes,
        now: Now,
        out: &mut Outbox<NodeStatusAction>,
    ) {
        self.registered = true;
        let uid = node.metadata.uid.clone().unwrap_or_default();
        Self::say(NodeFact::Registered { uid, created }, out);
        self.spread_reports();
        self.reported(node, notes, now, out);
        // What was still missing is reported as soon as it arrives.
        self.earliest = now.mono;
    }

    /// After a change the next report is sent at a random time, so that nodes do not report in step.
    fn spread_reports(&mut self) {
        let period = self.config.report_period;
        self.report_after = self.entropy.within(period / 2, period + period / 2);
    }

    /// The Node is gone: register again.
    fn gone(&mut self, now: Mono, out: &mut Outbox<NodeStatusAction>) {
        self.known = None;
        self.doubt = false;
        self.reported = None;
        self.tries = 0;
        if self.config.register {
            self.registered = false;
            self.failures = 1;
            self.next = now.after(BACKOFF.first);
            self.earliest = self.next;
            Self::say(NodeFact::Deleted, out);
        } else {
            self.cycle_over(now);
            self.earliest = self.next;
            let message =
                format!("there is no Node {} and registerNode is false: create it", self.config.node_name);
            Self::say(NodeFact::Failed { message }, out);
        }
    }

    /// Takes an observed Node, unless it is older than the known one.
    fn know(&mut self, node: Arc<Node>, out: &mut Outbox<NodeStatusAction>) {
        if self.known.as_ref().is_some_and(|known| is_older(&node, known)) {
            return;
        }
        let spec = node.spec.as_ref();
        let cidrs = spec.and_then(|s| s.pod_cidrs.clone()).unwrap_or_default();
        if !cidrs.is_empty() && cidrs != self.pod_cidrs {
            self.pod_cidrs.clone_from(&cidrs);
            out.push(NodeStatusAction::PodCidr(cidrs));
        }
        let unschedulable = spec.and_then(|s| s.unschedulable).unwrap_or(false);
        if unschedulable != self.unschedulable {
            self.unschedulable = unschedulable;
            out.push(self.event(if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" }));
        }
        self.known = Some(node);
    }

    fn problems(&mut self, notes: &Notes, out: &mut Outbox<NodeStatusAction>) {
        if self.problems != notes.problems {
            self.problems.clone_from(&notes.problems);
            for message in &notes.problems {
                Self::say(NodeFact::Problem { message: message.clone() }, out);
            }
        }
    }

    /// Reports once that the Node has the id of another boot.
    fn reboot(&mut self, known: &Node, out: &mut Outbox<NodeStatusAction>) {
        let Ok(machine) = self.inputs.machine() else { return };
        let old = known.status.as_ref().and_then(|s| s.node_info.as_ref()).map_or("", |i| i.boot_id.as_str());
        if self.reboot_said || old.is_empty() || old == machine.boot_id {
            return;
        }
        self.reboot_said = true;
        let message =
            format!("Node {} has been rebooted, boot id: {}", self.config.node_name, machine.boot_id);
        out.push(NodeStatusAction::Event(NodeEvent { warning: true, reason: "Rebooted", message }));
    }

    /// Compares the actual and the desired Node.
    fn compute(&mut self, now: Now, out: &mut Outbox<NodeStatusAction>) {
        let Some(known) = self.known.clone().filter(|_| !self.doubt) else {
            return self.get(NodeStatusCall::Get, out);
        };
        self.reboot(&known, out);
        let (node, notes) = self.desired(&known, now);
        self.problems(&notes, out);
        let changed = patch::differs(&known, &node);
        let due = self.reported.is_none_or(|at| now.mono.since(at) >= self.report_after);
        if !changed && !due {
            return self.cycle_over(now.mono);
        }
        if changed || self.reported.is_none() {
            self.spread_reports();
        } else {
            self.report_after = self.config.report_period;
        }
        match patch::node_status(&known, &node) {
            Some(patch) => self.patch(NodeStatusCall::Patch(notes), patch, out),
            None => self.cycle_over(now.mono),
        }
    }

    fn existing(&mut self, mut node: Node, now: Now, out: &mut Outbox<NodeStatusAction>) {
        let known = node.clone();
        self.reboot(&known, out);
        object::reconcile(&mut node, &self.config, &self.inputs);
        let notes = setters::fill(&mut node, &self.config, &self.inputs, now);
        self.problems(&notes, out);
        match patch::node_status(&known, &node) {
            Some(patch) => self.patch(NodeStatusCall::Reconcile(notes), patch, out),
            None => self.now_registered(node, false, notes, now, out),
        }
    }

    fn answered(
        &mut self,
        step: NodeStatusCall,
        result: ApiResult,
        now: Now,
        out: &mut Outbox<NodeStatusAction>,
    ) {
        match (step, result) {
            (NodeStatusCall::Create(notes), Ok(ApiReply::Node(node))) => {
                self.now_registered(*node, true, notes, now, out)
            }
            (NodeStatusCall::GetExisting(_), Ok(ApiReply::Node(node))) => self.existing(*node, now, out),
            (NodeStatusCall::Reconcile(notes), Ok(ApiReply::Node(node))) => {
                self.now_registered(*node, false, notes, now, out)
            }
            (NodeStatusCall::Patch(notes), Ok(ApiReply::Node(node))) => self.reported(*node, notes, now, out),
            (NodeStatusCall::Get, Ok(ApiReply::Node(node))) => {
                self.doubt = false;
                self.know(Arc::new(*node), out);
                self.compute(now, out);
            }
            (
                NodeStatusCall::Create(_) | NodeStatusCall::GetExisting(_) | NodeStatusCall::Reconcile(_),
                Ok(other),
            ) => {
                self.back_off(format!("registering the node was answered with {other:?}"), now.mono, out);
            }
            (NodeStatusCall::Patch(_) | NodeStatusCall::Get, Ok(other)) => {
                self.failed(format!("the node's status was answered with {other:?}"), now.mono, out);
            }
            (NodeStatusCall::Create(_), Err(error))
                if error.class == Class::AlreadyExists || error.code == Some(403) =>
            {
                self.get(NodeStatusCall::GetExisting(error), out);
            }
            // There is no Node, so it is the refusal to create one that matters.
            (NodeStatusCall::GetExisting(refusal), Err(error)) if error.class == Class::NotFound => {
                self.back_off(refusal.to_string(), now.mono, out);
            }
            (
                NodeStatusCall::Create(_) | NodeStatusCall::GetExisting(_) | NodeStatusCall::Reconcile(_),
                Err(error),
            ) => {
                self.back_off(error.to_string(), now.mono, out);
            }
            (NodeStatusCall::Patch(_) | NodeStatusCall::Get, Err(error))
                if error.class == Class::NotFound =>
            {
                self.gone(now.mono, out)
            }
            (NodeStatusCall::Patch(_) | NodeStatusCall::Get, Err(error)) => {
                self.failed(error.to_string(), now.mono, out)
            }
        }
    }

    /// A try of this cycle failed: the next one first reads the Node from the API server.
    fn failed(&mut self, message: String, now: Mono, out: &mut Outbox<NodeStatusAction>) {
        self.tries += 1;
        self.doubt = true;
        Self::say(NodeFact::Failed { message }, out);
        if self.tries > 1 {
            out.push(NodeStatusAction::CloseConnections);
        }
        if self.tries >= TRIES {
            self.cycle_over(now);
            self.earliest = self.next;
        } else {
            self.next = now;
        }
    }

    fn watched(&mut self, event: WatchEvent<Node>, now: Mono, out: &mut Outbox<NodeStatusAction>) {
        let name = self.config.node_name.clone();
        let is_own = |node: &Arc<Node>| node.metadata.name.as_deref() == Some(&*name);
        match event {
            WatchEvent::Listed(nodes) => {
                self.listed.get_or_insert(now);
                match nodes.into_iter().find(is_own) {
                    Some(node) => self.seen(node, out),
                    // The list may be older than our registration: read the Node.
                    None => self.suspect(now),
                }
            }
            WatchEvent::Applied(node) if is_own(&node) => self.seen(node, out),
            WatchEvent::Deleted(node) if is_own(&node) => {
                let is = |other: &Option<Arc<Node>>| {
                    other.as_ref().is_some_and(|other| other.metadata.uid == node.metadata.uid)
                };
                if is(&self.known) || is(&self.found) {
                    self.suspect(now);
                }
            }
            WatchEvent::Applied(_) | WatchEvent::Deleted(_) | WatchEvent::Lost(_) => {}
        }
    }

    /// An existing Node is left to registration. A controller's verdict that the node is lost is urgent;
    /// other changes of our fields are not: two writers that disagree must not write every second.
    fn seen(&mut self, node: Arc<Node>, out: &mut Outbox<NodeStatusAction>) {
        if self.registered {
            self.look |= conditions::status_of(&node, "Ready").is_none();
            self.know(node, out);
        } else {
            self.found = Some(node);
        }
    }

    fn suspect(&mut self, now: Mono) {
        self.found = None;
        if self.registered && self.known.is_some() {
            self.doubt = true;
            self.next = now.max(self.earliest);
        }
    }

    /// True if the API server has something wrong that should not wait for the cycle.
    fn is_urgent(&self, now: Now) -> bool {
        let Some(known) = self.known.as_ref().filter(|_| self.registered && self.next > now.mono) else {
            return false;
        };
        let (node, _) = self.desired(known, now);
        let addresses = |node: &Node| node.status.as_ref().and_then(|s| s.addresses.clone());
        let ready = |node: &Node| conditions::status_of(node, "Ready");
        // Pods wait for it: a volume is attached once it is known to be in use.
        let in_use = |node: &Node| node.status.as_ref().and_then(|s| s.volumes_in_use.clone());
        ready(known) != ready(&node) || addresses(known) != addresses(&node) || in_use(known) != in_use(&node)
    }

    fn input(&mut self, input: NodeInput) {
        self.inputs.take(input);
        self.look = true;
    }

    fn advance(&mut self, now: Now, out: &mut Outbox<NodeStatusAction>) {
        let started = self.start(now.mono, out);
        if self.in_flight.is_some() {
            return;
        }
        if std::mem::take(&mut self.look) && self.is_urgent(now) {
            self.next = self.next.min(now.mono.max(self.earliest));
        }
        if !self.registered {
            let until = self.inputs_until(started);
            if now.mono < until {
                self.next = until;
                return;
            }
            if self.failures == 0 {
                self.next = now.mono;
            }
        }
        if self.next > now.mono {
            return;
        }
        if self.registered { self.compute(now, out) } else { self.register(now, out) }
    }
}

/// True if `node` is an earlier state of the same object as `known`.
fn is_older(node: &Node, known: &Node) -> bool {
    let version = |n: &Node| n.metadata.resource_version.as_ref().and_then(|v| v.parse::<u64>().ok());
    node.metadata.uid == known.metadata.uid
        && matches!((version(node), version(known)), (Some(new), Some(old)) if new < old)
}

impl Machine for NodeStatus {
    type Event = NodeStatusEvent;
    type Action = NodeStatusAction;

    fn step(&mut self, now: Now, event: NodeStatusEvent, out: &mut Outbox<NodeStatusAction>) {
        match event {
            NodeStatusEvent::Input(input) => self.input(input),
            NodeStatusEvent::Watched(event) => self.watched(event, now.mono, out),
            NodeStatusEvent::Answered { id, result } => {
                if let Some((_, step)) = self.in_flight.take_if(|(flying, _)| *flying == id) {
                    self.answered(step, result, now, out);
                }
            }
            NodeStatusEvent::Tick => {}
        }
        self.advance(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.in_flight.is_none().then_some(self.next)
    }
}
