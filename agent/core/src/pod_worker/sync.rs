//! Syncing: carry out the plan of [`pod_actions`], as far as it may be done now.
//!
//! In: the plan and the ledger. Out: effects, events, waiting reasons; or the decision to terminate.
//! Invariants: stops before starts; nothing is created on silence that may be a zombie's; containers come up
//! one at a time in order. Upstream: SyncPod (contract 6.3, 7.2).

use std::collections::BTreeSet;
use std::time::Duration;

use agent_kubelet_api::logs::retention::RemovedLog;
use agent_types::event::EventKind;
use agent_types::ids::ContainerId;
use agent_types::kill::KillReason;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::restart::{self, Exit};
use agent_types::runtime::config::SandboxConfig;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot, SandboxState};
use agent_types::runtime::view;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use super::api::PodAction;
use super::base::{Base, Stage};
use super::ledger::{Purpose, Target};
use super::state::{Occasion, Syncing};
use super::{cgroups, hooks, reset, resize, runtime_class, start, users, volumes};
use crate::allocation::actuate;
use crate::pod_actions::{self, Inputs, PodActions, Replaced, SandboxPlan, ended};
use crate::pod_worker::back_off::RESTART_BACK_OFF;
use crate::pod_worker::effect::Effect;
use crate::pod_worker::sandboxes::{discard_sandbox, refuse_sandbox, stop_sandboxes};
use crate::status::WaitingReason;

/// The delay that an instance's annotation notes for the series `key`.
fn back_off_of(c: &ContainerObserved, key: &str) -> Option<Duration> {
    let (seconds, series) = c.annotations.get(RESTART_BACK_OFF)?.split_once(' ')?;
    (series == key).then(|| seconds.parse().ok().map(Duration::from_secs)).flatten()
}

/// One pass. `Some` if the pod must be terminated instead.
pub(super) fn advance(
    s: &mut Syncing,
    b: &mut Base,
    now: Now,
    out: &mut Outbox<PodAction>,
) -> Option<KillReason> {
    let Some(snapshot) = b.snapshot.clone() else {
        b.want_snapshot_after(Mono(0));
        return None;
    };
    b.replaced.retain(|id, _| snapshot.containers.iter().any(|c| c.id == *id));
    digest(s, &b.replaced, &snapshot, now);
    hooks::give_up(s, b, &snapshot, out);
    if b.ledger.all_fresh(snapshot.as_of) {
        s.hook_failed.retain(|id| snapshot.containers.iter().any(|c| c.id == *id));
    }
    if past_active_deadline(s, b, now) {
        let text = "Pod was active on the node longer than the specified deadline";
        b.event(EventKind::Normal, "DeadlineExceeded", text, None, out);
        return Some(KillReason::DeadlineExceeded);
    }
    let (specs, p) = (b.ctx.specs.clone(), s.pod.clone());
    let actual = actuate::actual(&p, &snapshot, &*specs);
    resize::observe(s, b, &actual, out);
    let actions = plan(s, b, &snapshot, &actual.restarting(), now);
    b.resetting = actions.resetting;
    if actions.resetting {
        reset::begin(s, b, out);
    }
    note_waiting(s, b, &actions, &snapshot, now, out);
    // One that was killed to come back, and ended well of it, has not ended the pod.
    let replacing = actions.sandbox != SandboxPlan::Stop && comes_back(&s.pod, b, &snapshot);
    if s.chain.is_none()
        && !actions.resetting
        && !replacing
        && b.ledger.all_fresh(snapshot.as_of)
        && b.ended(&s.pod, &s.waiting, Stage::default(), now).is_some()
    {
        return Some(KillReason::Ended);
    }
    if b.ledger.known_after() >= snapshot.as_of {
        b.want_snapshot_after(b.ledger.known_after());
    }
    if actions.over && !replacing {
        // Its containers stop in their order, with one grace for all of them.
        return b.ledger.all_fresh(snapshot.as_of).then_some(KillReason::Ended);
    }
    if actions.sandbox != SandboxPlan::Stop {
        volumes::advance(b, &s.pod.clone(), now, out);
    }
    if let Some(refused) = volumes::refused(b, out) {
        return Some(refused);
    }
    if b.ledger.busy(&Target::Resize) {
        return None;
    }
    stop_containers(s, b, &actions, now, out);
    remove_dead(b, &actions, now, out);
    if actions.resetting {
        reset::finish(s, b, &actions, &snapshot, now, out);
        return None;
    }
    match &actions.sandbox {
        SandboxPlan::Keep(home) => {
            remove_sandboxes(b, &actions, now, out);
            if !resize::advance(s, b, &actual, home, now, out)
                && b.ledger.fresh(&Target::Sandbox, snapshot.as_of)
                && !actions.start.is_empty()
                && volumes::mounted(b, now, out)
                && cgroups::made(s, b, now, out)
                && users::known(s, b, None, now, out)
            {
                start::begin_next(s, b, home, &actions, now, out);
            }
        }
        SandboxPlan::Create { attempt, replaces } => {
            replace_sandbox(s, b, *attempt, *replaces, now, out);
        }
        SandboxPlan::Stop => {
            if stop_sandboxes(b, &snapshot, now, out) && b.ledger.all_fresh(snapshot.as_of) {
                return Some(sandbox_lost());
            }
        }
    }
    None
}

