//! Writes ustar archives, deterministic: owner root, time zero, given order.
//!
//! Why no crate: one header is all that is needed. The `tar` crate takes over as soon as a name is too long for ustar.

/// An archive being written.
#[derive(Default)]
pub struct Tar {
    out: Vec<u8>,
}

impl Tar {
    /// Adds a directory (`path` without a trailing slash).
    pub fn dir(&mut self, path: &str) {
        self.header(&format!("{path}/"), 0o755, 0, b'5');
    }

    /// Adds a regular file with permission bits `mode`.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.header(path, mode, data.len(), b'0');
        self.out.extend_from_slice(data);
        let rest = data.len() % 512;
        if rest != 0 {
            self.out.resize(self.out.len() + 512 - rest, 0);
        }
    }

    /// The finished archive: two empty blocks end it.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.out.resize(self.out.len() + 1024, 0);
        self.out
    }

    fn header(&mut self, path: &str, mode: u32, size: usize, kind: u8) {
        let mut h = [0u8; 512];
        assert!(path.len() <= 100, "ustar name field holds 100 bytes: {path}");
        h[..path.len()].copy_from_slice(path.as_bytes());
        put(&mut h[100..108], &format!("{mode:07o}"));
        put(&mut h[108..116], "0000000");
        put(&mut h[116..124], "0000000");
        put(&mut h[124..136], &format!("{size:011o}"));
        put(&mut h[136..148], "00000000000");
        h[148..156].fill(b' ');
        h[156] = kind;
        put(&mut h[257..263], "ustar");
        h[263..265].copy_from_slice(b"00");
        let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
        put(&mut h[148..155], &format!("{sum:06o}"));
        self.out.extend_from_slice(&h);
    }
}

// Text, then NUL to the end of the field.
fn put(field: &mut [u8], text: &str) {
    field.fill(0);
    field[..text.len()].copy_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_tar_reads_it() {
        let mut t = Tar::default();
        t.dir("d");
        t.file("d/f", 0o755, b"content");
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("a.tar");
        std::fs::write(&path, t.finish()).expect("write");
        let out = std::process::Command::new("tar").arg("-tvf").arg(&path).output().expect("tar runs");
        let text = String::from_utf8(out.stdout).expect("UTF-8");
        assert!(out.status.success(), "{text}");
        assert!(text.contains("drwxr-xr-x") && text.contains("-rwxr-xr-x"), "{text}");
        assert!(text.lines().any(|l| l.contains(" 7 ") && l.ends_with("d/f")), "{text}");
    }
}
