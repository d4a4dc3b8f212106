//! Usage of pods' volumes. A query starts a walk of the directories if the last walk is older than
//! `volumeStatsAggPeriod`. One walk runs at a time, and no query waits longer than its patience. CSI drivers report the
//! usage of their own volumes; after a driver was silent for that long, queries stop waiting for it until it answers.
//!
//! In: directories, volumes of drivers. Out: amounts, each with the time of its measurement. Invariants: queries wait
//! for at most one walk, and each volume has at most one measurement under way; a slow or failed measurement keeps the
//! last known amount, because a container can cause both; the cache forgets a volume that a query does not name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_kubelet_api::stats::disk::VolumeUse;
use agent_linux::disk_use;
use agent_linux::files::FilesError;
use agent_types::ids::PodKey;
use agent_types::time::{Mono, Now, Wall};
use agent_volumes::csi::request::Usage;
use tokio::sync::{oneshot, watch};

use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// UID and name.
type Key = (String, String);

/// The longest time that one volume's measurement may delay the others. The measurement goes on after that, and its
/// result counts.
const MEASURE_MAX: Duration = Duration::from_secs(60);

/// Method of a volume's measurement.
#[derive(Clone, Debug)]
pub(super) enum MeasureMethod {
    /// Walk this directory.
    Walk(PathBuf),
    /// Ask the file system for the usage of this directory, if the file system counts it; otherwise walk the directory.
    Count(PathBuf),
    /// The whole file system that is mounted there belongs to the volume: ask the file system.
    Look(PathBuf),
    /// Ask the CSI driver.
    Ask {
        /// The driver's socket.
        endpoint: PathBuf,
        /// The driver's id of the volume.
        handle: String,
        /// Path at which the volume is published.
        target: PathBuf,
        /// The pod that uses the volume.
        pod: PodKey,
    },
}

/// Measures the usage at a path.
type Measure = fn(&Path, Wall) -> Result<VolumeUse, FilesError>;

/// Receives reports of abnormal volumes: the pod, and the driver's message.
pub(crate) type Alarm = Arc<dyn Fn(&PodKey, String) + Send + Sync>;

/// How long a query of the API waits for a walk. After that it returns the known amounts.
pub(crate) const WAIT: Duration = Duration::from_secs(2);

/// The last amounts.
pub(super) struct VolumeUses {
    known: Arc<watch::Sender<VolumeUseCache>>,
    /// `None`: never walked.
    period: Option<Duration>,
    patience: Duration,
    /// `None`: the conditions of volumes are not reported.
    alarm: Option<Alarm>,
    tasks: Tasks,
}

#[derive(Default)]
struct VolumeUseCache {
    uses: BTreeMap<Key, (Mono, Option<VolumeUse>)>,
    walking: bool,
    /// Volumes with a measurement under way.
    measuring: BTreeSet<Key>,
    /// Volumes whose drivers have not answered yet.
    asking: BTreeSet<Key>,
    /// Volumes whose drivers were silent for the whole patience of a query.
    silent: BTreeSet<Key>,
}

/// The work that one query starts, and the results that it waits for.
#[derive(Default)]
struct Begun {
    /// Directories to walk, if no walk is running.
    walks: Vec<(Key, MeasureMethod)>,
    /// Drivers to ask.
    asks: Vec<(Key, MeasureMethod)>,
    /// The query waits for the walk.
    walk: bool,
    /// The query waits for the drivers of these volumes.
    drivers: BTreeSet<Key>,
}

impl VolumeUseCache {
    /// Starts a query for these volumes.
    fn begin(&mut self, wanted: BTreeMap<Key, MeasureMethod>, now: Mono, period: Duration) -> Begun {
        self.uses.retain(|key, _| wanted.contains_key(key));
        self.silent.retain(|key| wanted.contains_key(key));
        let mut begun = Begun::default();
        for (key, way) in wanted {
            if self.uses.get(&key).is_some_and(|(at, _)| now.since(*at) < period) {
                continue;
            }
            if !matches!(way, MeasureMethod::Ask { .. }) {
                // A slow measurement does not delay further queries.
                if self.measuring.contains(&key) && !self.walking {
                    continue;
                }
                begun.walk = true;
                if !self.walking {
                    begun.walks.push((key, way));
                }
                continue;
            }
            if !self.silent.contains(&key) {
                begun.drivers.insert(key.clone());
            }
            if self.asking.insert(key.clone()) {
                begun.asks.push((key, way));
            }
        }
        self.walking |= begun.walk;
        begun
    }

