//! Metrics of the operating system (`/metrics/node`), gathered for each request.
//!
//! ```text
//! mounts ─► statfs in threads of their own ─┐
//! systemd over the bus ─────────────────────┼─► NodeFacts ─► files of the kernel ─► text
//! problems with the cluster ────────────────┘
//! ```
//! In: requests. Out: texts. Invariants: nothing is read between two requests; what may hang runs in the pool of
//! [`Tasks::blocking_machine`], so a device, a file system or a bus that does not answer delays this text alone, by [`WAIT`] at most
//! for each source; a source that does not answer leaves its families out and no others; file systems that do not answer hold
//! [`THREADS`] threads at most. docs/reference/node-metrics.md.

use std::sync::Arc;
use std::time::Duration;

use agent_kubelet_api::node_metrics::filesystem::NodeMount;
use agent_kubelet_api::node_metrics::{self, FilesystemUsage, KernelFiles, MountUsage, NodeFacts};
use agent_linux::kernel_files::{self, KernelTree};
use agent_linux::{clock, systemd_units, timex};
use agent_types::lock::Lock;
use orlop_node_api::answers::services::ESSENTIAL;
use tokio::sync::Mutex as AsyncMutex;

use crate::node::cluster_problems::{ClusterProblems, Part};
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// How long a text waits for the table of mounts, for file systems, and for the kernel's files, one after the other: less than the 10 s
/// that Prometheus gives a scrape.
const WAIT: Duration = Duration::from_secs(2);
/// The source that most families are from.
const FILES: &str = "files of the kernel";
/// Threads that file systems without an answer may hold.
const THREADS: usize = 4;
/// What stands for a file system that does not answer, as in node_exporter.
const SILENT: &str = "mountpoint timeout";
/// Units that are shown next to [`ESSENTIAL`] and to those that have failed.
const UNITS: [&str; 4] =
    ["orlop-node-api.socket", "orlop-update.service", "systemd-timesyncd.service", "systemd-udevd.service"];
/// Directory of the runtime, whose mounts are those of pods.
const RUNTIME_DIR: &str = "/var/lib/containerd";

/// Asks a file system for its use; it may hang.
type AskUsage = fn(&NodeMount) -> Result<FilesystemUsage, String>;

/// Gathers the texts.
pub(super) struct OsMetrics {
    /// Directories whose mounts are those of pods.
    pods: Vec<String>,
    problems: ClusterProblems,
    filesystems: FilesystemQuestions<AskUsage>,
    tasks: Tasks,
}

impl OsMetrics {
    /// `root_dir`: the directory of pods.
    pub(super) fn new(root_dir: &str, problems: ClusterProblems, tasks: Tasks) -> OsMetrics {
        OsMetrics {
            pods: vec![root_dir.to_owned(), RUNTIME_DIR.to_owned()],
            problems,
            filesystems: FilesystemQuestions::new(kernel_files::usage as AskUsage, tasks.clone()),
            tasks,
        }
    }

    /// What `/metrics/node` answers; empty while the node is being stopped.
    pub(super) async fn text(&self) -> String {
        let shown: Vec<&str> = ESSENTIAL.iter().map(|(unit, _)| *unit).chain(UNITS).collect();
        let (filesystems, units) = tokio::join!(self.usages(), systemd_units::read(&shown));
        let units =
            units.inspect_err(|error| tracing::debug!(error = %chain(error), "no states of units")).ok();
        let problems = self.problems.subscribe().borrow().clone();
        let facts = Arc::new(NodeFacts {
            now: clock::realtime(),
            page_bytes: kernel_files::page_bytes(),
            uname: kernel_files::uname(),
            timex: timex::read().ok(),
            filesystems,
            units,
            problems: Part::ALL.map(|part| (part.as_str(), problems.contains_key(&part))).to_vec(),
        });
        let known = facts.clone();
        // A driver of a sensor may take its time.
        let text = self.tasks.blocking_machine(FILES, move || text_of(&KernelTree::of_machine(), &known));
        match tokio::time::timeout(WAIT, text).await {
            Ok(text) => text.unwrap_or_default(),
            Err(_) => {
                tracing::warn!(
                    "the kernel's files did not answer in time: /metrics/node lacks their families"
                );
                text_of(&NoFiles, &facts)
            }
        }
    }

