//! `kubelet.crt` and `kubelet.key` below the certificate directory: made once, as upstream does, and again when they
//! have ended.
//!
//! In: directory, node name, time. Out: paths of a usable pair. Blocks for the disk.

use std::path::{Path, PathBuf};

use agent_apiserver::certificates::{facts_of_pem, is_key_of, self_signed};
use agent_linux::files::{Durability, write_atomic};
use agent_types::time::Wall;
use anyhow::Context;

/// The pair's paths: certificate, key.
pub(super) fn ensure(dir: &Path, node_name: &str, now: Wall) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (certificate, key) = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
    if is_usable(&certificate, &key, now) {
        return Ok((certificate, key));
    }
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let (certificate_pem, key_pem) = self_signed(node_name, now)?;
    write_atomic(&key, key_pem.as_bytes(), 0o600, Durability::Synced)?;
    write_atomic(&certificate, certificate_pem.as_bytes(), 0o644, Durability::Synced)?;
    tracing::info!(path = %certificate.display(), "made a serving certificate that nobody has signed");
    Ok((certificate, key))
}

fn is_usable(certificate: &Path, key: &Path, now: Wall) -> bool {
    let (Ok(certificate_pem), Ok(key_pem)) = (std::fs::read(certificate), std::fs::read(key)) else {
        return false;
    };
    let what = certificate.display().to_string();
    facts_of_pem(&what, &certificate_pem, false).is_ok_and(|facts| facts.not_after > now)
        && is_key_of(&what, &key_pem, &certificate_pem).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn made_once_and_again_when_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        let day = |n: i64| Wall(1_795_262_400_000_000_000 + n * 24 * 3600 * 1_000_000_000);
        let (certificate, key) = ensure(&pki, "node-1", day(0)).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&certificate), mode(&key)), (0o644, 0o600));
        let first = std::fs::read(&certificate).unwrap();
        ensure(&pki, "node-1", day(364)).unwrap();
        assert_eq!(std::fs::read(&certificate).unwrap(), first);
        ensure(&pki, "node-1", day(366)).unwrap();
        let second = std::fs::read(&certificate).unwrap();
        assert_ne!(second, first);
        std::fs::write(&key, "no key").unwrap();
        ensure(&pki, "node-1", day(366)).unwrap();
        assert_ne!(std::fs::read(&certificate).unwrap(), second);
    }
}
