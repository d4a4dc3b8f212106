//! The node's own document: which text of its record counts in a boot, and `orlop-init change`, the driver of a change
//! (orlop-change.service).
//!
//! ```text
//! initrd:  begin_boot ─► sources ─► configuration ─► end_boot ─► the driver's link
//! driver:  record ─► next_step ─┬─► renew (files, services)
//!                               └─► note (record)          until the change has ended
//! ```
//! In: the record on the state partition, what the node runs with, the time. Out: files of /run, services, the record. Decisions are
//! `orlop_config::change`'s. It needs neither the agent nor the management API nor the network. Invariant: files are marked as half of
//! a configuration from before the first one is written until the services have taken the last one, so a driver that is killed does
//! all of it again.

use super::clock::boottime_ms;
use super::configure::{ServiceWait, renew};
use super::error::InitError;
use super::report::Report;
use super::sources::FoundSources;
use super::steps::{apply, apply_all, remove_file};
use super::{DEGRADED, configuration, guard, stop};
use crate::plan::change::{HALF_WRITTEN, SHOWN_FILE, driver_steps, is_refused, said, shown, tried};
use crate::plan::cmdline::BootArgs;
use crate::plan::mounts::SYSROOT;
use crate::plan::reconfigure::NODE_CONFIG;
use crate::plan::source::{Kind, running_file};
use crate::plan::step::BootStep;
use orlop_config::change::{
    ChangeRecord, ChangeStage, ChangeTime, DriverNote, DriverStep, needs_restart, next_step,
};
use orlop_config::error_chain::chain;
use orlop_config::node::{Source, load};
use orlop_files::Durability;
use orlop_files::change_record::{ChangeRecordError, ChangeRecordFile};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// The node's own document whose files are being written; empty: none. It is there until the services have taken them.
const HALF: &str = "/run/orlop/config-half.yaml";
/// Why a change fails whose document does not count.
const REFUSED: &str = "its document is refused with the node's other sources";
/// Phase of the ledger for a change that was taken back.
const PHASE: &str = "config.reverted";
/// After so many failures in a row the driver gives up: what it cannot take back on the running system, or write down, goes with a
/// reboot.
const FAILURES_MAX: u32 = 5;
/// Pause after a failure, seconds.
const RETRY_S: i64 = 5;

/// A document whose files were written by half. It may hold a token: no `Debug`.
pub(super) struct HalfWritten(pub(super) Option<String>);

/// What a call before this one has left by half.
pub(super) fn half_written() -> Option<HalfWritten> {
    let text = fs::read_to_string(HALF).ok()?;
    Some(HalfWritten((!text.is_empty()).then_some(text)))
}

/// Files of this document are going to be written. The mark of an earlier document stays: its files may be there still.
pub(super) fn mark_half_written(own: Option<&str>, is_marked: bool) -> Result<(), InitError> {
    if is_marked {
        return Ok(());
    }
    let content = own.unwrap_or_default().as_bytes();
    orlop_files::replace(Path::new(HALF), content, 0o600, Durability::Rebuildable)
        .map_err(|e| InitError::Refused(chain(&e)))
}

/// All files are written, and the services have taken them.
pub(super) fn mark_whole() -> Result<(), InitError> {
    remove_file(Path::new(HALF)).map_err(|source| InitError::File {
        action: "remove",
        path: HALF.into(),
        source,
    })
}

/// The node's own document that counts now.
pub(super) fn counting(var: &Path) -> Result<Option<String>, InitError> {
    let record = ChangeRecordFile::below(var).read().map_err(refused)?;
    Ok(record.counts(now(&boot_id())).map(str::to_owned))
}

fn refused(error: ChangeRecordError) -> InitError {
    InitError::Refused(chain(&error))
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn now(boot: &str) -> ChangeTime<'_> {
    let wall_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    ChangeTime { boot, up_ms: boottime_ms(), wall_s }
}

