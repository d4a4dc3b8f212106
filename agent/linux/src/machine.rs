//! Facts about this machine that pods' configurations depend on: memory, CPUs, swap, huge pages, cgroups,
//! AppArmor.
//!
//! In: /proc and /sys. Out: plain values, bytes and counts. Parsers are pure (those of /proc are in `orlop_config::procfs`); a fact that
//! cannot be read has the value of a machine without the thing, except memory and CPUs, which every machine
//! has.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use agent_types::resources::node_allocatable::HugePages;
use nix::sys::statvfs::statvfs;
use orlop_config::procfs;

use crate::files::FilesError;

/// `MemTotal`, bytes.
///
/// # Errors
/// /proc/meminfo cannot be read or understood.
pub fn memory_bytes() -> Result<u64, FilesError> {
    meminfo("MemTotal")
}

/// `SwapTotal`, bytes; 0 without swap.
///
/// # Errors
/// /proc/meminfo cannot be read or understood.
pub fn swap_bytes() -> Result<u64, FilesError> {
    meminfo("SwapTotal")
}

fn meminfo(name: &str) -> Result<u64, FilesError> {
    let path = Path::new("/proc/meminfo");
    let text = std::fs::read_to_string(path).map_err(FilesError::at("read", path))?;
    procfs::kilobytes(&text, name).ok_or_else(|| {
        FilesError::at("parse", path)(io::Error::new(io::ErrorKind::InvalidData, format!("no {name}")))
    })
}

/// Version of the running kernel, major and minor.
///
/// # Errors
/// `uname` does not say it in the usual form.
pub fn kernel_version() -> Result<(u32, u32), FilesError> {
    let at = || FilesError::at("uname", Path::new("release"));
    let name = nix::sys::utsname::uname().map_err(|e| at()(e.into()))?;
    let release = name.release().to_string_lossy();
    parse_release(&release)
        .ok_or_else(|| at()(io::Error::new(io::ErrorKind::InvalidData, format!("{release:?}"))))
}

/// `6.12.48-orlop` is (6, 12).
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// How many CPUs are online.
///
/// # Errors
/// /sys/devices/system/cpu/online cannot be read or understood.
pub fn cpus_online() -> Result<u32, FilesError> {
    let path = Path::new("/sys/devices/system/cpu/online");
    let text = std::fs::read_to_string(path).map_err(FilesError::at("read", path))?;
    count_list(text.trim()).filter(|n| *n > 0).ok_or_else(|| {
        FilesError::at("parse", path)(io::Error::new(io::ErrorKind::InvalidData, format!("{text:?}")))
    })
}

/// The CPUs that are online, as the kernel lists them; empty if it does not say.
#[must_use]
pub fn cpu_list() -> String {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    text.trim().to_owned()
}

/// How many tasks there may be on the machine (`kernel.pid_max`, `kernel.threads-max`); `None` if the kernel does not say.
#[must_use]
pub fn pids_max() -> Option<u64> {
    let number =
        |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok();
    ["pid_max", "threads-max"].into_iter().filter_map(number).min()
}

/// How many cores and packages the processors are in; `None` if the machine does not say.
#[must_use]
pub fn cores_and_sockets() -> Option<(u32, u32)> {
    let cpus = Path::new("/sys/devices/system/cpu");
    let is_cpu = |n: &&String| {
        n.strip_prefix("cpu").is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    };
    let number = |name: &String, file: &str| -> Option<i64> {
        std::fs::read_to_string(cpus.join(name).join("topology").join(file)).ok()?.trim().parse().ok()
    };
    let names = entries(cpus);
    let of = |name: &String| Some((number(name, "physical_package_id")?, number(name, "core_id")?));
    // Processors that are off have no topology.
    let cores: BTreeSet<(i64, i64)> = names.iter().filter(is_cpu).filter_map(of).collect();
    let sockets: BTreeSet<i64> = cores.iter().map(|(package, _)| *package).collect();
    let count = |n: usize| u32::try_from(n).ok().filter(|n| *n > 0);
    Some((count(cores.len())?, count(sockets.len())?))
}

/// How many numbers a kernel list (`0-3,8`) names.
fn count_list(list: &str) -> Option<u32> {
    let mut count = 0u32;
    for part in list.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Swap devices and files in use, by name.
#[must_use]
pub fn swaps() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    procfs::swaps(&text).map(str::to_owned).collect()
}

