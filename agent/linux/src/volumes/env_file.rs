//! Reads a file that a container may have left in its volume (`fileKeyRef`).
//!
//! In: the volume, a path inside of it. Out: the file's bytes. Invariants: the path is followed by `within.rs` as if
//! the volume were the root of the file system, so no link leads out, also if a container changes links meanwhile; only
//! a regular file is read, and no more than 1 MiB of it; no reader waits for a writer.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use agent_volumes::env_file::EnvFile;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstat};

use super::within::{Volume, WalkError, by_descriptor, kind};

/// Most that is read, bytes.
const SIZE_MAX: u64 = 1 << 20;

/// The file's bytes.
///
/// # Errors
/// In words for people: it cannot be opened or read, is no file, or is too large.
pub fn read(file: &EnvFile) -> Result<Vec<u8>, String> {
    let said = |e: Errno| e.desc().to_owned();
    let volume = Volume::as_root(Path::new(&file.root)).map_err(said)?;
    let found = volume.find(Path::new(&file.path), None).map_err(|e| match e {
        WalkError::Step(e) => said(e),
        other => other.to_string(),
    })?;
    if kind(&fstat(&found).map_err(said)?) != SFlag::S_IFREG {
        return Err("it is not a regular file".to_owned());
    }
    // The same file again, for reading.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let opened = open(by_descriptor(&found).as_str(), flags, Mode::empty()).map_err(said)?;
    let mut bytes = Vec::new();
    File::from(opened).take(SIZE_MAX + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > SIZE_MAX {
        return Err(format!("it has more than {SIZE_MAX} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn what_a_container_left_is_read_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("etc")).unwrap();
        fs::write(dir.path().join("secret"), "host").unwrap();
        fs::write(volume.join("etc/env"), "A='1'").unwrap();
        fs::write(volume.join("large"), vec![b'x'; (1 << 20) + 1]).unwrap();
        fs::write(volume.join("full"), vec![b'x'; 1 << 20]).unwrap();
        mkfifo(&volume.join("pipe"), Mode::S_IRWXU).unwrap();
        let link = |target: &str, name: &str| symlink(target, volume.join(name)).unwrap();
        link("etc/env", "near");
        link("/etc/env", "absolute");
        link("../secret", "up");
        link(&dir.path().join("secret").display().to_string(), "out");
        link("/proc/self/root/etc/passwd", "magic");
        link("circle", "circle");
        let found = |path: &str| {
            let root = volume.display().to_string();
            read(&EnvFile { root, path: path.to_owned() })
        };
        for path in ["etc/env", "/etc/env", "./etc//env", "near", "absolute"] {
            assert_eq!(found(path).as_deref(), Ok(&b"A='1'"[..]), "{path}");
        }
        assert_eq!(found("full").map(|bytes| bytes.len()), Ok(1 << 20));
        for (path, words) in [
            ("none", "No such file"),
            ("up", "No such file"),
            ("out", "No such file"),
            ("magic", "No such file"),
            ("circle", "symbolic link"),
            ("etc", "not a regular file"),
            ("pipe", "not a regular file"),
            ("large", "more than 1048576 bytes"),
        ] {
            let said = found(path).unwrap_err();
            assert!(said.contains(words), "{path}: {said}");
        }
        let gone = EnvFile { root: dir.path().join("none").display().to_string(), path: "x".to_owned() };
        assert!(read(&gone).unwrap_err().contains("No such file"));
    }
}
