//! What is wrong with the node, in the order in which a person should read it. Pure.
//!
//! In: a snapshot. Out: problems with remedies that are possible on a node without a shell. Invariant: a source that does not answer is
//! a problem itself.

use agent_core::console::problem::{of_configuration, parse};
use agent_core::console::text::clean;
use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{MountStatus, ProblemStatus};

use super::node::AGENT;
use super::{NamedObjects, boot, services};
use crate::facts::Facts;

/// Where the documentation has more.
const RUNBOOK: &str = "docs/node-api.md#problems";
/// Longest texts, characters.
const TEXT_CHARS_MAX: usize = 600;
/// A file system with less than this share free is a problem: 1 in 20.
const FREE_SHARE: u64 = 20;

/// A problem.
fn problem(subject: &str, message: &str, remedy: &str) -> ProblemStatus {
    ProblemStatus {
        subject: clean(subject, TEXT_CHARS_MAX),
        message: clean(message, TEXT_CHARS_MAX),
        remedy: remedy.to_owned(),
        runbook: RUNBOOK.to_owned(),
    }
}

/// All of them.
#[must_use]
pub fn problems(facts: &Facts) -> Vec<ProblemStatus> {
    let mut found = Vec::new();
    let degraded = facts.degraded.trim();
    if !degraded.is_empty() {
        let remedy = "nothing is kept over a reboot; docs/boot.md says what to do about the state partition";
        found.push(problem("state partition", degraded, remedy));
    }
    for mistake in of_configuration(&facts.node_config) {
        found.push(problem(&mistake.subject, &mistake.text, mistake.remedy));
    }
    of_services(facts, &mut found);
    if facts.node_addresses.is_empty() {
        let remedy = "check cables, DHCP, and `network` of the NodeConfig; `orlopctl get links,addresses`";
        found.push(problem("network", "this machine has no address", remedy));
    }
    of_mounts(facts, &mut found);
    for entry in boot::ledger(facts).into_iter().flat_map(|ledger| ledger.entries).filter(|entry| !entry.ok) {
        let remedy = "docs/boot.md has the phases; `orlopctl get boot` has all of this boot";
        found.push(problem(&format!("boot phase {}", entry.phase), &entry.detail, remedy));
    }
    found
}

fn of_services(facts: &Facts, found: &mut Vec<ProblemStatus>) {
    let units = match &facts.services {
        Some(Ok(text)) => services::parse(text),
        Some(Err(refusal)) => {
            found.push(problem(&refusal.object, &refusal.message, refusal.reason.remedy()));
            return;
        }
        None => return,
    };
    for (name, part) in services::ESSENTIAL {
        let why = match units.get(name) {
            Some(unit) if matches!(unit.active.as_str(), "active" | "activating" | "reloading") => continue,
            Some(unit) => services::words(unit),
            None => "systemd does not know it".to_owned(),
        };
        let remedy = format!("`orlopctl logs {name}` has its last words; a reboot starts it again");
        found.push(problem(name, &format!("{part} does not run: {why}"), &remedy));
    }
    let essential = |name: &str| services::ESSENTIAL.iter().any(|(unit, _)| *unit == name);
    for (name, unit) in units.iter().filter(|(name, unit)| unit.active == "failed" && !essential(name)) {
        let remedy = format!("`orlopctl logs {name}` has its last words");
        found.push(problem(name, &services::words(unit), &remedy));
    }
    // `running; the reason why the node is not in its cluster` (docs/architecture.md, "Agent").
    let agent = units.get(AGENT).filter(|unit| unit.active == "active");
    if let Some((_, sentence)) = agent.and_then(|unit| unit.status.split_once("; ")) {
        found.push(problem("cluster", sentence, "docs/join.md has each refusal and its end"));
    }
    // What a dead agent has left may be over.
    if agent.is_some() {
        for shown in parse(&facts.agent_problems) {
            found.push(problem(&shown.subject, &shown.text, &shown.remedy));
        }
    }
}

fn of_mounts(facts: &Facts, found: &mut Vec<ProblemStatus>) {
    match &facts.mounts {
        Some(Ok(mounts)) => {
            for (place, mount) in mounts.iter().filter(|(_, mount)| is_short(mount)) {
                let message =
                    format!("{} MiB of {} MiB are free", mount.available_bytes >> 20, mount.size_bytes >> 20);
                let remedy =
                    "the agent removes unused images by itself (docs/eviction.md); look at what pods write";
                found.push(problem(&format!("file system {place}"), &message, remedy));
            }
        }
        Some(Err(refusal)) => found.push(problem(&refusal.object, &refusal.message, refusal.reason.remedy())),
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
