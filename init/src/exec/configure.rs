//! `orlop-init configure`: writes the run-time files once more, after the provisioning unit has kept what the platform's metadata
//! service said, and has the services that run take them.
//!
//! systemd runs it after the unit is ready, and after it ended. It does nothing unless what is kept differs from what the node
//! runs with (`/run/orlop/config`), so that it may run any number of times. Files of the last configuration that the new one does
//! not have are removed; what only exists at the first boot (`storage`) stays as it is. Whether a service has to take new files follows
//! from the two configurations and not from the disk: a call that was cut short has written some of them already.

use super::clock::boottime_ms;
use super::configuration::{self, MergeResult, Merged, set_hostname};
use super::error::InitError;
use super::report::Report;
use super::sources::{FoundSources, collect_again};
use super::steps::{apply_all, apply_handed_over, read};
use super::{DEGRADED, files, kept, ledger, platform, resolv, settings, swap};
use crate::plan::cmdline::{self, BootArgs};
use crate::plan::node_files::source_files;
use crate::plan::reconfigure::{
    NODE_CONFIG, RESOLV_CONF, Restarts, content, facts_file, pending, restarts, said, stale, unanswered,
};
use crate::plan::source::Kind;
use crate::plan::step::BootStep;
use orlop_config::error_chain::chain;
use orlop_config::node::derive;
use orlop_config::platform::{PlatformReport, UserDataState};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

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
    let args = cmdline::parse(&read("/proc/cmdline")?)?;
    let found = collect_again(&args, kept::read_in(Path::new("/var")));
    let kept_report = platform::kept(Path::new("/"), report);
    let said = said(&fs::read_to_string(NODE_CONFIG).unwrap_or_default());
    let mut merged = merge(&found, &args, platform::counting(kept_report.as_ref()), &said);
    let mut sources = source_files(&found.documents, &args.sets);
    sources.extend(facts_file(merged.facts.as_deref()));
    if !pending(&sources, |path| fs::read(path).ok()) {
        return Ok(None);
    }
    let placed = files::written(Path::new("/var")).unwrap_or_else(|why| {
        report.problem(&why);
        Vec::new()
    });
    let stale: &[String] = if merged.refused { &[] } else { &placed };
    let missing = configuration::missing_files(&merged.effective, Path::new("/"), stale);
    merged.effective.problems.extend(missing);
    let (steps, services) = changes(&found, &args, &merged, &placed);
    for problem in &merged.effective.problems[said.len()..] {
        report.problem(&format!("configuration: {problem}"));
    }
    if merged.effective.config.storage.project_quotas {
        report.problem(
            "storage.projectQuotas comes too late by metadata: the state partition is there already",
        );
    }
    if let Some(note) = configuration::install_too_late(&merged.effective) {
        report.problem(&note);
    }
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
    running_system(report);
    // Last of the files: what is there says that all of it was done.
    let written = failed.map_or_else(|| apply_all(&sources), Err);
    // What could be written counts, as at a boot.
    restart(services);
    written.map(|()| Some(merged.effective.accepted.join(", ")))
}

fn merge(
    found: &FoundSources,
    args: &BootArgs,
    report: Option<&PlatformReport>,
    said: &[String],
) -> MergeResult {
    Merged { found, sets: &args.sets, platform: report, said }.merge()
}

/// The steps, with those that remove what only the last configuration had; and the services that read what changes.
fn changes(
    found: &FoundSources,
    args: &BootArgs,
    merged: &MergeResult,
    placed: &[String],
) -> (Vec<BootStep>, Restarts) {
    let machine_id = configuration::machine_id();
    let steps_of = |merged: &MergeResult| {
        configuration::steps(&merged.effective, (merged.refused, false), placed, &machine_id, "")
    };
    let documents = found.documents.iter().filter(|d| d.kind != Kind::Metadata).cloned().collect();
    let last = FoundSources { documents, ..FoundSources::default() };
    let before = steps_of(&merge(&last, args, None, &[]));
    let mut after = steps_of(merged);
    let same_servers = before.iter().any(|step| step.path() == Some(RESOLV_CONF) && after.contains(step));
    // `orlop-init resolv` has filled it in.
    after.retain(|step| step.path() != Some(RESOLV_CONF) || !same_servers);
    let steps: Vec<BootStep> = stale(&before, &after).into_iter().chain(after).collect();
    let services = restarts(&steps, |path| content(&before, path));
    (steps, services)
}

/// Modules, kernel settings and the swap file, which bringup has done for the last configuration.
fn running_system(report: &mut Report) {
    match settings::run() {
        Ok(outcome) => outcome.problems.iter().for_each(|problem| report.problem(problem)),
        Err(e) => report.problem(&chain(&e)),
    }
    if let Some(size) = swap::asked()
        && let Err(e) = swap::turn_on(Path::new("/var"), &size)
    {
        report.problem(&chain(&e));
    }
}

/// What runs takes its new files; what does not run yet has them when it starts. Nobody is waited for: the agent may wait for this
/// very unit.
fn restart(services: Restarts) {
    let systemctl = |verb: &str, units: &[&str]| {
        let mut command = Command::new("/usr/bin/systemctl");
        command.args(["--no-block", verb, "--"]).args(units).stdin(Stdio::null());
        // systemd says what it cannot do.
        let _ = command.status();
    };
    if services.network {
        systemctl("try-reload-or-restart", &["systemd-networkd.service"]);
    }
    if services.containerd {
        systemctl("try-restart", &["containerd.service"]);
    }
    if services.time {
        systemctl("try-restart", &["systemd-timesyncd.service"]);
    }
    systemctl("try-restart", &["kubelet.service"]);
}
