//! NodeConfig `orlop/v1alpha1`: everything that a node gets to know at first boot.
//!
//! `Default` is the configuration of a node without a document: DHCP on every wired interface, standalone,
//! static pods from /etc/kubernetes/manifests. See docs/reference/configuration.md.

use super::credential_provider::CredentialProvider;
use super::network::Network;
use super::node_file::NodeFile;
use super::scalar::Scalar;
use super::secret::Secret;
use super::static_pod::StaticPod;
use super::update::Update;
use crate::field::{Describe, Kind, config_enum, config_struct};
use crate::kubelet::KubeletConfiguration;
use crate::kubelet::nested::Taint;
use crate::quantity::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// `apiVersion` of the document.
pub const API_VERSION: &str = "orlop/v1alpha1";
/// `kind` of the document.
pub const KIND: &str = "NodeConfig";
/// Most pods of one shim: its death ends all of them at once.
pub const PODS_PER_SHIM_MAX: i64 = 64;

config_struct! {
    /// The first-boot configuration.
    pub struct NodeConfig {
        /// Always `orlop/v1alpha1`.
        api_version: String = API_VERSION.to_owned(), "apiVersion";
        /// Always `NodeConfig`.
        kind: String = KIND.to_owned(), "kind";
        /// The node itself.
        node: Node = Node::default(), "node";
        /// Addresses and routes.
        network: Network = Network::default(), "network";
        /// The authorities that clients on the node trust, in addition to those of the image.
        trust: Trust = Trust::default(), "trust";
        /// The way out for clients on the node.
        proxy: Proxy = Proxy::default(), "proxy";
        /// Clock.
        time: Time = Time::default(), "time";
        /// Where images come from.
        registries: Registries = Registries::default(), "registries";
        /// Kernel settings and modules.
        kernel: Kernel = Kernel::default(), "kernel";
        /// Memory that is kept on disk.
        swap: Swap = Swap::default(), "swap";
        /// The state partition.
        storage: Storage = Storage::default(), "storage";
        /// The disk that this image copies itself to; none: the node runs where it is.
        install: Option<Install> = None, "install";
        /// Labels of the Node object at registration.
        labels: BTreeMap<String, String> = BTreeMap::new(), "labels";
        /// Taints of the Node object at registration.
        taints: Vec<Taint> = Vec::new(), "taints";
        /// How the container runtime runs pods.
        runtime: Runtime = Runtime::default(), "runtime";
        /// Any fields of KubeletConfiguration, laid over the appliance's defaults.
        kubelet: KubeletPatch = KubeletPatch::default(), "kubelet";
        /// The cluster to join; none: a standalone node.
        join: Option<Join> = None, "join";
        /// Pods the node runs by itself.
        static_pods: Vec<StaticPod> = Vec::new(), "staticPods";
        /// Files that programs of the node read.
        files: Vec<NodeFile> = Vec::new(), "files";
        /// The console.
        console: Console = Console::default(), "console";
        /// The platform that the node runs on.
        platform: Platform = Platform::default(), "platform";
        /// Where releases come from, and what the node does with them.
        update: Update = Update::default(), "update";
        /// The management API.
        api: Api = Api::default(), "api";
    }
}

config_struct! {
    /// The node itself.
    pub struct Node {
        /// Node name and host name, a DNS name; empty: `orlop-` and the machine id's first 8 digits.
        name: String = String::new(), "name";
        /// Addresses of the Node object, one or one of each family; empty: that of the default route.
        addresses: Vec<String> = Vec::new(), "addresses";
        /// Who initialises the Node object; none: the node itself.
        cloud_provider: Option<CloudProvider> = None, "cloudProvider";
    }
}

config_enum! {
    /// Who initialises a Node object that is a machine of a cloud.
    pub enum CloudProvider {
        /// A cloud controller manager in the cluster.
        External = "external",
    }
}

config_struct! {
    /// The authorities that clients on the node trust, in addition to those of the image.
    pub struct Trust {
        /// CA certificates, each PEM in base64.
        ca_certificates: Vec<String> = Vec::new(), "caCertificates";
    }
}

config_struct! {
    /// The way out for clients on the node.
    pub struct Proxy {
        /// URL of the proxy for http:// URLs; may hold a password, so it is never shown.
        http: Option<Secret> = None, "http", secret;
        /// URL of the proxy for https:// URLs; may hold a password, so it is never shown.
        https: Option<Secret> = None, "https", secret;
        /// Hosts, domains, addresses and networks that are reached without it.
        no_proxy: Vec<String> = Vec::new(), "noProxy";
    }
}

config_struct! {
    /// Clock.
    pub struct Time {
        /// NTP servers, names or addresses; empty: what DHCP names.
        servers: Vec<String> = Vec::new(), "servers";
    }
}

