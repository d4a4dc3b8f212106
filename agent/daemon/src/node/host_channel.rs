//! Messages to the machine's host: the boot ledger's last phases and pods' output.
//!
//! ```text
//! agent.started, agent.ready, pod.running ──► ledger file (once a boot) ──┐
//! pod output, problems ───────────────────────────────────────────────────┴─► queue ─► host channel
//! ```
//! Invariants: a host that does not read loses lines, and never delays the agent; a message reports the number of lost
//! lines. Formats: docs/internals/architecture.md, "Host channel" and "Ledger phase names".

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_linux::boot_ledger::LedgerFile;
use agent_linux::host_channel::{self, HostChannelError};
use orlop_config::ledger::{HostMessage, LedgerEntry};
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::node::console::ConsoleWriter;
use crate::pods::pod_dirs::chain;
use crate::pods::status::PodViews;
use crate::tasks::actor::Tasks;

/// Lines waiting for the host. A burst of a noisy pod fits, a flood does not.
const QUEUE_MAX: usize = 1024;
/// How long a write may wait for the host to read.
const WRITE_WAIT: Duration = Duration::from_secs(1);
/// Pause before a port that is in use is tried again.
const BUSY_RETRY: Duration = Duration::from_millis(50);
/// Number of attempts before a batch is dropped.
const BUSY_TRIES: u32 = 100;

/// Sends messages to the host; clones share the queue. On a machine without port and ledger the calls have no effect.
#[derive(Clone)]
pub struct Host {
    tasks: Tasks,
    ledger: LedgerFile,
    queue: Option<mpsc::Sender<HostMessage>>,
    console: Option<ConsoleWriter>,
}

/// Directory of the node's logs in which the ledger has a copy.
const LOGS: &str = "/var/log/orlop";

impl Host {
    /// `run_dir` is `/run/orlop`; `port` is what [`host_channel::find_port`] found.
    #[must_use]
    pub fn new(tasks: Tasks, run_dir: &Path, port: Option<PathBuf>) -> Host {
        let queue = port.map(|port| {
            let (queue, messages) = mpsc::channel(QUEUE_MAX);
            tasks.start(write(port, messages, tasks.clone()));
            queue
        });
        Host { tasks, ledger: LedgerFile::in_directory(run_dir), queue, console: None }
    }

    /// The same of an appliance, which has consoles and a copy of the ledger among its logs.
    #[must_use]
    pub fn of_appliance(mut self, console: ConsoleWriter) -> Host {
        self.ledger = self.ledger.copied_to(Path::new(LOGS));
        self.console = Some(console);
        self
    }

    /// The machine's consoles.
    #[must_use]
    pub fn console(&self) -> Option<&ConsoleWriter> {
        self.console.as_ref()
    }

    /// True if the machine has the port.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.queue.is_some()
    }

    /// Queues a message; false if it had to be dropped.
    pub fn tell(&self, message: HostMessage) -> bool {
        match &self.queue {
            Some(queue) => !matches!(queue.try_send(message), Err(TrySendError::Full(_))),
            None => true,
        }
    }

    /// Stamps a phase that ended now, in the ledger and to the host, once a boot.
    pub async fn stamp(&self, phase: &str, detail: &str) {
        let at_ms = self.tasks.now().mono.0 / 1_000_000;
        let entry = LedgerEntry {
            phase: phase.to_owned(),
            at_ms,
            took_ms: None,
            detail: detail.to_owned(),
            ok: true,
        };
        let (ledger, stamped) = (self.ledger.clone(), entry.clone());
        match self.tasks.blocking(move || ledger.stamp(&stamped)).await {
            Some(Ok(true)) => {
                self.tell(HostMessage::Ledger(entry));
            }
            Some(Ok(false)) | None => {}
            Some(Err(error)) => tracing::warn!(phase, error = %chain(&error), "boot ledger not stamped"),
        }
    }
}