    /// The node's own file systems; `None` if the table of mounts is not to be had.
    async fn usages(&self) -> Option<Vec<MountUsage>> {
        let pods = self.pods.clone();
        let mounts = self.tasks.blocking_machine("table of mounts", move || {
            let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
            KernelTree::of_machine().mounts(&pods)
        });
        // Nothing: too late, the node is being stopped, the table cannot be read.
        let mounts = tokio::time::timeout(WAIT, mounts).await.ok()???;
        Some(self.filesystems.ask(mounts).await)
    }
}

fn text_of<F: KernelFiles>(files: &F, facts: &NodeFacts) -> String {
    let began = clock::boottime();
    node_metrics::text(files, facts, &|| clock::boottime().since(began))
}

/// Files that do not answer: their collectors have no data, and the text says so.
struct NoFiles;

impl KernelFiles for NoFiles {
    fn text(&self, _: &str) -> Option<String> {
        None
    }

    fn names(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn real_path(&self, _: &str) -> Option<String> {
        None
    }
}

/// Asks file systems for their use. One that has not answered an earlier question is not asked again until it has.
struct FilesystemQuestions<A> {
    ask: A,
    /// One request asks after the other: a question that is just under way is no silent one.
    turn: AsyncMutex<()>,
    threads: Arc<Lock<[AskingThread; THREADS]>>,
    tasks: Tasks,
}

/// A thread that asks one file system after the other.
#[derive(Clone, Debug, Default)]
struct AskingThread {
    is_busy: bool,
    /// The mount point that it asks now.
    asks: Option<String>,
}

/// The thread's place, which is free again when this is dropped.
struct ThreadPlace {
    threads: Arc<Lock<[AskingThread; THREADS]>>,
    number: usize,
}

impl ThreadPlace {
    fn take(threads: &Arc<Lock<[AskingThread; THREADS]>>) -> Option<ThreadPlace> {
        let mut all = threads.lock();
        let number = all.iter().position(|thread| !thread.is_busy)?;
        all[number].is_busy = true;
        Some(ThreadPlace { threads: threads.clone(), number })
    }

    fn asks(&self, mount_point: Option<&str>) {
        self.threads.lock()[self.number].asks = mount_point.map(str::to_owned);
    }
}

impl Drop for ThreadPlace {
    fn drop(&mut self) {
        self.threads.lock()[self.number] = AskingThread::default();
    }
}

impl<A: Fn(&NodeMount) -> Result<FilesystemUsage, String> + Clone + Send + 'static> FilesystemQuestions<A> {
    fn new(ask: A, tasks: Tasks) -> FilesystemQuestions<A> {
        FilesystemQuestions { ask, turn: AsyncMutex::new(()), threads: Arc::default(), tasks }
    }

    /// Each mount with its use, or with [`SILENT`].
    async fn ask(&self, mounts: Vec<NodeMount>) -> Vec<MountUsage> {
        let _turn = self.turn.lock().await;
        let silent: Vec<String> =
            self.threads.lock().iter().filter_map(|thread| thread.asks.clone()).collect();
        let answers: Arc<Lock<Vec<MountUsage>>> = Arc::default();
        if let Some(place) = ThreadPlace::take(&self.threads) {
            let asked: Vec<NodeMount> =
                mounts.iter().filter(|mount| !silent.contains(&mount.mount_point)).cloned().collect();
            let (ask, to, key) =
                (self.ask.clone(), answers.clone(), format!("file systems {}", place.number));
            let work = self.tasks.blocking_machine(&key, move || {
                for mount in asked {
                    place.asks(Some(&mount.mount_point));
                    let usage = ask(&mount);
                    place.asks(None);
                    to.lock().push(MountUsage { mount, usage });
                }
            });
            // The thread goes on without the request, and gives its place back when the file system answers.
            let _ = tokio::time::timeout(WAIT, work).await;
        }
        let mut usages = std::mem::take(&mut *answers.lock());
        let unanswered: Vec<MountUsage> = mounts
            .into_iter()
            .filter(|mount| usages.iter().all(|usage| usage.mount != *mount))
            .map(|mount| MountUsage { mount, usage: Err(SILENT.to_owned()) })
            .collect();
        usages.extend(unanswered);
        usages
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use futures_util::FutureExt;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::testing::VirtualClock;

    fn tasks() -> Tasks {
        Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new())
    }

    fn mounts(paths: &[&str]) -> Vec<NodeMount> {
        paths
            .iter()
            .map(|path| NodeMount { mount_point: (*path).to_owned(), ..NodeMount::default() })
            .collect()
    }

