//! Rules of KubeletConfiguration beyond the shape of single fields.
//!
//! In: a typed configuration. Out: every broken rule, so that one reading mends them all.
//! Invariant: a configuration loaded from text that sets nothing has no problem.
//! Upstream term: `ValidateKubeletConfiguration`, plus what upstream only finds out while starting.

mod images;
mod managers;
mod policies;
mod resources;
mod serving;

use super::gates::FeatureGates;
use super::types::KubeletConfiguration;
use super::{eviction, load};
use crate::field::{self, Describe, NoLines};
use crate::problem::Problem;
use serde_json::Value;

/// Collects broken rules.
struct Rules<'a> {
    config: &'a KubeletConfiguration,
    gates: FeatureGates,
    source: &'a str,
    problems: Vec<Problem>,
}

impl Rules<'_> {
    /// `value` is not shown when it is null.
    fn broken(&mut self, path: &str, value: impl Into<Value>, reason: impl Into<String>) {
        let value: Value = value.into();
        self.problems.push(Problem {
            source: self.source.to_owned(),
            line: None,
            path: path.to_owned(),
            value: (!value.is_null()).then(|| field::shown(&value)),
            reason: reason.into(),
        });
    }

    /// A rule: `ok`, or broken.
    fn rule(&mut self, ok: bool, path: &str, value: impl Into<Value>, reason: &str) {
        if !ok {
            self.broken(path, value, reason);
        }
    }

    fn gate(&self, name: &str) -> bool {
        self.gates.enabled(name)
    }
}

/// Everything wrong with `config`; `source` names where it came from.
#[must_use]
pub fn validate(config: &KubeletConfiguration, source: &str) -> Vec<Problem> {
    let value = load::to_value(config);
    let problems = field::check(&value, KubeletConfiguration::KIND, source, &NoLines, false);
    let mut rules = Rules { config, gates: FeatureGates::default(), source, problems };
    match FeatureGates::resolve(&config.feature_gates) {
        Ok(gates) => rules.gates = gates,
        Err(problems) => {
            for problem in problems {
                rules.broken(&problem.path, Value::Null, problem.reason);
            }
            rules.gates = FeatureGates::lenient(&value);
        }
    }
    rules.serving();
    rules.images();
    rules.policies();
    rules.shutdown_and_restart();
    rules.resources();
    rules.managers();
    rules.evictions();
    rules.problems
}

/// The check that needs the host: whether its cgroup version fits.
#[must_use]
pub fn validate_host(config: &KubeletConfiguration, cgroup_v2: bool, source: &str) -> Vec<Problem> {
    let mut rules = Rules { config, gates: FeatureGates::default(), source, problems: Vec::new() };
    if !cgroup_v2 {
        rules.rule(
            !config.fail_cgroup_v1,
            "failCgroupV1",
            true,
            "refuses this host, which has cgroup v1: boot it with cgroup v2, or set this to false",
        );
        rules.rule(
            config.single_process_oom_kill != Some(false),
            "singleProcessOOMKill",
            false,
            "is not possible with cgroup v1: leave it out, or set it to true",
        );
    }
    rules.problems
}

impl Rules<'_> {
    fn evictions(&mut self) {
        for problem in eviction::thresholds(self.config).err().unwrap_or_default() {
            self.broken(&problem.path, problem.value.map_or(Value::Null, Value::String), problem.reason);
        }
    }
}

#[cfg(test)]
mod tests;
