//! The certificate store on disk, with upstream's file names
//! (client-go/util/certificate/certificate_store.go).
//!
//! ```text
//! kubelet-client-2026-11-21-12-00-00.pem     certificate and key, 0600
//! kubelet-client-current.pem -> kubelet-client-2026-11-21-12-00-00.pem
//! kubelet-client-updated.pem                 a link on its way to become -current
//! ```
//! In: certificate and key as PEM, the wall clock. Out: the path of the current pair and its contents.
//! Invariants: `-current` names a complete pair at every moment; the store finishes or removes a leftover
//! `-updated` link; the store never replaces a `-current` that is not a link, because the kubelet did not
//! write it. Calls block on the disk.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use agent_types::certificates::CertKind;
use agent_types::time::Wall;
use zeroize::Zeroizing;

use super::{CertificateError, is_key_of};

fn prefix(kind: CertKind) -> &'static str {
    match kind {
        CertKind::Client => "kubelet-client",
        CertKind::Serving => "kubelet-server",
    }
}

/// One certificate's files.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    kind: CertKind,
}

impl Store {
    /// Opens the store: makes the directory (0755, as upstream) and finishes an interrupted replacement.
    ///
    /// # Errors
    /// The directory cannot be used, or `-current` is not a link.
    pub fn open(directory: &Path, kind: CertKind) -> Result<Store, CertificateError> {
        fs::create_dir_all(directory).map_err(io(directory, "make the certificate directory"))?;
        let store = Store { directory: directory.to_owned(), kind };
        store.recover()?;
        Ok(store)
    }

    /// `<directory>/<prefix>-current.pem`.
    #[must_use]
    pub fn current_path(&self) -> PathBuf {
        self.directory.join(format!("{}-current.pem", prefix(self.kind)))
    }

    fn updated_path(&self) -> PathBuf {
        self.directory.join(format!("{}-updated.pem", prefix(self.kind)))
    }

    /// Certificate and key of `-current`, one PEM text; `None` before the first.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn current(&self) -> Result<Option<Zeroizing<Vec<u8>>>, CertificateError> {
        let path = self.current_path();
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(Zeroizing::new(bytes))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(CertificateError::Io { path, operation: "read", source }),
        }
    }

    /// Stores a pair and makes it current; returns the file's path. The file is named after `now`.
    ///
    /// # Errors
    /// The key is not the certificate's, `-current` is not a link, or the disk refuses; the old pair stays current.
    pub fn update(
        &self,
        certificate_pem: &[u8],
        key_pem: &str,
        now: Wall,
    ) -> Result<PathBuf, CertificateError> {
        let current = self.current_path();
        if !is_key_of(&current.display().to_string(), key_pem.as_bytes(), certificate_pem)? {
            return Err(CertificateError::Contents {
                what: current.display().to_string(),
                reason: "the new certificate is for another key".to_owned(),
            });
        }
        self.check_current()?;
        let path = self.write_pair(certificate_pem, key_pem, now)?;
        self.link(&path)?;
        Ok(path)
    }

    fn write_pair(&self, certificate: &[u8], key: &str, now: Wall) -> Result<PathBuf, CertificateError> {
        let stamp = jiff::Timestamp::from_second(now.0.div_euclid(1_000_000_000))
            .unwrap_or_default()
            .to_zoned(jiff::tz::TimeZone::UTC)
            .strftime("%Y-%m-%d-%H-%M-%S")
            .to_string();
        let path = self.directory.join(format!("{}-{stamp}.pem", prefix(self.kind)));
        // First into a file next to it: a pair written in the same second may be the current one.
        let beside = self.directory.join(format!("{}-{stamp}.pem.new", prefix(self.kind)));
        remove(&beside)?;
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)
            .map_err(io(&beside, "write"))?;
        let newline = |pem: &[u8]| {
            if pem.ends_with(
                b"
",
            ) {
                &b""[..]
            } else {
                b"
"
            }
        };
        for part in [certificate, newline(certificate), key.as_bytes(), newline(key.as_bytes())] {
            file.write_all(part).map_err(io(&beside, "write"))?;
        }
        file.sync_all().map_err(io(&beside, "write"))?;
        fs::rename(&beside, &path).map_err(io(&path, "write"))?;
        Ok(path)
    }

    fn link(&self, pair: &Path) -> Result<(), CertificateError> {
        let (updated, current) = (self.updated_path(), self.current_path());
        remove(&updated)?;
        symlink(pair, &updated).map_err(io(&updated, "link"))?;
        fs::rename(&updated, &current).map_err(io(&current, "replace"))?;
        let sync = fs::File::open(&self.directory).and_then(|d| d.sync_all());
        sync.map_err(io(&self.directory, "sync"))
    }

    fn check_current(&self) -> Result<(), CertificateError> {
        let path = self.current_path();
        match fs::symlink_metadata(&path) {
            Ok(found) if !found.file_type().is_symlink() => Err(CertificateError::NotALink { path }),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(CertificateError::Io { path, operation: "look at", source: error })
            }
            _ => Ok(()),
        }
    }

    /// A pair that was being written when the last run ended is not used: its key is erased.
    fn remove_unfinished(&self) -> Result<(), CertificateError> {
        let failed = |source| io(&self.directory, "list")(source);
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(prefix(self.kind)) && name.ends_with(".pem.new") {
                remove(&self.directory.join(&*name))?;
            }
        }
        Ok(())
    }

    /// An `-updated` link was on its way when the last run ended: if it names a whole pair it becomes current.
    fn recover(&self) -> Result<(), CertificateError> {
        self.remove_unfinished()?;
        self.check_current()?;
        let updated = self.updated_path();
        match fs::symlink_metadata(&updated) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(CertificateError::Io { path: updated, operation: "look at", source }),
            Ok(found) if !found.file_type().is_symlink() => {
                return Err(CertificateError::NotALink { path: updated });
            }
            Ok(_) => {}
        }
        let whole = fs::read(&updated)
            .map(Zeroizing::new)
            .is_ok_and(|pair| is_key_of("", &pair, &pair).unwrap_or(false));
        if whole {
            let current = self.current_path();
            return fs::rename(&updated, &current).map_err(io(&current, "replace"));
        }
        remove(&updated)
    }
}