    /// The paths with an answer.
    fn answered(usages: &[MountUsage]) -> Vec<&str> {
        usages
            .iter()
            .filter(|usage| usage.usage.is_ok())
            .map(|usage| usage.mount.mount_point.as_str())
            .collect()
    }

    /// `/b` answers once the other end is dropped, `/c` is broken.
    fn asking(
        release: Receiver<()>,
    ) -> impl Fn(&NodeMount) -> Result<FilesystemUsage, String> + Clone + Send + 'static {
        let release = Arc::new(Lock::new(release));
        move |mount: &NodeMount| match mount.mount_point.as_str() {
            "/b" => {
                // An error: the other end is gone.
                let _ = release.lock().recv();
                Ok(FilesystemUsage::default())
            }
            "/c" => Err("Input/output error".to_owned()),
            _ => Ok(FilesystemUsage::default()),
        }
    }

    #[tokio::test]
    async fn a_file_system_that_is_silent_delays_one_text_and_no_other_mount() {
        let (release, released) = channel();
        let questions = FilesystemQuestions::new(asking(released), tasks());
        let paths = ["/a", "/b", "/c", "/d"];
        let first = questions.ask(mounts(&paths)).await;
        assert_eq!(answered(&first), ["/a"], "the thread stands at /b");
        assert_eq!(first.len(), 4);
        let began = std::time::Instant::now();
        let second = questions.ask(mounts(&paths)).await;
        assert!(began.elapsed() < WAIT, "/b is not asked again");
        assert_eq!(answered(&second), ["/a", "/d"]);
        let reason = |path: &str| {
            second.iter().find(|u| u.mount.mount_point == path).unwrap().usage.clone().unwrap_err()
        };
        assert_eq!((reason("/b").as_str(), reason("/c").as_str()), (SILENT, "Input/output error"));
        drop(release);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while questions.threads.lock().iter().any(|thread| thread.is_busy) {
            assert!(tokio::time::Instant::now() < deadline, "the thread did not end");
            tokio::task::yield_now().await;
        }
        assert_eq!(answered(&questions.ask(mounts(&paths)).await), ["/a", "/b", "/d"]);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_file_systems_hold_no_more_threads_than_there_may_be() {
        let (release, released) = channel::<()>();
        let held = Arc::new(Lock::new(released));
        let ask = move |_: &NodeMount| {
            let _ = held.lock().recv();
            Ok::<_, String>(FilesystemUsage::default())
        };
        let questions = FilesystemQuestions::new(ask, tasks());
        for path in ["/1", "/2", "/3", "/4", "/5", "/6"] {
            // The clock of a test stands still while a thread is busy.
            let (usages, ()) = tokio::join!(questions.ask(mounts(&[path])), tokio::time::advance(WAIT));
            assert!(answered(&usages).is_empty(), "{path}");
        }
        let busy = questions.threads.lock().iter().filter(|thread| thread.is_busy).count();
        assert_eq!(busy, THREADS);
        drop(release);
    }

    #[tokio::test]
    async fn the_text_has_the_machine_and_the_problems_of_the_node() {
        let problems = ClusterProblems::default();
        problems.say(Part::Clock, "The clock is wrong.");
        let text = OsMetrics::new("/var/lib/kubelet", problems, tasks()).text().await;
        for line in ["orlop_problem{part=\"clock\"} 1", "orlop_problem{part=\"lease\"} 0"] {
            assert!(text.lines().any(|told| told == line), "{line} is not in:\n{text}");
        }
        assert!(text.contains("node_uname_info{") && text.contains("node_load15 "), "{text}");
    }

    #[tokio::test]
    async fn a_text_without_the_kernels_files_has_the_rest_and_says_so() {
        let tasks = tasks();
        let (release, released) = channel::<()>();
        let stuck = tasks.blocking_machine(FILES, move || released.recv().is_err());
        assert!(stuck.now_or_never().is_none(), "a sensor that does not answer");
        let metrics = OsMetrics::new("/var/lib/kubelet", ClusterProblems::default(), tasks);
        let text = metrics.text().await;
        for line in [
            "orlop_problem{part=\"clock\"} 0",
            "node_scrape_collector_success{collector=\"cpu\"} 0",
            "node_scrape_collector_success{collector=\"uname\"} 1",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in:\n{text}");
        }
        drop(release);
    }
}
