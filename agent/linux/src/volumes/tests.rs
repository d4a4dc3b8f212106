//! Volumes on a real file system, as root where a test mounts.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use agent_volumes::FileContent;
use agent_volumes::bound::HostPathType;
use agent_volumes::plugin::Plugin;
use agent_volumes::sub_path::{SUB_PATHS, SubPath};
use nix::unistd::Uid;

use super::*;

struct VolumesFixture {
    _dir: tempfile::TempDir,
    pod: PathBuf,
}

impl VolumesFixture {
    fn new() -> VolumesFixture {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pods/u");
        VolumesFixture { _dir: dir, pod }
    }

    fn volume(&self, work: Work, fs_group: Option<u32>) -> SetUp {
        let path = self.pod.join("volumes/kubernetes.io~x/v");
        SetUp {
            name: "v".to_owned(),
            plugin: Plugin::Secret,
            path: path.display().to_string(),
            work,
            nested: Vec::new(),
            fs_group,
        }
    }

    fn marker(&self) -> String {
        self.pod.join("plugins/kubernetes.io~empty-dir/wrapped_v").display().to_string()
    }

    fn files(&self, medium: Medium, fs_group: Option<u32>) -> SetUp {
        let work = Work::Files { medium, marker: self.marker(), sources: Vec::new(), projected: false };
        self.volume(work, fs_group)
    }
}

impl Drop for VolumesFixture {
    fn drop(&mut self) {
        // Mounts of a test that failed.
        let _ = unmount_below(&self.pod);
    }
}

