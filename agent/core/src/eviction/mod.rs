//! eviction: ends pods when memory, a disk or process ids run short, and pods that exceed a limit of local
//! storage.
//!
//! # For the shell
//! Feed it [`EvictionEvent::Tick`] once and at each deadline, [`EvictionEvent::Pressed`] when the kernel
//! reports that memory is short, and exactly one answer to each [`EvictionAction::Observe`],
//! [`EvictionAction::Measure`], [`EvictionAction::MeasureLimited`] and [`EvictionAction::Reclaim`]. An answer
//! to a failed action leaves out the values that could not be read.
//!
//! ```text
//! Idle ──due, pressed──► Looking ─┬─ a disk ──► Reclaiming ──► Looking again ─┬─► enough: Idle
//!  ▲ │                     ▲ │    └─ memory, pids ──► Choosing ◄──────────────┘
//!  │ │  nothing is short   │ │                        │ └─ no victim: Idle, deaf for 10 s
//!  │ └─────────────────────│─┘                        ▼
//!  │ a limit is exceeded   └─ released, or 30 s ── Waiting for the victim
//!  └────────────────────────────────────────────────►┘
//! ```
//! Invariants: one victim at a time, and no further one before the resources of the last are free (30 s at
//! most); critical, static and mirror pods are never victims; disks are measured only to choose a victim or
//! to check a limit; the next observation comes before free memory can be used up, whether or not the kernel
//! reports pressure. Upstream: pkg/kubelet/eviction. Differences: docs/reference/eviction.md.

mod api;
mod local_storage;
mod message;
mod rank;
mod standing;
pub mod system_oom;
mod threshold;
mod usage;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::machine::{Machine, Outbox};
use agent_types::pod;
use agent_types::pressures::Pressures;
use agent_types::resources::observation::Layout;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;
use orlop_config::kubelet::eviction::Signal;

pub use agent_kubelet_api::stats::disk::Bound;
pub use api::{
    EvictionAction, EvictionConfig, EvictionEvent, EvictionReport, Measure, Observed, Reclaim, Victim,
};
pub use message::THRESHOLD_MET;
pub use rank::{Uses, rank};
pub use threshold::{Amount, Resource, Threshold};
pub use usage::{ContainerUse, PodUse, Space, VolumeUse};

use standing::ThresholdHistory;

/// The longest time between two looks.
pub const PERIOD: Duration = Duration::from_secs(10);
/// Longest wait for the resources of an evicted pod.
pub const CLEANUP_MAX: Duration = Duration::from_secs(30);
/// Grace of a pod that has to end at once, seconds.
const IMMEDIATE_S: u32 = 1;
/// A walk of volumes takes at most one part in this many of the time.
const WALK_SHARE: u32 = 20;

/// The eviction manager as a state machine.
#[derive(Clone, Debug)]
pub struct Eviction {
    config: EvictionConfig,
    /// With those of `containerfs`, once the layout is known.
    thresholds: Vec<Threshold>,
    layout: Option<Layout>,
    standing: ThresholdHistory,
    told: Pressures,
    phase: Phase,
    /// The last observation, and the thresholds that it crosses.
    seen: Observed,
    starved: Vec<usize>,
    /// When pods with limits are measured next; `None` while they are.
    next_limits: Option<Mono>,
    limits_since: Mono,
    /// Pods that were evicted and did not end in time.
    stuck: BTreeSet<PodUid>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits until `next`; `deaf`: nothing can be done before it, even if the kernel reports pressure.
    Idle { next: Mono, deaf: bool },
    /// The signals are being read.
    Looking { again: bool },
    /// Unused containers or images are being removed.
    Reclaiming,
    /// Usage of pods is being measured, to choose a victim.
    Choosing,
    /// They are being evicted.
    Waiting { pods: BTreeSet<PodUid>, until: Mono },
}

