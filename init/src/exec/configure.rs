//! `orlop-init configure`: writes the run-time files once more, after the provisioning unit has kept what the platform's metadata
//! service said, and has the services that run take them. `exec::change` does the same for the node's own document.
//!
//! systemd runs it after the unit is ready, and after it ended. It does nothing unless what is kept differs from what the node
//! runs with (`/run/orlop/config`), so that it may run any number of times. Files of the last configuration that the new one does
//! not have are removed; what only exists at the first boot (`storage`) stays as it is. Whether a service has to take new files follows
//! from the configurations and not from the disk: a call that was cut short has written some of them already, and its mark
//! names the node's own document that it was writing.

use super::change::HalfWritten;
use super::clock::boottime_ms;
use super::configuration::{self, MergeResult, Merged, set_hostname};
use super::error::InitError;
use super::report::Report;
use super::sources::{FoundSources, collect_again};
use super::steps::{apply_all, apply_handed_over, read};
use super::{DEGRADED, change, files, kept, ledger, platform, resolv, settings, stop, swap};
use crate::plan::cmdline::{self, BootArgs};
use crate::plan::node_files::source_files;
use crate::plan::reconfigure::{
    FACTS_FILE, NODE_CONFIG, RESOLV_CONF, Restarts, content, facts_file, pending, restarts, said, stale,
    unanswered,
};
use crate::plan::source::{Document, Kind, running_file};
use crate::plan::step::BootStep;
use orlop_config::error_chain::chain;
use orlop_config::node::derive;
use orlop_config::platform::{PlatformReport, UserDataState};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Held while the run-time files are written.
const LOCK: &str = "/run/orlop/configure.lock";
/// All services that take new files have this long to start, seconds.
const START_MAX_S: u32 = 120;
/// Phase of the ledger.
const PHASE: &str = "provision.configured";
/// Phase of the ledger when the agent starts without an answer that counts.
const UNANSWERED: &str = "provision.unanswered";

/// Runs the subcommand.
#[must_use]
pub fn main() -> ExitCode {
    let mut report = Report::new("configure", "orlop-configure");
    let started = boottime_ms();
    let outcome = run(&mut report);
    match outcome {
        Ok(None) => {
            let why = platform::this_boot().and_then(|report| unanswered(&report));
            // Once: systemd may start a unit that fails again and again.
            if let Some(why) = why.filter(|_| !is_stamped(UNANSWERED)) {
                report.stamp(UNANSWERED, None, &why, false);
                report.flush();
            }
            ExitCode::SUCCESS
        }
        Ok(Some(detail)) => {
            report.stamp(PHASE, Some(started), &detail, true);
            report.flush();
            ExitCode::SUCCESS
        }
        Err(e) => {
            let why = chain(&e);
            report.problem(&format!("{PHASE}: {why}"));
            report.stamp(PHASE, Some(started), &why, false);
            report.flush();
            ExitCode::FAILURE
        }
    }
}

fn is_stamped(phase: &str) -> bool {
    let ledger = ledger::read(Path::new("/run/orlop/boot.json"));
    ledger.is_ok_and(|ledger| ledger.entries.iter().any(|entry| entry.phase == phase))
}

/// What the ledger says, if there was something to do.
fn run(report: &mut Report) -> Result<Option<String>, InitError> {
    let answered = |answer: &PlatformReport| match answer.user_data {
        UserDataState::Kept | UserDataState::None => true,
        UserDataState::Local | UserDataState::Pending | UserDataState::Unsupported => false,
    };
    if Path::new(DEGRADED).exists() || !platform::this_boot().is_some_and(|answer| answered(&answer)) {
        return Ok(None);
    }
    Ok(renew(report, ServiceWait::NotAwaited)?.map(|accepted| accepted.join(", ")))
}

