//! The addresses of the Node (API field `status.addresses`).
//!
//! In: the configuration, the host's interfaces and default routes, the addresses to which the node's name resolves,
//! the addresses that the Node has. Out: the addresses, or the reason why there are none. Invariants: pure; a
//! published address is on one of the host's interfaces, and is not loopback, link-local, multicast or
//! unspecified. Upstream: `NodeAddress` of pkg/kubelet/nodestatus/setters.go,
//! apimachinery/pkg/util/net/interface.go.

use std::net::IpAddr;

use agent_types::resources::machine::HostNetwork;
use k8s_openapi::api::core::v1::NodeAddress;
use orlop_config::formats::is_link_local;

/// What was configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    /// `--node-ip`: none, one, or one of each family. The unspecified address only selects the preferred
    /// family.
    pub node_ips: Vec<IpAddr>,
    /// Name of the host, as the Node's `Hostname` address.
    pub hostname: String,
    /// `--cloud-provider=external`.
    pub external_cloud_provider: bool,
}

/// Why the node has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// `--node-ip` cannot be used.
    #[error("failed to validate {what}: {reason}")]
    NodeIp {
        /// `nodeIP` or `secondaryNodeIP`.
        what: &'static str,
        /// Reason of the failure.
        reason: String,
    },
    /// Nothing fits.
    #[error(
        "can't get ip address of node {0}: no usable address on an interface with a default route; \
         configure the network or give --node-ip"
    )]
    None(String),
}

/// The node's addresses, `InternalIP`s first. `existing` are those of the Node.
///
/// # Errors
/// The reason why there are none; the Node's addresses should then stay.
pub fn node_addresses(
    policy: &AddressPolicy,
    host: &HostNetwork,
    existing: &[NodeAddress],
) -> Result<Vec<NodeAddress>, AddressError> {
    let given = policy.node_ips.first().copied().filter(|ip| !ip.is_unspecified());
    let second = policy.node_ips.get(1).copied().filter(|ip| !ip.is_unspecified());
    for (what, ip) in [("nodeIP", given), ("secondaryNodeIP", second)] {
        if let Some(ip) = ip {
            validate(ip, host).map_err(|reason| AddressError::NodeIp { what, reason })?;
        }
    }
    if policy.external_cloud_provider {
        if !existing.is_empty() {
            return Ok(existing.to_vec());
        }
        if policy.node_ips.is_empty() {
            return Ok(vec![address("Hostname", &policy.hostname)]);
        }
    }
    let ips = match (given, second) {
        (Some(first), Some(second)) => vec![first, second],
        (Some(first), None) => vec![first],
        (None, _) => vec![chosen(policy, host)?],
    };
    let internal = ips.iter().map(|ip| address("InternalIP", &ip.to_string()));
    Ok(internal.chain([address("Hostname", &policy.hostname)]).collect())
}

/// The addresses that pods on the node see as their host's: the first internal one, else the first external one, and
/// the first of the other family. Upstream: pkg/util/node, GetNodeHostIPs.
#[must_use]
pub fn host_ips(addresses: &[NodeAddress]) -> Vec<String> {
    let of = |kind: &'static str| addresses.iter().filter(move |a| a.type_ == kind);
    let ips = || of("InternalIP").chain(of("ExternalIP")).filter_map(|a| a.address.parse::<IpAddr>().ok());
    let first = ips().next();
    let other = first.and_then(|first| ips().find(|ip| ip.is_ipv4() != first.is_ipv4()));
    first.into_iter().chain(other).map(|ip| ip.to_string()).collect()
}

/// The annotation about `--node-ip` for the cloud's controller; `None` if it must be absent.
pub(super) fn provided_node_ip(policy: &AddressPolicy) -> Option<String> {
    let given = |index: usize| policy.node_ips.get(index).filter(|ip| !ip.is_unspecified());
    let first = given(0).filter(|_| policy.external_cloud_provider)?;
    Some(given(1).map_or_else(|| first.to_string(), |second| format!("{first},{second}")))
}

fn address(kind: &str, value: &str) -> NodeAddress {
    NodeAddress { type_: kind.to_owned(), address: value.to_owned() }
}

/// Host name as an address, then the addresses that the resolver has for the name (`/etc/hosts` before DNS) as far as
/// the node has them, then the default route's interface.
fn chosen(policy: &AddressPolicy, host: &HostNetwork) -> Result<IpAddr, AddressError> {
    let prefer_v4 = policy.node_ips.first().is_none_or(IpAddr::is_ipv4);
    if let Ok(ip) = policy.hostname.parse::<IpAddr>() {
        return Ok(ip);
    }
    let mut resolved: Vec<IpAddr> =
        host.resolved.iter().copied().filter(|ip| validate(*ip, host).is_ok()).collect();
    resolved.sort_by_key(|ip| ip.is_ipv4() != prefer_v4);
    let families = [prefer_v4, !prefer_v4];
    let routed = || families.into_iter().find_map(|v4| on_default_route(host, v4));
    resolved.first().copied().or_else(routed).ok_or_else(|| AddressError::None(policy.hostname.clone()))
}

fn on_default_route(host: &HostNetwork, v4: bool) -> Option<IpAddr> {
    let interfaces = if v4 { &host.default_v4 } else { &host.default_v6 };
    let of = |name: &String| {
        let mut own = host.addresses.iter().filter(|a| a.interface == *name && a.ip.is_ipv4() == v4);
        own.find(|a| unusable(a.ip).is_none()).map(|a| a.ip)
    };
    interfaces.iter().find_map(of)
}

/// Why an address cannot name a node.
fn unusable(ip: IpAddr) -> Option<&'static str> {
    match ip {
        ip if ip.is_loopback() => Some("nodeIP can't be loopback address"),
        ip if ip.is_multicast() => Some("nodeIP can't be a multicast address"),
        ip if is_link_local(ip) => Some("nodeIP can't be a link-local unicast address"),
        ip if ip.is_unspecified() => Some("nodeIP can't be an all zeros address"),
        _ => None,
    }
}

fn validate(ip: IpAddr, host: &HostNetwork) -> Result<(), String> {
    if let Some(reason) = unusable(ip) {
        return Err(reason.to_owned());
    }
    if host.addresses.iter().any(|a| a.ip == ip) {
        return Ok(());
    }
    Err(format!("node IP: \"{ip}\" not found in the host's network interfaces"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_address_of_each_family() {
        let of = |addresses: &[(&str, &str)]| {
            let all: Vec<_> = addresses.iter().map(|(kind, value)| address(kind, value)).collect();
            host_ips(&all).join(" ")
        };
        assert_eq!(of(&[("Hostname", "n"), ("InternalIP", "192.0.2.1")]), "192.0.2.1");
        assert_eq!(of(&[("InternalIP", "192.0.2.1"), ("InternalIP", "192.0.2.2")]), "192.0.2.1");
        assert_eq!(of(&[("ExternalIP", "198.51.100.1"), ("InternalIP", "192.0.2.1")]), "192.0.2.1");
        let both = of(&[("InternalIP", "2001:db8::1"), ("ExternalIP", "198.51.100.1")]);
        assert_eq!(both, "2001:db8::1 198.51.100.1");
        assert_eq!(of(&[("Hostname", "192.0.2.9"), ("InternalIP", "nonsense")]), "");
    }
}
