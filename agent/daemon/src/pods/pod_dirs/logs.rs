//! Log files of a pod's containers, and their termination messages.
//!
//! In: directories and paths of pods and of the runtime. Out: the attempts that left a log; removed files. Invariant:
//! only files among the pods' logs and the pod's termination messages are read or removed. See
//! [`agent_kubelet_api::logs::retention`].

use std::path::Path;

use agent_core::container_spec::dirs::attempt_of_last_words;
use agent_kubelet_api::logs::retention::{self, RemovedLog};
use agent_linux::files;
use agent_linux::remove_tree::remove_tree;
use agent_types::failure::{Class, DriverError};
use agent_types::ids::PodUid;
use agent_types::pod_paths::LAST_WORDS_DIR;

use super::PodDirs;

impl PodDirs {
    /// The highest attempt that left a log in a container's log directory: 12 if the directory contains `3.log`,
    /// `12.log.gz` and `x.log`.
    ///
    /// # Errors
    /// A directory that is not among the logs, or that cannot be read.
    pub fn newest_log(&self, directory: &str) -> Result<Option<u32>, DriverError> {
        let directory = self.checked("newest_log", Path::new(directory), &self.logs)?;
        let names = files::visible_names(directory)?;
        Ok(retention::newest(names.iter().map(String::as_str)))
    }

    /// Removes the log files that go with an instance of a container; those that are gone already are fine.
    ///
    /// # Errors
    /// A path elsewhere than among the logs, or the file that could not be removed.
    pub fn remove_logs(&self, log: &RemovedLog) -> Result<(), DriverError> {
        let path = self.checked("remove logs", Path::new(&log.path), &self.logs)?;
        let file = path.file_name().and_then(|name| name.to_str());
        let (Some(directory), Some(attempt)) = (path.parent(), file.and_then(retention::attempt_of)) else {
            return Ok(());
        };
        let names = match files::visible_names(directory) {
            Ok(names) => names,
            Err(error) if error.class() == Class::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for name in retention::superseded(&names, attempt, log.even_newest) {
            remove_tree(&directory.join(name))?;
        }
        Ok(())
    }

    /// Removes the termination message of an instance of a container that is gone, and those of the instances before it; `log` is
    /// the instance's. A container chooses how long its message is, so messages must not pile up.
    ///
    /// # Errors
    /// A path elsewhere than among the logs, or the file that could not be removed.
    pub fn remove_last_words(&self, uid: &PodUid, log: &RemovedLog) -> Result<(), DriverError> {
        let path = self.checked("remove termination messages", Path::new(&log.path), &self.logs)?;
        let file = path.file_name().and_then(|name| name.to_str());
        let container = path.parent().and_then(Path::file_name);
        let (Some(container), Some(attempt)) = (container, file.and_then(retention::attempt_of)) else {
            return Ok(());
        };
        let directory = self.pod_dir(uid)?.join(LAST_WORDS_DIR).join(container);
        let names = match files::visible_names(&directory) {
            Err(error) if error.class() == Class::NotFound => return Ok(()),
            names => names?,
        };
        for name in names {
            if attempt_of_last_words(&name).is_some_and(|of| of <= attempt) {
                remove_tree(&directory.join(name))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct LogDirsFixture {
        dir: tempfile::TempDir,
        dirs: PodDirs,
    }

    fn place(names: &[&str]) -> LogDirsFixture {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let dirs = PodDirs::new(&at("kubelet"), &at("logs"), &at("links"));
        fs::create_dir_all(at("logs/ns_web_u-1/c")).unwrap();
        let place = LogDirsFixture { dir, dirs };
        for name in names {
            fs::write(place.path(name), "").unwrap();
        }
        place
    }

    impl LogDirsFixture {
        fn path(&self, name: &str) -> String {
            self.dir.path().join("logs/ns_web_u-1/c").join(name).display().to_string()
        }

        fn remove(&self, name: &str, even_newest: bool) -> Vec<String> {
            self.dirs.remove_logs(&RemovedLog { path: self.path(name), even_newest }).unwrap();
            files::visible_names(Path::new(&self.path("."))).unwrap()
        }
    }

    #[test]
    fn the_newest_log_of_a_container() {
        let p = place(&[]);
        let newest = || p.dirs.newest_log(p.path("").trim_end_matches('/')).unwrap();
        assert_eq!(newest(), None);
        for name in ["0.log", "3.log", "12.log.20261122-034500.gz", "x.log", "99", "log"] {
            fs::write(p.path(name), "").unwrap();
        }
        assert_eq!(newest(), Some(12));
        assert!(p.dirs.newest_log("/etc").is_err(), "not among the logs");
        assert!(p.dirs.newest_log(&p.path("none")).is_err(), "not there");
    }

    #[test]
    fn logs_go_with_their_instance() {
        let p = place(&["0.log", "0.log.20261122-034500.gz", "1.log", "note"]);
        assert_eq!(p.remove("0.log", false), ["1.log", "note"]);
        assert_eq!(p.remove("0.log", false), ["1.log", "note"], "again");
        assert_eq!(p.remove("1.log", false), ["1.log", "note"], "the newest tells the next its number");
        assert_eq!(p.remove("1.log", true), ["note"]);
        let nowhere = RemovedLog { path: p.path("../gone/0.log").replace("c/../", ""), even_newest: true };
        p.dirs.remove_logs(&nowhere).unwrap();
        let outside = RemovedLog { path: "/etc/0.log".to_owned(), even_newest: true };
        assert!(p.dirs.remove_logs(&outside).is_err(), "not among the logs");
    }

    #[test]
    fn last_words_go_with_their_instance_and_those_before_it() {
        let p = place(&[]);
        let own = p.dir.path().join("kubelet/pods/u-1/containers");
        fs::create_dir_all(own.join("c")).unwrap();
        fs::create_dir_all(own.join("d")).unwrap();
        for name in ["c/00000000", "c/00000009", "c/0000000a", "c/0000000b", "c/note", "d/00000000"] {
            fs::write(own.join(name), "bye").unwrap();
        }
        let remove = |path: &str| {
            let log = RemovedLog { path: path.to_owned(), even_newest: false };
            p.dirs.remove_last_words(&"u-1".into(), &log)
        };
        for _ in 0..2 {
            remove(&p.path("10.log")).unwrap();
            assert_eq!(files::visible_names(&own.join("c")).unwrap(), ["0000000b", "note"]);
        }
        assert_eq!(files::visible_names(&own.join("d")).unwrap(), ["00000000"], "another container's");
        remove(&p.path("note")).unwrap();
        remove(&p.path("0.log").replace("/c/", "/none/")).unwrap();
        assert!(remove("/etc/0.log").is_err(), "not among the logs");
        assert!(own.join("c/0000000b").exists());
    }
}
