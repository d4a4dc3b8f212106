//! Documents in a directory: of a mounted drive, or of the machine that publishes.
//!
//! The drive may be a stranger's: a link that leads out of the directory is not followed, and only files are read.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use orlop_config::release::DOCUMENT_BYTES_MAX;

use super::source::{ByteRange, ByteSource, DocumentSource, SourceError, TakePiece};

/// Bytes of a file that are read at once.
const PIECE: usize = 256 << 10;

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

    /// The real path of a file of the directory; `None` if it is not there.
    fn find(&self, path: &str) -> Result<Option<PathBuf>, SourceError> {
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
        Ok(Some(file))
    }

    fn read(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let Some(file) = self.find(path)? else { return Ok(None) };
        let bytes = open_file(&file).and_then(bounded).map_err(|e| failed(&file, e))?;
        if bytes.len() > DOCUMENT_BYTES_MAX {
            let place = file.display().to_string();
            return Err(SourceError::TooLarge { place, bytes_max: DOCUMENT_BYTES_MAX });
        }
        Ok(Some(bytes))
    }
}

fn failed(path: &Path, source: io::Error) -> SourceError {
    SourceError::Read { path: path.to_owned(), source }
}

impl MountedDirectory {
    fn give(&self, path: &str, range: ByteRange, take: &mut TakePiece<'_>) -> Result<(), SourceError> {
        let named = || self.root.join(path);
        let file = self.find(path)?.ok_or_else(|| SourceError::NoSuchFile(named().display().to_string()))?;
        let (opened, mut at) = (open_file(&file).map_err(|e| failed(&file, e))?, range.from);
        let mut memory = vec![0; PIECE];
        while at < range.to {
            let wanted = usize::try_from(range.to - at).unwrap_or(PIECE).min(PIECE);
            match opened.read_at(&mut memory[..wanted], at) {
                // Shorter than its document says.
                Ok(0) => break,
                Ok(read) => {
                    if take(at, &memory[..read]).is_break() {
                        break;
                    }
                    at += read as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(&file, e)),
            }
        }
        Ok(())
    }
}

impl ByteSource for MountedDirectory {
    // The drive is local: the future is ready when it is made.
    fn bytes(
        &self,
        path: &str,
        range: ByteRange,
        take: &mut TakePiece<'_>,
    ) -> impl Future<Output = Result<(), SourceError>> + Send {
        std::future::ready(self.give(path, range, take))
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
    bounded(File::open(path)?)
}

fn bounded(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(DOCUMENT_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file whose links were followed already. A drive may change under the node: what has become a link or a pipe meanwhile is
/// neither followed nor waited for.
fn open_file(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no file")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;
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
    fn what_has_become_a_link_or_a_pipe_is_not_opened() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        fs::write(dir.path().join("a"), "one").expect("written");
        symlink("a", dir.path().join("b")).expect("linked");
        let pipe = dir.path().join("c");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(open_file(&dir.path().join("a")).is_ok());
        // A pipe without a writer: without the flag this would not end.
        for path in ["b", "c"] {
            assert!(open_file(&dir.path().join(path)).is_err(), "{path}");
        }
        assert!(matches!(MountedDirectory::new(dir.path()).read("c"), Err(SourceError::NoFile { .. })));
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
    fn a_file_is_given_from_any_byte_on() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let content: Vec<u8> = (0..3 * PIECE + 5).map(|n| u8::try_from(n % 251).expect("small")).collect();
        fs::write(dir.path().join("f"), &content).expect("written");
        let stick = MountedDirectory::new(dir.path());
        let end = content.len() as u64;
        for (from, to) in [(0, end), (7, end - 1), (5, 5), (end - 3, end + 100), (end + 1, end + 2)] {
            let mut got = Vec::new();
            let mut take = |at: u64, piece: &[u8]| -> ControlFlow<()> {
                assert_eq!(at, from + got.len() as u64);
                got.extend_from_slice(piece);
                ControlFlow::Continue(())
            };
            stick.give("f", ByteRange { from, to }, &mut take).expect("read");
            let [first, last] = [from, to].map(|at| usize::try_from(at.min(end)).expect("small"));
            assert!(got == content[first..last], "{from} to {to}");
        }
        let mut pieces = 0;
        let mut once = |_: u64, _: &[u8]| -> ControlFlow<()> {
            pieces += 1;
            ControlFlow::Break(())
        };
        stick.give("f", ByteRange { from: 0, to: end }, &mut once).expect("read");
        assert_eq!(pieces, 1);
        let gone = stick.give("g", ByteRange { from: 0, to: 1 }, &mut |_, _| ControlFlow::Continue(()));
        assert!(matches!(gone, Err(SourceError::NoSuchFile(_))));
    }

    #[test]
    fn a_drive_that_is_gone_is_an_error_and_not_an_absence() {
        let gone = MountedDirectory::new(Path::new("/nonexistent-drive"));
        assert!(matches!(gone.read("trust/1.json"), Err(SourceError::Read { .. })));
    }
}
