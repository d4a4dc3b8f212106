//! Feature gates as one table, resolved once at start.
//!
//! In: the `featureGates` map. Out: [`FeatureGates`], asked by name. Unknown gates, locked gates set otherwise and
//! gates without what they need are errors. Upstream term: `featuregate.MutableVersionedFeatureGate`.

use super::KubeletConfiguration;
use super::gate_table::GATES;
use crate::path;
use serde_json::Value;
use std::collections::BTreeMap;

/// How far a feature has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off unless asked for.
    Alpha,
    /// Mostly on.
    Beta,
    /// On, mostly for good.
    Ga,
    /// On its way out.
    Deprecated,
}

/// One gate of v1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Name in `featureGates`.
    pub name: &'static str,
    /// Stage in v1.36.
    pub stage: Stage,
    /// Value when not set.
    pub default: bool,
    /// Cannot differ from the default.
    pub locked: bool,
    /// Gates that must be on when this one is.
    pub needs: &'static [&'static str],
}

/// Switches every alpha gate that is not set itself.
const ALL_ALPHA: &str = "AllAlpha";
/// Switches every beta gate that is not set itself.
const ALL_BETA: &str = "AllBeta";

/// A wrong entry of `featureGates`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateProblem {
    /// Dotted path.
    pub path: String,
    /// What is allowed.
    pub reason: String,
}

/// Every gate's value, decided at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    set: BTreeMap<String, bool>,
}

/// The gate of that name.
#[must_use]
pub fn gate(name: &str) -> Option<&'static Gate> {
    GATES.binary_search_by(|g| g.name.cmp(name)).ok().map(|i| &GATES[i])
}

impl FeatureGates {
    /// Those of a configuration that was validated; of another one, which may have mistakes in them, the defaults.
    #[must_use]
    pub fn of(kubelet: &KubeletConfiguration) -> FeatureGates {
        FeatureGates::resolve(&kubelet.feature_gates).unwrap_or_default()
    }

    /// From a configuration's map.
    ///
    /// # Errors
    /// Every unknown gate, every locked gate set otherwise, every gate that is on without what it needs.
    pub fn resolve(map: &BTreeMap<String, bool>) -> Result<FeatureGates, Vec<GateProblem>> {
        let mut problems = Vec::new();
        for (name, value) in map {
            let Some(reason) = wrong(name, *value) else { continue };
            problems.push(GateProblem { path: path::child("featureGates", name), reason });
        }
        let gates = FeatureGates { set: map.clone() };
        for gate in GATES.iter().filter(|g| gates.enabled(g.name)) {
            for need in gate.needs.iter().filter(|n| !gates.enabled(n)) {
                let reason =
                    format!("needs feature gate {need}, which is off: switch it on, or {} off", gate.name);
                problems.push(GateProblem { path: path::child("featureGates", gate.name), reason });
            }
        }
        if problems.is_empty() { Ok(gates) } else { Err(problems) }
    }

    /// From a JSON document that is not validated yet; what is wrong in it is left for validation to say.
    #[must_use]
    pub fn lenient(document: &Value) -> FeatureGates {
        let map = document.get("featureGates").and_then(Value::as_object);
        let set = map.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), v.as_bool()?))).collect();
        FeatureGates { set }
    }

    /// Whether the gate is on. A name that is no gate is off.
    #[must_use]
    pub fn enabled(&self, name: &str) -> bool {
        let Some(gate) = gate(name) else { return false };
        if gate.locked {
            return gate.default;
        }
        if let Some(value) = self.set.get(name) {
            return *value;
        }
        let all = match gate.stage {
            Stage::Alpha => self.set.get(ALL_ALPHA),
            Stage::Beta => self.set.get(ALL_BETA),
            Stage::Ga | Stage::Deprecated => None,
        };
        all.copied().unwrap_or(gate.default)
    }

    /// Every gate with its value, for `/metrics` and `/configz`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Gate, bool)> + '_ {
        GATES.iter().map(|gate| (gate, self.enabled(gate.name)))
    }
}

fn wrong(name: &str, value: bool) -> Option<String> {
    if name == ALL_ALPHA || name == ALL_BETA {
        return None;
    }
    match gate(name) {
        None => Some("is an unknown feature gate of v1.36".to_owned()),
        Some(gate) if gate.locked && gate.default != value => {
            Some(format!("must be {}: this feature gate is locked in v1.36", gate.default))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests;