    fn measured(&mut self, key: Key, at: Mono, found: Option<VolumeUse>) {
        self.measuring.remove(&key);
        // A volume that cannot be measured keeps its last amount.
        let known = self.uses.get(&key).and_then(|(_, known)| *known);
        self.uses.insert(key, (at, found.or(known)));
    }

    fn answered(&mut self, key: Key, at: Mono, found: Option<VolumeUse>) {
        self.asking.remove(&key);
        self.silent.remove(&key);
        self.uses.insert(key, (at, found));
    }
}

impl VolumeUses {
    /// `volumeStatsAggPeriod`; negative turns it off.
    pub(super) fn new(period: orlop_config::Duration, patience: Duration, tasks: Tasks) -> VolumeUses {
        let period = (period >= orlop_config::Duration::ZERO).then(|| period.to_std());
        let known = Arc::new(watch::channel(VolumeUseCache::default()).0);
        VolumeUses { known, period, patience, alarm: None, tasks }
    }

    /// Reports the conditions of volumes, too.
    pub(super) fn with_alarm(self, alarm: Option<Alarm>) -> VolumeUses {
        VolumeUses { alarm, ..self }
    }

    /// The amounts of these volumes that are known after a walk and the answers of drivers, or when the patience ends.
    pub(super) async fn of(&self, wanted: BTreeMap<Key, MeasureMethod>) -> BTreeMap<Key, VolumeUse> {
        let Some(period) = self.period else { return BTreeMap::new() };
        let now = self.tasks.now().mono;
        let mut begun = Begun::default();
        self.known.send_modify(|known| begun = known.begin(wanted, now, period));
        if !begun.walks.is_empty() {
            self.tasks.start(walk(self.known.clone(), begun.walks, self.tasks.clone()));
        }
        for (key, way) in begun.asks {
            self.tasks.start(ask(self.known.clone(), key, way, self.tasks.now(), self.alarm.clone()));
        }
        let mut look = self.known.subscribe();
        let (walk, drivers) = (begun.walk, begun.drivers);
        let done = |known: &VolumeUseCache| !(walk && known.walking) && drivers.is_disjoint(&known.asking);
        // On timeout, the query returns the amounts that are known by then. The sender lives as long as `self`.
        if tokio::time::timeout(self.patience, look.wait_for(done)).await.is_err() {
            self.known.send_modify(|known| {
                let late: Vec<Key> = drivers.intersection(&known.asking).cloned().collect();
                known.silent.extend(late);
            });
        }
        let known = self.known.borrow();
        known.uses.iter().filter_map(|(key, (_, found))| Some((key.clone(), (*found)?))).collect()
    }
}

async fn walk(known: Arc<watch::Sender<VolumeUseCache>>, due: Vec<(Key, MeasureMethod)>, tasks: Tasks) {
    for (key, way) in due {
        known.send_modify(|known| {
            known.measuring.insert(key.clone());
        });
        let (done, ended) = oneshot::channel::<()>();
        let measured = measure(known.clone(), key.clone(), way, tasks.clone());
        tasks.start(async move {
            measured.await;
            drop(done);
        });
        // The sender sends no value; the end of the channel is the signal.
        if tokio::time::timeout(MEASURE_MAX, ended).await.is_err() {
            // The server of a network file system is away, or the disk is slow. The walk measures the other volumes
            // meanwhile.
            tracing::warn!(
                pod = key.0,
                volume = key.1,
                "a volume is not measured yet: its last amount counts until the measurement ends"
            );
        }
    }
    known.send_modify(|known| known.walking = false);
}

