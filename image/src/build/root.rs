//! Assembles the root's file tree: chosen files of the package tree, `image/rootfs`, agent, init, images, seed.
//! Leaves `root/` and `contents.json` (path -> component and reason), which `inspect` reads.

use super::binaries::Binaries;
use super::{Builder, apparmor, bind, containers, modules, prefetch, shim_info};
use crate::format::elf;
use crate::plan::BuildStep;
use crate::profile::Profile;
use crate::select::{self, InclusionReason, Kind, Listing, modules::Deps};
use anyhow::{Context, Result, bail};
use orlop_config::release::IMAGE_TRUST_FILE;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Directories that are mount points or expected to exist.
const DIRS: [&str; 15] = [
    "boot",
    "dev",
    "efi",
    "etc",
    "home",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "var",
    "usr/local",
    "etc/cni",
    "etc/ssl/certs",
    "usr/lib/orlop",
];

/// Directories that manifests of add-ons mount from the host, as a usual distribution has them. They stay as they are, empty
/// but for firmware: the programs that read them run on the host. A hostPath finds them instead of failing on the read-only root.
const ADDON_DIRS: [&str; 17] = [
    "etc/ca-certificates",
    "etc/default",
    "etc/modprobe.d",
    "etc/modules-load.d",
    "etc/opt",
    "etc/pki/ca-trust",
    "etc/pki/tls/certs",
    "etc/selinux",
    "etc/sysctl.d",
    "etc/systemd/system",
    "etc/udev/rules.d",
    "usr/lib/firmware",
    "usr/local/bin",
    "usr/local/sbin",
    "usr/local/share/ca-certificates",
    "usr/share/ca-certificates",
    "usr/src",
];

/// Builds `out/root` and `out/contents.json`.
pub(super) fn build(builder: &Builder, out: &Path) -> Result<String> {
    let base = builder.result(BuildStep::Base)?.join("base");
    let root = out.join("root");
    let chosen = choose(builder, &base)?;
    for dir in DIRS.iter().chain(&ADDON_DIRS) {
        fs::create_dir_all(root.join(dir))?;
    }
    for path in chosen.keys() {
        copy(&base.join(path), &root.join(path))?;
    }
    let mut all = chosen;
    modules::unpack(builder, &root, &mut all)?;
    let own = InclusionReason { component: "orlop".to_owned(), reason: "image/rootfs".to_owned() };
    let source = builder.dirs.source.join("image/rootfs");
    copy_tree(&source.join("common"), &root, &own, &mut all)?;
    if builder.profile == Profile::Test {
        copy_tree(&source.join("test"), &root, &own, &mut all)?;
    }
    links(builder, &root)?;
    accounts(builder.profile, &base, &root)?;
    substitute(builder, &root)?;
    ours(builder, &root, &mut all)?;
    let policy = apparmor::compile(&base, &root).context("making the AppArmor profile of containers")?;
    let reason = "AppArmor profile of containers".to_owned();
    all.insert(policy, InclusionReason { component: "apparmor".to_owned(), reason });
    let bound = bind::bind(builder.dirs.arch, &root, all.keys())?;
    prefetch::expand(builder.dirs.arch, &base, &root)?;
    // Bind target of the persistent id; init fills it.
    fs::write(root.join("etc/machine-id"), "")?;
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    fs::set_permissions(root.join("root"), fs::Permissions::from_mode(0o700))?;
    fs::write(out.join("contents.json"), contents_json(&all))?;
    Ok(format!("{} files, {bound}", all.len()))
}

fn choose(builder: &Builder, base: &Path) -> Result<BTreeMap<String, InclusionReason>> {
    let contents = super::contents(&builder.dirs)?;
    let mut paths = BTreeMap::new();
    list(base, "", &mut paths)?;
    let dir = paths
        .keys()
        .find(|p| p.ends_with("/modules.dep"))
        .context("the package tree has no kernel modules")?;
    let dir = dir.trim_end_matches("/modules.dep").to_owned();
    let deps = Deps::parse(&fs::read_to_string(base.join(&dir).join("modules.dep"))?);
    let needed = |path: &str| {
        let facts = fs::read(base.join(path)).ok().and_then(|data| elf::parse(&data));
        facts.map_or(Vec::new(), |f| f.needed)
    };
    let multiarch = builder.dirs.arch.facts().multiarch;
    let listing = Listing { multiarch, paths, needed: &needed, modules: (dir, deps) };
    let choice = select::choose(&contents, builder.profile, &listing);
    if !choice.unmatched.is_empty() {
        bail!("image/contents.txt names what no package has:\n  {}", choice.unmatched.join("\n  "));
    }
    Ok(choice.files)
}

