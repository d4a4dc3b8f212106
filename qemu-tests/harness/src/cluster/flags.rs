//! Command lines of the control plane's programs. Pure.
//!
//! In: paths, and the settings that a case may change ([`Settings`]). Out: arguments. Invariants: the node
//! authorizer and NodeRestriction are always on, every request is audited, etcd and the controllers listen on the
//! namespace's loopback only.

use std::path::Path;
use std::time::Duration;

use super::pki::{OTHER_NAME, Pki};

/// The control plane's address on the bridge, and the port of the API server.
pub const ADDRESS: &str = "172.30.0.1";
/// The API server's port.
pub const PORT: u16 = 6443;
/// First service address: `kubernetes.default`.
pub const SERVICE_ADDRESS: &str = "10.96.0.1";
/// Service address of the cluster's DNS.
pub const DNS_ADDRESS: &str = "10.96.0.10";
/// Domain of the names of Services.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
/// The control plane's address of IPv6 on the bridge, in a cluster with both families.
pub const IPV6_ADDRESS: &str = "fd00:30::1";
/// Range of the addresses of Services.
const SERVICE_RANGE: &str = "10.96.0.0/16";
/// Range of their addresses of IPv6.
const IPV6_SERVICE_RANGE: &str = "fd00:96::/112";
/// Names that the API server's certificate carries.
pub const SERVER_NAMES: [&str; 7] = [
    ADDRESS,
    "127.0.0.1",
    SERVICE_ADDRESS,
    "localhost",
    "kubernetes",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// Settings that differ between clusters.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Lifetime of the certificates that nodes get.
    pub certificate_lifetime: Duration,
    /// How long a node may be silent before its Ready condition becomes Unknown.
    pub node_monitor_grace: Duration,
    /// Pods get the token of their service account as a volume without asking for it.
    pub service_account_tokens: bool,
    /// ClusterTrustBundles and PodCertificateRequests are served, and pods may use them.
    pub pod_certificates: bool,
    /// A client can request one stream of a container's log: alpha, and off, in this release.
    pub log_streams: bool,
    /// The API server itself selects endpoints of Services for webhooks and aggregated APIs. Without this it uses the
    /// Services' addresses, which only a host with kube-proxy routes. It refuses Services of type ExternalName then.
    pub aggregator_routing: bool,
    /// Nodes, pods and Services have addresses of IPv6, too; those of IPv4 are the first ones. The configuration of a
    /// node's kubelet must have both of its addresses, and that of its network both ranges of its pods.
    pub dual_stack: bool,
}

/// Gate of API server and kubelet for single streams of logs.
pub const LOG_STREAMS_GATE: &str = "PodLogsQuerySplitStreams";

/// Gates of API server and kubelet for certificates of pods: beta, and off, in this release.
pub const CERTIFICATE_GATES: &str =
    "ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true";

impl Default for Settings {
    /// Upstream's own.
    fn default() -> Settings {
        Settings {
            certificate_lifetime: Duration::from_secs(365 * 24 * 3600),
            node_monitor_grace: Duration::from_secs(50),
            service_account_tokens: true,
            pod_certificates: false,
            log_streams: false,
            aggregator_routing: false,
            dual_stack: false,
        }
    }
}

/// Paths of the plane's files.
pub struct Files<'a> {
    /// Keys and certificates.
    pub pki: &'a Pki,
    /// etcd's data.
    pub etcd: &'a Path,
    /// The audit policy.
    pub audit_policy: &'a Path,
    /// The audit log.
    pub audit_log: &'a Path,
    /// Kubeconfig of the controller manager.
    pub controller_manager: &'a Path,
    /// Drivers of `flexVolume`.
    pub flex: &'a Path,
    /// Kubeconfig of the scheduler.
    pub scheduler: &'a Path,
}

/// Every request's metadata, once, when it is answered.
pub const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\n\
                                rules:\n- level: Metadata\n";

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

fn file(name: &str, path: &Path) -> String {
    flag(name, path.display())
}

/// etcd: one member, no fsync (the data lives as long as the run).
#[must_use]
pub fn etcd(files: &Files<'_>) -> Vec<String> {
    vec![
        flag("name", "e2e"),
        file("data-dir", files.etcd),
        flag("listen-client-urls", "http://127.0.0.1:2379"),
        flag("advertise-client-urls", "http://127.0.0.1:2379"),
        flag("listen-peer-urls", "http://127.0.0.1:2380"),
        flag("initial-advertise-peer-urls", "http://127.0.0.1:2380"),
        flag("initial-cluster", "e2e=http://127.0.0.1:2380"),
        flag("unsafe-no-fsync", "true"),
        flag("log-level", "warn"),
    ]
}

