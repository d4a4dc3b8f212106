//! Writes the `newc` cpio archive that the kernel unpacks as initramfs (Linux: buffer-format.rst). Deterministic:
//! inode numbers count up, times are zero, owner is root.
//!
//! Why no crate: `cpio`, `librarium` and `kpea` also read; this file has the one header that a reproducible writer needs.

const FILE: u32 = 0o100_000;
const DIR: u32 = 0o040_000;
/// Bytes of a header before the name.
const HEADER: usize = 110;

/// An archive being written.
#[derive(Default)]
pub struct Cpio {
    out: Vec<u8>,
    inode: u32,
}

impl Cpio {
    /// Adds a directory; parents first.
    pub fn dir(&mut self, path: &str) {
        self.entry(path, DIR | 0o755, &[], 0);
    }

    /// Adds a file with permission bits `mode`.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entry(path, FILE | mode, data, 0);
    }

    /// Adds a file whose content begins at a multiple of `alignment` bytes of the archive, a multiple of 4: the name gets zero
    /// bytes behind it.
    pub fn file_aligned(&mut self, path: &str, mode: u32, data: &[u8], alignment: usize) {
        let end = self.out.len() + HEADER + path.len() + 1;
        self.entry(path, FILE | mode, data, end.next_multiple_of(alignment) - end);
    }

    /// The finished archive.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.header("TRAILER!!!", 0, 0, 0, 0);
        self.out
    }

    /// `filler`: zero bytes that belong to the name.
    fn entry(&mut self, path: &str, mode: u32, data: &[u8], filler: usize) {
        self.inode += 1;
        let inode = self.inode;
        let size = u32::try_from(data.len()).expect("an initrd file is smaller than 4 GiB");
        self.header(path, inode, mode, size, filler);
        self.out.extend_from_slice(data);
        self.pad();
    }

    fn header(&mut self, path: &str, inode: u32, mode: u32, size: u32, filler: usize) {
        let name = u32::try_from(path.len() + 1 + filler).expect("a path is short");
        let links = if mode & DIR == DIR { 2 } else { 1 };
        // magic, ino, mode, uid, gid, nlink, mtime, size, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name, 0];
        self.out.extend_from_slice(b"070701");
        for field in fields {
            self.out.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.out.extend_from_slice(path.as_bytes());
        self.out.resize(self.out.len() + 1 + filler, 0);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.out.len().is_multiple_of(4) {
            self.out.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_begin_where_they_are_asked_to() {
        for path in ["a", "ab", "kernel/x86/microcode/GenuineIntel.bin"] {
            let mut c = Cpio::default();
            c.file("init", 0o755, b"hello");
            c.file_aligned(path, 0o644, b"0123456789", 16);
            let out = c.finish();
            let at = out.windows(10).position(|w| w == b"0123456789").expect("the content");
            assert_eq!(at % 16, 0, "{path}");
            // The size of the name leads to the content.
            let before = out[..at].windows(path.len());
            let header = before.rev().position(|w| w == path.as_bytes()).expect("the name");
            let header = at - path.len() - header - HEADER;
            let name = std::str::from_utf8(&out[header + 94..header + 102]).expect("digits");
            let name = usize::from_str_radix(name, 16).expect("a number");
            assert_eq!((header + HEADER + name).next_multiple_of(4), at, "{path}");
        }
    }

    #[test]
    fn archive_has_aligned_entries_and_a_trailer() {
        let mut c = Cpio::default();
        c.dir("etc");
        c.file("init", 0o755, b"hello");
        let out = c.finish();
        assert!(out.len().is_multiple_of(4));
        assert_eq!(out.windows(6).filter(|w| w == b"070701").count(), 3);
        let text = String::from_utf8_lossy(&out);
        assert!(text.contains("TRAILER!!!"));
        // mode 0100755 in hex, then the size
        assert!(text.contains("000081ed"));
        assert!(text.contains("00000005"));
    }
}
