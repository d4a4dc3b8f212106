//! Every flag that sets a configuration field: name, JSON path, form of its text.

/// How a flag's text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it is (words, durations, paths).
    Text,
    /// `true` or `false`; the bare flag means true.
    Bool,
    /// An integer.
    Int,
    /// A non-negative integer; `-v 2` works as well.
    Bare,
    /// Items with commas between.
    List,
    /// `key=value` with commas between.
    Pairs,
    /// `signal<amount` with commas between.
    Thresholds,
    /// `Name=true` with commas between; merged with the file's.
    Gates,
    /// `name:value` with commas between; secret.
    Headers,
    /// `key=value:effect` with commas between.
    Taints,
    /// `node:type=amount,type=amount` with `;` between.
    NumaMemory,
    /// `pattern=N` with commas between.
    VModule,
}

/// One flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Without the leading dashes.
    pub name: &'static str,
    /// Dotted path of the field.
    pub path: &'static str,
    /// How its text is read.
    pub form: Form,
}

const fn f(name: &'static str, path: &'static str, form: Form) -> Flag {
    Flag { name, path, form }
}

/// Every flag that sets a configuration field.
#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    f("enable-server", "enableServer", Form::Bool),
    f("fail-swap-on", "failSwapOn", Form::Bool),
    f("pod-manifest-path", "staticPodPath", Form::Text),
    f("sync-frequency", "syncFrequency", Form::Text),
    f("file-check-frequency", "fileCheckFrequency", Form::Text),
    f("http-check-frequency", "httpCheckFrequency", Form::Text),
    f("manifest-url", "staticPodURL", Form::Text),
    f("manifest-url-header", "staticPodURLHeader", Form::Headers),
    f("address", "address", Form::Text),
    f("port", "port", Form::Int),
    f("read-only-port", "readOnlyPort", Form::Int),
    f("fail-cgroupv1", "failCgroupV1", Form::Bool),
    f("container-runtime-endpoint", "containerRuntimeEndpoint", Form::Text),
    f("image-service-endpoint", "imageServiceEndpoint", Form::Text),
    f("anonymous-auth", "authentication.anonymous.enabled", Form::Bool),
    f("authentication-token-webhook", "authentication.webhook.enabled", Form::Bool),
    f("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", Form::Text),
    f("client-ca-file", "authentication.x509.clientCAFile", Form::Text),
    f("authorization-mode", "authorization.mode", Form::Text),
    f("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", Form::Text),
    f("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", Form::Text),
    f("tls-cert-file", "tlsCertFile", Form::Text),
    f("tls-private-key-file", "tlsPrivateKeyFile", Form::Text),
    f("rotate-server-certificates", "serverTLSBootstrap", Form::Bool),
    f("tls-cipher-suites", "tlsCipherSuites", Form::List),
    f("tls-min-version", "tlsMinVersion", Form::Text),
    f("rotate-certificates", "rotateCertificates", Form::Bool),
    f("registry-qps", "registryPullQPS", Form::Int),
    f("registry-burst", "registryBurst", Form::Int),
    f("event-qps", "eventRecordQPS", Form::Int),
    f("event-burst", "eventBurst", Form::Int),
    f("enable-debugging-handlers", "enableDebuggingHandlers", Form::Bool),
    f("contention-profiling", "enableContentionProfiling", Form::Bool),
    f("healthz-port", "healthzPort", Form::Int),
    f("healthz-bind-address", "healthzBindAddress", Form::Text),
    f("oom-score-adj", "oomScoreAdj", Form::Int),
    f("cluster-domain", "clusterDomain", Form::Text),
    f("volume-plugin-dir", "volumePluginDir", Form::Text),
    f("cluster-dns", "clusterDNS", Form::List),
    f("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", Form::Text),
    f("node-status-update-frequency", "nodeStatusUpdateFrequency", Form::Text),
    f("minimum-image-ttl-duration", "imageMinimumGCAge", Form::Text),
    f("image-gc-high-threshold", "imageGCHighThresholdPercent", Form::Int),
    f("image-gc-low-threshold", "imageGCLowThresholdPercent", Form::Int),
    f("volume-stats-agg-period", "volumeStatsAggPeriod", Form::Text),
    f("feature-gates", "featureGates", Form::Gates),
    f("kubelet-cgroups", "kubeletCgroups", Form::Text),
    f("system-cgroups", "systemCgroups", Form::Text),
    f("provider-id", "providerID", Form::Text),
    f("cgroups-per-qos", "cgroupsPerQOS", Form::Bool),
    f("cgroup-driver", "cgroupDriver", Form::Text),
    f("cgroup-root", "cgroupRoot", Form::Text),
    f("cpu-manager-policy", "cpuManagerPolicy", Form::Text),
    f("cpu-manager-policy-options", "cpuManagerPolicyOptions", Form::Pairs),
    f("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Form::Text),
    f("qos-reserved", "qosReserved", Form::Pairs),
    f("topology-manager-policy", "topologyManagerPolicy", Form::Text),
    f("runtime-request-timeout", "runtimeRequestTimeout", Form::Text),
    f("hairpin-mode", "hairpinMode", Form::Text),
    f("max-pods", "maxPods", Form::Int),
    f("pod-cidr", "podCIDR", Form::Text),
    f("pod-max-pids", "podPidsLimit", Form::Int),
    f("resolv-conf", "resolvConf", Form::Text),
    f("runonce", "runOnce", Form::Bool),
    f("cpu-cfs-quota", "cpuCFSQuota", Form::Bool),
    f("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Form::Text),
    f("enable-controller-attach-detach", "enableControllerAttachDetach", Form::Bool),
    f("make-iptables-util-chains", "makeIPTablesUtilChains", Form::Bool),
    f("container-log-max-size", "containerLogMaxSize", Form::Text),
    f("container-log-max-files", "containerLogMaxFiles", Form::Int),
    f("allowed-unsafe-sysctls", "allowedUnsafeSysctls", Form::List),
    f("node-status-max-images", "nodeStatusMaxImages", Form::Int),
    f("kernel-memcg-notification", "kernelMemcgNotification", Form::Bool),
    f("local-storage-capacity-isolation", "localStorageCapacityIsolation", Form::Bool),
    f("max-open-files", "maxOpenFiles", Form::Int),
    f("kube-api-content-type", "contentType", Form::Text),
    f("kube-api-qps", "kubeAPIQPS", Form::Int),
    f("kube-api-burst", "kubeAPIBurst", Form::Int),
    f("serialize-image-pulls", "serializeImagePulls", Form::Bool),
    f("eviction-hard", "evictionHard", Form::Thresholds),
    f("eviction-soft", "evictionSoft", Form::Thresholds),
    f("eviction-soft-grace-period", "evictionSoftGracePeriod", Form::Pairs),
    f("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Form::Text),
    f("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Form::Int),
    f("eviction-minimum-reclaim", "evictionMinimumReclaim", Form::Pairs),
    f("pods-per-core", "podsPerCore", Form::Int),
    f("protect-kernel-defaults", "protectKernelDefaults", Form::Bool),
    f("reserved-cpus", "reservedSystemCPUs", Form::Text),
    f("topology-manager-scope", "topologyManagerScope", Form::Text),
    f("topology-manager-policy-options", "topologyManagerPolicyOptions", Form::Pairs),
    f("system-reserved", "systemReserved", Form::Pairs),
    f("kube-reserved", "kubeReserved", Form::Pairs),
    f("enforce-node-allocatable", "enforceNodeAllocatable", Form::List),
    f("system-reserved-cgroup", "systemReservedCgroup", Form::Text),
    f("kube-reserved-cgroup", "kubeReservedCgroup", Form::Text),
    f("memory-manager-policy", "memoryManagerPolicy", Form::Text),
    f("reserved-memory", "reservedMemory", Form::NumaMemory),
    f("register-node", "registerNode", Form::Bool),
    f("register-with-taints", "registerWithTaints", Form::Taints),
    f("show-hidden-metrics-for-version", "showHiddenMetricsForVersion", Form::Text),
    f("seccomp-default", "seccompDefault", Form::Bool),
    f("v", "logging.verbosity", Form::Bare),
    f("vmodule", "logging.vmodule", Form::VModule),
    f("logging-format", "logging.format", Form::Text),
    f("log-flush-frequency", "logging.flushFrequency", Form::Text),
    f("log-text-split-stream", "logging.options.text.splitStream", Form::Bool),
    f("log-text-info-buffer-size", "logging.options.text.infoBufferSize", Form::Text),
    f("log-json-split-stream", "logging.options.json.splitStream", Form::Bool),
    f("log-json-info-buffer-size", "logging.options.json.infoBufferSize", Form::Text),
];
