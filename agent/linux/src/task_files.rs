//! Open files of processes. Linux, Documentation/filesystems/proc.rst.
//!
//! In: where /proc is, process ids. Out: counts. Invariants: a process that ends meanwhile has none; the work for a
//! cgroup has a bound that does not depend on the number of its descriptors.

use std::os::fd::AsFd;
use std::path::Path;

use agent_kubelet_api::stats::usage::Tasks;
use nix::dir::{Dir, Type};
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::{Mode, fstat};

/// Descriptors of a cgroup that are looked at one by one, to find sockets. A process opens millions of them for a few
/// bytes each (dup(2)).
const LOOKED_AT_MAX: usize = 10_000;

/// Adds to what is known of a cgroup's tasks the open files of its processes `pids`, and the limit of the first of them.
pub fn add<'a>(tasks: &mut Tasks, proc: &Path, pids: impl Iterator<Item = &'a str>) {
    let (files, sockets) = open_files(proc, pids, LOOKED_AT_MAX);
    (tasks.files, tasks.sockets) = (Some(files), Some(sockets));
    tasks.files_max = tasks.first.and_then(|pid| files_max(proc, pid));
}

/// Open files of these processes, and how many of them are sockets. Of more than `left` descriptors the kernel's number counts
/// (Linux 6.2: the size of /proc/PID/fd), and sockets among the rest do not.
fn open_files<'a>(proc: &Path, pids: impl Iterator<Item = &'a str>, mut left: usize) -> (u64, u64) {
    let (mut files, mut sockets) = (0, 0);
    for pid in pids {
        let how = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Ok(open) = Dir::open(&proc.join(pid).join("fd"), how, Mode::empty()) else { continue };
        // Two descriptors: one lists the entries, from the other one links are read.
        let Ok(at) = open.as_fd().try_clone_to_owned() else { continue };
        let known = fstat(&at).map_or(0, |of| u64::try_from(of.st_size).unwrap_or(0));
        let mut seen = 0;
        let links = open.into_iter().flatten().filter(|entry| entry.file_type() == Some(Type::Symlink));
        for entry in links.take(left) {
            seen += 1;
            let to = readlinkat(&at, entry.file_name());
            sockets += u64::from(to.is_ok_and(|to| to.as_encoded_bytes().starts_with(b"socket:")));
        }
        left = left.saturating_sub(usize::try_from(seen).unwrap_or(usize::MAX));
        files += known.max(seen);
    }
    (files, sockets)
}

/// How many files a process may open, -1 for any number: its soft limit.
fn files_max(proc: &Path, pid: u32) -> Option<i64> {
    soft_limit(&std::fs::read_to_string(proc.join(pid.to_string()).join("limits")).ok()?)
}

/// `Max open files            1024                 524288               files`.
fn soft_limit(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_files() {
        let pid = std::process::id();
        let _socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let (files, sockets) = open_files(Path::new("/proc"), ["none", &pid.to_string()].into_iter(), 1000);
        assert!(files > sockets && sockets > 0, "{files} files, {sockets} sockets");
        let (_, none) = open_files(Path::new("/proc"), [pid.to_string().as_str()].into_iter(), 0);
        assert_eq!(none, 0, "no descriptor was looked at");
        assert!(files_max(Path::new("/proc"), pid).is_some_and(|max| max > 0));
        assert_eq!(soft_limit("Max open files   unlimited  unlimited  files\n"), Some(-1));
        assert_eq!(soft_limit("Max processes 1 2 processes\n"), None);
    }
}