fn remove(path: &Path) -> Result<(), CertificateError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(path, "remove")(error)),
        _ => Ok(()),
    }
}

fn io(path: &Path, operation: &'static str) -> impl FnOnce(std::io::Error) -> CertificateError {
    let path = path.to_owned();
    move |source| CertificateError::Io { path, operation, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const NOON: Wall = Wall(1_795_262_400_000_000_000); // 2026-11-21 12:00:00 UTC

    fn pair() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["n".to_owned()]).unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn pairs_replace_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), CertKind::Client).unwrap();
        assert!(store.current().unwrap().is_none());
        let (first, second) = (pair(), pair());
        let path = store.update(first.0.as_bytes(), &first.1, NOON).unwrap();
        assert_eq!(path.file_name().unwrap(), "kubelet-client-2026-11-21-12-00-00.pem");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_link(store.current_path()).unwrap(), path);
        assert_eq!(**store.current().unwrap().unwrap(), *format!("{}{}", first.0, first.1).as_bytes());
        // Twice within a second, then later.
        store.update(second.0.as_bytes(), &second.1, NOON).unwrap();
        assert_eq!(**store.current().unwrap().unwrap(), *format!("{}{}", second.0, second.1).as_bytes());
        let later = store.update(first.0.as_bytes(), &first.1, Wall(NOON.0 + 1_000_000_000)).unwrap();
        assert_eq!(fs::read_link(store.current_path()).unwrap(), later);
        assert!(path.exists(), "the old pair stays, as upstream leaves it");
        let serving = Store::open(dir.path(), CertKind::Serving).unwrap();
        assert!(serving.current_path().ends_with("kubelet-server-current.pem"));
    }

    #[test]
    fn a_foreign_key_or_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), CertKind::Client).unwrap();
        let (first, second) = (pair(), pair());
        let error = store.update(first.0.as_bytes(), &second.1, NOON).unwrap_err();
        assert!(error.to_string().contains("is for another key"), "{error}");
        fs::write(store.current_path(), "mine").unwrap();
        let error = store.update(first.0.as_bytes(), &first.1, NOON).unwrap_err();
        assert!(matches!(error, CertificateError::NotALink { .. }), "{error}");
        assert!(matches!(Store::open(dir.path(), CertKind::Client), Err(CertificateError::NotALink { .. })));
    }

    #[test]
    fn an_interrupted_replacement_is_finished_or_undone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), CertKind::Client).unwrap();
        let (first, second) = (pair(), pair());
        let old = store.update(first.0.as_bytes(), &first.1, NOON).unwrap();
        // A pair that was not written to its end: gone. Another store's is left alone.
        let halves =
            ["kubelet-client-2026-11-21-12-00-01.pem.new", "kubelet-server-2026-11-21-12-00-01.pem.new"];
        for name in halves {
            fs::write(dir.path().join(name), &first.1).unwrap();
        }
        Store::open(dir.path(), CertKind::Client).unwrap();
        assert_eq!(halves.map(|name| dir.path().join(name).exists()), [false, true]);
        // The link points at half a pair: thrown away.
        fs::write(dir.path().join("half.pem"), &first.0).unwrap();
        symlink(dir.path().join("half.pem"), store.updated_path()).unwrap();
        Store::open(dir.path(), CertKind::Client).unwrap();
        assert_eq!(fs::read_link(store.current_path()).unwrap(), old);
        assert!(!store.updated_path().exists());
        // At nothing: the same.
        symlink(dir.path().join("absent"), store.updated_path()).unwrap();
        Store::open(dir.path(), CertKind::Client).unwrap();
        assert!(fs::symlink_metadata(store.updated_path()).is_err());
        // At a whole pair: becomes current.
        let whole = dir.path().join("whole.pem");
        fs::write(&whole, format!("{}{}", second.0, second.1)).unwrap();
        symlink(&whole, store.updated_path()).unwrap();
        Store::open(dir.path(), CertKind::Client).unwrap();
        assert_eq!(fs::read_link(store.current_path()).unwrap(), whole);
    }
}
