//! Finds the root file system of native nodes.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::protocol::RootSource;
use crate::run::cache_dir;

/// Overrides the image's root with an unpacked tree (for work on the harness itself).
pub const ROOT_VARIABLE: &str = "ORLOP_E2E_ROOT";

/// The image's slot A of the test profile, or the tree that [`ROOT_VARIABLE`] names.
///
/// # Errors
/// If neither exists: the target to build.
pub fn find() -> Result<RootSource> {
    if let Some(dir) = std::env::var_os(ROOT_VARIABLE) {
        let dir = PathBuf::from(dir);
        anyhow::ensure!(dir.join("usr").is_dir(), "{ROOT_VARIABLE}={} is no root", dir.display());
        return Ok(RootSource::Dir(dir));
    }
    let erofs = cache_dir().join("image/test/root.erofs");
    anyhow::ensure!(
        erofs.exists(),
        "{} is missing: build it with `cargo run --bin orlop-image -- build --profile test`",
        erofs.display()
    );
    Ok(RootSource::Erofs(erofs))
}

/// The OCI runtime that the image ships.
#[must_use]
pub fn oci_runtime(root: &Path) -> String {
    ["/usr/bin/crun", "/usr/bin/runc", "/usr/sbin/runc"]
        .into_iter()
        .find(|p| root.join(p.trim_start_matches('/')).symlink_metadata().is_ok())
        .unwrap_or("runc")
        .to_owned()
}
