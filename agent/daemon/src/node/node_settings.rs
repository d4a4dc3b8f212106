//! Facts about the node. Configuration and machine are combined to the [`NodeContext`] from which pods' configurations
//! are built. The module also refuses to start on a machine that does not fit the configuration.
//!
//! In: [`Settings`], /proc, /sys, resolver and hosts files. Out: plain values; callers read them again from time to
//! time, because addresses and resolvers appear late and change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use agent_core::admission::{AdmissionContext, resize_rules};
use agent_core::container_spec::{self, dns};
use agent_core::events::Fact;
use agent_core::node_status::{addresses, hostname_label};
use agent_core::pod_worker::WorkerContext;
use agent_linux::kernel_defaults::{self, Differs};
use agent_linux::{machine, network, node_info, process, selinux, volumes};
use agent_types::event::EventKind;
use agent_types::node_context::{
    CgroupContext, CgroupDriver, DnsContext, Features, MachineContext, MemoryQos, NodeContext, ResolvConf,
    SecurityContext,
};
use agent_types::pressures::Pressures;
use agent_types::resources::node_allocatable::{self, MachineAmounts, Reservations, Resources};
use agent_types::restart;
use agent_types::runtime::status::{RuntimeHandler, RuntimeVersion};
use agent_types::time::Now;
use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::NodeAddress;
use orlop_config::kubelet::{KubeletConfiguration, enums};

use crate::node::container_manager::plan;
use crate::settings::Settings;

/// Warning for a machine on which `failCgroupV1: false` lets the agent run.
const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. \
     Please migrate to cgroup v2. More information at \
     https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

const SWAPPED_VOLUMES: &str = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) \
     might be swapped to disk and should no longer be considered secure.";

/// Facts that do not change while the agent runs.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    settings: Arc<Settings>,
    node_name: String,
    driver: CgroupDriver,
    runtime_name: String,
    started: Now,
    supplemental_groups_policy: bool,
}

impl NodeFacts {
    /// Facts of this node. `driver` is the cgroup driver that the runtime reports, `started` the start of this agent.
    ///
    /// # Errors
    /// The node has no name, or the machine does not fit the configuration.
    pub fn new(
        settings: Arc<Settings>,
        driver: Option<CgroupDriver>,
        runtime: &RuntimeVersion,
        started: Now,
    ) -> anyhow::Result<NodeFacts> {
        let node_name = node_name(&settings)?;
        let driver = driver.unwrap_or(match settings.kubelet.cgroup_driver {
            enums::CgroupDriver::Systemd => CgroupDriver::Systemd,
            enums::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
        });
        Ok(NodeFacts {
            settings,
            node_name,
            driver,
            runtime_name: runtime.name.clone(),
            started,
            supplemental_groups_policy: knows_supplemental_groups_policy(runtime),
        })
    }

    /// The cgroup driver.
    #[must_use]
    pub fn cgroup_driver(&self) -> CgroupDriver {
        self.driver
    }

    /// Name of the node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// The directory whose file system holds pods' storage; `None` if the node does not count local storage.
    #[must_use]
    pub fn storage(&self) -> Option<&Path> {
        let counted = self.settings.kubelet.local_storage_capacity_isolation;
        counted.then(|| Path::new(&self.settings.options.root_dir))
    }

