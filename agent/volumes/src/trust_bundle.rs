//! Trust anchors of ClusterTrustBundles: the bundles that a projected volume selects, and their file.
//!
//! In: every bundle of the cluster, by name; a source's choice. Out: PEM, each certificate once, or
//! upstream's message about a missing bundle. The order has no meaning: it differs from pod to pod, so that
//! no program relies on it, and is constant for one pod, so that a start of the agent writes nothing
//! (upstream shuffles every five minutes). Upstream: pkg/kubelet/clustertrustbundle.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::objects::Bundle;
use agent_types::pem;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The feature gate.
pub const GATE: &str = "ClusterTrustBundleProjection";
/// Longest text of a selector, bytes.
const SELECTOR_MAX: usize = 100 * 1024;

/// Which bundles a source asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Choice {
    /// The one of this name.
    Named(String),
    /// Those of a signer.
    Signed {
        /// `signerName`.
        signer: String,
        /// What their labels must fulfil; `None` fulfils nothing.
        by: Option<Vec<Requirement>>,
    },
}

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// What is asked of it.
    pub is: LabelOperator,
}

/// What is asked of a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelOperator {
    /// It has one of these values.
    In(BTreeSet<String>),
    /// It is not there or has another value.
    NotIn(BTreeSet<String>),
    /// It is there.
    There,
    /// It is not there.
    Absent,
}

impl Requirement {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match &self.is {
            LabelOperator::In(values) => value.is_some_and(|v| values.contains(v)),
            LabelOperator::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
            LabelOperator::There => value.is_some(),
            LabelOperator::Absent => value.is_none(),
        }
    }

    /// Bytes of its text: `key in (a,b)`, `key notin (a)`, `key`, `!key`.
    fn text_len(&self) -> usize {
        let list = |values: &BTreeSet<String>| values.iter().map(|v| v.len() + 1).sum::<usize>() + 1;
        self.key.len()
            + match &self.is {
                LabelOperator::In(values) => " in ".len() + list(values),
                LabelOperator::NotIn(values) => " notin ".len() + list(values),
                LabelOperator::There => 0,
                LabelOperator::Absent => 1,
            }
    }
}

/// What a source asks for.
///
/// # Errors
/// It asks for nothing, or its selector is none.
pub fn choice(source: &ClusterTrustBundleProjection) -> Result<Choice, String> {
    if let Some(name) = &source.name {
        return Ok(Choice::Named(name.clone()));
    }
    let Some(signer) = &source.signer_name else {
        return Err("ClusterTrustBundle projection requires either name or signerName to be set".to_owned());
    };
    let by = source.label_selector.as_ref().map(requirements).transpose()?;
    let length = by.iter().flatten().map(|r| r.text_len() + 1).sum::<usize>().saturating_sub(1);
    if length > SELECTOR_MAX {
        return Err(format!("label selector length ({length}) is larger than {SELECTOR_MAX}"));
    }
    Ok(Choice::Signed { signer: signer.clone(), by })
}

fn requirements(selector: &LabelSelector) -> Result<Vec<Requirement>, String> {
    let exact = selector.match_labels.iter().flatten().map(|(key, value)| {
        Ok(Requirement { key: key.clone(), is: LabelOperator::In(BTreeSet::from([value.clone()])) })
    });
    let expressions = selector.match_expressions.iter().flatten().map(|e| {
        let values = || e.values.iter().flatten().cloned().collect();
        let is = match e.operator.as_str() {
            "In" => LabelOperator::In(values()),
            "NotIn" => LabelOperator::NotIn(values()),
            "Exists" => LabelOperator::There,
            "DoesNotExist" => LabelOperator::Absent,
            other => {
                let why = format!("{other:?} is not a valid label selector operator");
                return Err(format!("while parsing label selector: {why}"));
            }
        };
        Ok(Requirement { key: e.key.clone(), is })
    });
    exact.chain(expressions).collect()
}

