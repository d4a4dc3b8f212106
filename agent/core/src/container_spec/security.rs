//! Security contexts of sandboxes and containers.
//!
//! In: pod and container security contexts, the image's user. Out: [`SandboxSecurity`],
//! [`ContainerSecurity`]. Invariants: the container's field wins over the pod's; `runAsNonRoot` is checked
//! before the runtime creates anything; the sandbox always runs under the runtime's seccomp profile.
//! Upstream: pkg/securitycontext, pkg/kubelet/kuberuntime/security_context.go.

use std::collections::BTreeSet;

use agent_types::node_context::NodeContext;
use agent_types::pod;
use agent_types::runtime::config::{
    ContainerSecurity, NamespaceMode, Namespaces, SandboxSecurity, SecurityProfile, SelinuxOption,
    SupplementalGroupsPolicy,
};
use agent_types::runtime::image::ImageInfo;
use agent_types::spec_error::SpecError;
use agent_volumes::bound::Claims;
use k8s_openapi::api::core::v1::{
    Container, EphemeralContainer, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};

use super::apparmor;

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn pod_context(pod: &Pod) -> Option<&PodSecurityContext> {
    pod::spec(pod).security_context.as_ref()
}

/// Which namespaces the pod shares with the node and among its containers.
#[must_use]
pub fn namespaces(pod: &Pod) -> Namespaces {
    let spec = pod::spec(pod);
    let node_or_pod =
        |host: Option<bool>| if host == Some(true) { NamespaceMode::Node } else { NamespaceMode::Pod };
    let pid = if spec.host_pid == Some(true) {
        NamespaceMode::Node
    } else if spec.share_process_namespace == Some(true) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    Namespaces { network: node_or_pod(spec.host_network), pid, ipc: node_or_pod(spec.host_ipc) }
}

/// True if the container runs privileged.
#[must_use]
pub fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|c| c.privileged) == Some(true)
}

/// The groups that the claims' volumes name, each once, but those of `known`. Upstream: `GetExtraSupplementalGroupsForPod`.
pub(super) fn groups_of_volumes(claims: &Claims, known: &[i64]) -> BTreeSet<i64> {
    claims.values().filter_map(|bound| bound.group).filter(|group| !known.contains(group)).collect()
}

/// Security of the sandbox itself.
#[must_use]
pub fn sandbox_security(pod: &Pod, claims: &Claims) -> SandboxSecurity {
    let context = pod_context(pod);
    let mut containers = pod::containers(pod).iter().chain(pod::init_containers(pod));
    let of_debugger =
        |c: &EphemeralContainer| c.security_context.as_ref().and_then(|c| c.privileged) == Some(true);
    let debugged = pod::ephemeral_containers(pod).iter().any(of_debugger);
    // As upstream: the volumes' come after the group of all volumes, before the pod's others.
    let mut groups = supplemental_groups(context);
    let of_volumes = groups_of_volumes(claims, &groups);
    let first = usize::from(context.is_some_and(|c| c.fs_group.is_some()));
    groups.splice(first..first, of_volumes);
    SandboxSecurity {
        namespaces: namespaces(pod),
        users: None,
        run_as_user: context.and_then(|c| c.run_as_user),
        run_as_group: context.and_then(|c| c.run_as_group),
        supplemental_groups: groups,
        supplemental_groups_policy: groups_policy(context),
        privileged: debugged || containers.any(is_privileged),
        seccomp: Some(SecurityProfile::RuntimeDefault),
        selinux: context.and_then(|c| c.se_linux_options.as_ref()).map(selinux),
    }
}

