//! The fixed mounts: API file systems before the root is known, the root, cgroup v2, the hand-over.

use super::step::{BootStep, Mount};
use nix::mount::MsFlags;

/// Where the new root is put together.
pub const SYSROOT: &str = "/sysroot";

fn mount(source: &str, target: &str, fstype: &'static str, flags: MsFlags, data: &str) -> Mount {
    Mount { source: source.into(), target: target.into(), fstype, flags, data: data.into(), optional: false }
}

/// /proc, /sys, /dev, /run and what lies below them, with the flags systemd expects to find.
#[must_use]
pub fn api_filesystems() -> Vec<BootStep> {
    let strict = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let dev = MsFlags::MS_NOSUID | MsFlags::MS_STRICTATIME;
    let run = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_STRICTATIME;
    vec![
        BootStep::Mount(mount("proc", "/proc", "proc", strict, "")),
        BootStep::Mount(mount("sysfs", "/sys", "sysfs", strict, "")),
        BootStep::Mount(mount("devtmpfs", "/dev", "devtmpfs", dev, "mode=0755")),
        BootStep::Mount(mount("tmpfs", "/run", "tmpfs", run, "mode=0755,size=20%,nr_inodes=800k")),
        BootStep::MakeDir("/run/orlop".into()),
    ]
}

/// Where EFI variables are.
pub const EFI_VARIABLES: &str = "/sys/firmware/efi/efivars";

/// EFI variables, for as long as init reads them. A BIOS machine has none.
#[must_use]
pub fn firmware() -> BootStep {
    let strict = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let variables = mount("efivarfs", EFI_VARIABLES, "efivarfs", strict, "");
    BootStep::Mount(Mount { optional: true, ..variables })
}

/// The same, for as long as init deletes some.
#[must_use]
pub fn writable_firmware() -> BootStep {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let variables = mount("efivarfs", EFI_VARIABLES, "efivarfs", flags, "");
    BootStep::Mount(Mount { optional: true, ..variables })
}

/// The verified root.
#[must_use]
pub fn root(device: &str) -> Vec<BootStep> {
    // No device nodes and no set-uid programs come from the image; containers' files live below /var.
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NODEV | MsFlags::MS_NOSUID;
    vec![BootStep::Mount(mount(device, SYSROOT, "erofs", flags, ""))]
}

/// The state partition. Neither nodev nor nosuid: both would be inherited by the binds that the agent makes
/// for pods (block volumes, emptyDir) and break them.
#[must_use]
pub fn state(device: &str) -> Vec<BootStep> {
    let data = "errors=remount-ro";
    vec![BootStep::Mount(mount(device, "/sysroot/var", "ext4", MsFlags::MS_RELATIME, data))]
}

/// Where add-ons' plugins of networks are, below /var.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginDir {
    /// `opt/cni/bin`, to which `lib/orlop/cni/bin` is a link: also a pod that has /opt or /opt/cni somewhere else finds
    /// it there.
    Opt,
    /// `lib/orlop/cni/bin`, its place before /opt was on the state partition, to which `opt/cni/bin` is a link: what
    /// add-ons have brought there is kept.
    Orlop,
}

impl PluginDir {
    /// Of a /var where `opt/cni/bin` is a link, and `lib/orlop/cni/bin` a directory, or not: once made, it stays.
    #[must_use]
    pub fn of(opt_is_link: bool, orlop_is_directory: bool) -> PluginDir {
        if opt_is_link || orlop_is_directory { PluginDir::Orlop } else { PluginDir::Opt }
    }
}

/// Directories of a /var that has just been made or was never complete: what the image's links point to, and
/// what services and add-ons expect. Those that exist are left as they are.
#[must_use]
pub fn var_layout(plugins: PluginDir) -> Vec<BootStep> {
    let link = |path: &str, target: &str| BootStep::MakeLink {
        path: format!("{SYSROOT}/var/{path}"),
        target: target.into(),
    };
    let (plugin_dir, plugin_link, plugin_target) = match plugins {
        PluginDir::Opt => ("opt/cni/bin", "lib/orlop/cni/bin", "../../../opt/cni/bin"),
        PluginDir::Orlop => ("lib/orlop/cni/bin", "opt/cni/bin", "../../lib/orlop/cni/bin"),
    };
    [
        "cache",
        "lib/kubelet/volumeplugins",
        "lib/orlop/api",
        "lib/orlop/cni/net.d",
        // Units that may write there have it in their sandbox only if it is there when they start.
        "lib/orlop/config",
        "lib/orlop/containerd/certs.d",
        "lib/orlop/etc/ceph",
        "lib/orlop/etc/iscsi",
        "lib/orlop/etc/lvm",
        "lib/orlop/etc/multipath",
        "lib/orlop/etc/nvme",
        "lib/orlop/kubernetes/manifests",
        "log/containers",
        "log/journal",
        "log/pods",
        "media",
        "mnt",
        "opt/cni",
        "spool",
        "srv",
    ]
    .into_iter()
    .chain([plugin_dir])
    .map(|dir| BootStep::MakeDir(format!("{SYSROOT}/var/{dir}")))
    .chain([
        BootStep::MakeStickyDir(format!("{SYSROOT}/var/tmp")),
        link("run", "/run"),
        link("lock", "/run/lock"),
        link(plugin_link, plugin_target),
    ])
    .collect()
}

