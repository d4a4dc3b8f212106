//! Debugging tools of the node API: commands in containers, checkpoints, files of the log directory, the journal.
//!
//! In: requests of [`NodeTools`]. Out: answers of the runtime, the disk and journalctl. Invariants: a slow client
//! delays only its own answer; journalctl may run for half a minute; an error in the middle of a log is written into
//! the log.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use agent_kubelet_api::drivers::{Checkpoints, Exec, ExecOutput, Runtime};
use agent_kubelet_api::node_logs::{ServiceQuery, files_of};
use agent_linux::files;
use agent_linux::node_logs::{NodeLog, NodeLogError, is_text, look};
use agent_server::api::{ContainerOf, LogPieces, NodeFile, NodeFileError, NodeTools};
use agent_server::body::Broken;
use agent_types::api_time;
use agent_types::runtime::observed::ContainerObserved;
use agent_types::time::Wall;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::view::{NodeView, running};
use crate::logging;
use crate::pods::pod_dirs::chain;
use crate::settings::Settings;
use crate::tasks::actor::Tasks;

/// The node's log directory.
pub(crate) const LOGS: &str = "/var/log";
/// Time limit of journalctl.
const JOURNAL_MAX: Duration = Duration::from_secs(30);
/// Bytes read at once.
const PIECE_BYTES: usize = 32 * 1024;
/// Pieces that wait for a client.
const PIECES_MAX: usize = 4;

type Pieces = mpsc::Sender<Result<Bytes, Broken>>;

/// Facts that do not change while the process lives.
pub(super) struct ProcessFacts {
    checkpoints: PathBuf,
    started: Wall,
    flags: Vec<(String, String)>,
    command_line: Vec<String>,
}

impl ProcessFacts {
    pub(super) fn new(settings: &Settings, started: Wall) -> ProcessFacts {
        let checkpoints = Path::new(&settings.options.root_dir).join("checkpoints");
        ProcessFacts { checkpoints, started, flags: settings.given.clone(), command_line: command_line() }
    }
}

impl<R: Runtime> NodeView<R> {
    async fn running_container(&self, of: &ContainerOf) -> Result<ContainerObserved, String> {
        let (_, found) = self.runtime.inspect(&of.uid.as_str().into()).await.map_err(|e| chain(&e))?;
        running(found.containers, &of.container)
    }
}

impl<R: Runtime + Exec + Checkpoints> NodeTools for NodeView<R> {
    async fn run_command(&self, of: ContainerOf, command: Vec<String>) -> Result<Vec<u8>, String> {
        let container = self.running_container(&of).await?;
        let output = self.runtime.exec_sync(&container.id, &command, None).await.map_err(|e| chain(&e))?;
        let ExecOutput { exit_code, mut stdout, stderr } = output;
        if exit_code != 0 {
            let words = String::from_utf8_lossy(&stderr);
            return Err(format!("command '{}' exited with {exit_code}: {words}", command.join(" ")));
        }
        stdout.extend(stderr);
        Ok(stdout)
    }

    async fn checkpoint(&self, of: ContainerOf, timeout_s: i64) -> Result<String, String> {
        let container = self.running_container(&of).await?;
        let directory = self.process.checkpoints.clone();
        let ContainerOf { namespace, pod, container: name, .. } = of;
        let now = api_time::text(self.tasks.now().wall);
        let location = directory.join(format!("checkpoint-{pod}_{namespace}-{name}-{now}.tar"));
        // Only root may read the memory of a process.
        let made = self.tasks.blocking(move || files::make_dir(&directory, 0o700)).await;
        made.ok_or("the node is being stopped")?.map_err(|e| chain(&e))?;
        let location = location.display().to_string();
        self.runtime.checkpoint(&container.id, &location, timeout_s).await.map_err(|e| chain(&e))?;
        Ok(location)
    }

    async fn node_file(&self, path: String) -> Result<NodeFile, NodeFileError> {
        let looked = self.tasks.blocking(move || {
            Ok(match look(Path::new(LOGS), &path)? {
                NodeLog::Directory(names) => (NodeFile::Directory(names), None),
                NodeLog::File(mut file) => {
                    let is_text = is_text(&mut file)
                        .map_err(|source| NodeLogError::Io { path: path.clone(), source })?;
                    let (to, pieces) = mpsc::channel(PIECES_MAX);
                    (NodeFile::Pieces(pieces, is_text), Some((file, to)))
                }
            })
        });
        let stopping = || NodeFileError::Failed("the node is being stopped".to_owned());
        let (found, file) =
            looked.await.ok_or_else(stopping)?.map_err(|error: NodeLogError| match error {
                NodeLogError::NotFound(_) | NodeLogError::Refused(_) => {
                    NodeFileError::NotFound(error.to_string())
                }
                NodeLogError::Io { .. } => NodeFileError::Failed(chain(&error)),
            })?;
        if let Some((file, to)) = file {
            self.tasks.start(send_file(file, to));
        }
        Ok(found)
    }

