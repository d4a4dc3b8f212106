//! Feature gates as one table, resolved once at start.
//!
//! In: the `featureGates` map. Out: [`FeatureGates`], a field for each gate that the agent consults. Unknown gates, locked
//! gates set otherwise and gates without what they need are errors. Upstream term: `featuregate.MutableVersionedFeatureGate`.

use super::KubeletConfiguration;
use super::gate_table::GATES;
use crate::path;
use serde_json::Value;
use std::collections::BTreeMap;

/// How far a feature has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Off unless asked for.
    Alpha,
    /// Mostly on.
    Beta,
    /// On, mostly for good.
    Ga,
    /// On its way out.
    Deprecated,
}

/// One gate of v1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Name in `featureGates`.
    pub name: &'static str,
    /// Stage in v1.36.
    pub stage: Stage,
    /// Value when not set.
    pub default: bool,
    /// Cannot differ from the default.
    pub locked: bool,
    /// Gates that must be on when this one is.
    pub needs: &'static [&'static str],
}

/// Switches every alpha gate that is not set itself.
const ALL_ALPHA: &str = "AllAlpha";
/// Switches every beta gate that is not set itself.
const ALL_BETA: &str = "AllBeta";

/// A wrong entry of `featureGates`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateProblem {
    /// Dotted path.
    pub path: String,
    /// What is allowed.
    pub reason: String,
}

