//! Rotation of containers' logs: when to rotate, and how to treat the files of earlier rotations.
//!
//! ```text
//! 0.log ─► 0.log.20261122-231500 ─► (at the next rotation) 0.log.20261122-231500.gz ─► removed, the oldest first
//!                                    made as ….tmp, then renamed
//! ```
//! In: sizes, names of files. Out: files to remove, files to compress, the name of the next file. Invariants:
//! names are upstream's, so either kubelet continues with the other's files; a file that was just renamed may
//! still have readers, and is not compressed before the next rotation. Upstream:
//! pkg/kubelet/logs/container_log_manager.go.

use std::collections::BTreeMap;

use agent_types::ids::{ContainerId, PodUid};
use agent_types::runtime::observed::{ContainerState, PodSnapshot};
use agent_types::time::Wall;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Ending of a compressed file.
pub const COMPRESSED: &str = ".gz";
/// Ending of a file that is being compressed.
pub const TEMPORARY: &str = ".tmp";

/// When logs are rotated, and how many files there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `containerLogMaxSize`, bytes: a log of this size or more is rotated.
    pub size_max: u64,
    /// `containerLogMaxFiles`, the current log included.
    pub files_max: usize,
}

impl Policy {
    /// `None` if the size is negative, which turns rotation off.
    #[must_use]
    pub fn new(size_max: i64, files_max: i32) -> Option<Policy> {
        let files_max = usize::try_from(files_max).unwrap_or(0);
        u64::try_from(size_max).ok().map(|size_max| Policy { size_max, files_max })
    }

    /// What is done with the files of earlier rotations before the log itself is moved away. `log` is its name, `names`
    /// are those in its directory, in any order.
    #[must_use]
    pub fn plan<'a>(&self, log: &str, names: impl IntoIterator<Item = &'a str>) -> Plan {
        let mut rotated: Vec<&str> = names
            .into_iter()
            .filter(|n| n.strip_prefix(log).is_some_and(|rest| rest.starts_with('.')))
            .collect();
        // The names hold the time, so this is from the oldest to the newest.
        rotated.sort_unstable();
        let compressed = |name: &str| rotated.binary_search(&format!("{name}{COMPRESSED}").as_str()).is_ok();
        // A file of a rotation that did not finish.
        let left =
            |name: &&str| name.ends_with(TEMPORARY) || (!name.ends_with(COMPRESSED) && compressed(name));
        let (left, kept): (Vec<&str>, Vec<&str>) = rotated.iter().partition(|name| left(name));
        // The current log and its next archive count, too.
        let excess = kept.len().saturating_sub(self.files_max.saturating_sub(2));
        let (old, kept) = kept.split_at(excess);
        let owned = |names: &mut dyn Iterator<Item = &&str>| names.map(|n| (*n).to_owned()).collect();
        Plan {
            remove: owned(&mut left.iter().chain(old)),
            compress: owned(&mut kept.iter().filter(|n| !n.ends_with(COMPRESSED))),
        }
    }
}

/// What is to be done with files of earlier rotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Files to remove: leftovers and the oldest archives.
    pub remove: Vec<String>,
    /// The oldest first.
    pub compress: Vec<String>,
}

/// The name of a log that is rotated at `now`: in UTC, so that names sort by time in every time zone.
#[must_use]
pub fn rotated_name(log: &str, now: Wall) -> String {
    let at = Timestamp::from_nanosecond(i128::from(now.0)).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{log}.{}", at.to_zoned(TimeZone::UTC).strftime("%Y%m%d-%H%M%S"))
}

/// Logs that are being written to, by pod.
pub type RunningLogs = BTreeMap<PodUid, Vec<RunningLog>>;

/// The log of a container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningLog {
    /// Who writes to it.
    pub container: ContainerId,
    /// Its name in its pod.
    pub name: String,
    /// Absolute path of the log.
    pub path: String,
}

