//! Rules about policies, shutdown, restart and registration.

use super::Rules;
use crate::duration::Duration;
use crate::formats;
use crate::kubelet::enums::MemoryReservationPolicy;
use crate::path;
use serde_json::Value;
use std::collections::BTreeSet;

const DEFAULT_CFS_PERIOD: Duration = Duration::from_millis(100);
const RESTART_PERIOD_MIN: Duration = Duration::from_secs(1);
const RESTART_PERIOD_MAX: Duration = Duration::from_secs(300);

impl Rules<'_> {
    pub(super) fn policies(&mut self) {
        let c = self.config;
        self.rule(!c.run_once, "runOnce", true, "is gone: run-once mode does not exist any more");
        self.rule(
            c.system_cgroups.is_empty() || !c.cgroup_root.is_empty(),
            "systemCgroups",
            c.system_cgroups.as_str(),
            "needs cgroupRoot",
        );
        self.rule(
            c.cpu_cfs_quota_period == DEFAULT_CFS_PERIOD || self.gate("CustomCPUCFSQuotaPeriod"),
            "cpuCFSQuotaPeriod",
            c.cpu_cfs_quota_period.to_string(),
            "needs feature gate CustomCPUCFSQuotaPeriod when it is not 100ms",
        );
        self.rule(
            c.memory_throttling_factor > 0.0 && c.memory_throttling_factor <= 1.0,
            "memoryThrottlingFactor",
            c.memory_throttling_factor,
            "must be more than 0 and at most 1",
        );
        self.rule(
            c.memory_reservation_policy == MemoryReservationPolicy::None || self.gate("MemoryQoS"),
            "memoryReservationPolicy",
            c.memory_reservation_policy.as_str(),
            "needs feature gate MemoryQoS",
        );
        self.taints();
        self.user_namespaces();
        self.unsafe_sysctls();
    }

    fn taints(&mut self) {
        let mut seen = BTreeSet::new();
        for (i, taint) in self.config.register_with_taints.iter().enumerate() {
            let at = path::index("registerWithTaints", i);
            self.rule(
                formats::is_qualified_name(&taint.key),
                &path::child(&at, "key"),
                taint.key.as_str(),
                "must be a qualified name such as example.com/role",
            );
            self.rule(
                formats::is_label_value(&taint.value),
                &path::child(&at, "value"),
                taint.value.as_str(),
                "must be at most 63 letters, digits, -, _ or ., with a letter or digit at both ends",
            );
            self.rule(
                taint.time_added.is_none(),
                &path::child(&at, "timeAdded"),
                Value::Null,
                "is set by the control plane: leave it out",
            );
            self.rule(
                seen.insert((taint.key.as_str(), taint.effect)),
                &at,
                taint.key.as_str(),
                "is there twice with the same effect",
            );
        }
    }

    fn user_namespaces(&mut self) {
        const UNIT: i64 = 65536;
        let ids = self.config.ids_per_pod();
        self.rule(
            (UNIT..=i64::from(u32::MAX)).contains(&ids) && ids % UNIT == 0,
            "userNamespaces.idsPerPod",
            ids,
            "must be a multiple of 65536, at most 4294967295",
        );
    }

    /// Only settings that a pod has for itself may be set by pods.
    fn unsafe_sysctls(&mut self) {
        const NAMESPACED: [&str; 5] = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.", "net."];
        for (i, pattern) in self.config.allowed_unsafe_sysctls.iter().enumerate() {
            let name = pattern.strip_suffix('*').unwrap_or(pattern).replace('/', ".");
            let ok = formats::is_sysctl_name(pattern)
                && !name.contains('*')
                && NAMESPACED.iter().any(|p| name.starts_with(p));
            let path = path::index("allowedUnsafeSysctls", i);
            self.rule(
                ok,
                &path,
                pattern.as_str(),
                "must be a namespaced sysctl (kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.*, net.*), \
                 with * at its end only",
            );
        }
    }

    pub(super) fn shutdown_and_restart(&mut self) {
        let c = self.config;
        let (total, critical) = (c.shutdown_grace_period, c.shutdown_grace_period_critical_pods);
        for (path, grace) in [("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)] {
            let ok = grace.is_zero() || grace >= Duration::from_secs(1);
            self.rule(ok, path, grace.to_string(), "must be 0s or at least 1s");
            let gated = grace.is_zero() || self.gate("GracefulNodeShutdown");
            self.rule(gated, path, grace.to_string(), "needs feature gate GracefulNodeShutdown");
        }
        self.rule(
            critical <= total,
            "shutdownGracePeriodCriticalPods",
            critical.to_string(),
            "must be at most shutdownGracePeriod",
        );
        let by_priority = &c.shutdown_grace_period_by_pod_priority;
        if !by_priority.is_empty() {
            const PATH: &str = "shutdownGracePeriodByPodPriority";
            let alone = total.is_zero() && critical.is_zero();
            self.rule(alone, PATH, Value::Null, "excludes shutdownGracePeriod: set one of them");
            let gated = self.gate("GracefulNodeShutdownBasedOnPodPriority");
            self.rule(gated, PATH, Value::Null, "needs feature gate GracefulNodeShutdownBasedOnPodPriority");
        }
        self.restart_period();
    }

    fn restart_period(&mut self) {
        const PATH: &str = "crashLoopBackOff.maxContainerRestartPeriod";
        let period = self.config.crash_loop_back_off.max_container_restart_period;
        if !self.gate("KubeletCrashLoopBackOffMax") {
            self.rule(period.is_none(), PATH, Value::Null, "needs feature gate KubeletCrashLoopBackOffMax");
            return;
        }
        match period {
            Some(period) => self.rule(
                (RESTART_PERIOD_MIN..=RESTART_PERIOD_MAX).contains(&period),
                PATH,
                period.to_string(),
                "must be a duration between 1s and 5m0s",
            ),
            None => self.broken(
                PATH,
                Value::Null,
                "must be set while feature gate KubeletCrashLoopBackOffMax is on",
            ),
        }
    }
}
