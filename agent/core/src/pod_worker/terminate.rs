//! Terminating and terminated: stops all containers in order, then removes what the node does not keep.
//!
//! In: snapshots and the grace period. Out: stops, removals, the final status. Invariants: the terminating
//! record is durable before the first stop; regular containers stop before sidecars, sidecars in reverse
//! order; the grace period only shrinks; the worker publishes the final status only when no container can be
//! running. Upstream: `SyncTerminatingPod` and `SyncTerminatedPod` of pkg/kubelet/kubelet.go,
//! `killContainersWithSyncResult` of pkg/kubelet/kuberuntime/kuberuntime_container.go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_kubelet_api::logs::retention::RemovedLog;
use agent_types::event::EventKind;
use agent_types::ids::ContainerId;
use agent_types::kill::{KillReason, TerminatingRecord};
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot};
use agent_types::runtime::view::{self, SlotKind, Slots};
use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::api::PodAction;
use super::base::Base;
use super::pod_status::Stage;
use super::state::{Cleanup, PodWorkerState, Record, Removal, Terminated, Terminating, verdict};
use super::tracker::{Flight, Purpose, Target};
use super::{cgroups, claims, hooks, removal, volumes};
use crate::pod_actions;
use crate::pod_worker::effect::Effect;
use crate::pod_worker::sandboxes::{discard_sandbox, stop_sandboxes};
use crate::status::{Phase, terminated_status};

/// Grace period of a pod without one, in seconds; the API server fills it in.
pub(super) const DEFAULT_GRACE_S: i64 = 30;
/// Least grace of a `StopContainer` (upstream: `minimumGracePeriodInSeconds` of kuberuntime_manager.go).
pub(super) const MINIMUM_STOP_GRACE_S: u32 = 2;
/// A pod's own floor.
const MINIMUM_POD_GRACE_S: u32 = 1;

/// The grace a pod gets: the least of its deletion grace, the override and its specification; an orphan 1 s.
pub(super) fn effective_grace(p: Option<&Pod>, override_s: Option<u32>) -> u32 {
    let own = p.map_or(i64::from(MINIMUM_POD_GRACE_S), |p| {
        let spec = pod::spec(p).termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_S);
        p.metadata.deletion_grace_period_seconds.unwrap_or(spec)
    });
    let own = u32::try_from(own.max(0)).unwrap_or(u32::MAX);
    override_s.map_or(own, |o| o.min(own)).max(MINIMUM_POD_GRACE_S)
}

/// The state that an earlier incarnation left.
pub(super) fn resumed(record: &TerminatingRecord, now: Now) -> PodWorkerState {
    let elapsed = u64::try_from(now.wall.since(record.since).as_nanos()).unwrap_or(u64::MAX);
    let t = Terminating {
        pod: None,
        reason: record.reason.clone(),
        grace_s: record.grace_s,
        since: Mono(now.mono.0.saturating_sub(elapsed)),
        begun: true,
        remove: record.remove,
        desired_again: false,
        record: Record::Written,
        recorded: Some((record.grace_s, record.remove)),
        on_disk: Some(record.remove),
        reported: BTreeSet::new(),
        waiting: BTreeMap::new(),
    };
    if record.ended { PodWorkerState::Terminated(ended(&t)) } else { PodWorkerState::Terminating(t) }
}

/// Nothing of the pod runs or can come to run.
pub(super) fn ended(t: &Terminating) -> Terminated {
    Terminated {
        pod: t.pod.clone(),
        reason: t.reason.clone(),
        cleanup: if t.remove { Cleanup::Removing } else { Cleanup::Kept },
        desired_again: t.desired_again,
        waiting: t.waiting.clone(),
        removal: Removal::after(t),
    }
}

/// One pass of terminating. True when nothing of the pod runs or can come to run.
pub(super) fn advance(t: &mut Terminating, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) -> bool {
    drop_what_nobody_wants(b, t.grace_s, out);
    hooks::drop_post_start(b, out);
    let Some(snapshot) = b.snapshot.clone() else {
        b.want_snapshot_after(Mono(0));
        return false;
    };
    hooks::drop_of_ended(b, &snapshot, out);
    let live = snapshot.containers.iter().any(|c| view::is_live(c.state));
    if !live && had_ended(t, b, now) {
        t.reason = KillReason::Ended;
    }
    let remains = !(snapshot.containers.is_empty() && snapshot.sandboxes.is_empty());
    // What is half removed and then wanted again must be removed to the end first, or its remains would pass
    // for an earlier run of the new pod.
    let needs_record = live || (remains && t.remove) || is_told_by_the_record(t, remains);
    if needs_record && t.record != Record::Written {
        write_record(t, b, now, out);
        return false;
    }
    if live {
        stop_stage(t, b, &snapshot, now, out);
    }
    remove_created(b, &snapshot, now, out);
    if !stop_sandboxes(b, &snapshot, now, out) {
        b.want_news();
        return false;
    }
    b.may_conclude_absence(b.tracker.all_absent_after(), now)
        && claims::given_back(b, t.pod.as_deref(), now, out)
}

