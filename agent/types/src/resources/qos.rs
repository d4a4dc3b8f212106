//! Quality-of-service class of a pod, which decides its cgroup, its OOM score ([`super::oom_score`]) and its eviction rank.
//!
//! In: a pod. Out: [`QosClass`]. Only cpu and memory count; init containers count too; an amount of zero
//! counts as absent. With a request of the pod itself (`spec.resources`), only that counts. Upstream:
//! pkg/apis/core/v1/helper/qos.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use super::requests::{CPU, MEMORY, limit, pod_level_limit, pod_level_request, request};
use crate::{Quantity, pod};

/// `status.qosClass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QosClass {
    /// Every container's cpu and memory limits equal its requests.
    Guaranteed,
    /// Some requests or limits, but not those of Guaranteed.
    Burstable,
    /// No requests and no limits.
    BestEffort,
}

impl QosClass {
    /// The API's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The class of `pod`.
#[must_use]
pub fn qos_class(pod: &Pod) -> QosClass {
    let mut requests = [None::<Quantity>; 2];
    let mut limits = [None::<Quantity>; 2];
    let mut all_limited = true;
    let mut count = |index: usize, request: Option<Quantity>, limit: Option<Quantity>| {
        let positive = |q: Option<Quantity>| q.filter(|q| !q.is_zero());
        add(&mut requests[index], positive(request));
        all_limited &= positive(limit).is_some();
        add(&mut limits[index], positive(limit));
    };
    for (index, resource) in [CPU, MEMORY].into_iter().enumerate() {
        if pod::spec(pod).resources.is_some() {
            count(index, pod_level_request(pod, resource), pod_level_limit(pod, resource));
            continue;
        }
        for container in pod::containers(pod).iter().chain(pod::init_containers(pod)) {
            count(index, request(container, resource), limit(container, resource));
        }
    }
    let none = |list: &[Option<Quantity>; 2]| list.iter().all(Option::is_none);
    if none(&requests) && none(&limits) {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

fn add(sum: &mut Option<Quantity>, amount: Option<Quantity>) {
    if let Some(amount) = amount {
        *sum = Some(sum.unwrap_or_default().plus(amount));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class(containers: Value, init: Value) -> QosClass {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {},
            "spec": {"containers": containers, "initContainers": init}});
        qos_class(&serde_json::from_value(pod).unwrap())
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn table() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let same = json!({"cpu": "1000m", "memory": "1024Mi"});
        let guaranteed = container(full.clone(), same);
        let cases = [
            ("nothing", json!([{"name": "c"}]), json!([]), QosClass::BestEffort),
            ("zero", json!([container(json!({"cpu": "0"}), json!({}))]), json!([]), QosClass::BestEffort),
            (
                "other resource",
                json!([container(json!({"x.io/y": "1"}), json!({}))]),
                json!([]),
                QosClass::BestEffort,
            ),
            ("equal", json!([guaranteed]), json!([]), QosClass::Guaranteed),
            ("one of two", json!([guaranteed, {"name": "d"}]), json!([]), QosClass::Burstable),
            ("init without", json!([guaranteed]), json!([{"name": "i"}]), QosClass::Burstable),
            ("init equal", json!([guaranteed]), json!([guaranteed]), QosClass::Guaranteed),
            (
                "no memory",
                json!([container(json!({"cpu": "1"}), json!({"cpu": "1"}))]),
                json!([]),
                QosClass::Burstable,
            ),
            (
                "less",
                json!([container(json!({"cpu": "1", "memory": "1"}), full.clone())]),
                json!([]),
                QosClass::Burstable,
            ),
            ("request only", json!([container(full, json!({}))]), json!([]), QosClass::Burstable),
        ];
        for (name, containers, init, expected) in cases {
            assert_eq!(class(containers, init), expected, "{name}");
        }
    }

    #[test]
    fn what_the_pod_says_itself_decides_alone() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = json!([container(full.clone(), full.clone())]);
        let table = [
            (json!({"requests": full, "limits": full}), json!([{"name": "c"}]), QosClass::Guaranteed),
            (json!({"requests": full}), json!([{"name": "c"}]), QosClass::Burstable),
            (
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}),
                guaranteed.clone(),
                QosClass::Burstable,
            ),
            (json!({"limits": {"hugepages-2Mi": "2Mi"}}), guaranteed.clone(), QosClass::BestEffort),
            (json!({}), guaranteed, QosClass::BestEffort),
        ];
        for (resources, containers, expected) in table {
            let pod = json!({"spec": {"resources": resources, "containers": containers}});
            assert_eq!(qos_class(&serde_json::from_value(pod.clone()).unwrap()), expected, "{pod}");
        }
    }
}
