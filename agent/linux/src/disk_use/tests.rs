//! Amounts of real trees.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use nix::unistd::{Uid, setfsuid};

use super::*;

#[test]
fn a_tree_is_counted_once_and_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("volume");
    std::fs::create_dir_all(top.join("a/b")).unwrap();
    let file = top.join("a/b/file");
    std::fs::write(&file, vec![7_u8; 1 << 20]).unwrap();
    let before = tree(&top, Wall(5), LIMITS).unwrap();
    assert!(before.bytes >= 1 << 20 && before.bytes < 2 << 20, "{before:?}");
    assert_eq!((before.inodes, before.at), (4, Wall(5)));
    std::fs::hard_link(&file, top.join("again")).unwrap();
    std::os::unix::fs::symlink("/usr", top.join("link")).unwrap();
    let after = tree(&top, Wall(5), LIMITS).unwrap();
    assert_eq!(after.inodes, 5, "the link itself, not where it leads, and no second name");
    assert_eq!(after.bound, Bound::Exact);
    assert_eq!(tree(&dir.path().join("none"), Wall(5), LIMITS).unwrap_err().operation, "stat");
    assert_eq!(volume(&top, Wall(5)).unwrap().taken.unwrap(), after, "no file system of its own");
    let own = files_of(&top, Wall(5)).unwrap();
    assert_eq!(own.inodes, 2, "not what is below");
    assert_eq!(files_of(&dir.path().join("none"), Wall(5)), None);
}

#[test]
fn a_tree_is_counted_however_deep_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("volume");
    crate::remove_tree::tests::deep_tree(&top);
    let found = tree(&top, Wall(5), LIMITS).unwrap();
    assert_eq!(found.bound, Bound::Exact);
    assert!(found.bytes >= 1 << 20, "{found:?}");
    // The top, four times a hundred and the one above them, and the file.
    assert_eq!(found.inodes, 1 + 4 * 101 + 1);
    // A directory at depth d takes d names: all of them are 404 * 405 / 2 names.
    let names = 404 * 405 / 2;
    let within = |names| tree(&top, Wall(5), Limits { names, ..LIMITS }).unwrap();
    assert_eq!(within(names), found);
    let part = within(names - 1);
    assert_eq!((part.bound, part.inodes), (Bound::AtLeast, found.inodes - 1), "all but the innermost file");
    crate::remove_tree::remove_tree(&top).unwrap();
}

#[test]
fn a_tree_of_more_entries_than_are_counted_has_at_least_those() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("volume");
    std::fs::create_dir_all(top.join("a")).unwrap();
    for number in 0..8 {
        std::fs::write(top.join(format!("a/f{number}")), vec![7_u8; 4096]).unwrap();
    }
    let within = |entries| tree(&top, Wall(5), Limits { entries, ..LIMITS }).unwrap();
    // The top is no entry of it.
    let whole = within(9);
    assert_eq!((whole.bound, whole.inodes), (Bound::Exact, 10));
    let part = within(8);
    assert_eq!((part.bound, part.inodes, part.at), (Bound::AtLeast, 9, Wall(5)));
    assert!(part.bytes >= 7 * 4096 && part.bytes < whole.bytes, "{part:?}");
    // Many names of one file are many entries.
    for number in 0..8 {
        std::fs::hard_link(top.join("a/f0"), top.join(format!("h{number}"))).unwrap();
    }
    assert_eq!(within(16).bound, Bound::AtLeast);
    assert_eq!((within(17).bound, within(17).inodes), (Bound::Exact, 10));
}

#[test]
fn what_cannot_be_looked_into_is_not_taken_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("volume");
    std::fs::create_dir_all(top.join("closed/below")).unwrap();
    std::fs::create_dir(top.join("open")).unwrap();
    std::fs::write(top.join("open/file"), vec![7_u8; 1 << 16]).unwrap();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    mode(dir.path(), 0o755);
    mode(&top.join("closed"), 0);
    // Root may look into everything, but for a thread whose files are another user's.
    let found = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            if Uid::effective().is_root() {
                setfsuid(Uid::from_raw(65534));
            }
            tree(&top, Wall(5), LIMITS).unwrap()
        });
        looks.join().unwrap()
    });
    mode(&top.join("closed"), 0o700);
    assert_eq!((found.bound, found.inodes), (Bound::AtLeast, 4), "all but what is below the closed one");
    assert!(found.bytes >= 1 << 16, "{found:?}");
}

#[test]
fn file_systems_have_a_size() {
    let fs = filesystem(Path::new("/"), Wall(5)).unwrap();
    assert!(fs.capacity_bytes > 0 && fs.capacity_bytes >= fs.used_bytes && fs.at == Wall(5));
    let dev = volume(Path::new("/dev"), Wall(5)).unwrap().taken.unwrap();
    assert!(dev.inodes > 1, "a file system of its own: {dev:?}");
}