/// True if only the record can tell the next agent of the pod's end. The node decided on the end, so the containers do not show it,
/// and the source of a static pod has no status (simulation, probing, seed 60363). A pod that the node
/// refused was never begun: the next agent judges it anew, as upstream.
fn is_told_by_the_record(t: &Terminating, remains: bool) -> bool {
    let is_static = t.pod.as_deref().is_some_and(pod::is_static);
    is_static && verdict(&t.reason).is_some() && (remains || t.begun)
}

/// True if the pod had ended before the shutdown: the shutdown then does not change its end, as upstream,
/// which ends active pods only. An agent that has just started learns of it here (simulation, stopping, seed
/// 116). A record means that a container was already asked to stop.
fn had_ended(t: &Terminating, b: &mut Base, now: Now) -> bool {
    let by_itself = matches!(t.reason, KillReason::Shutdown { .. }) && t.record == Record::Needed;
    let p = t.pod.as_ref().filter(|_| by_itself);
    p.is_some_and(|p| b.ended(p, &t.waiting, Stage::default(), now).is_some())
}

/// Pulls are cancelled and not waited for: they change nothing of the pod. No container needs devices any more. Stops that were given
/// more time than is left now are cancelled and repeated once they are answered.
fn drop_what_nobody_wants(b: &mut Base, grace_s: u32, out: &mut Outbox<PodAction>) {
    for id in b.tracker.abandon_pulls() {
        out.push(PodAction::Cancel(id));
    }
    for (id, flight) in b.tracker.flights_mut().filter(|(_, f)| !f.cancelled) {
        let is_unwanted = match &flight.purpose {
            Purpose::Stop { grace_s: given, .. } => *given > grace_s.max(MINIMUM_STOP_GRACE_S),
            Purpose::AllocateDevices => true,
            _ => false,
        };
        if is_unwanted {
            flight.cancelled = true;
            out.push(PodAction::Cancel(*id));
        }
    }
}

fn write_record(t: &mut Terminating, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) {
    if t.record == Record::Writing {
        return;
    }
    t.record = Record::Writing;
    t.recorded = Some((t.grace_s, t.remove));
    let record = TerminatingRecord {
        pod: b.key.clone(),
        reason: t.reason.clone(),
        grace_s: t.grace_s,
        since: began(t.since, now),
        remove: t.remove,
        ended: false,
    };
    persist(b, record, now, out);
}

/// The wall clock's time of `since`.
pub(super) fn began(since: Mono, now: Now) -> Wall {
    let elapsed = i64::try_from(now.mono.since(since).as_nanos()).unwrap_or(i64::MAX);
    Wall(now.wall.0.saturating_sub(elapsed))
}

/// Has the record written.
pub(super) fn persist(b: &mut Base, record: TerminatingRecord, now: Now, out: &mut Outbox<PodAction>) {
    let flight = Flight {
        target: Target::Record,
        purpose: Purpose::Persist,
        issued: now.mono,
        deadline: None,
        cancelled: false,
    };
    let id = b.tracker.open(flight);
    out.push(PodAction::Persist { id, record });
}

