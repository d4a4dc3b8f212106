//! Programs from Debian: etcd, the tools of kube-proxy, and a Go compiler for machines without one. Downloaded as files
//! from the suites of the image's newer packages, checked against `qemu-tests/controlplane/debs.json`, unpacked into the
//! cache.
//!
//! In: package names. Out: the directory of the unpacked files. Invariants: an existing directory
//! is complete, because it is renamed into place last; one run at a time fetches, the others find its result. The
//! cache's own lock cannot be used: a build has it while it fetches its compiler.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use orlop_image::arch::Arch;
use orlop_image::build::debs::{Archive, fetch_files, find_deb, unpack};
use orlop_image::lock::Deb;

use crate::say;

const LOCK: &str = include_str!("../../../controlplane/debs.json");

/// Unpacks `names` below `cache` (once); returns the directory.
///
/// # Errors
/// The archive does not have the packages, or not with the locked checksums.
pub fn unpacked(cache: &Path, names: &[&str]) -> Result<PathBuf> {
    let debs = locked(names)?;
    let last = debs.last().context("no package is asked for")?;
    let dir = cache.join(format!("{}-{}", last.name, last.version.replace(['~', ':'], "-")));
    if dir.is_dir() {
        return Ok(dir);
    }
    fs::create_dir_all(cache).with_context(|| format!("make {}", cache.display()))?;
    let lock = fs::File::create(cache.join("debs.lock")).context("make the lock of Debian's packages")?;
    let _locked =
        Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, e)| e).context("lock the packages")?;
    // Another run, or another thread of this one, may have finished meanwhile.
    if dir.is_dir() {
        return Ok(dir);
    }
    say::line(format!("  fetching {} from Debian", names.join(", ")));
    let partial = cache.join(format!("partial-{}", std::process::id()));
    let files = partial.join("files");
    fs::create_dir_all(&files).with_context(|| format!("make {}", files.display()))?;
    let log = cache.join("debs.log");
    let apt = cache.join("apt");
    let lock = "qemu-tests/controlplane/debs.json";
    let from = Archive { arch: Arch::HOST, apt: &apt, lock, update_lock: false, log: &log };
    for deb in fetch_files(&from, &debs, &files)? {
        let want = debs.iter().find(|d| d.name == deb.name).map(|d| d.version.as_str());
        if want != Some(deb.version.as_str()) {
            say::line(format!(
                "  {} {} is used: the locked version is no longer there",
                deb.name, deb.version
            ));
        }
        unpack(&find_deb(&files, &deb.name)?, &partial.join("root"), &log)?;
    }
    fs::rename(partial.join("root"), &dir).with_context(|| format!("rename to {}", dir.display()))?;
    fs::remove_dir_all(&partial).with_context(|| format!("remove {}", partial.display()))?;
    Ok(dir)
}

fn locked(names: &[&str]) -> Result<Vec<Deb>> {
    let all: Vec<Deb> = serde_json::from_str(LOCK).context("read controlplane/debs.json")?;
    names
        .iter()
        .map(|n| {
            all.iter().find(|d| d.name == *n).cloned().with_context(|| format!("{n} is not in debs.json"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::programs::PACKET_TOOLS;

    #[test]
    fn the_lock_has_digests() {
        let debs = locked(&["etcd-server", "golang-1.26-src", "golang-1.26-go"]).unwrap();
        assert!(debs.iter().all(|d| d.sha256.len() == 64));
        let tools = locked(&PACKET_TOOLS).unwrap();
        assert!(tools.iter().all(|d| d.sha256.len() == 64 && !d.version.is_empty()));
        assert!(locked(&["vim"]).is_err());
    }
}