fn payload(files: &[(&str, &str, u32)]) -> Payload {
    let file = |data: &str, mode| FileContent { data: data.as_bytes().to_vec(), mode, user: None };
    files.iter().map(|(path, data, mode)| ((*path).to_owned(), file(data, *mode))).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(path: &Path) -> Vec<String> {
    let all = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

fn at(second: i64) -> Wall {
    Wall(second * 1_000_000_000)
}

#[test]
fn versions_replace_each_other_at_once() {
    let p = VolumesFixture::new();
    let volume = p.files(Medium::Disk, None);
    let path = PathBuf::from(&volume.path);
    let write = |files: &[(&str, &str, u32)], now| set_up(&p.pod, &volume, &payload(files), at(now)).unwrap();
    write(&[("a", "1", 0o640), ("d/x", "2", 0o400), ("d/y", "3", 0o400)], 0);
    assert_eq!(names(&path), ["..1970_01_01_00_00_00.0", "..data", "a", "d"]);
    assert_eq!(fs::read_link(path.join("a")).unwrap(), Path::new("..data/a"));
    assert_eq!(fs::read_to_string(path.join("d/x")).unwrap(), "2");
    assert_eq!((mode(&path.join("a")), mode(&path), mode(&path.join("d"))), (0o640, 0o777, 0o755));
    let first = fs::read_link(path.join("..data")).unwrap();
    let link = fs::symlink_metadata(path.join("..data")).unwrap().ino();

    write(&[("a", "1", 0o640), ("d/x", "2", 0o400), ("d/y", "3", 0o400)], 1);
    assert_eq!(fs::read_link(path.join("..data")).unwrap(), first, "nothing changed, nothing is written");
    assert_eq!(fs::symlink_metadata(path.join("..data")).unwrap().ino(), link);

    write(&[("d/x", "2", 0o400), ("e", "4", 0o400)], 2);
    assert_eq!(names(&path), ["..1970_01_01_00_00_02.0", "..data", "d", "e"]);
    assert_eq!(names(&path.join("d")), ["x"]);
    write(&[], 3);
    assert_eq!(names(&path), ["..1970_01_01_00_00_03.0", "..data"]);
    tear_down(&p.pod).unwrap();
    assert!(names(&p.pod).is_empty());
    tear_down(&p.pod).unwrap();
}

/// Mounts `target` once more somewhere else, as a runtime does when it starts a container; the file's content.
fn mounted_again(p: &VolumesFixture, target: &Path) -> String {
    let again = p.pod.join("rootfs");
    fs::write(&again, "").unwrap();
    mount(Some(target), &again, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let content = fs::read_to_string(&again).unwrap();
    umount2(&again, MntFlags::empty()).unwrap();
    content
}

#[test]
fn a_runtime_can_mount_a_part_of_a_volume_that_changed_since() {
    if !Uid::effective().is_root() {
        return;
    }
    let p = VolumesFixture::new();
    let volume = p.files(Medium::Disk, None);
    let path = PathBuf::from(&volume.path);
    let write = |text: &str, now| {
        set_up(&p.pod, &volume, &payload(&[("a", text, 0o644), ("d/x", text, 0o644)]), at(now)).unwrap();
    };
    let part = |path: &str, container: &str| {
        let target = p.pod.join(SUB_PATHS).join("v").join(container).join("0");
        let part = SubPath {
            volume: "v".to_owned(),
            container: container.to_owned(),
            root: volume.path.clone(),
            path: path.to_owned(),
            target: target.display().to_string(),
        };
        sub_path::mount_part(&p.pod, &part).unwrap();
        target
    };
    let versions = || names(&path).into_iter().filter(|n| n.starts_with("..1")).collect::<Vec<_>>();
    write("0", 0);
    let first = part("a", "first");
    write("1", 1);
    let (second, directory) = (part("a", "second"), part("d", "directory"));
    for second in 2..5 {
        write(&second.to_string(), second);
    }
    // Two versions are held: the first by a file, the second by a file and a directory.
    let kept = ["..1970_01_01_00_00_00.0", "..1970_01_01_00_00_01.0", "..1970_01_01_00_00_04.0"];
    assert_eq!(versions(), kept);
    assert_eq!((mounted_again(&p, &first).as_str(), mounted_again(&p, &second).as_str()), ("0", "1"));
    assert_eq!(mounted_again(&p, &directory.join("x")), "1");
    assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "4");
    // A container that is made again has the newest version; the next look at the volume finds that the old one is free.
    assert_eq!(mounted_again(&p, &part("a", "first")), "4");
    assert_eq!(mounted_again(&p, &part("a", "second")), "4");
    write("4", 5);
    assert_eq!(versions(), kept[1..], "the directory is mounted still");
    part("d", "directory");
    write("4", 6);
    assert_eq!(versions(), kept[2..]);
    write("5", 7);
    tear_down(&p.pod).unwrap();
    assert!(!path.exists());
}

#[test]
fn what_a_crash_left_is_cleaned_up() {
    let p = VolumesFixture::new();
    let volume = p.files(Medium::Disk, None);
    let path = PathBuf::from(&volume.path);
    let files = payload(&[("a", "1", 0o644)]);
    set_up(&p.pod, &volume, &files, at(0)).unwrap();
    // Killed while a version was written; killed before its link was renamed; a version that is lost.
    fs::create_dir(path.join("..1970_01_01_00_00_05.0")).unwrap();
    fs::write(path.join("..1970_01_01_00_00_05.0/a"), "half").unwrap();
    std::os::unix::fs::symlink("..1970_01_01_00_00_05.0", path.join("..data_tmp")).unwrap();
    std::os::unix::fs::symlink("..data/gone", path.join("gone")).unwrap();
    set_up(&p.pod, &volume, &files, at(5)).unwrap();
    assert_eq!(names(&path), ["..1970_01_01_00_00_00.0", "..data", "..data_tmp", "a"]);
    let files = payload(&[("a", "2", 0o644)]);
    set_up(&p.pod, &volume, &files, at(5)).unwrap();
    assert_eq!(names(&path), ["..1970_01_01_00_00_05.0", "..data", "a"]);
    fs::remove_dir_all(path.join("..1970_01_01_00_00_05.0")).unwrap();
    set_up(&p.pod, &volume, &files, at(6)).unwrap();
    assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "2");
}

#[test]
fn nothing_is_written_outside() {
    let p = VolumesFixture::new();
    let volume = p.files(Medium::Disk, None);
    for bad in ["../x", "/x", "a/../../x", "..data", ""] {
        let error = set_up(&p.pod, &volume, &payload(&[(bad, "1", 0o644)]), at(0)).unwrap_err();
        assert!(error.to_string().starts_with("write"), "{bad:?}: {error}");
    }
    // A container made `..data` lead elsewhere: it is neither read nor removed.
    let elsewhere = p.pod.join("elsewhere");
    fs::create_dir_all(&elsewhere).unwrap();
    let path = PathBuf::from(&volume.path);
    std::os::unix::fs::symlink(&elsewhere, path.join("..data")).unwrap();
    assert!(set_up(&p.pod, &volume, &payload(&[("a", "1", 0o644)]), at(0)).is_err());
    assert!(elsewhere.is_dir());
}

#[test]
fn an_empty_dir_is_made_once() {
    let p = VolumesFixture::new();
    let volume = p.volume(Work::EmptyDir { medium: Medium::Disk, marker: p.marker(), counted: false }, None);
    let path = PathBuf::from(&volume.path);
    set_up(&p.pod, &volume, &Payload::new(), at(0)).unwrap();
    assert_eq!((mode(&path), mode(&p.pod), mode(path.parent().unwrap())), (0o777, 0o750, 0o750));
    assert!(Path::new(&p.marker()).join("ready").is_file());
    fs::write(path.join("of the pod"), "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    set_up(&p.pod, &volume, &Payload::new(), at(1)).unwrap();
    assert_eq!((mode(&path), names(&path).len()), (0o700, 1), "a pod may change its own directory");
}

#[test]
fn what_is_mounted_stays_mounted_until_it_is_torn_down() {
    if !Uid::effective().is_root() {
        return;
    }
    let p = VolumesFixture::new();
    let volume = p.files(Medium::Memory(1 << 20), Some(4711));
    let path = PathBuf::from(&volume.path);
    let files = payload(&[("a", "1", 0o400), ("d/x", "2", 0o600)]);
    match set_up(&p.pod, &volume, &files, at(0)) {
        // A machine where root may not mount.
        Err(VolumeError::Files(e)) if e.source.kind() == ErrorKind::PermissionDenied => return,
        done => drop(done.unwrap()),
    }
    let device = fs::metadata(&path).unwrap().dev();
    assert_ne!(device, fs::metadata(&p.pod).unwrap().dev());
    for (name, bits) in [("a", 0o440), ("d/x", 0o640), ("d", 0o2755), ("", 0o3777)] {
        let found = fs::metadata(path.join(name)).unwrap();
        assert_eq!((found.gid(), mode(&path.join(name))), (4711, bits), "{name}");
    }
    set_up(&p.pod, &volume, &files, at(1)).unwrap();
    let here = mount_table::below(&mounts().unwrap(), &p.pod.display().to_string());
    assert_eq!(here, [volume.path.as_str()], "one mount");
    assert!(is_mounted_here(&path, TMPFS_MAGIC).unwrap());
    for other in [path.join("d"), path.join("missing"), p.pod.clone()] {
        assert!(!is_mounted_here(&other, TMPFS_MAGIC).unwrap(), "{}", other.display());
    }
    assert!(!is_mounted_here(&path, HUGETLBFS_MAGIC).unwrap());
    assert!(remove_tree(&p.pod).is_err(), "a mount is not entered");
    tear_down(&p.pod).unwrap();
    assert!(mount_table::below(&mounts().unwrap(), &p.pod.display().to_string()).is_empty());
    remove_tree(&p.pod).unwrap();
}

#[test]
fn huge_pages_are_mounted_once_and_are_their_groups() {
    let known = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").is_dir();
    if !Uid::effective().is_root() || !known {
        return;
    }
    let p = VolumesFixture::new();
    let medium = Medium::HugePages(2 << 20);
    let volume = p.volume(Work::EmptyDir { medium, marker: p.marker(), counted: false }, Some(4711));
    let path = PathBuf::from(&volume.path);
    for second in 0..2 {
        set_up(&p.pod, &volume, &Payload::new(), at(second)).unwrap();
    }
    let table = mounts().unwrap();
    assert_eq!(mount_table::below(&table, &p.pod.display().to_string()), [volume.path.as_str()], "one mount");
    assert_eq!(mount_table::kind_at(&table, &volume.path), Some("hugetlbfs"));
    assert_eq!(fs::metadata(&path).unwrap().gid(), 4711);
    assert_eq!(nix::sys::statvfs::statvfs(&path).unwrap().block_size(), 2 << 20);
    tear_down(&p.pod).unwrap();
    assert!(!path.exists());
}

#[test]
fn a_group_may_read_and_write_its_empty_dir() {
    if !Uid::effective().is_root() {
        return;
    }
    let p = VolumesFixture::new();
    let volume =
        p.volume(Work::EmptyDir { medium: Medium::Disk, marker: p.marker(), counted: false }, Some(7));
    let path = PathBuf::from(&volume.path);
    set_up(&p.pod, &volume, &Payload::new(), at(0)).unwrap();
    assert_eq!((mode(&path), fs::metadata(&path).unwrap().gid()), (0o2777, 7));
}

#[test]
fn host_paths_are_what_they_are_said_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| dir.path().join(name);
    fs::create_dir(of("dir")).unwrap();
    fs::write(of("file"), "").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(of("socket")).unwrap();
    let check = |name: &str, kind| host_path::check(&of(name), kind).map_err(|e| e.to_string());
    for (name, kind) in [
        ("nothing", HostPathType::Unset),
        ("dir", HostPathType::Directory),
        ("file", HostPathType::File),
        ("socket", HostPathType::Socket),
        ("new/dir", HostPathType::DirectoryOrCreate),
        ("new/dir", HostPathType::DirectoryOrCreate),
        ("new/dir/file", HostPathType::FileOrCreate),
        ("new/dir/file", HostPathType::FileOrCreate),
    ] {
        check(name, kind).unwrap();
    }
    assert_eq!((mode(&of("new/dir")), mode(&of("new/dir/file"))), (0o755, 0o644));
    assert_eq!(
        host_path::check(Path::new("/dev/null"), HostPathType::CharDevice).map_err(|e| e.to_string()),
        Ok(())
    );
    for (name, kind, what) in [
        ("file", HostPathType::Directory, "a directory"),
        ("file", HostPathType::DirectoryOrCreate, "a directory"),
        ("dir", HostPathType::File, "a file"),
        ("dir", HostPathType::FileOrCreate, "a file"),
        ("nothing", HostPathType::Directory, "a directory"),
        ("file", HostPathType::Socket, "a socket file"),
        ("file", HostPathType::CharDevice, "a character device"),
        ("file", HostPathType::BlockDevice, "a block device"),
    ] {
        let words = format!("hostPath type check failed: {} is not {what}", of(name).display());
        assert_eq!(check(name, kind), Err(words));
    }
    assert!(check("no/file", HostPathType::FileOrCreate).unwrap_err().starts_with("open "));
}

#[test]
fn a_try_of_noswap_leaves_nothing_and_goes_on_from_what_a_crash_left() {
    let dir = tempfile::tempdir().unwrap();
    let of = |path: &Path| fs::read_dir(path).unwrap().count();
    let first = has_tmpfs_noswap(dir.path());
    assert_eq!(of(dir.path()), 0);
    fs::create_dir(dir.path().join("tmpfs-noswap-test")).unwrap();
    assert_eq!(has_tmpfs_noswap(dir.path()), first);
    assert_eq!(of(dir.path()), 0);
    assert!(!has_tmpfs_noswap(&dir.path().join("absent")));
}
