//! Values of labels: bounded sets of words for any input.
//!
//! Upstream: pkg/kubelet/kuberuntime/instrumented_services.go, pkg/kubelet/images, `recordAdmissionRejection`
//! of pkg/kubelet/kubelet.go, the path buckets of pkg/kubelet/server.

/// The operation of a CRI verb, as upstream calls it.
#[must_use]
pub fn runtime_operation(verb: &str) -> &'static str {
    match verb {
        "Version" => "version",
        "Status" => "status",
        "RuntimeConfig" => "runtime_config",
        "CreateContainer" => "create_container",
        "StartContainer" => "start_container",
        "StopContainer" => "stop_container",
        "RemoveContainer" => "remove_container",
        "ListContainers" => "list_containers",
        "ContainerStatus" => "container_status",
        "UpdateContainerResources" => "update_container",
        "ReopenContainerLog" => "reopen_container_log",
        "ExecSync" => "exec_sync",
        "Exec" => "exec",
        "Attach" => "attach",
        "PortForward" => "port_forward",
        "RunPodSandbox" => "run_podsandbox",
        "StopPodSandbox" => "stop_podsandbox",
        "RemovePodSandbox" => "remove_podsandbox",
        "PodSandboxStatus" => "podsandbox_status",
        "ListPodSandbox" => "list_podsandbox",
        "UpdateRuntimeConfig" => "update_runtime_config",
        "GetContainerEvents" => "get_container_events",
        "ListImages" => "list_images",
        "ImageStatus" => "image_status",
        "PullImage" => "pull_image",
        "RemoveImage" => "remove_image",
        "ImageFsInfo" => "image_fs_info",
        _ => "other",
    }
}

/// The range that an image's size is in.
#[must_use]
pub fn image_size(bytes: u64) -> &'static str {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const RANGES: [(u64, &str); 12] = [
        (10 * MIB, "0-10MB"),
        (100 * MIB, "10MB-100MB"),
        (500 * MIB, "100MB-500MB"),
        (GIB, "500MB-1GB"),
        (5 * GIB, "1GB-5GB"),
        (10 * GIB, "5GB-10GB"),
        (20 * GIB, "10GB-20GB"),
        (30 * GIB, "20GB-30GB"),
        (40 * GIB, "30GB-40GB"),
        (60 * GIB, "40GB-60GB"),
        (100 * GIB, "60GB-100GB"),
        (u64::MAX, "GT100GB"),
    ];
    RANGES.iter().find(|(end, _)| bytes < *end).map_or("GT100GB", |(_, name)| name)
}

/// Reasons of rejections that have their own label value.
const REJECTIONS: &[&str] = &[
    "AppArmor",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "PodOSNotSupported",
    "InvalidNodeInfo",
    "InitContainerRestartPolicyForbidden",
    "SupplementalGroupsPolicyNotSupported",
    "UnexpectedAdmissionError",
    "UnknownReason",
    "UnexpectedPredicateFailureType",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfephemeral-storage",
    "OutOfpods",
    "PodLevelResourcesNotSupported",
    "PodFeatureUnsupported",
    "Evicted",
    "SysctlForbidden",
    "TopologyAffinityError",
    "NodeShutdown",
    "VolumeAttachmentLimitExceeded",
];

/// The reason of a refusal, from a bounded set.
#[must_use]
pub fn rejection(reason: &str) -> &'static str {
    match REJECTIONS.iter().find(|known| **known == reason) {
        Some(known) => known,
        None if reason.starts_with("OutOf") => "OutOfExtendedResources",
        None => "Other",
    }
}

/// Paths of the node's API that have their own label value: the first segment, for `metrics` two.
const PATHS: &[&str] = &[
    "attach",
    "checkpoint",
    "configz",
    "containerLogs",
    "debug",
    "exec",
    "flagz",
    "healthz",
    "logs",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "pods",
    "portForward",
    "run",
    "runningpods",
    "stats",
    "statusz",
];

/// The path of a request, from a bounded set, and whether such requests may last.
#[must_use]
pub fn path(path: &str) -> (&'static str, &'static str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut ends = path.match_indices('/').map(|(at, _)| at);
    let end = if path.starts_with("metrics/") { ends.nth(1) } else { ends.next() };
    let root = &path[..end.unwrap_or(path.len())];
    let known = PATHS.iter().find(|known| **known == root).copied().unwrap_or("other");
    (known, if matches!(known, "exec" | "attach" | "debug") { "true" } else { "false" })
}

/// The method of a request, from a bounded set.
#[must_use]
pub fn method(method: &str) -> &'static str {
    const METHODS: [&str; 8] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE"];
    METHODS.iter().find(|known| **known == method).copied().unwrap_or("other")
}
