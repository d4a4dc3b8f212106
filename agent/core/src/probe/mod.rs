//! Probes of one pod: schedules the probes of each container, and derives which containers have started, are
//! ready, or must be killed.
//!
//! In: the pod, its running containers, outcomes of probes. Out: probes to run ([`ProbeAction::Ask`]),
//! events, and [`Verdicts`] for the plan and the status. The pod worker owns one [`PodProbes`] and its timer:
//! a hundred pods with probes are a hundred timers, and no work between them.
//!
//! Invariants: PROBE-OWN, an outcome counts only for the instance that was probed; at most one probe in
//! flight for each (container, kind); liveness and readiness wait until the container has started; a
//! terminating pod has readiness probes only. Upstream: pkg/kubelet/prober. Differences:
//! docs/internals/agent/probes-and-hooks.md.

pub mod check;
mod handler_url;
mod slot;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::ContainerId;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot};
use agent_types::runtime::view::newest;
use agent_types::time::{Mono, Now};
use agent_types::{pod, restart};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};
use serde::{Deserialize, Serialize};

use self::check::{Check, check};
use self::slot::{Instance, ProbeResult, ProbeUpdate, Slot, Timing};

/// Which probe of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Startup: no other probe runs before its success.
    Startup,
    /// Must it be killed?
    Liveness,
    /// Does it take requests?
    Readiness,
}

impl Kind {
    /// Every kind, in the order in which they matter.
    pub const ALL: [Kind; 3] = [Kind::Startup, Kind::Liveness, Kind::Readiness];

    /// The container's probe of this kind.
    #[must_use]
    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Kind::Startup => container.startup_probe.as_ref(),
            Kind::Liveness => container.liveness_probe.as_ref(),
            Kind::Readiness => container.readiness_probe.as_ref(),
        }
    }

    /// As in `Container c failed liveness probe`.
    #[must_use]
    pub fn as_lower_str(self) -> &'static str {
        match self {
            Kind::Startup => "startup",
            Kind::Liveness => "liveness",
            Kind::Readiness => "readiness",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        })
    }
}

/// Names one question of one pod worker; its outcome carries it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProbeId(pub u64);

/// One question, to be carried out by the shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeCall {
    /// Instance to probe.
    pub container: ContainerId,
    /// Its name in the pod.
    pub name: String,
    /// Which of its probes.
    pub kind: Kind,
    /// Action of the probe.
    pub check: Check,
    /// No answer in this time is a failure.
    pub timeout: Duration,
}

/// How a question was answered. Texts are for people, bounded by the shell (10 KiB).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// As it should be.
    Success,
    /// A success with a warning.
    Warning(String),
    /// Not as it should be, or no answer in time.
    Failure(String),
    /// The probe itself failed.
    Error(String),
    /// The answer broke off: it counts for nothing, like [`Outcome::Error`], and the event calls it a failure.
    Broken(String),
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAction {
    /// Carry this out and answer with [`PodProbes::answered`].
    Ask(ProbeId, Box<ProbeCall>),
    /// The machine no longer waits for this answer.
    Cancel(ProbeId),
    /// A Kubernetes event of type Warning about a container.
    Event {
        /// `Unhealthy` or `ProbeWarning`.
        reason: &'static str,
        /// Message for people.
        message: String,
        /// The container's name.
        container: String,
    },
}

/// Verdicts of probes about the running instances. An instance in none of these has started and is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// It failed this probe and must be killed.
    pub failed: BTreeMap<ContainerId, Kind>,
    /// It has not started yet, as far as is known.
    pub starting: BTreeSet<ContainerId>,
    /// It is not ready, as far as is known.
    pub unready: BTreeSet<ContainerId>,
}

impl Verdicts {
    /// No probes: everything that runs has started and is ready.
    pub const NONE: &'static Verdicts =
        &Verdicts { failed: BTreeMap::new(), starting: BTreeSet::new(), unready: BTreeSet::new() };
}

/// The pod as its worker sees it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The desired pod; its status is the API server's.
    pub pod: &'a Arc<Pod>,
    /// What runs.
    pub snapshot: &'a PodSnapshot,
    /// The pod is on its way out.
    pub terminating: bool,
    /// The instance whose postStart hook is still running.
    pub hooked: Option<&'a ContainerId>,
    /// When the agent started.
    pub agent_started: Now,
    /// The pod's primary address; empty if it has none.
    pub pod_ip: &'a str,
    /// Scheme of container ids in statuses.
    pub runtime_name: &'a str,
}

/// All probes of one pod.
#[derive(Clone, Debug, Default)]
pub struct PodProbes {
    slots: BTreeMap<(String, Kind), Slot>,
    verdicts: Verdicts,
    pod: Option<Arc<Pod>>,
    pod_ip: String,
    next_id: u64,
}