impl Eviction {
    /// A machine that looks at its first tick.
    #[must_use]
    pub fn new(config: EvictionConfig) -> Eviction {
        Eviction {
            thresholds: config.thresholds.clone(),
            config,
            layout: None,
            standing: ThresholdHistory::default(),
            told: Pressures::default(),
            phase: Phase::Idle { next: Mono(0), deaf: false },
            seen: Observed::default(),
            starved: Vec::new(),
            next_limits: Some(Mono(0)),
            limits_since: Mono(0),
            stuck: BTreeSet::new(),
        }
    }

    /// Waits for a victim of an earlier agent as for one of this agent.
    #[must_use]
    pub fn waiting_for(mut self, pods: BTreeSet<PodUid>, now: Mono) -> Eviction {
        if !pods.is_empty() {
            self.phase = Phase::Waiting { pods, until: now.after(CLEANUP_MAX) };
        }
        self
    }

    fn look(&mut self, again: bool, out: &mut Outbox<EvictionAction>) {
        self.phase = Phase::Looking { again };
        out.push(EvictionAction::Observe);
    }

    /// Until the next look that can make a difference.
    fn rest(&mut self, now: Mono) {
        let pause = standing::soonest(&self.thresholds, &self.seen.signals, PERIOD);
        let by_grace = self.standing.grace_ends(&self.thresholds).unwrap_or(Mono(u64::MAX));
        self.phase = Phase::Idle { next: now.after(pause).min(by_grace), deaf: false };
    }

    /// Nothing can be done for a while.
    fn give_up(&mut self, now: Mono) {
        self.phase = Phase::Idle { next: now.after(PERIOD), deaf: true };
    }

    fn take(&mut self, mut seen: Observed) {
        match seen.layout.or(self.layout) {
            Some(layout) if self.layout != Some(layout) => {
                self.layout = Some(layout);
                self.thresholds = threshold::with_containerfs(&self.config.thresholds, layout);
                self.standing = ThresholdHistory::default();
            }
            Some(_) => {}
            None => seen.signals.retain(|signal, _| !Resource::of(*signal).is_disk()),
        }
        self.seen = seen;
    }

    fn pass(&mut self, seen: Observed, now: Now, out: &mut Outbox<EvictionAction>) {
        self.take(seen);
        self.starved = self.standing.assess(&self.thresholds, &self.seen.signals, now.mono);
        let pressures = self.standing.pressures(self.config.transition, now.mono);
        if std::mem::replace(&mut self.told, pressures) != pressures {
            out.push(EvictionAction::Pressures(pressures));
        }
        self.measure_limited(now.mono, out);
        self.serve(now, out);
    }

    /// Runs next to everything else: a walk of disks must not delay the answer to memory pressure.
    fn measure_limited(&mut self, now: Mono, out: &mut Outbox<EvictionAction>) {
        if !self.config.local_storage || self.next_limits.is_none_or(|next| next > now) {
            return;
        }
        let limited = self.candidates().filter(|p| local_storage::is_limited(p));
        let limited: BTreeSet<PodUid> = limited.map(|p| pod::key(p).uid).collect();
        if !limited.is_empty() {
            (self.next_limits, self.limits_since) = (None, now);
            out.push(EvictionAction::MeasureLimited(limited));
        }
    }

    /// Pods that may be evicted, in the order in which they are listed.
    fn candidates(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let may_go = |p: &&Arc<Pod>| !pod::is_critical(p) && !self.stuck.contains(&pod::key(p).uid);
        self.seen.pods.iter().filter(may_go)
    }

    fn first_starved(&self) -> Option<&Threshold> {
        self.starved.first().and_then(|index| self.thresholds.get(*index))
    }

    /// The most urgent threshold, if any is crossed.
    fn serve(&mut self, now: Now, out: &mut Outbox<EvictionAction>) {
        let Some(signal) = self.first_starved().map(|t| t.signal) else { return self.rest(now.mono) };
        let resource = Resource::of(signal);
        let text = format!("Attempting to reclaim {}", resource.as_str());
        out.push(EvictionAction::ThresholdMet(text));
        match reclaim(signal, self.layout.unwrap_or_default()) {
            Some(reclaim) => {
                self.phase = Phase::Reclaiming;
                out.push(EvictionAction::Reclaim(reclaim));
            }
            None => self.choose(resource, out),
        }
    }

