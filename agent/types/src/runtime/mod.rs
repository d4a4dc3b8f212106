//! The container runtime as core sees it: configurations going out ([`config`]), observations coming in
//! ([`observed`]). agent-cri converts to and from CRI messages.

pub mod claims;
pub mod config;
pub mod containers;
pub mod image;
pub mod lost_shims;
pub mod observed;
pub mod placement;
pub mod pod_files;
pub mod status;
pub mod view;

/// Labels and annotations of sandboxes and containers (upstream: pkg/kubelet/kuberuntime/labels.go).
/// A restarted agent finds the sandboxes and containers of its predecessor by them.
pub mod labels {
    /// Pod name label, on sandboxes and containers.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// Pod namespace label, on sandboxes and containers.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// Pod UID label, on sandboxes and containers.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Annotation of sandboxes: containerd's shim for runc puts all containers with the same value into one process
    /// (`groupLabels` of its `manager_linux.go`), if the handler's `pod_annotations` name it.
    pub const SHIM_GROUP: &str = "io.containerd.runc.v2.group";
    /// Container name label, on containers.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// Annotation: hash of the container's name and image; no other change of the definition restarts a container.
    pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
    /// Annotation: restart count at creation, decimal.
    pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Annotation: path of the termination message inside the container.
    pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// Annotation: `File` or `FallbackToLogsOnError`.
    pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// Annotation: JSON of the container's ports.
    pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
    /// Annotation: JSON of the preStop handler, so that an orphan can still run it.
    pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
    /// Annotation: pod's grace period in seconds, decimal.
    pub const TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
    /// Annotation: deletion grace period in seconds, decimal.
    pub const DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
}
