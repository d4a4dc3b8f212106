//! Change of volumes' groups (`fsGroup`): walks that take longer than an effect waits.
//!
//! ```text
//! set-up ──► walk begins ──► answer Giving ──► set-up again ──► … ──► the walk has ended: the volume is there
//! ```
//! In: set-ups of volumes, deaths of the agent. Out: answers [`EffectOk::Giving`], and the walks as input of VOL-OWNED.
//! The rules are those of the daemon's `volumes::ownership`: one walk for a volume of a pod, and one at a time through
//! a volume that several pods use; an effect waits ten seconds; a walk outlives its effect, and ends with its agent and
//! with the tear-down of its pod's volumes. The volume's own directory changes its group last: an incomplete walk
//! begins again. The module has its own random numbers, so that runs without such volumes do not change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::pod_worker::effect::{Effect, EffectOk};
use agent_types::ids::PodUid;
use agent_types::time::Mono;
use agent_volumes::{SetUp, Work};
use serde_json::{Value, json};

use crate::calls::{Ask, Call};
use crate::defects::Defect;
use crate::rng::Rng;
use crate::volumes::Volumes;
use crate::world::{Event, World};

/// How long an effect waits for a walk.
const PATIENCE: Duration = Duration::from_secs(10);
/// The group of the pods that have one.
const GROUP: u32 = 2_000;
/// How long a walk takes, seconds, if it takes longer than an effect waits: through a volume that several pods walk through one
/// after the other, through one that is walked through once (longer than the set-up of a driver's volume may take), and through
/// one that a single pod has.
const EACH_S: (u64, u64) = (11, 40);
const ONCE_S: (u64, u64) = (300, 600);
const OWN_S: (u64, u64) = (11, 300);

/// A pod, and the name of its volume.
type Key = (PodUid, String);

/// Walks, and what they have left.
#[derive(Debug)]
pub(crate) struct Ownership {
    rng: Rng,
    /// Pods say `OnRootMismatch`: what is given is not walked through again. Else they say `Always`.
    by_root: bool,
    /// How long a walk through a volume takes, by its claim or its own name.
    lengths: BTreeMap<String, Duration>,
    /// Volumes whose own directory is the group's. Outlives agent and machine.
    given: BTreeSet<String>,
    /// Walks of this agent whose end no effect has heard of.
    walks: BTreeMap<Key, Walk>,
}

#[derive(Debug)]
struct Walk {
    /// Of which volume.
    volume: String,
    began: Mono,
    ends: Mono,
}

impl Ownership {
    fn new(seed: u64) -> Ownership {
        let mut rng = Rng::new(seed ^ 0x6f77_6e73);
        let by_root = rng.chance(600);
        let (lengths, given, walks) = Default::default();
        Ownership { rng, by_root, lengths, given, walks }
    }

    /// Gives a pod a group, or not.
    pub(crate) fn give_group(&mut self, pod: &mut Value) {
        if self.rng.chance(800) {
            let policy = if self.by_root { "OnRootMismatch" } else { "Always" };
            pod["spec"]["securityContext"] = json!({ "fsGroup": GROUP, "fsGroupChangePolicy": policy });
        }
    }

    /// Walks of pods that still have a job, for leak checks.
    pub(crate) fn left(&self) -> usize {
        self.walks.len()
    }

    /// Walks that have come to their end by `now` have given their volumes.
    fn settle(&mut self, now: Mono) {
        let ended = self.walks.values().filter(|walk| walk.ends <= now);
        self.given.extend(ended.map(|walk| walk.volume.clone()));
    }

    /// The agent died, and its walks with it.
    pub(crate) fn forget(&mut self, now: Mono) {
        self.settle(now);
        self.walks.clear();
    }

    /// The volumes of a pod are taken away.
    pub(crate) fn end(&mut self, now: Mono, pod: &PodUid) {
        self.settle(now);
        self.walks.retain(|(of, _), _| of != pod);
    }

    /// When a new walk through `volume` ends, which waits for those of other pods.
    fn ends(&mut self, now: Mono, volume: &str, is_shared: bool) -> Mono {
        self.settle(now);
        let others = self.walks.values().filter(|walk| walk.volume == volume).map(|walk| walk.ends);
        let free = others.max().unwrap_or(now).max(now);
        // A pod that waited for another one's walk finds the volume given.
        if self.by_root && (free > now || self.given.contains(volume)) {
            return free;
        }
        let (least, most) = match (is_shared, self.by_root) {
            (true, true) => ONCE_S,
            (true, false) => EACH_S,
            (false, _) => OWN_S,
        };
        let rng = &mut self.rng;
        let mut seconds = || if rng.chance(600) { rng.between(least, most) } else { 0 };
        let length = self.lengths.entry(volume.to_owned()).or_insert_with(|| Duration::from_secs(seconds()));
        free.after(*length)
    }
}