    fn choose(&mut self, resource: Resource, out: &mut Outbox<EvictionAction>) {
        self.phase = Phase::Choosing;
        out.push(EvictionAction::Measure(match resource {
            Resource::Memory => Measure::Memory,
            Resource::Pids => Measure::Processes,
            Resource::EphemeralStorage | Resource::Inodes => Measure::Storage,
        }));
    }

    /// Checks whether enough was freed. Upstream checks every threshold, with its minimum reclaim.
    fn reclaimed(&mut self, seen: Observed, now: Now, out: &mut Outbox<EvictionAction>) {
        self.take(seen);
        let Some(resource) = self.first_starved().map(|t| Resource::of(t.signal)) else {
            return self.rest(now.mono);
        };
        if threshold::met(&self.thresholds, &self.seen.signals, true).next().is_none() {
            out.push(EvictionAction::Report(EvictionReport::Resolved(resource)));
            return self.rest(now.mono);
        }
        self.choose(resource, out);
    }

    fn limited(&mut self, uses: &Uses, now: Now, out: &mut Outbox<EvictionAction>) {
        let took = now.mono.since(self.limits_since);
        self.next_limits = Some(now.mono.after(PERIOD.max(took.saturating_mul(WALK_SHARE))));
        // While a victim is ending, no other pod is evicted: measure again.
        if matches!(self.phase, Phase::Idle { .. }) {
            let victims = self.exceeding(uses);
            self.evict(victims, now, out);
        }
    }

    /// Pods that take more of the node's disk than they may.
    fn exceeding(&self, uses: &Uses) -> Vec<Victim> {
        if !self.config.local_storage {
            return Vec::new();
        }
        let layout = self.layout.unwrap_or_default();
        let victim = |p: &Arc<Pod>| {
            let (signal, message) = local_storage::excess(p, uses.get(&pod::key(p).uid)?, layout)?;
            Some(Victim {
                key: pod::key(p),
                signal,
                message,
                grace_s: Some(IMMEDIATE_S),
                disrupted: false,
                annotations: BTreeMap::new(),
            })
        };
        self.candidates().filter_map(victim).collect()
    }

    /// Evicts one of the pods.
    fn decide(&mut self, uses: &Uses, now: Now, out: &mut Outbox<EvictionAction>) {
        let Some(threshold) = self.first_starved() else { return self.rest(now.mono) };
        let resource = Resource::of(threshold.signal);
        // A pod that exceeds a limit on the disk comes before others.
        let exceeding = if resource.is_disk() { self.exceeding(uses) } else { Vec::new() };
        if !exceeding.is_empty() {
            return self.evict(exceeding, now, out);
        }
        let ranked = rank(&self.seen.pods, uses, threshold.signal, self.layout.unwrap_or_default());
        let order = ranked.iter().map(|p| pod::key(p)).collect();
        out.push(EvictionAction::Report(EvictionReport::Ranked(resource, order)));
        for met in self.starved.iter().filter_map(|index| self.thresholds.get(*index)) {
            if let Some(observed) = self.seen.signals.get(&met.signal) {
                out.push(EvictionAction::Decided(met.signal, observed.at));
            }
        }
        let may_go = |p: &&Arc<Pod>| self.candidates().any(|c| Arc::ptr_eq(c, p));
        let Some(chosen) = ranked.iter().find(may_go) else {
            out.push(EvictionAction::Report(EvictionReport::Nobody(resource)));
            return self.give_up(now.mono);
        };
        let of_resource = |index: &usize| {
            let met = self.thresholds.get(*index).filter(|t| Resource::of(t.signal) == resource)?;
            Some((met, *self.seen.signals.get(&met.signal)?))
        };
        let met = self.starved.iter().find_map(of_resource);
        let (message, annotations) =
            message::of_pressure(chosen, uses.get(&pod::key(chosen).uid), resource, met);
        let grace_s = if threshold.is_hard() { Some(IMMEDIATE_S) } else { self.config.max_pod_grace_s };
        let victim = Victim {
            key: pod::key(chosen),
            signal: threshold.signal.as_str(),
            message,
            grace_s,
            disrupted: true,
            annotations,
        };
        self.evict(vec![victim], now, out);
    }