    /// Present facts that pod workers share. `shown` are the addresses of the Node object, so that pods get the
    /// addresses that `kubectl get nodes` shows. `handlers` are the runtime's.
    ///
    /// # Errors
    /// Memory or CPUs of the machine cannot be read.
    pub fn worker_context(
        &self,
        shown: &[NodeAddress],
        handlers: &[RuntimeHandler],
    ) -> anyhow::Result<WorkerContext> {
        let mut node = self.node_context()?;
        let read_only = handlers.iter().filter(|h| h.recursive_read_only_mounts);
        node.read_only_handlers = read_only.map(|h| h.name.clone()).collect();
        let host_ips = addresses::host_ips(shown);
        if !host_ips.is_empty() {
            node.node_ips = host_ips;
        }
        let kubelet = &self.settings.kubelet;
        let cap = kubelet.crash_loop_back_off.max_container_restart_period;
        Ok(WorkerContext {
            host_ips: node.node_ips.clone(),
            ipv6_first: self.ipv6_first(),
            specs: Arc::new(node),
            request_timeout: kubelet.runtime_request_timeout.to_std(),
            cpus_again: kubelet.cpu_manager_reconcile_period.to_std(),
            crash_loop: restart::series(
                self.settings.gates.reduce_default_crash_loop_back_off_decay,
                cap.map(orlop_config::Duration::to_std),
            ),
            runtime_name: self.runtime_name.clone(),
            agent_started: self.started,
        })
    }

    /// The cgroup in which all pods' cgroups are.
    #[must_use]
    pub fn kubepods(&self) -> String {
        container_spec::kubepods(&self.cgroup())
    }

    fn cgroup(&self) -> CgroupContext {
        let (kubelet, v2) = (&self.settings.kubelet, machine::has_cgroup_v2());
        CgroupContext {
            driver: self.driver,
            per_qos: kubelet.cgroups_per_qos,
            root: kubelet.cgroup_root.clone(),
            v2,
            cpu_cfs_quota: kubelet.cpu_cfs_quota,
            cpu_cfs_quota_period_us: kubelet.cpu_cfs_quota_period.as_nanos() / 1000,
            no_quota_with_exclusive_cpus: kubelet.cpu_manager_policy == enums::CpuManagerPolicy::Static
                && self.settings.gates.disable_cpu_quota_with_exclusive_cpus,
            single_process_oom_kill: kubelet.single_process_oom_kill.unwrap_or(!v2),
            swap_controller: machine::has_swap_controller(),
            pids_limit: u64::try_from(kubelet.pod_pids_limit).ok().filter(|limit| *limit > 0),
            limited_swap: self.limited_swap(),
            memory_qos: if v2 { plan::memory_qos(kubelet, &self.settings.gates) } else { MemoryQos::Off },
            memory_throttling_ppm: millionths(kubelet.memory_throttling_factor),
        }
    }

    /// True if pods may swap, each up to its share.
    fn limited_swap(&self) -> bool {
        let behavior = self.settings.kubelet.memory_swap.swap_behavior;
        behavior == enums::SwapBehavior::LimitedSwap
            && machine::has_cgroup_v2()
            && machine::has_swap_controller()
    }

    /// The present state of the node.
    ///
    /// # Errors
    /// Memory or CPUs of the machine cannot be read.
    pub fn node_context(&self) -> anyhow::Result<NodeContext> {
        let kubelet = &self.settings.kubelet;
        let root_dir = self.settings.options.root_dir.trim_end_matches('/').to_owned();
        let selinux_enabled = selinux::is_enabled();
        Ok(NodeContext {
            node_name: self.node_name.clone(),
            node_ips: self.node_ips(),
            machine: machine_context(kubelet, Path::new(&root_dir))?,
            root_dir,
            pod_logs_dir: kubelet.pod_logs_dir.trim_end_matches('/').to_owned(),
            cgroup: self.cgroup(),
            dns: DnsContext {
                cluster_dns: kubelet.cluster_dns.clone(),
                cluster_domain: kubelet.cluster_domain.clone(),
                host: resolver(&kubelet.resolv_conf),
            },
            host_etc_hosts: std::fs::read_to_string("/etc/hosts").unwrap_or_default(),
            in_cluster: self.settings.cluster.is_some(),
            features: self.features(),
            read_only_handlers: BTreeSet::new(),
            security: SecurityContext {
                seccomp_default: kubelet.seccomp_default,
                apparmor_enabled: machine::has_apparmor(),
                selinux_enabled,
                selinux: selinux_enabled.then(selinux::container_files).flatten(),
            },
        })
    }

