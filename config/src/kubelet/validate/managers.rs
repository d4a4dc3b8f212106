//! Rules about the CPU, memory and topology managers that need no look at the machine.
//!
//! Upstream reports most of them when it constructs a manager. Here init refuses them, too, so that a node with a mistake in them does
//! not stay without its agent.

use super::Rules;
use crate::kubelet::enums::{CpuManagerPolicy, MemoryManagerPolicy, TopologyManagerPolicy};
use crate::kubelet::manager_options::{CpuOptions, OptionGates, TopologyOptions};
use crate::path;
use crate::quantity::Quantity;
use serde_json::Value;

impl Rules<'_> {
    pub(super) fn managers(&mut self) {
        let c = self.config;
        match c.cpu_manager_policy {
            CpuManagerPolicy::None => self.rule(
                c.cpu_manager_policy_options.is_empty(),
                "cpuManagerPolicyOptions",
                Value::Null,
                "must be empty: the policy none has no options",
            ),
            CpuManagerPolicy::Static => self.static_cpus(),
        }
        if c.topology_manager_policy != TopologyManagerPolicy::None
            && let Err(mistake) = TopologyOptions::parse(&c.topology_manager_policy_options)
        {
            self.broken("topologyManagerPolicyOptions", Value::Null, mistake.to_string());
        }
        if c.memory_manager_policy == MemoryManagerPolicy::Static {
            self.static_memory();
        }
    }

    fn static_cpus(&mut self) {
        let c = self.config;
        let period = c.cpu_manager_reconcile_period;
        self.rule(
            period.as_nanos() > 0,
            "cpuManagerReconcilePeriod",
            period.to_string(),
            "must be a duration of more than 0s",
        );
        let amounts = [&c.system_reserved, &c.kube_reserved].into_iter().filter_map(|map| map.get("cpu"));
        let reserved =
            amounts.into_iter().any(|text| Quantity::parse(text).is_ok_and(|cpus| cpus.signum() > 0));
        self.rule(
            reserved || !c.reserved_system_cpus.is_empty(),
            "cpuManagerPolicy",
            c.cpu_manager_policy.as_str(),
            "needs processors for the system: set systemReserved.cpu, kubeReserved.cpu or reservedSystemCPUs",
        );
        match CpuOptions::parse(&c.cpu_manager_policy_options, OptionGates::of(&self.gates)) {
            Ok(options) => self.rule(
                !options.align_by_socket
                    || c.topology_manager_policy != TopologyManagerPolicy::SingleNumaNode,
                "cpuManagerPolicyOptions",
                Value::Null,
                "align-by-socket excludes topologyManagerPolicy single-numa-node",
            ),
            Err(mistake) => self.broken("cpuManagerPolicyOptions", Value::Null, mistake.to_string()),
        }
    }

    /// The machine's part of the rule, that the amounts add up, is the memory manager's.
    fn static_memory(&mut self) {
        let c = self.config;
        let reserves = c.reserved_memory.iter().any(|entry| entry.limits.contains_key("memory"));
        self.rule(
            reserves,
            "memoryManagerPolicy",
            c.memory_manager_policy.as_str(),
            "needs reservedMemory with memory of a NUMA node",
        );
        for (i, entry) in c.reserved_memory.iter().enumerate() {
            let at = path::child(&path::index("reservedMemory", i), "numaNode");
            self.rule(entry.numa_node >= 0, &at, entry.numa_node, "must be the number of a NUMA node");
        }
    }
}
