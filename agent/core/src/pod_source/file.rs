//! The static pod directory (or file) as a machine (configuration field `staticPodPath`).
//!
//! In: answers to its own requests ([`FileEvent::Listed`], [`FileEvent::Read`]), hints of changes (inotify)
//! and ticks. Out: requests to list or read, [`PodUpdate`]s, and reports for the log. Invariants:
//! - the delivered pods are a function of the files, so a restarted agent arrives at the same pods;
//! - nothing is delivered before the first complete listing; a missing path is an empty, seen source;
//! - a file that turned bad (invalid, unreadable) keeps its last good pod for one check period and loses it
//!   if the file is still bad then: a half-written file kills nothing, a broken one does not run for ever;
//! - a directory that cannot be listed changes nothing.
//!
//! The shell performs requests one after another, in order, and answers each exactly once; otherwise an older
//! answer could undo a newer one. Hints are best sent for files closed after writing, moved, removed or
//! linked. Upstream: pkg/kubelet/config/file.go. Differences: docs/decisions/static-pods.md.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use super::storage::DuplicateName;
use super::{ManifestError, PodStorage, PodUpdate, Source, api_refs, decode, defaults, identity, validate};

/// What a source needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSourceConfig {
    /// `staticPodPath`, absolute: a directory or one file. It is part of every pod's UID.
    pub path: String,
    /// Name of the Node.
    pub node_name: String,
    /// `fileCheckFrequency`: period of a full listing, regardless of hints.
    pub check_period: Duration,
}

/// Contents of a manifest file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileContent {
    /// Its bytes; a shell may stop after [`decode::MAX_MANIFEST_BYTES`] + 1.
    Bytes(Vec<u8>),
    /// It is not there, or it is no regular file (after following symlinks).
    Gone,
    /// It is there and cannot be read.
    Unreadable(String),
}

/// What listing `path` gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing {
    /// A directory: names and contents of its direct entries, in any order.
    Directory(Vec<(String, FileContent)>),
    /// A single manifest.
    File(FileContent),
    /// Nothing is there.
    Missing,
    /// It cannot be listed.
    Failed(String),
}

/// What the source reacts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileEvent {
    /// The answer to [`FileAction::List`].
    Listed(Listing),
    /// The answer to [`FileAction::Read`].
    Read {
        /// As requested.
        name: String,
        /// What it holds now.
        content: FileContent,
    },
    /// A file of the directory changed; `None` if it is not known which (watch lost, queue overflow).
    Changed(Option<String>),
    /// A file of the directory was removed or moved away; another one may have its name again. Its pod left
    /// its source, even if the same pod is back by the time of the next read: upstream's watch restarts it
    /// then.
    Removed(String),
    /// The deadline came, or the source starts.
    Tick,
}

/// A request or report of the source.
#[derive(Clone, Debug, PartialEq)]
pub enum FileAction {
    /// List `path` and read its entries.
    List,
    /// Read one file of the directory.
    Read {
        /// Its name in the directory.
        name: String,
    },
    /// For `pod_manager`.
    Deliver(PodUpdate),
    /// For the log; the same report is made once.
    Report(FileReport),
}

/// Something people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileReport {
    /// `path` cannot be listed; the pods stay as they are.
    ListFailed(String),
    /// A file is bad.
    BadFile {
        /// Absolute path.
        path: String,
        /// Reason of the failure.
        problem: String,
        /// True if its last good pod runs on until the next check.
        keeps_pod: bool,
    },
    /// A file was still bad at the next check and lost its pod.
    Dropped {
        /// Absolute path.
        path: String,
        /// Reason of the failure.
        problem: String,
    },
    /// Fields that a pod does not have were ignored.
    UnknownFields {
        /// Absolute path.
        path: String,
        /// Their paths.
        fields: Vec<String>,
    },
    /// Event `FailedValidation`: a pod was left out because another one has its name.
    Duplicate(DuplicateName),
}

/// A manifest that is not used as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestProblem {
    /// Absolute path.
    pub path: String,
    /// What is wrong with it.
    pub problem: String,
}

/// One manifest file.
#[derive(Clone, Debug)]
struct Manifest {
    /// What was read last, to skip decoding it again.
    digest: Option<u128>,
    pod: Option<Arc<Pod>>,
    /// Paths of fields that a pod does not have.
    unknown: Vec<String>,
    bad: Option<BadManifest>,
}

#[derive(Clone, Debug)]
struct BadManifest {
    problem: String,
    drop_at: Mono,
}

/// A request in flight; a hint that arrives meanwhile makes it stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pending {
    #[default]
    No,
    Yes,
    Again,
    /// Requested before the file was removed: the answer is ignored.
    Stale,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct FileSource {
    config: FileSourceConfig,
    manifests: BTreeMap<String, Manifest>,
    storage: PodStorage,
    listing: Pending,
    reading: BTreeMap<String, Pending>,
    next_check: Option<Mono>,
    duplicates: Vec<DuplicateName>,
    list_problem: Option<String>,
    /// The path named a file, not a directory, when it was listed last.
    single: bool,
}

