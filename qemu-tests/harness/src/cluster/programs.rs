//! Finds the control plane's programs: the user's own in `KUBERNETES_BIN_DIR`, otherwise built here; etcd from Debian.
//!
//! In: the environment, the cache. Out: paths. Invariant: all programs of one cluster come from one
//! directory, so they are of one release (etcd apart).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use super::build::{self, Target};
use super::debs;
use crate::run::{Run, cache_dir};

/// Names a directory with kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, and perhaps etcd,
/// kubelet, kube-proxy, coredns, e2e.test, ginkgo and e2e_node.test, to be used as they are.
pub const BIN_DIR_VARIABLE: &str = "KUBERNETES_BIN_DIR";

/// Kubernetes' programs.
pub(super) const NAMES: [&str; 4] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

/// Paths of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    dir: PathBuf,
    etcd: PathBuf,
}

impl Programs {
    /// Programs of a test.
    #[cfg(test)]
    pub(super) fn of(dir: PathBuf, etcd: PathBuf) -> Programs {
        Programs { dir, etcd }
    }

    /// One of Kubernetes' programs.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// etcd.
    #[must_use]
    pub fn etcd(&self) -> &Path {
        &self.etcd
    }
}

fn cache() -> PathBuf {
    cache_dir().join("controlplane")
}

fn own_dir() -> Option<PathBuf> {
    std::env::var_os(BIN_DIR_VARIABLE).filter(|d| !d.is_empty()).map(PathBuf::from)
}

/// The user's own program, if it is there.
fn own(target: Target) -> Option<PathBuf> {
    own_dir().map(|d| d.join(target.program())).filter(|program| program.is_file())
}

/// Debian's packages of the image of kube-proxy: programs after their libraries. The last one names the directory.
pub(super) const PACKET_TOOLS: [&str; 21] = [
    "libc6",
    "libbsd0",
    "libedit2",
    "libgmp10",
    "libip4tc2",
    "libip6tc2",
    "libipset13t64",
    "libjansson4",
    "libmd0",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftables1",
    "libnftnl11",
    "libtinfo6",
    "libxtables12",
    "netbase",
    "conntrack",
    "ipset",
    "nftables",
    "iptables",
];

/// Programs that only some cases need. All but CoreDNS, flannel, kube-router, Multus and promtool consist of the control plane's packages: built together,
/// they share compiled packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// metrics-server.
    MetricsServer,
    /// The DRA driver and the device plugin.
    Drivers,
    /// kube-proxy and CoreDNS.
    AddOns,
    /// flannel and its CNI plugin.
    Flannel,
    /// kube-router.
    KubeRouter,
    /// Multus.
    Multus,
    /// promtool.
    Promtool,
}

impl More {
    fn targets(self) -> &'static [Target] {
        match self {
            More::MetricsServer => &[Target::MetricsServer],
            More::Drivers => &[Target::ClaimsDriver, Target::DevicePlugin],
            More::AddOns => &[Target::KubeProxy, Target::CoreDns],
            More::KubeRouter => &[Target::KubeRouter],
            More::Multus => &MULTUS,
            More::Promtool => &[Target::Promtool],
            More::Flannel => &[Target::Flannel, Target::FlannelInstallConf, Target::FlannelCni],
        }
    }

    /// The programs that must be built: the user's own kube-proxy and CoreDNS are used if they are there.
    fn to_build(self) -> impl Iterator<Item = Target> {
        self.targets().iter().copied().filter(move |target| self != More::AddOns || own(*target).is_none())
    }
}

/// Builds missing programs (minutes, the first time): the control plane, and `more`. Also fetches the packages that the
/// add-ons' images need.
///
/// # Errors
/// The build's, or Debian's archive does not have a package.
pub fn prepare(run: &Arc<Run>, more: &[More]) -> Result<()> {
    let of_plane = own_dir().is_none().then_some(Target::ControlPlane);
    let targets: Vec<Target> =
        of_plane.into_iter().chain(more.iter().flat_map(|more| more.to_build())).collect();
    if !targets.is_empty() {
        build::programs(run, &cache(), &targets)?;
    }
    if more.contains(&More::AddOns) {
        addons(run)?;
    }
    find(run).map(|_| ())
}

