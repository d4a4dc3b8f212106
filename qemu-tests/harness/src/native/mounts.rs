//! Builds the node's file system inside its own mount namespace and enters it.
//!
//! In: a [`NodeSpec`]. Out: this process with an overlay over the image's root as its own, with /proc, /sys,
//! cgroups, /dev, /run, state and log directories of its own. Nothing of it is visible outside, and all of
//! it ends with the namespace.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::cgroups::Hierarchy;
use super::protocol::{NodeSpec, RootSource};

/// Path of the agent's binary in the node.
pub const AGENT: &str = "/run/e2e/orlop-agent";

fn mount_at(source: &str, target: &Path, fstype: &str, flags: MsFlags, data: &str) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("make {}", target.display()))?;
    mount(Some(source), target, Some(fstype), flags, Some(data))
        .with_context(|| format!("mount {fstype} {source} on {} ({data})", target.display()))
}

fn bind(source: &Path, target: &Path, flags: MsFlags) -> Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | flags, None::<&str>)
        .with_context(|| format!("bind {} on {}", source.display(), target.display()))
}

/// Mounts the image's root read-only; returns where it is.
fn lower(spec: &NodeSpec) -> Result<String> {
    match &spec.root {
        RootSource::Dir(dir) => Ok(dir.display().to_string()),
        RootSource::Erofs(file) => {
            let target = spec.work.join("lower");
            fs::create_dir_all(&target)?;
            let direct = mount(Some(file), &target, Some("erofs"), MsFlags::MS_RDONLY, None::<&str>);
            if direct.is_err() {
                // Kernels before 6.12 mount erofs from block devices only; mount(8) finds a loop device.
                let status = std::process::Command::new("mount")
                    .args(["-t", "erofs", "-o", "loop,ro"])
                    .args([file, &target])
                    .status()
                    .context("run mount")?;
                anyhow::ensure!(status.success(), "mount -o loop {}: {status}", file.display());
            }
            Ok(target.display().to_string())
        }
    }
}

/// Builds everything and makes it the root.
///
/// # Errors
/// Which mount or file failed.
pub fn enter(spec: &NodeSpec, hierarchies: &[Hierarchy]) -> Result<()> {
    let lower = lower(spec)?;
    let root = spec.work.join("root");
    for dir in ["upper", "workdir", "root", "var-lib"] {
        fs::create_dir_all(spec.work.join(dir)).with_context(|| format!("make {dir}"))?;
    }
    let (upper, work) = (spec.work.join("upper"), spec.work.join("workdir"));
    let data = format!("lowerdir={lower},upperdir={},workdir={}", upper.display(), work.display());
    mount_at("overlay", &root, "overlay", MsFlags::empty(), &data)?;

    let none = MsFlags::empty();
    mount_at("proc", &root.join("proc"), "proc", none, "")?;
    mount_at("sysfs", &root.join("sys"), "sysfs", none, "")?;
    mount_cgroups(&root.join("sys/fs/cgroup"), hierarchies)?;
    fs::create_dir_all(root.join("dev"))?;
    bind(Path::new("/dev"), &root.join("dev"), MsFlags::MS_REC)?;
    mount_at("tmpfs", &root.join("run"), "tmpfs", none, "mode=755")?;
    mount_at("tmpfs", &root.join("tmp"), "tmpfs", none, "mode=1777")?;
    // Log paths of CRI lie under /var/log/pods; they stay when the node is gone.
    let binds = [(spec.work.join("var-lib"), "var/lib"), (spec.logs.clone(), "var/log")];
    for (source, target) in binds {
        fs::create_dir_all(root.join(target))?;
        bind(&source, &root.join(target), none)?;
    }
    fs::create_dir_all(root.join("run/e2e/registry"))?;
    bind(&spec.registry, &root.join("run/e2e/registry"), none)?;
    let agent = root.join(AGENT.trim_start_matches('/'));
    fs::write(&agent, "")?;
    bind(&spec.agent, &agent, none)?;

    become_root(&root)?;
    furnish()
}

/// Makes `root` the root of the whole mount namespace. After a mere chroot the machine's own root would still be the
/// namespace's: a program that the runtime executes in a running container enters the container's namespace again, and
/// would run in the machine's files.
fn become_root(root: &Path) -> Result<()> {
    std::env::set_current_dir(root).with_context(|| format!("enter {}", root.display()))?;
    // The old root is mounted over the new one and unmounted.
    nix::unistd::pivot_root(".", ".").with_context(|| format!("pivot_root to {}", root.display()))?;
    umount2(".", MntFlags::MNT_DETACH).context("take the machine's root away")?;
    std::env::set_current_dir("/").context("enter the new root")?;
    // As systemd does in the image. The runtime refuses `mountPropagation: Bidirectional` for a directory of a private mount. The
    // mounts below the root stay as they are.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_SHARED, None::<&str>).context("share the root")
}

