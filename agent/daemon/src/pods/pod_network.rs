//! Sends the Node's pod ranges to the runtime, and removes the CNI configuration that the runtime made for other
//! ranges.
//!
//! ```text
//! Node's podCIDRs ─► tell ─► UpdateRuntimeConfig ─► containerd ─► 10-containerd-net.conflist (where none is)
//!                      └─ of other ranges: removed first
//! ```
//! In: ranges as the Node gets them. Out: calls, and the removal of one file. Invariant: only the file that containerd
//! makes from the appliance's template is touched, and only once for each change of the ranges.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_kubelet_api::drivers::PodNetwork;
use agent_linux::files;
use agent_types::failure::Class;
use agent_types::pod_network::follows;
use tokio::sync::watch;

use crate::tasks::actor::Tasks;

/// Pause after the runtime refused the ranges, or has not written its file again yet.
const RETRY: Duration = Duration::from_secs(5);
/// A configuration list has some hundred bytes.
const LIST_BYTES_MAX: u64 = 256 * 1024;
/// Present if containerd makes CNI configuration (`network.podNetwork: bridge`), below the run directory.
const TEMPLATE_IN_USE: &str = "containerd/pod-network.toml";
/// The file that containerd makes.
const RUNTIMES: &str = "/etc/cni/net.d/10-containerd-net.conflist";

/// The CNI configuration that the runtime makes itself.
#[derive(Clone, Debug)]
pub struct RuntimesFile {
    path: PathBuf,
    template: PathBuf,
}

/// State of the CNI configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CniConfigState {
    /// The runtime makes no file: another component provides the pod network.
    NotOurs,
    /// The runtime has yet to make the file.
    Missing,
    /// The file has the Node's ranges.
    Right,
    /// The file has other ranges.
    Stale,
}

impl RuntimesFile {
    /// The file of the appliance; a template of init below `run_dir` shows whether containerd makes it.
    #[must_use]
    pub fn of_appliance(run_dir: &Path) -> RuntimesFile {
        RuntimesFile { path: PathBuf::from(RUNTIMES), template: run_dir.join(TEMPLATE_IN_USE) }
    }

    fn standing(&self, ranges: &[String]) -> CniConfigState {
        if !self.template.exists() {
            return CniConfigState::NotOurs;
        }
        match files::read_capped(&self.path, LIST_BYTES_MAX) {
            Ok(text) if follows(&String::from_utf8_lossy(&text), ranges) => CniConfigState::Right,
            Err(e) if e.class() == Class::NotFound && self.has_neighbours() => CniConfigState::NotOurs,
            Err(e) if e.class() == Class::NotFound => CniConfigState::Missing,
            Ok(_) | Err(_) => CniConfigState::Stale,
        }
    }

    /// True if there is other CNI configuration: then the runtime makes none.
    fn has_neighbours(&self) -> bool {
        let names = self.path.parent().and_then(|dir| files::visible_names(dir).ok()).unwrap_or_default();
        names.iter().any(|n| [".conf", ".conflist", ".json"].iter().any(|end| n.ends_with(end)))
    }