/// A regular container was killed to come back, and has not come back yet. It waits for its back-off, for a new sandbox, or
/// for init containers that run again in that.
fn comes_back(p: &Pod, b: &Base, snapshot: &PodSnapshot) -> bool {
    let killed = |name: &str| view::newest(snapshot, name).is_some_and(|c| b.replaced.contains_key(&c.id));
    pod::containers(p).iter().any(|c| killed(&c.name))
}

/// The sandbox is gone, no new one is allowed, and the containers that ended do not decide the phase: one of
/// them never ran. Upstream leaves such a pod Pending for ever.
fn sandbox_lost() -> KillReason {
    KillReason::Failed {
        reason: "SandboxChanged".to_owned(),
        message:
            "The pod's sandbox was lost before every container had run, and its restart policy allows no \
                  new one."
                .to_owned(),
        disruption: None,
    }
}

fn plan(
    s: &Syncing,
    b: &Base,
    snapshot: &PodSnapshot,
    resized: &BTreeSet<ContainerId>,
    now: Now,
) -> PodActions {
    let specs = b.ctx.specs.clone();
    pod_actions::compute(&Inputs {
        pod: &s.pod,
        snapshot,
        back_off: &s.back_off,
        replaced: &b.replaced,
        probes: b.probes.verdicts(),
        hook_failed: &s.hook_failed,
        resized,
        hash: &|name, image| specs.container_hash(name, image),
        now: now.mono,
    })
}

/// Tells the back-off what ended, taking over what an earlier incarnation left in annotations.
fn digest(s: &mut Syncing, replaced: &Replaced, snapshot: &PodSnapshot, now: Now) {
    let slots = view::slots(&s.pod);
    let keys: BTreeSet<String> = slots.iter().map(|slot| ended::back_off_key(&s.pod, slot)).collect();
    s.back_off.retain(|k| keys.contains(k));
    for slot in &slots {
        let Some(c) = view::newest(snapshot, &slot.name) else { continue };
        let key = ended::back_off_key(&s.pod, slot);
        if let Some(delay) = back_off_of(c, &key) {
            s.back_off.restore(&key, delay, c.created);
        }
        match c.state {
            ContainerState::Running if s.hook_failed.contains(&c.id) => {}
            ContainerState::Running => {
                s.waiting.remove(&slot.name);
                s.reset_ends.remove(&slot.name);
            }
            // Its successor has been counted already: this instance has done its waiting.
            ContainerState::Exited if s.counted.get(&slot.name) == Some(&c.attempt.saturating_add(1)) => {}
            ContainerState::Exited => {
                let killed_after = replaced.get(&c.id).copied();
                let finished = c.finished.unwrap_or(c.created);
                s.back_off.observe_exit(&key, Exit { instance: &c.id, finished, killed_after }, now);
            }
            ContainerState::Created | ContainerState::Unknown => {}
        }
    }
}

fn past_active_deadline(s: &Syncing, b: &mut Base, now: Now) -> bool {
    let Some(seconds) = pod::spec(&s.pod).active_deadline_seconds else { return false };
    let allowed = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let used = now.wall.since(b.start_time(&s.pod.clone(), now));
    if used >= allowed {
        return true;
    }
    b.wake_at(now.mono.after(allowed.saturating_sub(used)), now);
    false
}

/// Crash-loop waits: reason in the status, one event for each ended instance, a timer.
fn note_waiting(
    s: &mut Syncing,
    b: &mut Base,
    actions: &PodActions,
    snapshot: &PodSnapshot,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    for w in &actions.waiting {
        b.wake_at(w.until, now);
        let (name, key) = (&w.slot.name, b.key.clone());
        let delay = orlop_config::Duration::from(w.delay);
        let message = format!("back-off {delay} restarting failed container={name} pod={key}");
        s.waiting.insert(name.clone(), WaitingReason { reason: "CrashLoopBackOff".to_owned(), message });
        if s.reported.insert(Occasion::BackOff(w.instance.clone())) {
            let text = format!("Back-off restarting failed container {name} in pod {key}");
            b.event(EventKind::Warning, "BackOff", text, Some(name), out);
        }
    }
    // Instances that are gone do not wait again.
    s.reported.retain(|occasion| match occasion {
        Occasion::BackOff(id) => snapshot.containers.iter().any(|c| c.id == *id),
        _ => true,
    });
}

