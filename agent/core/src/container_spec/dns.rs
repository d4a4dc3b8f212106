//! The pod's resolver configuration (API fields `dnsPolicy` and `dnsConfig`).
//!
//! In: `dnsPolicy`, `dnsConfig`, the node's [`DnsContext`]. Out: [`DnsConfig`] and warnings. Invariants: at
//! most 3 servers, 32 search domains, and 2048 characters of search domains. Upstream:
//! pkg/kubelet/network/dns.

use agent_types::node_context::{DnsContext, NodeContext, ResolvConf};
use agent_types::pod;
use agent_types::runtime::config::DnsConfig;
use k8s_openapi::api::core::v1::{Pod, PodDNSConfig};

const SERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_CHARS_MAX: usize = 2048;
const DOMAIN_CHARS_MAX: usize = 253;

/// Search domains that the cluster puts before the host's.
const CLUSTER_SEARCHES: usize = 3;

/// Reason: a pod wants the cluster's DNS, and the node has no `clusterDNS`.
pub const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";
/// The same as the node's own event has it; the pod's names the pod before it.
pub const MISSING_CLUSTER_DNS_MESSAGE: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
     \"ClusterFirst\" policy. Falling back to \"Default\" policy.";

/// Something people should know about the pod's resolver: an event of type Warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsWarning {
    /// `MissingClusterDNS` or `DNSConfigForming`.
    pub reason: &'static str,
    /// The event's message.
    pub message: String,
}

enum Base {
    None,
    Cluster,
    Host,
}

/// The resolver configuration of `pod`.
#[must_use]
pub fn pod_dns(pod: &Pod, node: &NodeContext) -> (DnsConfig, Vec<DnsWarning>) {
    let mut warnings = Vec::new();
    let dns = &node.dns;
    let mut config = match base(pod) {
        Base::None => DnsConfig::default(),
        Base::Cluster if !dns.cluster_dns.is_empty() => cluster(pod, dns),
        Base::Cluster => {
            warnings.push(DnsWarning {
                reason: MISSING_CLUSTER_DNS,
                message: format!("pod: {:?}. {MISSING_CLUSTER_DNS_MESSAGE}", pod::key(pod).to_string()),
            });
            host(node)
        }
        Base::Host => host(node),
    };
    if let Some(own) = &pod::spec(pod).dns_config {
        append(&mut config, own);
    }
    fit(&mut config, &mut warnings);
    (config, warnings)
}

/// What is wrong with the host's own resolver file `path`, apart from any pod: the message of the node's event
/// `CheckLimitsForResolvConf`. With a cluster domain three of the search domains are the cluster's.
#[must_use]
pub fn resolver_problem(path: &str, text: &str, cluster_domain: &str) -> Option<String> {
    let bare = |line: &str| line.split_whitespace().eq(["nameserver"]);
    if text.lines().any(bare) {
        return Some("nameserver list is empty ".to_owned());
    }
    let searches = ResolvConf::parse(text).searches;
    let most = SEARCHES_MAX - if cluster_domain.is_empty() { 0 } else { CLUSTER_SEARCHES };
    if searches.len() > most {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {most} domains!"
        ));
    }
    if searches.iter().any(|domain| domain.len() > DOMAIN_CHARS_MAX) {
        return Some(format!(
            "Resolv.conf file {path:?} contains a search path which length is more than allowed {DOMAIN_CHARS_MAX} chars!"
        ));
    }
    (length(&searches) > SEARCH_CHARS_MAX).then(|| {
        format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed {SEARCH_CHARS_MAX} chars!"
        )
    })
}

/// Characters of the search line.
fn length(searches: &[String]) -> usize {
    searches.iter().map(|s| s.len() + 1).sum::<usize>().saturating_sub(1)
}

fn base(pod: &Pod) -> Base {
    match pod::spec(pod).dns_policy.as_deref() {
        Some("None") => Base::None,
        Some("Default") => Base::Host,
        Some("ClusterFirstWithHostNet") => Base::Cluster,
        _ if pod::host_network(pod) => Base::Host,
        _ => Base::Cluster,
    }
}

