//! What only this system has: the boot's phases, refused values of its configuration, its problems.

use std::collections::BTreeMap;

use orlop_config::ledger::Ledger;

use super::{KernelFiles, NodeFacts, flag, single};
use crate::stats::exposition::{Exposition, Kind};

/// Phases of a boot that are shown.
const PHASES_MAX: usize = 64;

pub(super) fn orlop<F: KernelFiles>(files: &F, facts: &NodeFacts, out: &mut Exposition) -> bool {
    let ledger = files.text("run/orlop/boot.json").and_then(|text| Ledger::parse(&text).ok());
    // A phase that was stamped twice has its last time.
    let phases: BTreeMap<String, u64> =
        ledger.unwrap_or_default().entries.into_iter().map(|entry| (entry.phase, entry.at_ms)).collect();
    // Milliseconds of one boot: exact.
    #[allow(clippy::cast_precision_loss)]
    let samples =
        phases.iter().take(PHASES_MAX).map(|(phase, ms)| (vec![("phase", phase.as_str())], *ms as f64 / 1e3));
    let help = "When a phase of the boot ended, seconds after the kernel's start.";
    out.family(("orlop_boot_phase_seconds", Kind::Gauge, help), samples, None);
    let config = files.text("run/orlop/node-config.json");
    let config = config.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    let refused = config.as_ref().and_then(|document| document["problems"].as_array()).map(Vec::len);
    // A document has far fewer values than 2^32.
    let refused = refused.map(|n| f64::from(u32::try_from(n).unwrap_or(u32::MAX)));
    let help = "Values of the node's configuration that were refused.";
    single(out, ("orlop_config_refused", Kind::Gauge, help), refused);
    let problems = facts.problems.iter().map(|(part, has)| (vec![("part", *part)], flag(*has)));
    let help = "Whether a part of the node has a problem with its cluster; the console has the sentence.";
    out.family(("orlop_problem", Kind::Gauge, help), problems, None);
    let degraded = config.is_some().then(|| flag(files.text("run/orlop/degraded").is_some()));
    let help = "Whether the node runs without its state partition.";
    single(out, ("orlop_state_degraded", Kind::Gauge, help), degraded);
    !facts.problems.is_empty() || config.is_some()
}
