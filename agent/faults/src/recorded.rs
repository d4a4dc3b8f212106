//! What an operation writes and syncs, in its order: what a power cut may leave of it is a beginning of that, or less.
//!
//! In: a directory, a closure. Out: its writes with their bytes, and its syncs.

use std::path::{Path, PathBuf};

use crate::{below, calls, listened};

/// One thing that a disk in a file is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// Bytes for a place.
    Write {
        /// File, below the directory.
        path: PathBuf,
        /// From the file's start, bytes.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// What was written to the file before is to be kept from here on.
    Sync {
        /// File, below the directory.
        path: PathBuf,
    },
}

/// Runs `act`, and answers what it writes and syncs below `root`. A write that the file system refuses and that is made again in
/// another way is there once.
///
/// # Panics
/// If `act` does, if it changes something below `root` in another way than by writes to a place, or if this kernel or sandbox does
/// not let a process listen to a filter.
pub fn recording<T: Send>(root: &Path, act: impl FnOnce() -> T + Send) -> (T, Vec<DiskEvent>) {
    let mut events: Vec<DiskEvent> = Vec::new();
    let mut other = None;
    let result = listened(act, |notification| {
        let call = below(notification, root)?;
        let path = call.path.clone();
        let event = match call.name {
            "pwrite" => {
                calls::placed(notification).map(|(offset, bytes)| DiskEvent::Write { path, offset, bytes })
            }
            "fsync" | "fdatasync" => Some(DiskEvent::Sync { path }),
            "openat" if calls::only_opens(notification) => return None,
            _ => None,
        };
        match event {
            Some(event) if events.last() != Some(&event) => events.push(event),
            Some(_) => {}
            None => {
                other.get_or_insert(call);
            }
        }
        None
    });
    if let Some(call) = other {
        panic!("{call} is no write to a place");
    }
    (result, events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io;
    use std::os::unix::fs::FileExt;

    #[test]
    fn writes_and_syncs_come_in_their_order() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("disk"), [0; 64]).expect("a file");
        let (result, events) = recording(dir.path(), || -> io::Result<()> {
            let file = File::options().write(true).open(dir.path().join("disk"))?;
            file.write_all_at(&[1, 2, 3], 7)?;
            file.write_all_at(&[4], 0)?;
            file.sync_data()?;
            file.write_all_at(&[5; 9], 50)
        });
        result.expect("nothing is refused");
        let path = || PathBuf::from("disk");
        let write = |offset, bytes: &[u8]| DiskEvent::Write { path: path(), offset, bytes: bytes.to_vec() };
        let sync = DiskEvent::Sync { path: path() };
        assert_eq!(events, [write(7, &[1, 2, 3]), write(0, &[4]), sync, write(50, &[5; 9])]);
        let kept = fs::read(dir.path().join("disk")).expect("read");
        assert_eq!((&kept[..2], &kept[7..10], kept[58]), (&[4, 0][..], &[1, 2, 3][..], 5));
    }

    #[test]
    #[should_panic(expected = "openat of disk is no write to a place")]
    fn a_file_that_is_emptied_is_said() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let _ = recording(dir.path(), || File::create(dir.path().join("disk")).map(drop));
    }

    #[test]
    #[should_panic(expected = "mkdir of new is no write to a place")]
    fn what_is_not_understood_is_said() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let _ = recording(dir.path(), || fs::create_dir(dir.path().join("new")));
    }
}
