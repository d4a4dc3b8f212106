//! Files of rotated container logs: looked at, moved away and back, compressed, removed.
//!
//! In: paths of logs. Out: what is in their directories. Invariants: no line is lost by a step that fails or is cut off: a
//! file is removed only after what it became is whole and on disk, and nothing is ever renamed over another file. What is
//! no regular file is not touched: a pod that may write to the log directories could put a link there. Blocking; see
//! [`agent_kubelet_api::logs::rotation`] for the decisions.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use agent_kubelet_api::logs::rotation::{COMPRESSED, Policy, TEMPORARY, rotated_name};
use agent_types::time::Wall;
use flate2::Compression;
use flate2::write::GzEncoder;
use nix::fcntl::OFlag;

use crate::files::{self, FilesError};

/// The size of a log, bytes; `None` if it is not there.
///
/// # Errors
/// `stat` with the path, or there is something else than a file.
pub fn size(log: &Path) -> Result<Option<u64>, FilesError> {
    match std::fs::symlink_metadata(log) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(FilesError::at("stat", log)(e)),
        Ok(found) if found.is_file() => Ok(Some(found.len())),
        Ok(_) => Err(no_file(log)),
    }
}

/// What became of the files of earlier rotations.
#[derive(Debug, Default)]
pub struct Tidied {
    /// Files that could not be compressed stay as they are: a full disk must not keep the log from being rotated.
    pub failures: Vec<FilesError>,
}

/// Compresses and removes files of earlier rotations, as `policy` says.
///
/// # Errors
/// A directory that cannot be read, a file that cannot be removed.
pub fn tidy(log: &Path, policy: &Policy) -> Result<Tidied, FilesError> {
    let (directory, name) = parts(log)?;
    let names = files::visible_names(directory)?;
    let plan = policy.plan(name, names.iter().map(String::as_str));
    for name in &plan.remove {
        remove(&directory.join(name))?;
    }
    let mut tidied = Tidied::default();
    for name in &plan.compress {
        tidied.failures.extend(compress(&directory.join(name)).err());
    }
    Ok(tidied)
}

/// Moves a log away, to the name that it has at `now`, which is answered. Its writer goes on writing to it.
///
/// # Errors
/// `rename`, or there is a file of that name: it was rotated within this second.
pub fn set_aside(log: &Path, now: Wall) -> Result<PathBuf, FilesError> {
    let (directory, name) = parts(log)?;
    let rotated = directory.join(rotated_name(name, now));
    for taken in [rotated.clone(), with_ending(&rotated, COMPRESSED)] {
        if taken.symlink_metadata().is_ok() {
            return Err(FilesError::at("rename", &taken)(io::ErrorKind::AlreadyExists.into()));
        }
    }
    std::fs::rename(log, &rotated).map_err(FilesError::at("rename", log))?;
    Ok(rotated)
}

/// Gives a log its name back, unless its writer has made a new one: then both stay. True if it has it back.
///
/// # Errors
/// `link` or `unlink` with the path.
pub fn put_back(rotated: &Path, log: &Path) -> Result<bool, FilesError> {
    // A rename would replace a log that the writer made just now.
    match std::fs::hard_link(rotated, log) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        linked => linked.map_err(FilesError::at("link", log))?,
    }
    remove(rotated)?;
    Ok(true)
}

fn compress(rotated: &Path) -> Result<(), FilesError> {
    let (mut from, _) = open(rotated)?;
    let temporary = with_ending(rotated, TEMPORARY);
    let made = write_compressed(&mut from, rotated, &temporary);
    if made.is_err() {
        // Best effort: the next rotation removes it.
        let _ = std::fs::remove_file(&temporary);
        return made;
    }
    let compressed = with_ending(rotated, COMPRESSED);
    std::fs::rename(&temporary, &compressed).map_err(FilesError::at("rename", &temporary))?;
    remove(rotated)
}

fn write_compressed(from: &mut File, rotated: &Path, temporary: &Path) -> Result<(), FilesError> {
    let mode = from.metadata().map_err(FilesError::at("stat", rotated))?.permissions().mode();
    let to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode & 0o7777)
        .open(temporary)
        .map_err(FilesError::at("create", temporary))?;
    let mut encoder = GzEncoder::new(to, Compression::default());
    io::copy(from, &mut encoder).map_err(FilesError::at("compress", rotated))?;
    // On disk before the original is removed: a power cut must not take both.
    let to = encoder.finish().map_err(FilesError::at("write", temporary))?;
    to.sync_all().map_err(FilesError::at("sync", temporary))
}

fn open(path: &Path) -> Result<(File, u64), FilesError> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).bits();
    let file =
        OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(FilesError::at("open", path))?;
    let metadata = file.metadata().map_err(FilesError::at("stat", path))?;
    if metadata.is_file() { Ok((file, metadata.len())) } else { Err(no_file(path)) }
}

