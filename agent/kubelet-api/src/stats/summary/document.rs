//! The document of `/stats/summary`: upstream's `kubelet/pkg/apis/stats/v1alpha1`.
//!
//! Invariant: a value that is `None` is absent. Fields of Windows, of accelerators and of containers' own
//! metrics are missing: this node does not measure them.

use serde::Serialize;

/// `Summary`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    /// Statistics of the machine.
    pub(super) node: NodeStats,
    /// Pods with something that runs.
    pub(super) pods: Vec<PodStats>,
}

/// `NodeStats`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeStats {
    /// Name of the Node.
    pub(super) node_name: String,
    /// Parts of the machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) system_containers: Vec<ContainerStats>,
    /// When the machine started.
    pub(super) start_time: Option<String>,
    #[serde(flatten)]
    pub(super) usage: UsageStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rlimit: Option<RlimitStats>,
}

/// What nodes, pods and containers have in common.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct UsageStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap: Option<SwapStats>,
}

/// `PodStats`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStats {
    pub(super) pod_ref: PodReference,
    /// When the node took the pod on.
    pub(super) start_time: Option<String>,
    pub(super) containers: Vec<ContainerStats>,
    #[serde(flatten)]
    pub(super) usage: UsageStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<NetworkStats>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub(super) volumes: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub(super) ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub(super) process_stats: Option<ProcessStats>,
}

/// `PodReference`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PodReference {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

/// `ContainerStats`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerStats {
    pub(super) name: String,
    pub(super) start_time: Option<String>,
    #[serde(flatten)]
    pub(super) usage: UsageStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logs: Option<FsStats>,
}

/// `CPUStats`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CpuStats {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<PsiStats>,
}

/// `MemoryStats`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemoryStats {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<PsiStats>,
}

/// `IOStats`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct IoStats {
    pub(super) time: String,
    pub(super) psi: PsiStats,
}

/// `PSIStats`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PsiStats {
    pub(super) full: PsiData,
    pub(super) some: PsiData,
}

/// `PSIData`: microseconds, and per cents.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PsiData {
    pub(super) total: u64,
    pub(super) avg10: f64,
    pub(super) avg60: f64,
    pub(super) avg300: f64,
}

/// `SwapStats`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SwapStats {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap_usage_bytes: Option<u64>,
}

/// `FsStats`.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FsStats {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_used: Option<u64>,
}

/// `VolumeStats`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VolumeStats {
    #[serde(flatten)]
    pub(super) fs: FsStats,
    pub(super) name: String,
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    pub(super) pvc_ref: Option<PvcRef>,
    #[serde(rename = "volumeHealthStats", skip_serializing_if = "Option::is_none")]
    pub(super) volume_health_stats: Option<VolumeHealthStats>,
}

/// `VolumeHealthStats`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VolumeHealthStats {
    pub(super) abnormal: bool,
}

/// `PVCReference`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PvcRef {
    pub(super) name: String,
    pub(super) namespace: String,
}

/// `NetworkStats`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NetworkStats {
    pub(super) time: String,
    #[serde(flatten)]
    pub(super) default: InterfaceStats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) interfaces: Vec<InterfaceStats>,
}

/// `InterfaceStats`.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InterfaceStats {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tx_errors: Option<u64>,
}

/// `RuntimeStats`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuntimeStats {
    /// Where images are.
    pub(super) image_fs: FsStats,
    /// Where writable layers are: the same.
    pub(super) container_fs: FsStats,
}

/// `RlimitStats`: counts threads, in spite of its names.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RlimitStats {
    pub(super) time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) maxpid: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) curproc: Option<u64>,
}

/// `ProcessStats`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProcessStats {
    #[serde(rename = "process_count")]
    pub(super) process_count: u64,
}
