//! For tests: a cgroup of the kernel's own to try things in, next to the machine's other hierarchies.
//!
//! In: the right to make a mount namespace. Out: a directory of cgroup2 that looks like a hierarchy's root. Invariants:
//! only this thread and those that it starts see the mount; the cgroup is removed with all below it.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

/// A cgroup that is removed when this is dropped.
pub(crate) struct KernelCgroup {
    root: PathBuf,
    place: TempDir,
}

impl KernelCgroup {
    /// `None`, and a line that says so, where the kernel does not let us.
    pub(crate) fn make(name: &str) -> Option<KernelCgroup> {
        let none = None::<&str>;
        let place = tempfile::tempdir().unwrap();
        let made = unshare(CloneFlags::CLONE_NEWNS)
            .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
            .and_then(|()| mount(Some("none"), place.path(), Some("cgroup2"), MsFlags::empty(), none));
        if let Err(error) = made {
            eprintln!("not tested: no cgroup2 for tests: {error}");
            return None;
        }
        let root = place.path().join(format!("orlop-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        Some(KernelCgroup { root, place })
    }

    /// The directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A process that stays, in a cgroup of this one that is made for it.
    pub(crate) fn run_in(&self, below: &Path) -> std::process::Child {
        std::fs::create_dir_all(below).unwrap();
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        std::fs::write(below.join("cgroup.procs"), child.id().to_string()).unwrap();
        child
    }
}

impl Drop for KernelCgroup {
    fn drop(&mut self) {
        fn remove(dir: &Path) {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            for entry in entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())) {
                remove(&entry.path());
            }
            let _ = std::fs::remove_dir(dir);
        }
        let _ = std::fs::write(self.root.join("cgroup.kill"), "1");
        remove(&self.root);
        let _ = nix::mount::umount(self.place.path());
    }
}