/// Security of one container.
///
/// # Errors
/// `runAsNonRoot` that cannot be proven.
pub fn container_security(
    pod: &Pod,
    container: &Container,
    image: &ImageInfo,
    node: &NodeContext,
) -> Result<ContainerSecurity, SpecError> {
    let for_pod = pod_context(pod);
    let own = container.security_context.as_ref();
    verify_non_root(pod, container, image)?;
    let run_as_user = own.and_then(|c| c.run_as_user).or_else(|| for_pod.and_then(|c| c.run_as_user));
    // Without a user of the pod's the image decides; an image without one runs as root.
    let (user, username) = match run_as_user {
        Some(user) => (Some(user), String::new()),
        None if image.uid.is_none() && !image.username.is_empty() => (None, image.username.clone()),
        None => (Some(image.uid.unwrap_or(0)), String::new()),
    };
    let capabilities = own.and_then(|c| c.capabilities.as_ref());
    let unmasked = own.and_then(|c| c.proc_mount.as_deref()) == Some("Unmasked");
    let (mut masked_paths, mut readonly_paths) = (Vec::new(), Vec::new());
    if !unmasked {
        masked_paths.extend(MASKED_PATHS.map(str::to_owned));
        masked_paths.extend(node.machine.thermal_throttle_paths.iter().cloned());
        readonly_paths.extend(READONLY_PATHS.map(str::to_owned));
    }
    let selinux_options = own
        .and_then(|c| c.se_linux_options.as_ref())
        .or_else(|| for_pod.and_then(|c| c.se_linux_options.as_ref()));
    Ok(ContainerSecurity {
        add_capabilities: capabilities.and_then(|c| c.add.clone()).unwrap_or_default(),
        drop_capabilities: capabilities.and_then(|c| c.drop.clone()).unwrap_or_default(),
        privileged: is_privileged(container),
        namespaces: namespaces(pod),
        users: None,
        pid_target: None,
        run_as_user: user,
        run_as_group: own.and_then(|c| c.run_as_group).or_else(|| for_pod.and_then(|c| c.run_as_group)),
        run_as_username: username,
        readonly_rootfs: own.and_then(|c| c.read_only_root_filesystem) == Some(true),
        supplemental_groups: supplemental_groups(for_pod),
        supplemental_groups_policy: groups_policy(for_pod),
        no_new_privs: own.and_then(|c| c.allow_privilege_escalation) == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(seccomp(for_pod, own, node)),
        apparmor: apparmor::profile(pod, container),
        selinux: selinux_options.map(selinux),
    })
}

fn supplemental_groups(context: Option<&PodSecurityContext>) -> Vec<i64> {
    let fs_group = context.and_then(|c| c.fs_group);
    let more = context.and_then(|c| c.supplemental_groups.as_deref()).unwrap_or(&[]);
    fs_group.into_iter().chain(more.iter().copied()).collect()
}

fn groups_policy(context: Option<&PodSecurityContext>) -> SupplementalGroupsPolicy {
    match context.and_then(|c| c.supplemental_groups_policy.as_deref()) {
        Some("Strict") => SupplementalGroupsPolicy::Strict,
        _ => SupplementalGroupsPolicy::Merge,
    }
}

fn selinux(options: &SELinuxOptions) -> SelinuxOption {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    SelinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        type_: text(&options.type_),
        level: text(&options.level),
    }
}

fn seccomp(
    for_pod: Option<&PodSecurityContext>,
    own: Option<&SecurityContext>,
    node: &NodeContext,
) -> SecurityProfile {
    let profile: Option<&SeccompProfile> = own
        .and_then(|c| c.seccomp_profile.as_ref())
        .or_else(|| for_pod.and_then(|c| c.seccomp_profile.as_ref()));
    match profile {
        None if node.security.seccomp_default => SecurityProfile::RuntimeDefault,
        None => SecurityProfile::Unconfined,
        Some(profile) => match profile.type_.as_str() {
            "RuntimeDefault" => SecurityProfile::RuntimeDefault,
            "Localhost" => {
                let name = profile.localhost_profile.as_deref().unwrap_or("");
                SecurityProfile::Localhost(format!("{}/seccomp/{name}", node.root_dir))
            }
            _ => SecurityProfile::Unconfined,
        },
    }
}

fn verify_non_root(pod: &Pod, container: &Container, image: &ImageInfo) -> Result<(), SpecError> {
    let for_pod = pod_context(pod);
    let own = container.security_context.as_ref();
    let wanted = own.and_then(|c| c.run_as_non_root).or_else(|| for_pod.and_then(|c| c.run_as_non_root));
    if wanted != Some(true) {
        return Ok(());
    }
    let suffix = format!("(pod: \"{}\", container: {})", pod::key(pod), container.name);
    let user = own.and_then(|c| c.run_as_user).or_else(|| for_pod.and_then(|c| c.run_as_user));
    let problem = match (user, image.uid) {
        (Some(0), _) => "container's runAsUser breaks non-root policy".to_owned(),
        (Some(_), _) => return Ok(()),
        (None, Some(0)) => "container has runAsNonRoot and image will run as root".to_owned(),
        // A runtime may cut it to 32 bits, and 0 may be left.
        (None, Some(uid)) if i32::try_from(uid).is_ok_and(|uid| uid > 0) => return Ok(()),
        (None, Some(uid)) => format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({max})): must be between 0 \
             and {max}, inclusive",
            max = i32::MAX
        ),
        (None, None) if image.username.is_empty() => {
            "container has runAsNonRoot and image will run as root".to_owned()
        }
        (None, None) => format!(
            "container has runAsNonRoot and image has non-numeric user ({}), cannot verify user is non-root",
            image.username
        ),
    };
    Err(SpecError::container(format!("{problem} {suffix}")))
}

#[cfg(test)]
mod tests;