fn stop_containers(
    s: &mut Syncing,
    b: &mut Base,
    actions: &PodActions,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let Some(snapshot) = b.snapshot.clone() else { return };
    let own = pod::spec(&s.pod).termination_grace_period_seconds;
    for kill in &actions.kill {
        let grace = kill.grace_s.or(own).unwrap_or(super::terminate::DEFAULT_GRACE_S);
        let grace_s = u32::try_from(grace).unwrap_or(0);
        let target = Target::Container(kill.slot.name.clone());
        if !b.may_act(&target, now) {
            continue;
        }
        if kill.replace {
            let last_end = || pod_actions::last_end(&snapshot, &kill.slot.name);
            b.replaced.entry(kill.id.clone()).or_insert_with(last_end);
        }
        if s.reported.insert(Occasion::Killing(kill.id.clone())) {
            b.event(EventKind::Normal, "Killing", kill.message.clone(), Some(&kill.slot.name), out);
        }
        let Some(c) = snapshot.containers.iter().find(|c| c.id == kill.id) else { continue };
        let grace = Duration::from_secs(u64::from(grace_s));
        let p = s.pod.clone();
        if !actions.resetting && !hooks::may_stop(b, Some(&p), c, grace, now, out) {
            continue;
        }
        let (since, grace) = hooks::begun(b, &kill.id, grace, now);
        let grace_s = if actions.resetting { 0 } else { super::terminate::left_of(grace, since, now) };
        let purpose = Purpose::Stop { id: kill.id.clone(), grace_s };
        b.issue(now, target, purpose, Effect::StopContainer { container: kill.id.clone(), grace_s }, out);
    }
}

fn remove_dead(b: &mut Base, actions: &PodActions, now: Now, out: &mut Outbox<PodAction>) {
    for (name, id) in &actions.remove {
        let target = Target::Container(name.clone());
        if b.may_act(&target, now) && b.was_never_started(name, now) {
            let observed = b.snapshot.as_ref().and_then(|s| s.containers.iter().find(|c| c.id == *id));
            let log = observed.map(|c| RemovedLog { path: c.log_path.clone(), even_newest: false });
            let effect = Effect::RemoveContainer { container: id.clone(), log };
            b.issue(now, target, Purpose::Remove(id.clone()), effect, out);
        }
    }
}

fn remove_sandboxes(b: &mut Base, actions: &PodActions, now: Now, out: &mut Outbox<PodAction>) {
    let Some(id) = actions.remove_sandboxes.first() else { return };
    if b.may_act(&Target::Sandbox, now) {
        discard_sandbox(b, id, now, out);
    }
}

fn replace_sandbox(
    s: &mut Syncing,
    b: &mut Base,
    attempt: u32,
    replaces: bool,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let Some(snapshot) = b.snapshot.clone() else { return };
    if replaces && s.reported.insert(Occasion::SandboxChanged(attempt)) {
        let text = "Pod sandbox changed, it will be killed and re-created.";
        b.event(EventKind::Normal, "SandboxChanged", text, None, out);
    }
    if !stop_sandboxes(b, &snapshot, now, out) || !network_ready(s, b, now, out) {
        return;
    }
    // Side by side: directories and the cgroup.
    let (has_dirs, has_cgroup) = (dirs_made(s, b, now, out), cgroups::made(s, b, now, out));
    if !has_dirs || !has_cgroup || !volumes::let_sandbox(b, now, out) {
        return;
    }
    if !b.may_act(&Target::Sandbox, now) || !b.may_conclude_absence(b.ledger.all_absent_after(), now) {
        return;
    }
    debug_assert!(snapshot.sandboxes.iter().all(|x| x.state == SandboxState::NotReady));
    let Some(runtime_handler) = runtime_class::handler(s, b, now, out) else { return };
    if !users::known(s, b, Some(&runtime_handler), now, out) {
        runtime_class::keep(s, runtime_handler);
        return;
    }
    match b.ctx.specs.sandbox(&s.pod, attempt, b.volumes.claims()) {
        Ok(config) => {
            let mut config = SandboxConfig { runtime_handler, ..config };
            users::of_sandbox(s, &mut config);
            for warning in b.ctx.specs.dns_warnings(&s.pod) {
                if s.reported.insert(Occasion::DnsConfig(attempt, warning.message.clone())) {
                    b.event(EventKind::Warning, warning.reason, warning.message, None, out);
                }
            }
            let effect = Effect::RunSandbox { config: Box::new(config) };
            b.issue(now, Target::Sandbox, Purpose::RunSandbox, effect, out);
        }
        Err(e) => refuse_sandbox(b, &e.message, now, out),
    }
}

fn network_ready(s: &mut Syncing, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) -> bool {
    let Err(why) = b.network.clone() else { return true };
    if pod::host_network(&s.pod) {
        return true;
    }
    if s.reported.insert(Occasion::NetworkNotReady(why.clone())) {
        b.event(EventKind::Warning, "NetworkNotReady", format!("network is not ready: {why}"), None, out);
    }
    let second = Duration::from_secs(1);
    b.wake_at(now.mono.after(restart::jittered(second, b.key.uid.as_str(), now.mono.0)), now);
    false
}

fn dirs_made(s: &mut Syncing, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) -> bool {
    if s.dirs_made || b.ledger.busy(&Target::Dirs) {
        return s.dirs_made;
    }
    if let Some(held) = b.ledger.held_until(&Target::Dirs, now.mono) {
        b.wake_at(held, now);
        return false;
    }
    let effect = b.ctx.specs.pod_dirs(&s.pod).into();
    b.issue(now, Target::Dirs, Purpose::CreateDirs, effect, out);
    false
}
