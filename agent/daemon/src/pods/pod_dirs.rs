//! Directories of pods on disk: makes directories and files before a sandbox or container exists, volumes,
//! links to logs and the terminating record, and removes all of them.
//!
//! In: paths of effects. Out: changes below `<root>/pods`, the pod log directory and the directory of log
//! links, nowhere else: the module checks every path. Blocking; the executor calls it where blocking is
//! allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use agent_linux::files::{self, Durability, FilesError};
use agent_linux::remove_tree::remove_tree;
use agent_linux::volumes::{self, SetFsGroup, VolumeError, sub_path};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::{PodKey, PodUid};
use agent_types::kill::TerminatingRecord;
use agent_types::lock::Lock;
use agent_types::pod_paths::termination_log_below;
use agent_types::runtime::pod_files::{FileWrite, PodFile};
use agent_types::time::Wall;
use agent_volumes::nfs::Nfs;
use agent_volumes::payload::Payload;
use agent_volumes::plugin::Plugin;
use agent_volumes::sub_path::SubPath;
use agent_volumes::{SetUp, Work};

pub(crate) use orlop_config::error_chain::chain;

mod actuated;
mod by_name;
mod csi;
mod devices;
mod flex;
pub mod log_links;
mod logs;
pub mod on_disk;
mod users;

use by_name::{ByName, NameLock};
use log_links::LogLinks;

pub use actuated::ResourcesOwner;

/// In the pod's directory, and removed with it.
const RECORD_NAME: &str = "terminating.json";
/// A record is some hundred bytes.
const RECORD_BYTES_MAX: u64 = 64 * 1024;
/// Mode of `<root>/pods/<uid>`, as upstream's (`makePodDataDirs` of pkg/kubelet/kubelet_pods.go).
const POD_DIR_MODE: u32 = 0o750;
/// Readers of logs run as other users.
const LOG_DIR_MODE: u32 = 0o755;

/// The directories of pods.
#[derive(Clone, Debug)]
pub struct PodDirs {
    pods: PathBuf,
    logs: PathBuf,
    links: LogLinks,
    /// A set-up that outlived its deadline must not meet the tearing down of its pod. By UID.
    volumes: ByName,
    /// Lock by the name of the volume: only one thread at a time looks for the pods that use a shared volume.
    shared: ByName,
    /// User ids of pods with user namespaces.
    users: Arc<Lock<users::Users>>,
    /// Resources that containers have.
    actuated: Arc<actuated::Actuated>,
}

impl PodDirs {
    /// `root_dir` is `--root-dir`, `logs` is `podLogsDir`, `links` is where links to containers' logs go.
    #[must_use]
    pub fn new(root_dir: &Path, logs: &Path, links: &Path) -> PodDirs {
        PodDirs {
            pods: root_dir.join("pods"),
            logs: logs.to_owned(),
            links: LogLinks::new(links, logs),
            volumes: ByName::default(),
            shared: ByName::default(),
            users: Arc::default(),
            actuated: Arc::default(),
        }
    }

