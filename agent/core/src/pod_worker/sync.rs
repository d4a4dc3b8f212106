//! Sync: carries out the plan of [`pod_actions`], as far as it may be done now.
//!
//! In: the plan and the effects in flight. Out: effects, events, waiting reasons; or the decision to terminate.
//! Invariants: stops before starts; the worker creates nothing while an unanswered call of an earlier
//! incarnation may still take effect; containers start one at a time in order. Upstream: `SyncPod` of
//! pkg/kubelet/kubelet.go and of pkg/kubelet/kuberuntime/kuberuntime_manager.go.

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
use super::base::Base;
use super::pod_status::Stage;
use super::state::{Occasion, Syncing};
use super::tracker::{Purpose, Target};
use super::{cgroups, claims, hooks, reset, resize, runtime_class, start, users, volumes};
use crate::allocation::actuate::{self, Actual};
use crate::pod_actions::{self, Inputs, PodActions, Replaced, SandboxPlan};
use crate::pod_worker::back_off::{BackOffKeys, RESTART_BACK_OFF};
use crate::pod_worker::effect::Effect;
use crate::pod_worker::pass::Pass;
use crate::pod_worker::sandboxes::{discard_sandbox, refuse_sandbox, stop_sandboxes};
use crate::status::WaitingReason;

/// The delay that an instance's annotation notes for the series `key`.
fn back_off_of(c: &ContainerObserved, key: &str) -> Option<Duration> {
    let (seconds, series) = c.annotations.get(RESTART_BACK_OFF)?.split_once(' ')?;
    (series == key).then(|| seconds.parse().ok().map(Duration::from_secs)).flatten()
}

