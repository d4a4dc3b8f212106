//! SHA-256 of bytes, files and directory trees, and keys made from named digests.

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Lower-case hex of 32 bytes.
#[must_use]
pub fn bytes(data: &[u8]) -> String {
    hex::encode(Sha256::digest(data))
}

/// Digest of a file's content.
///
/// # Errors
/// Reading fails.
pub fn file(path: &Path) -> Result<String> {
    let mut f = std::fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        let n = f.read(&mut buffer).with_context(|| format!("reading {}", path.display()))?;
        if n == 0 {
            return Ok(hex::encode(hash.finalize()));
        }
        hash.update(&buffer[..n]);
    }
}

/// Digest of a tree: relative paths, whether executable, contents and link targets, in sorted order. A missing
/// path has the digest of nothing.
///
/// # Errors
/// Reading fails.
pub fn tree(root: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let mut stack = vec![root.to_path_buf()];
    while let Some(path) = stack.pop() {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if meta.is_dir() {
            let mut children: Vec<_> = std::fs::read_dir(&path)
                .with_context(|| format!("listing {}", path.display()))?
                .filter_map(|e| e.ok().map(|e| e.path()))
                .collect();
            children.sort_by(|a, b| b.cmp(a));
            stack.extend(children);
            hash.update(format!("d {name}\n"));
        } else if meta.is_symlink() {
            let target = std::fs::read_link(&path)?;
            hash.update(format!("l {name} {}\n", target.display()));
        } else {
            let exec = meta.permissions().mode() & 0o111 != 0;
            hash.update(format!("f {name} {exec} {}\n", file(&path)?));
        }
    }
    Ok(hex::encode(hash.finalize()))
}

/// One key from named inputs; the order of the inputs matters, their count is part of it.
#[must_use]
pub fn key(name: &str, inputs: &[(String, String)]) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{name} {}\n", inputs.len()));
    for (what, digest) in inputs {
        hash.update(format!("{what} {digest}\n"));
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_is_the_known_sha256() {
        assert_eq!(bytes(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn tree_sees_names_modes_links_and_contents() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path();
        std::fs::write(path.join("a"), "1").expect("write");
        let one = tree(path).expect("digest");
        std::fs::write(path.join("a"), "2").expect("write");
        let two = tree(path).expect("digest");
        std::fs::set_permissions(path.join("a"), std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let three = tree(path).expect("digest");
        std::os::unix::fs::symlink("a", path.join("b")).expect("link");
        let four = tree(path).expect("digest");
        let all: std::collections::BTreeSet<_> = [one, two, three, four].into();
        assert_eq!(all.len(), 4);
    }
}