    fn features(&self) -> Features {
        let gates = &self.settings.gates;
        Features {
            stop_signals: gates.container_stop_signals,
            env_files: gates.env_files,
            pod_level_resize: gates.in_place_pod_level_resources_vertical_scaling,
            trust_bundles: gates.cluster_trust_bundle_projection,
            pod_certificates: gates.pod_certificate_request,
            project_quotas: gates.local_storage_capacity_isolation_fs_quota_monitoring,
            resource_health: gates.resource_health_status,
            selinux_mount: gates.selinux_mount,
        }
    }

    /// Facts about the node that admission uses.
    ///
    /// # Errors
    /// Memory or CPUs of the machine cannot be read.
    pub fn admission_context(&self) -> anyhow::Result<AdmissionContext> {
        let kubelet = &self.settings.kubelet;
        let (allocatable, _) = amounts(kubelet, Path::new(&self.settings.options.root_dir))?;
        let gates = &self.settings.gates;
        Ok(AdmissionContext {
            node_name: self.node_name.clone(),
            node_labels: node_labels(&self.node_name, &self.settings.options.node_labels),
            node_taints: Vec::new(),
            max_pods: allocatable
                .get(node_allocatable::PODS)
                .and_then(|pods| u32::try_from(pods.value()).ok()),
            allocatable: allocatable.into_iter().filter(|(name, _)| name != node_allocatable::PODS).collect(),
            no_extended_claims: !gates.dra_extended_resource,
            allowed_unsafe_sysctls: kubelet.allowed_unsafe_sysctls.clone(),
            resizes: resize_rules::Rules {
                limited_swap: self.limited_swap(),
                fixed_pod_level: !gates.in_place_pod_level_resources_vertical_scaling,
                static_cpus: kubelet.cpu_manager_policy == enums::CpuManagerPolicy::Static
                    && !gates.in_place_pod_vertical_scaling_exclusive_cpus,
                static_memory: kubelet.memory_manager_policy == enums::MemoryManagerPolicy::Static
                    && !gates.in_place_pod_vertical_scaling_exclusive_memory,
            },
            kernel: machine::kernel_version()?,
            apparmor_enabled: machine::has_apparmor(),
            supplemental_groups_policy: self.supplemental_groups_policy,
            pressures: Pressures::default(),
        })
    }

    /// Amounts that the node keeps from pods: for the system, for Kubernetes and for hard eviction.
    ///
    /// # Errors
    /// Memory or CPUs of the machine cannot be read.
    pub fn kept_from_pods(&self) -> anyhow::Result<Resources> {
        let kubelet = &self.settings.kubelet;
        let amounts = machine_amounts(kubelet, Path::new(&self.settings.options.root_dir))?;
        let reservations = Reservations::new(kubelet);
        Ok(reservations.of_capacity(&node_allocatable::capacity(&amounts, &reservations)))
    }

    /// What is wrong with this machine in ways that pods may feel, as events of the node.
    #[must_use]
    pub fn warnings(&self) -> Vec<Fact> {
        let kubelet = &self.settings.kubelet;
        let mut warnings = Vec::new();
        if !machine::has_cgroup_v2() {
            warnings.push(Fact::of_node(EventKind::Warning, "CgroupV1", CGROUP_V1));
        }
        let root = Path::new(&self.settings.options.root_dir);
        warnings.extend(swapped_volumes(&machine::swaps(), || volumes::has_tmpfs_noswap(root)));
        let path = kubelet.resolv_conf.as_str();
        if !path.is_empty() {
            let problem = match std::fs::read_to_string(path) {
                Ok(text) => dns::resolver_problem(path, &text, &kubelet.cluster_domain),
                Err(error) => Some(format!("open {path}: {error}")),
            };
            let fact = |problem| Fact::of_node(EventKind::Warning, "CheckLimitsForResolvConf", problem);
            warnings.extend(problem.map(fact));
        }
        warnings
    }

    /// The addresses of `--node-ip`; `None` for the unspecified addresses, which only choose the preferred family.
    fn given_ips(&self) -> Option<&str> {
        self.settings.options.node_ip.as_deref().filter(|given| !matches!(*given, "" | "0.0.0.0" | "::"))
    }