fn remove(path: &Path) -> Result<(), FilesError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(FilesError::at("unlink", path)(e)),
        _ => Ok(()),
    }
}

fn parts(log: &Path) -> Result<(&Path, &str), FilesError> {
    let name = log.file_name().and_then(|name| name.to_str());
    log.parent().zip(name).ok_or_else(|| FilesError::at("rotate", log)(io::ErrorKind::InvalidFilename.into()))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(ending);
    PathBuf::from(text)
}

fn no_file(path: &Path) -> FilesError {
    FilesError::at("rotate", path)(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use agent_types::failure::Class;
    use flate2::read::GzDecoder;

    use super::*;

    const DAY_S: i64 = 24 * 3600;

    fn at(day: i64) -> Wall {
        Wall(day * DAY_S * 1_000_000_000)
    }

    fn text(path: &Path) -> String {
        let mut text = String::new();
        let file = File::open(path).unwrap();
        if path.extension().is_some_and(|e| e == "gz") {
            GzDecoder::new(file).read_to_string(&mut text).unwrap();
        } else {
            (&file).read_to_string(&mut text).unwrap();
        }
        text
    }

    #[test]
    fn four_rotations_keep_the_newest_files_and_every_line_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        let policy = Policy::new(1, 4).unwrap();
        for day in 1..=4 {
            std::fs::write(&log, format!("day {day}\n")).unwrap();
            std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o640)).unwrap();
            assert_eq!(size(&log).unwrap(), Some(6));
            assert!(tidy(&log, &policy).unwrap().failures.is_empty());
            let rotated = set_aside(&log, at(day)).unwrap();
            assert_eq!(text(&rotated), format!("day {day}\n"), "not compressed yet");
        }
        assert_eq!(size(&log).unwrap(), None);
        let names = files::visible_names(dir.path()).unwrap();
        assert_eq!(
            names,
            ["0.log.19700103-000000.gz", "0.log.19700104-000000.gz", "0.log.19700105-000000"],
            "with the log these are four"
        );
        let all: String = names.iter().map(|name| text(&dir.path().join(name))).collect();
        assert_eq!(all, "day 2\nday 3\nday 4\n");
        let mode = dir.path().join(&names[0]).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "who may read the log may read this");
    }

    #[test]
    fn what_was_cut_off_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        // Cut off while it was compressed, and after that but before the original went.
        for (name, contents) in [
            ("0.log.19700102-000000", "one"),
            ("0.log.19700102-000000.gz", "stands for the whole"),
            ("0.log.19700103-000000", "two"),
            ("0.log.19700103-000000.tmp", "half"),
        ] {
            std::fs::write(path(name), contents).unwrap();
        }
        tidy(&path("0.log"), &Policy::new(1, 5).unwrap()).unwrap();
        let names = files::visible_names(dir.path()).unwrap();
        assert_eq!(names, ["0.log.19700102-000000.gz", "0.log.19700103-000000.gz"]);
        assert_eq!(text(&path(&names[1])), "two");
    }

    #[test]
    fn a_name_goes_back_unless_the_writer_made_a_new_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        std::fs::write(&log, "old").unwrap();
        let mut writer = OpenOptions::new().append(true).open(&log).unwrap();
        let rotated = set_aside(&log, at(1)).unwrap();
        assert!(put_back(&rotated, &log).unwrap());
        writer.write_all(b"er").unwrap();
        assert_eq!((text(&log).as_str(), rotated.exists()), ("older", false));
        let rotated = set_aside(&log, at(1)).unwrap();
        std::fs::write(&log, "new").unwrap();
        assert!(!put_back(&rotated, &log).unwrap());
        assert_eq!((text(&log), text(&rotated)), ("new".to_owned(), "older".to_owned()));
    }

    #[test]
    fn no_file_is_lost_to_a_second_rotation_in_the_same_second_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        for taken in ["0.log.19700102-000000", "0.log.19700102-000000.gz"] {
            std::fs::write(&log, "new").unwrap();
            std::fs::write(dir.path().join(taken), "old").unwrap();
            assert_eq!(set_aside(&log, at(1)).unwrap_err().class(), Class::AlreadyExists);
            assert_eq!(text(&log), "new");
            std::fs::remove_file(dir.path().join(taken)).unwrap();
        }
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "secret").unwrap();
        let link = dir.path().join("0.log.19700102-000000");
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let tidied = tidy(&log, &Policy::new(1, 5).unwrap()).unwrap();
        assert_eq!(tidied.failures.len(), 1);
        assert_eq!(files::visible_names(dir.path()).unwrap(), ["0.log", "0.log.19700102-000000", "secret"]);
        std::fs::remove_file(&log).unwrap();
        std::os::unix::fs::symlink(&secret, &log).unwrap();
        assert_eq!(size(&log).unwrap_err().class(), Class::Invalid);
    }
}
