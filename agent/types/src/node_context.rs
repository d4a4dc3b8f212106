//! The node's settings and facts that pods' configurations depend on. The daemon fills them in at start and
//! replaces the whole value when a part changes (addresses, `/etc/resolv.conf`, `/etc/hosts`).
//!
//! In: KubeletConfiguration and facts about the machine. Out: plain data. Invariant: no decision in core
//! reads the machine; all facts are in this value.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::SELinuxOptions;
use serde::{Deserialize, Serialize};

/// The node, as pods' configurations depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeContext {
    /// Name of the Node object.
    pub node_name: String,
    /// The node's own addresses, the primary first; `status.hostIP(s)` of the downward API.
    pub node_ips: Vec<String>,
    /// `--root-dir`, absolute, without trailing slash.
    pub root_dir: String,
    /// `podLogsDir`, absolute, without trailing slash.
    pub pod_logs_dir: String,
    /// Driver, root and settings of pods' cgroups.
    pub cgroup: CgroupContext,
    /// Names and addresses for pods' `/etc/resolv.conf`.
    pub dns: DnsContext,
    /// Text of the node's `/etc/hosts`, for host-network pods.
    pub host_etc_hosts: String,
    /// Sizes of the machine, for limits and scores.
    pub machine: MachineContext,
    /// Node-wide security defaults.
    pub security: SecurityContext,
    /// True if the node belongs to a cluster, whose Services its containers get as variables.
    pub in_cluster: bool,
    /// Feature gates for pods.
    pub features: Features,
    /// Runtime handlers with recursive read-only mounts (KEP-3857); the default handler is the empty name.
    pub read_only_handlers: BTreeSet<String>,
}

/// Feature gates that change pods' configurations; the default is upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `ContainerStopSignals`: containers choose their stop signal, and statuses show it.
    pub stop_signals: bool,
    /// `EnvFiles`: variables come from files of volumes (`fileKeyRef`).
    pub env_files: bool,
    /// `InPlacePodLevelResourcesVerticalScaling`: pods' own requests change while they run, and statuses show
    /// them.
    pub pod_level_resize: bool,
    /// `ClusterTrustBundleProjection`: volumes have trust anchors of the cluster.
    pub trust_bundles: bool,
    /// `PodCertificateRequest`: volumes have certificates for their pod.
    pub pod_certificates: bool,
    /// `LocalStorageCapacityIsolationFSQuotaMonitoring`: project quotas of the file system count usage of
    /// pods' directories.
    pub project_quotas: bool,
    /// `ResourceHealthStatus`: statuses show the health of devices.
    pub resource_health: bool,
    /// `SELinuxMount`: volumes of all access modes are mounted with the label that their pod needs.
    pub selinux_mount: bool,
}

impl Default for Features {
    fn default() -> Features {
        Features {
            stop_signals: false,
            env_files: true,
            pod_level_resize: true,
            trust_bundles: false,
            pod_certificates: false,
            project_quotas: false,
            resource_health: true,
            selinux_mount: false,
        }
    }
}

/// Driver, root and settings of pods' cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupContext {
    /// `cgroupDriver` of the configuration, or the runtime's.
    pub driver: CgroupDriver,
    /// `cgroupsPerQOS`.
    pub per_qos: bool,
    /// `cgroupRoot`; empty is the root.
    pub root: String,
    /// True on a machine with the unified hierarchy only.
    pub v2: bool,
    /// `cpuCFSQuota`.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`, microseconds.
    pub cpu_cfs_quota_period_us: i64,
    /// `cpuManagerPolicy: static` and the gate DisableCPUQuotaWithExclusiveCPUs: containers with exclusive processors have no quota.
    pub no_quota_with_exclusive_cpus: bool,
    /// `singleProcessOOMKill`: only the process is killed, not its container.
    pub single_process_oom_kill: bool,
    /// True if the kernel accounts swap in cgroups (`memory.swap.max` exists).
    pub swap_controller: bool,
    /// `memorySwap.swapBehavior: LimitedSwap`: Burstable containers may use their share of the machine's swap.
    pub limited_swap: bool,
    /// `podPidsLimit`; `None` without a limit.
    pub pids_limit: Option<u64>,
    /// Memory reservation for requests, and throttling below the limit (gate MemoryQoS).
    pub memory_qos: MemoryQos,
    /// `memoryThrottlingFactor`, millionths: the part between request and limit that a container has without
    /// throttling.
    pub memory_throttling_ppm: u32,
}

/// Inputs of a pod's resolver configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsContext {
    /// `clusterDNS`.
    pub cluster_dns: Vec<String>,
    /// `clusterDomain`; empty for none.
    pub cluster_domain: String,
    /// The file named by `resolvConf`, parsed. `None` if `resolvConf` is the empty string.
    pub host: Option<ResolvConf>,
}

/// A parsed resolver file (resolv.conf(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver` lines in order.
    pub nameservers: Vec<String>,
    /// Domains of the last `search` line.
    pub searches: Vec<String>,
    /// Words of the last `options` line.
    pub options: Vec<String>,
}

