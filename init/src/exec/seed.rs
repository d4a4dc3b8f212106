//! containerd's directory of a first boot, copied from the verified root; later, whether it holds all of it.
//!
//! Done before systemd runs, so that containerd is the first thing that systemd starts. The copy is made next to
//! its place and renamed when it is on disk, so that a power cut leaves either no directory or a whole one; one
//! that exists is never touched.

use super::DEGRADED;
use super::error::InitError;
use super::tree::{self, Copied};
use orlop_config::error_chain::chain;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::Path;

const SEED: &str = "/usr/share/orlop/containerd-seed";
const TARGET: &str = "/var/lib/containerd";
/// Where containerd keeps content, one file per digest.
const BLOBS: &str = "io.containerd.content.v1.content/blobs/sha256";

/// Copies it below `sysroot` if it is not there; the detail is for the ledger.
///
/// # Errors
/// It cannot be copied: what, and why.
pub fn run(sysroot: &Path) -> Result<String, InitError> {
    if Path::new(DEGRADED).exists() {
        return Ok("none: /var is volatile".into());
    }
    let below = |path: &str| sysroot.join(path.trim_start_matches('/'));
    match seed(&below(SEED), &below(TARGET)) {
        Ok(Seeded::Kept) => Ok("kept".into()),
        Ok(Seeded::NoSeed) => Ok("the image has none".into()),
        Ok(Seeded::Copied(c)) => Ok(format!("{} files, {} KiB", c.files, c.bytes / 1024)),
        Err(e) => {
            Err(InitError::Refused(format!("baked-in images cannot be unpacked to {TARGET}: {}", chain(&e))))
        }
    }
}

/// Are the images that this root bakes in in containerd's store? Its blobs are named by their digests, so the
/// names of the seed's blobs answer for their content.
///
/// # Errors
/// Some are missing.
pub fn check() -> Result<String, InitError> {
    missing(&Path::new(SEED).join(BLOBS), &Path::new(TARGET).join(BLOBS))
}

fn missing(ours: &Path, theirs: &Path) -> Result<String, InitError> {
    let names = |path: &Path| -> Result<BTreeSet<OsString>, InitError> {
        match fs::read_dir(path) {
            Ok(entries) => Ok(entries.flatten().map(|e| e.file_name()).collect()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(source) => Err(InitError::File { action: "read", path: path.display().to_string(), source }),
        }
    };
    let (ours, theirs) = (names(ours)?, names(theirs)?);
    match ours.difference(&theirs).count() {
        0 if ours.is_empty() => Ok("the image has none".into()),
        0 => Ok(format!("all {} blobs present", ours.len())),
        n => Err(InitError::Refused(format!(
            "{n} of {} blobs of the baked-in images are not in containerd's store (it was made by another version \
             of the image, or they were deleted); import them from /usr/share/orlop/images",
            ours.len()
        ))),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Seeded {
    /// containerd has state already.
    Kept,
    /// This image bakes nothing in.
    NoSeed,
    /// First boot.
    Copied(Copied),
}

fn seed(seed: &Path, target: &Path) -> Result<Seeded, tree::TreeError> {
    let fail = |path: &Path| {
        let path = path.to_path_buf();
        move |source| tree::TreeError { path, source }
    };
    let occupied = fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_some());
    if occupied {
        return Ok(Seeded::Kept);
    }
    if !seed.is_dir() {
        return Ok(Seeded::NoSeed);
    }
    let parent = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(fail(parent))?;
    let temporary = parent.join(".containerd.seed");
    match fs::remove_dir_all(&temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(&temporary)(e)),
        _ => {}
    }
    let copied = tree::copy(seed, &temporary)?;
    let dir = File::open(parent).map_err(fail(parent))?;
    nix::unistd::syncfs(&dir).map_err(|e| fail(parent)(e.into()))?;
    // Replaces an empty directory, and nothing else.
    fs::rename(&temporary, target).map_err(fail(target))?;
    dir.sync_all().map_err(fail(parent))?;
    Ok(Seeded::Copied(copied))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_once_then_kept() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (from, to) = (dir.path().join("seed"), dir.path().join("lib/containerd"));
        assert_eq!(seed(&from, &to).expect("nothing to do"), Seeded::NoSeed);
        fs::create_dir_all(from.join("blobs"))
            .and_then(|()| fs::write(from.join("blobs/x"), "abc"))
            .expect("seed");
        // A run that lost power in the middle, and the empty directory systemd makes for the service.
        fs::create_dir_all(dir.path().join("lib/.containerd.seed/half")).expect("fixture");
        fs::create_dir_all(&to).expect("fixture");
        assert_eq!(seed(&from, &to).expect("copied"), Seeded::Copied(Copied { files: 1, bytes: 3 }));
        assert_eq!(fs::read_to_string(to.join("blobs/x")).expect("file"), "abc");
        assert_eq!(fs::read_dir(dir.path().join("lib")).expect("dir").count(), 1);
        fs::write(to.join("blobs/x"), "changed").expect("pod's data");
        assert_eq!(seed(&from, &to).expect("kept"), Seeded::Kept);
        assert_eq!(fs::read_to_string(to.join("blobs/x")).expect("file"), "changed");
    }

    #[test]
    fn another_image_s_store_is_noticed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        assert_eq!(missing(&ours, &theirs).expect("fine"), "the image has none");
        fs::create_dir(&ours).and_then(|()| fs::write(ours.join("aa"), "")).expect("fixture");
        let error = missing(&ours, &theirs).expect_err("missing").to_string();
        assert!(error.starts_with("1 of 1 blobs"), "{error}");
        for name in ["aa", "bb"] {
            fs::create_dir_all(&theirs).and_then(|()| fs::write(theirs.join(name), "")).expect("fixture");
        }
        assert_eq!(missing(&ours, &theirs).expect("fine"), "all 1 blobs present");
    }
}