/// Writes the record after an event, and says what the event has turned.
fn turn(
    report: &mut Report,
    file: &ChangeRecordFile,
    boot: &str,
    event: impl FnOnce(&mut ChangeRecord, ChangeTime<'_>),
) -> Result<(), ChangeRecordError> {
    let (before, after) = file.update(|record| {
        let before = record.clone();
        event(record, now(boot));
        (before, record.clone())
    })?;
    if let Some(line) = said(&before, &after) {
        let text = format!("configuration: {}", line.text);
        report.line(&text);
        if line.is_problem {
            report.stamp(PHASE, None, &line.text, false);
        }
    }
    Ok(())
}

fn sysroot_record() -> ChangeRecordFile {
    ChangeRecordFile::below(&Path::new(SYSROOT).join("var"))
}

/// Notes the boot in the record, and gives the document that counts in it to the sources. A document on trial that is refused with
/// the sources of this boot has failed.
pub fn begin_boot(report: &mut Report, found: &mut FoundSources, args: &BootArgs) {
    let file = sysroot_record();
    // With a volatile /var there is none.
    if !file.is_there() {
        return;
    }
    let boot = boot_id();
    let before = match file.read() {
        Ok(record) => record,
        Err(e) => return report.problem(&chain(&e)),
    };
    if before.open.is_some()
        && let Err(e) = turn(report, &file, &boot, |record, now| {
            record.boot(now);
        })
    {
        report.problem(&format!("the change that waits does not count: {}", chain(&e)));
    }
    let record = file.read().unwrap_or(before);
    found.own_document(record.counts(now(&boot)));
    if tried(&record, now(&boot)).is_none() || counts_in(found, args) {
        return;
    }
    let failed = turn(report, &file, &boot, |record, now| {
        record.failed(REFUSED);
        record.reverted(now);
    });
    if let Err(e) = failed {
        report.problem(&chain(&e));
    }
    found.own_document(record.confirmed.as_ref().map(|text| text.0.as_str()));
}

/// Whether the node's own document is accepted among these sources. None is.
fn counts_in(found: &FoundSources, args: &BootArgs) -> bool {
    let Some(own) = found.documents.iter().find(|document| document.kind == Kind::Node) else { return true };
    let sources: Vec<Source> = found.documents.iter().map(configuration::source).collect();
    load(&sources, &args.sets).accepted.contains(&own.shown())
}

/// Notes a failure of the boot's configuration phase, and has the driver start with the system while a change is open. That the
/// document is applied is for the driver to note: one with which the system does not come up is over at the next boot.
pub fn end_boot(report: &mut Report, outcome: &Result<String, InitError>) {
    let file = sysroot_record();
    // What is wrong with the record has been said.
    let Ok(record) = file.read() else { return };
    let boot = boot_id();
    // Another source that was refused is none of the change's.
    if let Err(failure @ InitError::Step { .. }) = outcome
        && tried(&record, now(&boot)).is_some()
    {
        let why = chain(failure);
        if let Err(e) = turn(report, &file, &boot, |record, _| record.failed(&why)) {
            report.problem(&chain(&e));
        }
    }
    let is_driven =
        |record: &ChangeRecord| record.open.as_ref().is_some_and(|open| open.stage != ChangeStage::Waiting);
    if is_driven(&file.read().unwrap_or(record))
        && let Err(e) = apply_all(&driver_steps())
    {
        report.problem(&chain(&e));
    }
}

/// Runs the subcommand, until no change is open or one waits for a boot.
#[must_use]
pub fn main() -> ExitCode {
    let mut report = Report::new("configure", "orlop-change");
    if Path::new(DEGRADED).exists() {
        return ExitCode::SUCCESS;
    }
    let (file, boot) = (ChangeRecordFile::below(Path::new("/var")), boot_id());
    let mut failures = 0;
    loop {
        match step(&mut report, &file, &boot) {
            Ok(ControlFlow::Break(code)) => return code,
            Ok(ControlFlow::Continue(0)) => failures = 0,
            Ok(ControlFlow::Continue(ms)) => {
                failures = 0;
                stop::wait(i64::try_from(ms.div_ceil(1000)).unwrap_or(1));
            }
            Err(e) if failures < FAILURES_MAX => {
                failures += 1;
                report.line(&format!("configuration: {}", chain(&e)));
                stop::wait(RETRY_S);
            }
            Err(_) => return give_up(&mut report, &file, &boot),
        }
        report.flush();
    }
}

/// A reboot takes back what the driver cannot. Where it would change nothing, systemd starts the driver again.
fn give_up(report: &mut Report, file: &ChangeRecordFile, boot: &str) -> ExitCode {
    let needed = |record: ChangeRecord| needs_restart(&record, running().as_deref(), now(boot));
    if !file.read().is_ok_and(needed) {
        return ExitCode::FAILURE;
    }
    report.line("configuration: the change cannot be taken back on the running system; rebooting");
    report.flush();
    guard::restart()
}

/// One step; how long to wait for the next one, milliseconds, or the end.
fn step(
    report: &mut Report,
    file: &ChangeRecordFile,
    boot: &str,
) -> Result<ControlFlow<ExitCode, u64>, InitError> {
    let record = file.read().map_err(refused)?;
    publish(&record);
    match next_step(&record, running().as_deref(), now(boot)) {
        DriverStep::Rest => return Ok(ControlFlow::Break(ExitCode::SUCCESS)),
        DriverStep::Wait(ms) => return Ok(ControlFlow::Continue(ms)),
        DriverStep::Note(DriverNote::Applied) if is_refused(&record, &node_config()) => {
            turn(report, file, boot, |record, _| record.failed(REFUSED)).map_err(refused)?;
        }
        DriverStep::Note(note) => {
            turn(report, file, boot, |record, now| record.note(note, now)).map_err(refused)?;
        }
        DriverStep::Run => match renew(report, ServiceWait::Awaited) {
            Ok(_) => {}
            Err(e) if tried(&record, now(boot)).is_some() => {
                let why = chain(&e);
                turn(report, file, boot, |record, _| record.failed(&why)).map_err(refused)?;
            }
            Err(e) => return Err(e),
        },
        DriverStep::Reboot => {
            report.line("configuration: rebooting, because what is taken back acts at a boot only");
            report.flush();
            return Ok(ControlFlow::Break(guard::restart()));
        }
    }
    Ok(ControlFlow::Continue(0))
}

/// Shows the open change among the node's problems.
fn publish(record: &ChangeRecord) {
    let step = match shown(record) {
        Some(text) => {
            BootStep::WriteFile { path: SHOWN_FILE.into(), mode: 0o644, content: text.into_bytes() }
        }
        None => BootStep::RemoveFile(SHOWN_FILE.into()),
    };
    // For people alone: no failure of it may hold a change up.
    let _ = apply(&step);
}

/// The node's own document that the node runs with.
fn running() -> Option<String> {
    if half_written().is_some() {
        return Some(HALF_WRITTEN.to_owned());
    }
    last_written()
}

/// The node's own document whose files were written last.
pub(super) fn last_written() -> Option<String> {
    fs::read_to_string(running_file(Kind::Node)).ok()
}

/// The effective configuration.
fn node_config() -> String {
    fs::read_to_string(NODE_CONFIG).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::cmdline::RootHash;
    use crate::plan::source::Document;

    fn args(sets: &[&str]) -> BootArgs {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        BootArgs {
            roothash: RootHash([0; 32]),
            configs: vec![],
            sets,
            drives_always: false,
            resets: vec![],
            mistakes: vec![],
        }
    }

    fn text(body: &str) -> String {
        format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}")
    }

    #[test]
    fn a_document_counts_with_the_sources_of_the_boot_or_has_failed() {
        let image = Document {
            kind: Kind::Image,
            origin: "image".into(),
            text: text("taints: [{key: a, effect: NoSchedule}]\n"),
            kept: false,
        };
        let mut found = FoundSources { documents: vec![image], ..FoundSources::default() };
        assert!(counts_in(&found, &args(&[])), "no document is accepted");
        found.own_document(Some(&text("labels: {a: b}\n")));
        assert!(counts_in(&found, &args(&[])));
        // What the image of this boot does not go with.
        found.own_document(Some(&text("kubelet: {registerWithTaints: []}\n")));
        assert!(!counts_in(&found, &args(&[])));
    }

    #[test]
    fn a_record_that_is_damaged_is_an_error_and_an_absent_one_has_no_document() {
        let var = tempfile::tempdir().expect("temporary directory");
        assert_eq!(counting(var.path()).expect("none"), None);
        let file = var.path().join(orlop_config::change::FILE);
        fs::create_dir_all(file.parent().expect("parent")).expect("fixture");
        fs::write(&file, "{").expect("fixture");
        let error = counting(var.path()).expect_err("damaged");
        assert!(error.to_string().contains("node.json does not count: it is damaged"), "{error}");
    }
}
