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

/// Longest time that an effect waits for a walk.
const PATIENCE: Duration = Duration::from_secs(10);
/// `fsGroup` of the pods that have one.
const GROUP: u32 = 2_000;
/// Length of a long walk, seconds: through a shared volume that each pod walks through again; through a shared volume that only
/// the first pod walks through (longer than the set-up of a driver's volume may take); through a volume of one pod.
const EACH_S: (u64, u64) = (11, 40);
const ONCE_S: (u64, u64) = (300, 600);
const OWN_S: (u64, u64) = (11, 300);

/// A pod, and the name of its volume.
type Key = (PodUid, String);

/// Walks and their results.
#[derive(Debug)]
pub(crate) struct Ownership {
    rng: Rng,
    /// Pods have the policy `OnRootMismatch`: a volume that belongs to the group is not walked through again. False: `Always`.
    by_root: bool,
    /// Length of a walk through a volume, by its claim or its own name.
    lengths: BTreeMap<String, Duration>,
    /// Volumes whose own directory belongs to the group. They survive the agent and a reboot.
    given: BTreeSet<String>,
    /// Walks of this agent whose end no effect has reported.
    walks: BTreeMap<Key, Walk>,
}

#[derive(Debug)]
struct Walk {
    /// Volume of the walk.
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

    /// Gives a group to some pods.
    pub(crate) fn give_group(&mut self, pod: &mut Value) {
        if self.rng.chance(800) {
            let policy = if self.by_root { "OnRootMismatch" } else { "Always" };
            pod["spec"]["securityContext"] = json!({ "fsGroup": GROUP, "fsGroupChangePolicy": policy });
        }
    }

    /// Number of walks, for leak checks.
    pub(crate) fn left(&self) -> usize {
        self.walks.len()
    }

    /// Volumes of walks that have ended by `now` belong to the group.
    fn settle(&mut self, now: Mono) {
        let ended = self.walks.values().filter(|walk| walk.ends <= now);
        self.given.extend(ended.map(|walk| walk.volume.clone()));
    }

    /// The agent died, and its walks ended with it.
    pub(crate) fn forget(&mut self, now: Mono) {
        self.settle(now);
        self.walks.clear();
    }

    /// The volumes of a pod are torn down: its walks end.
    pub(crate) fn end(&mut self, now: Mono, pod: &PodUid) {
        self.settle(now);
        self.walks.retain(|(of, _), _| of != pod);
    }

    /// Time at which a new walk through `volume` ends. It waits for the walks of other pods.
    fn ends(&mut self, now: Mono, volume: &str, is_shared: bool) -> Mono {
        self.settle(now);
        let others = self.walks.values().filter(|walk| walk.volume == volume).map(|walk| walk.ends);
        let free = others.max().unwrap_or(now).max(now);
        // A pod that waited for the walk of another pod finds that the volume belongs to the group.
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

/// True if the set-up of this volume walks through its files.
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

/// Time that an effect waited for a walk.
pub(crate) fn waited(answer: Option<&EffectOk>) -> Duration {
    if matches!(answer, Some(EffectOk::Giving { .. })) { PATIENCE } else { Duration::ZERO }
}

impl Volumes {
    fn walk_mut(&mut self, key: &Key) -> Option<&mut Walk> {
        self.ownership.as_mut()?.walks.get_mut(key)
    }
}

impl World {
    /// From now on pods have volumes, and most pods have an `fsGroup`.
    pub fn own_volumes(&mut self, seed: u64) {
        self.mount(seed);
        if let Some(volumes) = &mut self.volumes {
            volumes.ownership = Some(Ownership::new(seed));
        }
    }

    /// Time at which the walk ends for which a set-up waits; `None`: the set-up does not wait. A broken agent waits for every walk.
    pub(crate) fn waits_for_walk(&mut self, call: &Call) -> Option<Mono> {
        let Ask::Effect { key, effect: Effect::SetUpVolume { volume }, .. } = &call.ask else { return None };
        let (now, is_patient) = (self.queue.now(), self.defect == Some(Defect::WaitsForWalks));
        let ends = self.volumes.as_mut()?.walk_mut(&(key.uid.clone(), volume.name.clone()))?.ends;
        (ends > now && (is_patient || ends.since(now) <= PATIENCE)).then_some(ends)
    }

    /// The set-up continues when the walk has ended, or times out before. A broken agent's walk ends with its set-up.
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

    /// The answer of a set-up while the walk of its volume runs; `None` after the end of the walk.
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

    /// Starts the walk of a volume whose other steps are done, unless the walk has ended.
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