    fn evict(&mut self, victims: Vec<Victim>, now: Now, out: &mut Outbox<EvictionAction>) {
        if victims.is_empty() {
            return;
        }
        let pods = victims.iter().map(|victim| victim.key.uid.clone()).collect();
        let grace_s = victims.iter().map(|victim| victim.grace_s.unwrap_or(0)).max().unwrap_or(0);
        // Who was promised some grace is not late while it lasts.
        let until = now.mono.after(CLEANUP_MAX + Duration::from_secs(u64::from(grace_s)));
        self.phase = Phase::Waiting { pods, until };
        for victim in victims {
            out.push(EvictionAction::Evict(Box::new(victim)));
        }
    }

    fn released(&mut self, uid: &PodUid, out: &mut Outbox<EvictionAction>) {
        self.stuck.remove(uid);
        if let Phase::Waiting { pods, .. } = &mut self.phase
            && pods.remove(uid)
            && pods.is_empty()
        {
            self.look(false, out);
        }
    }

    fn tick(&mut self, now: Now, out: &mut Outbox<EvictionAction>) {
        match &mut self.phase {
            Phase::Idle { next, .. } if *next <= now.mono => self.look(false, out),
            Phase::Waiting { pods, until } if *until <= now.mono => {
                let late = std::mem::take(pods);
                for uid in &late {
                    out.push(EvictionAction::Report(EvictionReport::TimedOut(uid.clone())));
                }
                self.stuck.extend(late);
                self.look(false, out);
            }
            _ => {}
        }
    }
}

/// What is freed first for a signal; `None` if nothing of the node's own is on that file system.
fn reclaim(signal: Signal, layout: Layout) -> Option<Reclaim> {
    let of_images = matches!(signal, Signal::ImagefsAvailable | Signal::ImagefsInodesFree);
    let of_node = matches!(signal, Signal::NodefsAvailable | Signal::NodefsInodesFree);
    if !Resource::of(signal).is_disk() {
        return None;
    }
    match (layout.dedicated_images, layout.split_containers) {
        (true, false) if of_node => None,
        (true, true) => Some(Reclaim { containers: !of_images, images: of_images }),
        _ => Some(Reclaim { containers: true, images: true }),
    }
}

impl Machine for Eviction {
    type Event = EvictionEvent;
    type Action = EvictionAction;

    fn step(&mut self, now: Now, event: EvictionEvent, out: &mut Outbox<EvictionAction>) {
        match (event, &self.phase) {
            (EvictionEvent::Pressed, Phase::Idle { deaf: false, .. }) => self.look(false, out),
            (EvictionEvent::Observed(seen), Phase::Looking { again: false }) => self.pass(*seen, now, out),
            (EvictionEvent::Observed(seen), Phase::Looking { again: true }) => {
                self.reclaimed(*seen, now, out);
            }
            (EvictionEvent::Measured(uses), Phase::Choosing) => self.decide(&uses, now, out),
            (EvictionEvent::Reclaimed, Phase::Reclaiming) => self.look(true, out),
            (EvictionEvent::Limited(uses), _) => self.limited(&uses, now, out),
            (EvictionEvent::Released(uid), _) => self.released(&uid, out),
            (EvictionEvent::Tick, _) => self.tick(now, out),
            // A late answer, or an event while the machine already acts on it.
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Mono> {
        match &self.phase {
            Phase::Idle { next, .. } => Some(*next),
            Phase::Waiting { until, .. } => Some(*until),
            Phase::Looking { .. } | Phase::Reclaiming | Phase::Choosing => None,
        }
    }
}
