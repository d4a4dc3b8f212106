//! Links to containers' logs, kept equal to the runtime's containers.
//!
//! In: snapshots of pods. Out: links in one directory. Invariants: only links to pod logs are changed; changes that one
//! run of the agent missed are made by the next run, which inspects every pod of the runtime at its start. See
//! [`agent_kubelet_api::logs::links`].

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use agent_kubelet_api::logs::links::links;
use agent_linux::files::{self, FilesError};
use agent_types::ids::PodUid;
use agent_types::runtime::observed::PodSnapshot;

use super::{PodDirs, chain};
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};

/// Collectors of logs run as other users.
const MODE: u32 = 0o755;

/// The runtime's state of a pod.
#[derive(Clone, Debug)]
pub struct Observed(pub Arc<PodSnapshot>);

impl Coalesce for Observed {
    fn relation(&self, newer: &Self) -> Relation {
        if self.0.pod.uid == newer.0.pod.uid { Relation::Supersedes } else { Relation::Independent }
    }
}

/// Starts keeping the links in step; snapshots of pods go to the mailbox that is returned.
#[must_use]
pub fn start(dirs: Arc<PodDirs>, tasks: &Tasks) -> Sender<Observed> {
    let (to, observed) = tasks.mailbox();
    tasks.start(follow(observed, dirs, tasks.clone()));
    to
}

async fn follow(mut observed: Inbox<Observed>, dirs: Arc<PodDirs>, tasks: Tasks) {
    let at = dirs.clone();
    if let Some(Err(error)) = tasks.blocking(move || at.sweep_log_links()).await {
        tracing::warn!(error = %chain(&error), "links to logs of pods that are gone are left");
    }
    // The links on disk, for pods that have any.
    let mut synced: BTreeMap<PodUid, BTreeMap<String, String>> = BTreeMap::new();
    loop {
        let Observed(snapshot) = observed.recv().await;
        let (uid, wanted) = (snapshot.pod.uid.clone(), links(&snapshot));
        if synced.get(&uid) == Some(&wanted) {
            continue;
        }
        let (at, of, what) = (dirs.clone(), uid.clone(), wanted.clone());
        match tasks.blocking(move || at.sync_log_links(&of, &what)).await {
            Some(Ok(())) if wanted.is_empty() => drop(synced.remove(&uid)),
            Some(Ok(())) => drop(synced.insert(uid, wanted)),
            Some(Err(error)) => {
                // The pod's next change is the next try.
                synced.remove(&uid);
                tracing::warn!(pod = %snapshot.pod, error = %chain(&error), "links to its logs not made");
            }
            None => return,
        }
    }
}

/// A directory of links.
#[derive(Clone, Debug)]
pub(super) struct LogLinks {
    directory: PathBuf,
    logs: PathBuf,
}

impl LogLinks {
    pub(super) fn new(directory: &Path, logs: &Path) -> LogLinks {
        LogLinks { directory: directory.to_owned(), logs: logs.to_owned() }
    }

    pub(super) fn sync(&self, uid: &PodUid, wanted: &BTreeMap<String, String>) -> Result<(), FilesError> {
        let suffix = format!("_{uid}");
        let mut there = BTreeMap::new();
        for (name, target) in self.read()? {
            let is_of_pod = self.pod_logs(&target).is_some_and(|pod| pod.ends_with(&suffix));
            if is_of_pod && wanted.get(&name).is_none_or(|w| *w != target) {
                self.unlink(&name)?;
            } else {
                there.insert(name, target);
            }
        }
        let missing = wanted.iter().filter(|(name, target)| there.get(*name) != Some(*target));
        for (name, target) in missing {
            if Path::new(target).exists() {
                let path = self.directory.join(name);
                symlink(target, &path).map_err(at("symlink", &path))?;
            }
        }
        Ok(())
    }

    pub(super) fn sweep(&self) -> Result<(), FilesError> {
        files::make_dir(&self.directory, MODE)?;
        for (name, target) in self.read()? {
            if self.pod_logs(&target).is_some_and(|pod| !self.logs.join(pod).exists()) {
                self.unlink(&name)?;
            }
        }
        Ok(())
    }

