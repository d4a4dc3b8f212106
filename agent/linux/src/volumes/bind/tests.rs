//! Directories as volumes, on a real file system, as root.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use agent_volumes::Work;
use agent_volumes::plugin::Plugin;
use nix::unistd::Uid;

use super::*;
use crate::volumes::{Payload, tear_down, unmount_below};

struct BindFixture {
    dir: tempfile::TempDir,
}

impl Drop for BindFixture {
    fn drop(&mut self) {
        // Mounts of a test that failed.
        let _ = unmount_below(self.dir.path());
    }
}

impl BindFixture {
    /// `None` where a test may not mount.
    fn new() -> Option<BindFixture> {
        let place = BindFixture { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.disk()).unwrap();
        fs::write(place.disk().join("f"), "precious").unwrap();
        Uid::effective().is_root().then_some(place)
    }

    fn disk(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    fn pod(&self, uid: &str) -> PathBuf {
        self.dir.path().join("pods").join(uid)
    }

    fn at(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumes/kubernetes.io~local-volume/pv")
    }

    fn work(&self) -> Bind {
        Bind { source: self.disk().display().to_string(), ..Bind::default() }
    }

    fn mount(&self, uid: &str, work: &Bind, fs_group: Option<u32>) -> Result<Option<String>, String> {
        let volume = SetUp {
            name: "data".to_owned(),
            plugin: Plugin::Local,
            path: self.at(uid).display().to_string(),
            work: Work::Bind(work.clone()),
            nested: Vec::new(),
            fs_group,
        };
        super::super::set_up(&self.pod(uid), &volume, &Payload::new(), agent_types::time::Wall(0))
            .map_err(|e| e.to_string())
    }

    /// Group and mode of a path below the directory.
    fn owner(&self, path: &str) -> (u32, u32) {
        let found = fs::metadata(self.disk().join(path)).unwrap();
        (found.gid(), found.permissions().mode() & 0o7777)
    }
}

#[test]
fn mounted_once_written_through_and_never_removed() {
    let Some(p) = BindFixture::new() else { return };
    for _ in 0..2 {
        assert_eq!(p.mount("u1", &p.work(), None), Ok(None));
        assert_eq!(fs::read_to_string(p.at("u1").join("f")).unwrap(), "precious");
    }
    fs::write(p.at("u1").join("new"), "x").unwrap();
    assert_eq!(mounts().unwrap().iter().filter(|m| m.path == p.at("u1").to_string_lossy()).count(), 1);
    for _ in 0..2 {
        tear_down(&p.pod("u1")).unwrap();
    }
    assert!(!p.pod("u1").join("volumes").exists());
    assert_eq!(fs::read_to_string(p.disk().join("new")).unwrap(), "x");
    assert_eq!(fs::read_to_string(p.disk().join("f")).unwrap(), "precious");
}

#[test]
fn options_hold_also_if_the_agent_died_before_it_set_them() {
    let Some(p) = BindFixture::new() else { return };
    let read_only = Bind { read_only: true, options: vec!["noexec,nodev".to_owned()], ..p.work() };
    for before in [p.work(), read_only.clone()] {
        assert_eq!(p.mount("u1", &before, None), Ok(None));
        assert_eq!(p.mount("u1", &read_only, None), Ok(None));
        assert!(fs::write(p.at("u1").join("new"), "x").is_err(), "it is read-only");
        let flags = nix::sys::statvfs::statvfs(&p.at("u1")).unwrap().flags();
        let wanted = nix::sys::statvfs::FsFlags::ST_NOEXEC | nix::sys::statvfs::FsFlags::ST_NODEV;
        assert!(flags.contains(wanted), "{flags:?}");
        assert!(fs::write(p.disk().join("new"), "x").is_ok(), "only there");
        tear_down(&p.pod("u1")).unwrap();
    }
}

#[test]
fn options_of_a_file_system_change_no_bind_mount() {
    let Some(p) = BindFixture::new() else { return };
    let options = ["discard", "uid=5", "_netdev", "x-of.a.tool=1", "lazytime,noexec"];
    let odd = Bind { options: options.map(str::to_owned).to_vec(), ..p.work() };
    assert_eq!(p.mount("u1", &odd, None), Ok(None));
    let flags = nix::sys::statvfs::statvfs(&p.at("u1")).unwrap().flags();
    assert!(flags.contains(nix::sys::statvfs::FsFlags::ST_NOEXEC), "{flags:?}");
    assert!(fs::write(p.at("u1").join("new"), "x").is_ok());
}

/// As mount(8) (util-linux 2.38) with `bind,remount` and the same options, in upstream's order.
#[test]
fn options_mean_what_they_mean_to_mount() {
    let of = |read_only: bool, options: &[&str]| {
        let options = options.iter().map(|o| (*o).to_owned()).collect();
        flags(&Bind { read_only, options, ..Bind::default() })
    };
    let own = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    for (options, expected) in [
        (&[][..], MsFlags::empty()),
        (&["bind", "defaults", "discard", "remount", "sync", "nofail", ""], MsFlags::empty()),
        (&["noexec", "exec"], MsFlags::MS_NOEXEC),
        (&["noexec,exec"], MsFlags::empty()),
        (&["user"], own | MsFlags::MS_NOEXEC),
        (&["users,exec"], own),
        (&["owner"], own),
        (&["group,suid"], MsFlags::MS_NODEV),
        (&["strictatime"], MsFlags::MS_STRICTATIME),
        (&["noatime,norelatime"], MsFlags::MS_NOATIME),
        (&["nosymfollow", "nodiratime"], NOSYMFOLLOW | MsFlags::MS_NODIRATIME),
        (&["ro"], MsFlags::MS_RDONLY),
        (&["ro", "rw"], MsFlags::empty()),
    ] {
        assert_eq!(of(false, options), expected, "{options:?}");
    }
    assert_eq!(of(true, &["rw"]), MsFlags::MS_RDONLY, "the pod has it read-only");
}

#[test]
fn the_first_pod_gives_the_group_and_a_second_one_is_told() {
    let Some(p) = BindFixture::new() else { return };
    assert_eq!(p.mount("u1", &Bind { read_only: true, ..p.work() }, Some(2000)), Ok(None));
    assert_eq!(p.owner("f").0, 0, "nothing is given where nothing is written");
    tear_down(&p.pod("u1")).unwrap();
    assert_eq!(p.mount("u1", &p.work(), Some(2000)), Ok(None));
    assert_eq!((p.owner("").0, p.owner("").1 & 0o2770), (2000, 0o2770));
    assert_eq!((p.owner("f").0, p.owner("f").1 & 0o660), (2000, 0o660));
    assert_eq!(p.mount("u2", &p.work(), Some(2000)), Ok(None));
    let words =
        "The requested fsGroup is 3000, but the volume pv has GID 2000. The volume may not be shareable.";
    assert_eq!(p.mount("u3", &p.work(), Some(3000)), Ok(Some(words.to_owned())));
    assert_eq!(p.owner("f").0, 2000, "it stays the first one's");
    for uid in ["u1", "u2", "u3"] {
        tear_down(&p.pod(uid)).unwrap();
    }
    std::os::unix::fs::lchown(p.disk().join("f"), None, Some(7)).unwrap();
    assert_eq!(p.mount("u1", &Bind { by_root: true, ..p.work() }, Some(2000)), Ok(None));
    assert_eq!(p.owner("f").0, 7, "the root is right, the rest is left alone");
    tear_down(&p.pod("u1")).unwrap();
    assert_eq!(p.mount("u1", &Bind { by_root: true, ..p.work() }, Some(3000)), Ok(None));
    assert_eq!(p.owner("f").0, 3000);
}

#[test]
fn one_pod_at_a_time_where_the_volume_says_so() {
    let Some(p) = BindFixture::new() else { return };
    let alone = Bind { one_pod: true, ..p.work() };
    for _ in 0..2 {
        assert_eq!(p.mount("u1", &alone, None), Ok(None));
    }
    let words = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    assert_eq!(p.mount("u2", &alone, None), Err(words.to_owned()));
    tear_down(&p.pod("u1")).unwrap();
    assert_eq!(p.mount("u2", &alone, None), Ok(None));
}

#[test]
fn what_is_no_directory_is_refused_and_leaves_nothing() {
    let Some(p) = BindFixture::new() else { return };
    let of = |path: &str| {
        p.mount("u1", &Bind { source: p.disk().join(path).display().to_string(), ..p.work() }, None)
    };
    let missing = p.disk().join("missing");
    assert_eq!(of("missing"), Err(format!("path \"{}\" does not exist", missing.display())));
    assert_eq!(of("f"), Err("only directory and block device are supported".to_owned()));
    assert!(of("../disk").unwrap_err().contains("must not contain '..'"));
    assert!(!p.pod("u1").exists());
}
