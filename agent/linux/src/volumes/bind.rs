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

/// `nosymfollow` of mount(8), which nix does not name: `MS_NOSYMFOLLOW` of linux/mount.h.
const NOSYMFOLLOW: MsFlags = MsFlags::from_bits_retain(0x100);
/// `owner` and `group` of mount(8).
const OWNED: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);

/// What a mount(8) option sets or clears of a bind mount.
#[derive(Clone, Copy)]
enum Change {
    Sets(MsFlags),
    Clears(MsFlags),
}

/// Options of mount(8) that change a bind mount. The others belong to the file system or to its table, or they are
/// unknown: mount(8) and the kernel accept them for a bind mount, without an effect.
const OPTIONS: &[(&str, Change)] = &[
    ("ro", Change::Sets(MsFlags::MS_RDONLY)),
    ("rw", Change::Clears(MsFlags::MS_RDONLY)),
    ("nosuid", Change::Sets(MsFlags::MS_NOSUID)),
    ("suid", Change::Clears(MsFlags::MS_NOSUID)),
    ("nodev", Change::Sets(MsFlags::MS_NODEV)),
    ("dev", Change::Clears(MsFlags::MS_NODEV)),
    ("noexec", Change::Sets(MsFlags::MS_NOEXEC)),
    ("exec", Change::Clears(MsFlags::MS_NOEXEC)),
    ("noatime", Change::Sets(MsFlags::MS_NOATIME)),
    ("atime", Change::Clears(MsFlags::MS_NOATIME)),
    ("nodiratime", Change::Sets(MsFlags::MS_NODIRATIME)),
    ("diratime", Change::Clears(MsFlags::MS_NODIRATIME)),
    ("relatime", Change::Sets(MsFlags::MS_RELATIME)),
    ("norelatime", Change::Clears(MsFlags::MS_RELATIME)),
    ("strictatime", Change::Sets(MsFlags::MS_STRICTATIME)),
    ("nostrictatime", Change::Clears(MsFlags::MS_STRICTATIME)),
    ("nosymfollow", Change::Sets(NOSYMFOLLOW)),
    ("symfollow", Change::Clears(NOSYMFOLLOW)),
    ("owner", Change::Sets(OWNED)),
    ("group", Change::Sets(OWNED)),
    ("user", Change::Sets(OWNED.union(MsFlags::MS_NOEXEC))),
    ("users", Change::Sets(OWNED.union(MsFlags::MS_NOEXEC))),
];

/// Mounts the directory.
pub(super) fn mount_at(
    pod_dir: &Path,
    volume: &SetUp,
    work: &Bind,
    give: SetFsGroup<'_>,
) -> Result<Option<String>, VolumeError> {
    let (source, path) = (Path::new(&work.source), Path::new(&volume.path));
    let flags = flags(work);
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

/// Flags of the mount. Upstream sorts the options of a PersistentVolume, and of two that contradict each other the later one
/// holds. A volume that is read-only for its pod stays so.
fn flags(work: &Bind) -> MsFlags {
    let mut options: Vec<&str> = work.options.iter().map(String::as_str).collect();
    options.sort_unstable();
    let mut flags = MsFlags::empty();
    for option in options.iter().flat_map(|o| o.split(',')) {
        match OPTIONS.iter().find(|(name, _)| *name == option) {
            Some((_, Change::Sets(set))) => flags.insert(*set),
            Some((_, Change::Clears(cleared))) => flags.remove(*cleared),
            None => {}
        }
    }
    if work.read_only { flags | MsFlags::MS_RDONLY } else { flags }
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
