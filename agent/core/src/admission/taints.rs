//! Taints that keep a pod away.
//!
//! In: a pod, the node's taints. Out: yes, or `TaintToleration`. Invariants: only `NoExecute` counts here,
//! the scheduler handles the others; a static pod is exempt, because it belongs to the node. Upstream:
//! pkg/kubelet/lifecycle/predicate.go.

use agent_types::pod;
use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};

use super::{AdmissionContext, Rejection};

pub(super) fn check(pod: &Pod, node: &AdmissionContext) -> Result<(), Rejection> {
    let tolerations = pod::spec(pod).tolerations.as_deref().unwrap_or(&[]);
    let repels = |taint: &&Taint| {
        taint.effect == "NoExecute" && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    };
    if pod::is_static(pod) || node.node_taints.iter().find(repels).is_none() {
        return Ok(());
    }
    let message = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    Err(Rejection::new("TaintToleration", message))
}

/// Empty key, effect and operator stand for every key, every effect and `Equal`.
pub(super) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let set = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    let effect = set(&toleration.effect).is_none_or(|effect| effect == taint.effect);
    let key = set(&toleration.key).is_none_or(|key| key == taint.key);
    let value = toleration.value.as_deref().unwrap_or("");
    let number = |text: &str| text.parse::<i64>().ok();
    let taint_value = taint.value.as_deref().unwrap_or("");
    let compared = number(taint_value).zip(number(value));
    let matches = match toleration.operator.as_deref().unwrap_or("") {
        "Exists" => true,
        "" | "Equal" => set(&toleration.key).is_some() && value == taint_value,
        "Gt" => compared.is_some_and(|(taint, value)| taint > value),
        "Lt" => compared.is_some_and(|(taint, value)| taint < value),
        _ => false,
    };
    effect && key && matches
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn table() {
        let node = |effect: &str| AdmissionContext {
            node_taints: vec![Taint {
                key: "k".into(),
                value: Some("v".into()),
                effect: effect.into(),
                ..Taint::default()
            }],
            ..AdmissionContext::default()
        };
        let admitted = |tolerations: Value, effect: &str, source: &str| {
            let pod = json!({"metadata": {"name": "p", "annotations": {"kubernetes.io/config.source": source}},
                "spec": {"containers": [], "tolerations": tolerations}});
            check(&serde_json::from_value(pod).unwrap(), &node(effect)).is_ok()
        };
        let cases = [
            (json!([]), "NoSchedule", "api", true),
            (json!([]), "NoExecute", "api", false),
            (json!([]), "NoExecute", "file", true),
            (json!([{"operator": "Exists"}]), "NoExecute", "api", true),
            (json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]), "NoExecute", "api", true),
            (json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), "NoExecute", "api", false),
            (json!([{"key": "k", "value": "v"}]), "NoExecute", "api", true),
            (json!([{"key": "k", "operator": "Equal", "value": "w"}]), "NoExecute", "api", false),
            (json!([{"value": "v"}]), "NoExecute", "api", false),
            (json!([{"key": "other", "operator": "Exists"}]), "NoExecute", "api", false),
            (json!([{"key": "k", "operator": "Sometimes"}]), "NoExecute", "api", false),
        ];
        for (tolerations, effect, source, expected) in cases {
            assert_eq!(
                admitted(tolerations.clone(), effect, source),
                expected,
                "{tolerations} {effect} {source}"
            );
        }
    }
}
