//! Block devices of pods, on a real kernel, as root.

use std::path::PathBuf;

use agent_volumes::Work;
use nix::unistd::Uid;

use super::*;
use crate::volumes::unmount_below;

/// A directory, and in it the node of a loop device over a file.
struct DeviceFixture {
    dir: tempfile::TempDir,
    device: PathBuf,
}

impl Drop for DeviceFixture {
    fn drop(&mut self) {
        // Of a test that failed.
        for uid in ["u1", "u2"] {
            let _ = loop_device::detach(&self.global().join(uid));
        }
        let _ = unmount_below(self.dir.path());
        let _ = loop_device::detach(&self.dir.path().join("file"));
    }
}

impl DeviceFixture {
    /// `None` where a test may not make devices.
    fn new() -> Option<DeviceFixture> {
        if !Uid::effective().is_root() || !Path::new("/dev/loop-control").exists() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
        loop_device::attach(&file).unwrap();
        let device = loop_device::over(&file).unwrap().unwrap();
        Some(DeviceFixture { dir, device })
    }

    fn pod(&self, uid: &str) -> PathBuf {
        self.dir.path().join("pods").join(uid)
    }

    fn global(&self) -> PathBuf {
        device::global(&self.dir.path().to_string_lossy(), Plugin::Local, "pv").into()
    }

    fn link(&self, uid: &str) -> PathBuf {
        self.pod(uid).join(device::below(Plugin::Local, "pv"))
    }

    fn map(&self, uid: &str, source: &Path, one_pod: bool) -> Result<(), String> {
        let (source, global) = (source.display().to_string(), self.global().display().to_string());
        let volume = SetUp {
            name: "data".to_owned(),
            plugin: Plugin::Local,
            path: self.link(uid).display().to_string(),
            work: Work::Device(Device { source, global, one_pod }),
            nested: Vec::new(),
            fs_group: Some(2000),
        };
        let done = super::super::set_up(
            &self.pod(uid),
            &volume,
            &crate::volumes::Payload::new(),
            agent_types::time::Wall(0),
        );
        done.map(drop).map_err(|e| e.to_string())
    }

    fn is_held(&self, uid: &str) -> bool {
        loop_device::over(&self.global().join(uid)).unwrap().is_some()
    }
}

/// Repeats a tear-down that fails, as the agent does. Another process that looks at all loop devices may have the pod's one open: the
/// kernel releases the file only after that process has closed it.
fn torn_down(pod: &Path) {
    let begun = std::time::Instant::now();
    while tear_down(pod).is_err() && begun.elapsed() < std::time::Duration::from_secs(5) {
        std::thread::yield_now();
    }
    tear_down(pod).unwrap();
}

#[test]
fn a_device_is_linked_held_and_given_back() {
    let Some(p) = DeviceFixture::new() else { return };
    for _ in 0..2 {
        p.map("u1", &p.device, false).unwrap();
    }
    assert_eq!(fs::read_link(p.link("u1")).unwrap(), p.device);
    let kept = fs::metadata(p.global().join("u1")).unwrap();
    let device = fs::metadata(&p.device).unwrap();
    assert!(kept.file_type().is_block_device() && kept.rdev() == device.rdev() && p.is_held("u1"));
    assert_ne!(device.gid(), 2000, "a device gets no group");
    // Another pod may have it, unless one alone may.
    assert!(p.map("u2", &p.device, true).unwrap_err().contains("ReadWriteOncePod"));
    p.map("u2", &p.device, false).unwrap();
    // An agent that was killed before it held it.
    loop_device::detach(&p.global().join("u1")).unwrap();
    p.map("u1", &p.device, false).unwrap();
    assert!(p.is_held("u1"));
    for _ in 0..2 {
        torn_down(&p.pod("u1"));
    }
    assert!(!p.is_held("u1") && p.is_held("u2") && !p.global().join("u1").exists());
    assert!(fs::symlink_metadata(p.link("u1")).is_err());
    torn_down(&p.pod("u2"));
    assert!(!p.global().exists() && p.device.exists());
}

#[test]
fn what_a_power_cut_left_is_made_anew() {
    let Some(p) = DeviceFixture::new() else { return };
    // The name of the device that it was before.
    link(&p.pod("u1"), &p.link("u1"), Path::new("/dev/other")).unwrap();
    fs::create_dir_all(p.global()).unwrap();
    fs::write(p.global().join("u1"), "").unwrap();
    p.map("u1", &p.device, false).unwrap();
    assert!(p.is_held("u1") && fs::read_link(p.link("u1")).unwrap() == p.device);
}

#[test]
fn what_is_no_device_is_told() {
    let Some(p) = DeviceFixture::new() else { return };
    for (path, words) in
        [(p.dir.path().join("file"), "is not a block device"), (p.dir.path().join("none"), "does not exist")]
    {
        let error = p.map("u1", &path, false).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    assert!(
        p.map("u1", Path::new("/dev/../dev/loop0"), false).unwrap_err().contains("must not contain '..'")
    );
    assert!(!p.global().exists());
}
