//! Sources in rising precedence to one effective configuration.
//!
//! A source with a mistake is refused whole and said so; the others count. Merging is RFC 7386, so a later source
//! may take back with null what an earlier one set. Invariants: the result is always valid; every key of it has a
//! source; no message, `Debug` or rendered text holds a secret.

use super::derive;
use super::overlay;
use super::provenance::{APPLIANCE, Provenance};
use super::static_pod::StaticPod;
use super::types::{API_VERSION, KIND, NodeConfig};
use super::validate;
use crate::field::{self, Describe, Kind, Lines, NoLines};
use crate::kubelet::{self, KubeletConfiguration};
use crate::merge;
use crate::problem::Problem;
use crate::yaml;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Name in provenance of what `orlop.set=` sets.
const CMDLINE: &str = "cmdline";

/// One document as found.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    /// Name in provenance: `image`, `esp`, `drive`, `fw-cfg`, `smbios`, `cmdline`.
    pub name: String,
    /// Where exactly, for messages: `ESP:/orlop/node-config.yaml`.
    pub origin: String,
    /// YAML or JSON; may hold a token.
    pub text: String,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.origin, self.text.len())
    }
}

/// What counts, where it came from, and what was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// The configuration; valid.
    pub config: NodeConfig,
    /// The agent's configuration that follows; valid.
    pub kubelet: KubeletConfiguration,
    /// Dotted path of every leaf of `config` and of `kubelet` (below `kubelet.`) to its source's name.
    pub provenance: BTreeMap<String, String>,
    /// Origin of every source that counts, in rising precedence.
    pub accepted: Vec<String>,
    /// What was refused, and what cannot be done.
    pub problems: Vec<Problem>,
}

/// State of the fold over the sources.
#[derive(Debug, Default)]
struct Fold {
    /// All patches so far, without defaults.
    merged: Value,
    config: NodeConfig,
    provenance: Provenance,
    accepted: Vec<String>,
    problems: Vec<Problem>,
}

/// Merges sources in rising precedence, then the values of `orlop.set=` in order.
#[must_use]
pub fn load(sources: &[Source], sets: &[String]) -> Effective {
    let mut fold = Fold { merged: Value::Object(Map::new()), ..Fold::default() };
    for source in sources {
        if let Err(problems) = fold.document(source) {
            fold.problems.extend(problems);
        }
    }
    for set in sets {
        if let Err(problems) = fold.set(set) {
            fold.problems.extend(problems);
        }
    }
    fold.finish()
}

impl Fold {
    fn document(&mut self, source: &Source) -> Result<(), Vec<Problem>> {
        let problem = |line: Option<usize>, path: &str, value: Option<String>, reason: String| {
            vec![Problem { source: source.origin.clone(), line, path: path.to_owned(), value, reason }]
        };
        let document = yaml::parse(&source.text).map_err(|e| problem(Some(e.line), "", None, e.reason))?;
        if document.value.is_null() {
            return Err(problem(
                None,
                "",
                None,
                "is empty: remove it, or give it apiVersion and kind".to_owned(),
            ));
        }
        for (key, want) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            let found = document.value.get(key);
            if found.and_then(Value::as_str) != Some(want) {
                let reason = format!("must be {want}");
                return Err(problem(document.line(key), key, found.map(field::shown), reason));
            }
        }
        self.apply(document.value.clone(), &source.name, &source.origin, &document)?;
        self.accepted.push(source.origin.clone());
        Ok(())
    }

    fn set(&mut self, text: &str) -> Result<(), Vec<Problem>> {
        let set = overlay::parse(text).map_err(|(path, reason)| {
            vec![Problem { source: "orlop.set".to_owned(), path, reason, ..Problem::default() }]
        })?;
        self.apply(set.patch, CMDLINE, "orlop.set", &NoLines)?;
        self.accepted.push(format!("orlop.set={}", set.path));
        Ok(())
    }

    /// Merges a patch if the result is valid, else leaves everything as it was.
    fn apply(
        &mut self,
        patch: Value,
        name: &str,
        origin: &str,
        lines: &dyn Lines,
    ) -> Result<(), Vec<Problem>> {
        let mut checked = patch.clone();
        field::strip_unset(&mut checked, NodeConfig::KIND);
        let problems = field::check(&checked, NodeConfig::KIND, origin, lines, true);
        if !problems.is_empty() {
            let more = self.further_mistakes(patch, origin, lines);
            return Err(problems.into_iter().chain(more).collect());
        }
        let mut merged = self.merged.clone();
        merge::apply(&mut merged, patch.clone());
        let config = typed(&merged, origin).map_err(|p| vec![p])?;
        let problems = validate::validate(&config, origin, lines);
        if !problems.is_empty() {
            return Err(problems);
        }
        self.merged = merged;
        self.config = config;
        self.provenance.record(&patch, name);
        Ok(())
    }

    /// Broken rules of a patch with wrong shapes, as far as its other values show them: a person corrects all mistakes of a
    /// document at once.
    fn further_mistakes(&self, mut patch: Value, origin: &str, lines: &dyn Lines) -> Vec<Problem> {
        let lost = field::keep_fitting(&mut patch, NodeConfig::KIND);
        let mut merged = self.merged.clone();
        merge::apply(&mut merged, patch);
        let Ok(config) = typed(&merged, origin) else { return Vec::new() };
        let mut problems = validate::validate(&config, origin, lines);
        problems.retain(|problem| !lost.iter().any(|lost| may_follow(&problem.path, lost)));
        problems
    }

    fn finish(mut self) -> Effective {
        let (kubelet, problems) = derive::kubelet(&self.config, "kubelet");
        self.problems.extend(problems);
        self.problems.extend(validate::outlook(&self.config));
        let mut document = serde_json::to_value(&self.config).unwrap_or_default();
        if let Value::Object(map) = &mut document {
            map.remove("kubelet");
        }
        let mut provenance = self.provenance.of(&document, "");
        let mut layers = Provenance::default();
        layers.record(&json!({ "kubelet": derive::appliance(&self.config) }), APPLIANCE);
        let kubelet_document = kubelet::to_value(&kubelet);
        provenance.extend(layers.of(&kubelet_document, "kubelet"));
        // What a source set wins over the appliance's own.
        for (path, source) in self.provenance.of(&kubelet_document, "kubelet") {
            if source != super::provenance::DEFAULT {
                provenance.insert(path, source);
            }
        }
        if let Some(source) = provenance.get("taints").filter(|_| !self.config.taints.is_empty()).cloned() {
            provenance.insert("kubelet.registerWithTaints".to_owned(), source);
        }
        let Fold { config, accepted, problems, .. } = self;
        Effective { config, kubelet, provenance, accepted, problems }
    }
}