/// Writes the run-time files for the sources as they are now, and has the services that run take them. Out: origins of the sources that
/// count; `None` if the node runs with them already.
///
/// # Errors
/// A file could not be written, or with [`ServiceWait::Awaited`] a service did not start: what is there is marked as half of a
/// configuration, and the next call does all of it.
pub(super) fn renew(report: &mut Report, wait: ServiceWait) -> Result<Option<Vec<String>>, InitError> {
    let _lock = lock()?;
    let args = cmdline::parse(&read("/proc/cmdline")?)?;
    let mut found = collect_again(&args, kept::read_in(Path::new("/var")));
    let own = match change::counting(Path::new("/var")) {
        // The platform's answer counts all the same, with the document that the node runs with.
        Err(e) if wait == ServiceWait::NotAwaited => {
            report.problem(&chain(&e));
            change::last_written()
        }
        counting => counting?,
    };
    found.own_document(own.as_deref());
    let kept_report = platform::kept(Path::new("/"), report);
    let facts = platform::counting(kept_report.as_ref());
    let said = said(&fs::read_to_string(NODE_CONFIG).unwrap_or_default());
    let mut merged = Merged { found: &found, sets: &args.sets, platform: facts, said: &said }.merge();
    let mut sources = source_files(&found.documents, &args.sets);
    sources.extend(facts_file(merged.facts.as_deref()));
    if own.is_none() {
        sources.push(BootStep::RemoveFile(running_file(Kind::Node)));
    }
    let half = change::half_written();
    if half.is_none() && !pending(&sources, |path| fs::read(path).ok()) {
        return Ok(None);
    }
    let placed = files::written(Path::new("/var")).unwrap_or_else(|why| {
        report.problem(&why);
        Vec::new()
    });
    let stale: &[String] = if merged.refused { &[] } else { &placed };
    let missing = configuration::missing_files(&merged.effective, Path::new("/"), stale);
    merged.effective.problems.extend(missing);
    let (steps, services) =
        changes(&Renewal { found: &found, args: &args, facts, placed: &placed }, &merged, half.as_ref());
    for problem in &merged.effective.problems[said.len()..] {
        report.problem(&format!("configuration: {problem}"));
    }
    configuration::measure(report, &merged.effective);
    let first_boot = "comes too late: the state partition is there already";
    if merged.effective.config.storage.project_quotas && !had_project_quotas() {
        report.problem(&format!("storage.projectQuotas {first_boot}"));
    }
    if let Some(note) = configuration::install_too_late(&merged.effective) {
        report.problem(&note);
    }
    change::mark_half_written(own.as_deref(), half.is_some())?;
    let mut failed = None;
    for step in &steps {
        // One that fails must not keep the others from being written.
        if let Err(source) = apply_handed_over(step) {
            failed.get_or_insert(InitError::Step { step: step.describe(), source });
        }
    }
    if let Err(e) = set_hostname(&derive::hostname(&merged.effective.config, &configuration::machine_id())) {
        report.problem(&chain(&e));
    }
    if let Err(e) = resolv::fill_in() {
        report.problem(&chain(&e));
    }
    running_system(report, services.kernel);
    // Last of the files: what is there says that all of it was done.
    let written = failed.map_or_else(|| apply_all(&sources), Err);
    // What could be written counts, as at a boot.
    let taken = restart(services, wait);
    written.and(taken)?;
    change::mark_whole()?;
    Ok(Some(merged.effective.accepted))
}

/// One renewal at a time: the platform's answer and a change of the node's own document may come together.
fn lock() -> Result<File, InitError> {
    let failed = |source| InitError::File { action: "lock", path: LOCK.into(), source };
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(LOCK).map_err(failed)?;
    file.lock().map_err(failed)?;
    Ok(file)
}

/// Whether the document that the node runs with asks for project quotas already: it is said once.
fn had_project_quotas() -> bool {
    let document: Value =
        serde_json::from_str(&fs::read_to_string(NODE_CONFIG).unwrap_or_default()).unwrap_or_default();
    document["config"]["storage"]["projectQuotas"] == true
}

/// What a renewal is made of.
struct Renewal<'a> {
    found: &'a FoundSources,
    args: &'a BootArgs,
    facts: Option<&'a PlatformReport>,
    placed: &'a [String],
}

impl Renewal<'_> {
    fn merge(&self, found: &FoundSources, facts: Option<&PlatformReport>) -> MergeResult {
        Merged { found, sets: &self.args.sets, platform: facts, said: &[] }.merge()
    }

    fn steps_of(&self, merged: &MergeResult) -> Vec<BootStep> {
        let machine_id = configuration::machine_id();
        configuration::steps(&merged.effective, (merged.refused, false), self.placed, &machine_id, "")
    }

    /// The sources that the node runs with: those that change while it runs are as their last files have them.
    fn running(&self) -> FoundSources {
        let changing = [Kind::Metadata, Kind::Node];
        let fixed =
            self.found.documents.iter().filter(|document| !changing.contains(&document.kind)).cloned();
        let mut documents: Vec<Document> = fixed.collect();
        documents.extend(changing.into_iter().filter_map(running_document));
        documents.sort_by_key(|document| document.kind);
        FoundSources { documents, ..FoundSources::default() }
    }
}

/// A source that changes while the node runs, as its last file has it.
fn running_document(kind: Kind) -> Option<Document> {
    let text = fs::read_to_string(running_file(kind)).ok()?;
    Some(Document { kind, origin: kind.name().into(), text, kept: false })
}

