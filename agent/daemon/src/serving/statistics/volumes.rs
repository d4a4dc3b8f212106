//! What is in pods' volumes: walked when somebody asks and the last walk is older than `volumeStatsAggPeriod`, one walk at a
//! time, and no question waits longer than its asker's patience for it. Drivers are asked of theirs.
//!
//! In: directories, drivers' volumes. Out: amounts, each with the time at which it was measured. Invariants: at most one walk is under way;
//! what nobody asks about is forgotten.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_core::stats::disk::VolumeUse;
use agent_core::time::{Mono, Now};
use agent_linux::disk_use;
use futures_util::future::join_all;
use tokio::sync::watch;

use crate::actor::Tasks;
use crate::pod_dirs::chain;

/// UID and name.
type Key = (String, String);

/// How a volume is measured.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// This directory is walked.
    Walk(PathBuf),
    /// Its driver is asked.
    Ask {
        /// The driver's socket.
        endpoint: PathBuf,
        /// What the driver knows the volume by.
        handle: String,
        /// Where it is published.
        target: PathBuf,
    },
}

/// How long a question of the API waits for a walk; then it is answered with what is known.
pub(crate) const WAIT: Duration = Duration::from_secs(2);

/// The last amounts.
pub(super) struct VolumeUses {
    known: Arc<Known>,
    /// `None`: never walked.
    period: Option<Duration>,
    patience: Duration,
    tasks: Tasks,
}

struct Known {
    // Held for a moment only, never across an await or a walk.
    uses: Mutex<BTreeMap<Key, (Mono, Option<VolumeUse>)>>,
    walking: watch::Sender<bool>,
}

impl Known {
    fn uses(&self) -> MutexGuard<'_, BTreeMap<Key, (Mono, Option<VolumeUse>)>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VolumeUses {
    /// `volumeStatsAggPeriod`; negative turns it off.
    pub(super) fn new(period: orlop_config::Duration, patience: Duration, tasks: Tasks) -> VolumeUses {
        let period = (period >= orlop_config::Duration::ZERO).then(|| period.to_std());
        let known = Known { uses: Mutex::default(), walking: watch::channel(false).0 };
        VolumeUses { known: Arc::new(known), period, patience, tasks }
    }

    /// Of these, what is known after a walk, or when patience ends.
    pub(super) async fn of(&self, wanted: BTreeMap<Key, Way>) -> BTreeMap<Key, VolumeUse> {
        let Some(period) = self.period else { return BTreeMap::new() };
        let now = self.tasks.now().mono;
        let due: Vec<(Key, Way)> = {
            let mut uses = self.known.uses();
            uses.retain(|key, _| wanted.contains_key(key));
            let fresh = |key: &Key| uses.get(key).is_some_and(|(at, _)| now.since(*at) < period);
            wanted.into_iter().filter(|(key, _)| !fresh(key)).collect()
        };
        if !due.is_empty() {
            let mut walking = self.known.walking.subscribe();
            if !self.known.walking.send_replace(true) {
                self.tasks.start(walk(self.known.clone(), due, self.tasks.clone()));
            }
            // Either way the answer is what is known then; the sender lives as long as we.
            let _ = tokio::time::timeout(self.patience, walking.wait_for(|walking| !walking)).await;
        }
        let uses = self.known.uses();
        uses.iter().filter_map(|(key, (_, found))| Some((key.clone(), (*found)?))).collect()
    }
}

async fn walk(known: Arc<Known>, due: Vec<(Key, Way)>, tasks: Tasks) {
    let mut asked = Vec::new();
    for (key, way) in due {
        let at = tasks.now();
        let path = match way {
            Way::Walk(path) => path,
            Way::Ask { endpoint, handle, target } => {
                asked.push(ask(&known, key, (endpoint, handle, target), at));
                continue;
            }
        };
        let found = tasks.blocking(move || (disk_use::volume(&path, at.wall), path)).await;
        let Some((found, path)) = found else { break };
        let found = found.map_err(|error| {
            // A pod's volumes come before its containers and go after them, but questions come when they like.
            tracing::debug!(path = %path.display(), error = chain(&error), "a volume is not measured");
        });
        known.uses().insert(key, (at.mono, found.ok()));
    }
    // Each has its own limit: one that hangs keeps back the next look, and no other one's answer.
    join_all(asked).await;
    known.walking.send_replace(false);
}

async fn ask(known: &Known, key: Key, (endpoint, handle, target): (PathBuf, String, PathBuf), at: Now) {
    let told = agent_plugins::usage(&endpoint, &handle, &target).await;
    let told =
        told.map_err(|error| tracing::debug!(volume = handle, %error, "a driver says nothing of a volume"));
    let found = told.ok().flatten().map(|usage| VolumeUse::told(&usage, at.wall));
    known.uses().insert(key, (at.mono, found));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use agent_core::time::Wall;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::testing::VirtualClock;

    fn key(name: &str) -> Key {
        ("u1".to_owned(), name.to_owned())
    }

    fn bytes(of: &BTreeMap<Key, VolumeUse>, name: &str) -> Option<(Wall, u64)> {
        let taken = of.get(&key(name))?.taken?;
        Some((taken.at, taken.bytes))
    }

    fn fill(dir: &Path, name: &str) {
        std::fs::write(dir.join(name), vec![1_u8; 1 << 16]).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_walked_once_in_a_period() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let uses = VolumeUses::new(orlop_config::Duration::from_secs(60), WAIT, tasks.clone());
        let wanted = || {
            [("v", ""), ("none", "none")].map(|(k, below)| (key(k), Way::Walk(dir.path().join(below)))).into()
        };
        fill(dir.path(), "one");
        let first = uses.of(wanted()).await;
        let (at, taken) = bytes(&first, "v").unwrap();
        assert!(taken >= 1 << 16 && bytes(&first, "none").is_none());
        fill(dir.path(), "two");
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(uses.of(wanted()).await, first, "not walked again");
        tokio::time::advance(Duration::from_secs(1)).await;
        let (later, more) = bytes(&uses.of(wanted()).await, "v").unwrap();
        assert!(later > at && more >= taken + (1 << 16));
        assert!(uses.of(BTreeMap::new()).await.is_empty() && uses.known.uses().is_empty(), "forgotten");
        let off = VolumeUses::new(orlop_config::Duration::from_secs(-1), WAIT, tasks);
        assert!(off.of(wanted()).await.is_empty());
    }
}
