//! Carries out one `BootStep`. No decisions but these: what exists already is fine, what is optional may be absent.

use super::error::InitError;
use super::files;
use crate::plan::modules;
use crate::plan::node_files::VAR;
use crate::plan::step::{BootStep, Mount};
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use orlop_config::procfs::mounts;
use orlop_files::Durability;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// `MODULE_INIT_COMPRESSED_FILE` of linux/module.h, not yet in nix.
const MODULE_INIT_COMPRESSED_FILE: u32 = 4;

/// Applies all steps in order.
///
/// # Errors
/// The first step that failed.
pub fn apply_all(steps: &[BootStep]) -> Result<(), InitError> {
    steps
        .iter()
        .try_for_each(|step| apply(step).map_err(|source| InitError::Step { step: step.describe(), source }))
}

/// Applies one step.
///
/// # Errors
/// The kernel's answer.
pub fn apply(step: &BootStep) -> io::Result<()> {
    match step {
        BootStep::MakeDir(path) => fs::create_dir_all(path),
        BootStep::MakeStickyDir(path) => {
            fs::create_dir_all(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o1777))
        }
        BootStep::MakeLink { path, target } => match symlink(target, path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        },
        BootStep::RemoveFile(path) => remove_file(Path::new(path)),
        BootStep::WriteFile { path, mode, content } => write_file(path, *mode, content),
        BootStep::PlaceFile(file) => files::place(Path::new(VAR), file),
        BootStep::RemovePlacedFile { below_var, .. } => files::remove(Path::new(VAR), below_var),
        BootStep::Mount(m) => mount_one(m),
        BootStep::Bind { from, to } => flags_mount(from, to, MsFlags::MS_BIND),
        BootStep::Move { from, to } => flags_mount(from, to, MsFlags::MS_MOVE),
        BootStep::LoadModule { path, compressed } => load_module(path, *compressed),
    }
}

/// Applies one step after the hand-over, when the state partition is on /var.
///
/// # Errors
/// The kernel's answer.
pub(super) fn apply_handed_over(step: &BootStep) -> io::Result<()> {
    let var = Path::new("/var");
    match step {
        BootStep::PlaceFile(file) => files::place(var, file),
        BootStep::RemovePlacedFile { below_var, .. } => files::remove(var, below_var),
        other => apply(other),
    }
}

/// Removes a file; one that is absent is fine.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The text of a file that has to be there.
pub(super) fn read(path: &str) -> Result<String, InitError> {
    fs::read_to_string(path).map_err(|source| InitError::File { action: "read", path: path.into(), source })
}

fn flags_mount(from: &str, to: &str, flags: MsFlags) -> io::Result<()> {
    Ok(mount(Some(from), to, None::<&str>, flags, None::<&str>)?)
}

/// Written to a file next to it and renamed, so that no reader sees half of it, and on disk before it is renamed: ext4
/// would keep the name over a power cut and lose what is in the file. A file that is so already is left alone: on a
/// full disk a static pod of the last boot must not fail for want of a copy of itself.
fn write_file(path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    if is_written(path, mode, content) {
        return Ok(());
    }
    if let Some(dir) = Path::new(path).parent() {
        fs::create_dir_all(dir)?;
    }
    orlop_files::replace(Path::new(path), content, mode, Durability::Contents).map_err(|error| error.source)
}

fn is_written(path: &str, mode: u32, content: &[u8]) -> bool {
    let same = |m: fs::Metadata| {
        m.is_file() && m.permissions().mode() & 0o7777 == mode && m.len() == content.len() as u64
    };
    fs::symlink_metadata(path).is_ok_and(same) && fs::read(path).is_ok_and(|now| now == content)
}

fn mount_one(m: &Mount) -> io::Result<()> {
    let made = match fs::metadata(&m.target) {
        Ok(_) => Ok(()),
        Err(_) => fs::create_dir_all(&m.target),
    };
    if made.is_err() && m.optional {
        return Ok(());
    }
    made?;
    let data = Some(m.data.as_str()).filter(|d| !d.is_empty());
    match mount(Some(m.source.as_str()), m.target.as_str(), Some(m.fstype), m.flags, data) {
        Err(Errno::EBUSY) if already_mounted(m) => Ok(()),
        Err(Errno::ENODEV | Errno::ENOENT | Errno::EOPNOTSUPP) if m.optional => Ok(()),
        other => Ok(other?),
    }
}

/// The kernel mounts devtmpfs by itself with CONFIG_DEVTMPFS_MOUNT and says EBUSY to a second one.
fn already_mounted(m: &Mount) -> bool {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts(&text).iter().any(|mounted| mounted.target == m.target && mounted.fstype == m.fstype)
}

fn load_module(path: &str, compressed: bool) -> io::Result<()> {
    load_module_file(&File::open(path)?, compressed)
}

/// Loads a module; one that is loaded already is fine.
///
/// # Errors
/// The kernel's: no such device, not signed, of another kernel.
pub fn load_module_file(file: &File, compressed: bool) -> io::Result<()> {
    let flags = if compressed { MODULE_INIT_COMPRESSED_FILE } else { 0 };
    match finit_module(file, c"", ModuleInitFlags::from_bits_retain(flags)) {
        Err(Errno::EEXIST) => Ok(()),
        other => Ok(other?),
    }
}

/// Loads the list; returns how many were loaded and a note for each that was not (absent, no such device):
/// none of them is fatal, because the phase that needs one says so with its own object.
#[must_use]
pub fn load_modules(steps: &[BootStep]) -> (usize, Vec<String>) {
    let mut missing = Vec::new();
    for step in steps {
        if let (BootStep::LoadModule { path, .. }, Err(e)) = (step, apply(step)) {
            missing.push(format!("{} ({e})", modules::name(path)));
        }
    }
    (steps.len() - missing.len(), missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_are_replaced_whole_with_their_mode() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("a/b/secret").to_string_lossy().into_owned();
        for content in [&b"one"[..], b"two"] {
            let step = BootStep::WriteFile { path: path.clone(), mode: 0o600, content: content.to_vec() };
            apply(&step).expect("written");
            assert_eq!(fs::read(&path).expect("file"), content);
        }
        // What is so already is not written again: not even a new inode.
        let inode = |path: &str| fs::metadata(path).expect("file").ino();
        let (before, again) = (inode(&path), |mode, content: &[u8]| {
            apply(&BootStep::WriteFile { path: path.clone(), mode, content: content.to_vec() })
                .expect("written");
        });
        again(0o600, b"two");
        assert_eq!(inode(&path), before);
        again(0o644, b"two");
        assert_ne!(inode(&path), before);
        again(0o600, b"two");
        let mode = fs::metadata(&path).expect("file").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(fs::read_dir(dir.path().join("a/b")).expect("dir").count(), 1);
    }

    #[test]
    fn a_missing_module_is_a_note() {
        let steps = modules::Modules::parse("/nonexistent/dm-verity.ko").take(&[]);
        let (loaded, missing) = load_modules(&steps.0);
        assert_eq!(loaded, 0);
        assert!(missing[0].starts_with("dm-verity (No such file"), "{missing:?}");
    }

    #[test]
    fn a_failed_step_names_itself() {
        let steps = [BootStep::Bind { from: "/nonexistent".into(), to: "/nonexistent2".into() }];
        let error = apply_all(&steps).map_err(|e| orlop_config::error_chain::chain(&e));
        let text = error.expect_err("cannot work");
        assert!(text.starts_with("cannot bind /nonexistent on /nonexistent2: "), "{text}");
    }
}