    /// True if the first address of `--node-ip` is of IPv6, `::` included.
    fn ipv6_first(&self) -> bool {
        let first = self.settings.options.node_ip.as_deref().and_then(|given| given.split(',').next());
        first.and_then(|ip| ip.trim().parse().ok()).is_some_and(|ip: std::net::IpAddr| ip.is_ipv6())
    }

    /// The name to resolve for the node's address; `None` if the address was given.
    #[must_use]
    pub fn name_to_look_up(&self) -> Option<&str> {
        self.given_ips().is_none().then_some(self.node_name())
    }

    fn node_ips(&self) -> Vec<String> {
        match (self.given_ips(), self.settings.options.node_ip.as_deref()) {
            (Some(given), _) => given.split(',').map(|ip| ip.trim().to_owned()).collect(),
            (None, preference) => {
                let mut ips = network::node_addresses();
                if preference == Some("::") {
                    ips.sort_by_key(std::net::IpAddr::is_ipv4);
                }
                ips.iter().map(ToString::to_string).collect()
            }
        }
    }
}

/// Labels that every node has, and those of `--node-labels`, which take precedence.
fn node_labels(name: &str, given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let arch = node_info::architecture();
    let hostname = hostname_label(name);
    let own = [
        ("kubernetes.io/hostname", hostname.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ];
    let mut labels: BTreeMap<String, String> = own.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    labels.extend(given.clone());
    labels
}

/// containerd supports supplementalGroupsPolicy since 2.0. For other runtimes the CRI status would be needed.
fn knows_supplemental_groups_policy(runtime: &RuntimeVersion) -> bool {
    let major = runtime.version.trim_start_matches('v').split('.').next().and_then(|m| m.parse::<u32>().ok());
    runtime.name == "containerd" && major.is_some_and(|m| m >= 2)
}

/// Refuses a machine that the configuration excludes (failCgroupV1, failSwapOn, protectKernelDefaults).
///
/// # Errors
/// The reason, and the remedy.
pub fn check_machine(kubelet: &KubeletConfiguration) -> anyhow::Result<()> {
    if kubelet.fail_cgroup_v1 && !machine::has_cgroup_v2() {
        bail!(
            "this machine has no unified cgroup hierarchy (cgroup v2) and failCgroupV1 is true: \
             boot with cgroup v2, or set failCgroupV1: false"
        );
    }
    if kubelet.cgroups_per_qos && !machine::has_cgroup_v2() {
        bail!(
            "this machine has no unified cgroup hierarchy (cgroup v2), and pods are given cgroups of their own in no \
             other one: boot with cgroup v2, or set cgroupsPerQOS: false and enforceNodeAllocatable: []"
        );
    }
    let swaps = machine::swaps();
    if kubelet.fail_swap_on && !swaps.is_empty() {
        bail!(
            "swap is on ({}) and failSwapOn is true: turn it off, or set failSwapOn: false",
            swaps.join(", ")
        );
    }
    check_kernel(kubelet.protect_kernel_defaults, &kernel_defaults::differing(Path::new("/proc/sys")))
}

/// The warning about volumes in memory on a machine with `swaps`, if its kernel may write them there.
fn swapped_volumes(swaps: &[String], has_noswap: impl FnOnce() -> bool) -> Option<Fact> {
    let swapped = !swaps.is_empty() && !has_noswap();
    swapped.then(|| Fact::of_node(EventKind::Warning, "PossibleMemoryBackedVolumesOnDisk", SWAPPED_VOLUMES))
}

/// With `protected` (protectKernelDefaults), a kernel parameter with another value is an error; otherwise the log has a
/// line about it. The agent writes no parameter: it does not change a machine without its administrator, and the image
/// sets all of them (upstream writes them without the setting).
fn check_kernel(protected: bool, differing: &[Differs]) -> anyhow::Result<()> {
    let all: Vec<String> = differing.iter().map(ToString::to_string).collect();
    if protected && !all.is_empty() {
        bail!(
            "protectKernelDefaults is true: [{}]: correct these below kernel.sysctls of the NodeConfig, or set \
             kubelet.protectKernelDefaults to false",
            all.join(", ")
        );
    }
    for differs in all {
        tracing::info!("{differs}");
    }
    Ok(())
}

/// The node's name: the given one, or the host's; lower case and trimmed, as upstream does.
///
/// # Errors
/// The name is not valid for a Node, or the host has none.
pub fn node_name(settings: &Settings) -> anyhow::Result<String> {
    normal_name(settings.options.hostname_override.as_deref())
}

fn normal_name(given: Option<&str>) -> anyhow::Result<String> {
    let name = match given {
        Some(name) => name.to_owned(),
        None => process::hostname().context("read the host's name")?,
    };
    let name = name.trim().to_lowercase();
    if !orlop_config::formats::is_dns_name(&name) {
        bail!("node name {name:?} is no DNS name: set the host's name or --hostname-override");
    }
    Ok(name)
}

fn resolver(path: &str) -> Option<ResolvConf> {
    if path.is_empty() {
        return None;
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Some(ResolvConf::parse(&text)),
        Err(error) => {
            tracing::warn!(path, %error, "resolver configuration cannot be read; pods get none");
            Some(ResolvConf::default())
        }
    }
}

pub(crate) fn machine_amounts(
    kubelet: &KubeletConfiguration,
    root_dir: &Path,
) -> anyhow::Result<MachineAmounts> {
    let isolated = kubelet.local_storage_capacity_isolation;
    Ok(MachineAmounts {
        cpus: machine::cpus_online()?,
        memory_bytes: machine::memory_bytes()?,
        hugepages: machine::hugepages(),
        ephemeral_storage_bytes: isolated.then(|| machine::filesystem_bytes(root_dir).ok()).flatten(),
    })
}

/// Allocatable resources of this machine, and its bytes of memory.
fn amounts(kubelet: &KubeletConfiguration, root_dir: &Path) -> anyhow::Result<(Resources, i64)> {
    let amounts = machine_amounts(kubelet, root_dir)?;
    let reservations = Reservations::new(kubelet);
    let capacity = node_allocatable::capacity(&amounts, &reservations);
    let allocatable = node_allocatable::allocatable(&capacity, &reservations);
    Ok((allocatable, i64::try_from(amounts.memory_bytes).unwrap_or(i64::MAX)))
}

/// A factor between 0 and 1.
fn millionths(factor: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "validated: above 0, at most 1"
    )]
    let millionths = (factor * 1e6).round() as u32;
    millionths
}