/// journald writes to /var/log/journal from its start instead of to /run first, which has to be copied: the flag
/// that `journalctl --flush` leaves (systemd-journald.service(8)). systemd-journal-flush.service is not in the image: /var
/// is there before journald and stays until after it, and the end of that service would take the flag away at a
/// soft-reboot, after which the journal is in /run and lost with the machine.
#[must_use]
pub fn journal_is_on_disk() -> BootStep {
    BootStep::WriteFile { path: "/run/systemd/journal/flushed".into(), mode: 0o644, content: Vec::new() }
}

/// A /var that is lost at power-off, when the state partition cannot be used.
#[must_use]
pub fn volatile_state() -> Vec<BootStep> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    vec![BootStep::Mount(mount("orlop-volatile", "/sysroot/var", "tmpfs", flags, "mode=0755,size=20%"))]
}

/// cgroup v2, before systemd would do it, so that the options are ours.
#[must_use]
pub fn cgroup2() -> Vec<BootStep> {
    let strict = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    vec![BootStep::Mount(Mount {
        data: "nsdelegate,memory_recursiveprot".into(),
        ..mount("cgroup2", CGROUP, "cgroup2", strict, "")
    })]
}

/// The first group with memory accounting, which systemd makes next anyway. With it the kernel rewrites its allocator's
/// code, and it is to do that while nothing else runs: QEMU before 8.0 may run the breakpoint that stands there
/// meanwhile after it is gone, if another processor is in that code.
pub const FIRST_GROUP: &str = "init.scope";
/// What is enabled for it: what systemd accounts for every unit.
pub const FIRST_CONTROLLERS: &str = "+memory +pids";
/// Where cgroup v2 is mounted.
pub const CGROUP: &str = "/sys/fs/cgroup";

/// Mounts and directories of /run that services and pods expect. systemd has units for the mounts and would start a
/// program for each; what is mounted already it takes as it is.
#[must_use]
pub fn services() -> Vec<BootStep> {
    let dev = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let optional = |m: Mount| BootStep::Mount(Mount { optional: true, ..m });
    vec![
        BootStep::Mount(mount(
            "tmpfs",
            "/sysroot/tmp",
            "tmpfs",
            dev | MsFlags::MS_STRICTATIME,
            "mode=1777,size=50%,nr_inodes=1m",
        )),
        optional(mount("hugetlbfs", "/dev/hugepages", "hugetlbfs", dev, "")),
        optional(mount("mqueue", "/dev/mqueue", "mqueue", dev | MsFlags::MS_NOEXEC, "")),
        // The first of its kind makes the kernel look for a module that is not built: without modprobe here it
        // knows at once, with systemd it would start one.
        optional(mount("bpf", "/sys/fs/bpf", "bpf", dev | MsFlags::MS_NOEXEC, "mode=700")),
        // For root alone (mode 0700), as systemd mounts them: programs that trace the kernel (docs/internals/threat-model.md).
        optional(mount("debugfs", "/sys/kernel/debug", "debugfs", dev | MsFlags::MS_NOEXEC, "")),
        optional(mount("tracefs", "/sys/kernel/tracing", "tracefs", dev | MsFlags::MS_NOEXEC, "")),
        // containerd makes it with the first pod; agents of networks look for it before.
        BootStep::MakeDir("/run/netns".into()),
        BootStep::MakeStickyDir("/run/lock".into()),
    ]
}

/// The mounts that go along into the new root.
#[must_use]
pub fn handover() -> Vec<BootStep> {
    ["/dev", "/proc", "/sys", "/run"]
        .into_iter()
        .map(|from| BootStep::Move { from: from.into(), to: format!("{SYSROOT}{from}") })
        .collect()
}

