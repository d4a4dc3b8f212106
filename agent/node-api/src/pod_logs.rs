//! Logs of containers, below `/var/log/pods`: neither the runtime nor the agent is asked.
//!
//! ```text
//! NAMESPACE_POD_UID/CONTAINER/N.log ─► descriptor ─► pieces ─► PodLogLines ─► gRPC stream ─► client
//!                                         ▲ at its end, each second: the newest file, if it is another one
//! ```
//! Invariants: a file is opened below `/var/log/pods` or not at all, also if a container moves what is there, and is read by its
//! descriptor from then on; one piece and its lines are in memory; a client that reads slowly slows the reading down; a log that is not
//! followed has an end, also if it grows faster than it is read.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use agent_kubelet_api::logs::TailScan;
use agent_linux::node_logs::{NodeLog, NodeLogError, look_without_links};
use futures_util::stream::{self, StreamExt as _};
use orlop_proto::node_api::v1alpha1::{LogLine, PodLogRequest};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::collect::Collector;
use crate::logs::LogStream;
use crate::pod_log_lines::PodLogLines;
use crate::refusal::{Reason, Refusal};

/// Where the runtime writes the logs of containers, below the root directory.
const DIRECTORY: &str = "var/log/pods";
/// Names of a directory that are looked at: instances, containers, pods.
const NAMES_MAX: usize = 4096;
/// Longest name of a namespace, a pod or a container.
const NAME_MAX: usize = 253;
/// Names in a message.
const SHOWN_MAX: usize = 16;
/// Bytes read at once.
const PIECE_BYTES: usize = 32 << 10;
/// Bytes read at once on the way from the end to where the last lines begin.
const SCAN_BYTES: usize = 16 << 10;
/// Bytes before the end in which the last lines are looked for: a container that owns its file may make it as long as it likes, without a
/// line, and the look has to end before its thread counts as hung.
const SCAN_BYTES_MAX: u64 = 64 << 20;
/// A log that is followed is looked at so often: a watch of the kernel would need a path, which a container may move.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A log that was not there at so many looks in a row is gone; a rotation has less.
const MISSES_MAX: u32 = 5;

/// An instance's log that was opened.
#[derive(Debug)]
struct InstanceLog {
    file: File,
    /// Number of the instance.
    attempt: u32,
    /// Device and inode.
    identity: (u64, u64),
    /// Bytes to read before its end; none: as it grows.
    left: Option<u64>,
}

/// Reads one container's log for a client.
struct PodLogReader {
    collector: Arc<Collector>,
    /// The container's directory, below that of all pods.
    container: String,
    lines: PodLogLines,
    /// Lines that the client has not taken.
    ready: VecDeque<LogLine>,
    open: Option<InstanceLog>,
    /// The file that takes the place of the open one once that is read.
    newer: Option<InstanceLog>,
    follows: bool,
    /// Looks in a row that have found no log.
    misses: u32,
    _place: OwnedSemaphorePermit,
}

/// The lines of a container.
///
/// # Errors
/// A request that cannot be; no such log; a disk that does not answer.
pub(crate) async fn read(
    collector: &Arc<Collector>,
    request: &PodLogRequest,
    place: OwnedSemaphorePermit,
) -> Result<LogStream, Refusal> {
    check(request)?;
    let (directory, wanted) = (collector.sources().root.join(DIRECTORY), request.clone());
    let found = collector.state().look(move || begin(&directory, &wanted)).await?;
    let (container, open) = found?;
    let reader = PodLogReader {
        collector: Arc::clone(collector),
        container,
        lines: PodLogLines::new(request.since_us),
        ready: VecDeque::new(),
        open: Some(open),
        newer: None,
        follows: request.follow,
        misses: 0,
        _place: place,
    };
    // The stream ends after its first refusal.
    let lines = stream::unfold(Some(reader), |reader: Option<PodLogReader>| async move {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(line)) => Some((Ok(line), Some(reader))),
            Ok(None) => None,
            Err(refusal) => Some((Err(Status::from(refusal)), None)),
        }
    });
    Ok(lines.boxed())
}

/// Pods that have logs, `namespace/name`. Blocking.
pub(crate) fn pods(root: &Path) -> Vec<String> {
    // A node that has run no pod has no directory.
    let names = names(&root.join(DIRECTORY), "").unwrap_or_default();
    let mut pods: Vec<String> = names.iter().filter_map(|name| pod_of(name)).collect();
    pods.sort();
    pods.dedup();
    pods
}

