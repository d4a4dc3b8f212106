//! Small files of /proc, /sys and /run for the metrics of the operating system, and the system calls beside them.
//!
//! In: a root directory. Out: [`KernelFiles`], answers of `uname`, `adjtimex` and `statvfs`. Invariants: each file is read anew for each
//! request, at most a mebibyte of it (the table of mounts: sixteen); nothing is kept between two requests. [`usage`] may hang in a file
//! system whose server is away: its caller bounds it.

use std::fs;
use std::path::{Path, PathBuf};

use agent_kubelet_api::node_metrics::filesystem::{NodeMount, own_mounts};
use agent_kubelet_api::node_metrics::{FilesystemUsage, KernelFiles, UnameFacts};
use nix::sys::statvfs::statvfs;
use nix::unistd::{SysconfVar, sysconf};

use crate::files::{read_capped, visible_names};

/// A file that is read is not longer, bytes. The longest is `/proc/stat` of a machine with thousands of interrupts.
const TEXT_MAX: u64 = 1 << 20;
/// The mount table is not longer, bytes: some fifty thousand mounts.
const TABLE_MAX: u64 = 16 << 20;
/// A page of memory where the system does not say it, bytes.
const PAGE: u64 = 4096;

/// The files below a directory.
#[derive(Clone, Debug)]
pub struct KernelTree {
    root: PathBuf,
}

impl KernelTree {
    /// The machine's own.
    #[must_use]
    pub fn of_machine() -> KernelTree {
        KernelTree::below(Path::new("/"))
    }

    /// Those below a directory that stands for `/`.
    #[must_use]
    pub fn below(root: &Path) -> KernelTree {
        KernelTree { root: root.to_owned() }
    }

    /// The node's own mounts, without those below `pods`; `None` if the table cannot be read.
    #[must_use]
    pub fn mounts(&self, pods: &[&str]) -> Option<Vec<NodeMount>> {
        let table = read_capped(&self.root.join("proc/self/mountinfo"), TABLE_MAX).ok()?;
        Some(own_mounts(&String::from_utf8_lossy(&table), pods))
    }
}

impl KernelFiles for KernelTree {
    fn text(&self, path: &str) -> Option<String> {
        let bytes = read_capped(&self.root.join(path), TEXT_MAX).ok()?;
        Some(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    fn names(&self, path: &str) -> Vec<String> {
        visible_names(&self.root.join(path)).unwrap_or_default()
    }

    fn real_path(&self, path: &str) -> Option<String> {
        Some(fs::canonicalize(self.root.join(path)).ok()?.to_string_lossy().into_owned())
    }
}

/// `uname(2)`.
#[must_use]
pub fn uname() -> Option<UnameFacts> {
    let name = nix::sys::utsname::uname().ok()?;
    let text = |word: &std::ffi::OsStr| word.to_string_lossy().into_owned();
    Some(UnameFacts {
        sysname: text(name.sysname()),
        release: text(name.release()),
        version: text(name.version()),
        machine: text(name.machine()),
        nodename: text(name.nodename()),
        domainname: text(name.domainname()),
    })
}

/// Size of a page of memory, bytes.
#[must_use]
pub fn page_bytes() -> u64 {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| u64::try_from(size).ok()).unwrap_or(PAGE)
}

/// `statvfs(3)` of a mount; the reason where there is none. It may hang.
///
/// # Errors
/// The system's words.
pub fn usage(mount: &NodeMount) -> Result<FilesystemUsage, String> {
    let stat = statvfs(mount.mount_point.as_str()).map_err(|e| e.desc().to_owned())?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    Ok(FilesystemUsage {
        size_bytes: bytes(stat.blocks()),
        free_bytes: bytes(stat.blocks_free()),
        available_bytes: bytes(stat.blocks_available()),
        files: stat.files(),
        files_free: stat.files_free(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use agent_kubelet_api::node_metrics::{self, NodeFacts};

    use super::*;

    #[test]
    fn files_names_and_links_of_a_tree() {
        let dir = tempfile::tempdir().unwrap();
        let (class, device) =
            (dir.path().join("sys/class/hwmon/hwmon0"), dir.path().join("sys/devices/platform/x.0"));
        for path in [&class, &device] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(class.join("name"), b"chip\xff\n").unwrap();
        symlink(&device, class.join("device")).unwrap();
        let tree = KernelTree::below(dir.path());
        assert_eq!(tree.text("sys/class/hwmon/hwmon0/name").as_deref(), Some("chip\u{fffd}\n"));
        assert_eq!(tree.names("sys/class/hwmon"), ["hwmon0"]);
        assert!(tree.real_path("sys/class/hwmon/hwmon0/device").unwrap().ends_with("/platform/x.0"));
        assert_eq!((tree.text("sys/class"), tree.text("none"), tree.real_path("none")), (None, None, None));
        assert!(tree.names("none").is_empty() && tree.mounts(&[]).is_none());
    }

    #[test]
    fn this_machine_has_the_families_that_every_machine_has() {
        let tree = KernelTree::of_machine();
        let facts = NodeFacts { page_bytes: page_bytes(), uname: uname(), ..NodeFacts::default() };
        let text = node_metrics::text(&tree, &facts, &|| Duration::ZERO);
        for name in [
            "node_cpu_seconds_total{",
            "node_memory_MemTotal_bytes ",
            "node_load1 ",
            "node_boot_time_seconds ",
        ] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is not in:\n{text}");
        }
        let release = uname().unwrap().release;
        assert!(text.contains(&format!("release=\"{release}\"")), "{text}");
        assert!(page_bytes() >= 4096 && page_bytes().is_power_of_two());
    }

    #[test]
    fn a_mount_has_its_size_or_a_reason() {
        let at = |path: &Path| NodeMount { mount_point: path.display().to_string(), ..NodeMount::default() };
        let dir = tempfile::tempdir().unwrap();
        let found = usage(&at(dir.path())).unwrap();
        assert!(
            found.size_bytes > 0
                && found.available_bytes <= found.free_bytes
                && found.free_bytes <= found.size_bytes
        );
        assert_eq!(usage(&at(&dir.path().join("none"))).unwrap_err(), "No such file or directory");
    }

    /// `cargo test -p agent-linux --release kernel_files -- --ignored --nocapture` prints what a scrape of this machine costs.
    #[test]
    #[ignore = "prints figures"]
    fn cost_of_a_scrape() {
        const SCRAPES: u32 = 200;
        let (tree, facts) =
            (KernelTree::of_machine(), NodeFacts { page_bytes: page_bytes(), ..NodeFacts::default() });
        let cpu = || crate::process::usage().unwrap().cpu;
        let (began, before) = (std::time::Instant::now(), cpu());
        let mut text = String::new();
        for _ in 0..SCRAPES {
            text = node_metrics::text(&tree, &facts, &|| began.elapsed());
        }
        let spent = (cpu() - before) / SCRAPES;
        eprintln!("{} bytes, {} lines, {spent:?} of a processor a scrape", text.len(), text.lines().count());
    }
}
