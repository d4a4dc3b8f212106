//! The persistent machine id: kept in the state partition, made once, bound over /etc/machine-id.
//!
//! A first boot without one makes systemd apply every preset, and a changed one makes the node another node;
//! so it is written with fsync before anything may have seen it, and never replaced while it is valid.

use super::error::InitError;
use orlop_files::Durability;
use std::fs;
use std::io;
use std::path::Path;

/// Reads the id in `dir` or makes one; the second value says whether it is new.
///
/// # Errors
/// It can be neither read nor written.
pub fn persistent(dir: &Path) -> Result<(String, bool), InitError> {
    let path = dir.join("machine-id");
    let fail = |action| {
        let path = path.display().to_string();
        move |source| InitError::File { action, path, source }
    };
    match fs::read_to_string(&path) {
        Ok(text) => {
            if let Some(id) = valid(&text) {
                return Ok((id, false));
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(fail("read")(e)),
    }
    let id = random().map_err(fail("make an id for"))?;
    write_durably(dir, "machine-id", 0o644, format!("{id}\n").as_bytes()).map_err(fail("write"))?;
    Ok((id, true))
}

/// A new random id in the form of machine-id(5).
///
/// # Errors
/// /proc is not mounted.
pub fn random() -> io::Result<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(uuid.trim().replace('-', ""))
}

fn valid(text: &str) -> Option<String> {
    let id = text.trim_end_matches('\n');
    let hex = id.len() == 32 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (hex && id.bytes().any(|b| b != b'0')).then(|| id.to_string())
}

/// Replaces a file; content and name are on disk when this returns.
///
/// # Errors
/// It cannot be written; it is as it was.
pub(super) fn write_durably(dir: &Path, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    orlop_files::replace(&dir.join(name), content, mode, Durability::Synced).map_err(|error| error.source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_kept() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = dir.path().join("lib/orlop");
        let (first, new) = persistent(&at).expect("made");
        assert!(new && valid(&first).is_some());
        assert_eq!(persistent(&at).expect("kept"), (first, false));
    }

    #[test]
    fn what_is_no_id_is_replaced() {
        for bad in ["", "uninitialized\n", "0123", &"0".repeat(32), &"A".repeat(32), &"g".repeat(32)] {
            assert_eq!(valid(bad), None, "{bad:?}");
            let dir = tempfile::tempdir().expect("temporary directory");
            fs::write(dir.path().join("machine-id"), bad).expect("fixture");
            assert!(persistent(dir.path()).expect("made").1);
        }
    }

    #[test]
    fn an_unreadable_one_is_an_error_not_a_new_identity() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(dir.path().join("machine-id")).expect("fixture");
        assert!(persistent(dir.path()).is_err());
    }
}