impl PodProbes {
    /// What is known of the instances that run.
    #[must_use]
    pub fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    /// When [`PodProbes::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.slots.values().filter_map(Slot::deadline).min()
    }

    /// Questions that have not been answered (checker BOUNDED).
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.values().filter(|slot| slot.flight().is_some()).count()
    }

    /// Takes the present pod, and starts due probes.
    pub fn observe(&mut self, view: &View<'_>, now: Now, out: &mut Vec<ProbeAction>) {
        let before = self.pod.replace(view.pod.clone());
        if self.pod_ip != view.pod_ip {
            view.pod_ip.clone_into(&mut self.pod_ip);
        }
        if before.is_none_or(|before| !Arc::ptr_eq(&before, view.pod)) {
            let wanted: BTreeSet<(&str, Kind)> =
                probed(view.pod).map(|(c, k)| (c.name.as_str(), k)).collect();
            self.slots.retain(|(name, kind), slot| {
                let stays = wanted.contains(&(name.as_str(), *kind));
                if !stays {
                    out.extend(slot.flight().map(ProbeAction::Cancel));
                }
                stays
            });
        }
        for (container, kind) in probed(view.pod) {
            self.follow(view, container, kind, now, out);
        }
        self.judge(view.hooked);
        self.tick(now, out);
    }

    /// Starts the probes due at `now`.
    pub fn tick(&mut self, now: Now, out: &mut Vec<ProbeAction>) {
        let Some(p) = self.pod.clone() else { return };
        for ((name, kind), slot) in &mut self.slots {
            if slot.deadline().is_none_or(|due| due > now.mono) {
                continue;
            }
            let Some((container, probe)) = find(&p, name, *kind) else { continue };
            let Some(instance) = slot.instance().cloned() else { continue };
            let id = ProbeId(self.next_id);
            self.next_id += 1;
            match check(probe, container, &self.pod_ip) {
                Ok(check) => {
                    slot.ask(id, now.mono);
                    let timeout = slot.timing.timeout;
                    let call =
                        ProbeCall { container: instance, name: name.clone(), kind: *kind, check, timeout };
                    out.push(ProbeAction::Ask(id, Box::new(call)));
                }
                // A retry would not help: one event for each period, and no probe.
                Err(why) => {
                    slot.skip(now.mono);
                    out.extend(event(name, *kind, &Outcome::Error(why), ""));
                }
            }
        }
    }

    /// Takes an answer. True if the verdicts changed by it.
    pub fn answered(&mut self, id: ProbeId, outcome: Outcome, now: Now, out: &mut Vec<ProbeAction>) -> bool {
        let asked = self.slots.iter_mut().find(|(_, slot)| slot.flight() == Some(id));
        let Some(((name, kind), slot)) = asked else { return false };
        match slot.answered(id, &outcome) {
            ProbeUpdate::Stale => false,
            ProbeUpdate::Again => {
                let p = self.pod.clone().unwrap_or_default();
                let question = find(&p, name, *kind).zip(slot.instance().cloned());
                let Some(((container, probe), instance)) = question else { return false };
                let Ok(check) = check(probe, container, &self.pod_ip) else { return false };
                let again = ProbeId(self.next_id);
                self.next_id += 1;
                slot.ask_again(again);
                let timeout = slot.timing.timeout;
                let call = ProbeCall { container: instance, name: name.clone(), kind: *kind, check, timeout };
                out.push(ProbeAction::Ask(again, Box::new(call)));
                false
            }
            ProbeUpdate::Taken(changed) => {
                let instance = slot.instance().map_or("", ContainerId::as_str);
                out.extend(event(name, *kind, &outcome, instance));
                if !changed {
                    // It may have become due during the probe.
                    self.tick(now, out);
                }
                changed
            }
        }
    }

    /// Nothing is probed any more.
    pub fn stop(&mut self, out: &mut Vec<ProbeAction>) {
        out.extend(self.slots.values().filter_map(Slot::flight).map(ProbeAction::Cancel));
        self.slots.clear();
        self.verdicts = Verdicts::default();
    }

    /// Brings one probe up to date with the instance that runs.
    fn follow(
        &mut self,
        view: &View<'_>,
        container: &Container,
        kind: Kind,
        now: Now,
        out: &mut Vec<ProbeAction>,
    ) {
        let Some(probe) = kind.of(container) else { return };
        let timing = Timing::of(probe);
        let started = kind == Kind::Startup || self.has_started(&container.name);
        let key = (container.name.clone(), kind);
        let slot = self.slots.entry(key).or_insert_with(|| {
            let jitter = start_jitter(view, &container.name, kind, timing.period, now);
            Slot::new(kind, timing, now.mono, jitter)
        });
        slot.timing = timing;
        let runs = newest(view.snapshot, &container.name).filter(|c| c.state == ContainerState::Running);
        if runs.map(|c| &c.id) != slot.instance() {
            let instance = runs.map(|c| instance(view, c, kind, now));
            out.extend(slot.watch(instance).map(ProbeAction::Cancel));
        }
        let hooked = view.hooked.is_some() && view.hooked == slot.instance();
        // Upstream stops liveness and startup probes of regular containers alone (StopLivenessAndStartup).
        let goes_on = kind == Kind::Readiness || !view.terminating || pod::is_sidecar(container);
        let allowed = started && !hooked && goes_on;
        out.extend(slot.allow(allowed, now.mono).map(ProbeAction::Cancel));
    }

    /// Its startup probe has succeeded, or it has none. Kinds are followed in order, startup first.
    fn has_started(&self, name: &str) -> bool {
        let startup = self.slots.get(&(name.to_owned(), Kind::Startup));
        startup.and_then(Slot::standing).is_none_or(|standing| standing == ProbeResult::Success)
    }

    fn judge(&mut self, hooked: Option<&ContainerId>) {
        let mut verdicts = Verdicts::default();
        verdicts.starting.extend(hooked.cloned());
        for ((_, kind), slot) in &self.slots {
            let (Some(id), Some(standing)) = (slot.instance().cloned(), slot.standing()) else { continue };
            match (kind, standing) {
                (_, ProbeResult::Success) => {}
                (Kind::Readiness, _) => drop(verdicts.unready.insert(id)),
                (Kind::Startup, standing) => {
                    if standing == ProbeResult::Failure {
                        verdicts.failed.insert(id.clone(), Kind::Startup);
                    }
                    verdicts.starting.insert(id);
                }
                (Kind::Liveness, _) => drop(verdicts.failed.insert(id, Kind::Liveness)),
            }
        }
        self.verdicts = verdicts;
    }
}

