//! Documents in a directory: of a mounted drive, or of the machine that publishes.
//!
//! The drive may be a stranger's: a link that leads out of the directory is not followed, and only files are read.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use orlop_config::release::DOCUMENT_BYTES_MAX;

use super::source::{DocumentSource, SourceError};

/// A directory.
#[derive(Clone, Debug)]
pub struct MountedDirectory {
    root: PathBuf,
}

impl MountedDirectory {
    /// The directory `root`.
    #[must_use]
    pub fn new(root: &Path) -> MountedDirectory {
        MountedDirectory { root: root.to_owned() }
    }

    fn read(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let failed = |path: &Path, source| SourceError::Read { path: path.to_owned(), source };
        let root = fs::canonicalize(&self.root).map_err(|e| failed(&self.root, e))?;
        let named = root.join(path);
        let file = match fs::canonicalize(&named) {
            Ok(file) => file,
            Err(e) if is_absence(&e) => return Ok(None),
            Err(e) => return Err(failed(&named, e)),
        };
        let is_file = fs::metadata(&file).map_err(|e| failed(&file, e))?.is_file();
        if !is_file || !file.starts_with(&root) {
            return Err(SourceError::NoFile { path: named });
        }
        let bytes = read_bounded(&file).map_err(|e| failed(&file, e))?;
        if bytes.len() > DOCUMENT_BYTES_MAX {
            let place = named.display().to_string();
            return Err(SourceError::TooLarge { place, bytes_max: DOCUMENT_BYTES_MAX });
        }
        Ok(Some(bytes))
    }
}

impl DocumentSource for MountedDirectory {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    // A small file of a local drive: the future is ready when it is made.
    fn document(&self, path: &str) -> impl Future<Output = Result<Option<Vec<u8>>, SourceError>> + Send {
        std::future::ready(self.read(path))
    }
}

/// No file of this name.
pub(crate) fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// At most one byte more than a document may have; [`ErrorKind::InvalidInput`] if it is no file.
pub(crate) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    // To open a pipe is to wait for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(DOCUMENT_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_within_the_directory_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let root = dir.path().join("stick");
        fs::create_dir_all(root.join("trust")).expect("made");
        fs::write(root.join("trust/1.json"), "one").expect("written");
        fs::write(dir.path().join("outside"), "secret").expect("written");
        symlink("../../outside", root.join("trust/2.json")).expect("linked");
        symlink("1.json", root.join("trust/3.json")).expect("linked");
        symlink("nowhere", root.join("trust/4.json")).expect("linked");
        fs::create_dir(root.join("trust/5.json")).expect("made");
        let stick = MountedDirectory::new(&root);
        for path in ["trust/1.json", "trust/3.json"] {
            assert_eq!(stick.read(path).expect("read").as_deref(), Some(&b"one"[..]), "{path}");
        }
        for path in ["trust/4.json", "trust/9.json", "none/1.json", "trust/1.json/x"] {
            assert!(stick.read(path).expect("absent").is_none(), "{path}");
        }
        for path in ["trust/2.json", "trust/5.json", "../outside"] {
            assert!(matches!(stick.read(path), Err(SourceError::NoFile { .. })), "{path}");
        }
    }

    #[test]
    fn a_file_of_any_size_is_read_up_to_the_limit() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let stick = MountedDirectory::new(dir.path());
        File::create(dir.path().join("a")).and_then(|f| f.set_len(1 << 32)).expect("a file with a hole");
        assert!(matches!(stick.read("a"), Err(SourceError::TooLarge { .. })));
        fs::write(dir.path().join("b"), vec![0; DOCUMENT_BYTES_MAX]).expect("written");
        assert_eq!(stick.read("b").expect("read").map(|b| b.len()), Some(DOCUMENT_BYTES_MAX));
    }

    #[test]
    fn a_drive_that_is_gone_is_an_error_and_not_an_absence() {
        let gone = MountedDirectory::new(Path::new("/nonexistent-drive"));
        assert!(matches!(gone.read("trust/1.json"), Err(SourceError::Read { .. })));
    }
}