/// Takes the logs of a pod's running containers; true if the set changed. Only running containers write to
/// their logs.
pub fn observe(logs: &mut RunningLogs, snapshot: &PodSnapshot) -> bool {
    let runs = snapshot.containers.iter();
    let running: Vec<RunningLog> = runs
        .filter(|c| c.state == ContainerState::Running && !c.log_path.is_empty())
        .map(|c| RunningLog { container: c.id.clone(), name: c.name.clone(), path: c.log_path.clone() })
        .collect();
    let uid = &snapshot.pod.uid;
    if running.is_empty() {
        return logs.remove(uid).is_some();
    }
    if logs.get(uid) == Some(&running) {
        return false;
    }
    logs.insert(uid.clone(), running);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use agent_types::ids::PodKey;
    use agent_types::runtime::observed::ContainerObserved;
    use agent_types::time::Mono;

    fn plan(files_max: i32, names: &[&str]) -> (Vec<String>, Vec<String>) {
        let made = Policy::new(10, files_max).unwrap().plan("0.log", names.iter().copied());
        (made.remove, made.compress)
    }

    #[test]
    fn the_rotated_are_compressed_and_the_oldest_go() {
        let none: [&str; 0] = [];
        assert_eq!(plan(5, &["0.log"]), (vec![], vec![]));
        let (a, b, c, d) = (
            "0.log.20260101-000000.gz",
            "0.log.20260102-000000.gz",
            "0.log.20260103-000000.gz",
            "0.log.20260104-000000",
        );
        assert_eq!(plan(5, &[d, "0.log", a, c, b]), (vec![a.to_owned()], vec![d.to_owned()]));
        assert_eq!(plan(3, &[d, c, b]), (vec![b.to_owned(), c.to_owned()], vec![d.to_owned()]));
        assert_eq!(plan(2, &[d, c]), (vec![c.to_owned(), d.to_owned()], none.map(str::to_owned).to_vec()));
    }

    #[test]
    fn leftovers_go_and_nothing_else_is_touched() {
        let (whole, gz) = ("0.log.20260101-000000", "0.log.20260101-000000.gz");
        let temporary = "0.log.20260102-000000.tmp";
        let foreign = ["1.log", "1.log.20260101-000000", "10.log.20260101-000000", "0.logs", "other"];
        let mut names = vec![temporary, gz, whole, "0.log", "0.log.20260102-000000"];
        names.extend(foreign);
        assert_eq!(
            plan(9, &names),
            (vec![whole.to_owned(), temporary.to_owned()], vec!["0.log.20260102-000000".to_owned()])
        );
    }

    #[test]
    fn names_hold_the_time() {
        assert_eq!(rotated_name("3.log", Wall(1_795_388_700_999_999_999)), "3.log.20261122-230500");
        assert_eq!(Policy::new(-1, 5), None);
    }

    #[test]
    fn only_what_runs_is_watched() {
        let container = |id: &str, state| {
            let mut c = ContainerObserved::created(id, "box", id, 0, Wall(0));
            (c.state, c.log_path) = (state, format!("/logs/{id}.log"));
            c
        };
        let mut snapshot = PodSnapshot {
            pod: PodKey { namespace: "ns".into(), name: "web".into(), uid: "u-1".into() },
            as_of: Mono(0),
            sandboxes: Vec::new(),
            containers: vec![
                container("a", ContainerState::Running),
                container("b", ContainerState::Exited),
                ContainerObserved { log_path: String::new(), ..container("c", ContainerState::Running) },
            ]
            .into(),
            actuated: None,
        };
        let mut logs = RunningLogs::new();
        assert!(observe(&mut logs, &snapshot));
        assert!(!observe(&mut logs, &snapshot), "nothing changed");
        let paths: Vec<&str> = logs.values().flatten().map(|l| l.path.as_str()).collect();
        assert_eq!(paths, ["/logs/a.log"]);
        snapshot.containers[0].state = ContainerState::Exited;
        assert!(observe(&mut logs, &snapshot));
        assert!(logs.is_empty());
    }

    proptest! {
        #[test]
        fn never_more_files_than_allowed_and_never_the_log_itself(
            names in proptest::collection::btree_set("0\\.log(\\.[0-3])?(\\.gz|\\.tmp)?", 0..12),
            files_max in 2_i32..6,
        ) {
            let made = Policy::new(10, files_max).unwrap().plan("0.log", names.iter().map(String::as_str));
            let removed = |n: &String| made.remove.contains(n);
            prop_assert!(!removed(&"0.log".to_owned()) && !made.compress.contains(&"0.log".to_owned()));
            let left: Vec<&String> = names.iter().filter(|n| *n != "0.log" && !removed(n)).collect();
            // With the log and the file that it becomes.
            prop_assert!(left.len() + 2 <= usize::try_from(files_max).unwrap());
            for name in &left {
                prop_assert_eq!(made.compress.contains(name), !name.ends_with(COMPRESSED));
                prop_assert!(!name.ends_with(TEMPORARY));
            }
        }
    }
}
