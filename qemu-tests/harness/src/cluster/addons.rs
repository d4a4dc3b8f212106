//! Add-ons that clusters have: kube-proxy routes Services, CoreDNS answers their names.
//!
//! flannel or kube-router brings the pods' network, if one is asked for.
//!
//! In: a cluster, the mode of kube-proxy, the programs ([`super::programs::addons`]). Out: images in a registry
//! that the nodes reach without a network outside, and the objects of a usual installation. Invariant: the add-ons
//! are pods as any other; nothing of them runs outside of the nodes. See docs/internals/testing.md, "Add-ons".

pub mod flannel;
mod images;
pub mod kube_router;
mod manifests;
mod metrics_server;
pub mod multus;
mod objects;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use self::manifests::ProxySettings;
use super::flags::{ADDRESS, CLUSTER_DOMAIN, DNS_ADDRESS};
use super::plane::Cluster;
use super::programs::{self, More};
use super::vm_node::{READY_LIMIT_S, VmNode};
use crate::native::images as host;
use crate::native::node::NativeNode;
use crate::native::registry;

/// Namespace of the add-ons.
pub const NAMESPACE: &str = "kube-system";
/// Limit for the add-ons on native nodes to be Ready, seconds: their images are large.
pub const NATIVE_LIMIT_S: u64 = 180;
/// Name of kube-proxy's DaemonSet, and `k8s-app` of its pods.
pub const KUBE_PROXY: &str = "kube-proxy";
/// Name of CoreDNS' Deployment.
pub const COREDNS: &str = "coredns";
/// Port of the images for VMs, in the plane's network.
const PORT: u16 = 5003;
/// Without it a pod's answer to a pod of the same bridge does not come from the Service. With its file, which is there if
/// the kernel has it.
const BR_NETFILTER: (&str, &str) = ("br_netfilter", "/proc/sys/net/bridge/bridge-nf-call-iptables");
/// kube-proxy sets limits of tracked connections before it makes its first rule, which would load the module.
const NF_CONNTRACK: (&str, &str) = ("nf_conntrack", "/proc/sys/net/netfilter/nf_conntrack_max");
/// The module of flannel's overlay.
const VXLAN: &str = "vxlan";
/// Registries of the published images.
const REGISTRIES: [&str; 3] = [images::REGISTRY, flannel::REGISTRY, kube_router::REGISTRY];
/// The kernel's virtual servers, with their list.
const IP_VS: (&str, &str) = ("ip_vs", "/proc/net/ip_vs");

/// The part of the kernel that routes Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProxyMode {
    /// Rules of iptables.
    Iptables,
    /// Rules of nftables.
    Nftables,
    /// Virtual servers.
    Ipvs,
}

impl ProxyMode {
    /// The mode's name in kube-proxy's configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ProxyMode::Iptables => "iptables",
            ProxyMode::Nftables => "nftables",
            ProxyMode::Ipvs => "ipvs",
        }
    }

    /// Modules of the kernel that nothing loads by itself, with their files.
    fn modules(self) -> &'static [(&'static str, &'static str)] {
        match self {
            ProxyMode::Iptables | ProxyMode::Nftables => &[BR_NETFILTER, NF_CONNTRACK],
            ProxyMode::Ipvs => &[BR_NETFILTER, NF_CONNTRACK, IP_VS],
        }
    }

    /// The first module that this machine's kernel lacks for native nodes, which share it.
    #[must_use]
    pub fn missing_module(self) -> Option<&'static str> {
        self.modules().iter().find(|(_, file)| !Path::new(file).exists()).map(|(name, _)| *name)
    }
}

/// An add-on that brings the pods' network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cni {
    /// flannel with its overlay of VXLAN.
    Flannel,
    /// kube-router: BGP between the nodes, and a packet filter for policies.
    KubeRouter,
}

impl Cni {
    /// The add-on's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Cni::Flannel => "flannel",
            Cni::KubeRouter => "kube-router",
        }
    }

    /// Its programs, which are compiled on first use.
    pub(super) fn programs(self) -> More {
        match self {
            Cni::Flannel => More::Flannel,
            Cni::KubeRouter => More::KubeRouter,
        }
    }

    /// Modules of the kernel that an operator configures for it.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Cni::Flannel => &[VXLAN],
            Cni::KubeRouter => &[kube_router::IP_SET],
        }
    }
}

/// The kind of nodes that the add-ons run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Native nodes, which share the machine's kernel.
    Native,
    /// VMs.
    Vm,
}

/// Add-ons whose images are made.
pub struct AddOns {
    mode: ProxyMode,
    nodes: NodeKind,
    /// A registry's directory; it is removed with the cluster.
    registry: PathBuf,
    /// Without one the nodes have the harness's own pod network.
    cni: Option<Cni>,
    has_metrics_server: bool,
    has_multus: bool,
}