/// Stamps `pod.running` for each pod when a container of it is first seen running.
pub async fn stamp_running(host: Host, mut pods: tokio::sync::watch::Receiver<PodViews>) {
    let mut stamped = std::collections::BTreeSet::new();
    loop {
        let running: Vec<_> = {
            let views = pods.borrow_and_update();
            stamped.retain(|uid| views.contains_key(uid));
            let new = views.iter().filter(|(uid, v)| v.runs() && !stamped.contains(*uid));
            new.map(|(uid, v)| (uid.clone(), format!("{}/{}", v.key.namespace, v.key.name))).collect()
        };
        for (uid, name) in running {
            stamped.insert(uid);
            host.stamp("pod.running", &name).await;
        }
        if pods.changed().await.is_err() {
            return;
        }
    }
}

async fn write(port: PathBuf, mut messages: mpsc::Receiver<HostMessage>, tasks: Tasks) {
    let mut batch = Vec::new();
    while messages.recv_many(&mut batch, QUEUE_MAX).await > 0 {
        let lines: String = batch.drain(..).map(|m| m.render_line()).collect();
        if let Err(error) = send(&port, lines.into_bytes(), &tasks).await {
            tracing::debug!(error = %chain(&error), "host channel: lines lost");
        }
    }
}

async fn send(port: &Path, lines: Vec<u8>, tasks: &Tasks) -> Result<(), HostChannelError> {
    let mut tries = 0;
    loop {
        let (to, bytes) = (port.to_owned(), lines.clone());
        match tasks.blocking(move || host_channel::send(&to, &bytes, WRITE_WAIT)).await {
            Some(Err(HostChannelError::Busy(_))) if tries < BUSY_TRIES => tries += 1,
            Some(result) => return result,
            None => return Ok(()),
        }
        tasks.wait_until(tasks.now().mono.after(BUSY_RETRY)).await;
    }
}

#[cfg(test)]
mod tests {
    use crate::node::host_channel::*;
    use crate::pods::status::StatusStore;
    use crate::testing::VirtualClock;
    use agent_types::ids::PodKey;
    use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};
    use orlop_config::ledger::Ledger;
    use std::io::{BufRead, BufReader};
    use std::sync::Arc;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn a_running_pod_is_stamped_once_and_the_host_hears_of_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("boot.json"), "").unwrap();
        let port = dir.path().join("port");
        nix::unistd::mkfifo(&port, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let outside = std::fs::OpenOptions::new().read(true).write(true).open(&port).unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let host = Host::new(tasks.clone(), dir.path(), Some(port));
        let store = StatusStore::default();
        tasks.start(stamp_running(host.clone(), store.subscribe()));
        let key = PodKey { namespace: "default".into(), name: "hello".into(), uid: "u".into() };
        let publish = |phase: &str, state| {
            let container = ContainerStatus { state: Some(state), ..Default::default() };
            let (phase, container_statuses) = (Some(phase.to_owned()), Some(vec![container]));
            store.publish(&key, Arc::new(PodStatus { phase, container_statuses, ..Default::default() }));
        };
        publish("Pending", ContainerState { waiting: Some(Default::default()), ..Default::default() });
        // Left by the last boot: the pod is to run, and its container has ended.
        publish("Running", ContainerState { terminated: Some(Default::default()), ..Default::default() });
        tokio::task::yield_now().await;
        assert_eq!(std::fs::read_to_string(dir.path().join("boot.json")).unwrap(), "");
        for _ in 0..2 {
            publish("Running", ContainerState { running: Some(Default::default()), ..Default::default() });
        }
        let line = tokio::task::spawn_blocking(move || BufReader::new(outside).lines().next()).await.unwrap();
        let line = line.unwrap().unwrap();
        let HostMessage::Ledger(entry) = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
        assert_eq!((entry.phase.as_str(), entry.detail.as_str()), ("pod.running", "default/hello"));
        host.stamp("pod.running", "default/hello").await;
        let text = std::fs::read_to_string(dir.path().join("boot.json")).unwrap();
        assert_eq!(Ledger::parse(&text).unwrap().entries, [entry]);
        tasks.stop().cancel();
    }

    #[tokio::test]
    async fn a_machine_without_port_and_ledger_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let host = Host::new(tasks, dir.path(), None);
        host.stamp("agent.started", "").await;
        assert!(!host.is_connected());
        assert!(host.tell(HostMessage::Problem { source: "agent".to_owned(), message: "x".to_owned() }));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