fn cluster(pod: &Pod, dns: &DnsContext) -> DnsConfig {
    let mut searches = Vec::new();
    let domain = &dns.cluster_domain;
    if !domain.is_empty() {
        push_new(&mut searches, &format!("{}.svc.{domain}", pod::namespace(pod)));
        push_new(&mut searches, &format!("svc.{domain}"));
        push_new(&mut searches, domain);
    }
    for search in dns.host.iter().flat_map(|host| &host.searches) {
        push_new(&mut searches, search);
    }
    DnsConfig { servers: dns.cluster_dns.clone(), searches, options: vec!["ndots:5".to_owned()] }
}

fn host(node: &NodeContext) -> DnsConfig {
    if let Some(host) = &node.dns.host {
        return DnsConfig {
            servers: host.nameservers.clone(),
            searches: host.searches.clone(),
            options: host.options.clone(),
        };
    }
    // `resolvConf: ""` means no lookups: a loopback server that nothing listens on, one for each family.
    let mut servers = Vec::new();
    for ip in &node.node_ips {
        push_new(&mut servers, if ip.contains(':') { "::1" } else { "127.0.0.1" });
    }
    if servers.is_empty() {
        servers.push("127.0.0.1".to_owned());
    }
    DnsConfig { servers, searches: vec![".".to_owned()], options: Vec::new() }
}

fn append(config: &mut DnsConfig, own: &PodDNSConfig) {
    for server in own.nameservers.iter().flatten() {
        push_new(&mut config.servers, server);
    }
    for search in own.searches.iter().flatten() {
        push_new(&mut config.searches, search);
    }
    for option in own.options.iter().flatten() {
        let Some(name) = option.name.as_deref().filter(|n| !n.is_empty()) else { continue };
        let text = match option.value.as_deref().filter(|v| !v.is_empty()) {
            Some(value) => format!("{name}:{value}"),
            None => name.to_owned(),
        };
        let same_name = |o: &&mut String| o.split(':').next() == Some(name);
        match config.options.iter_mut().find(same_name) {
            Some(slot) => *slot = text,
            None => config.options.push(text),
        }
    }
}

fn fit(config: &mut DnsConfig, warnings: &mut Vec<DnsWarning>) {
    let mut warn = |message: String| warnings.push(DnsWarning { reason: "DNSConfigForming", message });
    if config.servers.len() > SERVERS_MAX {
        config.servers.truncate(SERVERS_MAX);
        let line = config.servers.join(" ");
        warn(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, \
             the applied nameserver line is: {line}"
        ));
    }
    let before = config.searches.len();
    config.searches.truncate(SEARCHES_MAX);
    config.searches.retain(|domain| domain.len() <= DOMAIN_CHARS_MAX);
    while length(&config.searches) > SEARCH_CHARS_MAX {
        config.searches.pop();
    }
    if config.searches.len() < before {
        let line = config.searches.join(" ");
        warn(format!(
            "Search Line limits were exceeded, some search paths have been omitted, \
             the applied search line is: {line}"
        ));
    }
}

