//! The shell of the static pod source: reads files, one request after another, and forwards inotify events.
//!
//! ```text
//! inotify ──► hints ──► mailbox ─► FileSource ─► requests ─► reader (in order, one at a time) ─┐
//!                          ▲                 └─► updates ─► manager                         │
//!                          └──────────────────────── answers ◄─────────────────────────────────┘
//! ```
//! See [`agent_core::pod_source::file`] for the decisions; the machine's own timer triggers rescans, so a lost hint
//! only delays a change.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::console::problem::of_manifest;
use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_source::decode::MAX_MANIFEST_BYTES;
use agent_core::pod_source::file::{
    FileAction, FileContent, FileEvent, FileReport, FileSourceConfig, Listing,
};
use agent_core::pod_source::{FileSource, Source};
use agent_linux::files::{self, FilesError};
use agent_linux::path_watch::PathWatch;
use agent_types::failure::Class;
use agent_types::time::Now;

use crate::node::NodeHandles;
use crate::node::node_events::NodeEvents;
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::alive::Owner;
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};

/// Pause before a failed watch is made again; the rescan goes on meanwhile.
const WATCH_RETRY: Duration = Duration::from_secs(10);

/// Starts the source; it lives until the node stops.
pub fn start(config: FileSourceConfig, node: &NodeHandles) -> Owner {
    let tasks = &node.tasks;
    let (own, inbox) = tasks.mailbox();
    let (requests, to_read) = tasks.mailbox();
    let path = PathBuf::from(&config.path);
    let shell =
        SourceShell { requests, manager: node.manager.clone(), node_events: node.node_events.clone() };
    tasks.own(FileSource::new(config), shell, inbox);
    tasks.start(read_in_order(path.clone(), to_read, tasks.clone(), own.clone()));
    tasks.start(watch(path, tasks.clone(), own.clone()));
    // The first tick asks for the first list.
    own.send(FileEvent::Tick);
    Owner::new("file source", own)
}

/// Requests to the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReadRequest {
    /// The whole path.
    List,
    /// One file of the directory.
    Read(String),
}

/// The source's surroundings. Requests go to [`read_in_order`].
struct SourceShell {
    requests: Sender<ReadRequest>,
    manager: Sender<ManagerEvent>,
    node_events: NodeEvents,
}

impl Shell for SourceShell {
    type Machine = FileSource;

    fn tick(&self) -> FileEvent {
        FileEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: FileAction) {
        match action {
            FileAction::List => {
                self.requests.send(ReadRequest::List);
            }
            FileAction::Read { name } => {
                self.requests.send(ReadRequest::Read(name));
            }
            FileAction::Deliver(update) => {
                self.node_events.static_pods(&update);
                self.manager.send(ManagerEvent::Update(update));
            }
            FileAction::Report(FileReport::Duplicate(duplicate)) => self.node_events.left_out(&duplicate),
            FileAction::Report(report) => log(&report),
        }
    }

    fn after(&mut self, _now: Now, source: &FileSource) -> bool {
        let problems = source.problems().iter().map(|p| of_manifest(&p.path, &p.problem)).collect();
        self.node_events.manifest_problems(Source::File, problems);
        true
    }
}

fn log(report: &FileReport) {
    match report {
        FileReport::ListFailed(problem) => {
            tracing::error!(problem, "static pods cannot be listed; running pods stay as they are");
        }
        FileReport::BadFile { path, problem, keeps_pod } => {
            tracing::error!(path, problem, keeps_pod, "static pod manifest refused");
        }
        FileReport::Dropped { path, problem } => {
            tracing::error!(path, problem, "static pod removed: its manifest is still refused");
        }
        FileReport::UnknownFields { path, fields } => {
            tracing::warn!(path, fields = fields.join(" "), "static pod manifest has unknown fields");
        }
        // An event, which is in the log as well.
        FileReport::Duplicate(_) => {}
    }
}

/// Answers requests one after another: an older answer must never overtake a newer one.
async fn read_in_order(path: PathBuf, mut requests: Inbox<ReadRequest>, tasks: Tasks, to: Sender<FileEvent>) {
    loop {
        let request = requests.recv().await;
        let path = path.clone();
        let Some(event) = tasks.blocking(move || answer(&path, request)).await else { return };
        to.send(event);
    }
}

/// Turns changes in the directory into hints, until the node stops.
async fn watch(path: PathBuf, tasks: Tasks, to: Sender<FileEvent>) {
    loop {
        match follow(&path, &to).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(path = %path.display(), error = %chain(&error), "static pods are not watched; rescans go on");
            }
        }
        tasks.wait_until(tasks.now().mono.after(WATCH_RETRY)).await;
        // Changes of the meantime are unknown.
        to.send(FileEvent::Changed(None));
    }
}

