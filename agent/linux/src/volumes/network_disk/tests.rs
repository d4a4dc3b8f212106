//! Records and who has what, on a real file system; mounts as root.

use agent_volumes::Work;
use agent_volumes::network_disk::source::Target;
use agent_volumes::network_disk::{Fc, Iscsi, global};
use nix::mount::{MsFlags, mount};
use nix::unistd::Uid;

use super::*;

fn disk(root: &Path, target: Target, block: bool) -> NetworkDisk {
    NetworkDisk {
        volume: "pv".to_owned(),
        global: global(&root.to_string_lossy(), "pv", &target, block).unwrap(),
        target,
        fs_type: String::new(),
        secret: None,
        read_only: false,
        options: Vec::new(),
        one_pod: false,
        by_root: false,
        block,
        label: None,
    }
}

fn iscsi(root: &Path, lun: i32, block: bool) -> NetworkDisk {
    let portals = ("10.0.0.1".to_owned(), Vec::new());
    let unit = Iscsi::new(portals, "iqn.x:y".to_owned(), lun, None, None, (false, false));
    disk(root, Target::Iscsi(unit), block)
}

fn fc(wwns: &[&str], wwids: &[&str]) -> Target {
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    Target::Fc(Fc::new(owned(wwns), Some(0), owned(wwids)).unwrap())
}

fn root() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("kubelet");
    fs::create_dir(&root).unwrap();
    (dir, root)
}

#[test]
fn records_are_found_again_until_they_are_forgotten() {
    let (_dir, root) = root();
    assert!(records(&root).unwrap().is_empty() && on_disk(&root).unwrap().is_empty());
    let all = [
        iscsi(&root, 0, false),
        iscsi(&root, 1, true),
        disk(&root, fc(&["aa"], &[]), false),
        disk(&root, fc(&[], &["b"]), true),
    ];
    for of in &all {
        for _ in 0..2 {
            prepare(&root, &of.record()).unwrap();
        }
        assert!(Path::new(&of.global).is_dir());
    }
    let found = records(&root).unwrap();
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(all.iter().all(|of| found.contains(&of.record())));
    let told = on_disk(&root).unwrap();
    assert!(
        told.len() == 4 && told.values().all(|h| h.staged && h.attached && h.pods.is_empty()),
        "{told:?}"
    );
    let inside = Path::new(&all[0].global).join(ISCSI_FILE);
    assert!(fs::read_to_string(inside).unwrap().contains("\"Iqn\":\"iqn.x:y\""));

    for of in &all {
        for _ in 0..2 {
            unmount(&of.record()).unwrap();
            forget(&of.record()).unwrap();
        }
    }
    assert!(records(&root).unwrap().is_empty());
    assert!(!root.join("plugins/kubernetes.io/iscsi/iface-default").exists(), "its last disk is gone");
    assert!(root.join("plugins/kubernetes.io/fc").is_dir());
}

#[test]
fn a_record_that_cannot_be_understood_is_no_empty_node() {
    let (_dir, root) = root();
    let of = iscsi(&root, 0, false);
    prepare(&root, &of.record()).unwrap();
    let path = PathBuf::from(of.record().path());
    let moved = path.with_file_name("other.json");
    fs::copy(&path, &moved).unwrap();
    assert!(records(&root).unwrap_err().source.to_string().contains("it is the record of"));
    fs::remove_file(&moved).unwrap();
    fs::write(&path, "{").unwrap();
    on_disk(&root).unwrap_err();
}

#[test]
fn what_lies_where_a_disk_is_mounted_is_not_removed() {
    let (_dir, root) = root();
    let of = iscsi(&root, 0, false);
    prepare(&root, &of.record()).unwrap();
    let precious = Path::new(&of.global).join("precious");
    fs::write(&precious, "x").unwrap();
    unmount(&of.record()).unwrap_err();
    assert!(precious.exists());
}

#[test]
fn a_block_devices_pods_are_in_its_directory() {
    let (_dir, root) = root();
    let of = iscsi(&root, 0, true);
    prepare(&root, &of.record()).unwrap();
    for uid in ["u1", "gone"] {
        fs::write(Path::new(&of.global).join(uid), "").unwrap();
    }
    fs::create_dir_all(root.join("pods/u1")).unwrap();
    let pods = on_disk(&root).unwrap().remove(&of.key()).unwrap().pods;
    assert_eq!(pods.into_iter().collect::<Vec<_>>(), ["u1".into()]);
    assert_eq!(globals(&root, Plugin::Iscsi).unwrap(), [PathBuf::from(&of.global)]);
    assert!(globals(&root, Plugin::Fc).unwrap().is_empty());
}

#[test]
fn a_disks_pods_are_in_the_mount_table() {
    if !Uid::effective().is_root() {
        return;
    }
    let (_dir, root) = root();
    let of = iscsi(&root, 0, false);
    prepare(&root, &of.record()).unwrap();
    let pod = root.join("pods/u1");
    let path = pod.join("volumes/kubernetes.io~iscsi/pv");
    fs::create_dir_all(&path).unwrap();
    let volume = SetUp {
        name: "data".to_owned(),
        plugin: Plugin::Iscsi,
        path: path.display().to_string(),
        work: Work::NetworkDisk(Box::new(of.clone())),
        nested: Vec::new(),
        fs_group: None,
    };
    assert!(!is_mounted(&of.record()).unwrap() && !has(&pod, &volume, &of).unwrap());
    assert!(has_any(&pod) && !has_any(&root));
    let global = Path::new(&of.global);
    mount(Some("disk"), global, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let bound = mount(Some(global), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>);
    let held = on_disk(&root);
    let has_it = has(&pod, &volume, &of);
    // While it is mounted, what is inside is the disk's.
    let again = prepare(&root, &of.record());
    let inside = global.join(ISCSI_FILE).exists();
    umount2(&path, MntFlags::empty()).unwrap();
    let free = on_disk(&root);
    unmount(&of.record()).unwrap();
    bound.unwrap();
    assert!(again.unwrap());
    let pods = |of: &NetworkDisk, disk: OnDisk| disk[&of.key()].pods.iter().cloned().collect::<Vec<_>>();
    assert_eq!(pods(&of, held.unwrap()), ["u1".into()]);
    assert!(pods(&of, free.unwrap()).is_empty() && has_it.unwrap() && !inside);
    assert!(!global.exists());
}
