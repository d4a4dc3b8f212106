//! Data of a pod worker in every state: identity, effects in flight, newest snapshot, last published status, timer.
//!
//! In: calls from the states' code. Out: actions. Invariants: every step computes the timer again, always
//! later than now; a snapshot older than the current one is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_types::event::{ContainerList, EventFact, EventKind};
use agent_types::failure::Class;
use agent_types::ids::{ContainerId, PodKey, SandboxId};
use agent_types::machine::{EffectId, Outbox};
use agent_types::resources::cgroups::pod::PodCgroup;
use agent_types::runtime::observed::{
    ContainerObserved, ContainerState, PodSnapshot, SandboxObserved, SandboxState,
};
use agent_types::runtime::view::newest_sandbox;
use agent_types::time::{Mono, Now, Wall};
use agent_volumes::PodVolumes;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::api::{PodAction, WorkerContext, WorkerCounts};
use super::status_basis::StatusBasis;
use super::tracker::{EffectTracker, Flight, Purpose, Target};
use crate::pod_actions::Replaced;
use crate::pod_worker::effect::{Effect, EffectError};
use crate::pod_worker::parts::{Cgroup, Claims, Placing, PreStop, Resize, WantedCgroup};
use crate::probe::PodProbes;
use crate::status;

/// Looks at a pod with more containers than this keep a distance while something is being done to one of them.
const MANY_CONTAINERS: usize = 20;
/// The distance for each of its containers, as PLEG's.
const LOOK_PACE: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) key: PodKey,
    pub(super) ctx: Arc<WorkerContext>,
    pub(super) tracker: EffectTracker,
    pub(super) snapshot: Option<Arc<PodSnapshot>>,
    /// The pod's list (init, ephemeral) of each container that is not a regular one.
    pub(super) lists: BTreeMap<String, ContainerList>,
    pub(super) published: Option<Arc<PodStatus>>,
    /// What was found to give the published status again.
    pub(super) told: Option<StatusBasis>,
    pub(super) network: Result<(), String>,
    /// Sandboxes this incarnation has stopped.
    pub(super) stopped: Vec<SandboxId>,
    pub(super) start_time: Option<Wall>,
    /// `metadata.resourceVersion` of the pod as it was desired last, for events.
    pub(super) resource_version: Option<String>,
    pub(super) wake: Option<Mono>,
    pub(super) probes: PodProbes,
    /// All containers are being restarted.
    pub(super) resetting: bool,
    pub(super) volumes: PodVolumes,
    /// The last inspection failed, and the event about it was sent.
    pub(super) look_failed: bool,
    /// A sandbox was made and not seen yet.
    pub(super) sandbox_unseen: bool,
    /// preStop hooks of instances that are being stopped.
    pub(super) pre_stops: BTreeMap<ContainerId, PreStop>,
    /// What this incarnation did to the pod's cgroup last.
    pub(super) cgroup: Cgroup,
    /// The cgroup that the pod should have, as computed last.
    wanted_cgroup: Option<WantedCgroup>,
    /// Requests for other amounts.
    pub(super) resize: Resize,
    /// Processors and memory nodes of the pod's containers.
    pub(super) placing: Placing,
    /// Resource claims of the pod.
    pub(super) claims: Claims,
    /// Instances killed in order to be replaced.
    pub(super) replaced: Replaced,
    pub(super) counts: WorkerCounts,
    /// A decision waits for a snapshot later than this.
    wanted_after: Option<Mono>,
    /// What was done last is not seen yet.
    wants_news: bool,
}

impl Base {
    pub(super) fn new(key: PodKey, ctx: Arc<WorkerContext>, fence_until: Mono) -> Base {
        Base {
            key,
            ctx,
            tracker: EffectTracker::new(fence_until),
            snapshot: None,
            lists: BTreeMap::new(),
            published: None,
            told: None,
            network: Ok(()),
            stopped: Vec::new(),
            start_time: None,
            resource_version: None,
            wake: None,
            probes: PodProbes::default(),
            resetting: false,
            volumes: PodVolumes::default(),
            look_failed: false,
            sandbox_unseen: false,
            pre_stops: BTreeMap::new(),
            cgroup: Cgroup::Unseen,
            wanted_cgroup: None,
            resize: Resize::default(),
            placing: Placing::default(),
            claims: Claims::default(),
            replaced: Replaced::new(),
            counts: WorkerCounts::default(),
            wanted_after: None,
            wants_news: false,
        }
    }

    /// Begins a pass: clears the timer and the request for a snapshot.
    pub(super) fn begin_pass(&mut self) {
        self.wake = None;
        self.wanted_after = None;
        self.wants_news = false;
    }

