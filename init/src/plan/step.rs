//! Steps as data: every action of init on the machine, except reading.

use nix::mount::MsFlags;
use orlop_config::node::PlacedFile;

/// One thing to do. Paths are absolute in the initrd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootStep {
    /// A directory and its parents.
    MakeDir(String),
    /// A directory that everybody may write to (mode 1777).
    MakeStickyDir(String),
    /// A symbolic link, unless something is there already.
    MakeLink {
        /// Path of the link.
        path: String,
        /// What it points to.
        target: String,
    },
    /// Remove a file; one that is absent is fine.
    RemoveFile(String),
    /// A file with this content, mode in octal.
    WriteFile {
        /// Path of the file.
        path: String,
        /// Permission bits.
        mode: u32,
        /// Content.
        content: Vec<u8>,
    },
    /// A file that the configuration brings, on the state partition; no link is followed.
    PlaceFile(PlacedFile),
    /// Remove a file that an earlier configuration brought; one that is absent is fine.
    RemovePlacedFile {
        /// As the document named it.
        path: String,
        /// The same below /var.
        below_var: String,
    },
    /// Mount a file system (the target is made first).
    Mount(Mount),
    /// Bind one path on another that exists.
    Bind {
        /// Path that becomes visible at `to`.
        from: String,
        /// Path of the mount point.
        to: String,
    },
    /// Move a mount.
    Move {
        /// From.
        from: String,
        /// To.
        to: String,
    },
    /// Load a kernel module from a file.
    LoadModule {
        /// File.
        path: String,
        /// The kernel has to decompress it.
        compressed: bool,
    },
}

/// Bytes for a place of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskWrite {
    /// From the start of the device.
    pub offset: u64,
    /// Content.
    pub bytes: Vec<u8>,
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Device or name.
    pub source: String,
    /// Mount point.
    pub target: String,
    /// File system type.
    pub fstype: &'static str,
    /// Flags.
    pub flags: MsFlags,
    /// Options of the file system.
    pub data: String,
    /// The kernel may not have this file system (efivarfs on a BIOS machine): then nothing happens.
    pub optional: bool,
}

impl BootStep {
    /// The file that it writes or removes.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            BootStep::WriteFile { path, .. } | BootStep::RemoveFile(path) => Some(path),
            _ => None,
        }
    }

    /// The same step after the hand-over, when the new root is `/`. Only for steps of one path.
    #[must_use]
    pub fn handed_over(self) -> BootStep {
        let moved = |path: String| match path.strip_prefix(super::mounts::SYSROOT) {
            Some(below) if below.starts_with('/') => below.to_string(),
            _ => path,
        };
        match self {
            BootStep::MakeDir(path) => BootStep::MakeDir(moved(path)),
            BootStep::MakeStickyDir(path) => BootStep::MakeStickyDir(moved(path)),
            BootStep::MakeLink { path, target } => BootStep::MakeLink { path: moved(path), target },
            BootStep::RemoveFile(path) => BootStep::RemoveFile(moved(path)),
            BootStep::WriteFile { path, mode, content } => {
                BootStep::WriteFile { path: moved(path), mode, content }
            }
            other => other,
        }
    }

    /// For messages: what is done to which object.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            BootStep::MakeDir(path) | BootStep::MakeStickyDir(path) => format!("make directory {path}"),
            BootStep::MakeLink { path, .. } => format!("make link {path}"),
            BootStep::RemoveFile(path) | BootStep::RemovePlacedFile { path, .. } => format!("remove {path}"),
            BootStep::PlaceFile(file) => format!("write {}", file.path),
            BootStep::WriteFile { path, .. } => format!("write {path}"),
            BootStep::Mount(m) => format!("mount {} ({}) on {}", m.source, m.fstype, m.target),
            BootStep::Bind { from, to } => format!("bind {from} on {to}"),
            BootStep::Move { from, to } => format!("move mount {from} to {to}"),
            BootStep::LoadModule { path, .. } => format!("load module {path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_new_root_lose_their_first_part() {
        let remove = |path: &str| BootStep::RemoveFile(path.to_string());
        for (before, after) in [
            ("/sysroot/var/lib/orlop/a", "/var/lib/orlop/a"),
            ("/run/orlop/a", "/run/orlop/a"),
            ("/sysroots/a", "/sysroots/a"),
        ] {
            assert_eq!(remove(before).handed_over(), remove(after));
        }
        let link = BootStep::MakeLink { path: "/sysroot/var/run".into(), target: "/run".into() };
        assert_eq!(link.handed_over(), BootStep::MakeLink { path: "/var/run".into(), target: "/run".into() });
    }
}
