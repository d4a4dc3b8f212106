//! What is wrong with the node, in the order in which a person should read it. Pure.
//!
//! In: a snapshot. Out: problems with remedies that are possible on a node without a shell. Invariant: a source that does not answer is
//! a problem itself.

use agent_core::console::problem::{of_configuration, parse};
use agent_core::console::runbook::{self, ProblemRunbook, phase_reference, reference};
use agent_core::console::text::clean;
use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{MountStatus, ProblemStatus, ServiceStatus};

use super::node::AGENT;
use super::{NamedObjects, boot, services};
use crate::facts::Facts;
use crate::refusal::Refusal;

/// Longest texts, characters.
const TEXT_CHARS_MAX: usize = 600;
/// A file system with less than this share free is a problem: 1 in 20.
const FREE_SHARE: u64 = 20;

/// A problem; `runbook` is where the documentation has more.
fn problem(subject: &str, message: &str, remedy: &str, runbook: String) -> ProblemStatus {
    ProblemStatus {
        subject: clean(subject, TEXT_CHARS_MAX),
        message: clean(message, TEXT_CHARS_MAX),
        remedy: remedy.to_owned(),
        runbook,
    }
}

/// A problem with the remedy of its runbook.
fn problem_of(runbook: &ProblemRunbook, subject: &str, message: &str) -> ProblemStatus {
    problem(subject, message, runbook.remedy, runbook.reference())
}

/// A part that did not answer.
fn problem_of_refusal(refusal: &Refusal) -> ProblemStatus {
    problem(&refusal.object, &refusal.message, refusal.reason.remedy(), refusal.reason.runbook())
}

/// All of them.
#[must_use]
pub fn problems(facts: &Facts) -> Vec<ProblemStatus> {
    let mut found = Vec::new();
    let degraded = facts.degraded.trim();
    if !degraded.is_empty() {
        found.push(problem_of(&runbook::STATE_PARTITION, "state partition", degraded));
    }
    for mistake in of_configuration(&facts.node_config) {
        found.push(problem(&mistake.subject, &mistake.text, mistake.remedy, reference(mistake.runbook)));
    }
    // Their driver takes the file away with the change. A failed update stays failed, also while the agent is dead.
    for shown in parse(&facts.change_problems).into_iter().chain(parse(&facts.update_problems)) {
        found.push(problem(&shown.subject, &shown.text, &shown.remedy, reference(&shown.runbook)));
    }
    of_services(facts, &mut found);
    if facts.node_addresses.is_empty() {
        found.push(problem_of(&runbook::NO_ADDRESS, "network", "this machine has no address"));
    }
    of_mounts(facts, &mut found);
    for entry in boot::ledger(facts).into_iter().flat_map(|ledger| ledger.entries).filter(|entry| !entry.ok) {
        let remedy = "docs/reference/boot.md has the phases; `orlopctl get boot` has all of this boot";
        let subject = format!("boot phase {}", entry.phase);
        found.push(problem(&subject, &entry.detail, remedy, phase_reference(&entry.phase)));
    }
    found
}

fn of_services(facts: &Facts, found: &mut Vec<ProblemStatus>) {
    let up_s = facts.uptime.split('.').next().and_then(|seconds| seconds.trim().parse().ok());
    let (units, ending) = match &facts.services {
        Some(Ok(text)) => (services::parse(text), services::ending(text, up_s)),
        Some(Err(refusal)) => {
            found.push(problem_of_refusal(refusal));
            return;
        }
        None => return,
    };
    for (name, part) in services::ESSENTIAL {
        let why = match units.get(name) {
            Some(_) if ending.contains(name) => continue,
            Some(unit) if matches!(unit.active.as_str(), "active" | "activating" | "reloading") => continue,
            Some(unit) => services::words(unit),
            None => "systemd does not know it".to_owned(),
        };
        let remedy = if why == "masked" {
            "`orlopctl reboot`: what forbids its start is in /run, which is empty then".to_owned()
        } else {
            format!(
                "`orlopctl logs {name}` has its last words; correct its cause (`orlopctl config apply`), then `orlopctl restart {name}`"
            )
        };
        let message = format!("{part} does not run: {why}");
        found.push(problem(name, &message, &remedy, runbook::SERVICE_DOWN.reference()));
    }
    for (name, unit) in units.iter().filter(|(name, _)| ending.contains(*name)) {
        found.push(of_ending(name, unit));
    }
    let essential = |name: &str| services::ESSENTIAL.iter().any(|(unit, _)| *unit == name);
    for (name, unit) in units.iter().filter(|(name, unit)| unit.active == "failed" && !essential(name)) {
        let remedy = format!("`orlopctl logs {name}` has its last words");
        found.push(problem(name, &services::words(unit), &remedy, runbook::SERVICE_FAILED.reference()));
    }
    // `running; the reason why the node is not in its cluster` (docs/internals/architecture.md, "Agent").
    let agent = units.get(AGENT).filter(|unit| unit.active == "active");
    if let Some((_, sentence)) = agent.and_then(|unit| unit.status.split_once("; ")) {
        let remedy = "docs/runbooks/cluster.md has each refusal and its end";
        found.push(problem("cluster", sentence, remedy, runbook::CLUSTER.to_owned()));
    }
    // What a dead agent has left may be over.
    if agent.is_some() {
        for shown in parse(&facts.agent_problems) {
            found.push(problem(&shown.subject, &shown.text, &shown.remedy, reference(&shown.runbook)));
        }
    }
}

/// A service that ends again and again. systemd knows the reason until it has started the service again.
fn of_ending(name: &str, unit: &ServiceStatus) -> ProblemStatus {
    let last = match unit.result.as_str() {
        "" | "success" if unit.sub.starts_with("auto-restart") => "it ended without an error".to_owned(),
        "" | "success" => "it runs for now".to_owned(),
        "exit-code" => format!("the last time with exit status {}", unit.exit_status),
        result => format!("the last time because of: {result}"),
    };
    let message =
        format!("ends again and again: systemd has started it again {} times, {last}", unit.restarts);
    let remedy = format!(
        "`orlopctl logs {name}` has its last words; correct its cause (`orlopctl config apply`), or go back with `orlopctl rollback`"
    );
    problem(name, &message, &remedy, runbook::SERVICE_ENDS.reference())
}

fn of_mounts(facts: &Facts, found: &mut Vec<ProblemStatus>) {
    match &facts.mounts {
        Some(Ok(mounts)) => {
            for (place, mount) in mounts.iter().filter(|(_, mount)| is_short(mount)) {
                let message =
                    format!("{} MiB of {} MiB are free", mount.available_bytes >> 20, mount.size_bytes >> 20);
                found.push(problem_of(&runbook::FILE_SYSTEM_FULL, &format!("file system {place}"), &message));
            }
        }
        Some(Err(refusal)) => found.push(problem_of_refusal(refusal)),
        None => {}
    }
}

/// One that can be written and is nearly full. A file system without sizes could not be looked at.
fn is_short(mount: &MountStatus) -> bool {
    !mount.read_only && mount.available_bytes < mount.size_bytes / FREE_SHARE
}

pub(super) fn objects(facts: &Facts) -> NamedObjects {
    let of = |problem: ProblemStatus| (problem.subject.clone(), Status::Problem(problem));
    problems(facts).into_iter().map(of).collect()
}
