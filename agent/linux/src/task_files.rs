//! Open files of processes. Linux, Documentation/filesystems/proc.rst.
//!
//! In: where /proc is, process ids. Out: counts. Invariant: a process that ends meanwhile has none.

use std::os::fd::AsFd;
use std::path::Path;

use agent_kubelet_api::stats::usage::Tasks;
use nix::dir::{Dir, Type};
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::Mode;

/// Adds to what is known of a cgroup's tasks the open files of its processes `pids`, and the limit of the first of them.
pub fn add<'a>(tasks: &mut Tasks, proc: &Path, pids: impl Iterator<Item = &'a str>) {
    let (files, sockets) = open_files(proc, pids);
    (tasks.files, tasks.sockets) = (Some(files), Some(sockets));
    tasks.files_max = tasks.first.and_then(|pid| files_max(proc, pid));
}

/// Open files of these processes, and how many of them are sockets.
fn open_files<'a>(proc: &Path, pids: impl Iterator<Item = &'a str>) -> (u64, u64) {
    let (mut files, mut sockets) = (0, 0);
    for pid in pids {
        let how = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Ok(open) = Dir::open(&proc.join(pid).join("fd"), how, Mode::empty()) else { continue };
        // The entries, and beside them the directory from which links are read.
        let Ok(at) = open.as_fd().try_clone_to_owned() else { continue };
        for entry in open.into_iter().flatten().filter(|entry| entry.file_type() == Some(Type::Symlink)) {
            files += 1;
            let to = readlinkat(&at, entry.file_name());
            sockets += u64::from(to.is_ok_and(|to| to.as_encoded_bytes().starts_with(b"socket:")));
        }
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
        let (files, sockets) = open_files(Path::new("/proc"), ["none", &pid.to_string()].into_iter());
        assert!(files > sockets && sockets > 0, "{files} files, {sockets} sockets");
        assert!(files_max(Path::new("/proc"), pid).is_some_and(|max| max > 0));
        assert_eq!(soft_limit("Max open files   unlimited  unlimited  files\n"), Some(-1));
        assert_eq!(soft_limit("Max processes 1 2 processes\n"), None);
    }
}
