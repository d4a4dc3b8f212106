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
    let mut synced: BTreeMap<PodUid, SyncedLinks> = BTreeMap::new();
    loop {
        let Observed(snapshot) = observed.recv().await;
        let (uid, wanted) = (snapshot.pod.uid.clone(), links(&snapshot));
        if synced.get(&uid).is_some_and(|last| last.wanted == wanted) {
            continue;
        }
        let (at, of, what) = (dirs.clone(), uid.clone(), wanted.clone());
        let before = synced.get(&uid).map(|last| last.there.clone());
        match tasks.blocking(move || at.sync_log_links(&of, &what, before)).await {
            Some(Ok(_)) if wanted.is_empty() => drop(synced.remove(&uid)),
            Some(Ok(there)) => drop(synced.insert(uid, SyncedLinks { wanted, there })),
            Some(Err(error)) => {
                // The pod's next change is the next try.
                synced.remove(&uid);
                tracing::warn!(pod = %snapshot.pod, error = %chain(&error), "links to its logs not made");
            }
            None => return,
        }
    }
}

/// The links of a pod: name to target.
pub(super) type PodLinks = BTreeMap<String, String>;

/// Links of a pod, as this run of the agent left them.
struct SyncedLinks {
    wanted: PodLinks,
    /// Those on disk: there is no link to a log that did not exist.
    there: PodLinks,
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

    /// Makes the pod's links those that are wanted; answers those that are there now. `before`: the pod's links; `None`: they are
    /// looked for among all links of the node.
    pub(super) fn sync(
        &self,
        uid: &PodUid,
        wanted: &PodLinks,
        before: Option<PodLinks>,
    ) -> Result<PodLinks, FilesError> {
        let before = match before {
            Some(before) => before,
            None => self.of_pod(uid, wanted)?,
        };
        let mut there = PodLinks::new();
        for (name, target) in before {
            if wanted.get(&name) == Some(&target) {
                there.insert(name, target);
            } else {
                self.unlink(&name)?;
            }
        }
        for (name, target) in wanted {
            if !there.contains_key(name) && Path::new(target).exists() {
                let path = self.directory.join(name);
                symlink(target, &path).map_err(at("symlink", &path))?;
                there.insert(name.clone(), target.clone());
            }
        }
        Ok(there)
    }

    /// The links to logs in the pod's directory, and those that are wanted and there: an agent before this one may have had another
    /// directory for logs.
    fn of_pod(&self, uid: &PodUid, wanted: &PodLinks) -> Result<PodLinks, FilesError> {
        let suffix = format!("_{uid}");
        let is_of_pod = |target: &str| self.pod_logs(target).is_some_and(|pod| pod.ends_with(&suffix));
        let mut all = self.read()?;
        all.retain(|(name, target)| is_of_pod(target) || wanted.get(name) == Some(target));
        Ok(all.into_iter().collect())
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
            self.sync_after(uid, wanted, None);
        }

        fn sync_after(&self, uid: &str, wanted: &[(&str, &str)], before: Option<PodLinks>) -> PodLinks {
            let wanted = wanted.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
            self.links.sync(&PodUid::from(uid), &wanted, before).unwrap()
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
    fn links_that_are_known_are_not_looked_for() {
        let p = LogLinksFixture::new();
        let (zero, one) = (p.log("ns_web_u-1/c/0.log"), p.log("ns_web_u-1/c/1.log"));
        let two = p.dir.path().join("pods/ns_web_u-1/c/2.log").display().to_string();
        let there = p.sync_after("u-1", &[("zero", &zero), ("one", &one), ("two", &two)], None);
        assert_eq!(there.keys().collect::<Vec<_>>(), ["one", "zero"], "the third has no log yet");
        // A link of the pod that the agent did not make in this run.
        symlink(&zero, p.links.directory.join("other")).unwrap();
        p.log("ns_web_u-1/c/2.log");
        let there = p.sync_after("u-1", &[("one", &zero), ("two", &two)], Some(there));
        assert_eq!(p.names(), ["one", "other", "two"]);
        assert_eq!(std::fs::read_link(p.links.directory.join("one")).unwrap(), Path::new(&zero));
        assert!(p.sync_after("u-1", &[], Some(there)).is_empty());
        assert_eq!(p.names(), ["other"]);
        p.sync("u-1", &[]);
        assert!(p.names().is_empty());
    }

    #[test]
    fn no_link_without_a_log_and_no_foreign_link_is_touched() {
        let p = LogLinksFixture::new();
        let log = p.log("ns_web_u-1/c/0.log");
        std::fs::write(p.links.directory.join("file"), "").unwrap();
        let foreign = "/nowhere/ns_web_u-1/c/0.log";
        symlink(foreign, p.links.directory.join("foreign")).unwrap();
        let missing = p.dir.path().join("pods/ns_web_u-1/c/9.log").display().to_string();
        p.sync("u-1", &[("here", &log), ("missing", &missing)]);
        assert_eq!(p.names(), ["file", "foreign", "here"]);
        let there = p.sync_after("u-1", &[("foreign", foreign), ("here", &log)], None);
        assert_eq!(there.len(), 2, "a link that is wanted already is not made again");
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