fn list(base: &Path, at: &str, out: &mut BTreeMap<String, Kind>) -> Result<()> {
    for entry in fs::read_dir(base.join(at)).with_context(|| format!("listing {at}"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if at.is_empty() { name } else { format!("{at}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(base, &path, out)?;
            out.insert(path, Kind::Dir);
        } else if kind.is_symlink() {
            out.insert(path, Kind::Link(fs::read_link(entry.path())?.to_string_lossy().into_owned()));
        } else {
            out.insert(path, Kind::File);
        }
    }
    Ok(())
}

// Copies one file, link or (empty) directory, making its parents.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let meta = fs::symlink_metadata(from).with_context(|| format!("reading {}", from.display()))?;
    if meta.is_dir() {
        fs::create_dir_all(to)?;
    } else if meta.is_symlink() {
        symlink(fs::read_link(from)?, to).with_context(|| format!("linking {}", to.display()))?;
    } else {
        fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(())
}

fn copy_tree(
    from: &Path,
    root: &Path,
    why: &InclusionReason,
    all: &mut BTreeMap<String, InclusionReason>,
) -> Result<()> {
    let mut paths = BTreeMap::new();
    list(from, "", &mut paths)?;
    for (path, kind) in paths {
        if kind == Kind::Dir {
            continue;
        }
        let to = root.join(&path);
        if to.symlink_metadata().is_ok() {
            fs::remove_file(&to)?;
        }
        copy(&from.join(&path), &to)?;
        // What git keeps of modes: executable or not; nothing of ours is.
        fs::set_permissions(&to, fs::Permissions::from_mode(0o644))?;
        all.insert(path, why.clone());
    }
    Ok(())
}

fn links(builder: &Builder, root: &Path) -> Result<()> {
    let text = fs::read_to_string(builder.dirs.source.join("image/rootfs/links.txt"))?;
    let text = builder.dirs.arch.fill(&text);
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#')) {
        let (rest, test_only) = match line.strip_prefix("test:") {
            Some(rest) => (rest, true),
            None => (line, false),
        };
        let (path, target) = rest
            .split_once(" -> ")
            .with_context(|| format!("image/rootfs/links.txt, line {}: PATH -> TARGET expected", i + 1))?;
        if test_only && builder.profile != Profile::Test {
            continue;
        }
        let path = root.join(path.trim());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).with_context(|| format!("replacing {}", path.display()))?;
        }
        symlink(target.trim(), &path).with_context(|| format!("linking {}", path.display()))?;
    }
    Ok(())
}

// Users that programs here run as or that own files; no user can log in.
fn accounts(profile: Profile, base: &Path, root: &Path) -> Result<()> {
    let text = fs::read_to_string(base.join("etc/passwd"))?;
    fs::write(root.join("etc/passwd"), passwd(&text, profile))?;
    fs::copy(base.join("etc/group"), root.join("etc/group"))?;
    Ok(())
}

fn passwd(base: &str, profile: Profile) -> String {
    let keep = |name: &str| ["root", "nobody", "messagebus"].contains(&name) || name.starts_with("systemd-");
    let mut out = String::new();
    for line in base.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        if let [name, _, uid, gid, comment, home, _] = fields[..]
            && keep(name)
        {
            let shell = if name == "root" && profile == Profile::Test {
                "/usr/bin/bash"
            } else {
                "/usr/sbin/nologin"
            };
            out.push_str(&format!("{name}:*:{uid}:{gid}:{comment}:{home}:{shell}\n"));
        }
    }
    out
}