/// Whether a broken rule at `path` may be there only because the value at `lost` is not. Fields of `kubelet` and of `join`
/// depend on each other; elsewhere a rule concerns its own key.
fn may_follow(path: &str, lost: &str) -> bool {
    let is_below = |part: &str| {
        let inside = |path: &str| {
            path.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        inside(path) && inside(lost)
    };
    is_below("kubelet") || is_below("join") || path.starts_with(lost) || lost.starts_with(path)
}

/// The typed form of all patches, defaults applied.
fn typed(merged: &Value, origin: &str) -> Result<NodeConfig, Problem> {
    let mut value = merged.clone();
    field::strip_unset(&mut value, NodeConfig::KIND);
    serde_json::from_value(value).map_err(|e| Problem {
        source: origin.to_owned(),
        reason: e.to_string(),
        ..Problem::default()
    })
}

impl Effective {
    /// `/run/orlop/node-config.json`: the configuration as people may see it, the source of every key, the accepted sources, and the
    /// problems.
    #[must_use]
    pub fn document(&self) -> String {
        let document = json!({
            "config": self.shown(),
            "provenance": self.provenance,
            "accepted": self.accepted,
            "problems": self.problems,
        });
        let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
        text.push('\n');
        text
    }

    /// What a TPM measures of it, one line of JSON: `config` of [`Effective::document`], with the static pods but for the values of
    /// their environment and HTTP headers. A digest of a short secret would give the secret away.
    #[must_use]
    pub fn measured(&self) -> String {
        let pods = self.config.static_pods.iter().map(StaticPod::without_values).collect();
        self.shown_with(pods).to_string()
    }

    /// The configuration as people may see it: without secrets, without the texts of static pods and the settings of plugins, the
    /// agent's configuration complete below `kubelet`.
    pub(super) fn shown(&self) -> Value {
        self.shown_with(self.config.static_pods.iter().map(|p| json!({ "name": p.name() })).collect())
    }

    /// The same with other texts of the static pods.
    fn shown_with(&self, static_pods: Value) -> Value {
        let mut config = serde_json::to_value(&self.config).unwrap_or_default();
        if let Value::Object(map) = &mut config {
            map.insert("staticPods".to_owned(), static_pods);
            let providers = &self.config.registries.credential_providers;
            let providers = providers.iter().map(|p| json!({ "name": p.name() })).collect();
            map["registries"]["credentialProviders"] = providers;
            let kubelet = kubelet::to_value(&self.kubelet);
            map.insert("kubelet".to_owned(), kubelet);
        }
        mask(&mut config, NodeConfig::KIND);
        config
    }
}

/// Puts [`super::MASK`] in the place of every secret that is there.
fn mask(value: &mut Value, kind: &Kind) {
    match (kind, value) {
        (Kind::Object(fields), Value::Object(map)) => {
            for (key, value) in map.iter_mut() {
                let Some(field) = fields.iter().find(|f| f.name == key) else { continue };
                if field.secret && !matches!(value, Value::Object(m) if m.is_empty()) {
                    *value = json!(super::MASK);
                } else {
                    mask(value, field.kind);
                }
            }
        }
        (Kind::List(inner), Value::Array(list)) => list.iter_mut().for_each(|v| mask(v, inner)),
        (Kind::Map(inner), Value::Object(map)) => map.values_mut().for_each(|v| mask(v, inner)),
        _ => {}
    }
}
