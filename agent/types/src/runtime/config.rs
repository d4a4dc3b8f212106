//! Configurations of sandboxes and containers, as plain data; `container_spec` builds them from a pod,
//! agent-cri converts them to CRI messages field by field. Fields have the meaning of the CRI messages
//! `PodSandboxConfig` and `ContainerConfig`; names contain the units.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{ContainerId, IdMapping, ImageId, PodKey};

/// CRI `PodSandboxConfig`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxConfig {
    /// Name, namespace and UID.
    pub pod: PodKey,
    /// Number of the attempt: 0 for the first sandbox of a pod, one more for each recreation.
    pub attempt: u32,
    /// Empty for host-network pods.
    pub hostname: String,
    /// Absolute directory under which container log paths are relative.
    pub log_directory: String,
    /// `None` leaves the runtime's default.
    pub dns: Option<DnsConfig>,
    /// Only ports with a host port.
    pub port_mappings: Vec<PortMapping>,
    /// Pod labels plus `labels::POD_*`.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod.
    pub annotations: BTreeMap<String, String>,
    /// RuntimeClass handler; empty for the default one.
    pub runtime_handler: String,
    /// systemd slice name or cgroupfs path; with an empty one the runtime chooses.
    pub cgroup_parent: String,
    /// Namespaced sysctls of `securityContext.sysctls`.
    pub sysctls: BTreeMap<String, String>,
    /// Security of the sandbox itself.
    pub security: SandboxSecurity,
    /// `spec.overhead`: resources of the sandbox itself; all zero for none.
    #[serde(default, skip_serializing_if = "LinuxResources::is_unset")]
    pub overhead: LinuxResources,
    /// Sum of the pod's container resources, for runtimes that size the sandbox; without the overhead.
    pub resources: LinuxResources,
}

/// CRI `DNSConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsConfig {
    /// At most 3.
    pub servers: Vec<String>,
    /// At most 32, 2048 characters together.
    pub searches: Vec<String>,
    /// For example `ndots:5`.
    pub options: Vec<String>,
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// CRI `PortMapping`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    /// Transport protocol of the port.
    pub protocol: Protocol,
    /// Port inside the sandbox.
    pub container_port: u16,
    /// Port on the node; 0 is none.
    pub host_port: u16,
    /// Address on the node; empty is all.
    pub host_ip: String,
}

/// CRI `NamespaceMode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMode {
    /// Shared by the pod's containers.
    #[default]
    Pod,
    /// One for each container.
    Container,
    /// The node's.
    Node,
}

/// CRI `NamespaceOption` without user namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Network: Pod or Node.
    pub network: NamespaceMode,
    /// PID: Pod, Container or Node.
    pub pid: NamespaceMode,
    /// IPC: Pod or Node.
    pub ipc: NamespaceMode,
}

/// CRI `SecurityProfile` for seccomp and AppArmor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecurityProfile {
    /// The runtime's default profile.
    RuntimeDefault,
    /// Unconfined: no profile applies.
    Unconfined,
    /// A profile on the node: absolute path (seccomp) or name (AppArmor).
    Localhost(String),
}

/// CRI `SELinuxOption`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelinuxOption {
    /// User part of the label.
    pub user: String,
    /// Role part of the label.
    pub role: String,
    /// Type part of the label.
    pub type_: String,
    /// Level part of the label.
    pub level: String,
}

/// CRI `SupplementalGroupsPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupplementalGroupsPolicy {
    /// Groups of the image's /etc/group are merged in.
    #[default]
    Merge,
    /// Only the groups given.
    Strict,
}

/// CRI `LinuxSandboxSecurityContext`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSecurity {
    /// Namespaces shared by the pod.
    pub namespaces: Namespaces,
    /// Ids of the pod's own user namespace; `None`: the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<IdMapping>,
    /// Numeric user of the sandbox process.
    pub run_as_user: Option<i64>,
    /// Numeric group of the sandbox process.
    pub run_as_group: Option<i64>,
    /// fsGroup and supplemental groups.
    pub supplemental_groups: Vec<i64>,
    /// How image groups are merged.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// True if any container of the pod is privileged.
    pub privileged: bool,
    /// Seccomp profile; a sandbox always has `RuntimeDefault`.
    pub seccomp: Option<SecurityProfile>,
    /// SELinux label of the sandbox.
    pub selinux: Option<SelinuxOption>,
}

/// CRI `LinuxContainerResources`. Zero means "not set", as on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxResources {
    /// CFS period, microseconds.
    pub cpu_period_us: i64,
    /// CFS quota, microseconds in a period.
    pub cpu_quota_us: i64,
    /// Relative weight, 2 to 262144.
    pub cpu_shares: i64,
    /// Memory limit, bytes.
    pub memory_limit_bytes: i64,
    /// -1000 to 1000.
    pub oom_score_adj: i64,
    /// CPUs of the container as a cpuset list.
    pub cpuset_cpus: String,
    /// cpuset memory nodes.
    pub cpuset_mems: String,
    /// Page size (`2MB`) to limit in bytes.
    pub hugepage_limits: BTreeMap<String, u64>,
    /// cgroup v2 knobs.
    pub unified: BTreeMap<String, String>,
    /// Memory plus swap, bytes.
    pub memory_swap_limit_bytes: i64,
}