    /// `--root-dir`.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.pods.parent().unwrap_or(&self.pods)
    }

    /// Makes directories and writes files, each only below the pod's own two directories.
    ///
    /// # Errors
    /// The first step that failed.
    pub fn create(
        &self,
        uid: &PodUid,
        log_directory: &str,
        dirs: &[(String, u32)],
        new_files: &[PodFile],
    ) -> Result<(), DriverError> {
        let own = self.pod_dir(uid)?;
        let logs = self.checked("create_pod_dirs", Path::new(log_directory), &self.logs)?;
        files::make_dir(&own, POD_DIR_MODE)?;
        files::make_dir(logs, LOG_DIR_MODE)?;
        for (path, mode) in dirs {
            let path = self.below_either("mkdir", Path::new(path), &own, logs)?;
            if path != own {
                files::make_dir(path, *mode)?;
            }
        }
        for file in new_files {
            let path = self.below_either("write", Path::new(&file.path), &own, logs)?;
            if file.write == FileWrite::KeepExisting && path.exists() {
                continue;
            }
            files::write_atomic(path, file.content.as_bytes(), file.mode, Durability::Rebuildable)?;
        }
        Ok(())
    }

    /// Sets up a volume of the pod.
    ///
    /// # Errors
    /// The step that failed, or a host path of another type than the pod requires.
    pub fn set_up_volume(
        &self,
        uid: &PodUid,
        volume: &SetUp,
        files: &Payload,
        now: Wall,
    ) -> Result<Option<String>, VolumeError> {
        let outside = |e: DriverError| VolumeError::Refused(e.to_string());
        let own = self.pod_dir(uid).map_err(outside)?;
        if volume.plugin != Plugin::HostPath {
            self.checked("set up volume", Path::new(&volume.path), &own).map_err(outside)?;
        }
        let _one = self.lock(uid);
        let name = Path::new(&volume.path).file_name().unwrap_or_default();
        // Another pod's walk through the same volume may take long: only a set-up that looks at other pods waits for
        // it.
        let looks_at_others = match &volume.work {
            Work::Bind(work) => work.one_pod || volume.fs_group.is_some(),
            Work::Device(_) => true,
            _ => false,
        };
        let _alone = looks_at_others.then(|| self.shared.lock(name.as_encoded_bytes()));
        volumes::set_up(&own, volume, files, now)
    }

    /// Sets up a volume that is a directory of this node or a mounted disk; `give` changes the group of its files.
    ///
    /// # Errors
    /// The step that failed, or the volume is of another kind.
    pub fn set_up_bind(
        &self,
        uid: &PodUid,
        volume: &SetUp,
        give: SetFsGroup<'_>,
    ) -> Result<Option<String>, VolumeError> {
        let outside = |e: DriverError| VolumeError::Refused(e.to_string());
        let own = self.pod_dir(uid).map_err(outside)?;
        let path = self.checked("set up volume", Path::new(&volume.path), &own).map_err(outside)?;
        let Work::Bind(work) = &volume.work else {
            return Err(VolumeError::Refused(format!("{} is no directory of this node", volume.name)));
        };
        // Without the pod's lock: the walk may take long, and the tear-down ends it first.
        let _alone = self.shared.lock(path.file_name().unwrap_or_default().as_encoded_bytes());
        volumes::set_up_bind(&own, volume, work, give)
    }

    /// Makes the directory of an NFS volume: see [`volumes::nfs::prepare`].
    ///
    /// # Errors
    /// A path outside of the pod's directory, or why it cannot be mounted.
    pub fn prepare_nfs(
        &self,
        uid: &PodUid,
        volume: &SetUp,
        work: &Nfs,
    ) -> Result<Vec<Vec<String>>, VolumeError> {
        let outside = |e: DriverError| VolumeError::Refused(e.to_string());
        let own = self.pod_dir(uid).map_err(outside)?;
        self.checked("set up volume", Path::new(&volume.path), &own).map_err(outside)?;
        // Without a lock: the resolver may take long.
        volumes::nfs::prepare(&own, volume, work)
    }

    /// Unmounts and removes all volumes of a pod. Missing ones are a success.
    ///
    /// # Errors
    /// A mount that is in use, or the kernel's refusal.
    pub fn tear_down_volumes(&self, uid: &PodUid) -> Result<(), DriverError> {
        let own = self.pod_dir(uid)?;
        // Before the lock, which other pods need, too: the server may be away.
        volumes::nfs::end_below(&own, volumes::nfs::UNMOUNT_LIMIT)?;
        let _one = self.lock(uid);
        Ok(volumes::tear_down(&own)?)
    }

    /// Unmounts disks that no pod uses. Must run before the first pod is set up.
    ///
    /// # Errors
    /// A file that cannot be read, or the step that failed.
    pub fn sweep_disks(&self) -> Result<(), DriverError> {
        for volume in volumes::disk::all(self.root())? {
            volumes::disk::release(self.root(), &volume)?;
        }
        Ok(())
    }

    /// Mounts parts of a pod's volumes where a container finds them.
    ///
    /// # Errors
    /// A path that leaves its volume, or the step that failed.
    pub fn mount_sub_paths(&self, uid: &PodUid, parts: &[SubPath]) -> Result<(), VolumeError> {
        let own = self.pod_dir(uid).map_err(|e| VolumeError::Refused(e.to_string()))?;
        let _one = self.lock(uid);
        parts.iter().try_for_each(|part| sub_path::mount_part(&own, part))
    }

    fn lock(&self, uid: &PodUid) -> NameLock {
        self.volumes.lock(uid.as_str().as_bytes())
    }

    /// Removes both directories of a pod (the log directory only unless `keep_logs`) after unmounting everything below
    /// them. Missing directories are a success.
    ///
    /// # Errors
    /// A mount that is in use, with its path, or the kernel's refusal.
    pub fn remove(&self, key: &PodKey, keep_logs: bool) -> Result<(), DriverError> {
        let own = self.pod_dir(&key.uid)?;
        volumes::nfs::end_below(&own, volumes::nfs::UNMOUNT_LIMIT)?;
        let _one = self.lock(&key.uid);
        volumes::unmount_below(&own)?;
        if !keep_logs {
            for logs in self.log_dirs(&key.uid)? {
                remove_tree(&logs)?;
            }
        }
        self.links.sync(&key.uid, &BTreeMap::new(), None)?;
        remove_tree(&own)?;
        self.free_users(&key.uid);
        self.forget_actuated(&key.uid);
        Ok(())
    }

    /// Makes the links of the pod's logs equal to `wanted` (name, target). A missing log gets no link. `before` has the pod's links;
    /// `None`: they are looked for among all links. Answers the links that are there.
    ///
    /// # Errors
    /// The step that failed.
    pub fn sync_log_links(
        &self,
        uid: &PodUid,
        wanted: &BTreeMap<String, String>,
        before: Option<BTreeMap<String, String>>,
    ) -> Result<BTreeMap<String, String>, FilesError> {
        let _one = self.lock(uid);
        self.links.sync(uid, wanted, before)
    }

    /// Removes links to logs of pods without a log directory.
    ///
    /// # Errors
    /// The step that failed.
    pub fn sweep_log_links(&self) -> Result<(), FilesError> {
        self.links.sweep()
    }

    /// Writes the terminating record durably.
    ///
    /// # Errors
    /// The step that failed; an older record is then still there.
    pub fn persist(&self, record: &TerminatingRecord) -> Result<(), DriverError> {
        let own = self.pod_dir(&record.pod.uid)?;
        files::make_dir(&own, POD_DIR_MODE)?;
        let text = serde_json::to_vec(record).map_err(|e| DriverError {
            operation: "persist",
            object: record.pod.to_string(),
            class: Class::Invalid,
            message: e.to_string(),
        })?;
        Ok(files::write_atomic(&own.join(RECORD_NAME), &text, 0o600, Durability::Synced)?)
    }

    /// Removes the terminating record, because the pod starts again.
    ///
    /// # Errors
    /// The step that failed.
    pub fn forget(&self, uid: &PodUid) -> Result<(), DriverError> {
        let path = self.pod_dir(uid)?.join(RECORD_NAME);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(FilesError { operation: "remove", path, source }.into())
            }
            _ => Ok(()),
        }
    }

    /// The file for the termination message of one container instance.
    ///
    /// # Errors
    /// A UID or a name that is not a single path component.
    pub fn termination_log(
        &self,
        uid: &PodUid,
        container: &str,
        attempt: u32,
    ) -> Result<PathBuf, DriverError> {
        let own = self.pod_dir(uid)?;
        let path = own.join(termination_log_below(container, attempt));
        self.checked("termination_log", &path, &own).map(Path::to_owned)
    }

    /// Every pod that has a directory, and the recorded terminations. A damaged record is reported, and its pod is then
    /// known only by its directory.
    ///
    /// # Errors
    /// The directory of all pods cannot be read.
    pub fn scan(&self) -> Result<(BTreeSet<PodUid>, Vec<TerminatingRecord>), FilesError> {
        let names = match files::visible_names(&self.pods) {
            Err(e) if e.class() == Class::NotFound => return Ok(Default::default()),
            names => names?,
        };
        let mut uids = BTreeSet::new();
        let mut records = Vec::new();
        for name in names {
            let uid = PodUid::from(name.as_str());
            match read_record(&self.pods.join(&name)) {
                Ok(Some(record)) if record.pod.uid == uid => records.push(record),
                Ok(Some(record)) => {
                    tracing::error!(directory = %uid, named = %record.pod.uid, "terminating record of another pod is ignored");
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(directory = %uid, error = %chain(&error), "damaged terminating record is ignored");
                }
            }
            uids.insert(uid);
        }
        Ok((uids, records))
    }

    fn pod_dir(&self, uid: &PodUid) -> Result<PathBuf, DriverError> {
        let mut parts = Path::new(uid.as_str()).components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(name)), None) if !uid.as_str().starts_with('.') => {
                Ok(self.pods.join(name))
            }
            _ => Err(outside("pod directory of", Path::new(uid.as_str()))),
        }
    }

    /// `<namespace>_<name>_<uid>`; the names may not be known, the UID is.
    fn log_dirs(&self, uid: &PodUid) -> Result<Vec<PathBuf>, DriverError> {
        let names = match files::visible_names(&self.logs) {
            Err(e) if e.class() == Class::NotFound => return Ok(Vec::new()),
            names => names?,
        };
        let suffix = format!("_{uid}");
        Ok(names.into_iter().filter(|n| n.ends_with(&suffix)).map(|n| self.logs.join(n)).collect())
    }

    fn checked<'a>(
        &self,
        operation: &'static str,
        path: &'a Path,
        below: &Path,
    ) -> Result<&'a Path, DriverError> {
        let plain = path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
        if plain && path.starts_with(below) && path != below {
            Ok(path)
        } else {
            Err(outside(operation, path))
        }
    }

    fn below_either<'a>(
        &self,
        operation: &'static str,
        path: &'a Path,
        own: &Path,
        logs: &Path,
    ) -> Result<&'a Path, DriverError> {
        if path == own {
            return Ok(path);
        }
        self.checked(operation, path, own).or_else(|_| self.checked(operation, path, logs))
    }
}

