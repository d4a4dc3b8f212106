//! What init promises the root, checked by bringup: mounts and cgroup controllers. Text of /proc and /sys in,
//! broken promises out, one line each.

use orlop_config::procfs::mounts;

/// Checks `/proc/self/mounts`. The last mount on a place is the visible one. `degraded`: /var is known to be
/// volatile, and said so already.
#[must_use]
pub fn broken_mounts(text: &str, degraded: bool) -> Vec<String> {
    let all = mounts(text);
    let at = |target: &str| all.iter().rev().find(|m| m.target == target);
    let var = if degraded { "tmpfs" } else { "ext4" };
    let promises: [(&str, &str, &str, &[&str]); 4] = [
        ("/", "/dev/", "erofs", &["ro"]),
        ("/var", "", var, &["rw"]),
        ("/sys/fs/cgroup", "", "cgroup2", &["nsdelegate", "memory_recursiveprot"]),
        ("/etc/machine-id", "", "tmpfs", &[]),
    ];
    let mut broken = Vec::new();
    for (target, source, fstype, options) in promises {
        match at(target) {
            None => broken.push(format!("{target} is not a mount point (expected {fstype})")),
            Some(m) if m.fstype != fstype || !m.source.starts_with(source) => {
                broken.push(format!("{target} is {} from {} (expected {fstype})", m.fstype, m.source));
            }
            Some(m) => {
                let missing: Vec<&str> = options.iter().filter(|o| !m.has(o)).copied().collect();
                if !missing.is_empty() {
                    broken.push(format!("{target} is mounted without {}", missing.join(",")));
                }
            }
        }
    }
    broken
}

/// Controllers that pods need.
const CONTROLLERS: [&str; 6] = ["cpuset", "cpu", "io", "memory", "hugetlb", "pids"];

/// What is to be enabled for the children of the root cgroup, given `cgroup.controllers` and
/// `cgroup.subtree_control`: text for one write per controller.
#[must_use]
pub fn controllers_to_enable<'a>(available: &'a str, enabled: &str) -> Vec<&'a str> {
    let enabled: Vec<&str> = enabled.split_whitespace().collect();
    available.split_whitespace().filter(|c| !enabled.contains(c)).collect()
}

/// Checks the controllers after that.
#[must_use]
pub fn broken_controllers(available: &str, enabled: &str) -> Vec<String> {
    let has = |list: &str, name: &str| list.split_whitespace().any(|c| c == name);
    let absent = CONTROLLERS.iter().filter(|c| !has(available, c));
    let absent = absent.map(|c| format!("the kernel offers no cgroup v2 controller {c}"));
    let undelegated = controllers_to_enable(available, enabled);
    let undelegated =
        undelegated.into_iter().map(|c| format!("cgroup controller {c} is not delegated below the root"));
    absent.chain(undelegated).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
/dev/mapper/orlop-root / erofs ro,nosuid,nodev 0 0
/dev/vda6 /var ext4 rw,relatime,errors=remount-ro 0 0
tmpfs /etc/machine-id tmpfs rw,mode=755 0 0
cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,memory_recursiveprot 0 0
";

    #[test]
    fn mounts_as_promised() {
        assert_eq!(broken_mounts(GOOD, false), Vec::<String>::new());
        let volatile = GOOD.replace("/dev/vda6 /var ext4", "orlop-volatile /var tmpfs");
        assert_eq!(broken_mounts(&volatile, true), Vec::<String>::new());
        let cases = [
            (GOOD.replace("erofs ro", "erofs rw"), "/ is mounted without ro"),
            (
                GOOD.replace("/ erofs", "/ overlay"),
                "/ is overlay from /dev/mapper/orlop-root (expected erofs)",
            ),
            (GOOD.replace(",nsdelegate", ""), "/sys/fs/cgroup is mounted without nsdelegate"),
            (GOOD.replace(" /var ", " /mnt "), "/var is not a mount point (expected ext4)"),
            (format!("{GOOD}x /var tmpfs rw 0 0"), "/var is tmpfs from x (expected ext4)"),
        ];
        for (text, want) in cases {
            assert_eq!(broken_mounts(&text, false), [want]);
        }
    }

    #[test]
    fn controllers() {
        let all = "cpuset cpu io memory hugetlb pids rdma misc\n";
        assert_eq!(controllers_to_enable(all, "cpu io memory pids"), ["cpuset", "hugetlb", "rdma", "misc"]);
        assert_eq!(broken_controllers(all, all), Vec::<String>::new());
        let broken = broken_controllers("cpu io memory pids cpuset", "cpu io memory pids");
        assert_eq!(
            broken,
            [
                "the kernel offers no cgroup v2 controller hugetlb",
                "cgroup controller cpuset is not delegated below the root"
            ]
        );
    }
}