impl AddOns {
    /// Makes the images (the programs are compiled on first use, in minutes).
    ///
    /// # Errors
    /// If a program does not compile, an image cannot be made, or native nodes cannot have the mode.
    pub fn make(cluster: &Cluster, mode: ProxyMode, nodes: NodeKind) -> Result<AddOns> {
        if let (NodeKind::Native, Some(module)) = (nodes, mode.missing_module()) {
            bail!(
                "native nodes share this machine's kernel, which lacks {module}: load it, or take VMs (--vm)"
            );
        }
        let registry = cluster.dir().join("add-ons");
        let programs = programs::addons(cluster.run())?;
        images::make(cluster.run(), &registry, &programs)?;
        Ok(AddOns { mode, nodes, registry, cni: None, has_metrics_server: false, has_multus: false })
    }

    /// Adds a pod network (its programs are compiled on first use, in minutes). The nodes must have no other one.
    ///
    /// # Errors
    /// If a program does not compile, an image cannot be made, or native nodes cannot have the network.
    pub fn add_network(&mut self, cluster: &Cluster, cni: Cni) -> Result<()> {
        match cni {
            Cni::Flannel => {
                let programs = programs::flannel(cluster.run())?;
                flannel::make(cluster.run(), &self.registry, &programs)?;
            }
            Cni::KubeRouter => {
                if let (NodeKind::Native, Some(module)) = (self.nodes, kube_router::missing_module()) {
                    bail!(
                        "native nodes share this machine's kernel, which lacks {module}: load it, or take VMs (--vm)"
                    );
                }
                let programs = programs::kube_router(cluster.run())?;
                kube_router::make(cluster.run(), &self.registry, &programs)?;
            }
        }
        self.cni = Some(cni);
        Ok(())
    }

    /// Adds metrics-server (compiled on first use, in minutes). The API server must reach pods
    /// ([`super::flags::Settings::aggregator_routing`]).
    ///
    /// # Errors
    /// If it does not compile, or the image cannot be made.
    pub fn add_metrics_server(&mut self, cluster: &Cluster) -> Result<()> {
        let program = programs::metrics_server(cluster.run())?;
        metrics_server::make(cluster.run(), &self.registry, &program)?;
        self.has_metrics_server = true;
        Ok(())
    }

    /// Adds Multus (compiled on first use, in minutes), which puts itself before the nodes' pod network.
    ///
    /// # Errors
    /// If it does not compile, or the image cannot be made.
    pub fn add_multus(&mut self, cluster: &Cluster) -> Result<()> {
        let programs = programs::multus(cluster.run())?;
        multus::make(cluster.run(), &self.registry, &programs)?;
        self.has_multus = true;
        Ok(())
    }

    /// True if the nodes have no pod network, and are not Ready, before [`AddOns::install`].
    #[must_use]
    pub fn brings_network(&self) -> bool {
        self.cni.is_some()
    }

    /// Puts the images into a native node's own registry.
    ///
    /// # Errors
    /// If the node's directory cannot be written.
    pub fn offer(&self, node: &NativeNode) -> Result<()> {
        self.add_to(&node.inside(host::REGISTRY))?;
        REGISTRIES.iter().try_for_each(|name| host::lead_to_registry(node, name, registry::HOST))
    }

