//! Pools of blocking threads: work whose length a pod decides shares no thread with the node's own work.
//!
//! ```text
//! node's own short file work, eviction ──► node       NODE_THREADS
//! a pod's directories, a volume        ──► pods       one thread for each pod and each volume, POD_THREADS
//! walks that measure volumes           ──► measures   one thread a pod, MEASURE_THREADS
//! walks that give volumes to a group   ──► walks      one thread a volume, WALK_THREADS
//! looks for lost shims                 ──► shims      SHIM_THREADS
//! files and file systems for metrics   ──► machine    one thread a source, MACHINE_THREADS
//! updates of the node: its disk        ──► updates    UPDATE_THREADS
//! look-ups of host names               ──► [`crate::pods::probes_and_hooks`] has its own bound, NAME_THREADS
//! ```
//! The runtime of tokio has one pool of threads for all blocking work, and a queue without a bound behind it. The
//! semaphores here admit work to that pool. Invariants: the sum of all bounds is below the size of tokio's pool, so
//! admitted work never waits in tokio's queue; a place is held until the work has ended, even if its caller has given
//! up, because a blocked thread cannot be interrupted.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::tasks::keyed_locks::KeyedLocks;

/// Threads for the node's own file work.
const NODE_THREADS: usize = 4;
/// Threads for pods' directories and volumes: more than the usual number of pods on a node (`maxPods` is 110), so that
/// no stuck pod takes another pod's thread. Threads exist only while they have work.
const POD_THREADS: usize = 160;
/// Threads that measure volumes.
const MEASURE_THREADS: usize = 16;
/// Threads that change the group of volumes' files ([`crate::volumes::ownership`]). A walk may take hours, and a walk
/// through files of a server that is away does not end; the large number leaves room for other walks. Threads exist
/// only while they have work.
const WALK_THREADS: usize = 64;
/// Threads that look for shims that the runtime lost: a look reads what processes of pods show of themselves, and may hang. There is
/// one look at a time.
const SHIM_THREADS: usize = 1;
/// Threads that read the machine for its metrics ([`crate::serving`]): a sensor or a file system may hang. The table of mounts, the
/// kernel's files, and four questions to file systems.
const MACHINE_THREADS: usize = 6;
/// Threads that read and write what updates of the node have on the disk: the disk may hang, and nothing else waits for it.
const UPDATE_THREADS: usize = 1;
/// Threads that look up host names.
pub(crate) const NAME_THREADS: usize = 16;
/// Threads for work that tokio itself gives to its pool: reading logs, the API server's name.
const TOKIO_THREADS: usize = 16;

/// The size of tokio's pool.
pub const BLOCKING_THREADS: usize = NODE_THREADS
    + POD_THREADS
    + MEASURE_THREADS
    + WALK_THREADS
    + SHIM_THREADS
    + MACHINE_THREADS
    + UPDATE_THREADS
    + NAME_THREADS
    + TOKIO_THREADS;
/// Idle time after which a thread ends.
pub const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(2);

/// A place in a pool; the work carries it to its thread.
#[derive(Debug)]
pub(crate) struct PoolPermit {
    _thread: OwnedSemaphorePermit,
    _alone: Option<OwnedMutexGuard<()>>,
}

/// The pools of one node.
#[derive(Debug)]
pub(crate) struct Pools {
    node: Arc<Semaphore>,
    pods: Keyed,
    measures: Keyed,
    walks: Keyed,
    shims: Arc<Semaphore>,
    machine: Keyed,
    updates: Arc<Semaphore>,
}

/// One thread for each key, and a bound for all keys.
#[derive(Debug)]
struct Keyed {
    threads: Arc<Semaphore>,
    keys: KeyedLocks<String>,
}

impl Keyed {
    fn new(threads: usize) -> Keyed {
        Keyed { threads: Arc::new(Semaphore::new(threads)), keys: KeyedLocks::default() }
    }

    /// Waits until the key's earlier work has ended, then for a thread.
    async fn place(&self, key: String) -> Option<PoolPermit> {
        let alone = self.keys.alone(&key).await;
        let thread = self.threads.clone().acquire_owned().await.ok()?;
        Some(PoolPermit { _thread: thread, _alone: Some(alone) })
    }
}

async fn thread_of(pool: &Arc<Semaphore>) -> Option<PoolPermit> {
    let thread = pool.clone().acquire_owned().await.ok()?;
    Some(PoolPermit { _thread: thread, _alone: None })
}

impl Default for Pools {
    fn default() -> Self {
        Pools {
            node: Arc::new(Semaphore::new(NODE_THREADS)),
            pods: Keyed::new(POD_THREADS),
            measures: Keyed::new(MEASURE_THREADS),
            walks: Keyed::new(WALK_THREADS),
            shims: Arc::new(Semaphore::new(SHIM_THREADS)),
            machine: Keyed::new(MACHINE_THREADS),
            updates: Arc::new(Semaphore::new(UPDATE_THREADS)),
        }
    }
}