/// Huge page sizes the kernel offers, as cgroup files spell them (`2MB`, `1GB`).
#[must_use]
pub fn hugepage_sizes() -> Vec<String> {
    let mut kilobytes: Vec<u64> = entries(Path::new("/sys/kernel/mm/hugepages"))
        .iter()
        .filter_map(|n| n.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok())
        .collect();
    kilobytes.sort_unstable();
    kilobytes.into_iter().map(hugepage_name).collect()
}

/// Huge pages by size: how many the kernel has set aside of each.
#[must_use]
pub fn hugepages() -> Vec<HugePages> {
    let root = Path::new("/sys/kernel/mm/hugepages");
    let mut sizes: Vec<HugePages> = entries(root)
        .iter()
        .filter_map(|name| {
            let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let pages = std::fs::read_to_string(root.join(name).join("nr_hugepages")).ok()?;
            Some(HugePages { page_bytes: kilobytes.checked_mul(1024)?, pages: pages.trim().parse().ok()? })
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

fn hugepage_name(kilobytes: u64) -> String {
    match kilobytes {
        kb if kb >= 1 << 20 => format!("{}GB", kb >> 20),
        kb if kb >= 1 << 10 => format!("{}MB", kb >> 10),
        kb => format!("{kb}KB"),
    }
}

/// Paths `/sys/devices/system/cpu/cpu*/thermal_throttle` that exist; containers must not see them.
#[must_use]
pub fn thermal_throttle_paths() -> Vec<String> {
    let cpus = Path::new("/sys/devices/system/cpu");
    let mut paths: Vec<PathBuf> = entries(cpus)
        .iter()
        .filter(|n| {
            n.strip_prefix("cpu").is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
        })
        .map(|n| cpus.join(n).join("thermal_throttle"))
        .filter(|p| p.exists())
        .collect();
    paths.sort();
    paths.into_iter().map(|p| p.display().to_string()).collect()
}

/// True if the machine has the unified cgroup hierarchy and no other.
#[must_use]
pub fn has_cgroup_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// True if cgroups account swap.
#[must_use]
pub fn has_swap_controller() -> bool {
    let root = Path::new("/sys/fs/cgroup");
    if !has_cgroup_v2() {
        return root.join("memory/memory.memsw.limit_in_bytes").exists();
    }
    // The root group has no such file; any other group does.
    entries(root).iter().any(|group| root.join(group).join("memory.swap.max").exists())
}

/// True if the kernel enforces AppArmor profiles.
#[must_use]
pub fn has_apparmor() -> bool {
    let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    enabled.is_ok_and(|text| text.trim() == "Y") && Path::new("/sys/kernel/security/apparmor").exists()
}

/// Size of the file system that `path` lies on, bytes.
///
/// # Errors
/// `statvfs` with the path.
pub fn filesystem_bytes(path: &Path) -> Result<u64, FilesError> {
    let stat = statvfs(path).map_err(|e| FilesError::at("statvfs", path)(e.into()))?;
    Ok(stat.blocks().saturating_mul(stat.fragment_size()))
}

fn entries(directory: &Path) -> Vec<String> {
    let Ok(read) = std::fs::read_dir(directory) else { return Vec::new() };
    read.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_are_counted() {
        for (list, count) in [
            ("0", Some(1)),
            ("0-3", Some(4)),
            ("0-1,4,6-7", Some(5)),
            ("", Some(0)),
            ("3-1", None),
            ("x", None),
        ] {
            assert_eq!(count_list(list), count, "{list}");
        }
    }

    #[test]
    fn pages_have_the_names_of_cgroup_files() {
        assert_eq!([4, 2048, 1 << 20].map(hugepage_name), ["4KB", "2MB", "1GB"]);
    }

    #[test]
    fn kernel_releases() {
        assert_eq!(parse_release("6.12.48-orlop"), Some((6, 12)));
        assert_eq!(parse_release("6.18-rc1"), Some((6, 18)));
        assert_eq!(parse_release("next"), None);
        assert!(kernel_version().unwrap() >= (5, 6));
    }

    #[test]
    fn this_machine_has_memory_and_cpus() {
        assert!(memory_bytes().unwrap() > 1 << 26);
        assert!(cpus_online().unwrap() >= 1);
        assert!(cores_and_sockets().is_none_or(|(cores, sockets)| cores >= sockets && sockets >= 1));
        assert!(filesystem_bytes(Path::new("/")).unwrap() > 0);
    }
}