/// Finds the programs, building missing ones (minutes, the first time).
///
/// # Errors
/// The user's directory lacks one, or the build's.
pub fn find(run: &Arc<Run>) -> Result<Programs> {
    if let Some(dir) = own_dir() {
        for name in NAMES {
            anyhow::ensure!(dir.join(name).is_file(), "{BIN_DIR_VARIABLE}={} has no {name}", dir.display());
        }
        let etcd = dir.join("etcd");
        let etcd = if etcd.is_file() { etcd } else { etcd_of_debian()? };
        return Ok(Programs { dir, etcd });
    }
    let dir = build::programs(run, &cache(), &[Target::ControlPlane])?.join("bin");
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    for name in NAMES {
        let link = dir.join(name);
        if link.symlink_metadata().is_err() {
            symlink(Path::new("..").join("controlplane"), &link)
                .with_context(|| format!("link {}", link.display()))?;
        }
    }
    Ok(Programs { dir, etcd: etcd_of_debian()? })
}

/// The upstream kubelet of the same release (built on first use).
///
/// # Errors
/// The build's.
pub fn kubelet(run: &Arc<Run>) -> Result<PathBuf> {
    own_or_built(run, Target::Kubelet)
}

fn own_or_built(run: &Arc<Run>, target: Target) -> Result<PathBuf> {
    match own(target) {
        Some(own) => Ok(own),
        None => Ok(build::programs(run, &cache(), &[target])?.join(target.program())),
    }
}

/// Contents of the add-ons' images.
#[derive(Clone, Debug)]
pub struct AddOnPrograms {
    /// kube-proxy of the control plane's release.
    pub kube_proxy: PathBuf,
    /// CoreDNS.
    pub coredns: PathBuf,
    /// Directory with Debian's iptables, nftables, conntrack and ipset, and all libraries that they need.
    pub packet_tools: PathBuf,
}

/// Programs of the add-ons (built and fetched on first use).
///
/// # Errors
/// The build's, or Debian's archive does not have a package.
pub fn addons(run: &Arc<Run>) -> Result<AddOnPrograms> {
    Ok(AddOnPrograms {
        kube_proxy: own_or_built(run, Target::KubeProxy)?,
        coredns: own_or_built(run, Target::CoreDns)?,
        packet_tools: debs::unpacked(&cache(), &PACKET_TOOLS)?,
    })
}

/// Multus' programs.
const MULTUS: [Target; 4] =
    [Target::Multus, Target::MultusPassthru, Target::MultusInstall, Target::MultusEntrypoint];

/// Contents of the image of Multus.
#[derive(Clone, Debug)]
pub struct MultusPrograms {
    /// The thin CNI plugin.
    pub plugin: PathBuf,
    /// The CNI plugin that hands its configuration on.
    pub passthru: PathBuf,
    /// Copies both to the node.
    pub install: PathBuf,
    /// Makes the plugin's configuration and its kubeconfig.
    pub entrypoint: PathBuf,
}

/// Multus' programs (built on first use).
///
/// # Errors
/// The build's.
pub fn multus(run: &Arc<Run>) -> Result<MultusPrograms> {
    let dir = build::programs(run, &cache(), &MULTUS)?;
    let [plugin, passthru, install, entrypoint] = MULTUS.map(|target| dir.join(target.program()));
    Ok(MultusPrograms { plugin, passthru, install, entrypoint })
}

/// Contents of flannel's images.
#[derive(Clone, Debug)]
pub struct FlannelPrograms {
    /// The daemon.
    pub flanneld: PathBuf,
    /// Copies the CNI configuration to the node.
    pub install_conf: PathBuf,
    /// The CNI plugin.
    pub plugin: PathBuf,
    /// Directory with Debian's iptables and nftables, as kube-proxy has them.
    pub packet_tools: PathBuf,
}

/// flannel's programs (built and fetched on first use).
///
/// # Errors
/// The build's, or Debian's archive does not have a package.
pub fn flannel(run: &Arc<Run>) -> Result<FlannelPrograms> {
    let own = build::programs(run, &cache(), &[Target::Flannel, Target::FlannelInstallConf])?;
    let plugin = build::programs(run, &cache(), &[Target::FlannelCni])?;
    Ok(FlannelPrograms {
        flanneld: own.join(Target::Flannel.program()),
        install_conf: own.join(Target::FlannelInstallConf.program()),
        plugin: plugin.join(Target::FlannelCni.program()),
        packet_tools: debs::unpacked(&cache(), &PACKET_TOOLS)?,
    })
}