async fn follow(path: &Path, to: &Sender<FileEvent>) -> Result<(), agent_linux::path_watch::WatchError> {
    let mut watch = PathWatch::new(path)?;
    loop {
        let change = watch.changed().await?;
        let removed = change.removed.into_iter().map(FileEvent::Removed);
        let changed = change.names.into_iter().map(Some).chain(change.everything.then_some(None));
        // A file that was removed and made again was removed first.
        for hint in removed.chain(changed.map(FileEvent::Changed)) {
            if !to.send(hint) {
                return Ok(());
            }
        }
    }
}

fn answer(path: &Path, request: ReadRequest) -> FileEvent {
    match request {
        ReadRequest::List => FileEvent::Listed(list(path)),
        ReadRequest::Read(name) => {
            let content = content(&path.join(&name));
            FileEvent::Read { name, content }
        }
    }
}

fn list(path: &Path) -> Listing {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Listing::Missing,
        Err(e) => Listing::Failed(format!("stat {}: {e}", path.display())),
        Ok(metadata) if metadata.is_dir() => match files::visible_names(path) {
            Ok(names) => Listing::Directory(
                names.into_iter().map(|name| (name.clone(), content(&path.join(name)))).collect(),
            ),
            Err(e) if e.class() == Class::NotFound => Listing::Missing,
            Err(e) => Listing::Failed(chain(&e)),
        },
        Ok(_) => Listing::File(content(path)),
    }
}

fn content(path: &Path) -> FileContent {
    let bytes_max = u64::try_from(MAX_MANIFEST_BYTES).unwrap_or(u64::MAX);
    match files::read_capped(path, bytes_max) {
        Ok(bytes) => FileContent::Bytes(bytes),
        Err(e) => unreadable(&e),
    }
}

fn unreadable(error: &FilesError) -> FileContent {
    match error.source.kind() {
        // The file is gone, or a directory, socket or FIFO: not a manifest.
        io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => FileContent::Gone,
        _ => FileContent::Unreadable(chain(error)),
    }
}

impl Coalesce for FileEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (FileEvent::Changed(a), FileEvent::Changed(b)) if a == b => Relation::Supersedes,
            (FileEvent::Removed(a), FileEvent::Removed(b)) if a == b => Relation::Supersedes,
            (FileEvent::Tick, FileEvent::Tick) => Relation::Supersedes,
            // A hint that follows an answer may concern a change that the answer does not include.
            (FileEvent::Listed(_) | FileEvent::Read { .. }, _)
            | (_, FileEvent::Listed(_) | FileEvent::Read { .. }) => Relation::Ordered,
            _ => Relation::Independent,
        }
    }
}

impl Coalesce for ReadRequest {
    fn relation(&self, _: &Self) -> Relation {
        Relation::Ordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_read_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifests");
        assert_eq!(list(&path), Listing::Missing);
        std::fs::create_dir_all(path.join("subdirectory")).unwrap();
        std::fs::write(path.join("b.yaml"), "b").unwrap();
        std::fs::write(path.join(".a.yaml.swp"), "x").unwrap();
        std::os::unix::fs::symlink("nowhere", path.join("dangling.yaml")).unwrap();
        std::os::unix::fs::symlink("b.yaml", path.join("link.yaml")).unwrap();
        let bytes = || FileContent::Bytes(b"b".to_vec());
        assert_eq!(
            list(&path),
            Listing::Directory(vec![
                ("b.yaml".to_owned(), bytes()),
                ("dangling.yaml".to_owned(), FileContent::Gone),
                ("link.yaml".to_owned(), bytes()),
                ("subdirectory".to_owned(), FileContent::Gone),
            ])
        );
        assert_eq!(list(&path.join("b.yaml")), Listing::File(bytes()));
        let read = ReadRequest::Read("b.yaml".to_owned());
        assert_eq!(answer(&path, read), FileEvent::Read { name: "b.yaml".to_owned(), content: bytes() });
    }

    #[test]
    fn too_large_a_manifest_is_unreadable_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big.yaml");
        std::fs::File::create(&path).unwrap().set_len(MAX_MANIFEST_BYTES as u64 + 1).unwrap();
        let FileContent::Unreadable(why) = content(&path) else { panic!("it was read") };
        assert!(why.contains("big.yaml") && why.contains("larger than"), "{why}");
    }
}
