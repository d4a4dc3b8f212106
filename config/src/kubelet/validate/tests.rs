//! Each rule from both sides: the last value that passes, the first that does not, and its message.

use crate::kubelet::{KubeletConfiguration, load_kubelet_config, validate};

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn load(body: &str) -> Result<KubeletConfiguration, String> {
    load_kubelet_config(&format!("{HEAD}{body}"), "k").map_err(|e| e.to_string())
}

/// (passes, does not pass, in the message)
type Row = (&'static str, &'static str, &'static str);

fn table(rows: &[Row]) {
    for (good, bad, reason) in rows {
        if let Err(e) = load(good) {
            panic!("{good}: {e}");
        }
        let error = load(bad).expect_err(bad);
        assert!(error.starts_with("invalid configuration: k"), "{error}");
        assert!(error.contains(reason), "{bad}: {error}");
    }
}

#[test]
fn ranges() {
    table(&[
        ("port: 1", "port: -1", "port: -1 must be an integer between 1 and 65535"),
        ("port: 65535", "port: 65536", "port: 65536 must be an integer between 1 and 65535"),
        ("readOnlyPort: 0", "readOnlyPort: -1", "between 0 and 65535"),
        ("readOnlyPort: 65535", "readOnlyPort: 65536", "between 0 and 65535"),
        ("healthzPort: 0", "healthzPort: -1", "between 0 and 65535"),
        ("healthzPort: 65535", "healthzPort: 65536", "between 0 and 65535"),
        ("oomScoreAdj: -1000", "oomScoreAdj: -1001", "between -1000 and 1000"),
        ("oomScoreAdj: 1000", "oomScoreAdj: 1001", "between -1000 and 1000"),
        ("nodeLeaseDurationSeconds: 1", "nodeLeaseDurationSeconds: -1", "between 1 and 2147483647"),
        ("registryPullQPS: 0", "registryPullQPS: -1", "of 0 or more"),
        ("registryBurst: 1", "registryBurst: -1", "of 0 or more"),
        ("eventRecordQPS: 0", "eventRecordQPS: -1", "of 0 or more"),
        ("eventBurst: 1", "eventBurst: -1", "of 0 or more"),
        ("kubeAPIQPS: 0", "kubeAPIQPS: -1", "of 0 or more"),
        ("kubeAPIBurst: 1", "kubeAPIBurst: -1", "of 0 or more"),
        ("maxPods: 1", "maxPods: -1", "of 0 or more"),
        ("maxPods: 2147483647", "maxPods: 2147483648", "of 0 or more"),
        ("podsPerCore: 0", "podsPerCore: -1", "of 0 or more"),
        ("maxOpenFiles: 1", "maxOpenFiles: -1", "of 0 or more"),
        ("nodeStatusMaxImages: -1", "nodeStatusMaxImages: -2", "of -1 or more"),
        ("imageGCHighThresholdPercent: 100", "imageGCHighThresholdPercent: 101", "between 0 and 100"),
        ("imageGCLowThresholdPercent: 0", "imageGCLowThresholdPercent: -1", "between 0 and 100"),
        ("iptablesMasqueradeBit: 31", "iptablesMasqueradeBit: 32", "between 0 and 31"),
        ("iptablesDropBit: 0", "iptablesDropBit: -1", "between 0 and 31"),
        ("cpuCFSQuotaPeriod: 1ms", "cpuCFSQuotaPeriod: 999us", "between 1ms and 1s"),
        ("cpuCFSQuotaPeriod: 1s", "cpuCFSQuotaPeriod: 1001ms", "between 1ms and 1s"),
        ("containerLogMaxFiles: 2", "containerLogMaxFiles: 1", "between 2 and"),
        ("containerLogMaxWorkers: 1", "containerLogMaxWorkers: 0", "between 1 and"),
        (
            "containerLogMonitorInterval: 3s",
            "containerLogMonitorInterval: 2999ms",
            "a duration of 3s or more",
        ),
        ("maxParallelImagePulls: 1", "maxParallelImagePulls: 0", "between 1 and"),
        ("imageMinimumGCAge: 1s", "imageMinimumGCAge: -1s", "of 0s or more"),
        ("imageMaximumGCAge: 0s", "imageMaximumGCAge: -1s", "of 0s or more"),
        (
            "tracing: {samplingRatePerMillion: 0}",
            "tracing: {samplingRatePerMillion: -1}",
            "between 0 and 1000000",
        ),
        (
            "tracing: {samplingRatePerMillion: 1000000}",
            "tracing: {samplingRatePerMillion: 1000001}",
            "1000000",
        ),
        ("logging: {verbosity: 2147483647}", "logging: {verbosity: 2147483648}", "between 0 and 2147483647"),
        (
            "memoryThrottlingFactor: 1",
            "memoryThrottlingFactor: 1.01",
            "1.01 must be more than 0 and at most 1",
        ),
        ("memoryThrottlingFactor: 0.01", "memoryThrottlingFactor: 0", "must be more than 0 and at most 1"),
        ("userNamespaces: {idsPerPod: 65536}", "userNamespaces: {idsPerPod: 65535}", "multiple of 65536"),
        ("userNamespaces: {idsPerPod: 131072}", "userNamespaces: {idsPerPod: 65537}", "multiple of 65536"),
        (
            "userNamespaces: {idsPerPod: 4294901760}",
            "userNamespaces: {idsPerPod: 4294967296}",
            "at most 4294967295",
        ),
    ]);
}

#[test]
fn words() {
    table(&[
        (
            "authorization: {mode: AlwaysAllow}",
            "authorization: {mode: RBAC}",
            "must be one of Webhook, AlwaysAllow",
        ),
        ("cgroupDriver: systemd", "cgroupDriver: runc", "must be one of cgroupfs, systemd"),
        (
            "cpuManagerPolicy: static\nreservedSystemCPUs: '0'",
            "cpuManagerPolicy: Static",
            "must be one of none, static",
        ),
        (
            "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]",
            "memoryManagerPolicy: static",
            "must be one of None, Static",
        ),
        (
            "topologyManagerPolicy: best-effort",
            "topologyManagerPolicy: best",
            "none, best-effort, restricted, single",
        ),
        ("topologyManagerScope: pod", "topologyManagerScope: node", "must be one of container, pod"),
        ("hairpinMode: hairpin-veth", "hairpinMode: x", "promiscuous-bridge, hairpin-veth, none"),
        (
            "memorySwap: {swapBehavior: LimitedSwap}",
            "memorySwap: {swapBehavior: Unlimited}",
            "NoSwap, LimitedSwap",
        ),
        (
            "configMapAndSecretChangeDetectionStrategy: Get",
            "configMapAndSecretChangeDetectionStrategy: List",
            "must be one of Watch, Cache, Get",
        ),
        ("logging: {format: json}", "logging: {format: yaml}", "must be one of text, json"),
        ("runOnce: false", "runOnce: true", "runOnce: true is gone"),
        ("tlsMinVersion: VersionTLS13", "tlsMinVersion: TLS13", "VersionTLS10"),
        (
            "tlsCipherSuites: [TLS_AES_128_GCM_SHA256]",
            "tlsCipherSuites: [AES]",
            "tlsCipherSuites[0]: \"AES\" is no",
        ),
        ("tlsCurvePreferences: [29, 4588]", "tlsCurvePreferences: [0]", "IANA number"),
        ("tlsCertFile: /c\ntlsPrivateKeyFile: /k", "tlsCertFile: /c", "set both or none"),
        (
            "showHiddenMetricsForVersion: '1.35'",
            "showHiddenMetricsForVersion: '1.34'",
            "previous minor version, 1.35",
        ),
    ]);
}

#[test]
fn addresses_and_paths() {
    table(&[
        ("address: '::'", "address: host", "address: \"host\" must be an IP address"),
        ("healthzBindAddress: 10.0.0.1", "healthzBindAddress: 10.0.0.1:80", "must be an IP address"),
        ("clusterDNS: [10.0.0.10]", "clusterDNS: [10.0.0.10, dns]", "clusterDNS[1]: \"dns\" must be"),
        ("podCIDR: 10.85.0.0/16,fd00::/64", "podCIDR: 10.85.0.0", "must be a network"),
        ("podLogsDir: /var/log/p", "podLogsDir: /var/log/../p", "without empty, . or .. components"),
        ("podLogsDir: /p", "podLogsDir: /p\u{e9}", "in ASCII"),
        ("tracing: {endpoint: 'localhost:4317'}", "tracing: {endpoint: 'http://x'}", "scheme dns, unix"),
        ("tracing: {endpoint: 'unix:///x'}", "tracing: {endpoint: 'https://x'}", "scheme dns, unix"),
    ]);
    let mut c =
        KubeletConfiguration { container_runtime_endpoint: String::new(), ..KubeletConfiguration::default() };
    c.port = 0;
    let said: Vec<String> = validate::validate(&c, "k").iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "k: port: 0 must be an integer between 1 and 65535",
            "k: containerRuntimeEndpoint: is missing: name the runtime's CRI socket"
        ]
    );
}

