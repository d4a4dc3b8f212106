//! hostPath: looks whether something of the host's is what the pod says, and makes it if the type says so.
//!
//! In: a path, a type. Out: nothing, or upstream's words. Links are followed, as they are the host's own.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use agent_volumes::bound::HostPathType;

use super::{VolumeError, refused};

/// Looks, and makes.
pub(super) fn check(path: &Path, kind: HostPathType) -> Result<(), VolumeError> {
    let shown = path.display();
    if kind == HostPathType::Unset {
        return Ok(());
    }
    let found = std::fs::metadata(path).ok().map(|m| m.file_type());
    let is = |what: &str, right: bool| match right {
        true => Ok(()),
        false => Err(refused(format!("hostPath type check failed: {shown} is not {what}"))),
    };
    match kind {
        HostPathType::Unset => Ok(()),
        HostPathType::DirectoryOrCreate if found.is_none() => {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
            made.map_err(|e| refused(format!("mkdir {shown}: {e}")))
        }
        HostPathType::FileOrCreate if found.is_none() => {
            let made = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
            match made {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    Err(refused(format!("open {shown}: {e}")))
                }
                _ => Ok(()),
            }
        }
        HostPathType::DirectoryOrCreate | HostPathType::Directory => {
            is("a directory", found.is_some_and(|t| t.is_dir()))
        }
        HostPathType::FileOrCreate | HostPathType::File => is("a file", found.is_some_and(|t| t.is_file())),
        HostPathType::Socket => is("a socket file", found.is_some_and(|t| t.is_socket())),
        HostPathType::CharDevice => is("a character device", found.is_some_and(|t| t.is_char_device())),
        HostPathType::BlockDevice => is("a block device", found.is_some_and(|t| t.is_block_device())),
    }
}
