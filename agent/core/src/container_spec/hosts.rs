//! Host names and the managed `/etc/hosts`.
//!
//! In: pod, its addresses, the cluster domain. Out: host name, domain, text of the file. Invariant: a pure
//! function of its inputs, so a repeated write changes nothing. Upstream: `ensureHostsFile` of
//! pkg/kubelet/kubelet_pods.go.

use std::fmt::Write as _;

use agent_types::node_context::NodeContext;
use agent_types::pod;
use agent_types::spec_error::SpecError;
use k8s_openapi::api::core::v1::Pod;

/// Longest host name, characters.
const HOSTNAME_MAX: usize = 63;
/// Longest name the kernel takes, characters.
const FQDN_MAX: usize = 64;

/// (host name, domain); the domain is empty unless the pod has a subdomain. In a cluster without a domain it ends with a dot,
/// as upstream's does.
#[must_use]
pub fn hostname_and_domain(pod: &Pod, node: &NodeContext) -> (String, String) {
    let spec = pod::spec(pod);
    if let Some(name) = &spec.hostname_override {
        return (name.clone(), String::new());
    }
    let wanted = spec.hostname.as_deref().filter(|h| !h.is_empty()).unwrap_or_else(|| pod::name(pod));
    let cut: String = wanted.chars().take(HOSTNAME_MAX).collect();
    let hostname = if cut.len() < wanted.len() { cut.trim_end_matches(['-', '.']).to_owned() } else { cut };
    let domain = match spec.subdomain.as_deref() {
        Some(subdomain) if !subdomain.is_empty() => {
            let cluster = &node.dns.cluster_domain;
            format!("{subdomain}.{}.svc.{cluster}", pod::namespace(pod))
        }
        _ => String::new(),
    };
    (hostname, domain)
}

/// Host name of the sandbox; empty for host-network pods.
///
/// # Errors
/// A fully qualified name that is too long for the kernel.
pub fn sandbox_hostname(pod: &Pod, node: &NodeContext) -> Result<String, SpecError> {
    if pod::host_network(pod) {
        return Ok(String::new());
    }
    let (hostname, domain) = hostname_and_domain(pod, node);
    if pod::spec(pod).set_hostname_as_fqdn != Some(true) || domain.is_empty() {
        return Ok(hostname);
    }
    let fqdn = format!("{hostname}.{domain}");
    if fqdn.len() > FQDN_MAX {
        return Err(SpecError::sandbox(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
             ({FQDN_MAX} characters is the max, {} characters requested)",
            fqdn.len()
        )));
    }
    Ok(fqdn)
}

/// Text of the managed hosts file; `None` as long as a pod with its own network has no address.
#[must_use]
pub fn hosts_file(pod: &Pod, pod_ips: &[String], node: &NodeContext) -> Option<String> {
    let mut text = if pod::host_network(pod) {
        let mut text = String::from("# Kubernetes-managed hosts file (host network).\n");
        text.push_str(&node.host_etc_hosts);
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text
    } else if pod_ips.is_empty() {
        return None;
    } else {
        pod_network_hosts(pod, pod_ips, node)
    };
    let aliases = pod::spec(pod).host_aliases.as_deref().unwrap_or(&[]);
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.as_deref().unwrap_or(&[]).join("\t");
            let _ = writeln!(text, "{}\t{names}", alias.ip);
        }
    }
    Some(text)
}

fn pod_network_hosts(pod: &Pod, pod_ips: &[String], node: &NodeContext) -> String {
    let mut text = String::from("# Kubernetes-managed hosts file.\n");
    for line in [
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "fe00::0\tip6-localnet",
        "fe00::0\tip6-mcastprefix",
        "fe00::1\tip6-allnodes",
        "fe00::2\tip6-allrouters",
    ] {
        text.push_str(line);
        text.push('\n');
    }
    let (hostname, domain) = hostname_and_domain(pod, node);
    for ip in pod_ips {
        let _ = if domain.is_empty() {
            writeln!(text, "{ip}\t{hostname}")
        } else {
            writeln!(text, "{ip}\t{hostname}.{domain}\t{hostname}")
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, spec: Value) -> Pod {
        let meta = json!({"name": name, "namespace": "ns", "uid": "u"});
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}))
            .unwrap()
    }

    fn node() -> NodeContext {
        let mut node = NodeContext::new("n");
        node.dns.cluster_domain = "cluster.local".into();
        node
    }

    #[test]
    fn hostnames() {
        let long = format!("{}-{}", "a".repeat(62), "b".repeat(10));
        let table = [
            ("web", json!({}), "web", ""),
            ("web", json!({"hostname": "h"}), "h", ""),
            ("web", json!({"hostname": "h", "subdomain": "s"}), "h", "s.ns.svc.cluster.local"),
            ("web", json!({"hostnameOverride": "any.name"}), "any.name", ""),
            (long.as_str(), json!({}), &long[..62], ""),
        ];
        for (name, spec, hostname, domain) in table {
            assert_eq!(hostname_and_domain(&pod(name, spec), &node()), (hostname.into(), domain.into()));
        }
        let of_no_cluster = hostname_and_domain(&pod("h", json!({"subdomain": "s"})), &NodeContext::new("n"));
        assert_eq!(of_no_cluster, ("h".into(), "s.ns.svc.".into()));
    }

    #[test]
    fn the_kernel_gets_a_fully_qualified_name_on_request() {
        let spec = json!({"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true});
        assert_eq!(sandbox_hostname(&pod("p", spec.clone()), &node()).unwrap(), "h.s.ns.svc.cluster.local");
        let mut host = spec;
        host["hostNetwork"] = json!(true);
        assert_eq!(sandbox_hostname(&pod("p", host), &node()).unwrap(), "");
        let long = json!({"hostname": "h".repeat(50), "subdomain": "s", "setHostnameAsFQDN": true});
        let error = sandbox_hostname(&pod("p", long), &node()).unwrap_err();
        assert_eq!(error.reason, "FailedCreatePodSandBox");
        assert!(
            error.message.ends_with("is too long (64 characters is the max, 73 characters requested)"),
            "{error}"
        );
    }

    #[test]
    fn hosts_of_a_pod_network() {
        let spec = json!({"hostname": "h", "subdomain": "s",
            "hostAliases": [{"ip": "192.0.2.9", "hostnames": ["x", "y"]}]});
        let ips = ["10.0.0.2".to_owned(), "fd00::2".to_owned()];
        let text = hosts_file(&pod("p", spec), &ips, &node()).unwrap();
        let tail = "fe00::2\tip6-allrouters\n10.0.0.2\th.s.ns.svc.cluster.local\th\n\
                    fd00::2\th.s.ns.svc.cluster.local\th\n\n# Entries added by HostAliases.\n192.0.2.9\tx\ty\n";
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"), "{text}");
        assert!(text.ends_with(tail), "{text}");
        assert_eq!(hosts_file(&pod("p", json!({})), &[], &node()), None);
    }

    #[test]
    fn hosts_of_the_node_network() {
        let mut node = node();
        node.host_etc_hosts = "127.0.0.1 localhost".into();
        let text = hosts_file(&pod("p", json!({"hostNetwork": true})), &[], &node).unwrap();
        assert_eq!(text, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n");
    }
}
