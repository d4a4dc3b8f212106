//! `SandboxConfig` to CRI `PodSandboxConfig`. The runtime handler is not part of it:
//! `RunPodSandboxRequest` has a field of its own for it.

use agent_types::runtime::config::{DnsConfig, PortMapping, Protocol, SandboxConfig, SandboxSecurity};
use orlop_proto::cri::v1;

use super::linux;

/// CRI `PodSandboxConfig`.
#[must_use]
pub fn config(c: &SandboxConfig) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: c.pod.name.to_string(),
            uid: c.pod.uid.to_string(),
            namespace: c.pod.namespace.to_string(),
            attempt: c.attempt,
        }),
        hostname: c.hostname.clone(),
        log_directory: c.log_directory.clone(),
        dns_config: c.dns.as_ref().map(dns),
        port_mappings: c.port_mappings.iter().map(port_mapping).collect(),
        labels: linux::map(&c.labels),
        annotations: linux::map(&c.annotations),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: c.cgroup_parent.clone(),
            security_context: Some(security(&c.security)),
            sysctls: linux::map(&c.sysctls),
            overhead: Some(linux::resources(&c.overhead)),
            resources: Some(linux::resources(&c.resources)),
        }),
        windows: None,
    }
}

fn dns(d: &DnsConfig) -> v1::DnsConfig {
    v1::DnsConfig { servers: d.servers.clone(), searches: d.searches.clone(), options: d.options.clone() }
}

fn port_mapping(p: &PortMapping) -> v1::PortMapping {
    let protocol = match p.protocol {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
        Protocol::Sctp => v1::Protocol::Sctp,
    };
    v1::PortMapping {
        protocol: protocol.into(),
        container_port: p.container_port.into(),
        host_port: p.host_port.into(),
        host_ip: p.host_ip.clone(),
    }
}

#[allow(deprecated)] // the older field is spelled out, empty
fn security(s: &SandboxSecurity) -> v1::LinuxSandboxSecurityContext {
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(linux::namespaces(s.namespaces, None, s.users)),
        selinux_options: s.selinux.as_ref().map(linux::selinux),
        run_as_user: linux::int64(s.run_as_user),
        run_as_group: linux::int64(s.run_as_group),
        readonly_rootfs: false,
        supplemental_groups: s.supplemental_groups.clone(),
        supplemental_groups_policy: linux::groups_policy(s.supplemental_groups_policy),
        privileged: s.privileged,
        seccomp: s.seccomp.as_ref().map(linux::profile),
        apparmor: None,
        seccomp_profile_path: String::new(),
    }
}