fn read_record(dir: &Path) -> Result<Option<TerminatingRecord>, FilesError> {
    let path = dir.join(RECORD_NAME);
    let bytes = match files::read_capped(&path, RECORD_BYTES_MAX) {
        Err(e) if matches!(e.class(), Class::NotFound) => return Ok(None),
        Err(e) if e.source.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        bytes => bytes?,
    };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|e| FilesError { operation: "parse", path, source: e.into() })
}

fn outside(operation: &'static str, path: &Path) -> DriverError {
    DriverError {
        operation,
        object: path.display().to_string(),
        class: Class::Invalid,
        message: "is outside of the pod's own directories".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_types::kill::KillReason;
    use agent_types::time::Wall;
    use std::os::unix::fs::PermissionsExt;

    fn key() -> PodKey {
        PodKey { namespace: "ns".into(), name: "web".into(), uid: "u-1".into() }
    }

    fn file(path: &Path, content: &str, write: FileWrite) -> PodFile {
        PodFile { path: path.display().to_string(), content: content.to_owned(), mode: 0o644, write }
    }

    struct PodDirsFixture {
        dir: tempfile::TempDir,
        dirs: PodDirs,
        own: PathBuf,
        logs: PathBuf,
    }

    fn place() -> PodDirsFixture {
        let dir = tempfile::tempdir().unwrap();
        let dirs =
            PodDirs::new(&dir.path().join("kubelet"), &dir.path().join("logs"), &dir.path().join("links"));
        let (own, logs) = (dir.path().join("kubelet/pods/u-1"), dir.path().join("logs/ns_web_u-1"));
        PodDirsFixture { dir, dirs, own, logs }
    }

    #[test]
    fn made_written_kept_and_removed() {
        let p = place();
        let dirs =
            vec![(p.own.display().to_string(), 0o750), (p.own.join("volumes").display().to_string(), 0o700)];
        let hosts = p.own.join("etc-hosts");
        let message = p.own.join("volumes/message");
        let make = |text: &str| {
            let new = [file(&hosts, text, FileWrite::Replace), file(&message, text, FileWrite::KeepExisting)];
            p.dirs.create(&key().uid, p.logs.to_str().unwrap(), &dirs, &new).unwrap();
        };
        make("one");
        make("two");
        assert_eq!(fs::read_to_string(&hosts).unwrap(), "two");
        assert_eq!(fs::read_to_string(&message).unwrap(), "one");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&p.own), mode(&p.own.join("volumes")), mode(&p.logs)), (0o750, 0o700, 0o755));
        let nameless = PodKey { namespace: "".into(), name: "".into(), uid: key().uid };
        p.dirs.remove(&nameless, true).unwrap();
        assert!(!p.own.exists() && p.logs.exists(), "its logs are to be counted on from");
        make("three");
        p.dirs.remove(&nameless, false).unwrap();
        assert!(!p.own.exists() && !p.logs.exists());
        p.dirs.remove(&nameless, false).unwrap();
    }

    #[test]
    fn nothing_is_made_outside_of_the_pods_own_directories() {
        let p = place();
        let logs = p.logs.to_str().unwrap();
        let escapes = [
            p.dir.path().join("kubelet/pods/u-2/x"),
            p.own.join("../u-2/x"),
            PathBuf::from("/tmp/orlop-escape"),
            PathBuf::from("relative"),
        ];
        for path in &escapes {
            let dirs = [(path.display().to_string(), 0o755)];
            assert_eq!(
                p.dirs.create(&key().uid, logs, &dirs, &[]).unwrap_err().class,
                Class::Invalid,
                "{path:?}"
            );
            let new = [file(path, "x", FileWrite::Replace)];
            assert_eq!(
                p.dirs.create(&key().uid, logs, &[], &new).unwrap_err().class,
                Class::Invalid,
                "{path:?}"
            );
            assert!(!path.exists());
        }
        assert!(p.dirs.create(&key().uid, p.dir.path().to_str().unwrap(), &[], &[]).is_err());
        for uid in ["", "..", ".", "a/b", "/", "../x", ".hidden"] {
            assert_eq!(
                p.dirs.create(&uid.into(), logs, &[], &[]).unwrap_err().class,
                Class::Invalid,
                "{uid:?}"
            );
            let key = PodKey { uid: uid.into(), ..key() };
            assert_eq!(p.dirs.remove(&key, false).unwrap_err().class, Class::Invalid, "{uid:?}");
        }
    }

    #[test]
    fn records_are_found_again_and_damaged_ones_do_not_hide_others() {
        let p = place();
        assert_eq!(p.dirs.scan().unwrap(), Default::default());
        let record = TerminatingRecord {
            pod: key(),
            reason: KillReason::Removed,
            grace_s: 30,
            since: Wall(5),
            remove: true,
            ended: false,
        };
        p.dirs.persist(&record).unwrap();
        for (uid, text) in [("u-2", "{"), ("u-3", &serde_json::to_string(&record).unwrap())] {
            let dir = p.dir.path().join("kubelet/pods").join(uid);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(RECORD_NAME), text).unwrap();
        }
        let (uids, records) = p.dirs.scan().unwrap();
        assert_eq!(uids, ["u-1", "u-2", "u-3"].map(PodUid::from).into());
        assert_eq!(records, [record]);
        p.dirs.remove(&key(), false).unwrap();
        assert!(p.dirs.scan().unwrap().1.is_empty());
    }
}