    /// Every link, with its target. Other files in the directory are not the agent's.
    fn read(&self) -> Result<Vec<(String, String)>, FilesError> {
        let entries = match std::fs::read_dir(&self.directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(at("readdir", &self.directory))?,
        };
        let mut links = Vec::new();
        for entry in entries {
            let entry = entry.map_err(at("readdir", &self.directory))?;
            let target = std::fs::read_link(entry.path()).ok().and_then(|t| t.to_str().map(str::to_owned));
            links.extend(entry.file_name().to_str().map(str::to_owned).zip(target));
        }
        Ok(links)
    }

    /// The name of the pod's log directory, if the target is inside one.
    fn pod_logs<'a>(&self, target: &'a str) -> Option<&'a str> {
        match Path::new(target).strip_prefix(&self.logs).ok()?.components().next()? {
            Component::Normal(name) => name.to_str(),
            _ => None,
        }
    }

    fn unlink(&self, name: &str) -> Result<(), FilesError> {
        let path = self.directory.join(name);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(at("unlink", &path)(e)),
            _ => Ok(()),
        }
    }
}

fn at(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FilesError + use<> {
    let path = path.to_owned();
    move |source| FilesError { operation, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct LogLinksFixture {
        dir: tempfile::TempDir,
        links: LogLinks,
    }

    impl LogLinksFixture {
        fn new() -> LogLinksFixture {
            let dir = tempfile::tempdir().unwrap();
            let links = LogLinks::new(&dir.path().join("containers"), &dir.path().join("pods"));
            links.sweep().unwrap();
            LogLinksFixture { dir, links }
        }

        fn log(&self, below: &str) -> String {
            let path = self.dir.path().join("pods").join(below);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path.display().to_string()
        }

        fn sync(&self, uid: &str, wanted: &[(&str, &str)]) {
            let wanted = wanted.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
            self.links.sync(&PodUid::from(uid), &wanted).unwrap();
        }

        fn names(&self) -> Vec<String> {
            files::visible_names(&self.links.directory).unwrap()
        }
    }

    #[test]
    fn made_moved_and_removed_one_pod_at_a_time() {
        let p = LogLinksFixture::new();
        let (zero, one) = (p.log("ns_web_u-1/c/0.log"), p.log("ns_web_u-1/c/1.log"));
        let other = p.log("ns_db_u-2/c/0.log");
        p.sync("u-2", &[("db", &other)]);
        p.sync("u-1", &[("zero", &zero), ("one", &one)]);
        p.sync("u-1", &[("zero", &zero), ("one", &one)]);
        assert_eq!(p.names(), ["db", "one", "zero"]);
        assert_eq!(std::fs::read_link(p.links.directory.join("one")).unwrap(), Path::new(&one));
        p.sync("u-1", &[("one", &zero)]);
        assert_eq!(p.names(), ["db", "one"]);
        assert_eq!(std::fs::read_link(p.links.directory.join("one")).unwrap(), Path::new(&zero));
        p.sync("u-1", &[]);
        assert_eq!(p.names(), ["db"]);
    }

    #[test]
    fn no_link_without_a_log_and_no_foreign_link_is_touched() {
        let p = LogLinksFixture::new();
        let log = p.log("ns_web_u-1/c/0.log");
        std::fs::write(p.links.directory.join("file"), "").unwrap();
        symlink("/nowhere/ns_web_u-1/c/0.log", p.links.directory.join("foreign")).unwrap();
        let missing = p.dir.path().join("pods/ns_web_u-1/c/9.log").display().to_string();
        p.sync("u-1", &[("here", &log), ("missing", &missing)]);
        assert_eq!(p.names(), ["file", "foreign", "here"]);
        std::fs::remove_file(&log).unwrap();
        p.links.sweep().unwrap();
        assert_eq!(
            p.names(),
            ["file", "foreign", "here"],
            "a log that is being rotated is not there for a moment"
        );
        std::fs::remove_dir_all(p.dir.path().join("pods/ns_web_u-1")).unwrap();
        p.links.sweep().unwrap();
        assert_eq!(p.names(), ["file", "foreign"]);
    }
}
