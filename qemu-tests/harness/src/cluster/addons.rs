//! Add-ons that clusters have: kube-proxy routes Services, CoreDNS answers their names.
//!
//! What comes in: a cluster, the mode of kube-proxy, the programs ([`super::programs::addons`]). What goes out: images
//! in a registry that the nodes reach without a network outside, and the objects of a usual installation. Invariant: the
//! add-ons are pods as any other; nothing of them runs beside the nodes. See docs/testing.md, "Add-ons".

mod images;
mod manifests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use serde_json::json;

use self::manifests::ProxySettings;
use super::flags::{ADDRESS, CLUSTER_DOMAIN, DNS_ADDRESS};
use super::plane::Cluster;
use super::programs;
use super::vm_node::VmNode;
use crate::native::images as host;
use crate::native::node::NativeNode;
use crate::native::registry;

/// Namespace of the add-ons.
pub const NAMESPACE: &str = "kube-system";
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
    /// A registry's directory; it goes with the cluster.
    registry: PathBuf,
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
        Ok(AddOns { mode, nodes, registry })
    }

    /// Puts the images into a native node's own registry.
    ///
    /// # Errors
    /// If the node's directory cannot be written.
    pub fn offer(&self, node: &NativeNode) -> Result<()> {
        let to = node.inside(host::REGISTRY);
        for part in ["blobs/sha256", "tags"] {
            copy_files(&self.registry.join(part), &to.join(part))?;
        }
        host::lead_to_registry(node, images::REGISTRY, registry::HOST)
    }

    /// Serves the images to VMs, for as long as this process lives.
    ///
    /// # Errors
    /// If the port is in use.
    pub fn serve(&self, cluster: &Cluster) -> Result<()> {
        registry::serve_in(cluster.pid()?, PORT, &self.registry)
    }

    /// Configures a VM before its first boot: its images, its name server, the modules that a cluster's operator
    /// configures, and the cluster's DNS.
    pub fn prepare(&self, vm: &mut VmNode) {
        vm.mirror(images::REGISTRY, &format!("http://{ADDRESS}:{PORT}"));
        // Nothing answers there. CoreDNS does not start on a node without a name server.
        vm.ask_name_server(ADDRESS);
        for (module, _) in self.mode.modules() {
            vm.load_module(module);
        }
        vm.configure("clusterDNS", json!([DNS_ADDRESS]));
        vm.configure("clusterDomain", CLUSTER_DOMAIN);
    }

    /// Creates the objects, and waits until kube-proxy runs on all `nodes` and CoreDNS is Ready, which needs kube-proxy.
    ///
    /// # Errors
    /// If an object is refused; at the deadline, with the present state.
    pub fn install(&self, cluster: &Cluster, nodes: u8, limit_s: u64) -> Result<()> {
        ensure!(nodes > 0, "add-ons need a node");
        let file = cluster.dir().join("add-ons.json");
        let settings = ProxySettings { mode: self.mode, sets_conntrack_max: self.nodes == NodeKind::Vm };
        fs::write(&file, manifests::objects(settings)?.to_string())
            .with_context(|| format!("write {}", file.display()))?;
        cluster.kubectl(&["apply", "--filename", &file.display().to_string()])?;
        let client = cluster.client();
        let nodes = i32::from(nodes);
        client.wait::<DaemonSet, _>(
            &client.of(NAMESPACE),
            limit_s,
            &format!("{KUBE_PROXY} on {nodes} nodes"),
            |all| {
                let status = all.get(KUBE_PROXY)?.status.as_ref()?;
                (status.desired_number_scheduled == nodes && status.number_ready == nodes).then_some(())
            },
        )?;
        client.wait::<Deployment, _>(
            &client.of(NAMESPACE),
            limit_s,
            &format!("{COREDNS} to be available"),
            |all| {
                let status = all.get(COREDNS)?.status.as_ref()?;
                (status.available_replicas == Some(manifests::REPLICAS)).then_some(())
            },
        )
    }

    /// One line for a person.
    #[must_use]
    pub fn describe(&self) -> String {
        let mode = self.mode.name();
        format!("add-ons: kube-proxy (mode {mode}), CoreDNS at {DNS_ADDRESS} for {CLUSTER_DOMAIN}")
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