#[test]
fn images() {
    let policy = "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
                  preloadedImagesVerificationAllowlist: [a.example/*, b/c/d, 'r:5000/*', pause]";
    assert!(load(policy).is_ok());
    for pattern in ["'*'", "/*", "a/*/b", "'a:1'", "a@sha256", "' a'", "''", "a//b"] {
        let bad = policy.replace("pause", pattern);
        let error = load(&bad).expect_err(pattern);
        assert!(error.contains("preloadedImagesVerificationAllowlist[3]"), "{pattern}: {error}");
    }
    table(&[
        (
            "imageGCHighThresholdPercent: 50\nimageGCLowThresholdPercent: 49",
            "imageGCHighThresholdPercent: 50\nimageGCLowThresholdPercent: 50",
            "imageGCLowThresholdPercent: 50 must be less than imageGCHighThresholdPercent",
        ),
        ("imageMaximumGCAge: 121s", "imageMaximumGCAge: 2m", "imageMaximumGCAge: \"2m0s\" must be more than"),
        (
            "serializeImagePulls: false\nmaxParallelImagePulls: 2",
            "serializeImagePulls: true\nmaxParallelImagePulls: 2",
            "needs serializeImagePulls: false",
        ),
        (
            "imagePullCredentialsVerificationPolicy: AlwaysVerify",
            "preloadedImagesVerificationAllowlist: [a]",
            "needs imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages",
        ),
        (
            "featureGates: {KubeletEnsureSecretPulledImages: false}",
            "featureGates: {KubeletEnsureSecretPulledImages: false}\nimagePullCredentialsVerificationPolicy: AlwaysVerify",
            "needs feature gate KubeletEnsureSecretPulledImages",
        ),
    ]);
}