    async fn service_logs(&self, query: ServiceQuery) -> LogPieces {
        let (to, pieces) = mpsc::channel(PIECES_MAX);
        let tasks = self.tasks.clone();
        self.tasks.start(async move {
            let told = tell_services(&query, &to, &tasks);
            if tokio::time::timeout(JOURNAL_MAX, told).await.is_err() {
                say(&to, "\nthe time limit is over\n").await;
            }
        });
        pieces
    }

    fn started(&self) -> Wall {
        self.process.started
    }

    fn flags(&self) -> Vec<(String, String)> {
        self.process.flags.clone()
    }

    fn command_line(&self) -> Vec<String> {
        self.process.command_line.clone()
    }

    fn set_verbosity(&self, level: u32) -> Result<(), String> {
        logging::set_verbosity(level).map_err(|e| format!("{e:#}"))
    }
}

/// The command line of this process, from the kernel; empty if it cannot be read.
fn command_line() -> Vec<String> {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = bytes.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    arguments.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}

async fn send_file(file: File, to: Pieces) {
    let path = "a file of the node";
    if let Err(error) = copy(tokio::fs::File::from_std(file), &to).await {
        tracing::warn!(%error, "{path} is not read to its end");
        // An error means that the client is gone; then the message is not needed.
        let _ = to.send(Err(Broken(error.to_string()))).await;
    }
}

/// Copies until the end, or until the client is gone.
async fn copy(mut from: impl AsyncRead + Unpin, to: &Pieces) -> std::io::Result<()> {
    loop {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        if from.read_buf(&mut piece).await? == 0 || to.send(Ok(piece.into())).await.is_err() {
            return Ok(());
        }
    }
}

async fn say(to: &Pieces, words: &str) {
    // An error means that the client is gone; then the message is not needed.
    let _ = to.send(Ok(Bytes::from(words.to_owned()))).await;
}

async fn tell_services(query: &ServiceQuery, to: &Pieces, tasks: &Tasks) {
    let (journal, files) = query.split(&journal_units().await);
    if !journal.is_empty()
        && let Err(error) = tell_journal(&query.journal_arguments(&journal), to).await
    {
        tracing::warn!(%error, "the journal cannot be read");
        say(to, "\nerror: journal output not available\n").await;
    }
    if let Some(words) = query.refuses_files(&files) {
        return say(to, &words).await;
    }
    for service in files {
        tell_file_of(service, to, tasks).await;
    }
}

/// Units that the journal knows; empty if there is no journal.
async fn journal_units() -> String {
    let output = Command::new("journalctl").args(["--field", "_SYSTEMD_UNIT"]).kill_on_drop(true).output();
    match output.await {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(_) | Err(_) => String::new(),
    }
}

/// Streams the journal. The answer includes journalctl's own error messages.
async fn tell_journal(arguments: &[String], to: &Pieces) -> std::io::Result<()> {
    let mut command = Command::new("journalctl");
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let outputs = async {
        match stdout {
            Some(stdout) => copy(stdout, to).await,
            None => Ok(()),
        }
    };
    let errors = async {
        match stderr {
            Some(stderr) => copy(stderr, to).await,
            None => Ok(()),
        }
    };
    let (outputs, errors) = tokio::join!(outputs, errors);
    outputs.and(errors)?;
    // The client may be gone while journalctl still writes.
    child
        .start_kill()
        .or_else(|e| if e.kind() == std::io::ErrorKind::InvalidInput { Ok(()) } else { Err(e) })?;
    child.wait().await?;
    Ok(())
}

async fn tell_file_of(service: String, to: &Pieces, tasks: &Tasks) {
    let name = service.clone();
    let found = tasks.blocking(move || {
        let mut looked = files_of(&name).into_iter().map(|path| look(Path::new(LOGS), &path));
        // A directory of the service's name is where the last of the three may be.
        looked.find(|found| !matches!(found, Ok(NodeLog::Directory(_)) | Err(NodeLogError::NotFound(_))))
    });
    let result = match found.await.flatten() {
        Some(Ok(NodeLog::File(file))) => {
            copy(tokio::fs::File::from_std(file), to).await.map_err(|e| e.to_string())
        }
        Some(Err(error)) => Err(chain(&error)),
        Some(Ok(NodeLog::Directory(_))) | None => {
            return say(to, &format!("\nlog not found for {service}\n")).await;
        }
    };
    if let Err(error) = result {
        say(to, &format!("\nerror getting log for {service}: {error}\n")).await;
    }
}
