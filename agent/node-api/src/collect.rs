//! Takes the snapshot: files below a root directory, the network, `systemctl show`.
//!
//! In: kinds. Out: [`Facts`]. Invariants: files are read up to a bound; a program has five seconds (an operation names its own limit),
//! 1 MiB of output, and one of two places of its kind; what hangs costs its own source (`blocking`, `program`). Why `systemctl` and not
//! the bus: it asks PID 1 on its own socket, so it answers while the bus is dead (agent/linux/src/service_manager.rs says why not zbus on
//! that socket).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_linux::files::{FilesError, read_capped};
use agent_linux::network;
use orlop_config::error_chain::chain;
use orlop_config::node::{RUNNING_DIR, RunningSources};
use orlop_proto::node_api::v1alpha1::ProcessStatus;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::answers::services::{ESSENTIAL, PROPERTIES};
use crate::blocking::{ANSWER_MAX, BlockingSource};
use crate::facts::Facts;
use crate::kinds::ObjectKind;
use crate::machine;
use crate::processes;
use crate::program::Program;
use crate::refusal::{Reason, Refusal};

/// The effective configuration, below the root directory.
const NODE_CONFIG: &str = "run/orlop/node-config.json";
/// Longer files are not read, bytes: ledger and configuration of a node have a tenth of it.
const FILE_MAX: u64 = 1 << 20;
/// Files of the configuration's sources that are looked at; init writes a dozen at most.
const SOURCES_MAX: usize = 32;
/// Longer output of a program is refused, bytes.
const OUTPUT_MAX: u64 = 1 << 20;
/// Words of a failed program that are kept, bytes.
const WORDS_MAX: u64 = 2048;
/// Programs of one kind at once.
const PROGRAMS_MAX: usize = 2;
/// Threads for files, for those of `/var`, and for file systems that may hang.
pub(crate) const THREADS: usize = 2;

/// Where the node is looked at; tests have others.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The root directory.
    pub root: PathBuf,
    /// Asks PID 1.
    pub systemctl: PathBuf,
    /// Reads the journal.
    pub journalctl: PathBuf,
}

impl Default for Sources {
    fn default() -> Sources {
        Sources {
            root: PathBuf::from("/"),
            systemctl: PathBuf::from("/usr/bin/systemctl"),
            journalctl: PathBuf::from("/usr/bin/journalctl"),
        }
    }
}

/// Takes snapshots.
#[derive(Debug)]
pub(crate) struct Collector {
    sources: Sources,
    files: BlockingSource,
    state: BlockingSource,
    mounts: BlockingSource,
    processes: BlockingSource,
    systemctl: Arc<Semaphore>,
    /// For operations: clients that ask for objects do not keep them waiting.
    orders: Arc<Semaphore>,
    /// For the driver of changes: neither such clients nor an operation that hangs keep it waiting.
    drivers: Arc<Semaphore>,
    journalctl: Arc<Semaphore>,
}

impl Collector {
    pub(crate) fn new(sources: Sources) -> Collector {
        Collector {
            sources,
            files: BlockingSource::new("files of the node", THREADS),
            state: BlockingSource::new("files of /var", THREADS),
            mounts: BlockingSource::new("file systems", THREADS),
            processes: BlockingSource::new("processes", THREADS),
            systemctl: Arc::new(Semaphore::new(PROGRAMS_MAX)),
            orders: Arc::new(Semaphore::new(1)),
            drivers: Arc::new(Semaphore::new(1)),
            journalctl: Arc::new(Semaphore::new(PROGRAMS_MAX)),
        }
    }

    /// What these kinds need, and the files.
    ///
    /// # Errors
    /// The files do not answer. Other sources have their refusals in the snapshot.
    pub(crate) async fn collect(&self, kinds: &[ObjectKind]) -> Result<Facts, Refusal> {
        let root = self.sources.root.clone();
        let mut facts = self.files.look(move || files(&root)).await?;
        if kinds.iter().any(|kind| kind.needs_services()) {
            facts.services = Some(self.services().await);
        }
        if kinds.iter().any(|kind| kind.needs_mounts()) {
            let root = self.sources.root.clone();
            let found = self.mounts.look(move || machine::mounts(&root)).await;
            let unread = |error: FilesError| Refusal::new(Reason::PartDown, "file systems", chain(&error));
            facts.mounts = Some(found.and_then(|found| found.map_err(unread)));
        }
        if kinds.iter().any(|kind| kind.needs_processes()) {
            facts.processes = Some(self.processes().await);
        }
        Ok(facts)
    }

