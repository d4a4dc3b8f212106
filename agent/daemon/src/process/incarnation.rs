//! The state that one run of the agent leaves for the next: whether calls may still be in progress.
//!
//! In: the state file below the root directory, and the kernel's boot id. Out: how long the agent must not conclude
//! that a container is absent (the zombie fence). The agent may conclude at once that a container is present, so the
//! adoption of running containers never waits.
//!
//! After a clean stop every call has an answer: no fence. After a reboot no call of the old boot is in progress: no
//! fence. After a crash the connection ended with the process, and the runtime cancels its calls within
//! [`CANCELLED_CALL_MAX`]. The same holds after a stop in order that gave calls up, which is no crash all the same.
//!
//! An empty state file counts as a missing one: only a power cut leaves it, because an agent that is killed leaves the old
//! text or the new one. So this run is the first one of its boot.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use agent_core::node_shutdown::LastEnd;
use agent_linux::files::{self, Durability, FilesError};
use agent_types::failure::{CANCELLED_CALL_MAX, Class};
use agent_types::time::Mono;
use serde::{Deserialize, Serialize};

use crate::pods::pod_dirs::chain;

const NAME: &str = "orlop-agent-state.json";
const BYTES_MAX: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IncarnationRecord {
    boot_id: String,
    /// No call was in progress when it ended.
    clean: bool,
    /// It was stopped in order; calls may have been in progress.
    #[serde(default)]
    stopped: bool,
    /// How the boot before this one ended.
    #[serde(default)]
    last_end: Option<LastEnd>,
}

/// This run of the agent.
#[derive(Debug)]
pub struct Incarnation {
    path: PathBuf,
    boot_id: String,
    fence_until: Mono,
    first_of_boot: bool,
    follows_crash: bool,
    last_end: Option<LastEnd>,
    is_news: bool,
}

impl Incarnation {
    /// Reads the state of the last run, and records that this run is active. In the first run of a boot, `judge`
    /// determines how the boot with this id ended; its second argument is whether that boot's last run ended in order.
    /// Later runs read the recorded result.
    ///
    /// # Errors
    /// The state cannot be written. A damaged file counts as a crash, an empty one as none.
    pub fn begin(
        root_dir: &Path,
        boot_id: &str,
        now: Mono,
        judge: impl FnOnce(&str, bool) -> Option<LastEnd>,
    ) -> Result<Incarnation, FilesError> {
        let path = root_dir.join(NAME);
        let last = match files::read_capped(&path, BYTES_MAX) {
            Ok(bytes) if bytes.is_empty() => {
                tracing::warn!(path = %path.display(), "the last run's state is empty: a power cut ended its boot");
                Ok(None)
            }
            Ok(bytes) => {
                serde_json::from_slice::<IncarnationRecord>(&bytes).map_err(|e| e.to_string()).map(Some)
            }
            Err(e) if e.class() == Class::NotFound => Ok(None),
            Err(e) => Err(chain(&e)),
        };
        let (last_end, is_news) = match &last {
            Ok(Some(state)) if state.boot_id == boot_id => (state.last_end.clone(), false),
            Ok(Some(state)) => (judge(&state.boot_id, state.clean || state.stopped), true),
            Ok(None) | Err(_) => (None, false),
        };
        let (fence_until, first_of_boot, follows_crash) = match last {
            Ok(None) => (Mono(0), true, false),
            Ok(Some(state)) if state.boot_id != boot_id => (Mono(0), true, false),
            Ok(Some(state)) if state.clean => (Mono(0), false, false),
            Ok(Some(state)) => (now.after(CANCELLED_CALL_MAX), false, !state.stopped),
            Err(error) => {
                tracing::warn!(path = %path.display(), error, "the last run's state is damaged; taken for a crash");
                (now.after(CANCELLED_CALL_MAX), false, true)
            }
        };
        let boot_id = boot_id.to_owned();
        let this =
            Incarnation { path, boot_id, fence_until, first_of_boot, follows_crash, last_end, is_news };
        files::make_dir(root_dir, 0o750)?;
        this.write(false, false)?;
        Ok(this)
    }

    /// End of the time in which calls of the last run may still be in progress.
    #[must_use]
    pub fn fence_until(&self) -> Mono {
        self.fence_until
    }

    /// The last run of this boot did not end in order.
    #[must_use]
    pub fn follows_crash(&self) -> bool {
        self.follows_crash
    }

    /// The kernel's id of this boot.
    #[must_use]
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// How the boot before this one ended, if that is known. True: not reported yet, because this is the first run of
    /// the boot.
    #[must_use]
    pub fn last_end(&self) -> Option<(&LastEnd, bool)> {
        self.last_end.as_ref().map(|end| (end, self.is_news))
    }

    /// True if no agent ran before on this boot.
    #[must_use]
    pub fn is_first_of_boot(&self) -> bool {
        self.first_of_boot
    }

    /// Records that every call has an answer.
    ///
    /// # Errors
    /// The file cannot be written; then the next run waits behind the fence.
    pub fn end_clean(&self) -> Result<(), FilesError> {
        self.write(true, true)
    }

    /// Records that this run was stopped in order, and that calls to the runtime were given up.
    ///
    /// # Errors
    /// The file cannot be written; then the next run takes this one's end for a crash.
    pub fn end_with_calls(&self) -> Result<(), FilesError> {
        self.write(false, true)
    }