/// Stops the containers that may stop now: everything but sidecars, and, when no regular container is live,
/// the last live sidecar. Sidecars do not wait for init and ephemeral containers. When the grace period is
/// over, all live containers stop at once, even next to a container that cannot be killed. Upstream:
/// `terminationOrdering` and `waitForTurn` of pkg/kubelet/kuberuntime/kuberuntime_termination_order.go.
fn stop_stage(
    t: &mut Terminating,
    b: &mut Base,
    snapshot: &PodSnapshot,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let p = t.pod.clone();
    let slots = p.as_deref().map(Slots::of);
    let slot_of = |c: &ContainerObserved| slots.as_ref().map(|all| all.get(&c.name));
    let kind_of = |c: &ContainerObserved| slot_of(c).map_or(SlotKind::Regular, |s| s.kind);
    let is_sidecar = |c: &ContainerObserved| kind_of(c) == SlotKind::Sidecar;
    let live = || snapshot.containers.iter().filter(|c| view::is_live(c.state));
    let grace = Duration::from_secs(u64::from(t.grace_s));
    let over = t.since.after(grace);
    let mut stage: Vec<&ContainerObserved> = live().filter(|c| now.mono >= over || !is_sidecar(c)).collect();
    if !live().any(|c| kind_of(c) == SlotKind::Regular) {
        stage.extend(live().filter(|c| is_sidecar(c)).max_by_key(|c| slot_of(c).map(|s| s.index)));
    }
    let stage: BTreeSet<&ContainerId> = stage.into_iter().map(|c| &c.id).collect();
    for c in live() {
        // Hooks run at once, also those of sidecars, whose stops wait for their turn.
        let its_turn = stage.contains(&c.id);
        if !its_turn {
            b.wake_at(over, now);
        }
        let target = Target::Container(c.name.clone());
        if !b.may_act(&target, now) {
            continue;
        }
        if t.reported.insert(c.id.clone()) {
            let text = format!("Stopping container {}", c.name);
            b.event(EventKind::Normal, "Killing", text, Some(&c.name), out);
        }
        let left = grace.saturating_sub(now.mono.since(t.since));
        if hooks::may_stop(b, p.as_deref(), c, left, now, out) && its_turn {
            let grace_s = left_of(grace, t.since, now);
            let purpose = Purpose::Stop { id: c.id.clone(), grace_s };
            let effect = Effect::StopContainer { container: c.id.clone(), grace_s };
            b.issue(now, target, purpose, effect, out);
        }
    }
}

/// Rest of a grace period that began at `since`, in whole seconds rounded up, never below the least grace of
/// a stop.
pub(super) fn left_of(grace: Duration, since: Mono, now: Now) -> u32 {
    let left = grace.saturating_sub(now.mono.since(since));
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX).max(MINIMUM_STOP_GRACE_S)
}

/// A container that was created and never started cannot be stopped, and a late start must not find it.
fn remove_created(b: &mut Base, snapshot: &PodSnapshot, now: Now, out: &mut Outbox<PodAction>) {
    for c in snapshot.containers.iter().filter(|c| c.state == ContainerState::Created) {
        if b.was_never_started(&c.name, now) {
            remove(b, c, Logs::Superseded, now, out);
        }
    }
}

/// Logs to remove with a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logs {
    /// None yet.
    WithThePod,
    /// What a newer instance supersedes.
    Superseded,
    /// All.
    All,
}

fn remove(b: &mut Base, c: &ContainerObserved, logs: Logs, now: Now, out: &mut Outbox<PodAction>) {
    let target = Target::Container(c.name.clone());
    if b.may_act(&target, now) {
        let of_it = |even_newest| Some(RemovedLog { path: c.log_path.clone(), even_newest });
        let log = match logs {
            Logs::WithThePod => None,
            Logs::Superseded => of_it(false),
            Logs::All => of_it(true),
        };
        let effect = Effect::RemoveContainer { container: c.id.clone(), log };
        b.issue(now, target, Purpose::Remove(c.id.clone()), effect, out);
    }
}

/// One pass of terminated. True when nothing is left at all.
pub(super) fn clean_up(t: &mut Terminated, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) -> bool {
    let Some(snapshot) = b.snapshot.clone() else {
        b.want_snapshot_after(Mono(0));
        return false;
    };
    b.want_news();
    // The cgroup is removed after the volumes: memory of volumes is charged to it.
    let all_gone = volumes::torn_down(b, t.pod.as_deref(), now, out) && cgroups::removed(b, now, out);
    match t.cleanup {
        Cleanup::Kept => {
            for c in pod_actions::superseded(&snapshot) {
                remove(b, c, Logs::Superseded, now, out);
            }
            false
        }
        Cleanup::Stripping => {
            empty(b, &snapshot, Logs::All, now, out);
            false
        }
        Cleanup::Removing => {
            removal::recorded(t, b, &snapshot, now, out) && remove_all(t, b, &snapshot, all_gone, now, out)
        }
    }
}

/// True if the containers may be removed: the API has the pod's end, and the pod does not start again. For a
/// static pod only the runtime records the end.
pub(super) fn may_be_stripped(t: &Terminated) -> bool {
    t.cleanup == Cleanup::Kept && t.pod.as_deref().is_some_and(|p| told_end(p) && !pod::is_static(p))
}

