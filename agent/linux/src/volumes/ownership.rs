//! fsGroup: everything in a volume becomes a group's, and the group may read it (and write it, if the volume is no
//! read-only one).
//!
//! In: a directory, a group. Out: changed owners and modes. Links are not followed. Upstream: pkg/volume/volume_linux.go.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use crate::files::FilesError;

/// Deeper trees are refused.
const DEPTH_MAX: usize = 1000;

/// Gives `path` and everything in it to `group`, the innermost first.
pub(super) fn give(path: &Path, group: u32, read_only: bool) -> Result<(), FilesError> {
    give_tree(path, group, read_only, 0)
}

/// The root of a volume is the group's already, as [`give`] leaves it. Upstream: requiresPermissionChange.
pub(super) fn is_given(path: &Path, group: u32) -> bool {
    std::fs::metadata(path).is_ok_and(|found| {
        let (mode, wanted) = (found.mode() & 0o7777, 0o2770);
        found.is_dir() && found.gid() == group && mode & wanted == wanted
    })
}

fn give_tree(path: &Path, group: u32, read_only: bool, depth: usize) -> Result<(), FilesError> {
    if depth > DEPTH_MAX {
        return Err(super::invalid("chown", path, format!("deeper than {DEPTH_MAX} directories")));
    }
    let found = std::fs::symlink_metadata(path).map_err(FilesError::at("stat", path))?;
    if found.is_dir() {
        for entry in std::fs::read_dir(path).map_err(FilesError::at("readdir", path))? {
            let entry = entry.map_err(FilesError::at("readdir", path))?;
            give_tree(&entry.path(), group, read_only, depth + 1)?;
        }
    }
    lchown(path, None, Some(group)).map_err(FilesError::at("chown", path))?;
    if found.is_symlink() {
        return Ok(());
    }
    let mut mask = if read_only { 0o440 } else { 0o660 };
    if found.is_dir() {
        mask |= 0o2110;
    }
    let mode = Permissions::from_mode(found.permissions().mode() & 0o7777 | mask);
    std::fs::set_permissions(path, mode).map_err(FilesError::at("chmod", path))
}