/// A walk through the files goes with the set-up of such a volume.
fn is_walked(set_up: &SetUp) -> bool {
    let has_files = match &set_up.work {
        Work::Bind(_) => true,
        Work::Csi(csi) => csi.persistent.is_some() && csi.block.is_none(),
        _ => false,
    };
    set_up.fs_group.is_some() && has_files
}

fn giving(set_up: &SetUp, took: Duration) -> EffectOk {
    EffectOk::Giving { path: set_up.path.clone(), entries: took.as_secs() * 1_000, took }
}

/// How long an effect waited for its answer.
pub(crate) fn waited(answer: Option<&EffectOk>) -> Duration {
    if matches!(answer, Some(EffectOk::Giving { .. })) { PATIENCE } else { Duration::ZERO }
}

impl Volumes {
    fn walk_mut(&mut self, key: &Key) -> Option<&mut Walk> {
        self.ownership.as_mut()?.walks.get_mut(key)
    }
}

impl World {
    /// From now on pods have volumes, and most pods a group that gets them.
    pub fn own_volumes(&mut self, seed: u64) {
        self.mount(seed);
        if let Some(volumes) = &mut self.volumes {
            volumes.ownership = Some(Ownership::new(seed));
        }
    }

    /// When the walk ends that a set-up waits for. A broken agent's set-up waits for any.
    pub(crate) fn waits_for_walk(&mut self, call: &Call) -> Option<Mono> {
        let Ask::Effect { key, effect: Effect::SetUpVolume { volume }, .. } = &call.ask else { return None };
        let (now, is_patient) = (self.queue.now(), self.defect == Some(Defect::WaitsForWalks));
        let ends = self.volumes.as_mut()?.walk_mut(&(key.uid.clone(), volume.name.clone()))?.ends;
        (ends > now && (is_patient || ends.since(now) <= PATIENCE)).then_some(ends)
    }

    /// The set-up goes on when the walk has ended, or its time is over before. A broken agent's walk ends with its set-up.
    pub(crate) fn wait_for_walk(&mut self, call: Call, ends: Mono) {
        if call.deadline.is_none_or(|deadline| ends <= deadline) {
            return self.queue.at(ends, Event::Apply(call));
        }
        if self.defect == Some(Defect::WaitsForWalks)
            && let Ask::Effect { key, effect: Effect::SetUpVolume { volume }, .. } = &call.ask
            && let Some(ownership) = self.volumes.as_mut().and_then(|volumes| volumes.ownership.as_mut())
        {
            ownership.walks.remove(&(key.uid.clone(), volume.name.clone()));
        }
        self.time_out(call);
    }

    /// The walk of a volume goes on: nothing is done for the volume before it has ended.
    pub(crate) fn still_walks(&mut self, pod: &PodUid, set_up: &SetUp) -> Option<EffectOk> {
        let (now, begins_again) = (self.queue.now(), self.defect == Some(Defect::WalksAgain));
        let walk = self.volumes.as_mut()?.walk_mut(&(pod.clone(), set_up.name.clone()))?;
        if walk.ends <= now {
            return None;
        }
        let took = now.after(PATIENCE).since(walk.began);
        if begins_again {
            let volume = set_up.name.clone();
            self.checks.note(now, &TraceEvent::WalkBegan { pod: pod.clone(), volume });
        }
        Some(giving(set_up, took))
    }

    /// Begins the walk of a volume that is there otherwise, unless the walk has ended.
    pub(crate) fn walk(&mut self, pod: &PodUid, set_up: &SetUp) -> Option<EffectOk> {
        let now = self.queue.now();
        let volumes = self.volumes.as_mut()?;
        let claim = volumes.claims.get(&set_up.name).filter(|(_, own)| !own).map(|(claim, _)| claim.clone());
        let ownership = volumes.ownership.as_mut().filter(|_| is_walked(set_up))?;
        let key = (pod.clone(), set_up.name.clone());
        ownership.settle(now);
        if ownership.walks.remove(&key).is_some() {
            return None;
        }
        let is_shared = claim.is_some();
        let volume = claim.unwrap_or_else(|| set_up.name.clone());
        let ends = ownership.ends(now, &volume, is_shared);
        if ends <= now {
            ownership.given.insert(volume);
            return None;
        }
        ownership.walks.insert(key, Walk { volume, began: now, ends });
        let began = TraceEvent::WalkBegan { pod: pod.clone(), volume: set_up.name.clone() };
        self.checks.note(now, &began);
        Some(giving(set_up, PATIENCE))
    }
}
