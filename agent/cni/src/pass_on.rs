//! Runs the program of the same name that stands behind this one in `CNI_PATH`: it knows more.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The program, if there is one that is not `own`.
#[must_use]
pub fn other(name: &str, path: &[PathBuf], own: &Path) -> Option<PathBuf> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let own = identity(own);
    let program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
            && identity(path) != own
    };
    path.iter().map(|dir| dir.join(name)).find(program)
}

/// Has it answer this in its caller's place; true if it succeeded.
///
/// # Errors
/// It cannot be run.
pub fn run(program: &Path, question: &[u8]) -> io::Result<bool> {
    ended(&mut Command::new(program), question)
}

/// Has it take back what its ADD of this left, without a word to the caller; true if it succeeded.
///
/// # Errors
/// It cannot be run.
pub fn take_back(program: &Path, question: &[u8]) -> io::Result<bool> {
    ended(Command::new(program).env("CNI_COMMAND", "DEL").stdout(Stdio::null()), question)
}

fn ended(command: &mut Command, question: &[u8]) -> io::Result<bool> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(question) {
            // It may answer without reading.
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => return Err(e),
            _ => {}
        }
    }
    Ok(child.wait()?.success())
}
