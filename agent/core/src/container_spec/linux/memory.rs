//! A container's share of the machine's swap, and its reserved memory (KEP-2400, KEP-2570).
//!
//! In: container, pod, node with cgroup v2. Out: values of `memory.swap.max`, `memory.min`, `memory.low`,
//! `memory.high`. Invariant: a critical pod, a Guaranteed pod and a container without a request do not swap.
//! Upstream: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go.

use agent_types::node_context::{MemoryQos, NodeContext};
use agent_types::pod;
use agent_types::resources::amounts::Amounts;
use agent_types::resources::{QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod};

/// `memory.high` is a whole number of these.
const PAGE: i64 = 4096;
const MILLION: i128 = 1_000_000;

/// True if a container of `pod` with this memory request may swap, where the node allows it.
#[must_use]
pub fn may_swap(pod: &Pod, asked: Amounts) -> bool {
    qos_class(pod) == QosClass::Burstable
        && !pod::is_critical(pod)
        && asked.memory_request != asked.memory_limit
}

/// `memory.swap.max`, bytes: the part of the swap that the container's request is of the memory.
#[must_use]
pub(super) fn swap_limit(pod: &Pod, container: &Container, node: &NodeContext) -> i64 {
    let asked = Amounts::of(container.resources.as_ref());
    let (memory, swap) = (node.machine.memory_capacity_bytes, node.machine.swap_capacity_bytes);
    // A request above the machine's memory: no share can be computed from it.
    let fits = memory > 0 && asked.memory_request <= memory;
    if !node.cgroup.limited_swap || !fits || !may_swap(pod, asked) {
        return 0;
    }
    let share = i128::from(asked.memory_request) * i128::from(swap) / i128::from(memory);
    i64::try_from(share).unwrap_or(0)
}

/// The files of the gate MemoryQoS with their values.
pub(super) fn qos(pod: &Pod, container: &Container, node: &NodeContext) -> Vec<(String, String)> {
    let asked = Amounts::of(container.resources.as_ref());
    let request = asked.memory_request;
    let mut files = match node.cgroup.memory_qos {
        MemoryQos::Off => return Vec::new(),
        MemoryQos::Tiered if request != 0 && qos_class(pod) == QosClass::Guaranteed => {
            vec![("memory.min", request)]
        }
        MemoryQos::Tiered if request != 0 => vec![("memory.low", request)],
        // What a configuration before this one has kept is given back.
        MemoryQos::Tiered | MemoryQos::None => vec![("memory.min", 0), ("memory.low", 0)],
    };
    if asked.memory_limit != request {
        let most = match asked.memory_limit {
            0 => node.machine.allocatable_memory_bytes,
            limit => limit,
        };
        files
            .extend(Some(("memory.high", throttled_from(request, most, node))).filter(|(_, n)| *n > request));
    }
    files.into_iter().map(|(file, value)| (file.to_owned(), value.to_string())).collect()
}

/// Usage in bytes at which a container with `request` and at most `most` is throttled.
fn throttled_from(request: i64, most: i64, node: &NodeContext) -> i64 {
    let between = i128::from(most) - i128::from(request);
    let free = between * i128::from(node.cgroup.memory_throttling_ppm) / MILLION;
    i64::try_from(i128::from(request) + free).unwrap_or(0) / PAGE * PAGE
}

#[cfg(test)]
mod tests {
    //! Upstream's formulas: who swaps how much, what is kept for whom, where it is slowed.

    use serde_json::{Value, json};

    use super::*;

    const GIB: i64 = 1 << 30;
    const MIB: i64 = 1 << 20;

    fn of(resources: &Value, more: &Value) -> Pod {
        let mut spec = json!({"containers": [{"name": "c", "resources": resources}]});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).unwrap()
    }

    fn node() -> NodeContext {
        let mut node = NodeContext::new("n");
        node.machine.memory_capacity_bytes = 8 * GIB;
        node.machine.allocatable_memory_bytes = 7 * GIB;
        node.machine.swap_capacity_bytes = 4 * GIB;
        node.cgroup.limited_swap = true;
        node
    }

    fn swap(pod: &Pod, node: &NodeContext) -> i64 {
        swap_limit(pod, &pod::containers(pod)[0], node)
    }

    #[test]
    fn a_share_of_the_swap_is_for_burstable_containers_that_ask_for_memory() {
        let table = [
            (json!({"requests": {"memory": "1Gi"}}), json!({}), GIB / 2),
            (json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}), json!({}), GIB / 2),
            (json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}), json!({}), 0),
            (json!({"requests": {"cpu": "1"}}), json!({}), 0),
            (json!({}), json!({}), 0),
            (json!({"requests": {"memory": "9Gi"}}), json!({}), 0),
            (json!({"requests": {"memory": "1Gi"}}), json!({"priority": 2_000_000_000}), 0),
        ];
        for (resources, more, expected) in table {
            assert_eq!(swap(&of(&resources, &more), &node()), expected, "{resources} {more}");
        }
    }

    #[test]
    fn nobody_swaps_where_the_node_does_not_let_them() {
        let asks = of(&json!({"requests": {"memory": "1Gi"}}), &json!({}));
        let mut forbids = node();
        forbids.cgroup.limited_swap = false;
        assert_eq!(swap(&asks, &forbids), 0);
        let mut without = node();
        without.machine.swap_capacity_bytes = 0;
        assert_eq!(swap(&asks, &without), 0);
    }

    fn files(resources: &Value, memory_qos: MemoryQos) -> Vec<(String, i64)> {
        let pod = of(resources, &json!({}));
        let mut node = node();
        node.cgroup.memory_qos = memory_qos;
        let files = qos(&pod, &pod::containers(&pod)[0], &node);
        files.into_iter().map(|(file, value)| (file, value.parse().unwrap())).collect()
    }

    #[test]
    fn memory_is_kept_by_class_and_slowed_between_request_and_limit() {
        let named = |list: &[(&str, i64)]| -> Vec<(String, i64)> {
            list.iter().map(|(file, value)| ((*file).to_owned(), *value)).collect()
        };
        let full = json!({"cpu": "1", "memory": "100Mi"});
        let guaranteed = json!({"requests": full, "limits": full});
        let burstable = json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}});
        let unlimited = json!({"requests": {"memory": "100Mi"}});
        let high = 190 * MIB;
        let far = (100 * MIB + (7 * GIB - 100 * MIB) / 10 * 9) / PAGE * PAGE;
        let table = [
            (&guaranteed, MemoryQos::Off, named(&[])),
            (&guaranteed, MemoryQos::Tiered, named(&[("memory.min", 100 * MIB)])),
            (&guaranteed, MemoryQos::None, named(&[("memory.min", 0), ("memory.low", 0)])),
            (&burstable, MemoryQos::Tiered, named(&[("memory.low", 100 * MIB), ("memory.high", high)])),
            (
                &burstable,
                MemoryQos::None,
                named(&[("memory.min", 0), ("memory.low", 0), ("memory.high", high)]),
            ),
            (&unlimited, MemoryQos::Tiered, named(&[("memory.low", 100 * MIB), ("memory.high", far)])),
        ];
        for (resources, memory_qos, expected) in table {
            assert_eq!(files(resources, memory_qos), expected, "{resources} {memory_qos:?}");
        }
        let nothing = named(&[("memory.min", 0), ("memory.low", 0)]);
        assert_eq!(
            files(&json!({}), MemoryQos::Tiered),
            nothing,
            "who asks for nothing is not slowed either"
        );
    }
}
