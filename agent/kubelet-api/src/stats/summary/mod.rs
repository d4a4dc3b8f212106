//! `/stats/summary`: the document (API `stats/v1alpha1`), from the snapshot, disk usage and the listed pods.
//!
//! Upstream: pkg/kubelet/server/stats, pkg/kubelet/stats.

mod document;
mod fs;
#[cfg(test)]
mod tests;

use agent_types::api_time;
use agent_types::time::Wall;

use document::{
    ContainerStats, CpuStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, NodeStats, PodReference,
    PodStats, ProcessStats, PsiData, PsiStats, RlimitStats, Summary, SwapStats, UsageStats,
};

use super::disk::NodeDiskUsage;
use super::host::{Interface, Network};
use super::usage::{Pressure, Psi};
use super::{PodUsage, ShownContainer, ShownPod, Snapshot, Usage};

/// What the document is made from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Name of the Node.
    pub node_name: &'a str,
    /// When the machine started.
    pub booted: Option<Wall>,
    /// When the agent started.
    pub started: Option<Wall>,
    /// Usage of node, pods and containers.
    pub snapshot: &'a Snapshot,
    /// Pods of the node.
    pub shown: &'a [ShownPod],
    /// Disks; without it the document has processor, memory and swap only.
    pub measured: Option<&'a NodeDiskUsage>,
}

/// The document as JSON.
#[must_use]
pub fn json(inputs: Inputs<'_>) -> String {
    // Strings, numbers and lists can always be written.
    serde_json::to_string(&summary(inputs)).unwrap_or_default()
}

fn summary(inputs: Inputs<'_>) -> Summary {
    let Inputs { snapshot, shown, measured, .. } = inputs;
    let mut pods: Vec<PodStats> = shown
        .iter()
        .filter_map(|shown| Some(pod(shown, snapshot.pod(&shown.uid)?, measured)))
        .filter(|pod| !pod.containers.is_empty())
        .collect();
    pods.sort_by(|a, b| {
        (&a.pod_ref.namespace, &a.pod_ref.name).cmp(&(&b.pod_ref.namespace, &b.pod_ref.name))
    });
    let node = &snapshot.node;
    let all = measured.is_some();
    let system = snapshot.system.iter().map(|(name, usage)| ContainerStats {
        name: (*name).to_owned(),
        start_time: if *name == "kubelet" { inputs.started } else { usage.created }.map(api_time::text),
        usage: usage_stats(usage, all),
        rootfs: None,
        logs: None,
    });
    let tasks = &node.tasks;
    let rlimit =
        RlimitStats { time: api_time::text(node.at), maxpid: tasks.threads_max, curproc: tasks.threads };
    Summary {
        node: NodeStats {
            node_name: inputs.node_name.to_owned(),
            system_containers: system.collect(),
            start_time: inputs.booted.map(api_time::text),
            usage: usage_stats(node, all),
            network: snapshot.network.as_ref().filter(|_| all).map(network),
            fs: measured.and_then(|m| m.root.as_ref()).map(fs::whole),
            runtime: measured.and_then(fs::runtime),
            rlimit: all.then_some(rlimit),
        },
        pods,
    }
}

fn pod(shown: &ShownPod, found: &PodUsage, measured: Option<&NodeDiskUsage>) -> PodStats {
    let running = || shown.containers.iter().filter_map(|c| Some((c, found.container(&c.id)?)));
    let containers: Vec<ContainerStats> =
        running().map(|(c, usage)| container(&shown.uid, c, usage, measured)).collect();
    let volumes = measured.map(|m| fs::volumes(shown, m)).unwrap_or_default();
    let processes = super::usage::sum(running().map(|(_, usage)| usage), |usage| usage.tasks.processes);
    PodStats {
        pod_ref: PodReference {
            name: shown.name.clone(),
            namespace: shown.namespace.clone(),
            uid: shown.uid.clone(),
        },
        start_time: shown.started.map(api_time::text),
        usage: usage_stats(&found.whole(shown), measured.is_some()),
        network: found.network.as_ref().filter(|_| measured.is_some()).map(network),
        ephemeral_storage: measured.and_then(|m| fs::ephemeral(shown, &containers, &volumes, m)),
        process_stats: processes
            .filter(|_| measured.is_some())
            .map(|process_count| ProcessStats { process_count }),
        containers,
        volumes,
    }
}

fn container(
    uid: &str,
    shown: &ShownContainer,
    usage: &Usage,
    measured: Option<&NodeDiskUsage>,
) -> ContainerStats {
    ContainerStats {
        name: shown.name.clone(),
        start_time: shown.started.map(api_time::text),
        usage: usage_stats(usage, measured.is_some()),
        rootfs: measured.and_then(|m| fs::layer(m.layers.get(&shown.id)?, m)),
        logs: measured.and_then(|m| fs::logs(uid, &shown.name, m)),
    }
}

fn usage_stats(usage: &Usage, with_io: bool) -> UsageStats {
    let at = api_time::text(usage.at);
    let (cpu, memory, swap) = (&usage.cpu, &usage.memory, &usage.swap);
    UsageStats {
        cpu: cpu.total_ns.map(|total| CpuStats {
            time: at.clone(),
            usage_nano_cores: cpu.nano_cores,
            usage_core_nano_seconds: Some(total),
            psi: cpu.psi.as_ref().map(psi),
        }),
        memory: memory.usage.or(memory.working_set).map(|_| MemoryStats {
            time: at.clone(),
            available_bytes: memory.available,
            usage_bytes: memory.usage,
            working_set_bytes: memory.working_set,
            rss_bytes: memory.rss,
            page_faults: memory.page_faults,
            major_page_faults: memory.major_page_faults,
            psi: memory.psi.as_ref().map(psi),
        }),
        io: usage.io.psi.as_ref().filter(|_| with_io).map(|p| IoStats { time: at.clone(), psi: psi(p) }),
        swap: swap.usage.map(|used| SwapStats {
            time: at,
            swap_available_bytes: swap.limit.map(|limit| limit.saturating_sub(used)),
            swap_usage_bytes: Some(used),
        }),
    }
}

fn psi(psi: &Psi) -> PsiStats {
    let data = |p: Pressure| {
        let [avg10, avg60, avg300] = p.avg.map(|hundredths| f64::from(hundredths) / 100.0);
        PsiData { total: p.total_us, avg10, avg60, avg300 }
    };
    PsiStats { full: data(psi.full), some: data(psi.some) }
}

fn network(network: &Network) -> NetworkStats {
    let interface = |i: &Interface| InterfaceStats {
        name: i.name.clone(),
        rx_bytes: Some(i.received.bytes),
        rx_errors: Some(i.received.errors),
        tx_bytes: Some(i.sent.bytes),
        tx_errors: Some(i.sent.errors),
    };
    let default = network.interfaces.iter().find(|i| i.name == network.default);
    NetworkStats {
        time: api_time::text(network.at),
        default: default.map(interface).unwrap_or_default(),
        interfaces: network.interfaces.iter().map(interface).collect(),
    }
}