async fn measure(known: Arc<watch::Sender<VolumeUseCache>>, key: Key, way: MeasureMethod, tasks: Tasks) {
    let at = tasks.now();
    let (path, measure): (_, Measure) = match way {
        MeasureMethod::Walk(path) => (path, disk_use::volume),
        MeasureMethod::Count(path) => (path, disk_use::counted_volume),
        MeasureMethod::Look(path) => (path, disk_use::whole_volume),
        MeasureMethod::Ask { .. } => return,
    };
    let Some((found, path)) = tasks.blocking_measure(&key.0, move || (measure(&path, at.wall), path)).await
    else {
        return;
    };
    let found = found.map_err(|error| {
        // Volumes exist before the pod's containers and vanish after them, but a query may come at any time.
        tracing::debug!(path = %path.display(), error = chain(&error), "a volume is not measured");
    });
    known.send_modify(|known| known.measured(key, at.mono, found.ok()));
}

async fn ask(
    known: Arc<watch::Sender<VolumeUseCache>>,
    key: Key,
    way: MeasureMethod,
    at: Now,
    alarm: Option<Alarm>,
) {
    let MeasureMethod::Ask { endpoint, handle, target, pod } = way else { return };
    // The driver call has its own time limit.
    let told = agent_plugins::usage(&endpoint, &handle, &target).await;
    let told =
        told.map_err(|error| tracing::debug!(volume = handle, %error, "a driver says nothing of a volume"));
    let told = told.ok().flatten().and_then(|usage| heard(usage, alarm.as_ref(), &key.1, &pod));
    let found = told.map(|usage| VolumeUse::from_driver(&usage, at.wall));
    known.send_modify(|known| known.answered(key, at.mono, found));
}