/// Key of the single manifest if `path` is a file: no file of a directory has an empty name.
const SINGLE: &str = "";

impl FileSource {
    /// A source that has read nothing; step it with [`FileEvent::Tick`] to start.
    #[must_use]
    pub fn new(config: FileSourceConfig) -> FileSource {
        FileSource {
            config,
            manifests: BTreeMap::new(),
            storage: PodStorage::new(Source::File),
            listing: Pending::No,
            reading: BTreeMap::new(),
            next_check: None,
            duplicates: Vec::new(),
            list_problem: None,
            single: false,
        }
    }

    /// Present problems: the path that cannot be listed, then manifests in the order of their paths.
    #[must_use]
    pub fn problems(&self) -> Vec<ManifestProblem> {
        let list = self.list_problem.iter().map(|problem| ManifestProblem {
            path: self.config.path.clone(),
            problem: format!("cannot be listed: {problem}"),
        });
        let of_files = self.manifests.iter().filter_map(|(name, manifest)| {
            let problem = match &manifest.bad {
                Some(bad) if manifest.pod.is_some() => {
                    format!("refused, its last good pod runs for now: {}", bad.problem)
                }
                Some(bad) => format!("refused: {}", bad.problem),
                None if manifest.unknown.is_empty() => return None,
                None => format!("unknown fields are ignored: {}", manifest.unknown.join(" ")),
            };
            Some(ManifestProblem { path: self.path_of(name), problem })
        });
        list.chain(of_files).collect()
    }

    fn request_list(&mut self, out: &mut Outbox<FileAction>) {
        match self.listing {
            Pending::No => {
                self.listing = Pending::Yes;
                out.push(FileAction::List);
            }
            Pending::Yes | Pending::Again | Pending::Stale => self.listing = Pending::Again,
        }
    }

    fn request_read(&mut self, name: String, out: &mut Outbox<FileAction>) {
        match self.reading.get_mut(&name) {
            None => {
                self.reading.insert(name.clone(), Pending::Yes);
                out.push(FileAction::Read { name });
            }
            Some(Pending::Stale) => {}
            Some(pending) => *pending = Pending::Again,
        }
    }

    fn removed(&mut self, now: Now, name: String, out: &mut Outbox<FileAction>) {
        if self.manifests.remove(&name).is_some() {
            self.deliver(now, out);
        }
        match self.reading.get_mut(&name) {
            Some(pending) => *pending = Pending::Stale,
            None => self.request_read(name, out),
        }
    }

    fn listed(&mut self, now: Now, listing: Listing, out: &mut Outbox<FileAction>) {
        self.next_check = Some(now.mono.after(self.config.check_period));
        if std::mem::take(&mut self.listing) == Pending::Again {
            self.request_list(out);
        }
        let files: BTreeMap<String, FileContent> = match listing {
            Listing::Directory(files) => files.into_iter().filter(|(name, _)| is_manifest(name)).collect(),
            Listing::File(content) => BTreeMap::from([(SINGLE.to_owned(), content)]),
            Listing::Missing => BTreeMap::new(),
            Listing::Failed(problem) => {
                if self.list_problem.as_ref() != Some(&problem) {
                    out.push(FileAction::Report(FileReport::ListFailed(problem.clone())));
                }
                self.list_problem = Some(problem);
                return;
            }
        };
        self.list_problem = None;
        self.single = files.contains_key(SINGLE);
        // A read in flight was requested after this list, and its answer is newer.
        self.manifests.retain(|name, _| files.contains_key(name) || self.reading.contains_key(name));
        for (name, content) in files {
            if !self.reading.contains_key(&name) {
                self.absorb(now, name, content, out);
            }
        }
        self.deliver(now, out);
    }

    fn absorb(&mut self, now: Now, name: String, content: FileContent, out: &mut Outbox<FileAction>) {
        let path = self.path_of(&name);
        let old = self.manifests.remove(&name);
        let (digest, result) = match content {
            FileContent::Gone => return,
            FileContent::Unreadable(problem) => (None, Err(problem)),
            FileContent::Bytes(bytes) => {
                let digest = identity::digest(&bytes);
                if let Some(old) = old.as_ref().filter(|m| m.digest == Some(digest)) {
                    match &old.bad {
                        None => {
                            self.manifests.insert(name, old.clone());
                            return;
                        }
                        Some(bad) => (Some(digest), Err(bad.problem.clone())),
                    }
                } else {
                    (Some(digest), self.pod_of(&bytes, &path, out).map_err(|e| e.to_string()))
                }
            }
        };
        let manifest = match result {
            Ok((pod, unknown)) => Manifest { digest, pod: Some(Arc::new(pod)), unknown, bad: None },
            Err(problem) => self.turned_bad(now, digest, problem, old, &path, out),
        };
        self.manifests.insert(name, manifest);
    }

