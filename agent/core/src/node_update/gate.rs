//! The gate: is the node as good as before?
//!
//! In: the rule of each check, the baseline, the facts of now. Out: the checks that are red, causes first, and whose fault they
//! seem to be. Invariants: a check that was red before the update never fails it, unless it is required; equal facts are always
//! green; the API server's absence alone is never the version's fault.

use std::collections::BTreeMap;

use super::check::{CheckName, CheckSeen, FailedCheck, GateFacts, GatePod, TrialFault};

/// When a check counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckRule {
    /// It must pass.
    Required,
    /// It must pass if it passed before.
    AsBefore,
    /// It does not count.
    Off,
}

/// The rules of the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateRules {
    rules: BTreeMap<CheckName, CheckRule>,
}

impl Default for GateRules {
    /// What every node needs is required; everything else is as before.
    fn default() -> GateRules {
        let required = [
            CheckName::StatePartition,
            CheckName::Integrity,
            CheckName::Agent,
            CheckName::Runtime,
            CheckName::ProbePod,
        ];
        let rule = |check: CheckName| {
            if required.contains(&check) { CheckRule::Required } else { CheckRule::AsBefore }
        };
        GateRules { rules: CheckName::ALL.into_iter().map(|check| (check, rule(check))).collect() }
    }
}

impl GateRules {
    /// With another rule for a check.
    #[must_use]
    pub fn with(mut self, check: CheckName, rule: CheckRule) -> GateRules {
        self.rules.insert(check, rule);
        self
    }

    fn rule(&self, check: CheckName) -> CheckRule {
        self.rules.get(&check).copied().unwrap_or(CheckRule::AsBefore)
    }
}

/// A check that counts and does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedCheck {
    /// Its name.
    pub check: CheckName,
    /// Why, for people.
    pub words: String,
}

/// What the gate says at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateVerdict {
    /// All checks that count pass.
    Green,
    /// This one does not, and it names the failure.
    Red {
        /// The check, and whose fault it seems to be.
        failed: FailedCheck,
        /// Why, for people.
        words: String,
    },
}

/// The checks that are red now, causes first.
#[must_use]
pub fn gate(rules: &GateRules, baseline: &GateFacts, now: &GateFacts) -> Vec<RedCheck> {
    let red = |check: CheckName| {
        let words = match (rules.rule(check), check) {
            (CheckRule::Off, _) => None,
            (rule, CheckName::StaticPods) => {
                let required =
                    if rule == CheckRule::Required { &now.static_pods } else { &baseline.static_pods };
                red_pod(required, rule, &now.static_pods, true)
            }
            (rule, CheckName::ApiPods) => red_api_pod(baseline, now, rule),
            (CheckRule::Required, _) => red_check(now, check),
            (CheckRule::AsBefore, _) if baseline.is_green(check) == Some(true) => red_check(now, check),
            (CheckRule::AsBefore, _) => None,
        };
        words.map(|words| RedCheck { check, words })
    };
    CheckName::ALL.into_iter().filter_map(red).collect()
}

fn red_check(now: &GateFacts, check: CheckName) -> Option<String> {
    match now.checks.get(&check) {
        Some(CheckSeen::Green) => None,
        Some(CheckSeen::Red(words)) => Some(words.clone()),
        // Only the guard sees a silent agent; whoever asks here is the agent.
        None if check == CheckName::Agent => None,
        None => Some("it was not checked yet".to_owned()),
    }
}

/// The first pod of `before` that was ready (or is required to be) and is not ready now.
fn red_pod(
    before: &BTreeMap<String, GatePod>,
    rule: CheckRule,
    now: &BTreeMap<String, GatePod>,
    must_exist: bool,
) -> Option<String> {
    let counts = |pod: &&GatePod| rule == CheckRule::Required || pod.seen == CheckSeen::Green;
    before.iter().filter(|(_, pod)| counts(pod)).find_map(|(uid, pod)| match now.get(uid) {
        Some(GatePod { seen: CheckSeen::Green, .. }) => None,
        Some(GatePod { name, seen: CheckSeen::Red(words) }) => {
            Some(format!("pod {name} is not ready: {words}"))
        }
        None if must_exist => Some(format!("pod {} is gone", pod.name)),
        None => None,
    })
}

fn red_api_pod(baseline: &GateFacts, now: &GateFacts, rule: CheckRule) -> Option<String> {
    let before = baseline.api_pods.as_ref()?;
    match &now.api_pods {
        Some(pods) => red_pod(if rule == CheckRule::Required { pods } else { before }, rule, pods, false),
        None if before.values().any(|pod| pod.seen == CheckSeen::Green) => {
            Some("the API server has not listed the pods of this node yet".to_owned())
        }
        None => None,
    }
}

/// Names the check that fails the trial, and judges whose fault it seems to be.
#[must_use]
pub fn verdict(red: &[RedCheck], baseline: &GateFacts, now: &GateFacts) -> GateVerdict {
    let is_red = |check: CheckName| red.iter().any(|red| red.check == check);
    let trust = match (&now.api_certificate, &baseline.api_certificate) {
        // The certificate of before, and this version does not trust it.
        (Some(shown), Some(before)) if shown == before => TrialFault::Slot,
        _ => TrialFault::Cluster,
    };
    // The gateway answers, and nothing beyond it does.
    let beyond = if is_red(CheckName::Api) && is_red(CheckName::Dns) {
        TrialFault::Unclear
    } else {
        TrialFault::Cluster
    };
    let api_is_away = [CheckName::Api, CheckName::ApiTrust, CheckName::ApiIdentity].into_iter().any(is_red);
    let fault = |check: CheckName| match check {
        CheckName::Dns | CheckName::Clock | CheckName::Api => Some(beyond),
        CheckName::ApiTrust => Some(trust),
        CheckName::ApiIdentity => Some(TrialFault::Cluster),
        // Consequences of what is named already. Most pod networks are set up by pods of the API.
        CheckName::ProbePod | CheckName::Lease | CheckName::NodeReady | CheckName::ApiPods if api_is_away => {
            None
        }
        _ => Some(TrialFault::Slot),
    };
    let judged = |red: &RedCheck| {
        let failed = FailedCheck { check: red.check, fault: fault(red.check)? };
        Some(GateVerdict::Red { failed, words: red.words.clone() })
    };
    let of_slot = red.iter().filter(|red| fault(red.check) == Some(TrialFault::Slot));
    let others = red.iter().filter(|red| fault(red.check) != Some(TrialFault::Slot));
    // The API server's absence is named before its consequences, and before a name server's.
    let api_first = others.clone().filter(|red| red.check == CheckName::Api);
    of_slot.chain(api_first).chain(others).find_map(judged).unwrap_or(GateVerdict::Green)
}
