//! A directory of this node, mounted at a volume's path (`local`, and where the node has the disks of other machines).
//!
//! In: a [`Bind`]. Out: a bind mount below the pod's directory, and what people should know about it. Invariants: what is
//! mounted already stays; the group is set before the mount, so that what is mounted is finished; who has the volume is
//! what the mount table says, also after a restart. Upstream: pkg/volume/local.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use agent_volumes::SetUp;
use agent_volumes::bind::Bind;
use agent_volumes::mount_table::{self, MountPoint};
use agent_volumes::plugin::Plugin;
use nix::mount::{MsFlags, mount};

use super::{DIR_MODE, SetFsGroup, VOLUMES, VolumeError, mounts, no_way_up, ownership, refused};
use crate::files::{self, FilesError};

/// What of a mount can be set for a bind mount alone (mount(8)). Those without a flag are what holds anyway.
const OPTIONS: &[(&str, MsFlags)] = &[
    ("ro", MsFlags::MS_RDONLY),
    ("rw", MsFlags::empty()),
    ("defaults", MsFlags::empty()),
    ("bind", MsFlags::empty()),
    ("suid", MsFlags::empty()),
    ("dev", MsFlags::empty()),
    ("exec", MsFlags::empty()),
    ("nosuid", MsFlags::MS_NOSUID),
    ("nodev", MsFlags::MS_NODEV),
    ("noexec", MsFlags::MS_NOEXEC),
    ("noatime", MsFlags::MS_NOATIME),
    ("nodiratime", MsFlags::MS_NODIRATIME),
    ("relatime", MsFlags::MS_RELATIME),
];

/// Mounts the directory.
pub(super) fn mount_at(
    pod_dir: &Path,
    volume: &SetUp,
    work: &Bind,
    give: SetFsGroup<'_>,
) -> Result<Option<String>, VolumeError> {
    let (source, path) = (Path::new(&work.source), Path::new(&volume.path));
    let flags = flags(work)?;
    check(source)?;
    let table = mounts()?;
    if mount_table::kind_at(&table, &volume.path).is_some() {
        // An agent that was killed in between may have left it writable.
        return restrict(path, flags).map(|()| None);
    }
    let others = others(&table, pod_dir, path);
    if work.one_pod && !others.is_empty() {
        return Err(refused(
            "volume uses the ReadWriteOncePod access mode and is already in use by another pod".to_owned(),
        ));
    }
    let mut warning = None;
    if let Some(group) = volume.fs_group {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let found = fs::metadata(source).map_err(FilesError::at("stat", source))?.gid();
        // As upstream: of other volumes the last pod's group counts.
        let kept = !others.is_empty() && volume.plugin == Plugin::Local;
        if kept && found != group {
            warning = Some(format!(
                "The requested fsGroup is {group}, but the volume {name} has GID {found}. The volume may not be shareable."
            ));
        }
        let skipped = work.by_root && ownership::is_given(source, group);
        if !kept && !work.read_only && !skipped {
            give(source, group)?;
        }
    }
    for directory in [Some(pod_dir), Some(&pod_dir.join(VOLUMES)), path.parent()].into_iter().flatten() {
        files::make_dir(directory, DIR_MODE)?;
    }
    files::make_dir(path, DIR_MODE)?;
    mount(Some(source), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|e| FilesError::at("bind mount", path)(e.into()))?;
    restrict(path, flags)?;
    Ok(warning)
}

fn flags(work: &Bind) -> Result<MsFlags, VolumeError> {
    let mut flags = if work.read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
    for option in work.options.iter().flat_map(|o| o.split(',')).filter(|o| !o.is_empty()) {
        let known = OPTIONS.iter().find(|(name, _)| *name == option);
        let (_, flag) = known.ok_or_else(|| {
            let names: Vec<&str> = OPTIONS.iter().map(|(name, _)| *name).collect();
            refused(format!("mount option {option:?} is none of a directory's: {}", names.join(", ")))
        })?;
        flags |= *flag;
    }
    Ok(flags)
}

/// The path is a directory's, by itself and not by way of another one's parent.
fn check(source: &Path) -> Result<(), VolumeError> {
    no_way_up(source)?;
    match fs::metadata(source) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(refused("only directory and block device are supported".to_owned())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(refused(format!("path {:?} does not exist", source.to_string_lossy())))
        }
        Err(e) => Err(FilesError::at("stat", source)(e).into()),
    }
}

fn restrict(path: &Path, flags: MsFlags) -> Result<(), VolumeError> {
    if flags.is_empty() {
        return Ok(());
    }
    let flags = flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
    let done = mount(None::<&str>, path, None::<&str>, flags, None::<&str>);
    Ok(done.map_err(|e| FilesError::at("remount", path)(e.into()))?)
}

/// Where other pods have the volume that is mounted at `path`.
fn others<'t>(table: &'t [MountPoint], pod_dir: &Path, path: &Path) -> Vec<&'t str> {
    let Some((pods, below)) = pod_dir.parent().zip(path.strip_prefix(pod_dir).ok()) else {
        return Vec::new();
    };
    let of_another = |mounted: &&str| {
        let Ok(rest) = Path::new(mounted).strip_prefix(pods) else { return false };
        let mut parts = rest.components();
        parts.next().is_some_and(|uid| !pod_dir.ends_with(uid)) && parts.as_path() == below
    };
    table.iter().map(|m| m.path.as_str()).filter(of_another).collect()
}

#[cfg(test)]
mod tests;
