//! Parts of volumes on a real file system; mounting needs root.

use std::os::unix::fs::{PermissionsExt, symlink};

use nix::unistd::Uid;

use super::*;
use crate::volumes::{tear_down, unmount_below};

struct SubPathFixture {
    dir: tempfile::TempDir,
    pod: PathBuf,
    volume: PathBuf,
}

impl SubPathFixture {
    fn new() -> SubPathFixture {
        let dir = tempfile::tempdir().unwrap();
        let (pod, volume) = (dir.path().join("pods/u"), dir.path().join("srv"));
        fs::create_dir_all(&pod).unwrap();
        fs::create_dir(&volume).unwrap();
        fs::write(dir.path().join("secret"), "host").unwrap();
        SubPathFixture { dir, pod, volume }
    }

    fn part(&self, path: &str, index: usize) -> SubPath {
        SubPath {
            volume: "v".to_owned(),
            container: "c".to_owned(),
            root: self.volume.display().to_string(),
            path: path.to_owned(),
            target: self.pod.join(format!("{SUB_PATHS}/v/c/{index}")).display().to_string(),
        }
    }

    fn mount(&self, path: &str, index: usize) -> Result<PathBuf, String> {
        let part = self.part(path, index);
        mount_part(&self.pod, &part).map_err(|e| e.to_string())?;
        Ok(PathBuf::from(part.target))
    }
}

impl SubPathFixture {
    /// How much is mounted for the pod.
    fn mounted(&self) -> usize {
        mount_table::below(&mounts().unwrap(), &self.pod.to_string_lossy()).len()
    }
}

impl Drop for SubPathFixture {
    fn drop(&mut self) {
        // Mounts of a test that failed.
        let _ = unmount_below(&self.pod);
    }
}

#[test]
fn a_part_is_mounted_made_if_missing_and_goes_with_the_pod() {
    if !Uid::effective().is_root() {
        return;
    }
    let place = SubPathFixture::new();
    fs::create_dir(place.volume.join("a")).unwrap();
    fs::write(place.volume.join("a/file"), "one").unwrap();
    fs::set_permissions(&place.volume, fs::Permissions::from_mode(0o2773)).unwrap();
    let directory = place.mount("a", 0).unwrap();
    let file = place.mount("a/./file", 1).unwrap();
    let made = place.mount("x/y", 2).unwrap();
    assert_eq!(fs::read_to_string(directory.join("file")).unwrap(), "one");
    assert_eq!(fs::read_to_string(&file).unwrap(), "one");
    fs::write(made.join("from a container"), "two").unwrap();
    assert_eq!(fs::read_to_string(place.volume.join("x/y/from a container")).unwrap(), "two");
    for path in ["x", "x/y"] {
        let mode = fs::metadata(place.volume.join(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o2773, "{path}");
    }
    // The volume itself, where an expression came to nothing.
    assert!(place.mount("", 3).unwrap().join("x/y").is_dir());
    tear_down(&place.pod).unwrap();
    assert!(!place.pod.join(SUB_PATHS).exists());
    assert_eq!(fs::read_to_string(place.volume.join("x/y/from a container")).unwrap(), "two");
}

#[test]
fn again_changes_nothing_unless_the_part_is_another() {
    if !Uid::effective().is_root() {
        return;
    }
    let place = SubPathFixture::new();
    for (version, text) in [("1", "old"), ("2", "new")] {
        fs::create_dir(place.volume.join(version)).unwrap();
        fs::write(place.volume.join(version).join("f"), text).unwrap();
    }
    symlink("1", place.volume.join("..data")).unwrap();
    symlink("..data/f", place.volume.join("f")).unwrap();
    let file = place.mount("f", 0).unwrap();
    let before = place.mounted();
    place.mount("f", 0).unwrap();
    assert_eq!(place.mounted(), before);
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    // A ConfigMap changed: the next instance sees the new file, at the same place.
    fs::remove_file(place.volume.join("..data")).unwrap();
    symlink("2", place.volume.join("..data")).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    place.mount("f", 0).unwrap();
    assert_eq!((fs::read_to_string(&file).unwrap().as_str(), place.mounted()), ("new", before));
    // What was a file is a directory now.
    fs::remove_file(place.volume.join("f")).unwrap();
    fs::create_dir(place.volume.join("f")).unwrap();
    assert!(place.mount("f", 0).unwrap().is_dir());
}

#[test]
fn no_link_leaves_the_volume() {
    let place = SubPathFixture::new();
    let outside = place.dir.path().display().to_string();
    symlink(format!("{outside}/secret"), place.volume.join("absolute")).unwrap();
    symlink("../secret", place.volume.join("relative")).unwrap();
    symlink(&outside, place.volume.join("directory")).unwrap();
    symlink("loop", place.volume.join("loop")).unwrap();
    for path in ["absolute", "relative", "directory/secret", "loop", "directory/made/by/nobody"] {
        let error = place.mount(path, 0).unwrap_err();
        assert!(error.contains("leads out of the volume") || error.contains("volumeMount \"v\""), "{error}");
    }
    assert!(!place.dir.path().join("made").exists());
    let mut part = place.part("", 0);
    part.target = place.volume.join("elsewhere").display().to_string();
    assert!(mount_part(&place.pod, &part).unwrap_err().to_string().contains("is not below"));
}