    /// Ends a pass: requests the snapshot that decisions waited for.
    pub(super) fn end_pass(&mut self, now: Now, out: &mut Outbox<PodAction>) {
        if self.wants_news {
            match self.next_look(now) {
                Some(at) => self.wake_at(at, now),
                None => self.want_snapshot_after(self.tracker.known_after()),
            }
        }
        let Some(after) = self.wanted_after else { return };
        if self.tracker.busy(&Target::Observe) {
            return;
        }
        if now.mono <= after {
            self.wake_at(Mono(after.0.saturating_add(1)), now);
            return;
        }
        if let Some(held) = self.tracker.held_until(&Target::Observe, now.mono) {
            self.wake_at(held, now);
            return;
        }
        self.issue(now, Target::Observe, Purpose::Inspect, Effect::Inspect, out);
    }

    pub(super) fn wake_at(&mut self, at: Mono, now: Now) {
        let at = at.max(Mono(now.mono.0.saturating_add(1)));
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }

    /// A decision needs a snapshot requested after `after`. If the worker already has one, it requests none:
    /// the decision then waits for an effect in flight, whose answer causes the next pass.
    pub(super) fn want_snapshot_after(&mut self, after: Mono) {
        if self.snapshot.is_some() && self.as_of() > after {
            return;
        }
        self.wanted_after = Some(self.wanted_after.map_or(after, |w| w.max(after)));
    }

    /// Arranges a look at what was done last, if no snapshot shows it.
    pub(super) fn want_news(&mut self) {
        self.wants_news |= self.tracker.known_after() >= self.as_of();
    }

    /// When a look at what was done last is due; `None`: now. While containers of a pod of many are started, stopped or removed,
    /// each answer is news, and each look lists them all.
    fn next_look(&self, now: Now) -> Option<Mono> {
        let seen = self.snapshot.as_ref().filter(|seen| seen.containers.len() > MANY_CONTAINERS)?;
        let pace = LOOK_PACE.saturating_mul(u32::try_from(seen.containers.len()).unwrap_or(u32::MAX));
        let due = seen.as_of.after(pace);
        (self.tracker.any_container_busy() && now.mono < due).then_some(due)
    }

    pub(super) fn issue(
        &mut self,
        now: Now,
        target: Target,
        purpose: Purpose,
        effect: Effect,
        out: &mut Outbox<PodAction>,
    ) -> EffectId {
        let deadline = effect.timeout(self.ctx.request_timeout).map(|t| now.mono.after(t));
        let id = self.tracker.open(Flight { target, purpose, issued: now.mono, deadline, cancelled: false });
        out.push(PodAction::Effect { id, effect, deadline });
        id
    }

    /// `target` may be acted on now: nothing in flight, the snapshot is later than the last effect on it, and
    /// no back-off holds it. If not, arranges to be woken when that changes.
    pub(super) fn may_act(&mut self, target: &Target, now: Now) -> bool {
        if self.tracker.busy(target) {
            return false;
        }
        let as_of = self.as_of();
        if !self.tracker.fresh(target, as_of) {
            self.want_news();
            return false;
        }
        if let Some(held) = self.tracker.held_until(target, now.mono) {
            self.wake_at(held, now);
            return false;
        }
        true
    }

    /// True if the snapshot was requested after `after`, so that absence in it is real. Otherwise requests a
    /// new one.
    pub(super) fn may_conclude_absence(&mut self, after: Mono, now: Now) -> bool {
        if self.as_of() > after || (after == Mono(0) && self.snapshot.is_some()) {
            return true;
        }
        if now.mono > after {
            self.want_snapshot_after(after);
        } else {
            self.wake_at(Mono(after.0.saturating_add(1)), now);
        }
        false
    }

    /// True if a container was seen created but not started, and no start of it can be in progress. A start
    /// in progress may have happened by the time of the removal, and a running container must be stopped with
    /// its grace period (simulation, stopping, seed 10).
    pub(super) fn was_never_started(&mut self, container: &str, now: Now) -> bool {
        let over = self.tracker.starting_until(&Target::Container(container.to_owned()));
        self.may_conclude_absence(over, now)
    }

    pub(super) fn as_of(&self) -> Mono {
        self.snapshot.as_ref().map_or(Mono(0), |s| s.as_of)
    }

