//! Logs: the journal by journalctl, and files below `/var/log/orlop`.
//!
//! ```text
//! journalctl ─► pipe ─► one line at a time ─► gRPC stream ─► client
//! ```
//! Invariants: a client that reads slowly makes journalctl wait, so no line is lost and none is kept in memory; at most
//! [`STREAMS_MAX`] readers are there, and the program of each ends with its client; a file is read up to a bound, and what is left out
//! is said; a directory that somebody has moved is not read.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use agent_linux::node_logs::{NodeLog, NodeLogError, look_without_links};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use orlop_proto::node_api::v1alpha1::{ListResponse, LogLine, ReadRequest};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{ChildStdout, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::collect::Collector;
use crate::journal;
use crate::pod_logs;
use crate::program::Program;
use crate::refusal::{Reason, Refusal};

/// Readers of the journal and of files at once.
pub(crate) const STREAMS_MAX: usize = 8;
/// A longer line of journalctl ends the stream, bytes: its fields have at most 4 KiB each.
const LINE_MAX: u64 = 256 << 10;
/// Bytes of a file that are sent: each reader keeps so many.
const FILE_MAX: u64 = 2 << 20;
/// Words of a failed program that are kept, bytes.
const WORDS_MAX: u64 = 2048;
/// Units and files of a list.
const NAMES_MAX: usize = 500;
/// The directory of files.
const DIRECTORY: &str = "var/log/orlop";

/// Lines of a log.
pub(crate) type LogStream = BoxStream<'static, Result<LogLine, Status>>;

/// Gives logs.
#[derive(Debug)]
pub(crate) struct LogReader {
    streams: Arc<Semaphore>,
}

impl LogReader {
    pub(crate) fn new() -> LogReader {
        LogReader { streams: Arc::new(Semaphore::new(STREAMS_MAX)) }
    }

    /// Units of the journal and files of the node.
    pub(crate) async fn list(&self, collector: &Collector) -> Result<ListResponse, Refusal> {
        let mut command = Command::new(&collector.sources().journalctl);
        command.args(["--no-pager", "--quiet", "--field=_SYSTEMD_UNIT"]);
        let units = journal::units(&collector.journal(command).await?, NAMES_MAX);
        let directory = collector.sources().root.join(DIRECTORY);
        let listed = move || look_without_links(&directory, "", NAMES_MAX);
        let found = collector.state().look(listed).await?;
        let mut files = match found {
            Ok(NodeLog::Directory(names)) => names,
            // A node that has written none.
            Ok(NodeLog::File(_)) | Err(_) => Vec::new(),
        };
        files.truncate(NAMES_MAX);
        let root = collector.sources().root.clone();
        let mut pods = collector.state().look(move || pod_logs::pods(&root)).await?;
        pods.truncate(NAMES_MAX);
        Ok(ListResponse { units, files, pods })
    }

    /// The lines of a request.
    pub(crate) async fn read(
        &self,
        collector: &Collector,
        request: &ReadRequest,
    ) -> Result<LogStream, Refusal> {
        if request.file.is_empty() {
            self.journal(collector, request)
        } else {
            self.file(collector, request).await
        }
    }

