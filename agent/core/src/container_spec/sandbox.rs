//! Configuration of the sandbox: the CRI message `PodSandboxConfig`.
//!
//! In: pod, attempt, node. Out: [`SandboxConfig`]. Upstream: `generatePodSandboxConfig` of
//! pkg/kubelet/kuberuntime/kuberuntime_sandbox.go.

use std::collections::BTreeMap;

use agent_types::node_context::NodeContext;
use agent_types::pod;
use agent_types::pod_paths::log_directory;
use agent_types::runtime::config::{PortMapping, Protocol, SandboxConfig};
use agent_types::runtime::labels;
use agent_types::spec_error::SpecError;
use agent_volumes::bound::Claims;
use k8s_openapi::api::core::v1::{ContainerPort, Pod};

use super::cgroup::cgroup_parent;
use super::dns::pod_dns;
use super::hosts::sandbox_hostname;
use super::linux::{sandbox_overhead, sandbox_resources};
use super::security::sandbox_security;

/// Configuration of the pod's sandbox number `attempt`, with the volumes of its claims, for the node's
/// default runtime: the caller fills in the handler of its RuntimeClass.
///
/// # Errors
/// A host name that is too long for the kernel.
pub fn sandbox_config(
    pod: &Pod,
    attempt: u32,
    claims: &Claims,
    node: &NodeContext,
) -> Result<SandboxConfig, SpecError> {
    let (dns, _warnings) = pod_dns(pod, node);
    let mut pod_labels = pod::labels(pod).clone();
    pod_labels.extend(identity_labels(pod));
    Ok(SandboxConfig {
        pod: pod::key(pod),
        attempt,
        hostname: sandbox_hostname(pod, node)?,
        log_directory: log_directory(pod, node),
        dns: Some(dns),
        port_mappings: port_mappings(pod),
        labels: pod_labels,
        annotations: pod::annotations(pod).clone(),
        runtime_handler: String::new(),
        cgroup_parent: cgroup_parent(pod, node),
        sysctls: sysctls(pod),
        security: sandbox_security(pod, claims),
        overhead: sandbox_overhead(pod, node),
        resources: sandbox_resources(pod, node),
    })
}

/// The labels by which a restarted agent finds the sandboxes and containers of a pod.
pub(super) fn identity_labels(pod: &Pod) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::POD_NAME.to_owned(), pod::name(pod).to_owned()),
        (labels::POD_NAMESPACE.to_owned(), pod::namespace(pod).to_owned()),
        (labels::POD_UID.to_owned(), pod::uid(pod).to_owned()),
    ])
}

/// Ports of every container that runs for long, also those without a host port (the runtime leaves them out); none on
/// the host's own network.
fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    if pod::host_network(pod) {
        return Vec::new();
    }
    let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
    let containers = sidecars.chain(pod::containers(pod));
    containers.flat_map(|c| c.ports.as_deref().unwrap_or(&[])).filter_map(port_mapping).collect()
}

fn port_mapping(port: &ContainerPort) -> Option<PortMapping> {
    Some(PortMapping {
        protocol: match port.protocol.as_deref() {
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            _ => Protocol::Tcp,
        },
        container_port: u16::try_from(port.container_port).ok()?,
        host_port: u16::try_from(port.host_port.unwrap_or(0)).ok()?,
        host_ip: port.host_ip.clone().unwrap_or_default(),
    })
}

fn sysctls(pod: &Pod) -> BTreeMap<String, String> {
    let list = pod::spec(pod).security_context.as_ref().and_then(|c| c.sysctls.as_deref()).unwrap_or(&[]);
    list.iter().map(|s| (normal_sysctl(&s.name), s.value.clone())).collect()
}

/// `net/ipv4/conf/eth0.1/x` becomes `net.ipv4.conf.eth0/1.x`: whichever separator comes first is the separator.
#[must_use]
pub fn normal_sysctl(name: &str) -> String {
    let first = name.find(['.', '/']);
    match first.and_then(|at| name.as_bytes().get(at)) {
        Some(b'/') => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::normal_sysctl;

    #[test]
    fn sysctl_names() {
        let table = [
            ("net.ipv4.tcp_syncookies", "net.ipv4.tcp_syncookies"),
            ("net/ipv4/tcp_syncookies", "net.ipv4.tcp_syncookies"),
            ("net/ipv4/conf/eth0.1/x", "net.ipv4.conf.eth0/1.x"),
            ("net.ipv4.conf.eth0/1.x", "net.ipv4.conf.eth0/1.x"),
            ("plain", "plain"),
        ];
        for (name, expected) in table {
            assert_eq!(normal_sysctl(name), expected);
        }
    }
}