#[test]
fn policies_and_gates() {
    table(&[
        ("systemCgroups: /s\ncgroupRoot: /", "systemCgroups: /s", "systemCgroups: \"/s\" needs cgroupRoot"),
        (
            "featureGates: {CustomCPUCFSQuotaPeriod: false}",
            "featureGates: {CustomCPUCFSQuotaPeriod: false}\ncpuCFSQuotaPeriod: 50ms",
            "needs feature gate CustomCPUCFSQuotaPeriod",
        ),
        (
            "memoryReservationPolicy: TieredReservation\nfeatureGates: {MemoryQoS: true}",
            "memoryReservationPolicy: TieredReservation",
            "needs feature gate MemoryQoS",
        ),
        (
            "serverTLSBootstrap: true",
            "serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}",
            "needs feature gate RotateKubeletServerCertificate",
        ),
        (
            "enableSystemLogQuery: true",
            "enableSystemLogQuery: true\nenableSystemLogHandler: false",
            "enableSystemLogHandler",
        ),
        (
            "qosReserved: {memory: 50%}\nfeatureGates: {QOSReserved: true}",
            "qosReserved: {memory: 50%}",
            "needs feature gate QOSReserved",
        ),
        (
            "qosReserved: {memory: 100%}\nfeatureGates: {QOSReserved: true}",
            "qosReserved: {memory: 101%}\nfeatureGates: {QOSReserved: true}",
            "percentage from 0% to 100%",
        ),
        (
            "featureGates: {AllAlpha: false}",
            "featureGates: {QOSReserved: true}\nqosReserved: {cpu: 5%}",
            "memory can",
        ),
        (
            "logging: {options: {json: {splitStream: true}}}\nfeatureGates: {LoggingAlphaOptions: true}",
            "logging: {options: {json: {splitStream: true}}}",
            "logging.options.json: needs feature gate LoggingAlphaOptions",
        ),
        (
            "logging: {options: {text: {infoBufferSize: 0}}}",
            "logging: {options: {text: {infoBufferSize: 1Ki}}}",
            "logging.options.text: needs",
        ),
        ("logging: {flushFrequency: 1}", "logging: {flushFrequency: -1s}", "flushFrequency"),
        (
            "logging: {vmodule: [{filePattern: a*, verbosity: 3}]}",
            "logging: {vmodule: [{filePattern: 'a=b', verbosity: 3}]}",
            "=",
        ),
        (
            "logging: {vmodule: []}",
            "logging: {format: json, vmodule: [{filePattern: a, verbosity: 3}]}",
            "text only",
        ),
        (
            "allowedUnsafeSysctls: [net.core.*, kernel.sem]",
            "allowedUnsafeSysctls: [vm.swappiness]",
            "namespaced",
        ),
        ("allowedUnsafeSysctls: ['kernel.msg*']", "allowedUnsafeSysctls: ['net.*.a']", "* at its end only"),
    ]);
}