fn push_new(list: &mut Vec<String>, item: &str) {
    if !list.iter().any(|known| known == item) {
        list.push(item.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node() -> NodeContext {
        let mut node = NodeContext::new("n");
        node.dns = DnsContext {
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            host: Some(ResolvConf::parse(
                "nameserver 192.0.2.1\nsearch lan svc.cluster.local\noptions edns0\n",
            )),
        };
        node
    }

    fn dns(spec: Value, node: &NodeContext) -> (DnsConfig, Vec<DnsWarning>) {
        let pod: Pod = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}))
        .unwrap();
        pod_dns(&pod, node)
    }

    fn config(servers: &[&str], searches: &[&str], options: &[&str]) -> DnsConfig {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        DnsConfig { servers: owned(servers), searches: owned(searches), options: owned(options) }
    }

    #[test]
    fn policies() {
        let cluster = config(
            &["10.96.0.10"],
            &["ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan"],
            &["ndots:5"],
        );
        let host = config(&["192.0.2.1"], &["lan", "svc.cluster.local"], &["edns0"]);
        let table = [
            (json!({"dnsPolicy": "ClusterFirst"}), cluster.clone()),
            (json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), host.clone()),
            (json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), cluster),
            (json!({"dnsPolicy": "Default"}), host),
            (
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.9"]}}),
                config(&["192.0.2.9"], &[], &[]),
            ),
        ];
        for (spec, expected) in table {
            assert_eq!(dns(spec.clone(), &node()), (expected, vec![]), "{spec}");
        }
    }

    #[test]
    fn own_configuration_is_appended_and_options_replaced_by_name() {
        let spec = json!({"dnsPolicy": "ClusterFirst", "dnsConfig": {
            "nameservers": ["10.96.0.10", "192.0.2.9"], "searches": ["extra"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}]}});
        let (config, warnings) = dns(spec, &node());
        assert_eq!(config.servers, ["10.96.0.10", "192.0.2.9"]);
        assert_eq!(config.searches.last().unwrap(), "extra");
        assert_eq!(config.options, ["ndots:2", "rotate"]);
        assert_eq!(warnings, []);
    }

    #[test]
    fn without_cluster_dns_the_host_answers_and_a_warning_says_so() {
        let mut node = node();
        node.dns.cluster_dns.clear();
        let (config, warnings) = dns(json!({}), &node);
        assert_eq!(config.servers, ["192.0.2.1"]);
        assert_eq!(warnings[0].reason, "MissingClusterDNS");
        node.dns.host = None;
        node.node_ips = vec!["192.0.2.7".into(), "2001:db8::7".into()];
        assert_eq!(
            dns(json!({"dnsPolicy": "Default"}), &node).0,
            self::config(&["127.0.0.1", "::1"], &["."], &[])
        );
    }

    #[test]
    fn limits() {
        let many: Vec<String> = (0..40).map(|i| format!("{i}-{}", "x".repeat(100))).collect();
        let spec = json!({"dnsPolicy": "None", "dnsConfig": {
            "nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"], "searches": many}});
        let (config, warnings) = dns(spec, &node());
        assert_eq!(config.servers.len(), 3);
        assert!(
            config.searches.join(" ").len() <= 2048 && config.searches.len() == 19,
            "{}",
            config.searches.len()
        );
        let reasons: Vec<_> = warnings.iter().map(|w| w.reason).collect();
        assert_eq!(reasons, ["DNSConfigForming", "DNSConfigForming"]);
        // A domain that is too long counts among the 32.
        let mut domains = vec!["x".repeat(254)];
        domains.extend((0..32).map(|i| format!("d{i}")));
        let spec = json!({"dnsPolicy": "None", "dnsConfig": {"searches": domains}});
        let (config, warnings) = dns(spec, &node());
        assert_eq!((config.searches.len(), config.searches.last().map(String::as_str)), (31, Some("d30")));
        assert!(warnings[0].message.starts_with("Search Line limits were exceeded"), "{warnings:?}");
    }

    #[test]
    fn the_hosts_own_resolver_file() {
        let line = |domains: usize, each: usize| {
            format!("search{}\n", format!(" {}", "x".repeat(each)).repeat(domains))
        };
        let at = |text: &str, domain: &str| resolver_problem("/r", text, domain).unwrap_or_default();
        for (text, domain, problem) in [
            (line(29, 10), "cluster.local", ""),
            (
                line(30, 10),
                "cluster.local",
                "Resolv.conf file '/r' contains search line consisting of more than 29 domains!",
            ),
            (line(32, 10), "", ""),
            (
                line(33, 10),
                "",
                "Resolv.conf file '/r' contains search line consisting of more than 32 domains!",
            ),
            (
                line(1, 254),
                "",
                "Resolv.conf file \"/r\" contains a search path which length is more than allowed 253 chars!",
            ),
            (
                line(9, 250),
                "",
                "Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!",
            ),
            ("nameserver 192.0.2.1\nsearch .\n".to_owned(), "", ""),
            ("nameserver\n".to_owned(), "", "nameserver list is empty "),
        ] {
            assert_eq!(at(&text, domain), problem, "{text}");
        }
    }
}
