//! Paths in a volume, on a real file system; no test mounts anything.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;

struct WithinFixture {
    dir: tempfile::TempDir,
    volume: PathBuf,
}

impl WithinFixture {
    /// A volume `srv/vol` with the file `releases/1/here`, and the file `srv/secret` next to it.
    fn new() -> WithinFixture {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().canonicalize().unwrap().join("srv/vol");
        fs::create_dir_all(volume.join("releases/1")).unwrap();
        fs::write(volume.join("releases/1/here"), "1").unwrap();
        fs::write(volume.parent().unwrap().join("secret"), "host").unwrap();
        WithinFixture { dir, volume }
    }

    fn link(&self, target: impl AsRef<Path>, name: &str) {
        symlink(target, self.volume.join(name)).unwrap();
    }

    fn find(&self, path: &str) -> Result<u64, String> {
        found(Volume::of_host(&self.volume).unwrap().find(Path::new(path), None))
    }
}

/// The inode, or why there is none.
fn found(found: Result<OwnedFd, WalkError>) -> Result<u64, String> {
    found.map(|found| fstat(&found).unwrap().st_ino).map_err(|e| e.to_string())
}

fn inode(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// Stops a test's thread, also when the test fails.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn links_lead_where_the_host_sees_them_lead_within_the_volume() {
    let p = WithinFixture::new();
    let here = inode(p.volume.join("releases/1/here"));
    let alias = p.dir.path().canonicalize().unwrap().join("alias");
    symlink(&p.volume, &alias).unwrap();
    p.link(p.volume.join("releases/1"), "absolute");
    p.link(alias.join("releases/1"), "by-alias");
    p.link("releases", "relative");
    p.link("../vol/releases", "out-and-in");
    p.link("releases/../../../srv/vol/./releases//1", "far-out-and-in");
    p.link(p.volume.join("relative/1"), "to-a-link");
    for path in [
        "releases/1/here",
        "absolute/here",
        "relative/1/here",
        "out-and-in/1/here",
        "far-out-and-in/here",
        "to-a-link/here",
    ] {
        assert_eq!(p.find(path), Ok(here), "{path}");
    }
    // The volume's name in the pod's definition is a link of the host.
    let volume = Volume::of_host(&alias).unwrap();
    for path in ["by-alias/here", "absolute/here", "out-and-in/1/here"] {
        assert_eq!(found(volume.find(Path::new(path), None)), Ok(here), "{path}");
    }
    assert_eq!(p.find(""), Ok(inode(&p.volume)));
    p.link(&p.volume, "top");
    assert_eq!(p.find("top"), Ok(inode(&p.volume)));
    // The whole host as a volume.
    let root = Volume::of_host(Path::new("/")).unwrap();
    let below = p.volume.strip_prefix("/").unwrap();
    for path in ["releases/1/here", "absolute/here", "by-alias/here", "out-and-in/1/here"] {
        assert_eq!(found(root.find(&below.join(path), None)), Ok(here), "{path}");
    }
}

#[test]
fn no_link_leads_out_of_the_volume() {
    let p = WithinFixture::new();
    let above = p.volume.parent().unwrap().to_owned();
    let alias = above.join("alias");
    symlink(&p.volume, &alias).unwrap();
    fs::create_dir(above.join("volume")).unwrap();
    p.link(above.join("secret"), "absolute");
    p.link("../secret", "relative");
    p.link("/", "root");
    p.link("..", "up");
    p.link("/..", "above-root");
    p.link(above.join("volume"), "longer-name");
    p.link(alias.join("releases"), "by-a-link-outside");
    p.link("/proc/self/root", "magic");
    for path in [
        "absolute",
        "relative",
        "root",
        "up",
        "up/secret",
        "root/etc",
        "above-root",
        "longer-name",
        "by-a-link-outside",
        "magic",
        "magic/etc/passwd",
    ] {
        assert_eq!(p.find(path), Err("it leads out of the volume".to_owned()), "{path}");
    }
    // By the other name of the volume no parent is followed: it is another directory's.
    let volume = Volume::of_host(&alias).unwrap();
    p.link(alias.join("../vol"), "other-parent");
    assert_eq!(
        found(volume.find(Path::new("other-parent"), None)),
        Ok(inode(&p.volume)),
        "both have this parent"
    );
    fs::create_dir(above.join("deep")).unwrap();
    let deep = above.join("deep/alias");
    symlink(&p.volume, &deep).unwrap();
    p.link(deep.parent().unwrap().join("../vol"), "by-another-directory");
    let volume = Volume::of_host(&deep).unwrap();
    assert!(found(volume.find(Path::new("by-another-directory"), None)).is_err());
}