/// Contents of kube-router's image.
#[derive(Clone, Debug)]
pub struct KubeRouterPrograms {
    /// The daemon.
    pub kube_router: PathBuf,
    /// Directory with Debian's iptables and ipset, as kube-proxy has them.
    pub packet_tools: PathBuf,
}

/// kube-router's programs (built and fetched on first use).
///
/// # Errors
/// The build's, or Debian's archive does not have a package.
pub fn kube_router(run: &Arc<Run>) -> Result<KubeRouterPrograms> {
    let target = Target::KubeRouter;
    Ok(KubeRouterPrograms {
        kube_router: build::programs(run, &cache(), &[target])?.join(target.program()),
        packet_tools: debs::unpacked(&cache(), &PACKET_TOOLS)?,
    })
}

/// metrics-server (built on first use).
///
/// # Errors
/// The build's.
pub fn metrics_server(run: &Arc<Run>) -> Result<PathBuf> {
    let target = Target::MetricsServer;
    Ok(build::programs(run, &cache(), &[target])?.join(target.program()))
}

/// promtool (built on first use).
///
/// # Errors
/// The build's.
pub fn promtool(run: &Arc<Run>) -> Result<PathBuf> {
    let target = Target::Promtool;
    Ok(build::programs(run, &cache(), &[target])?.join(target.program()))
}

/// Upstream's sample of a device plugin (built on first use).
///
/// # Errors
/// The build's.
pub fn device_plugin(run: &Arc<Run>) -> Result<PathBuf> {
    let target = Target::DevicePlugin;
    Ok(build::programs(run, &cache(), &[target])?.join(target.program()))
}

/// Upstream's DRA driver for tests (built on first use).
///
/// # Errors
/// The build's.
pub fn claims_driver(run: &Arc<Run>) -> Result<PathBuf> {
    let target = Target::ClaimsDriver;
    Ok(build::programs(run, &cache(), &[target])?.join(target.program()))
}

/// Programs of the upstream end-to-end suite of the same release.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The suite itself.
    pub e2e: PathBuf,
    /// Runs the suite.
    pub ginkgo: PathBuf,
    /// Directory with the programs of its images.
    pub images: PathBuf,
}

/// The end-to-end suite (built on first use) and the programs of its images, which are always built here.
///
/// # Errors
/// The build's.
pub fn suite(run: &Arc<Run>) -> Result<Suite> {
    let runs = [Target::EndToEnd, Target::Ginkgo];
    let images = [
        Target::Agnhost,
        Target::Curl,
        Target::NoNewPrivs,
        Target::Pause,
        Target::SampleApiServer,
        Target::Sshd,
    ];
    let own = own_dir().filter(|d| runs.iter().all(|t| d.join(t.program()).is_file()));
    let wanted: Vec<Target> = images.into_iter().chain(runs.into_iter().filter(|_| own.is_none())).collect();
    let built = build::programs(run, &cache(), &wanted)?;
    let dir = own.unwrap_or_else(|| built.clone());
    Ok(Suite {
        e2e: dir.join(Target::EndToEnd.program()),
        ginkgo: dir.join(Target::Ginkgo.program()),
        images: built,
    })
}

/// The node's own suite (e2e_node), built on first use.
///
/// # Errors
/// The build's.
pub fn node_suite(run: &Arc<Run>) -> Result<PathBuf> {
    let name = Target::NodeEndToEnd.program();
    if let Some(own) = own_dir().map(|d| d.join(name)).filter(|p| p.is_file()) {
        return Ok(own);
    }
    // The other suite is needed, too: both consist of the same packages.
    let targets = [Target::EndToEnd, Target::NodeEndToEnd];
    Ok(build::programs(run, &cache(), &targets)?.join(name))
}

fn etcd_of_debian() -> Result<PathBuf> {
    let etcd = debs::unpacked(&cache(), &["etcd-server"])?.join("usr/bin/etcd");
    anyhow::ensure!(etcd.is_file(), "Debian's etcd-server has no {}", etcd.display());
    Ok(etcd)
}