fn mount_cgroups(top: &Path, hierarchies: &[Hierarchy]) -> Result<()> {
    if let [only] = hierarchies
        && only.fstype == "cgroup2"
    {
        mount_at("cgroup2", top, "cgroup2", MsFlags::empty(), "")?;
        return leave_top_group(top);
    }
    mount_at("tmpfs", top, "tmpfs", MsFlags::empty(), "mode=755")?;
    for h in hierarchies {
        if h.fstype == "cgroup2" {
            // Next to v1 controllers this hierarchy has none, and programs would take its presence for v2.
            continue;
        }
        let name = h.options.strip_prefix("name=").unwrap_or(&h.options);
        let data =
            if h.options.starts_with("name=") { format!("none,{}", h.options) } else { h.options.clone() };
        mount_at("cgroup", &top.join(name), "cgroup", MsFlags::empty(), &data)?;
        // runc looks for each controller under its own name.
        for alias in name.split(',').filter(|a| *a != name) {
            symlink(name, top.join(alias)).with_context(|| format!("link cgroup {alias}"))?;
        }
    }
    Ok(())
}

/// cgroup v2: a group with controllers for its children may hold no process itself.
fn leave_top_group(top: &Path) -> Result<()> {
    let leaf = top.join("supervisor");
    fs::create_dir_all(&leaf).context("make the supervisor's cgroup")?;
    fs::write(leaf.join("cgroup.procs"), "0").context("join the supervisor's cgroup")?;
    let controllers = fs::read_to_string(top.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        let _ = fs::write(top.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    Ok(())
}

/// Files that init and the first boot would make: directories, resolv.conf, the image's own container images.
fn furnish() -> Result<()> {
    for dir in [
        "/var/lib/orlop/kubernetes/manifests",
        "/var/opt/cni/bin",
        "/var/lib/kubelet",
        "/var/lib/cni",
        "/var/log/pods",
        "/run/containerd",
        "/run/orlop",
    ] {
        fs::create_dir_all(dir).with_context(|| format!("make {dir}"))?;
    }
    for dir in led_to() {
        fs::create_dir_all(&dir).with_context(|| format!("make {dir}"))?;
    }
    write_resolv_conf(Path::new("/etc/resolv.conf"))?;
    let plugins = Path::new("/var/lib/orlop/cni/bin");
    if plugins.symlink_metadata().is_err() {
        symlink("../../../opt/cni/bin", plugins).context("link the directory of CNI plugins")?;
    }
    // As init does: drivers write descriptions of devices to /var/run/cdi, and containerd reads /run/cdi.
    if Path::new("/var/run").symlink_metadata().is_err() {
        symlink("/run", "/var/run").context("link /var/run")?;
    }
    let seed = Path::new("/usr/share/orlop/containerd-seed");
    if seed.is_dir() {
        copy_tree(seed, Path::new("/var/lib/containerd"))?;
    }
    Ok(())
}

/// Directories on the state partition that the image's links lead to.
fn led_to() -> impl Iterator<Item = String> {
    let links =
        include_str!("../../../../image/rootfs/links.txt").lines().filter(|line| !line.starts_with('#'));
    links.filter_map(|line| {
        let (_, target) = line.split_once(" -> ")?;
        Some(format!("/var/{}", target.trim_start_matches("../").strip_prefix("var/")?))
    })
}

/// In the image this is a link into /run, whose directory systemd would make.
fn write_resolv_conf(path: &Path) -> Result<()> {
    let target = match fs::read_link(path) {
        Ok(link) => path.parent().unwrap_or(Path::new("/")).join(link),
        Err(_) => path.to_owned(),
    };
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    }
    fs::write(&target, "nameserver 172.30.0.1\n").with_context(|| format!("write {}", target.display()))
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    if let Ok(status) = status {
        anyhow::ensure!(status.success(), "cp -a {}: {status}", from.display());
        return Ok(());
    }
    // A release root may have no cp.
    copy_dir(from, to)
}

fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    let mode = fs::metadata(from)?.permissions();
    fs::create_dir_all(to)?;
    fs::set_permissions(to, mode)?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_dir(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else {
            fs::copy(&source, &target).with_context(|| format!("copy {}", source.display()))?;
        }
    }
    Ok(())
}
