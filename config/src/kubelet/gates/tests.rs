//! Feature gates: order of the table, stages and defaults, unknown, locked and dependent gates.

use super::*;

fn resolve(set: &[(&str, bool)]) -> Result<FeatureGates, Vec<String>> {
    let map = set.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
    FeatureGates::resolve(&map)
        .map_err(|p| p.into_iter().map(|p| format!("{}: {}", p.path, p.reason)).collect())
}

#[test]
fn the_table_is_sorted_and_closed() {
    assert!(GATES.is_sorted_by(|a, b| a.name < b.name));
    for gate in GATES {
        for need in gate.needs {
            assert!(super::gate(need).is_some(), "{} needs {need}, which is no gate", gate.name);
        }
    }
    assert!(resolve(&[]).is_ok(), "the defaults fit each other");
}

#[test]
fn each_field_is_a_gate_of_the_table() {
    for name in CONSULTED {
        assert!(gate(name).is_some(), "{name} is no gate");
    }
    let gates = resolve(&[("MemoryQoS", true), ("EnvFiles", false)]).expect("valid");
    assert!(gates.memory_qos && !gates.env_files && gates.node_declared_features);
}

/// Stage, default and lock as in Kubernetes v1.36 (upstream: pkg/features/kube_features.go).
#[test]
fn upstreams_gates() {
    use Stage::{Alpha, Beta, Deprecated, Ga};
    let table = [
        ("InPlacePodVerticalScaling", Ga, true, true),
        ("InPlacePodLevelResourcesVerticalScaling", Beta, true, false),
        ("InPlacePodVerticalScalingInitContainers", Beta, true, false),
        ("InPlacePodVerticalScalingExclusiveCPUs", Alpha, false, false),
        ("PodLevelResources", Beta, true, false),
        ("PodLevelResourceManagers", Alpha, false, false),
        ("SidecarContainers", Ga, true, true),
        ("ContainerRestartRules", Beta, true, false),
        ("RestartAllContainersOnContainerExits", Beta, true, false),
        ("ContainerStopSignals", Alpha, false, false),
        ("ReduceDefaultCrashLoopBackOffDecay", Alpha, false, false),
        ("KubeletCrashLoopBackOffMax", Beta, true, false),
        ("ChangeContainerStatusOnKubeletRestart", Deprecated, false, false),
        ("UserNamespacesSupport", Ga, true, true),
        ("UserNamespacesHostNetworkSupport", Alpha, false, false),
        ("ProcMountType", Ga, true, true),
        ("KubeletInUserNamespace", Alpha, false, false),
        ("ImageVolume", Ga, true, true),
        ("ImageVolumeWithDigest", Alpha, false, false),
        ("KubeletEnsureSecretPulledImages", Beta, true, false),
        ("ImageMaximumGCAge", Ga, true, true),
        ("KubeletSeparateDiskGC", Beta, true, false),
        ("NodeSwap", Ga, true, true),
        ("KubeletPSI", Ga, true, true),
        ("MemoryQoS", Alpha, false, false),
        ("CustomCPUCFSQuotaPeriod", Ga, true, false),
        ("DisableCPUQuotaWithExclusiveCPUs", Deprecated, true, false),
        ("CPUManagerPolicyOptions", Ga, true, true),
        ("CPUManagerPolicyBetaOptions", Beta, true, false),
        ("CPUManagerPolicyAlphaOptions", Alpha, false, false),
        ("DynamicResourceAllocation", Ga, true, true),
        ("DRAPrioritizedList", Ga, true, false),
        ("ResourceHealthStatus", Beta, true, false),
        ("KubeletPodResourcesGet", Ga, true, true),
        ("KubeletPodResourcesListUseActivePods", Deprecated, true, false),
        ("PodsAPI", Alpha, false, false),
        ("NodeDeclaredFeatures", Beta, true, false),
        ("EnvFiles", Beta, true, false),
        ("HostnameOverride", Beta, true, false),
        ("PodCertificateRequest", Beta, false, false),
        ("ClusterTrustBundle", Beta, false, false),
        ("SELinuxMount", Beta, false, false),
        ("KubeletFineGrainedAuthz", Ga, true, true),
        ("ExtendWebSocketsToKubelet", Beta, true, false),
        ("ReloadKubeletClientCAFile", Beta, true, false),
        ("ComponentStatusz", Beta, true, false),
        ("NodeLogQuery", Ga, true, true),
        ("ContainerCheckpoint", Beta, true, false),
        ("PLEGOnDemandRelist", Beta, true, false),
        ("EventedPLEG", Alpha, false, false),
        ("CRIListStreaming", Alpha, false, false),
        ("PodAndContainerStatsFromCRI", Alpha, false, false),
        ("RuntimeClassInImageCriApi", Alpha, false, false),
        ("GracefulNodeShutdown", Beta, true, false),
        ("SystemdWatchdog", Ga, true, true),
        ("KubeletCgroupDriverFromCRI", Ga, true, true),
        ("PreventStaticPodAPIReferences", Beta, true, false),
        ("GitRepoVolumeDriver", Deprecated, false, true),
        ("DisableNodeKubeProxyVersion", Deprecated, true, true),
        ("AllowDNSOnlyNodeCSR", Deprecated, false, false),
    ];
    for (name, stage, default, locked) in table {
        let gate = gate(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!((gate.stage, gate.default, gate.locked), (stage, default, locked), "{name}");
    }
}

#[test]
fn setting_gates() {
    let gates = resolve(&[("MemoryQoS", true), ("EnvFiles", false)]).expect("valid");
    assert!(gates.enabled("MemoryQoS") && !gates.enabled("EnvFiles") && gates.enabled("HostnameOverride"));
    assert!(!gates.enabled("NoSuchGate"));
    assert!(resolve(&[("NodeSwap", true)]).is_ok(), "a locked gate may be set to what it is");
    assert_eq!(
        resolve(&[("NodeSwap", false), ("Nonsense", true)]).expect_err("two"),
        [
            "featureGates.NodeSwap: must be true: this feature gate is locked in v1.36",
            "featureGates.Nonsense: is an unknown feature gate of v1.36"
        ]
    );
    assert_eq!(
        resolve(&[("ClusterTrustBundleProjection", true)]).expect_err("dependency"),
        [
            "featureGates.ClusterTrustBundleProjection: needs feature gate ClusterTrustBundle, which is off: switch it \
          on, or ClusterTrustBundleProjection off"
        ]
    );
    assert!(resolve(&[("ClusterTrustBundleProjection", true), ("ClusterTrustBundle", true)]).is_ok());
}

#[test]
fn all_of_a_stage() {
    let gates = resolve(&[("AllBeta", false), ("EnvFiles", true)]).expect("every beta gate is off together");
    assert!(gates.enabled("EnvFiles") && !gates.enabled("HostnameOverride") && gates.enabled("NodeSwap"));
    let alpha = FeatureGates::lenient(&serde_json::json!({"featureGates": {"AllAlpha": true, "x": 5}}));
    assert!(alpha.enabled("MemoryQoS") && !alpha.enabled("ClusterTrustBundle"));
    assert_eq!(alpha.iter().count(), GATES.len());
}
