//! KubeletConfiguration `kubelet.config.k8s.io/v1beta1` of Kubernetes v1.36: every field with its default.
//!
//! `Default` is the effective configuration of a document that sets nothing. Ranges of single fields stand here;
//! rules between fields are in `validate`. Upstream term: `KubeletConfiguration`, kubelet/config/v1beta1.

use super::enums::{
    CgroupDriver, ChangeDetectionStrategy, CpuManagerPolicy, HairpinMode,
    ImagePullCredentialsVerificationPolicy, MemoryManagerPolicy, MemoryReservationPolicy,
    NodeAllocatableEnforcement, TopologyManagerPolicy, TopologyManagerScope,
};
use super::eviction;
use super::nested::{
    Authentication, Authorization, CrashLoopBackOff, HeaderValues, Logging, MemoryReservation, MemorySwap,
    ShutdownGracePeriodByPodPriority, Taint, Tracing, UserNamespaces,
};
use crate::duration::Duration;
use crate::field::config_struct;
use crate::quantity::Quantity;
use std::collections::BTreeMap;

/// `apiVersion` of the document.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// `kind` of the document.
pub const KIND: &str = "KubeletConfiguration";

/// Strings to strings, sorted.
type Map = BTreeMap<String, String>;

config_struct! {
    /// The agent's configuration; public field names follow the JSON names.
    pub struct KubeletConfiguration {
        /// Always [`API_VERSION`].
        api_version: String = API_VERSION.to_owned(), "apiVersion";
        /// Always [`KIND`].
        kind: String = KIND.to_owned(), "kind";
        /// Serve the HTTPS API on `address`:`port`.
        enable_server: bool = true, "enableServer";
        /// Directory or file of static pod manifests; empty: none.
        static_pod_path: String = String::new(), "staticPodPath";
        /// Directory of pod log directories; absolute, normalised, ASCII.
        pod_logs_dir: String = "/var/log/pods".to_owned(), "podLogsDir", zero_unset;
        /// Longest time between two syncs of a pod.
        sync_frequency: Duration = Duration::from_mins(1), "syncFrequency", zero_unset;
        /// Time between rescans of `staticPodPath`.
        file_check_frequency: Duration = Duration::from_secs(20), "fileCheckFrequency", zero_unset;
        /// Time between reads of `staticPodURL`.
        http_check_frequency: Duration = Duration::from_secs(20), "httpCheckFrequency", zero_unset;
        /// URL of static pod manifests; empty: none.
        static_pod_url: String = String::new(), "staticPodURL";
        /// HTTP headers of requests to `staticPodURL`; secret.
        static_pod_url_header: BTreeMap<String, HeaderValues> = BTreeMap::new(), "staticPodURLHeader", secret;
        /// Address of the HTTPS API.
        address: String = "0.0.0.0".to_owned(), "address", zero_unset;
        /// Port of the HTTPS API.
        port: i32 = 10250, "port", zero_unset, range(1, 65535);
        /// Port of the read-only HTTP API without authentication; 0: off.
        read_only_port: i32 = 0, "readOnlyPort", range(0, 65535);
        /// Serving certificate; empty: self-signed below the certificate directory.
        tls_cert_file: String = String::new(), "tlsCertFile";
        /// Key of `tlsCertFile`.
        tls_private_key_file: String = String::new(), "tlsPrivateKeyFile";
        /// Cipher suites by IANA name; empty: the TLS library's choice.
        tls_cipher_suites: Vec<String> = Vec::new(), "tlsCipherSuites";
        /// Key exchange curves by IANA number, in order of preference; empty: the TLS library's choice.
        tls_curve_preferences: Vec<i32> = Vec::new(), "tlsCurvePreferences";
        /// Oldest protocol: VersionTLS10 to VersionTLS13; empty: the TLS library's choice.
        tls_min_version: String = String::new(), "tlsMinVersion";
        /// Renew the client certificate before it expires.
        rotate_certificates: bool = false, "rotateCertificates";
        /// Ask the API server for the serving certificate.
        server_tls_bootstrap: bool = false, "serverTLSBootstrap";
        /// Who calls.
        authentication: Authentication = Authentication::default(), "authentication";
        /// What a caller may do.
        authorization: Authorization = Authorization::default(), "authorization";
        /// Image pulls per second; 0: no limit.
        registry_pull_qps: i32 = 5, "registryPullQPS", at_least(0);
        /// Image pulls that may come at once.
        registry_burst: i32 = 10, "registryBurst", zero_unset, at_least(0);
        /// When credentials are checked for images already present; not set while KubeletEnsureSecretPulledImages is off.
        image_pull_credentials_verification_policy: Option<ImagePullCredentialsVerificationPolicy> =
            Some(ImagePullCredentialsVerificationPolicy::NeverVerifyPreloadedImages),
            "imagePullCredentialsVerificationPolicy", zero_unset;
        /// Image patterns exempt from the check, with policy NeverVerifyAllowlistedImages only.
        preloaded_images_verification_allowlist: Vec<String> = Vec::new(), "preloadedImagesVerificationAllowlist";
        /// Events per second; 0: no limit.
        event_record_qps: i32 = 50, "eventRecordQPS", at_least(0);
        /// Events that may come at once.
        event_burst: i32 = 100, "eventBurst", zero_unset, at_least(0);
        /// Serve logs, exec, attach and port-forward.
        enable_debugging_handlers: bool = true, "enableDebuggingHandlers";
        /// Profile lock contention.
        enable_contention_profiling: bool = false, "enableContentionProfiling";
        /// Port of /healthz; 0: off.
        healthz_port: i32 = 10248, "healthzPort", range(0, 65535);
        /// Address of /healthz.
        healthz_bind_address: String = "127.0.0.1".to_owned(), "healthzBindAddress", zero_unset;
        /// The agent's own OOM score adjustment.
        oom_score_adj: i32 = -999, "oomScoreAdj", range(-1000, 1000);
        /// DNS domain of the cluster; empty: none.
        cluster_domain: String = String::new(), "clusterDomain";
        /// DNS servers of the cluster.
        cluster_dns: Vec<String> = Vec::new(), "clusterDNS";
        /// Idle time after which exec and port-forward connections are closed.
        streaming_connection_idle_timeout: Duration = Duration::from_mins(240), "streamingConnectionIdleTimeout",
            zero_unset;
        /// Time between computations of the node status.
        node_status_update_frequency: Duration = Duration::from_secs(10), "nodeStatusUpdateFrequency", zero_unset;
        /// Time between posts of an unchanged node status; equals the update frequency when only that was set.
        node_status_report_frequency: Duration = Duration::from_mins(5), "nodeStatusReportFrequency", zero_unset;
        /// Length of the node's Lease, seconds.
        node_lease_duration_seconds: i32 = 40, "nodeLeaseDurationSeconds", zero_unset, range(1, 2_147_483_647);
        /// Age below which an unused image is kept.
        image_minimum_gc_age: Duration = Duration::from_mins(2), "imageMinimumGCAge", zero_unset, at_least(0);
        /// Age above which an unused image is removed; 0s: never for age alone.
        image_maximum_gc_age: Duration = Duration::ZERO, "imageMaximumGCAge", at_least(0);
        /// Disk usage that starts image removal, percent.
        image_gc_high_threshold_percent: i32 = 85, "imageGCHighThresholdPercent", range(0, 100);
        /// Disk usage that ends image removal, percent; below the high one.
        image_gc_low_threshold_percent: i32 = 80, "imageGCLowThresholdPercent", range(0, 100);
        /// Time between measurements of volumes; negative: off.
        volume_stats_agg_period: Duration = Duration::from_mins(1), "volumeStatsAggPeriod", zero_unset;
        /// Cgroup of the agent itself; empty: where it was started.
        kubelet_cgroups: String = String::new(), "kubeletCgroups";
        /// Cgroup for system processes outside any; needs `cgroupRoot`.
        system_cgroups: String = String::new(), "systemCgroups";
        /// Cgroup above all pods; empty: the runtime's default.
        cgroup_root: String = String::new(), "cgroupRoot";
        /// Cgroups per QoS class and pod.
        cgroups_per_qos: bool = true, "cgroupsPerQOS";
        /// Who writes cgroups.
        cgroup_driver: CgroupDriver = CgroupDriver::Cgroupfs, "cgroupDriver", zero_unset;
        /// How CPUs are given out.
        cpu_manager_policy: CpuManagerPolicy = CpuManagerPolicy::None, "cpuManagerPolicy", zero_unset;
        /// Whether an OOM kill takes one process instead of the container; none: false on cgroup v2, true on v1.
        single_process_oom_kill: Option<bool> = None, "singleProcessOOMKill";
        /// Options of the CPU manager policy.
        cpu_manager_policy_options: Map = Map::new(), "cpuManagerPolicyOptions";
        /// Time between reconciliations of the CPU manager.
        cpu_manager_reconcile_period: Duration = Duration::from_secs(10), "cpuManagerReconcilePeriod", zero_unset;
        /// How NUMA memory is given out.
        memory_manager_policy: MemoryManagerPolicy = MemoryManagerPolicy::None, "memoryManagerPolicy", zero_unset;
        /// How strictly NUMA alignment is kept.
        topology_manager_policy: TopologyManagerPolicy = TopologyManagerPolicy::None, "topologyManagerPolicy",
            zero_unset;
        /// What one alignment covers.
        topology_manager_scope: TopologyManagerScope = TopologyManagerScope::Container, "topologyManagerScope",
            zero_unset;
        /// Options of the topology manager policy.
        topology_manager_policy_options: Map = Map::new(), "topologyManagerPolicyOptions";
        /// Resource to percentage reserved for higher QoS classes; alpha.
        qos_reserved: Map = Map::new(), "qosReserved";
        /// Deadline of runtime calls, except pulls, logs, exec and attach.
        runtime_request_timeout: Duration = Duration::from_mins(2), "runtimeRequestTimeout", zero_unset;
        /// How a pod reaches itself through its service.
        hairpin_mode: HairpinMode = HairpinMode::PromiscuousBridge, "hairpinMode", zero_unset;
        /// Most pods on this node.
        max_pods: i32 = 110, "maxPods", zero_unset, at_least(0);
        /// Pod addresses of a standalone node.
        pod_cidr: String = String::new(), "podCIDR";
        /// Most processes per pod; -1: the node's limit.
        pod_pids_limit: i64 = -1, "podPidsLimit";
        /// Resolver configuration for pods; empty: none.
        resolv_conf: String = "/etc/resolv.conf".to_owned(), "resolvConf";
        /// Gone upstream; true is refused.
        run_once: bool = false, "runOnce";
        /// Enforce CPU limits by CFS quota.
        cpu_cfs_quota: bool = true, "cpuCFSQuota";
        /// CFS period.
        cpu_cfs_quota_period: Duration = Duration::from_millis(100), "cpuCFSQuotaPeriod",
            range(1_000_000, 1_000_000_000);
        /// Most images in the node status; -1: all.
        node_status_max_images: i32 = 50, "nodeStatusMaxImages", at_least(-1);
        /// Open file limit of the agent.
        max_open_files: i64 = 1_000_000, "maxOpenFiles", zero_unset, at_least(0);
        /// Media type of requests to the API server.
        content_type: String = "application/vnd.kubernetes.protobuf".to_owned(), "contentType", zero_unset;
        /// API server requests per second; 0: no limit.
        kube_api_qps: i32 = 50, "kubeAPIQPS", at_least(0);
        /// API server requests that may come at once.
        kube_api_burst: i32 = 100, "kubeAPIBurst", zero_unset, at_least(0);
        /// Pull images one after the other; false when only `maxParallelImagePulls` of 2 or more was set.
        serialize_image_pulls: bool = true, "serializeImagePulls";
        /// Most pulls at once; none: no limit when pulls are not serialised.
        max_parallel_image_pulls: Option<i32> = None, "maxParallelImagePulls", range(1, 2_147_483_647);
        /// Signal to amount or percentage below which pods are evicted at once.
        eviction_hard: Map = eviction::default_hard(), "evictionHard";
        /// Signal to amount or percentage below which pods are evicted after the grace period.
        eviction_soft: Map = Map::new(), "evictionSoft";
        /// Signal to how long a soft threshold must hold.
        eviction_soft_grace_period: Map = Map::new(), "evictionSoftGracePeriod";
        /// How long a pressure condition outlives its cause.
        eviction_pressure_transition_period: Duration = Duration::from_mins(5), "evictionPressureTransitionPeriod",
            zero_unset;
        /// Longest grace of a pod under soft eviction, seconds; negative: the pod's own.
        eviction_max_pod_grace_period: i32 = 0, "evictionMaxPodGracePeriod";
        /// Signal to what is reclaimed beyond the threshold.
        eviction_minimum_reclaim: Map = Map::new(), "evictionMinimumReclaim";
        /// Keep the default of each hard threshold that is not set.
        merge_default_eviction_settings: bool = false, "mergeDefaultEvictionSettings";
        /// Most pods per CPU; 0: no such limit.
        pods_per_core: i32 = 0, "podsPerCore", at_least(0);
        /// Volumes are attached by the controller manager.
        enable_controller_attach_detach: bool = true, "enableControllerAttachDetach";
        /// Refuse to run when kernel settings differ from what is needed, instead of setting them.
        protect_kernel_defaults: bool = false, "protectKernelDefaults";
        /// Make the iptables chain that marks the node as such.
        make_iptables_util_chains: bool = true, "makeIPTablesUtilChains";
        /// Packet mark bit for masquerading.
        iptables_masquerade_bit: i32 = 14, "iptablesMasqueradeBit", range(0, 31);
        /// Packet mark bit for dropping.
        iptables_drop_bit: i32 = 15, "iptablesDropBit", range(0, 31);
        /// Feature gates that differ from their default.
        feature_gates: BTreeMap<String, bool> = BTreeMap::new(), "featureGates";
        /// Refuse to run on a node with swap.
        fail_swap_on: bool = true, "failSwapOn";
        /// Swap for pods.
        memory_swap: MemorySwap = MemorySwap::default(), "memorySwap";
        /// Size at which a container's log is rotated.
        container_log_max_size: String = "10Mi".to_owned(), "containerLogMaxSize", zero_unset;
        /// Log files kept per container.
        container_log_max_files: i32 = 5, "containerLogMaxFiles", range(2, 2_147_483_647);
        /// Rotations at once.
        container_log_max_workers: i32 = 1, "containerLogMaxWorkers", range(1, 2_147_483_647);
        /// Time between looks at log sizes.
        container_log_monitor_interval: Duration = Duration::from_secs(10), "containerLogMonitorInterval",
            at_least(3_000_000_000);
        /// How changes of ConfigMaps and Secrets are noticed.
        config_map_and_secret_change_detection_strategy: ChangeDetectionStrategy = ChangeDetectionStrategy::Watch,
            "configMapAndSecretChangeDetectionStrategy", zero_unset;
        /// Resources kept for the system: cpu, memory, ephemeral-storage, pid.
        system_reserved: Map = Map::new(), "systemReserved";
        /// Resources kept for Kubernetes' own services: cpu, memory, ephemeral-storage, pid.
        kube_reserved: Map = Map::new(), "kubeReserved";
        /// CPUs kept for both (`0-1,4`); replaces their cpu amounts.
        reserved_system_cpus: String = String::new(), "reservedSystemCPUs";
        /// Show metrics hidden since this minor version, the previous one only.
        show_hidden_metrics_for_version: String = String::new(), "showHiddenMetricsForVersion";
        /// Cgroup the system's reservation is enforced on.
        system_reserved_cgroup: String = String::new(), "systemReservedCgroup";
        /// Cgroup Kubernetes' reservation is enforced on.
        kube_reserved_cgroup: String = String::new(), "kubeReservedCgroup";
        /// What Node Allocatable is enforced for.
        enforce_node_allocatable: Vec<NodeAllocatableEnforcement> = vec![NodeAllocatableEnforcement::Pods],
            "enforceNodeAllocatable";
        /// Sysctl patterns pods may set although they are not safe.
        allowed_unsafe_sysctls: Vec<String> = Vec::new(), "allowedUnsafeSysctls";
        /// Directory of FlexVolume drivers.
        volume_plugin_dir: String = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".to_owned(),
            "volumePluginDir", zero_unset;
        /// The machine's id at its provider.
        provider_id: String = String::new(), "providerID";
        /// Let the kernel announce memory thresholds.
        kernel_memcg_notification: bool = false, "kernelMemcgNotification";
        /// The agent's own log.
        logging: Logging = Logging::default(), "logging";
        /// Serve /logs.
        enable_system_log_handler: bool = true, "enableSystemLogHandler";
        /// Serve queries of service logs; needs `enableSystemLogHandler`.
        enable_system_log_query: bool = false, "enableSystemLogQuery";
        /// Shutdown delay for all pods; 0s or at least 1s.
        shutdown_grace_period: Duration = Duration::ZERO, "shutdownGracePeriod";
        /// Its part for critical pods; 0s or at least 1s.
        shutdown_grace_period_critical_pods: Duration = Duration::ZERO, "shutdownGracePeriodCriticalPods";
        /// Shutdown delay by priority, instead of the two above.
        shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority> = Vec::new(),
            "shutdownGracePeriodByPodPriority";
        /// Restart backoff.
        crash_loop_back_off: CrashLoopBackOff = CrashLoopBackOff {
            max_container_restart_period: Some(Duration::from_secs(300)),
        }, "crashLoopBackOff";
        /// Memory of NUMA nodes kept from pods.
        reserved_memory: Vec<MemoryReservation> = Vec::new(), "reservedMemory";
        /// Serve /debug/pprof.
        enable_profiling_handler: bool = true, "enableProfilingHandler";
        /// Serve /debug/flags.
        enable_debug_flags_handler: bool = true, "enableDebugFlagsHandler";
        /// RuntimeDefault is the seccomp profile of containers that name none.
        seccomp_default: bool = false, "seccompDefault";
        /// `memory.high` as a share of the limit, above 0 and up to 1.
        memory_throttling_factor: f64 = 0.9, "memoryThrottlingFactor";
        /// How requests become memory protection.
        memory_reservation_policy: MemoryReservationPolicy = MemoryReservationPolicy::None,
            "memoryReservationPolicy", zero_unset;
        /// Taints of the node at registration.
        register_with_taints: Vec<Taint> = Vec::new(), "registerWithTaints";
        /// Register the node with the API server.
        register_node: bool = true, "registerNode";
        /// Traces.
        tracing: Option<Tracing> = None, "tracing";
        /// Account and limit local storage; false where the root file system cannot be measured.
        local_storage_capacity_isolation: bool = true, "localStorageCapacityIsolation";
        /// The runtime's CRI socket.
        container_runtime_endpoint: String = "unix:///run/containerd/containerd.sock".to_owned(),
            "containerRuntimeEndpoint", zero_unset;
        /// CRI socket for images; empty: the runtime's.
        image_service_endpoint: String = String::new(), "imageServiceEndpoint";
        /// Refuse to run on cgroup v1.
        fail_cgroup_v1: bool = true, "failCgroupV1";
        /// User namespaces of pods.
        user_namespaces: Option<UserNamespaces> = None, "userNamespaces";
    }
}

impl KubeletConfiguration {
    /// Size at which a container's log is rotated, bytes; validation has seen that it is a positive quantity.
    #[must_use]
    pub fn container_log_max_bytes(&self) -> i64 {
        Quantity::parse(&self.container_log_max_size).map_or(10 << 20, |q| q.value())
    }

    /// User and group ids per pod.
    #[must_use]
    pub fn ids_per_pod(&self) -> i64 {
        self.user_namespaces.as_ref().map_or(65536, |u| u.ids_per_pod)
    }

    /// CRI socket for images.
    #[must_use]
    pub fn image_endpoint(&self) -> &str {
        if self.image_service_endpoint.is_empty() {
            &self.container_runtime_endpoint
        } else {
            &self.image_service_endpoint
        }
    }
}
