//! Processors and memory that containers have for themselves, and device plugins.

use std::time::Duration;

use agent_core::resource_managers::ResourcesView;
use agent_kubelet_api::metrics::families;

use super::{Metrics, pods};

impl Metrics {
    /// A device plugin called `Register`.
    pub fn device_plugin_registered(&self, resource: &str) {
        self.with(|state| state.main.count(&families::DEVICE_PLUGIN_REGISTRATIONS, [resource]));
    }

    /// A device plugin answered `Allocate`, or failed.
    pub fn devices_allocated(&self, resource: &str, took: Duration) {
        let seconds = took.as_secs_f64();
        self.with(|state| state.main.observe(&families::DEVICE_PLUGIN_ALLOC_DURATION, [resource], seconds));
    }

    /// The placement of a pod was judged; the time includes answers of device plugins.
    pub fn placed(&self, took: Duration) {
        self.with(|state| state.main.observe(&families::TOPOLOGY_DURATION, [], took.as_secs_f64() * 1000.0));
    }

    /// The managers changed, or judged a pod.
    pub fn resources(&self, view: &ResourcesView) {
        // Exact for more admissions than a machine ever sees.
        #[allow(clippy::cast_precision_loss)]
        let total = |n: u64| n as f64;
        let counts = &view.counts;
        self.with(|state| {
            let main = &mut state.main;
            main.total(&families::CPU_PINNINGS, [], total(counts.cpus.all));
            main.total(&families::CPU_PINNING_ERRORS, [], total(counts.cpus.failed));
            main.total(&families::MEMORY_PINNINGS, [], total(counts.memory.all));
            main.total(&families::MEMORY_PINNING_ERRORS, [], total(counts.memory.failed));
            main.total(&families::TOPOLOGY_ADMISSIONS, [], total(counts.admissions.all));
            main.total(&families::TOPOLOGY_REFUSALS, [], total(counts.admissions.failed));
            for (kind, (aligned, not_aligned)) in &counts.alignments {
                let (scope, boundary) = kind.labels();
                main.total(&families::ALIGNED, [scope, boundary], total(*aligned));
                // A cache that is shared has no counterpart: such a placement is never asked for.
                if boundary != "uncore_cache" {
                    main.total(&families::NOT_ALIGNED, [scope, boundary], total(*not_aligned));
                }
            }
            main.set(&families::SHARED_CPUS, [], pods::count(view.available_cpus.len()) * 1000.0);
            main.set(&families::EXCLUSIVE_CPUS, [], pods::count(view.exclusive_cpus_by_node.values().sum()));
            main.clear(families::EXCLUSIVE_CPUS_OF_NODE.name);
            for (node, cpus) in &view.exclusive_cpus_by_node {
                main.set(&families::EXCLUSIVE_CPUS_OF_NODE, [&node.to_string()], pods::count(*cpus));
            }
        });
    }
}