impl PodLogReader {
    /// The next line; `None` at the end.
    async fn next(&mut self) -> Result<Option<LogLine>, Refusal> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Ok(Some(line));
            }
            let Some(mut open) = self.open.take() else { return Ok(None) };
            let read = move || {
                let piece = open.piece();
                (open, piece)
            };
            let (open, piece) = self.collector.state().look(read).await?;
            let piece = piece.map_err(|error| down(&self.container, &error))?;
            if !piece.is_empty() {
                self.lines.push(&piece, &mut self.ready);
                self.open = Some(open);
            } else if let Some(newer) = self.newer.take() {
                // What came between the last read and the rotation was read meanwhile.
                self.lines.finish(&mut self.ready);
                self.open = Some(newer);
            } else if self.follows {
                self.look_again(open).await?;
            } else {
                self.lines.finish(&mut self.ready);
            }
        }
    }

    /// The log is read to its present end: waits, and looks whether another file is the newest one.
    async fn look_again(&mut self, open: InstanceLog) -> Result<(), Refusal> {
        sleep_until(Instant::now() + LOOK_EVERY).await;
        let (directory, container) = (self.collector.sources().root.join(DIRECTORY), self.container.clone());
        let newest = move || instance(&directory, &container, false);
        match self.collector.state().look(newest).await? {
            // In the middle of a rotation an older instance has the newest file, or none has one.
            Ok(newest) if newest.identity == open.identity || newest.attempt < open.attempt => {
                (self.open, self.misses) = (Some(open), 0);
            }
            Ok(newest) => (self.open, self.newer, self.misses) = (Some(open), Some(newest), 0),
            Err(refusal) if refusal.reason != Reason::NoSuchLog => return Err(refusal),
            Err(_) if self.misses < MISSES_MAX => {
                self.misses += 1;
                self.open = Some(open);
            }
            // The pod is gone, and its log with it.
            Err(_) => self.lines.finish(&mut self.ready),
        }
        Ok(())
    }
}

impl InstanceLog {
    fn of(file: File, attempt: u32) -> io::Result<InstanceLog> {
        let found = file.metadata()?;
        Ok(InstanceLog { identity: (found.dev(), found.ino()), file, attempt, left: None })
    }

    /// Goes to where the reading begins. Blocking.
    fn begin(&mut self, request: &PodLogRequest) -> io::Result<()> {
        let end = self.file.seek(SeekFrom::End(0))?;
        let start = if request.lines == 0 { 0 } else { tail_start(&mut self.file, end, request.lines)? };
        self.file.seek(SeekFrom::Start(start))?;
        self.left = (!request.follow).then_some(end.saturating_sub(start));
        Ok(())
    }

    /// The next bytes; none at the end. Blocking.
    fn piece(&mut self) -> io::Result<Vec<u8>> {
        let most = self.left.map_or(PIECE_BYTES as u64, |left| left.min(PIECE_BYTES as u64));
        let mut piece = Vec::new();
        let count = (&mut self.file).take(most).read_to_end(&mut piece)?;
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(count as u64);
        }
        Ok(piece)
    }
}

/// Where the last lines begin; of a log that has fewer in its last part, where that part begins.
fn tail_start(file: &mut File, end: u64, lines: u32) -> io::Result<u64> {
    let mut scan = TailScan::new(u64::from(lines));
    let least = end.saturating_sub(SCAN_BYTES_MAX);
    let (mut end, mut buffer) = (end, vec![0; SCAN_BYTES]);
    while end > least {
        let start = end.saturating_sub(SCAN_BYTES as u64).max(least);
        let length = usize::try_from(end - start).unwrap_or(SCAN_BYTES);
        let block = buffer.get_mut(..length).unwrap_or_default();
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(block)?;
        if let Some(found) = scan.block(start, block) {
            return Ok(found);
        }
        end = start;
    }
    Ok(least)
}

fn check(request: &PodLogRequest) -> Result<(), Refusal> {
    let refused = |message: String| Err(Refusal::new(Reason::BadRequest, "log request", message));
    let names = [("namespace", &request.namespace), ("pod", &request.pod), ("container", &request.container)];
    for (what, name) in names {
        let may_be_empty = what == "container";
        let is_right = is_name(name) || (may_be_empty && name.is_empty());
        if !is_right {
            let shown: String = name.chars().take(64).collect();
            return refused(format!("{shown:?} is no name of a {what}"));
        }
    }
    if request.previous && request.follow {
        return refused("the instance before the last one does not grow: `previous` and `follow`".to_owned());
    }
    Ok(())
}

/// A name of Kubernetes, and so a part of a path: it has neither a slash nor an underscore, and is not `..`.
fn is_name(name: &str) -> bool {
    let is_right = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    begins && name.len() <= NAME_MAX && name.bytes().all(is_right)
}

