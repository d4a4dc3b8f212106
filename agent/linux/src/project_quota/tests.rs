//! Against file systems of the kernel, in files that are mounted; where it has no such quotas they say so and pass.

use std::path::PathBuf;
use std::process::Command;

use agent_types::time::Wall;
use agent_volumes::payload::Payload;
use agent_volumes::plugin::Plugin;
use agent_volumes::{Medium, SetUp, Work};
use nix::mount::{MntFlags, umount2};
use nix::unistd::{Uid, sync};
use project::FIRST;

use super::*;
use crate::disk_use;
use crate::remove_tree::remove_tree;
use crate::volumes;

struct Mounted {
    dir: tempfile::TempDir,
    options: &'static str,
}

impl Mounted {
    /// A file system with project quotas; `None` where there can be none.
    fn make(mkfs: &[&str], options: &'static str, mebi: u64) -> Option<Mounted> {
        let mounted = Mounted { dir: tempfile::tempdir().unwrap(), options };
        let image = mounted.dir.path().join("image");
        File::create(&image).unwrap().set_len(mebi << 20).unwrap();
        fs::create_dir(mounted.at("")).unwrap();
        let made = Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image).output();
        let made = made.is_ok_and(|made| made.status.success());
        if !Uid::effective().is_root() || !made || !mounted.mount() {
            eprintln!("skipped: no root, no {}, or a kernel without such quotas", mkfs[0]);
            return None;
        }
        Some(mounted)
    }

    fn mount(&self) -> bool {
        let mut mount = Command::new("mount");
        mount.args(["-o", self.options]).arg(self.dir.path().join("image")).arg(self.at(""));
        mount.output().is_ok_and(|done| done.status.success())
    }

    fn at(&self, below: &str) -> PathBuf {
        self.dir.path().join("fs").join(below)
    }

    fn volume(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir(&path).unwrap();
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.at(""), MntFlags::MNT_DETACH);
    }
}

fn ext4() -> Option<Mounted> {
    let mkfs = ["mkfs.ext4", "-q", "-I", "256", "-O", "quota,project", "-E", "quotatype=prjquota"];
    Mounted::make(&mkfs, "loop", 64)
}

