//! The files of docs/monitoring: rules, queries of the dashboard, and the metrics that an expression names.
//!
//! Why no crate parses the expressions: those that do (promql-parser) bring a generator of parsers along, promtool checks the syntax,
//! and here only names count.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use orlop_config::yaml;
use orlop_harness::workspace::workspace;
use serde_json::Value;

/// Words before a list of labels in brackets.
const BEFORE_LABELS: [&str; 6] = ["by", "group_left", "group_right", "ignoring", "on", "without"];
/// Words that are no metrics where no bracket follows.
const WORDS: [&str; 23] = [
    "and",
    "atan2",
    "avg",
    "bool",
    "bottomk",
    "count",
    "count_values",
    "end",
    "group",
    "inf",
    "limitk",
    "max",
    "min",
    "nan",
    "offset",
    "or",
    "quantile",
    "start",
    "stddev",
    "stdvar",
    "sum",
    "topk",
    "unless",
];

/// Where the files are.
pub(super) fn directory() -> PathBuf {
    workspace().join("docs/monitoring")
}

/// A rule.
pub(super) struct MonitoringRule {
    /// Name of the alert, or of the recorded series.
    pub(super) name: String,
    pub(super) is_alert: bool,
    pub(super) expr: String,
    /// Page and heading that say what to do; empty for a recorded series.
    pub(super) runbook: String,
}

fn read(name: &str) -> Result<String> {
    let path = directory().join(name);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The rules, in their order.
///
/// # Errors
/// The file is not there, or is no file of rules.
pub(super) fn rules() -> Result<Vec<MonitoringRule>> {
    let document = yaml::parse(&read("orlop.rules.yaml")?)?.value;
    let groups = document["groups"].as_array().context("no groups")?;
    let all = groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten());
    all.map(|rule| {
        let word = |value: &Value| value.as_str().map(str::to_owned);
        let (alert, record) = (word(&rule["alert"]), word(&rule["record"]));
        Ok(MonitoringRule {
            is_alert: alert.is_some(),
            name: alert.or(record).context("a rule without a name")?,
            expr: word(&rule["expr"]).context("a rule without an expression")?,
            runbook: word(&rule["annotations"]["runbook"]).unwrap_or_default(),
        })
    })
    .collect()
}

/// The queries of the dashboard's panels, and the metric that its list of nodes is from.
///
/// # Errors
/// The file is not there, or is no dashboard.
pub(super) fn dashboard() -> Result<Vec<String>> {
    let document: Value = serde_json::from_str(&read("orlop-nodes.json")?).context("orlop-nodes.json")?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut queries = Vec::new();
    for panel in list(&document["panels"]) {
        for target in list(&panel["targets"]) {
            queries.push(target["expr"].as_str().context("a target without a query")?.to_owned());
        }
    }
    for variable in list(&document["templating"]["list"]) {
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        if let Some(metric) = query.strip_prefix("label_values(").and_then(|rest| rest.split(',').next()) {
            queries.push(metric.to_owned());
        }
    }
    Ok(queries)
}

/// The metrics that an expression names.
pub(super) fn names(expr: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = expr;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.');
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        rest = match first {
            '"' | '\'' | '`' => after_text(rest, first),
            '{' => after(rest, '}'),
            '[' => after(rest, ']'),
            '#' => rest.split_once('\n').map_or("", |(_, rest)| rest),
            '0'..='9' | '.' => &rest[end..],
            // A variable of the dashboard.
            '$' => rest[1..].trim_start_matches(is_word),
            first if first.is_ascii_alphabetic() || matches!(first, '_' | ':') => {
                let (word, behind) = rest.split_at(end);
                let next = behind.trim_start();
                if next.starts_with('(') {
                    if BEFORE_LABELS.contains(&word) { after(next, ')') } else { behind }
                } else {
                    if !WORDS.contains(&word) && !BEFORE_LABELS.contains(&word) {
                        found.insert(word.to_owned());
                    }
                    behind
                }
            }
            first => &rest[first.len_utf8()..],
        };
    }
    found
}

/// Behind a text in quotation marks.
fn after_text(rest: &str, mark: char) -> &str {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == mark {
            return &rest[at + c.len_utf8()..];
        }
        if c == '\\' && mark != '`' {
            chars.next();
        }
    }
    ""
}

/// Behind the next `end` that is in no text.
fn after(rest: &str, end: char) -> &str {
    let mut rest = rest;
    while let Some(first) = rest.chars().next() {
        match first {
            '"' | '\'' | '`' => rest = after_text(rest, first),
            _ => rest = &rest[first.len_utf8()..],
        }
        if first == end {
            break;
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Families of this system (`agent_kubelet_api::node_metrics`, `own`).
    const OWN: [&str; 4] =
        ["orlop_boot_phase_seconds", "orlop_config_refused", "orlop_problem", "orlop_state_degraded"];

    #[test]
    fn expressions_name_their_metrics() {
        for (expr, expected) in [
            ("up", &["up"][..]),
            ("sum by (instance, le) (rate(a_bucket{x=\"b}\"}[5m]))", &["a_bucket"]),
            ("a * on (instance) group_left (node) max by (node) (b) > 1e9", &["a", "b"]),
            ("a / b < 0.4 and c == 0 # d\n unless on(x) e", &["a", "b", "c", "e"]),
            ("rate(a{i=~\"$instance\"}[$__rate_interval]) > bool $limit offset 5m", &["a"]),
            ("quantile:a:b{q='0.99'} >= 10", &["quantile:a:b"]),
            ("count(a) by (x) + count_values(\"v\", b)", &["a", "b"]),
            ("", &[]),
        ] {
            let found: Vec<String> = names(expr).into_iter().collect();
            assert_eq!(found, expected, "{expr}");
        }
    }

    /// A rule or a panel whose metric no node tells would never say anything.
    #[test]
    fn rules_and_dashboard_ask_for_families_that_there_are() {
        let golden = |name: &str| -> Value {
            let path = workspace().join("qemu-tests/golden").join(name);
            serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
        };
        let (system, kubelet) = (golden("node-exporter.json"), golden("metrics.json"));
        let rules = rules().unwrap();
        assert!(rules.len() > 20);
        let known = |name: &str| {
            let family = |name: &str| {
                system.get(name).is_some() || kubelet["/metrics"].get(name).is_some() || OWN.contains(&name)
            };
            let of_histogram = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(*end));
            family(name)
                || of_histogram.is_some_and(family)
                || rules.iter().any(|r| !r.is_alert && r.name == name)
        };
        let queries = dashboard().unwrap();
        assert!(queries.len() > 30);
        for query in rules.iter().map(|rule| rule.expr.clone()).chain(queries) {
            let names = names(&query);
            assert!(!names.is_empty(), "{query}");
            for name in names {
                assert!(known(&name), "{name} of {query}");
            }
        }
    }

    #[test]
    fn every_alert_has_its_section_and_every_section_its_alert() {
        let page = fs::read_to_string(directory().join("README.md")).unwrap();
        let headings: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        let rules = rules().unwrap();
        let alerts: BTreeSet<&str> =
            rules.iter().filter(|rule| rule.is_alert).map(|rule| rule.name.as_str()).collect();
        assert_eq!(alerts, headings);
        for rule in rules.iter().filter(|rule| rule.is_alert) {
            let expected = format!("docs/monitoring/README.md#{}", rule.name.to_lowercase());
            assert_eq!(rule.runbook, expected);
        }
    }
}