/// The file of what `choice` names among `all` bundles, for the pod with this UID.
///
/// # Errors
/// Nothing is there, and it is not `optional`.
pub fn anchors(
    all: &BTreeMap<String, Bundle>,
    choice: &Choice,
    optional: bool,
    uid: &str,
) -> Result<Vec<u8>, String> {
    let (chosen, missing): (Vec<&Bundle>, String) = match choice {
        Choice::Named(name) => {
            let what = format!("clustertrustbundle.certificates.k8s.io {name:?} not found");
            (all.get(name).into_iter().collect(), format!("while getting ClusterTrustBundle: {what}"))
        }
        Choice::Signed { signer, by } => {
            let fits = |b: &&Bundle| {
                b.signer == *signer && by.as_ref().is_some_and(|all| all.iter().all(|r| r.holds(&b.labels)))
            };
            let what = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
            (all.values().filter(fits).collect(), what.to_owned())
        }
    };
    if chosen.is_empty() {
        return if optional { Ok(Vec::new()) } else { Err(missing) };
    }
    let certificates: BTreeSet<Vec<u8>> = chosen.iter().flat_map(|b| pem::blocks(&b.anchors)).collect();
    let place = |der: &[u8]| Sha256::new().chain_update(uid).chain_update(der).finalize();
    let mut certificates: Vec<_> = certificates.into_iter().map(|der| (place(&der), der)).collect();
    certificates.sort();
    Ok(certificates.iter().flat_map(|(_, der)| pem::certificate(der).into_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn source(of: Value) -> Result<Choice, String> {
        choice(&serde_json::from_value(of).unwrap())
    }

    fn bundle(signer: &str, labels: Value, certificates: &[&str]) -> Bundle {
        let anchors = certificates.iter().map(|c| pem::certificate(c.as_bytes()) + "between\n").collect();
        Bundle { signer: signer.to_owned(), labels: serde_json::from_value(labels).unwrap(), anchors }
    }

    fn all() -> BTreeMap<String, Bundle> {
        [
            ("plain", bundle("", json!({"a": "1"}), &["one", "two", "one"])),
            ("s:1", bundle("s", json!({"a": "1"}), &["three"])),
            ("s:2", bundle("s", json!({"a": "2", "b": "x"}), &["three", "four"])),
            ("t:1", bundle("t", json!({"a": "1"}), &["five"])),
        ]
        .map(|(name, b)| (name.to_owned(), b))
        .into()
    }

    /// The certificates' texts, sorted.
    fn found(of: Value) -> Result<Vec<String>, String> {
        let file = anchors(&all(), &source(of)?, false, "u")?;
        let mut texts: Vec<String> = pem::blocks(std::str::from_utf8(&file).unwrap())
            .map(|der| String::from_utf8(der).unwrap())
            .collect();
        texts.sort();
        Ok(texts)
    }

    #[test]
    fn by_name_and_by_signer() {
        for (of, expected) in [
            (json!({"path": "x", "name": "plain"}), &["one", "two"][..]),
            (json!({"path": "x", "name": "s:2"}), &["four", "three"]),
            (json!({"path": "x", "signerName": "s", "labelSelector": {}}), &["four", "three"]),
            (
                json!({"path": "x", "signerName": "s", "labelSelector": {"matchLabels": {"a": "1"}}}),
                &["three"],
            ),
            (
                json!({"path": "x", "signerName": "s", "labelSelector": {"matchExpressions": [
                    {"key": "a", "operator": "NotIn", "values": ["1"]}, {"key": "b", "operator": "Exists"},
                    {"key": "c", "operator": "DoesNotExist"}, {"key": "a", "operator": "In", "values": ["2", "3"]}]}}),
                &["four", "three"],
            ),
        ] {
            assert_eq!(found(of.clone()).unwrap(), expected, "{of}");
        }
    }

    #[test]
    fn what_is_missing_is_told_unless_it_may_be() {
        let zero = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        for (of, words) in [
            (
                json!({"path": "x", "name": "gone"}),
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"gone\" not found",
            ),
            (json!({"path": "x", "signerName": "s"}), zero),
            (json!({"path": "x", "signerName": "u", "labelSelector": {}}), zero),
            (json!({"path": "x", "signerName": "s", "labelSelector": {"matchLabels": {"b": "y"}}}), zero),
        ] {
            assert_eq!(found(of.clone()).unwrap_err(), words);
            assert_eq!(anchors(&all(), &source(of).unwrap(), true, "u"), Ok(Vec::new()));
        }
        let neither = "ClusterTrustBundle projection requires either name or signerName to be set";
        assert_eq!(source(json!({"path": "x"})).unwrap_err(), neither);
        let odd = json!({"path": "x", "signerName": "s", "labelSelector": {"matchExpressions": [
            {"key": "a", "operator": "Like"}]}});
        assert!(source(odd).unwrap_err().contains("\"Like\" is not a valid label selector operator"));
        let long: Vec<String> = (0..1100).map(|n| format!("{n:0>100}")).collect();
        let long = json!({"path": "x", "signerName": "s", "labelSelector": {"matchExpressions": [
            {"key": "a", "operator": "In", "values": long}]}});
        assert_eq!(source(long).unwrap_err(), "label selector length (111106) is larger than 102400");
    }

    #[test]
    fn the_order_is_a_pods_own() {
        let many: Vec<String> = (0..9).map(|n| format!("certificate {n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let all = BTreeMap::from([("m".to_owned(), bundle("", json!({}), &many))]);
        let of = |uid: &str| anchors(&all, &Choice::Named("m".to_owned()), false, uid).unwrap();
        assert_eq!(of("u"), of("u"));
        assert_ne!(of("u"), of("v"));
        let text = String::from_utf8(of("u")).unwrap();
        assert!(text.starts_with("-----BEGIN CERTIFICATE-----\n") && !text.contains("between"), "{text}");
        assert_eq!(text.matches("-----END CERTIFICATE-----\n").count(), 9);
    }
}
