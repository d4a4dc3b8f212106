//! The pod worker: the whole life of one pod on this node, as one state machine.
//!
//! # For the shell
//! One [`PodWorker`] for each pod UID that is desired or that the runtime still has.
//! 1. `PodWorker::new(key, context, fence_until)`; after a crash with a record on disk,
//!    [`PodWorker::resume`]. `fence_until` is the time by which every call that an earlier incarnation may
//!    have sent for this pod is over (`Mono(0)` if there was none: first start since boot, or the pod has no
//!    directory yet).
//! 2. Feed it: [`PodEvent::Desired`] from the pod manager; [`PodEvent::Kill`] when the pod left its source,
//!    or with [`KillReason::Orphan`] when only the runtime has the pod; [`PodEvent::Observed`] from PLEG;
//!    [`PodEvent::Network`]; [`PodEvent::Tick`] at [`Machine::deadline`].
//! 3. Carry out its actions in order. Answer every [`PodAction::Effect`] and [`PodAction::Persist`] with
//!    exactly one [`PodEvent::EffectDone`], every [`PodAction::Probe`] with one [`PodEvent::ProbeDone`].
//!    Answer [`Effect::Inspect`] with [`EffectOk::Snapshot`]; read its `as_of` before the first request is
//!    sent, and `completed_at` after the call is over. A call must not outlive the effect's `deadline`: send
//!    it with the remaining time, and answer `DeadlineExceeded` if none is left.
//! 4. On [`PodAction::Finished`] drop the worker; if `desired_again`, make a new one for the pod.
//!
//! A pod that ended by itself stays in `Terminated` (with its dead containers and its directories) until it
//! is removed: the worker must live on, so that the pod does not start again.
//!
//! # Rules (docs/internals/agent/pod-worker.md)
//! Level-triggered and stamped; at most one mutating effect in flight per container name and for the
//! sandboxes; unknown outcomes are inspected, never assumed; silence counts as absence only behind the fence;
//! the grace period only shrinks; no state returns to an earlier one. Upstream: pkg/kubelet/pod_workers.go.

mod api;
mod back_off;
mod base;
mod cgroups;
mod chain;
mod claims;
mod cpus;
mod create;
pub mod effect;
mod hooks;
mod parts;
mod pass;
mod pod_status;
mod probes;
mod pull;
mod removal;
mod reset;
mod resize;
pub mod runtime_class;
mod sandboxes;
mod start;
mod state;
mod status_basis;
mod sync;
mod terminate;
mod tracker;
mod users;
mod volumes;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::event::{ContainerList, EventKind};
use agent_types::failure::Class;
use agent_types::ids::PodKey;
use agent_types::kill::{KillReason, TerminatingRecord};
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::spec_error::CREATE_CONTAINER_CONFIG_ERROR;
use agent_types::time::{Mono, Now};
use agent_types::{declared_features, pod};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

pub use api::{PodAction, PodEvent, WorkerContext, WorkerCounts};

use base::Base;
use pass::Pass;
use pod_status::Stage;
use state::{Cleanup, PodWorkerState, Record, Syncing, Terminating};
use tracker::{Flight, Purpose, Target};

use crate::pod_worker::effect::{EffectOk, EffectResult};
use crate::status::{Phase, WaitingReason};

#[cfg(doc)]
use crate::pod_worker::effect::Effect;

/// Data of syncing that terminating keeps.
struct LastSync {
    pod: Arc<Pod>,
    /// Waiting reasons of the containers.
    waiting: BTreeMap<String, WaitingReason>,
    /// The worker had begun to make the pod.
    begun: bool,
}

/// State machine for the life of one pod.
#[derive(Clone, Debug)]
pub struct PodWorker {
    base: Base,
    state: PodWorkerState,
}

impl PodWorker {
    /// A worker for a pod about which nothing is known yet.
    #[must_use]
    pub fn new(key: PodKey, context: Arc<WorkerContext>, fence_until: Mono) -> PodWorker {
        PodWorker { base: Base::new(key, context, fence_until), state: PodWorkerState::Pending }
    }