/// kube-apiserver.
#[must_use]
pub fn apiserver(files: &Files<'_>, settings: Settings) -> Vec<String> {
    let pki = files.pki;
    let ranges = [Some(SERVICE_RANGE), settings.dual_stack.then_some(IPV6_SERVICE_RANGE)];
    let mut flags = vec![
        flag("advertise-address", ADDRESS),
        flag("secure-port", PORT),
        flag("etcd-servers", "http://127.0.0.1:2379"),
        flag("service-cluster-ip-range", ranges.into_iter().flatten().collect::<Vec<_>>().join(",")),
        flag("authorization-mode", "Node,RBAC"),
        flag("enable-admission-plugins", "NodeRestriction"),
        flag("enable-bootstrap-token-auth", "true"),
        flag("allow-privileged", "true"),
        flag("profiling", "false"),
        file("client-ca-file", &pki.ca.certificate),
        file("tls-cert-file", &pki.apiserver.certificate),
        file("tls-private-key-file", &pki.apiserver.key),
        // A client that expects another cluster's API server finds its certificate.
        flag(
            "tls-sni-cert-key",
            format_args!(
                "{},{}:{OTHER_NAME}",
                pki.other_apiserver.certificate.display(),
                pki.other_apiserver.key.display()
            ),
        ),
        file("kubelet-certificate-authority", &pki.ca.certificate),
        file("kubelet-client-certificate", &pki.apiserver_kubelet_client.certificate),
        file("kubelet-client-key", &pki.apiserver_kubelet_client.key),
        flag("kubelet-preferred-address-types", "InternalIP,Hostname"),
        flag("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
        file("service-account-key-file", &pki.service_account_public_key),
        file("service-account-signing-key-file", &pki.service_account_key),
        file("requestheader-client-ca-file", &pki.front_proxy_ca.certificate),
        flag("requestheader-allowed-names", "front-proxy-client"),
        flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        flag("requestheader-group-headers", "X-Remote-Group"),
        flag("requestheader-username-headers", "X-Remote-User"),
        file("proxy-client-cert-file", &pki.front_proxy_client.certificate),
        file("proxy-client-key-file", &pki.front_proxy_client.key),
        file("audit-policy-file", files.audit_policy),
        file("audit-log-path", files.audit_log),
        // Requests of a node are counted and judged from this file as soon as they are answered.
        flag("audit-log-mode", "blocking"),
    ];
    if !settings.service_account_tokens {
        flags.push(flag("disable-admission-plugins", "ServiceAccount"));
    }
    if settings.log_streams {
        flags.push(flag("feature-gates", format_args!("{LOG_STREAMS_GATE}=true")));
    }
    if settings.pod_certificates {
        flags.push(flag("feature-gates", CERTIFICATE_GATES));
        flags.push(flag("runtime-config", "certificates.k8s.io/v1beta1=true"));
    }
    if settings.aggregator_routing {
        flags.push(flag("enable-aggregator-routing", "true"));
    }
    flags
}

/// kube-controller-manager with every controller, those of bootstrapping too.
#[must_use]
pub fn controller_manager(files: &Files<'_>, settings: Settings) -> Vec<String> {
    let pki = files.pki;
    let mut flags = connected(files.controller_manager);
    flags.extend([
        flag("controllers", "*,bootstrap-signer-controller,token-cleaner-controller"),
        flag("cluster-name", "orlop-e2e"),
        file("client-ca-file", &pki.ca.certificate),
        file("requestheader-client-ca-file", &pki.front_proxy_ca.certificate),
        file("root-ca-file", &pki.ca.certificate),
        file("service-account-private-key-file", &pki.service_account_key),
        flag("use-service-account-credentials", "true"),
        file("flex-volume-plugin-dir", files.flex),
        file("cluster-signing-cert-file", &pki.ca.certificate),
        file("cluster-signing-key-file", &pki.ca.key),
        flag("cluster-signing-duration", format_args!("{}s", settings.certificate_lifetime.as_secs())),
        flag("node-monitor-grace-period", format_args!("{}s", settings.node_monitor_grace.as_secs())),
    ]);
    flags
}

/// kube-scheduler.
#[must_use]
pub fn scheduler(files: &Files<'_>) -> Vec<String> {
    connected(files.scheduler)
}

fn connected(kubeconfig: &Path) -> Vec<String> {
    let mut flags: Vec<String> = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
        .map(|n| file(n, kubeconfig))
        .into();
    // There is one of each: electing a leader would cost seconds and say nothing.
    flags.extend([
        flag("leader-elect", "false"),
        flag("bind-address", "127.0.0.1"),
        flag("profiling", "false"),
    ]);
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cases_rely_on_is_on() {
        let dir = std::env::temp_dir().join(format!("orlop-flags-{}", std::process::id()));
        let pki = Pki::make(&dir, &SERVER_NAMES).unwrap();
        let files = Files {
            pki: &pki,
            etcd: Path::new("/e"),
            audit_policy: Path::new("/p"),
            audit_log: Path::new("/l"),
            controller_manager: Path::new("/c"),
            flex: Path::new("/x"),
            scheduler: Path::new("/s"),
        };
        let without = Settings { service_account_tokens: false, ..Settings::default() };
        let said = |settings| {
            apiserver(&files, settings).contains(&"--disable-admission-plugins=ServiceAccount".to_owned())
        };
        assert_eq!([Settings::default(), without].map(said), [false, true]);
        let gated = Settings { pod_certificates: true, ..Settings::default() };
        let all =
            [gated, Settings::default()].map(|s| apiserver(&files, s).iter().any(|f| f.contains("v1beta1")));
        assert_eq!(all, [true, false]);
        let routing = Settings { aggregator_routing: true, ..Settings::default() };
        let all = [routing, Settings::default()]
            .map(|s| apiserver(&files, s).contains(&"--enable-aggregator-routing=true".to_owned()));
        assert_eq!(all, [true, false]);
        let both = apiserver(&files, Settings { dual_stack: true, ..Settings::default() });
        let ranges = "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112";
        assert!(both.iter().any(|f| f == ranges), "{both:?}");
        let all = apiserver(&files, Settings::default());
        assert!(all.iter().any(|f| f == "--service-cluster-ip-range=10.96.0.0/16"), "{all:?}");
        for want in ["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"] {
            assert!(all.iter().any(|f| f == want), "{want}");
        }
        let settings = Settings { certificate_lifetime: Duration::from_secs(180), ..Settings::default() };
        let all = controller_manager(&files, settings);
        assert!(all.iter().any(|f| f == "--cluster-signing-duration=180s"), "{all:?}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