    /// A reader's place.
    ///
    /// # Errors
    /// All are taken.
    pub(crate) fn place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{STREAMS_MAX} readers are there already");
            Refusal::new(Reason::TooManyStreams, "logs", message)
        })
    }

    /// A file below the directory, as lines.
    async fn file(&self, collector: &Collector, request: &ReadRequest) -> Result<LogStream, Refusal> {
        let others = ReadRequest { file: String::new(), ..request.clone() };
        if others != ReadRequest::default() {
            let message = "a file is read whole: no other field of the request applies to it";
            return Err(Refusal::new(Reason::BadRequest, "log request", message));
        }
        let place = self.place()?;
        let (directory, path) = (collector.sources().root.join(DIRECTORY), request.file.clone());
        let (bytes, is_whole) = collector.state().look(move || bytes_of(&directory, &path)).await??;
        let message = format!("only its first {FILE_MAX} bytes were sent");
        let cut = Refusal::new(Reason::LogTooLong, format!("log file {}", shown(&request.file)), message);
        let lines = FileLines { bytes, at: 0, cut: (!is_whole).then_some(cut) };
        let lines = stream::iter(lines).map(move |line| {
            // Held until the stream is dropped.
            let _place = &place;
            line.map_err(Status::from)
        });
        Ok(lines.boxed())
    }

    fn journal(&self, collector: &Collector, request: &ReadRequest) -> Result<LogStream, Refusal> {
        let arguments = journal::arguments(request)?;
        let place = self.place()?;
        let down = |message: String| Refusal::new(Reason::PartDown, "journal", message);
        let mut command = Command::new(&collector.sources().journalctl);
        command.args(arguments);
        let started = Program::start(command, place);
        let mut program = started.map_err(|error| down(format!("journalctl cannot be started: {error}")))?;
        let stdout = program.stdout().ok_or_else(|| down("journalctl has no output".to_owned()))?;
        let reader = JournalReader { program, lines: BufReader::new(stdout) };
        // The stream ends after its first refusal.
        let lines = stream::unfold(Some(reader), |reader: Option<JournalReader>| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(Some(line)) => Some((Ok(line), Some(reader))),
                Ok(None) => None,
                Err(refusal) => Some((Err(Status::from(refusal)), None)),
            }
        });
        Ok(lines.boxed())
    }
}

/// One journalctl.
struct JournalReader {
    program: Program,
    lines: BufReader<ChildStdout>,
}

impl JournalReader {
    /// The next line; `None` at the end.
    async fn next(&mut self) -> Result<Option<LogLine>, Refusal> {
        loop {
            let mut text = Vec::new();
            let read = (&mut self.lines).take(LINE_MAX).read_until(b'\n', &mut text).await;
            read.map_err(|error| {
                Refusal::new(Reason::PartDown, "journal", format!("cannot be read: {error}"))
            })?;
            if text.is_empty() {
                return self.end().await.map(|()| None);
            }
            if text.len() as u64 >= LINE_MAX {
                let message = format!("a line is longer than {LINE_MAX} bytes");
                return Err(Refusal::new(Reason::LogTooLong, "journal", message));
            }
            if let Some(line) = journal::line(&text) {
                return Ok(Some(line));
            }
        }
    }

    /// How journalctl ended. It fails without words where a pattern matches nothing.
    async fn end(&mut self) -> Result<(), Refusal> {
        let mut words = Vec::new();
        if let Some(stderr) = self.program.stderr() {
            // Words that cannot be read are no words.
            let _ = stderr.take(WORDS_MAX).read_to_end(&mut words).await;
        }
        let words = String::from_utf8_lossy(&words).trim().to_owned();
        let failed = !matches!(self.program.wait().await, Ok(status) if status.success());
        if failed && !words.is_empty() {
            return Err(Refusal::new(Reason::PartDown, "journal", words));
        }
        Ok(())
    }
}

/// The lines of a file's bytes, one at a time: a file of empty lines has a million of them.
struct FileLines {
    bytes: Vec<u8>,
    /// Where the next line begins.
    at: usize,
    /// What is said after the last line.
    cut: Option<Refusal>,
}

impl Iterator for FileLines {
    type Item = Result<LogLine, Refusal>;

    fn next(&mut self) -> Option<Result<LogLine, Refusal>> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return self.cut.take().map(Err);
        }
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        self.at += line.len() + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let message = String::from_utf8_lossy(line).into_owned();
        Some(Ok(LogLine { message, priority: 6, ..LogLine::default() }))
    }
}