fn substitute(builder: &Builder, root: &Path) -> Result<()> {
    let (profile, arch, version) = (builder.profile, builder.dirs.arch, builder.options.version());
    let path = root.join("usr/lib/os-release");
    let text = fs::read_to_string(&path)?;
    fs::write(&path, text.replace("@version@", &version).replace("@profile@", profile.name()))?;
    let path = root.join("usr/lib/sysctl.d/50-orlop.conf");
    let text = fs::read_to_string(&path)?;
    fs::write(&path, of_profile(&text, profile))?;
    if profile == Profile::Test {
        let path = root.join("usr/lib/systemd/system/orlop-debug-shell.service");
        let text = fs::read_to_string(&path)?;
        fs::write(&path, arch.fill(&text))?;
    }
    Ok(())
}

/// The text without the lines of other profiles: those begin with the profile's name and a colon.
fn of_profile(text: &str, profile: Profile) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let owner = Profile::ALL.into_iter().find_map(|owner| {
            let own = line.strip_prefix(owner.name())?.strip_prefix(": ")?;
            Some((owner, own))
        });
        let line = match owner {
            Some((owner, _)) if owner != profile => continue,
            Some((_, own)) => own,
            None => line,
        };
        out.push_str(line);
        out.push('\n');
    }
    out
}

fn ours(builder: &Builder, root: &Path, all: &mut BTreeMap<String, InclusionReason>) -> Result<()> {
    let ours = Binaries::of(builder);
    let images = builder.result(BuildStep::Containers)?;
    let mut add = |from: &Path, to: &str, mode: u32, reason: &str| -> Result<()> {
        copy(from, &root.join(to))?;
        fs::set_permissions(root.join(to), fs::Permissions::from_mode(mode))?;
        let why = InclusionReason { component: "orlop".to_owned(), reason: reason.to_owned() };
        all.insert(to.to_owned(), why);
        Ok(())
    };
    add(&ours.agent, "usr/bin/orlop-agent", 0o755, "the node agent")?;
    add(&ours.init, "usr/lib/orlop/orlop-init", 0o755, "what runs of init on the node: bringup and others")?;
    add(&ours.cni, "usr/lib/orlop/orlop-cni", 0o755, "bridge and addresses of the node's pod network")?;
    if let Some(trust) = &builder.options.trust {
        add(trust, IMAGE_TRUST_FILE.trim_start_matches('/'), 0o644, "keys that sign updates")?;
    }
    for (name, _, _) in containers::IMAGES {
        let to = format!("usr/share/orlop/images/{name}.tar");
        add(&images.join(format!("{name}.tar")), &to, 0o644, "baked-in image")?;
    }
    let seed = builder.result(BuildStep::Seed)?.join("seed");
    let mut paths = BTreeMap::new();
    list(&seed, "", &mut paths)?;
    for (path, kind) in paths {
        let to = format!("usr/share/orlop/containerd-seed/{path}");
        copy(&seed.join(&path), &root.join(&to))?;
        if kind != Kind::Dir {
            let why = InclusionReason {
                component: "orlop".to_owned(),
                reason: "unpacked baked-in images".to_owned(),
            };
            all.insert(to, why);
        }
    }
    for path in shim_info::record(root)? {
        let why =
            InclusionReason { component: "orlop".to_owned(), reason: "what the shim answers".to_owned() };
        all.insert(path, why);
    }
    Ok(())
}