    /// Does work on the sources that the node runs with, on the thread that reads them: it may take a second.
    ///
    /// # Errors
    /// The sources cannot be read.
    pub(crate) async fn with_running<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RunningSources) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let root = self.sources.root.clone();
        self.files.look(move || running_sources(&root).map(|running| work(&running))).await?
    }

    /// Processes with the names of their pods; while `/var` does not answer, with the pods' UIDs.
    async fn processes(&self) -> Result<Vec<ProcessStatus>, Refusal> {
        let root = self.sources.root.clone();
        let found = self.processes.look(move || processes::processes(&root)).await?;
        let unread = |e: std::io::Error| Refusal::new(Reason::PartDown, "/proc", e.to_string());
        let found = found.map_err(unread)?;
        let root = self.sources.root.clone();
        let pods = self.state.look(move || processes::pod_names(&root)).await.unwrap_or_default();
        Ok(processes::with_pods(found, &pods))
    }

    async fn services(&self) -> Result<String, Refusal> {
        let mut command = Command::new(&self.sources.systemctl);
        command.args(["show", "--no-pager", "--no-ask-password", "--property", PROPERTIES, "--"]);
        command.args(ESSENTIAL.iter().map(|(unit, _)| *unit)).arg("*.service");
        answer(&self.systemctl, "systemd", command, ANSWER_MAX).await
    }

    /// What systemctl prints within `limit`, for an operation.
    pub(crate) async fn systemctl(&self, arguments: &[&str], limit: Duration) -> Result<String, Refusal> {
        let mut command = Command::new(&self.sources.systemctl);
        command.args(arguments);
        answer(&self.orders, "systemd", command, limit).await
    }

    /// What systemctl prints about the driver of changes.
    pub(crate) async fn change_driver(&self, arguments: &[&str]) -> Result<String, Refusal> {
        let mut command = Command::new(&self.sources.systemctl);
        command.args(arguments);
        answer(&self.drivers, "systemd", command, ANSWER_MAX).await
    }

    /// What journalctl prints.
    pub(crate) async fn journal(&self, command: Command) -> Result<String, Refusal> {
        answer(&self.journalctl, "journal", command, ANSWER_MAX).await
    }

    /// Where the node is looked at.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The threads for files of `/var`: a state partition that hangs costs no other file.
    pub(crate) fn state(&self) -> &BlockingSource {
        &self.state
    }
}

/// What a program prints within `limit`. `object` is what it asks.
async fn answer(
    places: &Arc<Semaphore>,
    object: &'static str,
    command: Command,
    limit: Duration,
) -> Result<String, Refusal> {
    let run = async {
        let place = places.clone().acquire_owned().await.map_err(|e| e.to_string())?;
        printed(Program::start(command, place).map_err(|e| format!("cannot be asked: {e}"))?).await
    };
    match timeout(limit, run).await {
        Ok(printed) => printed.map_err(|message| Refusal::new(Reason::PartDown, object, message)),
        Err(_) => {
            let message = format!("no answer within {} s", limit.as_secs());
            Err(Refusal::new(Reason::PartSilent, object, message))
        }
    }
}

