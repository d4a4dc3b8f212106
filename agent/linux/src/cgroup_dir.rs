//! One directory of cgroupfs, held open: its files and those below it are reached from it, not from the root again.
//!
//! In: a path. Out: texts, names. Invariants: a file costs an open, a read and a close at every depth of the directory;
//! a file that goes away meanwhile counts as absent. Linux, fs/kernfs/file.c: one read that is large enough returns the
//! whole of a file that the kernel shows by one call; only lists of processes need several reads.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use agent_types::time::Wall;
use nix::dir::{Dir, Type};
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::read;

/// Larger than any file but a list of very many processes.
const AT_FIRST: usize = 16 * 1024;
/// The file that needs several reads.
const LISTS: [&str; 1] = ["cgroup.procs"];

/// An open directory.
pub(crate) struct CgroupDir {
    dir: Dir,
    /// Where it is inside the hierarchy; `/` for the whole.
    path: String,
}

/// What a file is read into, over and over.
#[derive(Default)]
pub(crate) struct Buffer(Vec<u8>);

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

impl CgroupDir {
    /// The cgroup `path` of the hierarchy that is mounted at `root`.
    pub(crate) fn open(root: &Path, path: &str) -> Option<CgroupDir> {
        let below = path.trim_matches('/');
        let dir = Dir::open(&root.join(below), DIRECTORY, Mode::empty()).ok()?;
        Some(CgroupDir { dir, path: format!("/{below}") })
    }

    /// A cgroup of this one.
    pub(crate) fn below(&self, name: &str) -> Option<CgroupDir> {
        let dir = Dir::openat(&self.dir, name, DIRECTORY, Mode::empty()).ok()?;
        let parent = self.path.trim_end_matches('/');
        Some(CgroupDir { dir, path: format!("{parent}/{name}") })
    }

    /// Where it is inside the hierarchy.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Names of the cgroups of this one.
    pub(crate) fn names(&mut self) -> Vec<String> {
        let is_own = |name: &CStr| name != c"." && name != c"..";
        let entries = self.dir.iter().flatten();
        let dirs = entries.filter(|e| e.file_type() == Some(Type::Directory) && is_own(e.file_name()));
        dirs.filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_owned())).collect()
    }

    /// The text of a file; `None` if there is none.
    pub(crate) fn read<'b>(&self, file: &str, into: &'b mut Buffer) -> Option<&'b str> {
        let file_fd = openat(&self.dir, file, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
        into.fill(&file_fd, !LISTS.contains(&file))
    }

    /// When it was made. A directory's date is the one of the last cgroup that was made in it; this file's is its own.
    pub(crate) fn created(&self) -> Option<Wall> {
        let dates =
            [fstatat(self.dir.as_fd(), "cgroup.events", AtFlags::empty()).ok(), fstat(&self.dir).ok()];
        dates.into_iter().flatten().map(|found| modified(&found)).min()
    }
}

fn modified(found: &FileStat) -> Wall {
    Wall(found.st_mtime.saturating_mul(1_000_000_000).saturating_add(found.st_mtime_nsec))
}

impl Buffer {
    fn fill(&mut self, file: &OwnedFd, whole_at_once: bool) -> Option<&str> {
        let mut length = 0;
        loop {
            if self.0.len() < length + AT_FIRST {
                self.0.resize(length + AT_FIRST, 0);
            }
            let came = read(file, &mut self.0[length..]).ok()?;
            length += came;
            if came == 0 || (whole_at_once && length < self.0.len()) {
                return str::from_utf8(&self.0[..length]).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_are_reached_from_an_open_one() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a.slice/b.scope");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(root.path().join("a.slice/cpu.stat"), "usage_usec 1\n").unwrap();
        let many = "4194304\n".repeat(10_000);
        std::fs::write(group.join("cgroup.procs"), &many).unwrap();
        std::fs::write(group.join("memory.stat"), &many).unwrap();
        let mut slice = CgroupDir::open(root.path(), "/a.slice/").unwrap();
        let mut buffer = Buffer::default();
        assert_eq!(slice.names(), ["b.scope"]);
        assert_eq!(slice.path(), "/a.slice");
        assert_eq!(slice.read("cpu.stat", &mut buffer), Some("usage_usec 1\n"));
        let scope = slice.below("b.scope").unwrap();
        assert_eq!(scope.path(), "/a.slice/b.scope");
        for file in ["cgroup.procs", "memory.stat"] {
            assert!(scope.read(file, &mut buffer) == Some(&many), "{file} is larger than the buffer");
        }
        assert_eq!(
            slice.read("cpu.stat", &mut buffer),
            Some("usage_usec 1\n"),
            "and nothing of the one before"
        );
        assert_eq!((scope.read("cpu.stat", &mut buffer), slice.below("c").is_none()), (None, true));
        assert!(CgroupDir::open(root.path(), "/").unwrap().path() == "/" && scope.created() > Some(Wall(0)));
    }
}