/// The beginning of a file, and whether that is all of it. Blocking.
fn bytes_of(directory: &Path, path: &str) -> Result<(Vec<u8>, bool), Refusal> {
    let refused =
        |reason, message: String| Refusal::new(reason, format!("log file {}", shown(path)), message);
    let file: File = match look_without_links(directory, path, NAMES_MAX) {
        Ok(NodeLog::File(file)) => file,
        Ok(NodeLog::Directory(_)) => return Err(refused(Reason::NoSuchLog, "it is a directory".to_owned())),
        Err(NodeLogError::Io { source, .. }) => return Err(refused(Reason::PartDown, source.to_string())),
        Err(NodeLogError::NotFound(_)) => {
            return Err(refused(Reason::NoSuchLog, "it is not below /var/log/orlop".to_owned()));
        }
        Err(NodeLogError::Refused(_)) => {
            return Err(refused(
                Reason::NoSuchLog,
                "it leads out of /var/log/orlop, or is no file".to_owned(),
            ));
        }
    };
    let mut bytes = Vec::new();
    let read = file.take(FILE_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| refused(Reason::PartDown, error.to_string()))?;
    let is_whole = bytes.len() as u64 <= FILE_MAX;
    bytes.truncate(usize::try_from(FILE_MAX).unwrap_or(usize::MAX));
    bytes.shrink_to_fit();
    Ok((bytes, is_whole))
}

/// A name of a stranger for a message.
fn shown(name: &str) -> String {
    let start: String = name.chars().take(128).collect();
    format!("{start:?}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::collect::Sources;

    fn node() -> (tempfile::TempDir, Collector) {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(root.join(DIRECTORY)).unwrap();
        (dir, Collector::new(Sources { root, ..Sources::default() }))
    }

    async fn read(logs: &LogReader, collector: &Collector, file: &str) -> Result<LogStream, Reason> {
        let request = ReadRequest { file: file.to_owned(), ..ReadRequest::default() };
        logs.read(collector, &request).await.map_err(|refusal| refusal.reason)
    }

    #[tokio::test]
    async fn a_file_is_lines_and_what_is_left_out_is_said() {
        let (dir, collector) = node();
        let directory = dir.path().join(DIRECTORY);
        fs::write(directory.join("a"), b"one\r\n\n\xfftwo").unwrap();
        let logs = LogReader::new();
        let lines: Vec<_> = read(&logs, &collector, "a").await.ok().unwrap().collect().await;
        let lines: Vec<String> = lines.into_iter().map(|line| line.unwrap().message).collect();
        assert_eq!(lines, ["one", "", "\u{fffd}two"]);
        let bytes_max = usize::try_from(FILE_MAX).unwrap();
        fs::write(directory.join("long"), vec![b'x'; bytes_max + 1]).unwrap();
        let mut lines = read(&logs, &collector, "long").await.ok().unwrap();
        assert_eq!(lines.next().await.unwrap().unwrap().message.len(), bytes_max);
        assert_eq!(lines.next().await.unwrap().unwrap_err().code(), tonic::Code::DataLoss);
        assert!(lines.next().await.is_none());
    }

    #[tokio::test]
    async fn a_reader_of_a_file_has_its_place_until_it_is_gone() {
        let (dir, collector) = node();
        fs::write(dir.path().join(DIRECTORY).join("a"), "one\n").unwrap();
        let logs = LogReader::new();
        let mut readers = Vec::new();
        for _ in 0..STREAMS_MAX {
            readers.push(read(&logs, &collector, "a").await.ok().unwrap());
        }
        assert_eq!(read(&logs, &collector, "a").await.err(), Some(Reason::TooManyStreams));
        readers.pop();
        assert!(read(&logs, &collector, "a").await.is_ok());
    }

    #[tokio::test]
    async fn a_directory_that_a_pod_has_moved_is_not_read() {
        let (dir, collector) = node();
        let directory = dir.path().join(DIRECTORY);
        fs::remove_dir(&directory).unwrap();
        fs::write(dir.path().join("secret"), "secret\n").unwrap();
        symlink(dir.path(), &directory).unwrap();
        assert_eq!(read(&LogReader::new(), &collector, "secret").await.err(), Some(Reason::NoSuchLog));
    }
}