async fn printed(mut program: Program) -> Result<String, String> {
    let (mut bytes, mut words) = (Vec::new(), Vec::new());
    if let Some(stdout) = program.stdout() {
        let read = stdout.take(OUTPUT_MAX + 1).read_to_end(&mut bytes).await;
        read.map_err(|e| format!("cannot be read: {e}"))?;
    }
    if bytes.len() as u64 > OUTPUT_MAX {
        return Err(format!("the answer is longer than {OUTPUT_MAX} bytes"));
    }
    if let Some(stderr) = program.stderr() {
        let read = stderr.take(WORDS_MAX).read_to_end(&mut words).await;
        read.map_err(|e| format!("cannot be read: {e}"))?;
    }
    let status = program.wait().await.map_err(|e| format!("cannot be waited for: {e}"))?;
    if !status.success() {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&words).trim()));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn files(root: &Path) -> Facts {
    let text = |path: &str| {
        let bytes = read_capped(&root.join(path), FILE_MAX).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let addresses = network::host_network(None).addresses;
    Facts {
        observed_at: jiff::Timestamp::now().to_string(),
        os_release: text("usr/lib/os-release"),
        hostname: text("proc/sys/kernel/hostname"),
        kernel: text("proc/sys/kernel/osrelease"),
        boot_id: text("proc/sys/kernel/random/boot_id"),
        machine_id: text("etc/machine-id"),
        uptime: text("proc/uptime"),
        ledger: text("run/orlop/boot.json"),
        node_config: text(NODE_CONFIG),
        degraded: text("run/orlop/degraded"),
        agent_problems: text("run/orlop/agent-problems.json"),
        change_problems: text("run/orlop/change-problems.json"),
        update_problems: text("run/orlop/update-problems.json"),
        meminfo: text("proc/meminfo"),
        memory_pressure: text("proc/pressure/memory"),
        ntp_synchronized: root.join("run/systemd/timesync/synchronized").exists(),
        ntp_refused: root.join("run/orlop/clock/ntp-refused").exists(),
        addresses: addresses.into_iter().map(|address| (address.interface, address.ip)).collect(),
        node_addresses: network::node_addresses(),
        links: machine::links(root),
        disks: machine::disks(root),
        services: None,
        mounts: None,
        processes: None,
        operations: None,
    }
}

/// The sources that the node runs with. A node may have none, once init has written what counts.
fn running_sources(root: &Path) -> Result<RunningSources, Refusal> {
    let failed = |why: String| Refusal::new(Reason::PartDown, "sources of the configuration", why);
    let directory = root.join(RUNNING_DIR.trim_start_matches('/'));
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound && root.join(NODE_CONFIG).exists() => {
            return Ok(RunningSources::default());
        }
        Err(e) => return Err(failed(format!("{}: {e}", directory.display()))),
    };
    let mut files = Vec::new();
    for entry in entries.flatten().take(SOURCES_MAX) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        // A file that is being replaced.
        if name.starts_with('.') {
            continue;
        }
        let bytes = read_capped(&entry.path(), FILE_MAX).map_err(|e| failed(chain(&e)))?;
        files.push((name, String::from_utf8_lossy(&bytes).into_owned()));
    }
    Ok(RunningSources::parse(&files))
}

/// The effective configuration, for the doors. Blocking; it is in memory.
pub(crate) fn node_config(root: &Path) -> String {
    let bytes = read_capped(&root.join(NODE_CONFIG), FILE_MAX).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_program_s_words_are_its_answer_or_the_refusal() {
        let places = Arc::new(Semaphore::new(1));
        let answer = |command| answer(&places, "x", command, ANSWER_MAX);
        assert_eq!(answer(shell("echo a")).await.unwrap(), "a\n");
        let failed = answer(shell("echo why >&2; exit 3")).await.unwrap_err();
        assert_eq!(failed.reason, Reason::PartDown);
        assert!(failed.message.contains("exit status: 3") && failed.message.contains("why"), "{failed}");
        let endless = answer(shell("while :; do echo line; done")).await.unwrap_err();
        assert!(endless.message.contains("longer"), "{endless}");
        let absent = answer(Command::new("/nowhere/program")).await.unwrap_err();
        assert_eq!(absent.reason, Reason::PartDown);
    }

    #[tokio::test]
    async fn sources_are_those_of_init_and_their_absence_is_a_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources { root: dir.path().to_owned(), ..Sources::default() };
        let collector = Collector::new(sources);
        let count = || collector.with_running(|running| running.sources.len());
        assert_eq!(count().await.unwrap_err().reason, Reason::PartDown);
        fs::create_dir_all(dir.path().join("run/orlop")).unwrap();
        fs::write(dir.path().join(NODE_CONFIG), "{}").unwrap();
        assert_eq!(count().await, Ok(0));
        fs::create_dir(dir.path().join("run/orlop/config")).unwrap();
        fs::write(dir.path().join("run/orlop/config/20-esp.yaml"), "kind: NodeConfig\n").unwrap();
        fs::write(dir.path().join("run/orlop/config/.orlop-new-1"), "half").unwrap();
        assert_eq!(count().await, Ok(1));
    }

    #[tokio::test]
    async fn a_root_without_files_has_no_facts_and_no_services() {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources {
            root: dir.path().to_owned(),
            systemctl: "/nowhere/systemctl".into(),
            ..Sources::default()
        };
        let facts = Collector::new(sources).collect(&[ObjectKind::Services]).await.unwrap();
        assert_eq!((facts.ledger.as_str(), facts.uptime.as_str()), ("", ""));
        assert!(facts.services.unwrap().is_err() && facts.mounts.is_none());
    }
}
