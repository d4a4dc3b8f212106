//! Takes the snapshot: files below a root directory, the network, `systemctl show`.
//!
//! In: kinds. Out: [`Facts`]. Invariants: files are read up to a bound; a program has five seconds, 1 MiB of output, and one of two
//! places of its kind; what hangs costs its own source (`blocking`, `program`). Why `systemctl` and not the bus: it asks PID 1 on
//! its own socket, so it answers while the bus is dead (agent/linux/src/service_manager.rs says why not zbus on that socket).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_linux::files::{FilesError, read_capped};
use agent_linux::network;
use orlop_config::error_chain::chain;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::answers::services::{ESSENTIAL, PROPERTIES};
use crate::blocking::{ANSWER_MAX, BlockingSource};
use crate::facts::Facts;
use crate::kinds::ObjectKind;
use crate::machine;
use crate::program::Program;
use crate::refusal::{Reason, Refusal};

/// Longer files are not read, bytes: ledger and configuration of a node have a tenth of it.
const FILE_MAX: u64 = 1 << 20;
/// Longer output of a program is refused, bytes.
const OUTPUT_MAX: u64 = 1 << 20;
/// Words of a failed program that are kept, bytes.
const WORDS_MAX: u64 = 2048;
/// Programs of one kind at once.
const PROGRAMS_MAX: usize = 2;
/// Threads for files, for those of `/var`, and for file systems that may hang.
const THREADS: usize = 2;

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
    systemctl: Arc<Semaphore>,
    journalctl: Arc<Semaphore>,
}

impl Collector {
    pub(crate) fn new(sources: Sources) -> Collector {
        Collector {
            sources,
            files: BlockingSource::new("files of the node", THREADS),
            state: BlockingSource::new("files of /var", THREADS),
            mounts: BlockingSource::new("file systems", THREADS),
            systemctl: Arc::new(Semaphore::new(PROGRAMS_MAX)),
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
        Ok(facts)
    }

    async fn services(&self) -> Result<String, Refusal> {
        let mut command = Command::new(&self.sources.systemctl);
        command.args(["show", "--no-pager", "--no-ask-password", "--property", PROPERTIES, "--"]);
        command.args(ESSENTIAL.iter().map(|(unit, _)| *unit)).arg("*.service");
        answer(&self.systemctl, "systemd", command).await
    }

    /// What journalctl prints.
    pub(crate) async fn journal(&self, command: Command) -> Result<String, Refusal> {
        answer(&self.journalctl, "journal", command).await
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

/// What a program prints. `object` is what it asks.
async fn answer(places: &Arc<Semaphore>, object: &'static str, command: Command) -> Result<String, Refusal> {
    let run = async {
        let place = places.clone().acquire_owned().await.map_err(|e| e.to_string())?;
        printed(Program::start(command, place).map_err(|e| format!("cannot be asked: {e}"))?).await
    };
    match timeout(ANSWER_MAX, run).await {
        Ok(printed) => printed.map_err(|message| Refusal::new(Reason::PartDown, object, message)),
        Err(_) => {
            let message = format!("no answer within {} s", ANSWER_MAX.as_secs());
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
        node_config: text("run/orlop/node-config.json"),
        degraded: text("run/orlop/degraded"),
        agent_problems: text("run/orlop/agent-problems.json"),
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
    }
}

/// The effective configuration, for the doors. Blocking; it is in memory.
pub(crate) fn node_config(root: &Path) -> String {
    let bytes = read_capped(&root.join("run/orlop/node-config.json"), FILE_MAX).unwrap_or_default();
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
        assert_eq!(answer(&places, "x", shell("echo a")).await.unwrap(), "a\n");
        let failed = answer(&places, "x", shell("echo why >&2; exit 3")).await.unwrap_err();
        assert_eq!(failed.reason, Reason::PartDown);
        assert!(failed.message.contains("exit status: 3") && failed.message.contains("why"), "{failed}");
        let endless = answer(&places, "x", shell("while :; do echo line; done")).await.unwrap_err();
        assert!(endless.message.contains("longer"), "{endless}");
        let absent = answer(&places, "x", Command::new("/nowhere/program")).await.unwrap_err();
        assert_eq!(absent.reason, Reason::PartDown);
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
