//! Decides which sysctls a pod may set.
//!
//! In: `securityContext.sysctls`, the node's allow-list and kernel version. Out: yes, or `SysctlForbidden`.
//! Invariant: only sysctls of a namespace that the pod does not share with the node are allowed. Upstream:
//! pkg/kubelet/sysctl (safe_sysctls.go, allowlist.go).

use agent_types::pod;
use k8s_openapi::api::core::v1::Pod;

use super::{AdmissionContext, Rejection};
use crate::container_spec::sandbox::normal_sysctl;

/// Safe sysctls and the kernel from which they are namespaced.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

enum Namespace {
    Ipc,
    Net,
}

fn namespace(name: &str) -> Option<Namespace> {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| name.starts_with(p))
        || name == "kernel.sem";
    match name {
        _ if ipc => Some(Namespace::Ipc),
        _ if name.starts_with("net.") => Some(Namespace::Net),
        _ => None,
    }
}

pub(super) fn check(pod: &Pod, node: &AdmissionContext) -> Result<(), Rejection> {
    let spec = pod::spec(pod);
    for sysctl in spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten()) {
        let name = normal_sysctl(&sysctl.name);
        let forbidden =
            |why: &str| Err(Rejection::new("SysctlForbidden", format!("forbidden sysctl: {name:?} {why}")));
        let safe = SAFE.iter().any(|(safe, since)| *safe == name && node.kernel >= *since);
        let allowed = safe || node.allowed_unsafe_sysctls.iter().any(|pattern| matches(pattern, &name));
        match namespace(&name) {
            Some(Namespace::Net) if allowed && spec.host_network == Some(true) => {
                return forbidden("not allowed with host Net enabled");
            }
            Some(Namespace::Ipc) if allowed && spec.host_ipc == Some(true) => {
                return forbidden("not allowed with host IPC enabled");
            }
            Some(_) if allowed => {}
            _ => return forbidden("not allowlisted"),
        }
    }
    Ok(())
}

fn matches(pattern: &str, name: &str) -> bool {
    let pattern = normal_sysctl(pattern);
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}
