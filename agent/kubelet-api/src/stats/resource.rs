//! `/metrics/resource`: the source of metrics-server, and so of `kubectl top` and autoscalers. Names and
//! labels are upstream's stable ones (pkg/kubelet/metrics/collectors/resource_metrics.go).

use super::exposition::{Exposition, Kind};
use super::{ShownContainer, ShownPod, Snapshot, Usage};

type Amount = fn(&Usage) -> Option<f64>;

fn seconds(usage: &Usage) -> Option<f64> {
    usage.cpu.total_ns.map(|ns| ns as f64 / 1e9)
}

fn working_set(usage: &Usage) -> Option<f64> {
    usage.memory.working_set.map(|bytes| bytes as f64)
}

fn swap(usage: &Usage) -> Option<f64> {
    usage.swap.usage.map(|bytes| bytes as f64)
}

fn swap_limit(usage: &Usage) -> Option<f64> {
    usage.swap.limit.map(|bytes| bytes as f64)
}

const CONTAINER: [(&str, Kind, &str, Amount); 4] = [
    ("container_cpu_usage_seconds_total", Kind::Counter, "Processor time of the container.", seconds),
    ("container_memory_working_set_bytes", Kind::Gauge, "Working set of the container.", working_set),
    ("container_swap_limit_bytes", Kind::Gauge, "Swap that the container may use.", swap_limit),
    ("container_swap_usage_bytes", Kind::Gauge, "Swap that the container uses.", swap),
];
const NODE: [(&str, Kind, &str, Amount); 3] = [
    ("node_cpu_usage_seconds_total", Kind::Counter, "Processor time of the node.", seconds),
    ("node_memory_working_set_bytes", Kind::Gauge, "Working set of the node.", working_set),
    ("node_swap_usage_bytes", Kind::Gauge, "Swap that the node uses.", swap),
];
const POD: [(&str, Kind, &str, Amount); 3] = [
    ("pod_cpu_usage_seconds_total", Kind::Counter, "Processor time of the pod.", seconds),
    ("pod_memory_working_set_bytes", Kind::Gauge, "Working set of the pod.", working_set),
    ("pod_swap_usage_bytes", Kind::Gauge, "Swap that the pod uses.", swap),
];

/// The text of the endpoint; without a snapshot it reports only that reading failed.
#[must_use]
pub fn text(snapshot: Option<&Snapshot>, shown: &[ShownPod]) -> String {
    let mut out = Exposition::default();
    if let Some(snapshot) = snapshot {
        tell(&mut out, snapshot, shown);
    }
    let failed = if snapshot.is_some() { 0.0 } else { 1.0 };
    let help = "1 if the statistics could not be read, 0 otherwise.";
    out.family(("resource_scrape_error", Kind::Gauge, help), [(vec![], failed)], None);
    out.into_text()
}

fn tell(out: &mut Exposition, snapshot: &Snapshot, shown: &[ShownPod]) {
    let mut pods: Vec<(&ShownPod, Usage)> = Vec::new();
    let mut containers: Vec<(&ShownPod, &ShownContainer, &Usage)> = Vec::new();
    for pod in shown {
        let Some(found) = snapshot.pod(&pod.uid) else { continue };
        pods.push((pod, found.whole(pod)));
        for container in &pod.containers {
            containers.extend(found.container(&container.id).map(|usage| (pod, container, usage)));
        }
    }
    pods.sort_by_key(|(pod, _)| (&pod.namespace, &pod.name));
    containers.sort_by_key(|(pod, container, _)| (&container.name, &pod.namespace, &pod.name));
    for (name, kind, help, amount) in CONTAINER {
        let samples = containers
            .iter()
            .filter_map(|(p, c, usage)| Some((container_labels(p, c), amount(usage)?, Some(usage.at))));
        out.timed((name, kind, help), samples);
    }
    let started = containers.iter().filter_map(|(p, c, _)| {
        let started = c.started?;
        Some((container_labels(p, c), started.0 as f64 / 1e9))
    });
    let help = "When the container was started, in Unix time.";
    out.family(("container_start_time_seconds", Kind::Gauge, help), started, None);
    for (name, kind, help, amount) in NODE {
        let node = &snapshot.node;
        out.timed((name, kind, help), amount(node).map(|value| (vec![], value, Some(node.at))));
    }
    for (name, kind, help, amount) in POD {
        let samples =
            pods.iter().filter_map(|(pod, usage)| Some((pod_labels(pod), amount(usage)?, Some(usage.at))));
        out.timed((name, kind, help), samples);
    }
}

fn pod_labels(pod: &ShownPod) -> Vec<(&str, &str)> {
    vec![("namespace", &pod.namespace), ("pod", &pod.name)]
}

fn container_labels<'a>(pod: &'a ShownPod, container: &'a ShownContainer) -> Vec<(&'a str, &'a str)> {
    vec![("container", &container.name), ("namespace", &pod.namespace), ("pod", &pod.name)]
}