fn why(done: Result<u32, ProjectError>) -> NoProjectReason {
    match done {
        Err(ProjectError::Left(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn where_nothing_counts_nothing_is_given() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    assert_eq!(why(give(memory.path())), NoProjectReason::Unsupported);
    assert_eq!(counted(memory.path()).unwrap(), None);
    let at = Wall(5);
    assert_eq!(disk_use::counted_volume(memory.path(), at).unwrap().taken.unwrap().inodes, 1, "it is walked");
    let none = memory.path().join("none");
    assert_eq!(give(&none).unwrap_err().to_string(), format!("open {}", none.display()));
    std::os::unix::fs::symlink(memory.path(), &none).unwrap();
    assert!(matches!(give(&none), Err(ProjectError::Files(_))), "no link is followed");
}

fn goes_through(mounted: &Mounted) {
    let (a, b) = (mounted.volume("a"), mounted.volume("b"));
    assert_eq!((give(&a).unwrap(), give(&b).unwrap()), (FIRST, FIRST + 1));
    assert_eq!(give(&a).unwrap(), FIRST, "an agent that was killed before it knew");
    assert_eq!(counted(&a).unwrap().unwrap().inodes, 1);
    fs::create_dir(a.join("d")).unwrap();
    fs::write(a.join("d/file"), vec![7; 3 << 20]).unwrap();
    assert!(counted(&a).unwrap().unwrap().bytes >= 3 << 20, "before it is on the disk");
    sync();
    let walked = disk_use::tree(&a, Wall(5), disk_use::LIMITS).unwrap();
    let told = disk_use::counted_volume(&a, Wall(5)).unwrap();
    assert_eq!(told.taken.unwrap(), walked, "the same as a walk finds");
    assert!(told.filesystem.unwrap().capacity_bytes > 3 << 20);
    assert_eq!(counted(&b).unwrap().unwrap().inodes, 1, "each its own");
    assert_eq!(counted(&a.join("d")).unwrap(), None, "a part of a volume has none of its own");

    let mut nameless = File::create(a.join("nameless")).unwrap();
    io::Write::write_all(&mut nameless, &vec![7; 2 << 20]).unwrap();
    fs::remove_file(a.join("nameless")).unwrap();
    assert!(counted(&a).unwrap().unwrap().bytes >= 5 << 20, "what has no name any more");
    drop(nameless);

    assert!(mounted.remount());
    assert_eq!((give(&a).unwrap(), give(&b).unwrap()), (FIRST, FIRST + 1));
    assert_eq!(counted(&a).unwrap().unwrap().inodes, 3, "counted over a reboot");
    let limits = quota(&open(&a).unwrap(), Q_GETQUOTA, FIRST).unwrap();
    assert_eq!((limits.block_hard_limit, limits.inode_hard_limit), (0, 0), "no limit");

    // With its last file the id is free again.
    remove_tree(&a).unwrap();
    assert!(mounted.remount());
    assert_eq!(give(&mounted.volume("c")).unwrap(), FIRST);
}

impl Mounted {
    fn remount(&self) -> bool {
        umount2(&self.at(""), MntFlags::empty()).unwrap();
        self.mount()
    }
}

fn others_are_left_alone(mounted: &Mounted) {
    let used = mounted.volume("used");
    fs::write(used.join("x"), "x").unwrap();
    assert_eq!(why(give(&used)), NoProjectReason::InUse);
    assert_eq!(counted(&used).unwrap(), None);
    let pods = mounted.volume("pods");
    let of_all = open(&pods).unwrap();
    let mut raw = get(&of_all).unwrap();
    (raw.projid, raw.xflags) = (7, raw.xflags | PROJINHERIT);
    set(&of_all, &raw).unwrap();
    let below = mounted.volume("pods/volume");
    assert_eq!(why(give(&below)), NoProjectReason::Others(7));
    assert_eq!(counted(&below).unwrap(), None, "it is not the volume's alone");
    assert_eq!(attributes_of(&open(&below).unwrap(), &below).unwrap().project, 7);
}

#[test]
fn ext4_counts() {
    let Some(mounted) = ext4() else { return };
    goes_through(&mounted);
    others_are_left_alone(&mounted);
}

/// As the agent does it: killed before the volume is ready, started again, with the gate and without.
#[test]
fn an_empty_dir_is_counted_from_when_it_is_made() {
    let Some(mounted) = ext4() else { return };
    let pod = mounted.at("pods/u");
    let marker = |name: &str| pod.join("plugins/kubernetes.io~empty-dir").join(name);
    let volume = |name: &str, counted: bool| SetUp {
        name: name.to_owned(),
        plugin: Plugin::EmptyDir,
        path: pod.join("volumes/kubernetes.io~empty-dir").join(name).display().to_string(),
        work: Work::EmptyDir { medium: Medium::Disk, marker: marker(name).display().to_string(), counted },
        nested: Vec::new(),
        fs_group: Some(7),
    };
    let set_up = |volume: &SetUp| volumes::set_up(&pod, volume, &Payload::new(), Wall(5)).unwrap();
    let inodes = |volume: &SetUp| counted(Path::new(&volume.path)).unwrap().map(|found| found.inodes);
    let (a, b, walked) = (volume("a", true), volume("b", true), volume("walked", false));
    fs::create_dir_all(mounted.at("pods")).unwrap();
    for volume in [&a, &b, &walked] {
        assert_eq!(set_up(volume), None);
    }
    assert_eq!((inodes(&a), inodes(&b), inodes(&walked)), (Some(1), Some(1), None));
    fs::write(Path::new(&a.path).join("of the pod"), "x").unwrap();
    // A power cut took the mark with it and left the rest.
    remove_tree(&marker("a")).unwrap();
    set_up(&a);
    assert_eq!(inodes(&a), Some(2));
    // The gate is on since it was made.
    set_up(&volume("walked", true));
    assert_eq!(inodes(&walked), None);
    volumes::tear_down(&pod).unwrap();
    assert!(mounted.remount());
    assert_eq!(give(&mounted.volume("next")).unwrap(), FIRST, "nothing is left");
}

#[test]
fn xfs_counts() {
    let Some(mounted) = Mounted::make(&["mkfs.xfs", "-q"], "loop,prjquota", 320) else { return };
    goes_through(&mounted);
    others_are_left_alone(&mounted);
}

#[test]
fn a_file_system_without_them_counts_nothing() {
    let Some(mounted) = Mounted::make(&["mkfs.ext4", "-q"], "loop", 16) else { return };
    let volume = mounted.volume("v");
    assert_eq!(why(give(&volume)), NoProjectReason::Unsupported);
    assert_eq!(counted(&volume).unwrap(), None);
}