    /// Takes a snapshot unless a later one is present. Of two with equal stamps the last to arrive counts, as
    /// in PLEG: both must act on the same snapshot.
    pub(super) fn absorb(&mut self, snapshot: Arc<PodSnapshot>) {
        if snapshot.pod.uid != self.key.uid {
            return;
        }
        if self.snapshot.as_ref().is_none_or(|have| have.as_of <= snapshot.as_of) {
            self.stopped.retain(|id| snapshot.sandboxes.iter().any(|s| s.id == *id));
            if !self.pre_stops.is_empty() {
                let ids = snapshot.containers.ids();
                self.pre_stops.retain(|id, _| ids.contains(id));
            }
            let snapshot = match &self.snapshot {
                Some(have) => snapshot.following(have),
                None => snapshot,
            };
            let begun =
                |c: &ContainerObserved| matches!(c.state, ContainerState::Running | ContainerState::Exited);
            let of = |id: &ContainerId| snapshot.containers.iter().find(|c| c.id == *id);
            self.tracker.started(snapshot.as_of, |id| of(id).is_some_and(begun));
            self.snapshot = Some(snapshot);
            (self.look_failed, self.sandbox_unseen) = (false, false);
        }
    }

    /// The runtime answered an inspection with an error: one event, until an inspection succeeds. The node
    /// reports a runtime that is down.
    pub(super) fn look_failed(&mut self, e: &EffectError, out: &mut Outbox<PodAction>) {
        if e.class == Class::Unavailable || std::mem::replace(&mut self.look_failed, true) {
            return;
        }
        let (reason, what) = if self.sandbox_unseen {
            ("FailedPodSandBoxStatus", "Unable to get pod sandbox status")
        } else {
            ("FailedSync", "error determining status")
        };
        self.event(EventKind::Warning, reason, format!("{what}: {}", e.message), None, out);
    }

    /// True if the sandbox still holds anything that `StopSandbox` releases.
    pub(super) fn needs_stop(&self, s: &SandboxObserved) -> bool {
        let network_up = !s.host_network && s.ips.iter().any(|ip| !ip.is_empty());
        s.state == SandboxState::Ready || (network_up && !self.stopped.contains(&s.id))
    }

    /// All addresses from the runtime, in its order.
    pub(super) fn pod_ips(&self) -> Vec<String> {
        self.snapshot.as_deref().and_then(newest_sandbox).map(|s| s.ips.clone()).unwrap_or_default()
    }

    /// The pod's addresses as in its status: for its containers' variables, for probes and hooks.
    pub(super) fn shown_ips(&self) -> Vec<String> {
        status::one_of_each_family(&self.pod_ips(), self.ctx.ipv6_first)
    }

    pub(super) fn event(
        &self,
        kind: EventKind,
        reason: &'static str,
        message: impl Into<String>,
        container: Option<&str>,
        out: &mut Outbox<PodAction>,
    ) {
        out.push(PodAction::Event(self.fact(kind, reason, message, container)));
    }

    /// An event about the pod, or about one of its containers.
    pub(super) fn fact(
        &self,
        kind: EventKind,
        reason: &'static str,
        message: impl Into<String>,
        container: Option<&str>,
    ) -> EventFact {
        let list = container.and_then(|name| self.lists.get(name)).copied().unwrap_or_default();
        let (container, message) = (container.map(str::to_owned), message.into());
        let resource_version = self.resource_version.clone();
        EventFact { kind, reason, message, container, list, claim: None, resource_version }
    }

    /// When the node took the pod up: from the API, else from its oldest sandbox, else now.
    pub(super) fn start_time(&mut self, pod: &Pod, now: Now) -> Wall {
        if let Some(t) = self.start_time {
            return t;
        }
        let known = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
        let from_api = known.and_then(|t| i64::try_from(t.0.as_nanosecond()).ok()).map(Wall);
        let oldest = self.snapshot.as_ref().and_then(|s| s.sandboxes.iter().map(|s| s.created).min());
        let chosen = from_api.or(oldest).unwrap_or(now.wall);
        if self.snapshot.is_some() {
            self.start_time = Some(chosen);
        }
        chosen
    }

    /// The cgroup that `pod` should have; `None` on a node without pod cgroups.
    pub(super) fn wanted_cgroup(&mut self, pod: &Arc<Pod>) -> Option<Arc<PodCgroup>> {
        let known = self.wanted_cgroup.take().filter(|known| known.is_of(pod, &self.ctx));
        let known = known.unwrap_or_else(|| WantedCgroup::of(pod, &self.ctx));
        self.wanted_cgroup.insert(known).cgroup.clone()
    }

    /// Read-only mounts in the pod's newest sandbox can be read-only all the way down.
    pub(super) fn makes_read_only(&self) -> bool {
        let newest = self.snapshot.as_ref().and_then(|s| s.sandboxes.iter().max_by_key(|s| s.attempt));
        newest.is_some_and(|s| self.ctx.specs.makes_read_only(&s.runtime_handler))
    }
}