fn machine_context(kubelet: &KubeletConfiguration, root_dir: &Path) -> anyhow::Result<MachineContext> {
    let (allocatable, memory_capacity_bytes) = amounts(kubelet, root_dir)?;
    let of = |name: &str| allocatable.get(name).copied().unwrap_or_default();
    Ok(MachineContext {
        memory_capacity_bytes,
        swap_capacity_bytes: i64::try_from(machine::swap_bytes()?).unwrap_or(i64::MAX),
        allocatable_cpu_milli: of("cpu").milli_value(),
        allocatable_memory_bytes: of("memory").value(),
        allocatable_ephemeral_storage_bytes: of(node_allocatable::EPHEMERAL_STORAGE).value(),
        hugepage_sizes: machine::hugepage_sizes(),
        thermal_throttle_paths: machine::thermal_throttle_paths(),
    })
}

#[cfg(test)]
mod tests {
    use orlop_config::kubelet::FeatureGates;

    use crate::node::node_settings::*;

    #[test]
    fn admission_of_an_unchanged_machine_is_the_same() {
        let kubelet = KubeletConfiguration { max_pods: 110, pods_per_core: 1, ..Default::default() };
        let options = orlop_config::kubelet::flags::args::Options {
            hostname_override: Some("n1".to_owned()),
            root_dir: "/".to_owned(),
            ..Default::default()
        };
        let (given, gates) = (Vec::new(), FeatureGates::of(&kubelet));
        let settings = Settings {
            kubelet,
            gates,
            options,
            cluster: None,
            pod_output: false,
            pods_per_shim: 1,
            given,
            warnings: Vec::new(),
        };
        let runtime = |version: &str| RuntimeVersion {
            name: "containerd".to_owned(),
            version: version.to_owned(),
            api_version: "v1".to_owned(),
        };
        let facts = NodeFacts::new(Arc::new(settings), None, &runtime("2.1.9"), Now::default()).unwrap();
        let admission = facts.admission_context().unwrap();
        assert_eq!(admission, facts.admission_context().unwrap());
        assert_eq!(admission.max_pods, Some(machine::cpus_online().unwrap()));
        assert_eq!(admission.node_labels["kubernetes.io/hostname"], "n1");
        assert!(
            ["cpu", "memory", "ephemeral-storage"].iter().all(|r| admission.allocatable.contains_key(*r))
        );
        assert!(admission.supplemental_groups_policy);
        assert!(!knows_supplemental_groups_policy(&runtime("1.7.28")));
        let context = || format!("{:?}", facts.worker_context(&[], &[]).unwrap());
        assert_eq!(context(), context());
    }