/// Containers that are probed, and how: sidecars and regular ones.
fn probed(p: &Pod) -> impl Iterator<Item = (&Container, Kind)> {
    let sidecars = pod::init_containers(p).iter().filter(|c| pod::is_sidecar(c));
    let all = sidecars.chain(pod::containers(p));
    all.flat_map(|c| Kind::ALL.into_iter().filter(|kind| kind.of(c).is_some()).map(move |kind| (c, kind)))
}

fn find<'a>(p: &'a Pod, name: &str, kind: Kind) -> Option<(&'a Container, &'a Probe)> {
    let mut all = pod::init_containers(p).iter().chain(pod::containers(p));
    let container = all.find(|c| c.name == name)?;
    kind.of(container).map(|probe| (container, probe))
}

fn instance(view: &View<'_>, c: &ContainerObserved, kind: Kind, now: Now) -> Instance {
    let started = c.started.unwrap_or(c.created);
    let ran_for = u64::try_from(now.wall.since(started).as_nanos()).unwrap_or(u64::MAX);
    let adopted = started <= view.agent_started.wall;
    Instance {
        id: c.id.clone(),
        started: Mono(now.mono.0.saturating_sub(ran_for)),
        adopted,
        known_good: adopted && was_good(view, c, kind),
    }
}

/// True if an earlier agent reported this very instance as started, or as ready.
fn was_good(view: &View<'_>, c: &ContainerObserved, kind: Kind) -> bool {
    let Some(status) = &view.pod.status else { return false };
    let id = format!("{}://{}", view.runtime_name, c.id);
    let this = |s: &&ContainerStatus| s.container_id.as_deref() == Some(id.as_str());
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut of_name = lists.into_iter().flatten().filter_map(|all| pod::named(all, &c.name));
    of_name.find(this).is_some_and(|s| match kind {
        Kind::Startup => s.started == Some(true),
        Kind::Readiness => s.ready,
        Kind::Liveness => true,
    })
}

/// Initial delay after a start of the agent, so that probes do not all run at once: a part of the period,
/// different for each probe.
fn start_jitter(view: &View<'_>, name: &str, kind: Kind, period: Duration, now: Now) -> Duration {
    if now.mono.since(view.agent_started.mono) >= period {
        return Duration::ZERO;
    }
    let seed = format!("{}/{name}/{kind}", pod::uid(view.pod));
    // `jittered` adds up to a half.
    restart::jittered(period * 2, &seed, 0).saturating_sub(period * 2)
}

/// The name stands for the id wherever the text has one, so that events of many instances are alike.
fn event(container: &str, kind: Kind, outcome: &Outcome, instance: &str) -> Option<ProbeAction> {
    let (reason, mut message) = match outcome {
        Outcome::Success => return None,
        Outcome::Warning(text) => ("ProbeWarning", format!("{kind} probe warning: {text}")),
        Outcome::Failure(text) => ("Unhealthy", format!("{kind} probe failed: {text}")),
        Outcome::Error(text) => {
            ("Unhealthy", format!("{kind} probe errored and resulted in unknown state: {text}"))
        }
        Outcome::Broken(text) => {
            ("Unhealthy", format!("{kind} probe errored and resulted in failure state: {text}"))
        }
    };
    if !instance.is_empty() {
        message = message.replace(instance, container);
    }
    Some(ProbeAction::Event { reason, message, container: container.to_owned() })
}