    fn turned_bad(
        &self,
        now: Now,
        digest: Option<u128>,
        problem: String,
        old: Option<Manifest>,
        path: &str,
        out: &mut Outbox<FileAction>,
    ) -> Manifest {
        let (last_good, old_bad) = old.map_or((None, None), |old| (old.pod, old.bad));
        let drop_at = old_bad.as_ref().map_or(now.mono.after(self.config.check_period), |bad| bad.drop_at);
        let path = path.to_owned();
        let dropped = last_good.is_some() && now.mono >= drop_at;
        let pod = last_good.filter(|_| !dropped);
        let report = if dropped {
            Some(FileReport::Dropped { path, problem: problem.clone() })
        } else if old_bad.is_none_or(|bad| bad.problem != problem) {
            Some(FileReport::BadFile { path, problem: problem.clone(), keeps_pod: pod.is_some() })
        } else {
            None
        };
        if let Some(report) = report {
            out.push(FileAction::Report(report));
        }
        Manifest { digest, pod, unknown: Vec::new(), bad: Some(BadManifest { problem, drop_at }) }
    }

    /// The pod of a manifest, and its unknown fields.
    fn pod_of(
        &self,
        bytes: &[u8],
        path: &str,
        out: &mut Outbox<FileAction>,
    ) -> Result<(Pod, Vec<String>), ManifestError> {
        let decoded = decode::decode(bytes)?;
        let unknown = decoded.unknown_fields;
        if !unknown.is_empty() {
            let (path, fields) = (path.to_owned(), unknown.clone());
            out.push(FileAction::Report(FileReport::UnknownFields { path, fields }));
        }
        let pod = static_pod(decoded.pod, &decoded.raw, Source::File, &self.config.node_name, path)?;
        Ok((pod, unknown))
    }

    fn path_of(&self, name: &str) -> String {
        if name == SINGLE { self.config.path.clone() } else { format!("{}/{name}", self.config.path) }
    }

    /// Pods in the order of their files' names.
    fn deliver(&mut self, now: Now, out: &mut Outbox<FileAction>) {
        let pods = self.manifests.values().filter_map(|m| m.pod.clone()).collect();
        let (updates, duplicates) = self.storage.set(pods, now.wall);
        for news in duplicates.iter().filter(|d| !self.duplicates.contains(d)) {
            out.push(FileAction::Report(FileReport::Duplicate(news.clone())));
        }
        self.duplicates = duplicates;
        for update in updates {
            out.push(FileAction::Deliver(update));
        }
    }
}

impl Machine for FileSource {
    type Event = FileEvent;
    type Action = FileAction;

    fn step(&mut self, now: Now, event: FileEvent, out: &mut Outbox<FileAction>) {
        match event {
            FileEvent::Listed(listing) => self.listed(now, listing, out),
            FileEvent::Read { name, content } => {
                let asked = self.reading.remove(&name);
                if matches!(asked, Some(Pending::Again | Pending::Stale)) {
                    self.request_read(name.clone(), out);
                }
                // Before the first listing a single file does not complete the source.
                if self.storage.seen() && is_manifest(&name) && asked != Some(Pending::Stale) {
                    self.absorb(now, name, content, out);
                    self.deliver(now, out);
                }
            }
            FileEvent::Changed(Some(name)) if is_manifest(&name) && self.storage.seen() && !self.single => {
                self.request_read(name, out);
            }
            FileEvent::Removed(name) if is_manifest(&name) && self.storage.seen() && !self.single => {
                self.removed(now, name, out);
            }
            FileEvent::Changed(Some(name)) | FileEvent::Removed(name) if name.starts_with('.') => {}
            FileEvent::Changed(_) | FileEvent::Removed(_) => self.request_list(out),
            FileEvent::Tick => {
                let due = self.deadline().is_none_or(|at| now.mono >= at);
                if due && self.listing == Pending::No {
                    self.request_list(out);
                }
            }
        }
    }

    /// The next check, or the earlier retry of a bad file. None while a listing is in flight.
    fn deadline(&self) -> Option<Mono> {
        if self.listing != Pending::No {
            return None;
        }
        let bad = self.manifests.values().filter(|m| m.pod.is_some()).filter_map(|m| m.bad.as_ref());
        bad.map(|b| b.drop_at).chain(self.next_check).min()
    }
}

/// Files whose name starts with a dot are not manifests.
fn is_manifest(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

/// A decoded manifest becomes a pod of this node: defaults, identity, validation, no use of API objects.
///
/// # Errors
/// Every mistake of the pod.
pub fn static_pod(
    mut pod: Pod,
    raw: &serde_json::Value,
    source: Source,
    node_name: &str,
    place: &str,
) -> Result<Pod, ManifestError> {
    defaults::apply(&mut pod);
    identity::assign(&mut pod, raw, source, node_name, place);
    let mistakes = validate::validate(&pod);
    if !mistakes.is_empty() {
        return Err(ManifestError::Invalid(mistakes));
    }
    match api_refs::api_reference(&pod) {
        Some(resource) => Err(ManifestError::ApiReference(resource)),
        None => Ok(pod),
    }
}

#[cfg(test)]
mod tests;