#[test]
fn shutdown_and_restart() {
    table(&[
        ("shutdownGracePeriod: 1s", "shutdownGracePeriod: 999ms", "must be 0s or at least 1s"),
        ("shutdownGracePeriod: 0s", "shutdownGracePeriod: -1s", "must be 0s or at least 1s"),
        (
            "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 30s",
            "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 31s",
            "\"31s\" must be at most shutdownGracePeriod",
        ),
        (
            "shutdownGracePeriod: 2s\nshutdownGracePeriodCriticalPods: 1s",
            "shutdownGracePeriod: 2s\nshutdownGracePeriodCriticalPods: 500ms",
            "shutdownGracePeriodCriticalPods: \"500ms\" must be 0s or at least 1s",
        ),
        (
            "featureGates: {GracefulNodeShutdown: false, GracefulNodeShutdownBasedOnPodPriority: false, WindowsGracefulNodeShutdown: false}",
            "featureGates: {GracefulNodeShutdown: false, GracefulNodeShutdownBasedOnPodPriority: false, WindowsGracefulNodeShutdown: false}\n\
             shutdownGracePeriod: 1s",
            "needs feature gate GracefulNodeShutdown",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]",
            "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]\nshutdownGracePeriod: 1s",
            "excludes shutdownGracePeriod",
        ),
        (
            "shutdownGracePeriodByPodPriority: []",
            "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]\n\
             featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}",
            "needs feature gate GracefulNodeShutdownBasedOnPodPriority",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 1s}",
            "crashLoopBackOff: {maxContainerRestartPeriod: 999ms}",
            "between 1s and 5m0s",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 300s}",
            "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
            "between 1s and 5m0s",
        ),
        (
            "crashLoopBackOff: {}",
            "crashLoopBackOff: {maxContainerRestartPeriod: 9s}\nfeatureGates: {KubeletCrashLoopBackOffMax: false}",
            "needs feature gate KubeletCrashLoopBackOffMax",
        ),
    ]);
}

