//! The record of the first boot on the mounted state partition (`plan::kept`).

use super::DEGRADED;
use super::error::InitError;
use super::machine_id::write_durably;
use super::sources::{FoundSources, read_at_most};
use crate::plan::kept::{self, FirstBootRecord, Outcome, record};
use crate::plan::mounts::SYSROOT;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Reads it. With a volatile /var nothing is known about the first boot.
#[must_use]
pub fn read() -> FirstBootRecord {
    if Path::new(DEGRADED).exists() {
        return FirstBootRecord::Unknown("the state partition cannot be used".into());
    }
    read_in(&Path::new(SYSROOT).join("var"))
}

/// Reads it below this /var.
pub(super) fn read_in(var: &Path) -> FirstBootRecord {
    let path = var.join(kept::FILE);
    let text = read_at_most(&path, kept::BYTES_MAX)
        .and_then(|bytes| String::from_utf8(bytes).map_err(|e| io::Error::other(e.utf8_error())));
    match text {
        Err(e) if e.kind() == ErrorKind::NotFound => FirstBootRecord::Absent,
        Err(e) => FirstBootRecord::Unknown(format!("/var/{} cannot be read: {e}", kept::FILE)),
        Ok(text) => match kept::parse(&text) {
            Ok(documents) => FirstBootRecord::Accepted(documents),
            Err(why) => FirstBootRecord::Unknown(format!("/var/{} cannot be used: {why}", kept::FILE)),
        },
    }
}

/// Writes it if this boot changes it; on disk when this returns.
///
/// # Errors
/// It cannot be written: the next boot is a first boot, too, or has the record as it was.
pub fn write(found: &FoundSources, accepted: &[String]) -> Result<(), InitError> {
    write_in(&Path::new(SYSROOT).join("var"), found, accepted)
}

fn write_in(var: &Path, found: &FoundSources, accepted: &[String]) -> Result<(), InitError> {
    let (before, documents, unreadable) = (&found.kept, &found.documents, found.unreadable_medium);
    let Some(documents) = record(&Outcome { before, documents, accepted, unreadable }) else {
        return Ok(());
    };
    let (dir, name) = kept::FILE.rsplit_once('/').unwrap_or((".", kept::FILE));
    write_durably(&var.join(dir), name, 0o600, kept::render(&documents).as_bytes()).map_err(|source| {
        InitError::File {
            action: "keep the accepted configuration in",
            path: format!("/var/{}", kept::FILE),
            source,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::source::{Document, Kind};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn written_once_for_root_alone_and_read_by_the_next_boot() {
        let var = tempfile::tempdir().expect("temporary directory");
        assert_eq!(read_in(var.path()), FirstBootRecord::Absent);
        let drive = Document { kind: Kind::Drive, origin: "drive".into(), text: "token".into(), kept: false };
        let found = FoundSources { documents: vec![drive.clone()], ..FoundSources::default() };
        write_in(var.path(), &found, &["drive".into()]).expect("written");
        let kept = FirstBootRecord::Accepted(vec![Document { kept: true, ..drive }]);
        assert_eq!(read_in(var.path()), kept);
        let path = var.path().join(kept::FILE);
        let mode = || fs::metadata(&path).expect("file").permissions().mode() & 0o7777;
        assert_eq!(mode(), 0o600);
        // The next boot finds nothing and changes nothing, also with the rest of a writer that a power cut hit.
        fs::write(path.with_file_name(orlop_files::temporary_name("first-boot.json".as_ref())), "half")
            .expect("fixture");
        write_in(var.path(), &FoundSources { kept: kept.clone(), ..FoundSources::default() }, &[])
            .expect("nothing to write");
        assert_eq!((read_in(var.path()), mode()), (kept, 0o600));
    }

    #[test]
    fn an_unreadable_record_is_no_first_boot() {
        let var = tempfile::tempdir().expect("temporary directory");
        let path = var.path().join(kept::FILE);
        fs::create_dir_all(path.parent().expect("parent")).expect("fixture");
        for bad in [&b"{"[..], &[0xff], b"{\"version\": 9}"] {
            fs::write(&path, bad).expect("fixture");
            let FirstBootRecord::Unknown(why) = read_in(var.path()) else { panic!("unknown") };
            assert!(why.contains("/var/lib/orlop/config/first-boot.json"), "{why}");
        }
        fs::remove_file(&path).and_then(|()| fs::create_dir(&path)).expect("fixture");
        assert!(matches!(read_in(var.path()), FirstBootRecord::Unknown(_)));
    }
}