    /// A worker for a pod whose termination had begun before the agent restarted.
    #[must_use]
    pub fn resume(
        record: &TerminatingRecord,
        context: Arc<WorkerContext>,
        fence_until: Mono,
        now: Now,
    ) -> PodWorker {
        let mut base = Base::new(record.pod.clone(), context, fence_until);
        // The worker continues by itself, even if no source has the pod any more.
        base.wake = Some(now.mono);
        PodWorker { base, state: terminate::resumed(record, now) }
    }

    /// Identity of the pod.
    #[must_use]
    pub fn key(&self) -> &PodKey {
        &self.base.key
    }

    /// `pending`, `syncing`, `terminating`, `terminated` or `finished`.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match &self.state {
            PodWorkerState::Pending => "pending",
            PodWorkerState::Syncing(_) => "syncing",
            PodWorkerState::Terminating(_) => "terminating",
            PodWorkerState::Terminated(_) => "terminated",
            PodWorkerState::Finished => "finished",
        }
    }

    /// The pod is over and nothing of it runs.
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        matches!(self.state, PodWorkerState::Terminated(_) | PodWorkerState::Finished)
    }

    /// The pod is terminated, and nothing holds its volumes any more.
    #[must_use]
    pub fn is_released(&self) -> bool {
        match &self.state {
            PodWorkerState::Terminated(t) => volumes::are_released(&self.base, t.pod.as_deref()),
            PodWorkerState::Finished => true,
            _ => false,
        }
    }

    /// True if the runtime has no unused containers of the pod; also true for every pod that was not
    /// stripped.
    #[must_use]
    pub fn is_stripped(&self) -> bool {
        let empty = || {
            let snapshot = self.base.snapshot.as_deref();
            snapshot.is_some_and(|s| s.containers.is_empty() && s.sandboxes.is_empty())
        };
        !matches!(&self.state, PodWorkerState::Terminated(t) if t.cleanup == Cleanup::Stripping) || empty()
    }

    /// The last published status.
    #[must_use]
    pub fn status(&self) -> Option<&PodStatus> {
        self.base.published.as_deref()
    }

    /// The work so far, for benchmarks and tests.
    #[must_use]
    pub fn counts(&self) -> WorkerCounts {
        self.base.counts
    }

    /// Effects that have not been answered yet (checker BOUNDED).
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.base.tracker.in_flight()
    }

    fn desired(&mut self, pod: Arc<Pod>, now: Now, out: &mut Outbox<PodAction>) {
        if pod.metadata.uid.as_deref() != Some(self.base.key.uid.as_str()) {
            return;
        }
        let init = pod::init_containers(&pod).iter().map(|c| (c.name.clone(), ContainerList::Init));
        let ephemeral =
            pod::ephemeral_containers(&pod).iter().map(|c| (c.name.clone(), ContainerList::Ephemeral));
        self.base.lists = init.chain(ephemeral).collect();
        let before = match &self.state {
            PodWorkerState::Syncing(s) => Some(s.pod.clone()),
            _ => None,
        };
        self.base.resource_version.clone_from(&pod.metadata.resource_version);
        volumes::desired(&mut self.base, before.as_deref(), &pod, now);
        claims::desired(&mut self.base, before.as_deref(), &pod, now);
        if matches!(self.state, PodWorkerState::Pending | PodWorkerState::Syncing(_)) {
            resize::desired(&mut self.base, before.as_deref(), &pod, out);
        }
        let deleted = pod.metadata.deletion_timestamp.is_some();
        let over = pod.status.as_ref().and_then(Phase::end);
        match &mut self.state {
            PodWorkerState::Pending => {
                let syncing = Syncing::new(pod, self.base.ctx.crash_loop);
                self.state = PodWorkerState::Syncing(Box::new(syncing));
                if !deleted && over.is_some() {
                    self.kill(KillReason::Ended, None, now);
                }
            }
            PodWorkerState::Syncing(s) => {
                let missing =
                    declared_features::missing_for_update(&s.pod, &pod, self.base.ctx.specs.features());
                if !missing.is_empty() {
                    let text =
                        format!("Pod requires node features that are not available: {}", missing.join(", "));
                    let reason = "FailedNodeDeclaredFeaturesCheck";
                    self.base.event(EventKind::Warning, reason, text, None, out);
                }
                s.pod = pod;
                // Another client, or a late call of an earlier agent, wrote the status: a pod that the API
                // shows as ended has ended.
                if over.is_some() && !deleted {
                    self.kill(KillReason::Ended, None, now);
                }
            }
            PodWorkerState::Terminating(t) => {
                t.desired_again |= t.remove && !deleted;
                resize::too_late(&mut self.base, t.pod.as_deref(), &pod);
                t.pod = Some(pod);
            }
            PodWorkerState::Terminated(t) => {
                t.desired_again |= t.cleanup == Cleanup::Removing && !deleted;
                t.pod = Some(pod);
            }
            PodWorkerState::Finished => {}
        }
        if deleted {
            self.kill(KillReason::Deleted, None, now);
        }
    }

    /// What waits for a Secret, a ConfigMap or a RuntimeClass tries again at once.
    fn sources_changed(&mut self, now: Now) {
        let PodWorkerState::Syncing(s) = &self.state else { return };
        runtime_class::sources_changed(s, &mut self.base, now);
        self.base.volumes.sources_changed();
        for (name, why) in &s.waiting {
            if why.reason == CREATE_CONTAINER_CONFIG_ERROR {
                self.base.tracker.release(&Target::Container(name.clone()), now.mono);
            }
        }
    }

    fn delete_unused(&mut self) {
        if let PodWorkerState::Terminated(t) = &mut self.state
            && terminate::may_be_stripped(t)
        {
            t.cleanup = Cleanup::Stripping;
        }
    }

    fn kill(&mut self, reason: KillReason, grace_s: Option<u32>, now: Now) {
        let remove = reason.removes();
        match &mut self.state {
            PodWorkerState::Pending => self.begin_terminating(reason, grace_s, None, now),
            PodWorkerState::Syncing(s) => {
                let waiting = std::mem::take(&mut s.waiting);
                let from = LastSync { pod: s.pod.clone(), waiting, begun: s.begun };
                self.begin_terminating(reason, grace_s, Some(from), now);
            }
            PodWorkerState::Terminating(t) => {
                t.remove |= remove;
                t.desired_again &= !remove;
                // No source has the pod: only the record contains its grace period.
                let is_promised = t.pod.is_none() && grace_s.is_none();
                if reason != KillReason::Ended && !is_promised {
                    t.grace_s = t.grace_s.min(terminate::effective_grace(t.pod.as_deref(), grace_s));
                }
                if t.record == Record::Written && !t.is_recorded() {
                    t.record = Record::Needed;
                }
            }
            PodWorkerState::Terminated(t) => {
                if remove {
                    t.cleanup = Cleanup::Removing;
                    t.desired_again = false;
                }
            }
            PodWorkerState::Finished => {}
        }
    }

    fn begin_terminating(
        &mut self,
        reason: KillReason,
        grace_s: Option<u32>,
        from: Option<LastSync>,
        now: Now,
    ) {
        let begun = from.as_ref().is_some_and(|last| last.begun);
        let (pod, waiting) = from.map_or_else(Default::default, |last| (Some(last.pod), last.waiting));
        self.state = PodWorkerState::Terminating(Terminating {
            grace_s: terminate::effective_grace(pod.as_deref(), grace_s),
            remove: reason.removes(),
            pod,
            reason,
            since: now.mono,
            begun,
            desired_again: false,
            record: Record::Needed,
            recorded: None,
            on_disk: None,
            reported: BTreeSet::new(),
            waiting,
        });
    }

    /// False if the rest of the pod needs no thought.
    fn effect_done(
        &mut self,
        id: EffectId,
        completed_at: Mono,
        result: EffectResult,
        now: Now,
        out: &mut Outbox<PodAction>,
    ) -> bool {
        let failure = result.as_ref().err().map(|e| e.class);
        let unknown = failure.is_some_and(is_unanswered);
        let Some(flight) = self.base.tracker.close(id, completed_at, failure) else { return true };
        let result = forgive(&flight, result);
        match &result {
            Ok(_) => self.base.tracker.succeeded(&flight.target),
            Err(_) if flight.cancelled || matches!(flight.purpose, Purpose::Hook { .. }) => {}
            Err(e) => {
                let seed = format!("{}/{:?}", self.base.key.uid, flight.target);
                self.base.tracker.failed(&flight.target, &seed, now.mono, e, unknown);
            }
        }
        self.note(&flight, &result, now, out);
        match &mut self.state {
            PodWorkerState::Syncing(s) if flight.purpose == Purpose::FetchRuntimeClass => {
                runtime_class::answered(&mut Pass { state: s, base: &mut self.base, now, out }, &result);
            }
            PodWorkerState::Syncing(s) if flight.purpose == Purpose::MapUsers => {
                users::answered(&mut Pass { state: s, base: &mut self.base, now, out }, result);
            }
            PodWorkerState::Syncing(s) => {
                resize::answered(&mut Pass { state: s, base: &mut self.base, now, out }, &flight, &result);
                start::answered(&mut Pass { state: s, base: &mut self.base, now, out }, &flight, result);
            }
            PodWorkerState::Terminating(t) if flight.purpose == Purpose::Persist => {
                // A record that cannot be written must not keep a pod alive: a full disk is a reason to
                // evict. What is lost is the grace already spent, if the agent crashes as well.
                t.record = if t.is_recorded() { Record::Written } else { Record::Needed };
                if let (Ok(_), Some((_, remove))) = (&result, t.recorded) {
                    t.on_disk = Some(remove);
                }
            }
            PodWorkerState::Terminated(t) if flight.purpose == Purpose::Persist => {
                t.removal.answered(result.is_ok());
            }
            PodWorkerState::Terminated(t) if flight.purpose == Purpose::RemoveDirs && result.is_ok() => {
                let desired_again = t.desired_again;
                self.state = PodWorkerState::Finished;
                out.push(PodAction::Finished { desired_again });
            }
            _ => {}
        }
        !self.only_prepares(&flight)
    }

    /// The answer to `flight` only led to the next effect on its container, which is being started.
    fn only_prepares(&self, flight: &Flight) -> bool {
        let PodWorkerState::Syncing(s) = &self.state else { return false };
        let of_chain = |target: &Target| {
            let name = s.chain.as_ref().map(|chain| &chain.start.slot.name);
            matches!(target, Target::Container(of) if name == Some(of))
        };
        flight.purpose.prepares() && of_chain(&flight.target) && self.base.tracker.busy(&flight.target)
    }

    /// What an answer means in every state.
    fn note(&mut self, flight: &Flight, result: &EffectResult, now: Now, out: &mut Outbox<PodAction>) {
        let b = &mut self.base;
        hooks::answered(b, flight, result, out);
        volumes::answered(b, &flight.purpose, result, now, out);
        cgroups::answered(b, flight, result, out);
        cpus::answered(b, flight, result, now);
        claims::answered(b, &flight.purpose, result, now, out);
        match (&flight.purpose, result) {
            (Purpose::Inspect, Ok(EffectOk::Snapshot(s))) => b.absorb(Arc::from(s.clone())),
            (Purpose::Inspect, Err(e)) => b.look_failed(e, out),
            (Purpose::RunSandbox, Ok(_)) => b.sandbox_unseen = true,
            (Purpose::StopSandbox(id), Ok(_)) => b.stopped.push(id.clone()),
            (Purpose::CreateDirs, Ok(_)) => {
                if let PodWorkerState::Syncing(s) = &mut self.state {
                    s.dirs_made = true;
                }
            }
            (Purpose::RunSandbox, Err(e)) => {
                let text = format!("Failed to create pod sandbox: {}", e.message);
                b.event(EventKind::Warning, "FailedCreatePodSandBox", text, None, out);
            }
            (Purpose::CreateDirs, Err(e)) => {
                let text = format!("error making pod data directories: {}", e.message);
                b.event(EventKind::Warning, "Failed", text, None, out);
            }
            (Purpose::Stop { .. } | Purpose::StopSandbox(_), Err(e)) if !flight.cancelled => {
                let text = format!("error killing pod: {}", e.message);
                b.event(EventKind::Warning, "FailedKillPod", text, None, out);
            }
            _ => {}
        }
    }

    fn advance(&mut self, now: Now, out: &mut Outbox<PodAction>) {
        self.base.counts.passes += 1;
        self.base.begin_pass();
        // Each round either changes the state, which happens at most four times in a life, or ends.
        loop {
            probes::observe(&self.state, &mut self.base, now, out);
            let b = &mut self.base;
            match &mut self.state {
                PodWorkerState::Pending | PodWorkerState::Finished => break,
                PodWorkerState::Syncing(s) => {
                    match sync::advance(&mut Pass { state: s, base: b, now, out }) {
                        Some(reason) => self.kill(reason, None, now),
                        None => {
                            cpus::advance(b, now, out);
                            if b.snapshot.is_some() {
                                let as_it_is = |_: &Base, status: PodStatus| Some(status);
                                b.tell(&s.pod, &s.waiting, Stage::MAY_START, now, as_it_is, out);
                            }
                            break;
                        }
                    }
                }
                PodWorkerState::Terminating(t) => {
                    cpus::advance(b, now, out);
                    let down = terminate::advance(t, b, now, out);
                    if b.snapshot.is_some() {
                        terminate::publish(t, b, now, out);
                    }
                    if !down {
                        break;
                    }
                    self.state = PodWorkerState::Terminated(terminate::ended(t));
                }
                PodWorkerState::Terminated(t) => {
                    terminate::publish_final(t, b, now, out);
                    terminate::clean_up(t, b, now, out);
                    break;
                }
            }
        }
        self.base.end_pass(now, out);
    }
}