config_struct! {
    /// Where images come from.
    pub struct Registries {
        /// Registry host (`docker.io`, `_default` for all others) to its mirrors and its certificates.
        mirrors: BTreeMap<String, Mirrors> = BTreeMap::new(), "mirrors";
        /// Programs that give credentials for images, as `providers` of upstream's CredentialProviderConfig v1.
        credential_providers: Vec<CredentialProvider> = Vec::new(), "credentialProviders";
    }
}

config_struct! {
    /// Mirrors of one registry, and what TLS to them and to the registry needs.
    pub struct Mirrors {
        /// URLs, tried in order; empty: only the registry itself.
        endpoints: Vec<String> = Vec::new(), "endpoints";
        /// Never ask the registry itself.
        skip_fallback: bool = false, "skipFallback";
        /// The URL's path replaces the registry's `/v2`.
        override_path: bool = false, "overridePath";
        /// CA certificates in addition to those of the machine, PEM in base64.
        ca_data: Option<String> = None, "caData";
        /// The node's certificate for these servers, PEM in base64.
        client_certificate_data: Option<String> = None, "clientCertificateData";
        /// Its private key, PEM in base64; secret.
        client_key_data: Option<Secret> = None, "clientKeyData", secret;
    }
}

config_struct! {
    /// Kernel settings and modules.
    pub struct Kernel {
        /// Name (`net.ipv4.ip_forward`) to value.
        sysctls: BTreeMap<String, Scalar> = BTreeMap::new(), "sysctls";
        /// Modules to load.
        modules: Vec<String> = Vec::new(), "modules";
    }
}

config_struct! {
    /// Memory that is kept on disk.
    pub struct Swap {
        /// Size of the swap file on the state partition, bytes; 0: none.
        size: Quantity = Quantity::default(), "size";
    }
}

config_struct! {
    /// How the container runtime runs pods.
    pub struct Runtime {
        /// At most so many pods share one shim, the process that holds their containers; 1: each pod has its own.
        pods_per_shim: u32 = 1, "podsPerShim", range(1, PODS_PER_SHIM_MAX);
    }
}

config_struct! {
    /// The state partition.
    pub struct Storage {
        /// Its file system is made with project quotas, at the first boot.
        project_quotas: bool = false, "projectQuotas";
    }
}

config_struct! {
    /// The disk that this image copies itself to, at the first boot of a stick.
    pub struct Install {
        /// Its name below /dev/disk/by-id, its serial number, or its WWN.
        disk: String = String::new(), "disk";
        /// What is on it may be lost; else a disk with content is refused.
        wipe: bool = false, "wipe";
    }
}

config_struct! {
    /// The cluster to join.
    pub struct Join {
        /// URL of the API server.
        server: String = String::new(), "server";
        /// First-boot token, `abcdef.0123456789abcdef`; secret.
        token: Option<Secret> = None, "token", secret;
        /// CA certificates that sign the API server's, PEM in base64.
        ca_data: Option<String> = None, "caData";
        /// Hashes of CA public keys, `sha256:<64 hex digits>`.
        ca_cert_hashes: Vec<String> = Vec::new(), "caCertHashes";
        /// Path of a kubeconfig with which the node asks for its first certificate, instead of the keys above.
        bootstrap_kubeconfig: Option<String> = None, "bootstrapKubeconfig";
        /// Path of a kubeconfig with the node's identity, instead of all other keys.
        kubeconfig: Option<String> = None, "kubeconfig";
    }
}

config_struct! {
    /// The console.
    pub struct Console {
        /// Show what pods write, on the consoles and in the host channel.
        pod_output: bool = false, "podOutput";
    }
}

config_struct! {
    /// The platform that the node runs on.
    pub struct Platform {
        /// The Node object gets the platform's region and zone and the machine's kind as labels at registration.
        labels: bool = false, "labels";
    }
}

config_struct! {
    /// The management API.
    pub struct Api {
        /// Who may ask by the network, each by a key; none, and no identities of the cluster: the port is closed.
        admins: Vec<ApiAdmin> = Vec::new(), "admins";
        /// Users of the cluster may ask by the network, with a token, what the cluster's roles allow; opens the port.
        cluster_identities: bool = false, "clusterIdentities";
        /// The socket between a machine and its host.
        vsock: ApiVsock = ApiVsock::default(), "vsock";
    }
}

config_struct! {
    /// An administrator of the node.
    pub struct ApiAdmin {
        /// Name in the records of calls.
        name: String = String::new(), "name", required;
        /// Public key, `ed25519:` and base64, as `orlopctl key new` prints it.
        key: String = String::new(), "key", required;
    }
}

config_struct! {
    /// The socket between a machine and its host.
    pub struct ApiVsock {
        /// The host of the machine may ask, as an administrator, without a key.
        trust_host: bool = false, "trustHost";
    }
}

/// Some fields of a KubeletConfiguration, checked against its shape; `Debug` names them without values.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KubeletPatch(pub Map<String, Value>);

impl Describe for KubeletPatch {
    const KIND: &'static Kind = KubeletConfiguration::KIND;
}

impl std::fmt::Debug for KubeletPatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