/// The part of a driver's answer that is passed on. Without an alarm the volume's condition is dropped; an answer with
/// neither usage nor condition is dropped as well, as upstream does. An abnormal volume is reported at once.
fn heard(mut usage: Usage, alarm: Option<&Alarm>, volume: &str, pod: &PodKey) -> Option<Usage> {
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
    use agent_volumes::csi::request::{BytesAndInodes, Condition};
    use tokio_util::sync::CancellationToken;

    use std::os::unix::net::UnixListener;
    use std::sync::Mutex;

    use super::*;
    use crate::testing::VirtualClock;

    fn key(name: &str) -> Key {
        ("u1".to_owned(), name.to_owned())
    }

    /// Time and size of the measurement.
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
            [("v", ""), ("none", "none")]
                .map(|(k, below)| (key(k), MeasureMethod::Walk(dir.path().join(below))))
                .into()
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
        assert!(
            uses.of(BTreeMap::new()).await.is_empty() && uses.known.borrow().uses.is_empty(),
            "forgotten"
        );
        let counted = uses.of([(key("c"), MeasureMethod::Count(dir.path().to_owned()))].into()).await;
        assert_eq!(bytes(&counted, "c").unwrap().1, more, "walked where nobody counts");
        let whole = [(key("whole"), MeasureMethod::Look(dir.path().to_owned()))].into();
        let of_all = *uses.of(whole).await.get(&key("whole")).unwrap();
        let filesystem = of_all.filesystem.unwrap();
        assert_eq!(of_all.taken.unwrap().bytes, filesystem.used_bytes, "what others have there, too");
        let off = VolumeUses::new(orlop_config::Duration::from_secs(-1), WAIT, tasks);
        assert!(off.of(wanted()).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_cannot_be_measured_keeps_its_last_amount_and_one_that_takes_long_gets_one() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let uses = VolumeUses::new(orlop_config::Duration::from_secs(60), WAIT, tasks.clone());
        let volume = dir.path().join("v");
        std::fs::create_dir(&volume).unwrap();
        fill(&volume, "one");
        let wanted = || [(key("v"), MeasureMethod::Walk(volume.clone()))].into();
        let first = uses.of(wanted()).await;
        assert!(bytes(&first, "v").is_some());
        std::fs::rename(&volume, dir.path().join("elsewhere")).unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(uses.of(wanted()).await, first, "it failed");
        std::fs::rename(dir.path().join("elsewhere"), &volume).unwrap();
        fill(&volume, "two");
        // The pod's thread is busy for longer than any query waits.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let busy = tasks.blocking_measure("u1", move || released.recv().is_err());
        let mut busy = Box::pin(busy);
        assert!(futures_util::poll!(&mut busy).is_pending());
        tokio::time::advance(Duration::from_secs(60)).await;
        // The clock of a test stands still while a thread is busy.
        let (at_last, ()) = tokio::join!(uses.of(wanted()), tokio::time::advance(WAIT));
        assert_eq!(at_last, first, "no question waits longer");
        tokio::time::advance(MEASURE_MAX).await;
        drop(uses.known.subscribe().wait_for(|known| !known.walking).await.unwrap());
        let began = tokio::time::Instant::now();
        assert_eq!(uses.of(wanted()).await, first);
        assert!(began.elapsed() < WAIT && !uses.known.borrow().walking, "it is under way already");
        drop(release);
        busy.await.unwrap();
        drop(uses.known.subscribe().wait_for(|known| known.measuring.is_empty()).await.unwrap());
        let known = uses.known.borrow().uses[&key("v")].1.unwrap();
        let late = [(key("v"), known)].into();
        let late = bytes(&late, "v").unwrap();
        assert!(late.1 > bytes(&first, "v").unwrap().1, "the late answer counts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_is_silent_is_waited_for_once() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = dir.path().join("csi.sock");
        let _nobody_answers = UnixListener::bind(&endpoint).unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let uses = VolumeUses::new(orlop_config::Duration::from_secs(60), WAIT, tasks);
        let wanted = || {
            let pod = PodKey { namespace: "ns".into(), name: "p".into(), uid: "u1".into() };
            let (target, handle) = (dir.path().to_owned(), "h".to_owned());
            let asked = MeasureMethod::Ask { endpoint: endpoint.clone(), handle, target, pod };
            [(key("asked"), asked), (key("v"), MeasureMethod::Walk(dir.path().to_owned()))].into()
        };
        let took = async |wanted| {
            let began = tokio::time::Instant::now();
            let found = uses.of(wanted).await;
            (bytes(&found, "v").is_some() && bytes(&found, "asked").is_none(), began.elapsed())
        };
        let (walked, waited) = took(wanted()).await;
        assert!(walked && waited >= WAIT, "{waited:?}");
        // Later queries get the known amounts, also of volumes that no query named before.
        for _ in 0..2 {
            let (walked, waited) = took(wanted()).await;
            assert!(walked && waited < WAIT, "{waited:?}");
        }
        let mut more: BTreeMap<Key, MeasureMethod> = wanted();
        more.insert(key("more"), MeasureMethod::Walk(dir.path().to_owned()));
        let began = tokio::time::Instant::now();
        assert!(bytes(&uses.of(more).await, "more").is_some() && began.elapsed() < WAIT);
        assert_eq!(uses.known.borrow().asking.len(), 1, "asked once");
        // The driver is gone: that is an answer, too, and the next query waits for the driver again.
        uses.known.subscribe().wait_for(|known| known.asking.is_empty()).await.unwrap();
        assert!(uses.known.borrow().silent.is_empty());
        tokio::time::advance(Duration::from_secs(60)).await;
        let (_, waited) = took(wanted()).await;
        assert!(waited >= WAIT, "{waited:?}");
    }

    #[test]
    fn a_volume_with_which_something_is_wrong_is_told_of() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let to = told.clone();
        let alarm: Alarm = Arc::new(move |pod, words| to.lock().unwrap().push((pod.name.to_string(), words)));
        let pod = PodKey { namespace: "ns".into(), name: "p".into(), uid: "u1".into() };
        let of = |usage: &Usage, alarm| heard(usage.clone(), alarm, "v", &pod);
        let condition = |abnormal| Some(Condition { abnormal, message: "the disk is gone".to_owned() });
        let (amounts, both) = (Some(BytesAndInodes::default()), Some(&alarm));
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