/// Removes containers and sandboxes. True when the snapshot has none and nothing is under way.
fn empty(b: &mut Base, snapshot: &PodSnapshot, logs: Logs, now: Now, out: &mut Outbox<PodAction>) -> bool {
    for c in &snapshot.containers {
        remove(b, c, logs, now, out);
    }
    if !snapshot.containers.is_empty() || b.tracker.any_container_busy() {
        return false;
    }
    if let Some(s) = snapshot.sandboxes.first() {
        if b.may_act(&Target::Sandbox, now) {
            discard_sandbox(b, &s.id, now, out);
        }
        return false;
    }
    true
}

fn remove_all(
    t: &Terminated,
    b: &mut Base,
    snapshot: &PodSnapshot,
    all_gone: bool,
    now: Now,
    out: &mut Outbox<PodAction>,
) -> bool {
    if !empty(b, snapshot, Logs::WithThePod, now, out) {
        return false;
    }
    if !b.tracker.all_fresh(snapshot.as_of) || !b.may_conclude_absence(b.tracker.all_absent_after(), now) {
        return false;
    }
    if !all_gone || b.tracker.busy(&Target::Dirs) {
        return false;
    }
    if let Some(held) = b.tracker.held_until(&Target::Dirs, now.mono) {
        b.wake_at(held, now);
        return false;
    }
    // A static pod whose manifest returned has its old UID; as upstream it counts as restarted.
    let keep_logs = t.desired_again && t.pod.as_deref().is_some_and(pod::is_static);
    b.issue(now, Target::Dirs, Purpose::RemoveDirs, Effect::RemovePodDirs { keep_logs }, out);
    false
}

/// Publishes the status of a terminating pod, if its specification is known. A terminal phase is withheld, because a start
/// that was in flight when termination began may still succeed (upstream: `mergePodStatus` of
/// pkg/kubelet/status/status_manager.go).
pub(super) fn publish(t: &Terminating, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) {
    // An incarnation before this one may have begun to remove a pod that is wanted again, and a call of its may still come
    // through (simulation, stopping, seed 119).
    if let Some(p) = t.pod.clone().filter(|p| can_tell(p, b)) {
        let verdict = verdict(&t.reason);
        let unended = |b: &Base, status: PodStatus| without_end(b, &p, status);
        b.tell(&p, &t.waiting, Stage::down(verdict.as_ref()), now, unended, out);
    }
}

/// The status in the phase before it, if it shows an end that no status has shown yet.
fn without_end(b: &Base, p: &Pod, mut status: PodStatus) -> Option<PodStatus> {
    let over = |s: &PodStatus| Phase::end(s).is_some();
    let known = [b.published.as_deref(), p.status.as_ref()].into_iter().flatten().any(over);
    if over(&status) && !known {
        // Without a phase nothing was published since the restart, and the last status of an earlier incarnation is
        // unknown.
        status.phase = Some(b.published.as_ref()?.phase.clone()?);
        (status.reason, status.message) = (None, None);
    }
    Some(status)
}

/// Publishes the status of an ended pod: a container without a known end is reported as lost. Removed
/// containers add no new facts.
pub(super) fn publish_final(t: &Terminated, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) {
    let removing = t.cleanup != Cleanup::Kept;
    if let Some(p) = t.pod.clone().filter(|p| !removing || can_tell(p, b)) {
        let verdict = verdict(&t.reason);
        let ended = |_: &Base, status: PodStatus| Some(terminated_status(&p, &status));
        b.tell(&p, &t.waiting, Stage::over(verdict.as_ref()), now, ended, out);
    }
}

/// True if the pod's status shows its end.
fn told_end(p: &Pod) -> bool {
    p.status.as_ref().and_then(Phase::end).is_some()
}

/// False after a restart in the middle of removal: some containers are gone already, and the new status must
/// not contradict that of an earlier incarnation. An API pod has its end in its status, once it was
/// published; a status without an end may be stale (a list of a server that lags behind).
fn can_tell(p: &Pod, b: &Base) -> bool {
    if told_end(p) && !pod::is_static(p) {
        return true;
    }
    let seen = |name: &str| b.snapshot.as_ref().is_some_and(|s| !s.containers.of(name).is_empty());
    let all = || pod::init_containers(p).iter().chain(pod::containers(p));
    b.published.is_some() || all().all(|c| seen(&c.name))
}
