//! Decides whether a pod may start while the node is under memory, disk or PID pressure.
//!
//! In: a pod, the Node's conditions. Out: yes, or `Evicted`. Invariants: critical pods are always admitted;
//! with memory pressure alone, only BestEffort pods without the toleration
//! `node.kubernetes.io/memory-pressure` are rejected; with any other pressure every pod that is not critical
//! is rejected. Upstream: `Admit` of pkg/kubelet/eviction/eviction_manager.go.

use agent_types::kill::EVICTED;
use agent_types::pod;
use agent_types::pressures::Pressures;
use agent_types::resources::qos::{QosClass, qos_class};
use k8s_openapi::api::core::v1::{Pod, Taint};

use super::{AdmissionContext, Rejection, taints};

pub(super) fn check(p: &Pod, node: &AdmissionContext) -> Result<(), Rejection> {
    let Pressures { memory, disk, pid } = node.pressures;
    if !(memory || disk || pid) || pod::is_critical(p) {
        return Ok(());
    }
    if !disk && !pid && (qos_class(p) != QosClass::BestEffort || tolerates_memory_pressure(p)) {
        return Ok(());
    }
    let conditions = [(memory, "MemoryPressure"), (disk, "DiskPressure"), (pid, "PIDPressure")];
    let conditions: Vec<&str> = conditions.into_iter().filter(|(holds, _)| *holds).map(|(_, c)| c).collect();
    let message = format!("The node had condition: [{}]. ", conditions.join(" "));
    Err(Rejection::new(EVICTED, message))
}

fn tolerates_memory_pressure(p: &Pod) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/memory-pressure".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    pod::spec(p).tolerations.iter().flatten().any(|toleration| taints::tolerates(toleration, &taint))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Name; memory, disk, pid; resources; tolerations; priority; expected reason.
    type Row<'a> = (&'a str, (bool, bool, bool), &'a Value, Value, i32, Option<&'a str>);

    #[test]
    fn table() {
        let tolerant = json!([{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}]);
        let disk_tolerant = json!([{"key": "node.kubernetes.io/disk-pressure", "operator": "Exists"}]);
        let burstable = json!({"requests": {"memory": "1Mi"}});
        let [memory, disk, pid] = [(true, false, false), (false, true, false), (true, false, true)];
        let none = json!({});
        let cases: [Row<'_>; 8] = [
            ("none", (false, false, false), &none, json!([]), 0, None),
            ("best effort", memory, &none, json!([]), 0, Some("[MemoryPressure]")),
            ("burstable", memory, &burstable, json!([]), 0, None),
            ("tolerant", memory, &none, tolerant.clone(), 0, None),
            ("tolerates another", memory, &none, disk_tolerant.clone(), 0, Some("[MemoryPressure]")),
            ("disk", disk, &burstable, disk_tolerant, 0, Some("[DiskPressure]")),
            ("both", pid, &burstable, tolerant, 0, Some("[MemoryPressure PIDPressure]")),
            ("critical", disk, &none, json!([]), 2_000_000_000, None),
        ];
        for (name, (memory, disk, pid), resources, tolerations, priority, refused) in cases {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"tolerations": tolerations, "priority": priority,
                "containers": [{"name": "c", "resources": resources}]}});
            let node = AdmissionContext {
                pressures: Pressures { memory, disk, pid },
                ..AdmissionContext::default()
            };
            let got = check(&serde_json::from_value(pod).unwrap(), &node);
            let expected =
                refused.map(|c| Rejection::new("Evicted", format!("The node had condition: {c}. ")));
            assert_eq!(got.err(), expected, "{name}");
        }
    }
}
