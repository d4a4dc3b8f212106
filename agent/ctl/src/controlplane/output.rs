//! The files of the output.
//!
//! Invariants: before the first file is written it is known that none of them is there; a file with a key is for its owner alone from
//! its first byte on; a file's content is on the disk before the next one is written; an output that could not be written whole leaves
//! no file.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::failure::ControlplaneError;

/// A file of the output.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct OutputFile {
    /// Below the output's directory.
    pub(super) path: String,
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) text: String,
}

impl OutputFile {
    /// A file that holds a key, a token, or a credential.
    pub(super) fn secret(path: impl Into<String>, text: impl Into<String>) -> OutputFile {
        OutputFile { path: path.into(), mode: 0o600, text: text.into() }
    }

    /// A file that anybody may read.
    pub(super) fn public(path: impl Into<String>, text: impl Into<String>) -> OutputFile {
        OutputFile { path: path.into(), mode: 0o644, text: text.into() }
    }
}

/// Writes them into a directory, which need not be there.
///
/// # Errors
/// One of them is there, and none was written; or one cannot be written, and those before it are removed.
pub(super) fn write(dir: &Path, files: &[OutputFile]) -> Result<(), ControlplaneError> {
    let there = files.iter().map(|file| dir.join(&file.path)).find(|path| path.symlink_metadata().is_ok());
    if let Some(path) = there {
        return Err(ControlplaneError::Exists(path));
    }
    for (number, file) in files.iter().enumerate() {
        let path = dir.join(&file.path);
        let written = path.parent().map_or(Ok(()), make_directory).and_then(|()| create(&path, file));
        if let Err(why) = written {
            // A part of an output is of no use, holds keys, and stands in the way of the next run.
            for earlier in &files[..number] {
                let _ = fs::remove_file(dir.join(&earlier.path));
            }
            return Err(ControlplaneError::Write { path, why: why.to_string() });
        }
    }
    Ok(())
}

fn make_directory(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn create(path: &Path, file: &OutputFile) -> io::Result<()> {
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(file.mode).open(path)?;
    let written = opened.write_all(file.text.as_bytes()).and_then(|()| opened.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_are_for_their_owner_and_never_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let files = [OutputFile::public("a/b.crt", "public"), OutputFile::secret("a/b.key", "secret")];
        write(&out, &files).unwrap();
        let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a/b.key"), mode("a"), mode("a/b.crt") & 0o600), (0o600, 0o700, 0o600));
        // One that is there keeps the others from being written, also if it is a link that leads nowhere.
        std::os::unix::fs::symlink("nowhere", out.join("link")).unwrap();
        for there in ["a/b.key", "link"] {
            let again = [OutputFile::public("new", "x"), OutputFile::secret(there, "x")];
            let error = write(&out, &again).unwrap_err();
            assert!(matches!(&error, ControlplaneError::Exists(path) if path.ends_with(there)), "{error}");
            assert!(!out.join("new").exists());
        }
        assert_eq!(fs::read_to_string(out.join("a/b.key")).unwrap(), "secret");
        // One that cannot be written takes those before it away, and nothing else.
        let half = [OutputFile::secret("c/new", "x"), OutputFile::public("a/b.crt/c", "x")];
        let error = write(&out, &half).unwrap_err();
        assert_eq!(error.exit_code(), crate::failure::NO, "{error}");
        assert!(!out.join("c/new").exists());
        assert_eq!(fs::read_to_string(out.join("a/b.crt")).unwrap(), "public");
    }
}