impl Machine for PodWorker {
    type Event = PodEvent;
    type Action = PodAction;

    fn step(&mut self, now: Now, event: PodEvent, out: &mut Outbox<PodAction>) {
        match event {
            PodEvent::Desired(pod) => self.desired(pod, now, out),
            PodEvent::Kill { reason, grace_s } => self.kill(reason, grace_s, now),
            // PLEG passes the worker's own look back to it.
            PodEvent::Observed(snapshot) if self.base.snapshot.as_deref() == Some(&*snapshot) => return,
            PodEvent::Observed(snapshot) => self.base.absorb(snapshot),
            PodEvent::EffectDone { id, completed_at, result } => {
                if !self.effect_done(id, completed_at, result, now, out) {
                    return;
                }
            }
            PodEvent::ProbeDone { id, outcome } => {
                if !probes::answered(&mut self.base, id, outcome, now, out) {
                    return;
                }
            }
            PodEvent::Network(state) => self.base.network = state,
            PodEvent::SourcesChanged => self.sources_changed(now),
            PodEvent::Placed(placement) => self.base.placing.wanted = placement,
            PodEvent::ClaimsChanged(claims) => claims::changed(&mut self.base, claims),
            PodEvent::DeleteUnused => self.delete_unused(),
            PodEvent::ResizePending(pending) => resize::pending(&mut self.base, pending, out),
            PodEvent::Context(context) => self.base.ctx = context,
            // Only a probe is due: the rest of the pod needs no thought.
            PodEvent::Tick if probes::only_due(&self.base, now) => {
                probes::tick(&mut self.base, now, out);
                return;
            }
            PodEvent::Tick => {}
        }
        self.advance(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        [self.base.wake, self.base.probes.deadline()].into_iter().flatten().min()
    }
}

/// No server answered, so no retry is due before one answers.
fn is_unanswered(class: Class) -> bool {
    matches!(class, Class::Unavailable | Class::Interrupted | Class::DeadlineExceeded)
}

/// A stop or removal of a missing object succeeded.
fn forgive(flight: &Flight, result: EffectResult) -> EffectResult {
    let gone_is_fine = matches!(
        flight.purpose,
        Purpose::Stop { .. } | Purpose::Remove(_) | Purpose::StopSandbox(_) | Purpose::RemoveSandbox(_)
    );
    match result {
        Err(e) if gone_is_fine && e.class == Class::NotFound => Ok(EffectOk::Done),
        other => other,
    }
}

/// Longest time for which the answer to any effect but a pull can be outstanding.
#[must_use]
pub fn longest_call(request_timeout: Duration, longest_grace: Duration) -> Duration {
    (request_timeout * 2).max(request_timeout + longest_grace)
}