    fn remove(&self) -> std::io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

/// Sends each change of the ranges to the runtime, again until the runtime accepts them.
pub async fn tell<N: PodNetwork>(
    network: Arc<N>,
    mut ranges: watch::Receiver<Vec<String>>,
    file: RuntimesFile,
    tasks: Tasks,
) {
    let mut cleared = Vec::new();
    loop {
        let now = ranges.borrow_and_update().clone();
        if !now.is_empty() && !report_ranges(&*network, &now, &file, &mut cleared).await {
            tokio::select! {
                // Both only wait.
                () = tasks.wait_until(tasks.now().mono.after(RETRY)) => {}
                _ = ranges.changed() => {}
            }
            if tasks.stop().is_cancelled() {
                return;
            }
            continue;
        }
        if ranges.changed().await.is_err() {
            return;
        }
    }
}

/// Sends the ranges; true if the runtime has them. `cleared` are the ranges for which the old file was removed.
async fn report_ranges<N: PodNetwork>(
    network: &N,
    now: &[String],
    file: &RuntimesFile,
    cleared: &mut Vec<String>,
) -> bool {
    if file.standing(now) == CniConfigState::Stale && cleared != now {
        if let Err(error) = file.remove() {
            tracing::error!(%error, file = %file.path.display(), "CNI configuration of other ranges not removed");
            return false;
        }
        tracing::info!(file = %file.path.display(), ranges = now.join(","), "CNI configuration of other ranges removed");
        *cleared = now.to_vec();
    }
    if let Err(error) = network.update_pod_cidr(now).await {
        tracing::warn!(%error, "pod address ranges not told to the runtime yet");
        return false;
    }
    match file.standing(now) {
        // The runtime has not noticed yet that its old file is gone.
        CniConfigState::Missing => return false,
        CniConfigState::Stale => {
            tracing::error!(file = %file.path.display(), "the runtime's CNI configuration is not of the Node's ranges");
        }
        CniConfigState::NotOurs | CniConfigState::Right => {}
    }
    tracing::info!(ranges = now.join(","), "pod address ranges are known to the runtime");
    true
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use agent_types::failure::DriverError;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::testing::VirtualClock;

    /// Does as containerd: makes the file where none is, but does not see at once that it is gone.
    struct Containerd {
        path: PathBuf,
        blind: AtomicUsize,
        calls: AtomicUsize,
    }

    fn list(range: &str) -> String {
        format!(r#"{{"plugins": [{{"ipam": {{"ranges": [[{{"subnet": "{range}"}}]]}}}}]}}"#)
    }

    impl PodNetwork for Containerd {
        async fn update_pod_cidr(&self, cidrs: &[String]) -> Result<(), DriverError> {
            self.calls.fetch_add(1, Ordering::AcqRel);
            let blind = self.blind.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
            if blind.is_err() && !self.path.exists() {
                std::fs::write(&self.path, list(&cidrs[0])).unwrap();
            }
            Ok(())
        }
    }

    struct Rig {
        containerd: Arc<Containerd>,
        ranges: watch::Sender<Vec<String>>,
        file: RuntimesFile,
        _dir: tempfile::TempDir,
    }

    /// A runtime that needs two calls to see that its file is gone.
    fn rig(bridged: bool) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let file =
            RuntimesFile { path: dir.path().join("net.conflist"), template: dir.path().join("template") };
        if bridged {
            std::fs::write(&file.template, "").unwrap();
        }
        let containerd =
            Containerd { path: file.path.clone(), blind: AtomicUsize::new(0), calls: AtomicUsize::new(0) };
        let (ranges, _) = watch::channel(Vec::new());
        Rig { containerd: Arc::new(containerd), ranges, file, _dir: dir }
    }

    impl Rig {
        /// Lets `tell` handle one value until it waits for the next.
        async fn tell(&self, range: &str) {
            self.ranges.send_replace(vec![range.to_owned()]);
            let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
            let telling = tell(self.containerd.clone(), self.ranges.subscribe(), self.file.clone(), tasks);
            let _ = tokio::time::timeout(Duration::from_secs(60), telling).await;
        }

        fn text(&self) -> String {
            std::fs::read_to_string(&self.file.path).unwrap_or_default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_ranges_make_the_file_anew() {
        let rig = rig(true);
        rig.tell("10.1.0.0/24").await;
        assert_eq!((rig.text(), rig.containerd.calls.load(Ordering::Acquire)), (list("10.1.0.0/24"), 1));
        rig.tell("10.1.0.0/24").await;
        assert_eq!(rig.containerd.calls.load(Ordering::Acquire), 2, "said once to each runtime");
        rig.containerd.blind.store(2, Ordering::Release);
        rig.tell("10.2.0.0/24").await;
        assert_eq!((rig.text(), rig.containerd.calls.load(Ordering::Acquire)), (list("10.2.0.0/24"), 5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_somebody_elses_is_left_alone() {
        let rig = rig(false);
        std::fs::write(&rig.file.path, list("10.9.0.0/24")).unwrap();
        rig.tell("10.1.0.0/24").await;
        assert_eq!((rig.text(), rig.containerd.calls.load(Ordering::Acquire)), (list("10.9.0.0/24"), 1));
        let rig = self::rig(true);
        rig.containerd.blind.store(usize::MAX, Ordering::Release);
        std::fs::write(rig.file.path.with_file_name("05-cilium.conflist"), "{}").unwrap();
        rig.tell("10.1.0.0/24").await;
        assert_eq!((rig.text(), rig.containerd.calls.load(Ordering::Acquire)), (String::new(), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_makes_the_wrong_file_is_not_asked_for_ever() {
        let rig = rig(true);
        std::fs::create_dir(&rig.file.path).unwrap();
        let mut cleared = vec!["10.1.0.0/24".to_owned()];
        let now = cleared.clone();
        assert!(report_ranges(&*rig.containerd, &now, &rig.file, &mut cleared).await);
        cleared.clear();
        assert!(
            !report_ranges(&*rig.containerd, &now, &rig.file, &mut cleared).await,
            "what cannot be removed"
        );
        assert_eq!(rig.containerd.calls.load(Ordering::Acquire), 1);
    }
}
