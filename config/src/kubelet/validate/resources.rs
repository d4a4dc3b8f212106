//! Rules about reservations and Node Allocatable.

use super::Rules;
use crate::formats;
use crate::kubelet::enums::NodeAllocatableEnforcement as Enforcement;
use crate::path;
use crate::quantity::Quantity;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What can be kept back from pods.
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

impl Rules<'_> {
    pub(super) fn resources(&mut self) {
        let c = self.config;
        self.reserved("systemReserved", &c.system_reserved);
        self.reserved("kubeReserved", &c.kube_reserved);
        self.rule(
            Quantity::parse(&c.container_log_max_size).is_ok(),
            "containerLogMaxSize",
            c.container_log_max_size.as_str(),
            "must be a quantity such as 10Mi",
        );
        self.reserved_cpus();
        self.enforcement();
        self.numa_memory();
        self.qos_reserved();
    }

    fn reserved(&mut self, field: &str, map: &BTreeMap<String, String>) {
        for (name, amount) in map {
            let path = path::child(field, name);
            if !RESERVABLE.contains(&name.as_str()) {
                self.broken(
                    &path,
                    Value::Null,
                    "cannot be reserved: cpu, memory, ephemeral-storage and pid can",
                );
                continue;
            }
            let ok = Quantity::parse(amount).is_ok_and(|q| q.signum() >= 0);
            self.rule(ok, &path, amount.as_str(), "must be a quantity of 0 or more");
        }
    }

    fn reserved_cpus(&mut self) {
        let c = self.config;
        let list = c.reserved_system_cpus.as_str();
        if list.is_empty() {
            return;
        }
        let valid = formats::parse_cpu_list(list).is_some();
        self.rule(valid, "reservedSystemCPUs", list, "must be a CPU list such as 0-1,4");
        self.rule(
            c.system_reserved_cgroup.is_empty() && c.kube_reserved_cgroup.is_empty(),
            "reservedSystemCPUs",
            list,
            "excludes systemReservedCgroup and kubeReservedCgroup",
        );
    }

    fn enforcement(&mut self) {
        const PATH: &str = "enforceNodeAllocatable";
        let c = self.config;
        let list = &c.enforce_node_allocatable;
        let mut seen = BTreeSet::new();
        for (i, kind) in list.iter().enumerate() {
            let at = path::index(PATH, i);
            let word = kind.as_str();
            if !seen.insert(*kind) {
                self.broken(&at, word, "is there twice");
                continue;
            }
            match kind {
                Enforcement::None => {
                    self.rule(list.len() == 1, &at, word, "excludes every other enforcement");
                    continue;
                }
                Enforcement::SystemReserved | Enforcement::SystemReservedCompressible => {
                    let named = !c.system_reserved_cgroup.is_empty();
                    self.rule(named, &at, word, "needs systemReservedCgroup");
                }
                Enforcement::KubeReserved | Enforcement::KubeReservedCompressible => {
                    let named = !c.kube_reserved_cgroup.is_empty();
                    self.rule(named, &at, word, "needs kubeReservedCgroup");
                }
                Enforcement::Pods => {}
            }
            self.rule(c.cgroups_per_qos, &at, word, "needs cgroupsPerQOS: true");
        }
        for (full, part) in [
            (Enforcement::SystemReserved, Enforcement::SystemReservedCompressible),
            (Enforcement::KubeReserved, Enforcement::KubeReservedCompressible),
        ] {
            let both = seen.contains(&full) && seen.contains(&part);
            self.rule(!both, PATH, part.as_str(), "excludes its full form: keep one of them");
        }
    }

    fn numa_memory(&mut self) {
        let mut seen = BTreeSet::new();
        for (i, entry) in self.config.reserved_memory.iter().enumerate() {
            let limits = path::child(&path::index("reservedMemory", i), "limits");
            for (resource, amount) in &entry.limits {
                let at = path::child(&limits, resource);
                let known = resource == "memory" || resource.starts_with("hugepages-");
                self.rule(known, &at, Value::Null, "must be memory or hugepages-<size>");
                self.rule(amount.signum() != 0, &at, amount.as_str(), "must not be zero");
                let first = seen.insert((entry.numa_node, resource));
                self.rule(first, &at, Value::Null, "is there twice for the same NUMA node");
            }
        }
    }

    fn qos_reserved(&mut self) {
        for (resource, share) in &self.config.qos_reserved {
            let at = path::child("qosReserved", resource);
            self.rule(resource == "memory", &at, Value::Null, "cannot be reserved by QoS: memory can");
            let percent = share.strip_suffix('%').and_then(|n| n.parse::<u8>().ok());
            let ok = percent.is_some_and(|n| n <= 100) && !share.starts_with('+');
            self.rule(ok, &at, share.as_str(), "must be a percentage from 0% to 100%");
        }
        let gated = self.config.qos_reserved.is_empty() || self.gate("QOSReserved");
        self.rule(gated, "qosReserved", Value::Null, "needs feature gate QOSReserved");
    }
}
