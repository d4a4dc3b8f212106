//! Metrics of cgroups, and of the memory that they protect.

use std::time::Duration;

use agent_kubelet_api::metrics::families;
use agent_types::node_context::MemoryQos;
use agent_types::resources::cgroups::tiers::Sums;

use super::Metrics;

impl Metrics {
    /// A cgroup was made, changed or removed (`create`, `update`, `destroy`).
    pub fn cgroup(&self, operation: &str, took: Duration) {
        self.with(|state| state.main.observe(&families::CGROUP_MANAGER, [operation], took.as_secs_f64()));
    }

    /// Sums of the pods' requests, if the policy protects their memory.
    #[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
    pub fn memory_qos(&self, policy: MemoryQos, sums: Sums) {
        let (min, low) = match policy {
            MemoryQos::Off => return,
            MemoryQos::None => (0, 0),
            MemoryQos::Tiered => (sums.guaranteed_memory, sums.burstable_memory),
        };
        self.with(|state| {
            state.main.set(&families::MEMORY_QOS_MIN, [], min as f64);
            state.main.set(&families::MEMORY_QOS_LOW, [], low as f64);
        });
    }
}