/// Declares [`FeatureGates`] from the gates that the agent consults: the field and the gate's name.
macro_rules! feature_gates {
    ($($(#[$doc:meta])* $field:ident: $name:literal,)*) => {
        /// Every gate's value, decided once at start, with a field for each gate that the agent consults.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct FeatureGates {
            set: BTreeMap<String, bool>,
            $($(#[$doc])* pub $field: bool,)*
        }

        impl FeatureGates {
            fn of_set(set: BTreeMap<String, bool>) -> FeatureGates {
                $(let $field = is_on(&set, $name);)*
                FeatureGates { set, $($field,)* }
            }
        }

        /// Names of the gates that have a field.
        #[cfg(test)]
        const CONSULTED: &[&str] = &[$($name,)*];
    };
}

feature_gates! {
    /// A client certificate may name the UID of its user.
    allow_parsing_user_uid_from_cert_auth: "AllowParsingUserUIDFromCertAuth",
    /// The CPU manager has options that are alpha.
    cpu_manager_policy_alpha_options: "CPUManagerPolicyAlphaOptions",
    /// The CPU manager has options that are beta.
    cpu_manager_policy_beta_options: "CPUManagerPolicyBetaOptions",
    /// The agent reports a volume of which a CSI driver says that something is wrong (KEP-1432).
    csi_volume_health: "CSIVolumeHealth",
    /// Volumes have trust anchors of the cluster.
    cluster_trust_bundle_projection: "ClusterTrustBundleProjection",
    /// The HTTPS API requests checkpoints of containers.
    container_checkpoint: "ContainerCheckpoint",
    /// Containers choose the signal that asks them to end.
    container_stop_signals: "ContainerStopSignals",
    /// Containers with CPUs of their own have no quota (KEP-3570).
    disable_cpu_quota_with_exclusive_cpus: "DisableCPUQuotaWithExclusiveCPUs",
    /// Extended resources come from a resource claim that the scheduler made (KEP-5004).
    dra_extended_resource: "DRAExtendedResource",
    /// Resource claims may belong to a group of pods.
    dra_workload_resource_claims: "DRAWorkloadResourceClaims",
    /// Environment variables come from files of volumes (`fileKeyRef`).
    env_files: "EnvFiles",
    /// The API server leaves WebSockets of exec, attach and port-forward untranslated.
    extend_web_sockets_to_kubelet: "ExtendWebSocketsToKubelet",
    /// A stop of the machine waits for the pods.
    graceful_node_shutdown: "GracefulNodeShutdown",
    /// The pods' time at a stop of the machine depends on their priority.
    graceful_node_shutdown_based_on_pod_priority: "GracefulNodeShutdownBasedOnPodPriority",
    /// Amounts of a whole pod change while it runs.
    in_place_pod_level_resources_vertical_scaling: "InPlacePodLevelResourcesVerticalScaling",
    /// Containers with CPUs of their own are resized.
    in_place_pod_vertical_scaling_exclusive_cpus: "InPlacePodVerticalScalingExclusiveCPUs",
    /// Containers with memory of their own are resized.
    in_place_pod_vertical_scaling_exclusive_memory: "InPlacePodVerticalScalingExclusiveMemory",
    /// Init containers are resized.
    in_place_pod_vertical_scaling_init_containers: "InPlacePodVerticalScalingInitContainers",
    /// The pod resources API lists active pods only.
    kubelet_pod_resources_list_use_active_pods: "KubeletPodResourcesListUseActivePods",
    /// Credential-provider plugins get tokens of service accounts.
    kubelet_service_account_token_for_credential_providers: "KubeletServiceAccountTokenForCredentialProviders",
    /// File systems count the use of pods' directories.
    local_storage_capacity_isolation_fs_quota_monitoring: "LocalStorageCapacityIsolationFSQuotaMonitoring",
    /// Memory that pods request is kept for them.
    memory_qos: "MemoryQoS",
    /// The Node declares its features.
    node_declared_features: "NodeDeclaredFeatures",
    /// Volumes have certificates for their pod.
    pod_certificate_request: "PodCertificateRequest",
    /// Logs are shown for one of a container's streams.
    pod_logs_query_split_streams: "PodLogsQuerySplitStreams",
    /// Containers that end again and again wait for a shorter time.
    reduce_default_crash_loop_back_off_decay: "ReduceDefaultCrashLoopBackOffDecay",
    /// Container statuses show the health of devices (KEP-4680).
    resource_health_status: "ResourceHealthStatus",
    /// Container statuses show what drivers say about the health of devices.
    resource_health_status_message: "ResourceHealthStatusMessage",
    /// The Node declares that one container can restart all of its pod.
    restart_all_containers_on_container_exits: "RestartAllContainersOnContainerExits",
    /// Volumes of all access modes are mounted with the SELinux label of their pod; those of `ReadWriteOncePod` always are.
    selinux_mount: "SELinuxMount",
}

impl Default for FeatureGates {
    fn default() -> FeatureGates {
        FeatureGates::of_set(BTreeMap::new())
    }
}

/// The gate of that name.
#[must_use]
pub fn gate(name: &str) -> Option<&'static Gate> {
    GATES.binary_search_by(|g| g.name.cmp(name)).ok().map(|i| &GATES[i])
}

impl FeatureGates {
    /// Those of a configuration that was validated; of another one, which may have mistakes in them, the defaults.
    #[must_use]
    pub fn of(kubelet: &KubeletConfiguration) -> FeatureGates {
        FeatureGates::resolve(&kubelet.feature_gates).unwrap_or_default()
    }

    /// From a configuration's map.
    ///
    /// # Errors
    /// Every unknown gate, every locked gate set otherwise, every gate that is on without what it needs.
    pub fn resolve(map: &BTreeMap<String, bool>) -> Result<FeatureGates, Vec<GateProblem>> {
        let mut problems = Vec::new();
        for (name, value) in map {
            let Some(reason) = wrong(name, *value) else { continue };
            problems.push(GateProblem { path: path::child("featureGates", name), reason });
        }
        let gates = FeatureGates::of_set(map.clone());
        for gate in GATES.iter().filter(|g| gates.enabled(g.name)) {
            for need in gate.needs.iter().filter(|n| !gates.enabled(n)) {
                let reason =
                    format!("needs feature gate {need}, which is off: switch it on, or {} off", gate.name);
                problems.push(GateProblem { path: path::child("featureGates", gate.name), reason });
            }
        }
        if problems.is_empty() { Ok(gates) } else { Err(problems) }
    }

    /// From a JSON document that is not validated yet; what is wrong in it is left for validation to say.
    #[must_use]
    pub fn lenient(document: &Value) -> FeatureGates {
        let map = document.get("featureGates").and_then(Value::as_object);
        let set = map.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), v.as_bool()?))).collect();
        FeatureGates::of_set(set)
    }

    /// Whether the gate of this name is on, for rules of the configuration, whose messages name the gate. A name that is
    /// no gate is off.
    #[must_use]
    pub(super) fn enabled(&self, name: &str) -> bool {
        is_on(&self.set, name)
    }

    /// Every gate with its value, for `/metrics` and `/configz`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Gate, bool)> + '_ {
        GATES.iter().map(|gate| (gate, self.enabled(gate.name)))
    }
}

/// The gate's value under this `featureGates` map. A name that is no gate is off.
fn is_on(set: &BTreeMap<String, bool>, name: &str) -> bool {
    let Some(gate) = gate(name) else { return false };
    if gate.locked {
        return gate.default;
    }
    if let Some(value) = set.get(name) {
        return *value;
    }
    let all = match gate.stage {
        Stage::Alpha => set.get(ALL_ALPHA),
        Stage::Beta => set.get(ALL_BETA),
        Stage::Ga | Stage::Deprecated => None,
    };
    all.copied().unwrap_or(gate.default)
}

fn wrong(name: &str, value: bool) -> Option<String> {
    if name == ALL_ALPHA || name == ALL_BETA {
        return None;
    }
    match gate(name) {
        None => Some("is an unknown feature gate of v1.36".to_owned()),
        Some(gate) if gate.locked && gate.default != value => {
            Some(format!("must be {}: this feature gate is locked in v1.36", gate.default))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests;
