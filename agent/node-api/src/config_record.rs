//! The record of changes of the node's own document, and the unit that drives it. Decisions are `orlop_config::change`'s and
//! `config_change`'s.
//!
//! In: what is done with the record. Out: its result, once the record is on disk; starts of orlop-change.service. Invariants: a state
//! partition that hangs costs its own threads; without a state partition nothing changes.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use agent_linux::clock::boottime;
use orlop_config::change::{ChangeRecord, ChangeTime};
use orlop_config::error_chain::chain;
use orlop_files::change_record::{ChangeRecordError, ChangeRecordFile};

use crate::collect::Collector;
use crate::refusal::{Reason, Refusal};

/// Applies changes and takes them back.
const DRIVER: &str = "orlop-change.service";
/// Name of the record in refusals.
const OBJECT: &str = "record of changes";

/// Whether a driver that runs is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverStart {
    /// It goes on: what it has not seen yet, it sees within two seconds.
    IfStopped,
    /// It is: one that is about to end, because no change was open, would not see the one that was begun now.
    Again,
}

/// Changes the record, at the present time.
pub(crate) async fn update<T: Send + 'static>(
    collector: &Collector,
    work: impl FnOnce(&mut ChangeRecord, ChangeTime<'_>) -> T + Send + 'static,
) -> Result<T, Refusal> {
    let root = collector.sources().root.clone();
    collector.state().look(move || updated(&root, work)).await?
}

/// Looks at the record, at the present time.
pub(crate) async fn look<T: Send + 'static>(
    collector: &Collector,
    work: impl FnOnce(&ChangeRecord, ChangeTime<'_>) -> T + Send + 'static,
) -> Result<T, Refusal> {
    let root = collector.sources().root.clone();
    let looked = move || -> Result<T, Refusal> {
        let record = record(&root).read().map_err(|error| refused(&error))?;
        let boot = boot_id(&root);
        Ok(work(&record, now(&boot)))
    };
    collector.state().look(looked).await?
}

/// Has the driver look at the record.
pub(crate) async fn drive(collector: &Collector, start: DriverStart) -> Result<(), Refusal> {
    let verb = match start {
        DriverStart::IfStopped => "start",
        DriverStart::Again => "restart",
    };
    collector.change_driver(&["--no-block", "--no-ask-password", verb, "--", DRIVER]).await.map(drop)
}

fn updated<T>(root: &Path, work: impl FnOnce(&mut ChangeRecord, ChangeTime<'_>) -> T) -> Result<T, Refusal> {
    if let Ok(why) = fs::read_to_string(root.join("run/orlop/degraded")) {
        return Err(Refusal::new(Reason::StateDegraded, "state partition", why.trim()));
    }
    let boot = boot_id(root);
    record(root).update(|record| work(record, now(&boot))).map_err(|error| refused(&error))
}

fn record(root: &Path) -> ChangeRecordFile {
    ChangeRecordFile::below(&root.join("var"))
}

fn refused(error: &ChangeRecordError) -> Refusal {
    Refusal::new(Reason::PartDown, OBJECT, chain(error))
}

fn boot_id(root: &Path) -> String {
    let text = fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).unwrap_or_default();
    text.trim().to_owned()
}

fn now(boot: &str) -> ChangeTime<'_> {
    let wall_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    ChangeTime { boot, up_ms: boottime().0 / 1_000_000, wall_s }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::Sources;

    #[tokio::test]
    async fn a_volatile_state_partition_takes_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let collector = Collector::new(Sources { root: dir.path().to_owned(), ..Sources::default() });
        fn number(record: &mut ChangeRecord, _: ChangeTime<'_>) -> u64 {
            record.last_number += 1;
            record.last_number
        }
        assert_eq!(update(&collector, number).await, Ok(1));
        assert_eq!(look(&collector, |record, _| record.last_number).await, Ok(1));
        fs::create_dir_all(dir.path().join("run/orlop")).unwrap();
        fs::write(dir.path().join("run/orlop/degraded"), "no superblock\n").unwrap();
        let refusal = update(&collector, number).await.unwrap_err();
        assert_eq!((refusal.reason, refusal.message.as_str()), (Reason::StateDegraded, "no superblock"));
        assert_eq!(look(&collector, |record, _| record.last_number).await, Ok(1));
    }
}