fn contents_json(all: &BTreeMap<String, InclusionReason>) -> String {
    let map: BTreeMap<&String, [&String; 2]> =
        all.iter().map(|(path, why)| (path, [&why.component, &why.reason])).collect();
    serde_json::to_string_pretty(&map).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;

    #[test]
    fn only_service_users_stay_and_nobody_has_a_shell_in_release() {
        let base = "root:x:0:0:root:/root:/bin/bash\ngames:x:5:60:games:/usr/games:/usr/sbin/nologin\n\
            systemd-network:x:998:998:n:/:/usr/sbin/nologin\nbroken\n";
        let release = passwd(base, Profile::Release);
        assert_eq!(release.lines().count(), 2);
        assert!(!release.contains("bash"));
        assert!(passwd(base, Profile::Test).contains("/usr/bin/bash"));
    }

    /// Path and target of each link of every profile.
    fn committed_links() -> Vec<(&'static str, &'static str)> {
        let lines = include_str!("../../rootfs/links.txt").lines().filter(|l| !l.starts_with('#'));
        let link = |line: &'static str| {
            let line = line.strip_prefix("amd64: ").unwrap_or(line);
            line.strip_prefix("test:").unwrap_or(line).trim().split_once(" -> ")
        };
        lines.filter_map(link).collect()
    }

    #[test]
    fn no_link_replaces_a_directory() {
        let links = committed_links();
        for dir in DIRS.iter().chain(&ADDON_DIRS) {
            let below = |path: &str| *dir == path || dir.starts_with(&format!("{path}/"));
            assert!(!links.iter().any(|&(path, _)| below(path)), "{dir} is a link, or is below one");
        }
    }

    /// The path of the dynamic linker that the ABI of x86-64 has is no path of another's.
    #[test]
    fn only_x86_64_has_a_lib64() {
        let text = include_str!("../../rootfs/links.txt");
        let has = |arch: Arch| arch.fill(text).lines().any(|line| line == "lib64 -> usr/lib64");
        assert!(has(Arch::Amd64) && !has(Arch::Arm64));
    }

    #[test]
    fn the_time_zone_is_utc() {
        let links = committed_links();
        for link in [("etc/localtime", "../usr/share/zoneinfo/UTC"), ("usr/share/zoneinfo/Etc/UTC", "../UTC")]
        {
            assert!(links.contains(&link), "{link:?}");
        }
        // RFC 8536: the header, one type without offset that is called UTC, and the rule for times to come.
        let file: &[u8] = include_bytes!("../../rootfs/common/usr/share/zoneinfo/UTC");
        assert!(file.starts_with(b"TZif2") && file.ends_with(b"UTC\0\nUTC0\n"));
    }

    #[test]
    fn what_add_ons_write_to_leads_to_the_state_partition() {
        let links = committed_links();
        for place in ["opt", "srv", "mnt", "media", "etc/iscsi", "etc/cni/net.d", "etc/kubernetes"] {
            let target = links.iter().find(|(path, _)| *path == place).map(|(_, target)| *target);
            assert!(target.is_some_and(leads_to_var), "{place} is on the read-only root: {target:?}");
        }
    }

    /// A relative target in the directory of the state partition.
    fn leads_to_var(target: &str) -> bool {
        target.trim_start_matches("../").starts_with("var/")
    }

    /// A pod that has the host's root somewhere else follows them there: one `../` too many would leave that root.
    #[test]
    fn links_to_the_state_partition_stay_in_the_root_wherever_it_is_mounted() {
        let links = committed_links();
        let to_var: Vec<_> = links.iter().filter(|(_, target)| leads_to_var(target)).collect();
        assert!(to_var.len() > 10, "{to_var:?}");
        for (path, target) in to_var {
            assert_eq!(target.matches("../").count(), path.matches('/').count(), "{path} -> {target}");
        }
        assert!(!links.iter().any(|(_, target)| target.starts_with("/var")), "absolute: {links:?}");
    }

    /// What is a device here is one of the image's architecture there.
    #[test]
    fn the_debug_shell_is_on_a_device_of_the_architecture() {
        let unit = include_str!("../../rootfs/test/usr/lib/systemd/system/orlop-debug-shell.service");
        for (arch, line) in [(Arch::Amd64, "TTYPath=/dev/ttyS1"), (Arch::Arm64, "TTYPath=/dev/hvc0")] {
            assert!(arch.fill(unit).lines().any(|l| l == line), "{line}");
        }
    }

    /// Each module of `modules-load.d` is also read ahead: bringup starts no program for it.
    #[test]
    fn modules_of_every_boot_are_read_ahead() {
        let list = include_str!("../../rootfs/common/usr/lib/modules-load.d/50-orlop.conf");
        let ahead = include_str!("../../rootfs/common/usr/share/orlop/prefetch");
        let modules: Vec<&str> = list.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).collect();
        assert!(!modules.is_empty());
        for module in modules {
            assert!(ahead.lines().any(|l| l == format!("module {module}")), "{module}");
        }
    }

    #[test]
    fn only_the_release_image_refuses_another_kernel_for_good() {
        let settings = include_str!("../../rootfs/common/usr/lib/sysctl.d/50-orlop.conf");
        let [release, test] = Profile::ALL.map(|profile| of_profile(settings, profile));
        let kexec = "kernel.kexec_load_disabled = 1\n";
        assert!(release.contains(&format!("\n{kexec}")) && !test.contains(kexec));
        assert_eq!(release.replace(kexec, ""), test);
        assert!(!release.contains("release:"), "{release}");
    }
}
