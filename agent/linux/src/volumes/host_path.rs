//! hostPath: looks whether something of the host's is what the pod says, and makes it if the type says so.
//!
//! In: a path, a type. Out: nothing, or upstream's words, and on a read-only root the places that can be written to. Links
//! are followed, as they are the host's own.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use agent_volumes::bound::HostPathType;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::{VolumeError, refused};

/// Where pods make directories on nodes; those of them that are read-only are not offered.
const PLACES: [&str; 6] = ["/var", "/opt", "/srv", "/mnt", "/media", "/run"];

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
            made.map_err(|e| refused(not_made("mkdir", path, &e, is_writable)))
        }
        HostPathType::FileOrCreate if found.is_none() => {
            let made = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
            match made {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    Err(refused(not_made("open", path, &e, is_writable)))
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

/// Upstream's words; where the file system is read-only, also what can be written to instead.
fn not_made(call: &str, path: &Path, error: &io::Error, is_writable: impl Fn(&str) -> bool) -> String {
    let text = format!("{call} {}: {error}", path.display());
    let read_only = error.kind() == io::ErrorKind::ReadOnlyFilesystem;
    let places: Vec<&str> = PLACES.into_iter().filter(|place| read_only && is_writable(place)).collect();
    if places.is_empty() {
        return text;
    }
    format!("{text}; on this node pods can make directories and files below {}", places.join(", "))
}

fn is_writable(place: &str) -> bool {
    statvfs(place).is_ok_and(|stat| !stat.flags().contains(FsFlags::ST_RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_root_is_named_with_the_places_that_are_not() {
        let of = |code: i32| io::Error::from_raw_os_error(code);
        let (read_only, denied) = (of(nix::libc::EROFS), of(nix::libc::EACCES));
        let path = Path::new("/etc/vendor");
        let some = |place: &str| ["/var", "/opt"].contains(&place);
        assert_eq!(
            not_made("mkdir", path, &read_only, some),
            format!(
                "mkdir /etc/vendor: {read_only}; on this node pods can make directories and files below /var, /opt"
            )
        );
        assert_eq!(not_made("mkdir", path, &read_only, |_| false), format!("mkdir /etc/vendor: {read_only}"));
        assert_eq!(not_made("open", path, &denied, some), format!("open /etc/vendor: {denied}"));
    }

    #[test]
    fn what_is_mounted_read_only_is_no_place() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_writable(&dir.path().to_string_lossy()));
        assert!(!is_writable("/no/such/place"));
    }
}