impl Pools {
    /// A place for the node's own work. `None`: never, for no semaphore is closed.
    pub(crate) async fn node(&self) -> Option<PoolPermit> {
        thread_of(&self.node).await
    }

    /// The place to look for lost shims, after the earlier look.
    pub(crate) async fn shims(&self) -> Option<PoolPermit> {
        thread_of(&self.shims).await
    }

    /// The place for the disk's part in updates of the node, after the earlier one.
    pub(crate) async fn updates(&self) -> Option<PoolPermit> {
        thread_of(&self.updates).await
    }

    /// A place for work on directories and volumes of a pod, after the pod's earlier work.
    pub(crate) async fn of_pod(&self, uid: &str) -> Option<PoolPermit> {
        self.pods.place(format!("pod {uid}")).await
    }

    /// A place for work on a volume that several pods may use, after the volume's earlier work.
    pub(crate) async fn of_volume(&self, volume: &str) -> Option<PoolPermit> {
        self.pods.place(format!("volume {volume}")).await
    }

    /// A place to measure volumes of a pod, after the pod's earlier measurement.
    pub(crate) async fn measure(&self, uid: &str) -> Option<PoolPermit> {
        self.measures.place(uid.to_owned()).await
    }

    /// A place to read a source of the machine's metrics, after the source's earlier read.
    pub(crate) async fn machine(&self, source: &str) -> Option<PoolPermit> {
        self.machine.place(source.to_owned()).await
    }

    /// A place to walk through a volume's files, after the volume's earlier walk.
    pub(crate) async fn walk(&self, volume: &str) -> Option<PoolPermit> {
        self.walks.place(volume.to_owned()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use agent_types::ids::PodUid;
    use futures_util::FutureExt;
    use tokio::time::timeout;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::tasks::actor::Tasks;
    use crate::testing::VirtualClock;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A runtime with the agent's settings.
    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).max_blocking_threads(BLOCKING_THREADS).enable_all().build().unwrap()
    }

    #[test]
    fn stuck_pods_keep_neither_the_node_nor_other_pods_from_their_threads() {
        let runtime = runtime();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (release, released) = channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        runtime.block_on(async {
            // The work of each pod is stuck. Callers repeat it and give up, as effects do at their deadlines.
            for pod in 0..100 {
                let uid = PodUid::from(format!("stuck-{pod}").as_str());
                for _ in 0..10 {
                    let released = released.clone();
                    let stuck = move || {
                        let _ = released.lock().map(|released| released.recv());
                    };
                    assert!(tasks.blocking_of_pod(&uid, stuck).now_or_never().is_none());
                }
            }
            for _ in 0..20 {
                let own = timeout(LIMIT, tasks.blocking(|| 7)).await;
                assert_eq!(own.expect("the node's own work has a thread"), Some(7));
            }
            let other = PodUid::from("other");
            let done = timeout(LIMIT, tasks.blocking_of_pod(&other, || 7)).await;
            assert_eq!(done.expect("another pod has a thread"), Some(7));
            let log = timeout(LIMIT, tokio::fs::metadata("/")).await;
            assert!(log.expect("a reader of logs has a thread").is_ok());
            let stuck = PodUid::from("stuck-1");
            let again = tasks.blocking_of_pod(&stuck, || 7);
            assert!(timeout(Duration::from_millis(50), again).await.is_err(), "the pod's one thread is busy");
        });
        drop(release);
    }

    #[test]
    fn stuck_measurements_keep_neither_the_look_for_lost_shims_nor_metrics_from_their_threads() {
        let runtime = runtime();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (release, released) = channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        let stuck = || {
            let released = released.clone();
            move || {
                let _ = released.lock().map(|released| released.recv());
            }
        };
        runtime.block_on(async {
            for pod in 0..MEASURE_THREADS {
                assert!(tasks.blocking_measure(&format!("stuck-{pod}"), stuck()).now_or_never().is_none());
            }
            let measured = tasks.blocking_measure("another", || 7);
            assert!(timeout(Duration::from_millis(50), measured).await.is_err(), "all threads are busy");
            let look = timeout(LIMIT, tasks.blocking_shims(|| 7)).await;
            assert_eq!(look.expect("the look has its thread"), Some(7));
            let files = timeout(LIMIT, tasks.blocking_machine("files", || 7)).await;
            assert_eq!(files.expect("the machine's metrics have a thread"), Some(7));
            assert!(tasks.blocking_shims(stuck()).now_or_never().is_none());
            let second = tasks.blocking_shims(|| 7);
            assert!(timeout(Duration::from_millis(50), second).await.is_err(), "one look at a time");
        });
        drop(release);
    }
}
