//! Images of the add-ons, made here under the names of the published ones.
//!
//! In: the programs, Debian's packet tools, the host's busybox. Out: images in a registry's directory. Invariant:
//! what the published images have and kube-proxy calls is there: iptables over nftables and the older one side by
//! side, nftables, conntrack, ipset.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::json;

use crate::cluster::build;
use crate::cluster::programs::AddOnPrograms;
use crate::native::blobs::Blobs;
use crate::native::images as host;
use crate::run::Run;

/// The registry of the published images. flannel and kube-router have others.
pub(super) const REGISTRY: &str = "registry.k8s.io";
const KUBE_PROXY: &str = "kube-proxy";
const COREDNS: &str = "coredns/coredns";
const SHELL: &str = "e2e/busybox";
pub(super) const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The image of kube-proxy.
///
/// # Errors
/// If go.mod names no release.
pub(super) fn kube_proxy() -> Result<String> {
    Ok(format!("{REGISTRY}/{KUBE_PROXY}:{}", build::version()?))
}

/// The image of CoreDNS.
///
/// # Errors
/// If go.mod names no release.
pub(super) fn coredns() -> Result<String> {
    Ok(format!("{REGISTRY}/{COREDNS}:{}", build::coredns_version()?))
}

/// Makes both images in a registry's directory.
///
/// # Errors
/// If a program is missing, or the directory cannot be written.
pub(super) fn make(run: &Arc<Run>, dir: &Path, programs: &AddOnPrograms) -> Result<()> {
    let blobs = Blobs::at(dir)?;
    let tools = blobs.layer(run, &programs.packet_tools)?;
    let proxy = blobs.layer_of(run, |tree| {
        links(tree)?;
        program(&programs.kube_proxy, &tree.join("usr/local/bin/kube-proxy"))
    })?;
    blobs.image(KUBE_PROXY, build::version()?, &json!({"Env": [PATH]}), &[tools, proxy])?;
    let coredns = blobs.layer_of(run, |tree| program(&programs.coredns, &tree.join("coredns")))?;
    let config = json!({"Env": [PATH], "Entrypoint": ["/coredns"]});
    blobs.image(COREDNS, build::coredns_version()?, &config, std::slice::from_ref(&coredns))?;
    Ok(())
}

/// Makes the image of the test pods in a registry's directory; returns its name.
///
/// # Errors
/// If the host has no static busybox, or the directory cannot be written.
pub(super) fn shell(run: &Arc<Run>, dir: &Path) -> Result<String> {
    let blobs = Blobs::at(dir)?;
    let layer = blobs.layer_of(run, |tree| {
        fs::create_dir_all(tree.join("tmp")).context("make /tmp of an image")?;
        host::install_busybox(&tree.join("bin"))
    })?;
    blobs.image(
        SHELL,
        "1",
        &json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]}),
        std::slice::from_ref(&layer),
    )?;
    Ok(format!("{REGISTRY}/{SHELL}:1"))
}

/// Links that Debian's packages do not carry: the merged directories, and the choice of the tables behind `iptables`,
/// which Debian makes at installation (nftables).
pub(super) fn links(tree: &Path) -> Result<()> {
    for dir in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{dir}"), tree.join(dir)).with_context(|| format!("link {dir}"))?;
    }
    let sbin = tree.join("usr/sbin");
    fs::create_dir_all(&sbin).with_context(|| format!("make {}", sbin.display()))?;
    for family in ["iptables", "ip6tables"] {
        for verb in ["", "-restore", "-save"] {
            let name = format!("{family}{verb}");
            symlink(format!("{family}-nft{verb}"), sbin.join(&name))
                .with_context(|| format!("link {name}"))?;
        }
    }
    Ok(())
}

pub(super) fn program(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).context("set a mode")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_are_in_the_registry_under_the_published_names() {
        let dir = tempfile::tempdir().unwrap();
        let (tools, registry) = (dir.path().join("tools"), dir.path().join("registry"));
        fs::create_dir_all(tools.join("usr/sbin")).unwrap();
        fs::write(dir.path().join("program"), "a program").unwrap();
        let file = dir.path().join("program");
        let programs = AddOnPrograms { kube_proxy: file.clone(), coredns: file, packet_tools: tools };
        let run = Run::start().unwrap();
        make(&run, &registry, &programs).unwrap();
        run.close();
        let mut tags: Vec<String> = fs::read_dir(registry.join("tags"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        tags.sort();
        let (coredns, kubernetes) = (build::coredns_version().unwrap(), build::version().unwrap());
        assert_eq!(tags, [format!("coredns-coredns@{coredns}"), format!("kube-proxy@{kubernetes}")]);
        assert_eq!(kube_proxy().unwrap(), format!("registry.k8s.io/kube-proxy:{kubernetes}"));
        assert!(!registry.join("tree").exists() && !registry.join("layer.tar").exists());
    }

    #[test]
    fn iptables_is_the_one_over_nftables() {
        let dir = tempfile::tempdir().unwrap();
        links(dir.path()).unwrap();
        let target = |name: &str| fs::read_link(dir.path().join(name)).unwrap();
        assert_eq!(target("usr/sbin/iptables-restore"), Path::new("iptables-nft-restore"));
        assert_eq!(target("usr/sbin/ip6tables"), Path::new("ip6tables-nft"));
        assert_eq!(target("lib64"), Path::new("usr/lib64"));
    }
}