    fn write(&self, clean: bool, stopped: bool) -> Result<(), FilesError> {
        let (boot_id, last_end) = (self.boot_id.clone(), self.last_end.clone());
        let state = IncarnationRecord { boot_id, clean, stopped, last_end };
        let text = serde_json::to_vec(&state).unwrap_or_default();
        // The next boot's first run must find this boot's id in it, also after a power cut. If the cut takes the new name
        // back, the old text has the id of an earlier boot, which does no harm.
        match files::write_atomic(&self.path, &text, 0o600, Durability::Contents) {
            // A full disk has no room for a second file, but the first file keeps its block; without this the agent
            // could not even start to report the full disk. A half-written file is a damaged one and counts as a crash.
            Err(error) if overwrite(&self.path, &text).is_ok() => {
                tracing::warn!(
                    error = chain(&error),
                    "the state directory takes no new file; overwritten in place"
                );
                Ok(())
            }
            other => other,
        }
    }
}

/// Writes into the file that is there, without making or enlarging anything.
fn overwrite(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(text, 0)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_depends_on_how_the_last_run_ended() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("kubelet");
        let begin = |boot: &str, at: u64| Incarnation::begin(&root, boot, Mono(at), |_, _| None).unwrap();
        let fenced = |at: u64| Mono(at).after(CANCELLED_CALL_MAX);

        let first = begin("boot-1", 5);
        assert_eq!((first.fence_until(), first.is_first_of_boot()), (Mono(0), true));
        let after_crash = begin("boot-1", 7);
        assert_eq!((after_crash.fence_until(), after_crash.is_first_of_boot()), (fenced(7), false));
        assert!(after_crash.follows_crash() && !first.follows_crash());
        after_crash.end_clean().unwrap();
        let after_stop = begin("boot-1", 9);
        assert_eq!((after_stop.fence_until(), after_stop.is_first_of_boot()), (Mono(0), false));
        let after_reboot = begin("boot-2", 1);
        assert_eq!((after_reboot.fence_until(), after_reboot.is_first_of_boot()), (Mono(0), true));
        // No new file can be made next to it: the present file is overwritten, and longer or shorter text is complete.
        let temporary = root.join(files::temporary_name(NAME.as_ref()));
        std::fs::create_dir_all(temporary.join("in-the-way")).unwrap();
        assert_eq!(begin("boot-2", 2).fence_until(), fenced(2));
        assert!(begin("a-much-longer-boot-id", 1).is_first_of_boot());
        assert!(begin("b", 1).is_first_of_boot());
        assert_eq!(begin("b", 4).fence_until(), fenced(4));
        std::fs::remove_dir_all(temporary).unwrap();
        std::fs::write(root.join(NAME), "{").unwrap();
        assert_eq!(begin("boot-2", 3).fence_until(), fenced(3));
    }

    #[test]
    fn what_a_power_cut_leaves_is_no_crash_of_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |boot: &str| Incarnation::begin(dir.path(), boot, Mono(3), |_, _| None).unwrap();
        begin("boot-1");
        std::fs::write(dir.path().join(NAME), "").unwrap();
        let first = begin("boot-2");
        assert_eq!((first.fence_until(), first.is_first_of_boot()), (Mono(0), true));
        assert_eq!(first.last_end(), None);
        let second = begin("boot-2");
        assert_eq!(second.fence_until(), Mono(3).after(CANCELLED_CALL_MAX));
        assert!(!second.is_first_of_boot());
    }

    #[test]
    fn a_stop_in_order_that_gave_calls_up_is_no_crash() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |boot: &str| Incarnation::begin(dir.path(), boot, Mono(3), |_, _| None).unwrap();
        begin("boot-1").end_with_calls().unwrap();
        let next = begin("boot-1");
        // The calls may still be in progress.
        assert_eq!(next.fence_until(), Mono(3).after(CANCELLED_CALL_MAX));
        assert!(!next.follows_crash());
        // That one has ended without a word.
        assert!(begin("boot-1").follows_crash());
        begin("boot-1").end_with_calls().unwrap();
        let mut in_order = None;
        Incarnation::begin(dir.path(), "boot-2", Mono(3), |_, stopped| {
            in_order = Some(stopped);
            None
        })
        .unwrap();
        assert_eq!(in_order, Some(true));
    }

    #[test]
    fn how_the_last_boot_ended_is_judged_once() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |boot: &str| {
            let judge = |last: &str, stopped| Some(LastEnd::of(last, None, None, stopped));
            let this = Incarnation::begin(dir.path(), boot, Mono(1), judge).unwrap();
            this.last_end().map(|(end, is_news)| (end.boot_id.clone(), is_news))
        };
        assert_eq!(begin("b1"), None, "nobody ran before");
        assert_eq!(begin("b2"), Some(("b1".to_owned(), true)));
        assert_eq!(begin("b2"), Some(("b1".to_owned(), false)));
        assert_eq!(begin("b3"), Some(("b2".to_owned(), true)));
        let reason = |boot: &str| {
            let judge = |last: &str, stopped| Some(LastEnd::of(last, None, None, stopped));
            let this = Incarnation::begin(dir.path(), boot, Mono(1), judge).unwrap();
            let reason = this.last_end().map(|(end, _)| end.reason());
            this.end_clean().unwrap();
            reason
        };
        assert_eq!(reason("b4"), Some("PowerLossOrReset"));
        assert_eq!(reason("b5"), Some("ShutdownNotAwaited"), "the run before was stopped");
        let upgraded =
            serde_json::from_str::<IncarnationRecord>(r#"{"boot_id":"b3","clean":false}"#).unwrap();
        assert_eq!((upgraded.last_end, upgraded.stopped), (None, false));
    }
}