impl LinuxResources {
    /// True if nothing is set.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        *self == LinuxResources::default()
    }
}

/// CRI `ContainerConfig`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerConfig {
    /// Container name in the pod.
    pub name: String,
    /// Restart count: 0 for the first instance.
    pub attempt: u32,
    /// Resolved id of the image.
    pub image: ImageId,
    /// The image as the pod spells it.
    pub user_specified_image: String,
    /// Entrypoint; empty takes the image's.
    pub command: Vec<String>,
    /// Arguments; empty takes the image's.
    pub args: Vec<String>,
    /// Empty takes the image's.
    pub working_dir: String,
    /// In order, already expanded.
    pub envs: Vec<(String, String)>,
    /// Bind mounts of the container, in order.
    pub mounts: Vec<Mount>,
    /// Devices of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Names of CDI devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cdi_devices: Vec<String>,
    /// Labels (`labels::*`).
    pub labels: BTreeMap<String, String>,
    /// Annotations (`labels::*`).
    pub annotations: BTreeMap<String, String>,
    /// Relative to the sandbox's log directory: `<container>/<attempt>.log`.
    pub log_path: String,
    /// Keep stdin open.
    pub stdin: bool,
    /// Close stdin after the first attach.
    pub stdin_once: bool,
    /// Allocate a terminal.
    pub tty: bool,
    /// Stop signal, with the API's names (`SIGRTMIN+1`); `None`: the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Limits and weights.
    pub resources: LinuxResources,
    /// Security context of the container.
    pub security: ContainerSecurity,
}

/// CRI `MountPropagation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountPropagation {
    /// Propagation `None`: private.
    #[default]
    Private,
    /// Host mounts appear in the container.
    HostToContainer,
    /// Propagation `Bidirectional`: both ways.
    Bidirectional,
}

/// CRI `Mount`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Path in the container.
    pub container_path: String,
    /// Path on the node.
    pub host_path: String,
    /// Read-only bind.
    pub readonly: bool,
    /// Submounts read-only as well (KEP-3857).
    pub recursive_read_only: bool,
    /// Relabel for SELinux.
    pub selinux_relabel: bool,
    /// Propagation of later mounts.
    pub propagation: MountPropagation,
    /// Image whose files are mounted in place of `host_path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageMount>,
}

/// CRI `Mount.image` and `Mount.image_sub_path` (KEP-4639).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageMount {
    /// Id of the present image.
    pub id: ImageId,
    /// As the pod spells it.
    pub written: String,
    /// Annotations of the pod.
    pub annotations: BTreeMap<String, String>,
    /// Mounted directory of the image, relative; empty: the whole image.
    pub sub_path: String,
}

/// CRI `Device`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Path in the container.
    pub container_path: String,
    /// Path on the node; it may be a link.
    pub host_path: String,
    /// Of `r` (read), `w` (write) and `m` (mknod).
    pub permissions: String,
}

/// CRI `LinuxContainerSecurityContext`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSecurity {
    /// Capabilities to add, without `CAP_`.
    pub add_capabilities: Vec<String>,
    /// Capabilities to drop, without `CAP_`.
    pub drop_capabilities: Vec<String>,
    /// All devices, all capabilities, no masking.
    pub privileged: bool,
    /// Namespaces of the container.
    pub namespaces: Namespaces,
    /// Ids of the pod's own user namespace; all mounts show files with these ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<IdMapping>,
    /// Container whose PID namespace this one enters (`NamespaceMode` TARGET), regardless of
    /// `namespaces.pid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_target: Option<ContainerId>,
    /// Numeric user id of the process.
    pub run_as_user: Option<i64>,
    /// Numeric group; only with `run_as_user`.
    pub run_as_group: Option<i64>,
    /// User by name, from the image.
    pub run_as_username: String,
    /// Root filesystem read-only.
    pub readonly_rootfs: bool,
    /// Supplemental group ids.
    pub supplemental_groups: Vec<i64>,
    /// How image groups are merged.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// `allowPrivilegeEscalation: false`.
    pub no_new_privs: bool,
    /// Paths hidden from the container.
    pub masked_paths: Vec<String>,
    /// Paths read-only in the container.
    pub readonly_paths: Vec<String>,
    /// Seccomp profile of the container.
    pub seccomp: Option<SecurityProfile>,
    /// AppArmor profile of the container.
    pub apparmor: Option<SecurityProfile>,
    /// SELinux label of the container.
    pub selinux: Option<SelinuxOption>,
}