    /// Puts the images into a registry's directory, next to those that are there.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn add_to(&self, registry: &Path) -> Result<()> {
        ["blobs/sha256", "tags"]
            .iter()
            .try_for_each(|part| copy_files(&self.registry.join(part), &registry.join(part)))
    }

    /// Serves the images to VMs, for as long as this process lives.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn serve(&self, cluster: &Cluster) -> Result<()> {
        registry::serve_in(cluster.pid()?, PORT, &self.registry)
    }

    /// Adds the image of the test pods for VMs, which do not reach a native node's own registry; returns its name.
    ///
    /// # Errors
    /// If the host has no static busybox, or the image cannot be made.
    pub fn add_shell(&self, cluster: &Cluster) -> Result<String> {
        images::shell(cluster.run(), &self.registry)
    }

    /// Configures a VM before its first boot: its images, its name server, the modules that a cluster's operator
    /// configures, and the cluster's DNS.
    pub fn prepare(&self, vm: &mut VmNode) {
        for name in REGISTRIES {
            vm.mirror(name, &format!("http://{ADDRESS}:{PORT}"));
        }
        // Nothing answers there. CoreDNS does not start on a node without a name server.
        vm.ask_name_server(ADDRESS);
        for (module, _) in self.mode.modules() {
            vm.load_module(module);
        }
        if let Some(cni) = self.cni {
            cni.modules().iter().for_each(|module| vm.load_module(module));
            vm.leave_pod_network();
        }
        vm.configure("clusterDNS", json!([DNS_ADDRESS]));
        vm.configure("clusterDomain", CLUSTER_DOMAIN);
    }

    /// Limit for the add-ons to be Ready on `nodes` nodes of their kind, seconds.
    #[must_use]
    pub fn limit_s(&self, nodes: u8) -> u64 {
        match self.nodes {
            NodeKind::Native => NATIVE_LIMIT_S,
            NodeKind::Vm => READY_LIMIT_S * u64::from(nodes) * 2,
        }
    }

    /// Creates the objects, and waits until the pod network (if one was added) and kube-proxy run on all `nodes` and
    /// CoreDNS is Ready, which needs both, and Multus and metrics-server, if they were added.
    ///
    /// # Errors
    /// If an object is refused; at the deadline, with the present state.
    pub fn install(&self, cluster: &Cluster, nodes: u8, limit_s: u64) -> Result<()> {
        ensure!(nodes > 0, "add-ons need a node");
        let settings = ProxySettings {
            mode: self.mode,
            sets_conntrack_max: self.nodes == NodeKind::Vm,
            dual_stack: cluster.is_dual_stack(),
        };
        objects::create(cluster, "add-ons", &manifests::objects(settings)?)?;
        let nodes = i32::from(nodes);
        if let Some(cni) = self.cni {
            apply_network(cluster, cni, nodes, limit_s)?;
        }
        objects::await_daemon_set(cluster, (NAMESPACE, KUBE_PROXY), nodes, limit_s)?;
        objects::await_deployment(cluster, (NAMESPACE, COREDNS), manifests::REPLICAS, limit_s)?;
        if self.has_multus {
            multus::apply(cluster)?;
            multus::await_ready(cluster, nodes, limit_s)?;
        }
        if self.has_metrics_server {
            metrics_server::apply(cluster)?;
            metrics_server::await_ready(cluster, limit_s)?;
        }
        Ok(())
    }

    /// One line for a person.
    #[must_use]
    pub fn describe(&self) -> String {
        let mode = self.mode.name();
        let network = self.cni.map_or_else(String::new, |cni| format!(", {}", cni.name()));
        let multus = if self.has_multus { ", Multus" } else { "" };
        let metrics = if self.has_metrics_server { ", metrics-server" } else { "" };
        format!(
            "add-ons: kube-proxy (mode {mode}), CoreDNS at {DNS_ADDRESS} for {CLUSTER_DOMAIN}{network}{multus}{metrics}"
        )
    }
}

/// Removes a native node's own pod network, and sets the pod range of its Node as a cluster's controller does.
///
/// # Errors
/// If the node had no pod network, or the API server refuses the range.
pub fn make_room(cluster: &Cluster, node: &NativeNode) -> Result<()> {
    let client = cluster.client();
    let range = node.pods();
    let patch = json!({"spec": {"podCIDR": range, "podCIDRs": [range]}});
    client.merge(&client.all::<Node>(), node.name(), &patch)?;
    node.remove_network()
}

/// Installs another pod network in a cluster that has the other add-ons already; its images must have been offered to the
/// nodes ([`AddOns::add_network`]). Waits until it runs on all `nodes`.
///
/// # Errors
/// If an object is refused; at the deadline, with the present state.
pub fn install_network(cluster: &Cluster, cni: Cni, nodes: u8, limit_s: u64) -> Result<()> {
    apply_network(cluster, cni, i32::from(nodes), limit_s)
}

fn apply_network(cluster: &Cluster, cni: Cni, nodes: i32, limit_s: u64) -> Result<()> {
    match cni {
        Cni::Flannel => {
            flannel::apply(cluster)?;
            flannel::await_ready(cluster, nodes, limit_s)
        }
        Cni::KubeRouter => {
            kube_router::apply(cluster)?;
            kube_router::await_ready(cluster, nodes, limit_s)
        }
    }
}

/// Copies the files of one directory into another one that is there.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let path = entry.with_context(|| format!("read {}", from.display()))?.path();
        let name = path.file_name().context("a file has a name")?;
        fs::copy(&path, to.join(name)).with_context(|| format!("copy {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_have_kube_proxys_names() {
        for (mode, name) in
            [(ProxyMode::Iptables, "iptables"), (ProxyMode::Nftables, "nftables"), (ProxyMode::Ipvs, "ipvs")]
        {
            assert_eq!(mode.name(), name);
            // The command line has the same names.
            assert_eq!(ProxyMode::from_str(name, false), Ok(mode));
        }
    }

    #[test]
    fn the_pod_networks_have_their_own_names_and_no_other_is_known() {
        for cni in [Cni::Flannel, Cni::KubeRouter] {
            assert_eq!(Cni::from_str(cni.name(), false), Ok(cni));
        }
        assert!(Cni::from_str("calico", false).is_err());
    }

    #[test]
    fn files_are_copied_over_those_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for (path, text) in [(&from, "new"), (&to, "old")] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("same"), text).unwrap();
        }
        fs::write(to.join("other"), "kept").unwrap();
        copy_files(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("same")).unwrap(), "new");
        assert_eq!(fs::read_to_string(to.join("other")).unwrap(), "kept");
        assert!(copy_files(&dir.path().join("none"), &to).is_err());
    }
}
