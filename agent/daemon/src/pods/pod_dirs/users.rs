//! Records of pods' user and group ids on disk: `<root>/pods/<uid>/userns`, in upstream's format
//! (pkg/kubelet/userns, KEP-127).
//!
//! In: pods that need a range, pods that are gone. Out: ranges of ids. Invariants: a range is durable on disk
//! before the caller gets it, and is free again only when its pod's directory is gone; the module reads the
//! ranges of an earlier agent before it gives the first one.

use std::collections::BTreeSet;
use std::path::Path;

use agent_linux::files::{self, Durability};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::{IdMapping, PodUid};
use agent_types::resources::user_ranges::{RECORD, RangeError, Record, UserRanges};

use super::{POD_DIR_MODE, PodDirs};

/// A record has some hundred bytes.
const RECORD_BYTES_MAX: u64 = 64 * 1024;

/// Ranges of ids, and their pods.
#[derive(Debug, Default)]
pub(super) struct Users {
    ranges: UserRanges,
    /// Pods whose ids are perhaps not on disk yet.
    unwritten: BTreeSet<PodUid>,
}

impl PodDirs {
    /// Sets the ranges that pods may get, and reads the pods' present ranges from disk.
    ///
    /// # Errors
    /// The directory of all pods cannot be read.
    pub fn with_users(self, ranges: UserRanges) -> Result<PodDirs, DriverError> {
        let mut ranges = ranges;
        let names = match files::visible_names(&self.pods) {
            Err(e) if e.class() == Class::NotFound => Vec::new(),
            names => names?,
        };
        for name in names {
            let (path, uid) = (self.pods.join(&name).join(RECORD), PodUid::from(name.as_str()));
            match files::read_capped(&path, RECORD_BYTES_MAX) {
                Err(e) if e.class() == Class::NotFound => {}
                read => {
                    let restored = ranges.restore(&uid, &read.unwrap_or_default());
                    if let Err(error) = restored {
                        tracing::error!(%error, path = %path.display(), "record of user ids");
                    }
                }
            }
        }
        *self.users.lock() = Users { ranges, unwritten: BTreeSet::new() };
        Ok(self)
    }

    /// The ids of the pod; the first call assigns them.
    ///
    /// # Errors
    /// No range is free, or the record cannot be written.
    pub fn map_users(&self, uid: &PodUid) -> Result<IdMapping, DriverError> {
        let own = self.pod_dir(uid)?;
        let mut users = self.users.lock();
        let (mapping, new) = users.ranges.give(uid).map_err(|e| refused(uid, &e))?;
        if new {
            users.unwritten.insert(uid.clone());
        }
        if users.unwritten.contains(uid) {
            // A failed write may be on disk nevertheless: no other pod gets these ids while the directory exists.
            write(&own, mapping)?;
            users.unwritten.remove(uid);
        }
        Ok(mapping)
    }

    /// The pod's directory is gone.
    pub(super) fn free_users(&self, uid: &PodUid) {
        let mut users = self.users.lock();
        users.ranges.release(uid);
        users.unwritten.remove(uid);
    }
}

fn refused(uid: &PodUid, error: &RangeError) -> DriverError {
    DriverError {
        operation: "map_users",
        object: uid.to_string(),
        class: Class::Retryable { after_ms: 0 },
        message: error.to_string(),
    }
}

fn write(own: &Path, mapping: IdMapping) -> Result<(), DriverError> {
    files::make_dir(own, POD_DIR_MODE)?;
    // Numbers only: that cannot fail.
    let text = serde_json::to_vec(&Record::from(mapping)).unwrap_or_default();
    Ok(files::write_atomic(&own.join(RECORD), &text, 0o600, Durability::Synced)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use agent_types::ids::PodKey;
    use agent_types::resources::user_ranges::UNIT;

    use super::*;

    fn dirs(at: &Path) -> PodDirs {
        let dirs = PodDirs::new(&at.join("kubelet"), &at.join("logs"), &at.join("links"));
        let ranges = UserRanges::new(UNIT, Some((UNIT, 2 * UNIT)), 2).unwrap();
        dirs.with_users(ranges).unwrap()
    }

    fn key(uid: &str) -> PodKey {
        PodKey { namespace: "ns".into(), name: "p".into(), uid: uid.into() }
    }

    #[test]
    fn ids_outlive_the_agent_and_go_with_the_pods_directory() {
        let at = tempfile::tempdir().unwrap();
        let first = Arc::new(dirs(at.path()));
        let given = first.map_users(&"a".into()).unwrap();
        assert_eq!(given, IdMapping { host_id: UNIT, container_id: 0, length: UNIT });
        let record = at.path().join("kubelet/pods/a/userns");
        let text = fs::read_to_string(&record).unwrap();
        let second = dirs(at.path());
        assert_eq!(second.map_users(&"a".into()).unwrap(), given);
        assert_eq!(fs::read_to_string(&record).unwrap(), text);
        assert_eq!(second.map_users(&"b".into()).unwrap().host_id, 2 * UNIT);
        assert!(second.map_users(&"c".into()).unwrap_err().message.contains("all 2 are taken"));
        second.remove(&key("a"), false).unwrap();
        assert_eq!(second.map_users(&"c".into()).unwrap(), given);
    }

    #[test]
    fn a_broken_record_gives_nobody_ids_until_its_pod_is_gone() {
        let at = tempfile::tempdir().unwrap();
        let record = at.path().join("kubelet/pods/a/userns");
        fs::create_dir_all(record.parent().unwrap()).unwrap();
        for text in ["", "{}", &"x".repeat(70_000)] {
            fs::write(&record, text).unwrap();
            let said = dirs(at.path()).map_users(&"b".into()).unwrap_err().message;
            assert!(said.contains("record of pod a"), "{said}");
        }
        let dirs = dirs(at.path());
        dirs.remove(&key("a"), false).unwrap();
        assert!(dirs.map_users(&"b".into()).is_ok());
        assert!(dirs.map_users(&"../x".into()).is_err());
    }
}
