//! What is in pods' volumes: walked when somebody asks and the last walk is older than `volumeStatsAggPeriod`, one walk at a
//! time, and no question waits longer than its asker's patience for it. Drivers are asked of theirs.
//!
//! In: directories, drivers' volumes. Out: amounts, each with the time at which it was measured. Invariants: at most one walk is under way;
//! what nobody asks about is forgotten.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_core::csi::request::Usage;
use agent_core::runtime::PodKey;
use agent_core::stats::disk::VolumeUse;
use agent_core::time::{Mono, Now, Wall};
use agent_linux::disk_use;
use agent_linux::files::FilesError;
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
    /// The file system is asked what is in this directory, if it counts that; else it is walked.
    Count(PathBuf),
    /// The file system that is mounted there is asked, and all of it is the volume's.
    Look(PathBuf),
    /// Its driver is asked.
    Ask {
        /// The driver's socket.
        endpoint: PathBuf,
        /// What the driver knows the volume by.
        handle: String,
        /// Where it is published.
        target: PathBuf,
        /// Whose it is.
        pod: PodKey,
    },
}

/// Measures what is at a path.
type Measure = fn(&Path, Wall) -> Result<VolumeUse, FilesError>;

/// Hears of volumes with which something is wrong: whose, and what.
pub(crate) type Alarm = Arc<dyn Fn(&PodKey, String) + Send + Sync>;

/// How long a question of the API waits for a walk; then it is answered with what is known.
pub(crate) const WAIT: Duration = Duration::from_secs(2);

/// The last amounts.
pub(super) struct VolumeUses {
    known: Arc<Known>,
    /// `None`: never walked.
    period: Option<Duration>,
    patience: Duration,
    /// `None`: nobody wants to know how volumes are.
    alarm: Option<Alarm>,
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
        VolumeUses { known: Arc::new(known), period, patience, alarm: None, tasks }
    }

    /// Tells how volumes are, too.
    pub(super) fn with_alarm(self, alarm: Option<Alarm>) -> VolumeUses {
        VolumeUses { alarm, ..self }
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
                self.tasks.start(walk(self.known.clone(), due, self.alarm.clone(), self.tasks.clone()));
            }
            // Either way the answer is what is known then; the sender lives as long as we.
            let _ = tokio::time::timeout(self.patience, walking.wait_for(|walking| !walking)).await;
        }
        let uses = self.known.uses();
        uses.iter().filter_map(|(key, (_, found))| Some((key.clone(), (*found)?))).collect()
    }
}

async fn walk(known: Arc<Known>, due: Vec<(Key, Way)>, alarm: Option<Alarm>, tasks: Tasks) {
    let mut asked = Vec::new();
    for (key, way) in due {
        let at = tasks.now();
        let (path, measure): (_, Measure) = match way {
            Way::Walk(path) => (path, disk_use::volume),
            Way::Count(path) => (path, disk_use::counted_volume),
            Way::Look(path) => (path, disk_use::whole_volume),
            Way::Ask { endpoint, handle, target, pod } => {
                asked.push(ask(&known, (key, pod), (endpoint, handle, target), at, alarm.as_ref()));
                continue;
            }
        };
        let found = tasks.blocking(move || (measure(&path, at.wall), path)).await;
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

async fn ask(
    known: &Known,
    (key, pod): (Key, PodKey),
    (endpoint, handle, target): (PathBuf, String, PathBuf),
    at: Now,
    alarm: Option<&Alarm>,
) {
    let told = agent_plugins::usage(&endpoint, &handle, &target).await;
    let told =
        told.map_err(|error| tracing::debug!(volume = handle, %error, "a driver says nothing of a volume"));
    let told = told.ok().flatten().and_then(|usage| heard(usage, alarm, (&key.1, &pod)));
    let found = told.map(|usage| VolumeUse::told(&usage, at.wall));
    known.uses().insert(key, (at.mono, found));
}

/// What of a driver's answer is told on: without an alarm nothing of the condition, and nothing at all of a driver that
/// tells of neither, as upstream. A volume with which something is wrong is told of at once.
fn heard(mut usage: Usage, alarm: Option<&Alarm>, (volume, pod): (&str, &PodKey)) -> Option<Usage> {
    match (alarm, &usage.condition) {
        (Some(alarm), Some(condition)) if condition.abnormal => {
            alarm(pod, format!("Volume {volume}: {}", condition.message));
        }
        (Some(_), _) => {}
        (None, _) => usage.condition = None,
    }
    (usage.amounts.is_some() || usage.condition.is_some()).then_some(usage)
}

#[cfg(test)]
mod tests {
    use agent_core::csi::request::{Both, Condition};
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
        let counted = uses.of([(key("c"), Way::Count(dir.path().to_owned()))].into()).await;
        assert_eq!(bytes(&counted, "c").unwrap().1, more, "walked where nobody counts");
        let whole = [(key("whole"), Way::Look(dir.path().to_owned()))].into();
        let of_all = *uses.of(whole).await.get(&key("whole")).unwrap();
        let filesystem = of_all.filesystem.unwrap();
        assert_eq!(of_all.taken.unwrap().bytes, filesystem.used_bytes, "what others have there, too");
        let off = VolumeUses::new(orlop_config::Duration::from_secs(-1), WAIT, tasks);
        assert!(off.of(wanted()).await.is_empty());
    }

    #[test]
    fn a_volume_with_which_something_is_wrong_is_told_of() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let to = told.clone();
        let alarm: Alarm = Arc::new(move |pod, words| to.lock().unwrap().push((pod.name.to_string(), words)));
        let pod = PodKey { namespace: "ns".into(), name: "p".into(), uid: "u1".into() };
        let of = |usage: &Usage, alarm| heard(usage.clone(), alarm, ("v", &pod));
        let condition = |abnormal| Some(Condition { abnormal, message: "the disk is gone".to_owned() });
        let (amounts, both) = (Some(Both::default()), Some(&alarm));
        let ill = Usage { amounts, condition: condition(true) };
        let only_ill = Usage { amounts: None, condition: condition(true) };
        assert_eq!(of(&ill, None), Some(Usage { amounts, condition: None }), "nobody wants to know");
        assert_eq!((of(&only_ill, None), of(&Usage::default(), both)), (None, None));
        assert!(told.lock().unwrap().is_empty());
        let well = Usage { amounts, condition: condition(false) };
        assert_eq!(of(&well, both), Some(well));
        assert!(told.lock().unwrap().is_empty());
        assert_eq!((of(&ill, both), of(&only_ill, both)), (Some(ill.clone()), Some(only_ill.clone())));
        let words = ("p".to_owned(), "Volume v: the disk is gone".to_owned());
        assert_eq!(*told.lock().unwrap(), [words.clone(), words]);
    }
}