    #[test]
    fn volumes_in_memory_are_warned_of_where_the_kernel_may_swap_them() {
        let swaps = ["/dev/vdb".to_owned()];
        assert_eq!(swapped_volumes(&[], || false), None);
        assert_eq!(swapped_volumes(&swaps, || true), None);
        let fact = swapped_volumes(&swaps, || false).unwrap();
        assert_eq!(
            (fact.kind, fact.reason.as_str()),
            (EventKind::Warning, "PossibleMemoryBackedVolumesOnDisk")
        );
        assert!(fact.message.starts_with("The tmpfs noswap option is not supported."), "{}", fact.message);
    }

    #[test]
    fn given_labels_go_before_the_platforms() {
        let given =
            [("kubernetes.io/hostname", "other"), ("x", "y")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let labels = node_labels("n1", &given.into());
        assert_eq!((labels["kubernetes.io/hostname"].as_str(), labels["x"].as_str()), ("other", "y"));
        assert_eq!((labels["kubernetes.io/os"].as_str(), labels.len()), ("linux", 6));
    }

    #[test]
    fn kernel_parameters_are_an_error_only_where_they_are_protected() {
        let differs = [Differs { name: "kernel/panic", expected: 10, actual: "0".to_owned() }];
        assert!(check_kernel(false, &differs).is_ok());
        assert!(check_kernel(true, &[]).is_ok());
        let error = check_kernel(true, &differs).unwrap_err().to_string();
        assert!(
            error.contains("invalid kernel flag: kernel/panic, expected value: 10, actual value: 0"),
            "{error}"
        );
    }

    #[test]
    fn names() {
        assert_eq!(normal_name(Some(" Node-1 ")).unwrap(), "node-1");
        assert!(normal_name(Some("a_b")).is_err());
        assert!(normal_name(Some("")).is_err());
    }

    #[test]
    fn pods_may_have_what_is_not_reserved() {
        let mut kubelet = KubeletConfiguration::default();
        kubelet.system_reserved.insert("cpu".to_owned(), "100m".to_owned());
        let context = machine_context(&kubelet, Path::new("/")).unwrap();
        let cpus = i64::from(machine::cpus_online().unwrap()) * 1000;
        assert_eq!(context.allocatable_cpu_milli, cpus - 100);
        assert!(context.allocatable_memory_bytes < context.memory_capacity_bytes);
        assert!(context.allocatable_ephemeral_storage_bytes > 0);
        kubelet.local_storage_capacity_isolation = false;
        let context = machine_context(&kubelet, Path::new("/")).unwrap();
        assert_eq!(context.allocatable_ephemeral_storage_bytes, 0);
    }
}