#[test]
fn directories_are_made_where_the_path_itself_lacks_them() {
    let p = WithinFixture::new();
    let mode = Mode::from_bits_truncate(0o2751);
    let make = |path: &str| {
        let volume = Volume::of_host(&p.volume).unwrap();
        found(volume.find(Path::new(path), Some(mode)))
    };
    p.link(p.volume.join("releases"), "absolute");
    make("absolute/2/x").unwrap();
    assert_eq!(make("absolute/2/x"), Ok(inode(p.volume.join("releases/2/x"))));
    for path in ["releases/2", "releases/2/x"] {
        assert_eq!(
            fs::metadata(p.volume.join(path)).unwrap().permissions().mode() & 0o7777,
            0o2751,
            "{path}"
        );
    }
    p.link("nowhere/else", "dangling");
    p.link(p.volume.parent().unwrap(), "out");
    for path in ["dangling", "dangling/x"] {
        assert!(make(path).unwrap_err().contains("No such file"), "{path}");
    }
    assert_eq!(make("out/made"), Err("it leads out of the volume".to_owned()));
    assert!(make("releases/1/here/x").unwrap_err().contains("Not a directory"));
    assert!(!p.volume.join("nowhere").exists() && !p.volume.parent().unwrap().join("made").exists());
}

#[test]
fn as_a_root_the_volume_is_all_there_is() {
    let p = WithinFixture::new();
    let here = inode(p.volume.join("releases/1/here"));
    p.link("/releases", "absolute");
    p.link("../../releases", "up");
    p.link(p.volume.join("releases"), "host");
    let find = |path: &str| found(Volume::as_root(&p.volume).unwrap().find(Path::new(path), None));
    for path in ["absolute/1/here", "up/1/here", "../releases/1/here", "/releases/1/here"] {
        assert_eq!(find(path), Ok(here), "{path}");
    }
    assert!(find("host").unwrap_err().contains("No such file"));
}

/// A container nests links of many names and has a process that renames: a walk of the kernel is then refused again and
/// again, with `EAGAIN`.
#[test]
fn every_walk_ends_whatever_a_container_nests_and_renames() {
    let p = WithinFixture::new();
    fs::create_dir(p.volume.join("a")).unwrap();
    fs::create_dir(p.volume.join("sub")).unwrap();
    let up_and_down = "a/../".repeat(800);
    for number in 0..38 {
        let last = if number == 37 { "sub".to_owned() } else { format!("x{}", number + 1) };
        p.link(format!("{up_and_down}{last}"), &format!("x{number}"));
    }
    p.link(format!("{}sub", "a/../".repeat(100)), "short");
    p.link("circle", "circle");
    let (one, two) = (p.volume.join("r1"), p.volume.join("r2"));
    fs::write(&one, "").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&one, &two).unwrap();
                fs::rename(&two, &one).unwrap();
            }
        });
        let _stop = Stop(&stop);
        let begun = Instant::now();
        for _ in 0..100 {
            assert_eq!(p.find("short"), Ok(inode(p.volume.join("sub"))));
            assert_eq!(p.find("x0"), Err("it leads through more than 1024 names".to_owned()));
            assert!(p.find("circle").unwrap_err().contains("symbolic link"));
        }
        assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    });
}

/// A directory is swapped for a link out of the volume all the time: the walk finds the directory's file or none.
#[test]
fn a_directory_that_is_swapped_for_a_link_leads_nowhere_else() {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    let p = WithinFixture::new();
    let above = p.volume.parent().unwrap();
    fs::create_dir_all(p.volume.join("d/x")).unwrap();
    fs::create_dir_all(above.join("x")).unwrap();
    p.link(above, "l");
    let (directory, link) = (p.volume.join("d"), p.volume.join("l"));
    let inside = inode(p.volume.join("d/x"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &directory, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        });
        let _stop = Stop(&stop);
        let mut reached = 0;
        for _ in 0..20_000 {
            match p.find("d/x") {
                Ok(found) => {
                    assert_eq!(found, inside);
                    reached += 1;
                }
                Err(why) => assert_eq!(why, "it leads out of the volume"),
            }
        }
        assert!(reached > 0);
    });
}
