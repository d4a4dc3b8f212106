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