/// Sizes of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineContext {
    /// Memory capacity, bytes; the base of `oom_score_adj`.
    pub memory_capacity_bytes: i64,
    /// Swap of the machine, bytes; 0 without.
    pub swap_capacity_bytes: i64,
    /// Allocatable CPU, thousandths: the limit that a container without one reads.
    pub allocatable_cpu_milli: i64,
    /// Allocatable memory, bytes.
    pub allocatable_memory_bytes: i64,
    /// Allocatable scratch space, bytes.
    pub allocatable_ephemeral_storage_bytes: i64,
    /// Huge page sizes the kernel offers, as the kernel spells them in cgroup files (`2MB`, `1GB`).
    pub hugepage_sizes: Vec<String>,
    /// Paths `/sys/devices/system/cpu/cpuN/thermal_throttle` that exist; they are masked.
    pub thermal_throttle_paths: Vec<String>,
}

/// Node-wide security defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityContext {
    /// `seccompDefault`: containers without a profile run under the runtime's.
    pub seccomp_default: bool,
    /// True if the kernel enforces AppArmor.
    pub apparmor_enabled: bool,
    /// True if the kernel has an SELinux policy: the node then labels the files that it creates for a pod.
    pub selinux_enabled: bool,
    /// The policy's label of container files, if it has one.
    pub selinux: Option<Label>,
}

impl NodeContext {
    /// A node with upstream's defaults, systemd cgroups and no address yet.
    #[must_use]
    pub fn new(node_name: impl Into<String>) -> NodeContext {
        NodeContext {
            node_name: node_name.into(),
            node_ips: Vec::new(),
            root_dir: "/var/lib/kubelet".to_owned(),
            pod_logs_dir: "/var/log/pods".to_owned(),
            cgroup: CgroupContext {
                driver: CgroupDriver::Systemd,
                per_qos: true,
                root: String::new(),
                v2: true,
                cpu_cfs_quota: true,
                cpu_cfs_quota_period_us: 100_000,
                no_quota_with_exclusive_cpus: false,
                single_process_oom_kill: false,
                swap_controller: false,
                pids_limit: None,
                limited_swap: false,
                memory_qos: MemoryQos::Off,
                memory_throttling_ppm: 900_000,
            },
            dns: DnsContext::default(),
            host_etc_hosts: String::new(),
            machine: MachineContext::default(),
            security: SecurityContext::default(),
            in_cluster: false,
            features: Features::default(),
            read_only_handlers: BTreeSet::new(),
        }
    }
}

impl ResolvConf {
    /// Parse a resolver file. Unknown lines and comments are skipped; the last `search` and `options` win.
    #[must_use]
    pub fn parse(text: &str) -> ResolvConf {
        let mut conf = ResolvConf::default();
        for line in text.lines() {
            let line = line.trim();
            if line.starts_with(['#', ';']) {
                continue;
            }
            let mut words = line.split_whitespace();
            let owned = |words: std::str::SplitWhitespace<'_>| words.map(str::to_owned).collect();
            match words.next() {
                Some("nameserver") => conf.nameservers.extend(words.next().map(str::to_owned)),
                // A host with an empty domain writes "search ."; it searches nothing.
                Some("search") => {
                    let domains = words.filter(|w| *w != ".").map(|w| w.strip_suffix('.').unwrap_or(w));
                    conf.searches = domains.map(str::to_owned).collect();
                }
                Some("options") => conf.options = owned(words),
                _ => {}
            }
        }
        conf
    }
}

/// The component that writes cgroups (CRI `RuntimeConfig`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupDriver {
    /// Slices and scopes through systemd.
    Systemd,
    /// The node writes cgroup directories itself.
    Cgroupfs,
}

/// Memory reservation for pods (gate MemoryQoS, `memoryReservationPolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryQos {
    /// The gate is off: nothing is written.
    #[default]
    Off,
    /// The gate is on without a reservation: the node removes reservations of earlier runs.
    None,
    /// `TieredReservation`.
    Tiered,
}

/// An SELinux label: user, role, type and, with categories, a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    user: String,
    role: String,
    kind: String,
    level: String,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Label { user, role, kind, level } = self;
        write!(f, "{user}:{role}:{kind}")?;
        if level.is_empty() { Ok(()) } else { write!(f, ":{level}") }
    }
}

impl Label {
    /// Reads `user:role:type[:level]`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Label> {
        let mut parts = text.splitn(4, ':').map(str::to_owned);
        Some(Label {
            user: parts.next()?,
            role: parts.next()?,
            kind: parts.next()?,
            level: parts.next().unwrap_or_default(),
        })
    }

    /// Label of the files of a container with these options. `None` if they name no level: the runtime then
    /// picks one, which is not known before.
    #[must_use]
    pub fn of(&self, options: &SELinuxOptions) -> Option<Label> {
        let said = |what: &Option<String>| what.clone().filter(|text| !text.is_empty());
        let level = said(&options.level)?;
        // Role and type are the policy's ones for files, not those of the process.
        Some(Label { user: said(&options.user).unwrap_or_else(|| self.user.clone()), level, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_resolver_file() {
        let text = "# made by networkd\n; old comment\nnameserver 192.0.2.1\nnameserver 2001:db8::1 extra\n\
                    search a.example b.example.\nsearch c.example. .\noptions ndots:2\n options edns0 trust-ad\n\
                    domain ignored\nnameserver\n";
        let expected = ResolvConf {
            nameservers: vec!["192.0.2.1".into(), "2001:db8::1".into()],
            searches: vec!["c.example".into()],
            options: vec!["edns0".into(), "trust-ad".into()],
        };
        assert_eq!(ResolvConf::parse(text), expected);
    }

    proptest! {
        #[test]
        fn never_panics(text in "(\\PC|\n){0,200}") {
            let _ = ResolvConf::parse(&text);
        }
    }
}