/// The steps, with those that remove what only the last configuration had, or one that was written by half; and the services that
/// read what changes.
fn changes(
    renewal: &Renewal<'_>,
    merged: &MergeResult,
    half: Option<&HalfWritten>,
) -> (Vec<BootStep>, Restarts) {
    let mut after = renewal.steps_of(merged);
    let running = renewal.running();
    let facts = renewal.facts.filter(|_| Path::new(FACTS_FILE).exists());
    let mut earlier = vec![renewal.merge(&running, facts)];
    if let Some(HalfWritten(own)) = half {
        let mut found = running;
        found.own_document(own.as_deref());
        earlier.push(renewal.merge(&found, renewal.facts));
    }
    let befores: Vec<Vec<BootStep>> = earlier.iter().map(|before| renewal.steps_of(before)).collect();
    let same_servers = befores
        .iter()
        .all(|before| before.iter().any(|step| step.path() == Some(RESOLV_CONF) && after.contains(step)));
    // `orlop-init resolv` has filled it in.
    after.retain(|step| step.path() != Some(RESOLV_CONF) || !same_servers);
    let gone: Vec<BootStep> = befores.iter().flat_map(|before| stale(before, &after)).collect();
    let steps: Vec<BootStep> = gone.into_iter().chain(after).collect();
    let placed = |steps: &[BootStep]| -> Vec<BootStep> {
        steps.iter().filter(|step| matches!(step, BootStep::PlaceFile(_))).cloned().collect()
    };
    let mut services = Restarts::default();
    for (before, earlier) in befores.iter().zip(&earlier) {
        services = services.and(restarts(&steps, |path| content(before, path)));
        // The agent reads these at its start, too.
        services.agent |= placed(before) != placed(&steps);
        services.agent |= earlier.effective.config.console != merged.effective.config.console;
    }
    (steps, services)
}

/// Modules and settings of the kernel, if they change, and the swap file: bringup has done it for the last configuration.
fn running_system(report: &mut Report, kernel: bool) {
    match kernel.then(settings::run) {
        Some(Ok(outcome)) => outcome.problems.iter().for_each(|problem| report.problem(problem)),
        Some(Err(e)) => report.problem(&chain(&e)),
        None => {}
    }
    if let Some(size) = swap::asked()
        && let Err(e) = swap::turn_on(Path::new("/var"), &size)
    {
        report.problem(&chain(&e));
    }
}

/// Whether the services that take new files are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceWait {
    /// They are not: the agent may wait for this very unit.
    NotAwaited,
    /// Each has to start.
    Awaited,
}

/// What runs takes its new files; what does not run yet has them when it starts.
fn restart(services: Restarts, wait: ServiceWait) -> Result<(), InitError> {
    let (mut outcome, mut left_s) = (Ok(()), START_MAX_S);
    for (wanted, verb, unit) in [
        (services.network, "try-reload-or-restart", "systemd-networkd.service"),
        (services.containerd, "try-restart", "containerd.service"),
        (services.time, "try-restart", "systemd-timesyncd.service"),
        (services.agent, "try-restart", "kubelet.service"),
    ] {
        if wanted {
            let taken = systemctl(verb, unit, wait, &mut left_s);
            // The others take theirs all the same.
            outcome = outcome.and(taken);
        }
    }
    outcome
}

/// `left_s` is how long it may still be waited, seconds.
fn systemctl(verb: &str, unit: &str, wait: ServiceWait, left_s: &mut u32) -> Result<(), InitError> {
    let failed = |status: String, said: String| InitError::Program {
        program: format!("systemctl {verb} {unit}"),
        status,
        said,
    };
    let mut command = Command::new("/usr/bin/systemctl");
    if wait == ServiceWait::NotAwaited {
        command.arg("--no-block");
    }
    let mut child = command
        .args([verb, "--", unit])
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| failed("not started".into(), e.to_string()))?;
    if wait == ServiceWait::NotAwaited {
        // systemd says what it cannot do.
        let _ = child.wait();
        return Ok(());
    }
    let last_words = format!("`orlopctl logs {unit}` has its last words");
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(failed(status.to_string(), last_words)),
            Ok(None) if *left_s == 0 => break,
            Ok(None) => stop::wait(1),
            Err(e) => return Err(failed("not waited for".into(), e.to_string())),
        }
        *left_s -= 1;
    }
    // systemd goes on with the job; only its messenger ends.
    let _ = child.kill();
    let _ = child.wait();
    Err(failed(format!("no end within {START_MAX_S} s"), last_words))
}
