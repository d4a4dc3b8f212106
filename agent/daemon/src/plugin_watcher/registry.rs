//! The directory of registration sockets, `<root>/plugins_registry`: its sockets, and hints that they changed.
//!
//! In: the directory. Out: sockets with their identities. Invariants: a scan follows no link, because plugins write here; the number of
//! scanned entries, sockets and levels is bounded; a new directory is scanned again after its watch begins, so that no socket in it is
//! missed. Upstream: pkg/kubelet/pluginmanager/pluginwatcher.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use agent_core::plugin_registrations::sockets::SocketId;
use agent_linux::files::{self, FilesError};
use agent_linux::path_watch::PathWatch;
use agent_linux::selinux;
use agent_volumes::selinux::PLUGINS_LABEL;
use futures_util::future::select_all;

use crate::pods::pod_dirs::chain;

/// Name of the registry below the kubelet's root.
pub(super) const REGISTRY: &str = "plugins_registry";
/// Directory of the plugins' own sockets.
pub(super) const PLUGINS: &str = "plugins";
/// Mode of both directories, as upstream's.
const DIR_MODE: u32 = 0o750;
/// Most scanned sockets; a node has some ten.
const SOCKETS_MAX: usize = 256;
/// Most scanned entries of all directories.
const ENTRIES_MAX: usize = 4096;
/// Most levels of directories below the registry.
const DEPTH_MAX: usize = 4;
/// Most directories with a watch; the timer scans the others.
const WATCHES_MAX: usize = 16;

/// Result of a scan of the registry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FoundSockets {
    pub(super) sockets: BTreeMap<String, SocketId>,
    directories: BTreeSet<PathBuf>,
    entries: usize,
}

/// Creates both directories.
pub(super) fn make_directories(root: &Path) -> Result<(), FilesError> {
    for directory in [root.join(REGISTRY), root.join(PLUGINS)] {
        files::make_dir(&directory, DIR_MODE)?;
        if selinux::is_enabled()
            && let Err(error) = selinux::set_label(&directory, PLUGINS_LABEL)
        {
            tracing::info!(error = %chain(&error), "plugins in containers without privileges may not come here");
        }
    }
    Ok(())
}

/// The sockets in a directory and below it, without names that begin with a dot.
pub(super) fn scan(registry: &Path) -> io::Result<FoundSockets> {
    let mut found = FoundSockets::default();
    found.look_into(registry, 0)?;
    Ok(found)
}

impl FoundSockets {
    fn look_into(&mut self, directory: &Path, depth: usize) -> io::Result<()> {
        self.directories.insert(directory.to_owned());
        let mut below = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            self.entries += 1;
            if self.entries > ENTRIES_MAX || self.sockets.len() >= SOCKETS_MAX {
                return Ok(());
            }
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // The entry has vanished since the listing.
            let Ok(meta) = std::fs::symlink_metadata(entry.path()) else { continue };
            if meta.file_type().is_socket() {
                let changed = meta.ctime().saturating_mul(1_000_000_000).saturating_add(meta.ctime_nsec());
                self.sockets.insert(entry.path().display().to_string(), (meta.ino(), changed));
            } else if meta.is_dir() {
                below.push(entry.path());
            }
        }
        if depth < DEPTH_MAX {
            for path in below {
                // A directory that has vanished or cannot be read counts as empty; the scan continues with the others.
                let _ = self.look_into(&path, depth + 1);
            }
        }
        Ok(())
    }
}

/// Hints that the registry changed.
#[derive(Default)]
pub(super) struct Hints {
    watches: BTreeMap<PathBuf, PathWatch>,
    /// Directories whose watch broke: the timer scans them.
    broken: BTreeSet<PathBuf>,
}

impl Hints {
    /// Watches these directories, and no others; true if a watch is new.
    pub(super) fn watch(&mut self, found: &FoundSockets) -> bool {
        self.watches.retain(|path, _| found.directories.contains(path));
        self.broken.retain(|path| found.directories.contains(path));
        let mut is_new = false;
        for path in &found.directories {
            let is_known = self.watches.contains_key(path) || self.broken.contains(path);
            if is_known || self.watches.len() >= WATCHES_MAX {
                continue;
            }
            match PathWatch::new(path) {
                Ok(watch) => {
                    self.watches.insert(path.clone(), watch);
                    is_new = true;
                }
                Err(error) => tracing::debug!(error = %chain(&error), "plugins are noticed by rescans only"),
            }
        }
        is_new
    }

    /// Waits for a change; never returns without a watch. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        if self.watches.is_empty() {
            return std::future::pending().await;
        }
        let changes = self.watches.iter_mut().map(|(path, watch)| {
            Box::pin(async move { watch.changed().await.map(drop).map_err(|error| (path.clone(), error)) })
        });
        let (first, _, others) = select_all(changes).await;
        drop(others);
        if let Err((path, error)) = first {
            tracing::warn!(error = %chain(&error), "plugins are noticed by rescans only");
            self.watches.remove(&path);
            self.broken.insert(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_are_found_at_all_levels_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |below: &str| dir.path().join(below);
        std::fs::create_dir_all(at("registry/sub/deep")).unwrap();
        std::fs::create_dir_all(at("registry/.hidden")).unwrap();
        std::fs::create_dir(at("outside")).unwrap();
        let bound = [
            "registry/a",
            "registry/.b",
            "registry/sub/c",
            "registry/sub/deep/d",
            "registry/.hidden/e",
            "outside/f",
        ];
        let _listeners = bound.map(|path| UnixListener::bind(at(path)).unwrap());
        std::fs::write(at("registry/file"), "").unwrap();
        std::os::unix::fs::symlink(at("outside"), at("registry/link")).unwrap();
        std::os::unix::fs::symlink(at("outside/f"), at("registry/socket-link")).unwrap();
        let found = scan(&at("registry")).unwrap();
        let paths: Vec<&String> = found.sockets.keys().collect();
        let expected = ["registry/a", "registry/sub/c", "registry/sub/deep/d"];
        assert_eq!(paths, expected.map(|path| at(path).display().to_string()).iter().collect::<Vec<_>>());
        assert_eq!(found.directories.len(), 3);
        assert!(scan(&at("none")).is_err());
    }

    #[tokio::test]
    async fn a_socket_in_a_subdirectory_gives_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let mut hints = Hints::default();
        assert!(hints.watch(&scan(dir.path()).unwrap()));
        assert!(!hints.watch(&scan(dir.path()).unwrap()));
        let _listener = UnixListener::bind(dir.path().join("sub/a")).unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(10), hints.changed()).await.unwrap();
    }
}