/// What a program of the verified root needs when it runs from the initrd in a chroot.
#[must_use]
pub fn tool_chroot() -> Vec<BootStep> {
    ["/dev", "/proc", "/sys", "/run"]
        .into_iter()
        .map(|from| BootStep::Bind { from: from.into(), to: format!("{SYSROOT}{from}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_mounted_below_what_exists_by_then() {
        let mut mounted = vec![String::from("/")];
        for step in api_filesystems() {
            let target = match step {
                BootStep::Mount(m) => m.target,
                BootStep::MakeDir(d) => d,
                other => panic!("{other:?}"),
            };
            let above = mounted.iter().filter(|m| target.starts_with(m.as_str())).count();
            assert!(above >= 1, "{target}");
            mounted.push(target);
        }
        assert_eq!(mounted.len(), 6);
    }

    #[test]
    fn root_is_read_only_and_state_is_not_nodev() {
        let flags = |steps: Vec<BootStep>| match &steps[0] {
            BootStep::Mount(m) => m.flags,
            other => panic!("{other:?}"),
        };
        assert!(flags(root("/dev/dm-0")).contains(MsFlags::MS_RDONLY | MsFlags::MS_NODEV));
        assert!(
            !flags(state("/dev/vda6"))
                .intersects(MsFlags::MS_NODEV | MsFlags::MS_NOSUID | MsFlags::MS_RDONLY)
        );
    }

    /// Links of the image that lead to /var, as `image/rootfs/links.txt` has them: path and target below /var.
    fn links_to_var() -> Vec<(&'static str, &'static str)> {
        let lines = include_str!("../../../image/rootfs/links.txt").lines();
        let links = lines.filter(|l| !l.starts_with('#')).filter_map(|l| l.split_once(" -> "));
        links
            .filter_map(|(path, target)| Some((path, target.trim_start_matches("../").strip_prefix("var/")?)))
            .collect()
    }

    #[test]
    fn what_the_images_links_lead_to_is_made() {
        let made = var_layout(PluginDir::Opt);
        let is_made = |place: &str| {
            let place = format!("{SYSROOT}/var/{place}");
            made.iter().any(|step| {
                matches!(step, BootStep::MakeDir(dir) if *dir == place || dir.starts_with(&format!("{place}/")))
            })
        };
        let links = links_to_var();
        for place in ["opt", "srv", "mnt", "media", "etc/cni/net.d", "etc/iscsi", "etc/multipath"] {
            assert!(links.iter().any(|(path, _)| *path == place), "{place} cannot be written to");
        }
        for (path, target) in links {
            assert!(is_made(target), "{path} leads to {target}, which nobody makes");
        }
    }

    #[test]
    fn plugins_of_add_ons_stay_where_they_were() {
        assert_eq!(PluginDir::of(false, false), PluginDir::Opt, "a new partition, or one made so");
        // Also after a pod has removed the directory: the link needs a target.
        for (opt_is_link, orlop_is_directory) in [(true, true), (true, false), (false, true)] {
            assert_eq!(PluginDir::of(opt_is_link, orlop_is_directory), PluginDir::Orlop);
        }
        for (plugins, made, linked, target) in [
            (PluginDir::Opt, "opt/cni/bin", "lib/orlop/cni/bin", "../../../opt/cni/bin"),
            (PluginDir::Orlop, "lib/orlop/cni/bin", "opt/cni/bin", "../../lib/orlop/cni/bin"),
        ] {
            let layout = var_layout(plugins);
            let is_made = |place: &str| {
                let place = format!("{SYSROOT}/var/{place}");
                layout.iter().position(|step| {
                    matches!(step, BootStep::MakeDir(dir) if *dir == place || dir.starts_with(&format!("{place}/")))
                })
            };
            let (path, target) = (format!("{SYSROOT}/var/{linked}"), target.to_owned());
            let link = layout
                .iter()
                .position(|step| *step == BootStep::MakeLink { path: path.clone(), target: target.clone() });
            let link = link.unwrap_or_else(|| panic!("no link: {layout:?}"));
            let above = linked.trim_end_matches("/bin");
            assert!(is_made(above).is_some_and(|at| at < link), "{above} is made before the link in it");
            assert!(is_made(made).is_some() && is_made(linked).is_none(), "{layout:?}");
        }
    }

    #[test]
    fn programs_that_trace_the_kernel_find_their_file_systems() {
        let steps = services();
        for (fstype, target) in
            [("bpf", "/sys/fs/bpf"), ("debugfs", "/sys/kernel/debug"), ("tracefs", "/sys/kernel/tracing")]
        {
            let mount = steps.iter().find_map(|step| match step {
                BootStep::Mount(m) if m.target == target => Some(m),
                _ => None,
            });
            let mount = mount.unwrap_or_else(|| panic!("{target} is not mounted"));
            let strict = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            assert!(mount.fstype == fstype && mount.optional && mount.flags.contains(strict), "{mount:?}");
        }
        assert!(steps.contains(&BootStep::MakeDir("/run/netns".into())));
    }

    #[test]
    fn cgroup_options() {
        let BootStep::Mount(m) = &cgroup2()[0] else { panic!("one mount") };
        assert_eq!((m.fstype, m.data.as_str()), ("cgroup2", "nsdelegate,memory_recursiveprot"));
    }
}