/// The pod of a directory's name, `NAMESPACE_POD_UID/`.
fn pod_of(name: &str) -> Option<String> {
    let mut parts = name.strip_suffix('/')?.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_it = is_name(namespace) && is_name(pod) && !uid.is_empty() && parts.next().is_none();
    is_it.then(|| format!("{namespace}/{pod}"))
}

/// The container's directory below that of all pods, and its log at the place where the reading begins. Blocking.
fn begin(directory: &Path, request: &PodLogRequest) -> Result<(String, InstanceLog), Refusal> {
    let pod = newest_pod(directory, request)?;
    let name = if request.container.is_empty() {
        only_container(directory, &pod)?
    } else {
        request.container.clone()
    };
    let container = format!("{pod}/{name}");
    let mut open = instance(directory, &container, request.previous)?;
    open.begin(request).map_err(|error| down(&container, &error))?;
    Ok((container, open))
}

/// The directory of the pod. Of several with its name, the one that was changed last: a pod that is made again has another UID.
fn newest_pod(directory: &Path, request: &PodLogRequest) -> Result<String, Refusal> {
    let wanted = format!("{}/{}", request.namespace, request.pod);
    let changed = |name: &String| -> (SystemTime, String) {
        // Only the order depends on it, so a link that somebody has put there leads nowhere.
        let found = fs::symlink_metadata(directory.join(name)).and_then(|found| found.modified());
        (found.unwrap_or(SystemTime::UNIX_EPOCH), name.clone())
    };
    let names = names(directory, "")?;
    let own = names.iter().filter(|name| pod_of(name).as_deref() == Some(wanted.as_str()));
    let own = own.map(|name| name.trim_end_matches('/').to_owned());
    own.max_by_key(changed).ok_or_else(|| none(&wanted, "no pod of this name has logs on the node"))
}

fn only_container(directory: &Path, pod: &str) -> Result<String, Refusal> {
    let found = names(directory, pod)?;
    let mut containers: Vec<&str> = found.iter().filter_map(|name| name.strip_suffix('/')).collect();
    match (containers.len(), containers.first()) {
        (1, Some(only)) => Ok((*only).to_owned()),
        (0, _) => Err(none(pod, "no container of the pod has a log")),
        _ => {
            containers.truncate(SHOWN_MAX);
            let message =
                format!("the pod has several containers, name one of them: {}", containers.join(", "));
            Err(Refusal::new(Reason::BadRequest, "log request", message))
        }
    }
}

/// The log of the last instance of a container, or of the one before. Blocking.
fn instance(directory: &Path, container: &str, previous: bool) -> Result<InstanceLog, Refusal> {
    let names = names(directory, container)?;
    let attempt = |name: &String| name.strip_suffix(".log").and_then(|number| number.parse::<u32>().ok());
    let mut attempts: Vec<u32> = names.iter().filter_map(attempt).collect();
    attempts.sort_unstable();
    let last = attempts.pop();
    let wanted = if previous { attempts.pop() } else { last };
    let words = if previous { "no instance before the last one has a log" } else { "no instance has a log" };
    let number = wanted.ok_or_else(|| none(container, words))?;
    let path = format!("{container}/{number}.log");
    match look_without_links(directory, &path, NAMES_MAX) {
        Ok(NodeLog::File(file)) => InstanceLog::of(file, number).map_err(|error| down(container, &error)),
        Ok(NodeLog::Directory(_)) => Err(none(container, "its log is a directory")),
        Err(error) => Err(refused(container, error)),
    }
}

/// Names in a directory below that of all pods; those of directories end in a slash.
fn names(directory: &Path, path: &str) -> Result<Vec<String>, Refusal> {
    match look_without_links(directory, path, NAMES_MAX) {
        Ok(NodeLog::Directory(names)) => Ok(names),
        Ok(NodeLog::File(_)) => Err(none(path, "it is a file")),
        Err(error) => Err(refused(path, error)),
    }
}

fn refused(container: &str, error: NodeLogError) -> Refusal {
    match error {
        NodeLogError::NotFound(_) => none(container, "there is no such log"),
        NodeLogError::Refused(_) => none(container, "it leads out of /var/log/pods, or is no file"),
        NodeLogError::Io { source, .. } => down(container, &source),
    }
}

fn none(object: &str, message: &str) -> Refusal {
    Refusal::new(Reason::NoSuchLog, format!("log of {object:?}"), message)
}

fn down(object: &str, error: &io::Error) -> Refusal {
    Refusal::new(Reason::PartDown, format!("log of {object:?}"), error.to_string())
}

#[cfg(test)]
mod tests;