/// One pass. `Some` if the pod must be terminated instead.
pub(super) fn advance(pass: &mut Pass<'_>) -> Option<KillReason> {
    let Some(snapshot) = pass.base.snapshot.clone() else {
        pass.base.want_snapshot_after(Mono(0));
        return None;
    };
    if !pass.base.replaced.is_empty() {
        let ids = snapshot.containers.ids();
        pass.base.replaced.retain(|id, _| ids.contains(id));
    }
    digest(pass.state, &pass.base.replaced, &snapshot, pass.now);
    hooks::give_up(pass, &snapshot);
    if !pass.state.hook_failed.is_empty() && pass.base.tracker.all_fresh(snapshot.as_of) {
        let ids = snapshot.containers.ids();
        pass.state.hook_failed.retain(|id| ids.contains(id));
    }
    if past_active_deadline(pass.state, pass.base, pass.now) {
        let text = "Pod was active on the node longer than the specified deadline";
        pass.event(EventKind::Normal, "DeadlineExceeded", text, None);
        return Some(KillReason::DeadlineExceeded);
    }
    let (specs, p) = (pass.base.ctx.specs.clone(), pass.state.pod.clone());
    let actual = actuate::actual(&p, &snapshot, &*specs);
    resize::observe(pass, &actual);
    let actions = plan(pass.state, pass.base, &snapshot, &actual.restarting(), pass.now);
    let restarting = resize::give_back(pass, &actual, &actions);
    pass.base.resetting = actions.resetting;
    if actions.resetting {
        reset::begin(pass);
    }
    note_waiting(pass, &actions, &snapshot);
    // One that was killed to come back, and ended well of it, has not ended the pod.
    let replacing = actions.sandbox != SandboxPlan::Stop && comes_back(&pass.state.pod, pass.base, &snapshot);
    if pass.state.chain.is_none()
        && !actions.resetting
        && !replacing
        && pass.base.tracker.all_fresh(snapshot.as_of)
        && pass.base.ended(&pass.state.pod, &pass.state.waiting, Stage::default(), pass.now).is_some()
    {
        return Some(KillReason::Ended);
    }
    pass.base.want_news();
    if actions.over && !replacing {
        // The containers stop in their order, with one grace period for all.
        return pass.base.tracker.all_fresh(snapshot.as_of).then_some(KillReason::Ended);
    }
    if actions.sandbox != SandboxPlan::Stop {
        volumes::advance(pass.base, &pass.state.pod.clone(), pass.now, pass.out);
    }
    if let Some(refused) = volumes::refused(pass.base, pass.out) {
        return Some(refused);
    }
    if pass.base.tracker.busy(&Target::Resize) {
        return None;
    }
    stop_containers(pass, &actions);
    remove_dead(pass.base, &actions, pass.now, pass.out);
    if actions.resetting {
        reset::finish(pass, &actions, &snapshot);
        return None;
    }
    match &actions.sandbox {
        SandboxPlan::Keep(home) => {
            remove_sandboxes(pass.base, &actions, pass.now, pass.out);
            let has_claims = claims::found(pass);
            let resizes = !restarting && resize::advance(pass, &actual, home);
            if !resizes
                && !pass.base.resize.gives_back
                && pass.base.tracker.fresh(&Target::Sandbox, snapshot.as_of)
                && !actions.start.is_empty()
                && has_claims
                && volumes::mounted(pass.base, pass.now, pass.out)
                && cgroups::made(pass, &actual)
                && users::known(pass, None)
            {
                start::begin_next(pass, home, &actions);
            }
        }
        SandboxPlan::Create { attempt, replaces } => {
            replace_sandbox(pass, *attempt, *replaces, &actual);
        }
        SandboxPlan::Stop => {
            if stop_sandboxes(pass.base, &snapshot, pass.now, pass.out)
                && pass.base.tracker.all_fresh(snapshot.as_of)
            {
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

/// The sandbox is gone, no new one is allowed, and the ended containers do not decide the phase: at least one
/// never ran. Upstream leaves such a pod Pending for ever.
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

/// Passes ended instances to the back-off, and takes over the series that an earlier incarnation left in
/// annotations.
fn digest(s: &mut Syncing, replaced: &Replaced, snapshot: &PodSnapshot, now: Now) {
    if !s.back_off_keys.is_of(&s.pod) {
        s.back_off_keys = BackOffKeys::of(&s.pod);
    }
    if !s.back_off.is_empty() {
        let keys = s.back_off_keys.keys();
        s.back_off.retain(|k| keys.contains(k));
    }
    for (slot, key) in s.back_off_keys.all() {
        let Some(c) = view::newest(snapshot, &slot.name) else { continue };
        if let Some(delay) = back_off_of(c, key) {
            s.back_off.restore(key, delay, c.created);
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
                s.back_off.observe_exit(key, Exit { instance: &c.id, finished, killed_after }, now);
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
fn note_waiting(pass: &mut Pass<'_>, actions: &PodActions, snapshot: &PodSnapshot) {
    for w in &actions.waiting {
        pass.base.wake_at(w.until, pass.now);
        let (name, key) = (&w.slot.name, pass.base.key.clone());
        let delay = orlop_config::Duration::from(w.delay);
        let message = format!("back-off {delay} restarting failed container={name} pod={key}");
        pass.state
            .waiting
            .insert(name.clone(), WaitingReason { reason: "CrashLoopBackOff".to_owned(), message });
        if pass.state.reported.insert(Occasion::BackOff(w.instance.clone())) {
            let text = format!("Back-off restarting failed container {name} in pod {key}");
            pass.event(EventKind::Warning, "BackOff", text, Some(name));
        }
    }
    // Forgets the events about instances that are gone.
    if pass.state.reported.iter().any(|occasion| matches!(occasion, Occasion::BackOff(_))) {
        let ids = snapshot.containers.ids();
        pass.state.reported.retain(|occasion| match occasion {
            Occasion::BackOff(id) => ids.contains(id),
            _ => true,
        });
    }
}

fn stop_containers(pass: &mut Pass<'_>, actions: &PodActions) {
    let Some(snapshot) = pass.base.snapshot.clone() else { return };
    let own = pod::spec(&pass.state.pod).termination_grace_period_seconds;
    for kill in &actions.kill {
        let grace = kill.grace_s.or(own).unwrap_or(super::terminate::DEFAULT_GRACE_S);
        let grace_s = u32::try_from(grace).unwrap_or(0);
        let target = Target::Container(kill.slot.name.clone());
        if !pass.base.may_act(&target, pass.now) {
            continue;
        }
        if kill.replace {
            let last_end = || pod_actions::last_end(&snapshot, &kill.slot.name);
            pass.base.replaced.entry(kill.id.clone()).or_insert_with(last_end);
        }
        if pass.state.reported.insert(Occasion::Killing(kill.id.clone())) {
            pass.event(EventKind::Normal, "Killing", kill.message.clone(), Some(&kill.slot.name));
        }
        let of_name = snapshot.containers.of(&kill.slot.name);
        let Some(c) = of_name.iter().find(|c| c.id == kill.id) else { continue };
        let grace = Duration::from_secs(u64::from(grace_s));
        let p = pass.state.pod.clone();
        if !actions.resetting && !hooks::may_stop(pass.base, Some(&p), c, grace, pass.now, pass.out) {
            continue;
        }
        let (since, grace) = hooks::begun(pass.base, &kill.id, grace, pass.now);
        let grace_s = if actions.resetting { 0 } else { super::terminate::left_of(grace, since, pass.now) };
        let purpose = Purpose::Stop { id: kill.id.clone(), grace_s };
        pass.issue(target, purpose, Effect::StopContainer { container: kill.id.clone(), grace_s });
    }
}

fn remove_dead(b: &mut Base, actions: &PodActions, now: Now, out: &mut Outbox<PodAction>) {
    for (name, id) in &actions.remove {
        let target = Target::Container(name.clone());
        if b.may_act(&target, now) && b.was_never_started(name, now) {
            let observed =
                b.snapshot.as_ref().and_then(|s| s.containers.of(name).iter().find(|c| c.id == *id));
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

fn replace_sandbox(pass: &mut Pass<'_>, attempt: u32, replaces: bool, actual: &Actual<'_>) {
    let Some(snapshot) = pass.base.snapshot.clone() else { return };
    if replaces && pass.state.reported.insert(Occasion::SandboxChanged(attempt)) {
        let text = "Pod sandbox changed, it will be killed and re-created.";
        pass.event(EventKind::Normal, "SandboxChanged", text, None);
    }
    if !stop_sandboxes(pass.base, &snapshot, pass.now, pass.out) || !network_ready(pass) {
        return;
    }
    // Side by side: directories and the cgroup.
    let (has_dirs, has_cgroup) = (dirs_made(pass), cgroups::made(pass, actual));
    if !has_dirs || !has_cgroup || !volumes::let_sandbox(pass.base, pass.now, pass.out) {
        return;
    }
    if !pass.base.may_act(&Target::Sandbox, pass.now)
        || !pass.base.may_conclude_absence(pass.base.tracker.all_absent_after(), pass.now)
    {
        return;
    }
    debug_assert!(snapshot.sandboxes.iter().all(|x| x.state == SandboxState::NotReady));
    if !claims::prepared(pass, attempt) {
        return;
    }
    let Some(runtime_handler) = runtime_class::handler(pass) else { return };
    if !users::known(pass, Some(&runtime_handler)) {
        runtime_class::keep(pass.state, runtime_handler);
        return;
    }
    match pass.base.ctx.specs.sandbox(&pass.state.pod, attempt, pass.base.volumes.claims()) {
        Ok(config) => {
            let mut config = SandboxConfig { runtime_handler, ..config };
            users::of_sandbox(pass.state, &mut config);
            for warning in pass.base.ctx.specs.dns_warnings(&pass.state.pod) {
                if pass.state.reported.insert(Occasion::DnsConfig(attempt, warning.message.clone())) {
                    pass.event(EventKind::Warning, warning.reason, warning.message, None);
                }
            }
            let effect = Effect::RunSandbox { config: Box::new(config) };
            pass.issue(Target::Sandbox, Purpose::RunSandbox, effect);
        }
        Err(e) => refuse_sandbox(pass.base, &e.message, pass.now, pass.out),
    }
}

fn network_ready(pass: &mut Pass<'_>) -> bool {
    let Err(why) = pass.base.network.clone() else { return true };
    if pod::host_network(&pass.state.pod) {
        return true;
    }
    if pass.state.reported.insert(Occasion::NetworkNotReady(why.clone())) {
        pass.event(EventKind::Warning, "NetworkNotReady", format!("network is not ready: {why}"), None);
    }
    let second = Duration::from_secs(1);
    pass.base.wake_at(
        pass.now.mono.after(restart::jittered(second, pass.base.key.uid.as_str(), pass.now.mono.0)),
        pass.now,
    );
    false
}

fn dirs_made(pass: &mut Pass<'_>) -> bool {
    if pass.state.dirs_made || pass.base.tracker.busy(&Target::Dirs) {
        return pass.state.dirs_made;
    }
    if let Some(held) = pass.base.tracker.held_until(&Target::Dirs, pass.now.mono) {
        pass.base.wake_at(held, pass.now);
        return false;
    }
    let effect = pass.base.ctx.specs.pod_dirs(&pass.state.pod).into();
    pass.state.begun = true;
    pass.issue(Target::Dirs, Purpose::CreateDirs, effect);
    false
}