#[test]
fn reservations() {
    table(&[
        (
            "systemReserved: {cpu: 100m, pid: '1000'}",
            "systemReserved: {gpu: '1'}",
            "systemReserved.gpu: cannot be reserved",
        ),
        (
            "kubeReserved: {memory: '0', ephemeral-storage: 1Gi}",
            "kubeReserved: {memory: '-1'}",
            "of 0 or more",
        ),
        (
            "kubeReserved: {memory: 1Gi}",
            "kubeReserved: {memory: lots}",
            "kubeReserved.memory: \"lots\" must be a quantity",
        ),
        (
            "systemReserved: {cpu: '1'}",
            "systemReserved: {cpu: 1}",
            "systemReserved.cpu: 1 must be text (quote numbers",
        ),
        ("containerLogMaxSize: 5Mi", "containerLogMaxSize: 5MB", "must be a quantity such as 10Mi"),
        ("reservedSystemCPUs: 0-1,4", "reservedSystemCPUs: 1-0", "must be a CPU list"),
        (
            "reservedSystemCPUs: '0'",
            "reservedSystemCPUs: '0'\nkubeReservedCgroup: /k",
            "excludes systemReservedCgroup",
        ),
        (
            "enforceNodeAllocatable: [none]",
            "enforceNodeAllocatable: [none, pods]",
            "excludes every other enforcement",
        ),
        (
            "enforceNodeAllocatable: [pods]",
            "enforceNodeAllocatable: [pods, pods]",
            "[1]: \"pods\" is there twice",
        ),
        (
            "enforceNodeAllocatable: [none]\ncgroupsPerQOS: false",
            "cgroupsPerQOS: false",
            "enforceNodeAllocatable[0]: \"pods\" needs cgroupsPerQOS: true",
        ),
        (
            "enforceNodeAllocatable: []\ncgroupsPerQOS: false",
            "enforceNodeAllocatable: [x]",
            "must be one of pods",
        ),
        (
            "enforceNodeAllocatable: [system-reserved]\nsystemReservedCgroup: /s",
            "enforceNodeAllocatable: [system-reserved]",
            "needs systemReservedCgroup",
        ),
        (
            "enforceNodeAllocatable: [kube-reserved-compressible]\nkubeReservedCgroup: /s",
            "enforceNodeAllocatable: [kube-reserved-compressible]",
            "needs kubeReservedCgroup",
        ),
        (
            "enforceNodeAllocatable: [kube-reserved, system-reserved-compressible]\nkubeReservedCgroup: /k\n\
             systemReservedCgroup: /s",
            "enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /k",
            "excludes its full form",
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}, {numaNode: 1, limits: {memory: 1}}]",
            "reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]",
            "reservedMemory[0].limits.cpu: must be memory or hugepages-<size>",
        ),
        ("reservedMemory: []", "reservedMemory: [{numaNode: 0, limits: {memory: 0}}]", "must not be zero"),
        (
            "reservedMemory: [{numaNode: 0, limits: {}}]",
            "reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 0, limits: {memory: 2}}]",
            "reservedMemory[1].limits.memory: is there twice",
        ),
    ]);
}

#[test]
fn managers() {
    table(&[
        (
            "cpuManagerPolicy: static\nkubeReserved: {cpu: 100m}",
            "cpuManagerPolicy: static\nkubeReserved: {cpu: '0', memory: 1Gi}",
            "cpuManagerPolicy: \"static\" needs processors for the system: set systemReserved.cpu, kubeReserved.cpu",
        ),
        (
            "cpuManagerReconcilePeriod: -1s",
            "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ncpuManagerReconcilePeriod: -1s",
            "must be a duration of more than 0s",
        ),
        (
            "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ncpuManagerPolicyOptions: {full-pcpus-only: 'true'}",
            "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}",
            "cpuManagerPolicyOptions: must be empty: the policy none has no options",
        ),
        (
            "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ncpuManagerPolicyOptions: {align-by-socket: 'true'}\n\
             featureGates: {CPUManagerPolicyAlphaOptions: true}",
            "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ncpuManagerPolicyOptions: {align-by-socket: 'true'}",
            "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
        ),
        (
            "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ntopologyManagerPolicy: single-numa-node",
            "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ncpuManagerPolicyOptions: {align-by-socket: 'true'}\n\
             featureGates: {CPUManagerPolicyAlphaOptions: true}\ntopologyManagerPolicy: single-numa-node",
            "align-by-socket excludes topologyManagerPolicy single-numa-node",
        ),
        (
            "topologyManagerPolicyOptions: {x: y}",
            "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {x: y}",
            "unknown Topology Manager Policy option: \"x\"",
        ),
        (
            "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]",
            "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {hugepages-2Mi: 2Mi}}]",
            "memoryManagerPolicy: \"Static\" needs reservedMemory with memory of a NUMA node",
        ),
        (
            "reservedMemory: [{numaNode: -1, limits: {memory: 1Gi}}]",
            "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: -1, limits: {memory: 1Gi}}]",
            "reservedMemory[0].numaNode: -1 must be the number of a NUMA node",
        ),
    ]);
}

