//! Groups of files on a real file system; changing a group to any other needs root.

use std::os::unix::fs::{FileTypeExt, chown, lchown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::unistd::{Uid, mkfifo};

use super::*;

const GROUP: u32 = 4242;

/// Stops a test's threads, also when the test fails.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A walk without a look at its progress.
fn give(path: &Path, group: u32, read_only: bool) -> Result<(), FilesError> {
    super::give(path, group, read_only, &Progress::default())
}

/// Group and mode.
fn rights(path: impl AsRef<Path>) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.gid(), found.mode() & 0o7777)
}

fn file(path: &Path, mode: u32) {
    fs::write(path, "x").unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn everything_is_given_and_keeps_the_bits_that_it_has() {
    if !Uid::effective().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("volume");
    fs::create_dir_all(top.join("d")).unwrap();
    for path in [top.clone(), top.join("d")] {
        fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    }
    file(&top.join("plain"), 0o604);
    file(&top.join("d/setuid"), 0o4711);
    file(&dir.path().join("outside"), 0o600);
    fs::hard_link(top.join("plain"), top.join("d/hard")).unwrap();
    symlink(dir.path().join("outside"), top.join("link")).unwrap();
    mkfifo(&top.join("pipe"), Mode::S_IRUSR).unwrap();
    give(&top, GROUP, false).unwrap();
    let expected = [
        ("", 0o2770),
        ("d", 0o2770),
        ("plain", 0o664),
        ("d/hard", 0o664),
        ("d/setuid", 0o4771),
        ("pipe", 0o660),
        ("link", 0o777),
    ];
    for (name, mode) in expected {
        assert_eq!(rights(top.join(name)), (GROUP, mode), "{name}");
    }
    assert!(fs::symlink_metadata(top.join("pipe")).unwrap().file_type().is_fifo());
    assert_eq!(rights(dir.path().join("outside")), (0, 0o600));
    assert!(is_given(&top, GROUP) && !is_given(&top, GROUP + 1));
    // Again: nothing is written.
    let changed = |name: &str| {
        let found = fs::symlink_metadata(top.join(name)).unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let before = expected.map(|(name, _)| changed(name));
    give(&top, GROUP, false).unwrap();
    assert_eq!(expected.map(|(name, _)| changed(name)), before);
    // A volume that is only read; a single file is a volume, too.
    file(&top.join("new"), 0o200);
    lchown(top.join("link"), None, Some(0)).unwrap();
    give(&top, GROUP, true).unwrap();
    assert_eq!((rights(top.join("new")), rights(top.join("link"))), ((GROUP, 0o640), (GROUP, 0o777)));
    chown(top.join("new"), None, Some(0)).unwrap();
    give(&top.join("new"), GROUP, false).unwrap();
    assert_eq!(rights(top.join("new")), (GROUP, 0o660));
    assert_eq!(give(&top.join("none"), GROUP, false).unwrap_err().operation, "open");
}

#[test]
fn a_tree_of_any_width_and_depth_is_given() {
    if !Uid::effective().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("volume");
    crate::remove_tree::tests::deep_tree(&top);
    // More than one read has room for, and directories among files at several levels.
    for at in ["wide", "next/a-directory-with-a-long-name/a-directory-with-a-long-name"] {
        for number in 0..300 {
            fs::create_dir_all(top.join(at).join(format!("d{number}/e"))).unwrap();
            file(&top.join(at).join(format!("f{number}")), 0o600);
        }
    }
    give(&top, GROUP, false).unwrap();
    let mut seen = 0;
    let mut left = vec![open(&top, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()).unwrap()];
    while let Some(directory) = left.pop() {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(&directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.unwrap();
            let found = fstatat(&directory, entry.file_name(), AtFlags::AT_SYMLINK_NOFOLLOW).unwrap();
            if entry.file_name() == c".." {
                continue;
            }
            seen += 1;
            assert_eq!(found.st_gid, GROUP, "{:?}", entry.file_name());
            if entry.file_type() == FileType::Directory && entry.file_name() != c"." {
                left.push(open_below(directory.as_fd(), entry.file_name(), OFlag::O_RDONLY).unwrap());
            }
        }
    }
    assert!(seen > 4 * 101 + 2 * 900, "{seen}");
}

#[test]
fn deeper_directories_than_the_walk_goes_are_passed_over() {
    if !Uid::effective().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("volume");
    fs::create_dir_all(top.join("a/b/c/d")).unwrap();
    file(&top.join("z"), 0o600);
    give_levels(&top, Rights { group: GROUP, read_only: false }, 3, &Progress::default()).unwrap();
    let groups = ["", "a", "a/b", "a/b/c", "a/b/c/d", "z"].map(|path| rights(top.join(path)).0);
    assert_eq!(groups, [GROUP, GROUP, GROUP, GROUP, 0, GROUP]);
}

#[test]
fn directories_that_were_closed_meanwhile_are_read_to_their_end() {
    if !Uid::effective().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("volume");
    let mut at = top.clone();
    // At each level directories and files, whichever of them comes first, and more levels than are open at once.
    for level in 0..2 * OPEN_MAX {
        for name in ["a", "m", "z"] {
            fs::create_dir_all(at.join(name).join("below")).unwrap();
            file(&at.join(format!("f{name}{level}")), 0o600);
        }
        at = at.join(["a", "m", "z"][level % 3]);
    }
    let progress = Progress::default();
    super::give(&top, GROUP, false, &progress).unwrap();
    // Three directories with one below and three files at each level, and each level is one of those of the level above.
    assert_eq!(progress.entries(), 2 * OPEN_MAX as u64 * 9);
    let mut waiting = vec![top];
    while let Some(path) = waiting.pop() {
        assert_eq!(rights(&path).0, GROUP, "{}", path.display());
        if path.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
}

#[test]
fn a_directory_without_places_to_go_to_is_read_on_by_number() {
    let dir = tempfile::tempdir().unwrap();
    // More than one read has room for.
    for number in 0..2_000 {
        fs::write(dir.path().join(format!("a-file-with-a-long-name-{number}")), "").unwrap();
    }
    let (progress, rights) = (Progress::default(), Rights { group: GROUP, read_only: false });
    let mut walk = Walk::new(dir.path(), rights, &progress);
    let opened = || open(dir.path(), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()).unwrap();
    let rest = |walk: &mut Walk<'_>, level: &mut Level| {
        let fd = level.fd.take().unwrap();
        let mut names: Vec<CString> = level.batch.drain(..).map(|entry| entry.name).collect();
        loop {
            let batch = walk.read(&fd).unwrap();
            if batch.is_empty() {
                return names;
            }
            names.extend(batch.into_iter().map(|entry| entry.name));
        }
    };
    let mut level = walk.level(opened()).unwrap();
    let all = rest(&mut walk, &mut level);
    assert_eq!(all.len(), 2_002);
    // What NFS may give out as the place behind an entry, and seeking refuses.
    for (taken, next) in [(1, u64::MAX), (700, 1 << 63), (2_002, u64::MAX), (3_000, u64::MAX)] {
        let mut level = Level { fd: None, id: (0, 0), batch: VecDeque::new(), taken, next };
        walk.reopen(&mut level, opened()).unwrap();
        let from = all.len().min(usize::try_from(taken).unwrap());
        assert_eq!(rest(&mut walk, &mut level), all[from..], "{taken}");
    }
}

#[test]
fn a_walk_ends_when_it_is_told_to_and_another_one_goes_on() {
    if !Uid::effective().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("volume");
    fs::create_dir(&top).unwrap();
    for number in 0..10 {
        file(&top.join(format!("f{number}")), 0o600);
    }
    let progress = Progress::default();
    progress.end();
    let error = super::give(&top, GROUP, false, &progress).unwrap_err();
    assert_eq!((error.source.kind(), progress.entries()), (io::ErrorKind::Interrupted, 0));
    assert!(!is_given(&top, GROUP), "what is not finished does not look so");
    let progress = Progress::default();
    super::give(&top, GROUP, false, &progress).unwrap();
    assert!(is_given(&top, GROUP));
    assert_eq!(progress.entries(), 10);
}

#[test]
fn an_entry_that_refuses_is_passed_over() {
    // Entries of sysctl refuse a group and a mode from every user.
    give(Path::new("/proc/sys/kernel"), GROUP, false).unwrap();
    let progress = Progress::default();
    let rights = Rights { group: GROUP, read_only: false };
    let mut walk = Walk::new(Path::new("/proc/sys/kernel"), rights, &progress);
    walk.give(&open("/proc/sys/kernel/ostype", OFlag::O_PATH, Mode::empty()).unwrap()).unwrap();
    let refused = walk.refused.unwrap();
    assert_eq!((refused.operation, refused.error, walk.passed_over), ("chown", Errno::EPERM, 2));
    assert_eq!(refused.path, Path::new("/proc/sys/kernel/ostype"));
}

/// A container swaps directories for links out of its volume while the walk goes on, and moves directories about.
#[test]
fn a_container_leads_the_walk_nowhere_else() {
    if !Uid::effective().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (top, host) = (dir.path().join("volume"), dir.path().join("host"));
    fs::create_dir_all(host.join("pki")).unwrap();
    let key = host.join("pki/key.pem");
    file(&key, 0o600);
    let before = [&key, &host.join("pki"), &host].map(rights);
    let pairs: Vec<(PathBuf, PathBuf)> = (0..500)
        .map(|number| {
            let pair = (top.join(format!("d{number:04}")), top.join(format!("l{number:04}")));
            fs::create_dir_all(&pair.0).unwrap();
            symlink(&host, &pair.1).unwrap();
            pair
        })
        .collect();
    // Deeper than the walk keeps directories open.
    let deep = top.join("deep");
    fs::create_dir_all(deep.join("x/".repeat(2 * OPEN_MAX))).unwrap();
    fs::create_dir(top.join("other")).unwrap();
    let (here, there) = (deep.join("x/x/x"), top.join("other/x"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (directory, link) in &pairs {
                    renameat2(AT_FDCWD, directory, AT_FDCWD, link, RenameFlags::RENAME_EXCHANGE).unwrap();
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&here, &there).unwrap();
                fs::rename(&there, &here).unwrap();
            }
        });
        for round in 0..25 {
            // Another group each time: all is to be changed.
            give(&top, GROUP + round % 2, false).unwrap();
            let now = [&key, &host.join("pki"), &host].map(rights);
            assert_eq!(now, before, "round {round}");
        }
    });
}