#[test]
fn taints() {
    table(&[
        (
            "registerWithTaints: [{key: a/b, value: c, effect: NoExecute}, {key: a/b, effect: NoSchedule}]",
            "registerWithTaints: [{key: a/b, effect: NoExecute}, {key: a/b, value: x, effect: NoExecute}]",
            "registerWithTaints[1]: \"a/b\" is there twice with the same effect",
        ),
        (
            "registerWithTaints: []",
            "registerWithTaints: [{key: a, effect: NoExecute, timeAdded: '2026-01-01T00:00:00Z'}]",
            "timeAdded: is set by the control plane",
        ),
        (
            "registerWithTaints: [{key: a, value: '', effect: PreferNoSchedule}]",
            "registerWithTaints: [{key: a, value: -x, effect: PreferNoSchedule}]",
            "registerWithTaints[0].value",
        ),
        (
            "registerWithTaints: null",
            "registerWithTaints: [{key: a}]",
            "registerWithTaints[0].effect: is missing",
        ),
        ("registerWithTaints: []", "registerWithTaints: [null]", "registerWithTaints[0]: null must be a map"),
    ]);
}

#[test]
fn evictions() {
    table(&[
        ("evictionHard: {memory.available: '1'}", "evictionHard: {memory.available: '0'}", "above 0"),
        ("evictionHard: {memory.available: 0%}", "evictionHard: {memory.available: -1%}", "from 0% to 100%"),
        (
            "evictionHard: {memory.available: 100%}",
            "evictionHard: {memory.available: 101%}",
            "from 0% to 100%",
        ),
        (
            "evictionHard: {pid.available: 5%}",
            "evictionHard: {gpu.available: 5%}",
            "is an unknown eviction signal",
        ),
        (
            "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 0s}",
            "evictionSoft: {memory.available: 1Gi}",
            "evictionSoft.\"memory.available\": needs a grace period",
        ),
        (
            "evictionSoftGracePeriod: {memory.available: 1m}",
            "evictionSoftGracePeriod: {memory.available: -1s}",
            "must be a duration of 0s or more",
        ),
        (
            "evictionMinimumReclaim: {nodefs.available: '0'}",
            "evictionMinimumReclaim: {nodefs.available: 0%}",
            "above 0%",
        ),
        (
            "evictionMinimumReclaim: {nodefs.available: 1%}",
            "evictionMinimumReclaim: {nodefs.available: '-1'}",
            "0 or more",
        ),
    ]);
}

#[test]
fn all_broken_rules_come_at_once() {
    let error =
        load("runOnce: true\nsystemCgroups: /s\nshutdownGracePeriod: 1ms\nevictionSoft: {pid.available: 1%}");
    let error = error.expect_err("four rules");
    assert_eq!(
        crate::testing::errors(&error),
        [
            "k: runOnce: true is gone: run-once mode does not exist any more",
            "k: systemCgroups: \"/s\" needs cgroupRoot",
            "k: shutdownGracePeriod: \"1ms\" must be 0s or at least 1s",
            "k: evictionSoft.\"pid.available\": needs a grace period: set evictionSoftGracePeriod for pid.available",
        ]
    );
}

#[test]
fn the_host_decides_about_cgroups() {
    let default = KubeletConfiguration::default();
    assert_eq!(validate::validate_host(&default, true, "k"), []);
    assert_eq!(validate::validate_host(&default, false, "k").len(), 1);
    let lenient =
        KubeletConfiguration { fail_cgroup_v1: false, single_process_oom_kill: Some(true), ..default };
    assert_eq!(validate::validate_host(&lenient, false, "k"), []);
    let wrong = KubeletConfiguration { single_process_oom_kill: Some(false), ..lenient };
    assert_eq!(validate::validate_host(&wrong, false, "k")[0].path, "singleProcessOOMKill");
    assert_eq!(validate::validate_host(&wrong, true, "k"), []);
}
