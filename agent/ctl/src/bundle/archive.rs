//! The archive of a bundle: a tar (POSIX ustar) in gzip. Pure.
//!
//! In: files in their order. Out: bytes. Invariant: equal files give equal bytes; no name leaves the archive's directory.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest::{SHA256, digest};

/// Bytes of a block of tar.
const BLOCK: usize = 512;
/// Characters of a name that are kept as they are; the field of a header has 100 bytes, and directory and ending take some.
const NAME_CHARS_MAX: usize = 64;
/// Hexadecimal digits that keep names apart which were shortened or changed.
const MARK_CHARS: usize = 8;

/// A file of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArchiveFile {
    /// Path below the archive's directory, at most 100 bytes.
    pub(crate) path: String,
    /// What is in it.
    pub(crate) bytes: Vec<u8>,
}

/// The archive. All files are below `directory`, of at most 155 bytes, and have the time `seconds` after 1970.
///
/// # Errors
/// There is no memory for it.
pub(crate) fn archive(directory: &str, seconds: u64, files: &[ArchiveFile]) -> io::Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    for file in files {
        out.write_all(&header(directory, file, seconds))?;
        out.write_all(&file.bytes)?;
        let rest = file.bytes.len() % BLOCK;
        if rest > 0 {
            out.write_all(&[0; BLOCK][rest..])?;
        }
    }
    // Two empty blocks are the end.
    out.write_all(&[0; 2 * BLOCK])?;
    out.finish()
}

/// A header (POSIX.1-2017, pax: "ustar Interchange Format").
fn header(directory: &str, file: &ArchiveFile, seconds: u64) -> [u8; BLOCK] {
    let mut block = [0_u8; BLOCK];
    let size = format!("{:011o}", file.bytes.len());
    let time = format!("{seconds:011o}");
    for (at, length, text) in [
        (0, 100, file.path.as_str()),
        (100, 7, "0000600"),
        (108, 7, "0000000"),
        (116, 7, "0000000"),
        (124, 11, size.as_str()),
        (136, 11, time.as_str()),
        // The sum counts its own field as blanks.
        (148, 8, "        "),
        (156, 1, "0"),
        (257, 5, "ustar"),
        (263, 2, "00"),
        (345, 155, directory),
    ] {
        for (place, byte) in block.iter_mut().skip(at).take(length).zip(text.bytes()) {
            *place = byte;
        }
    }
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    for (place, byte) in block.iter_mut().skip(148).zip(format!("{sum:06o}\0 ").bytes()) {
        *place = byte;
    }
    block
}

/// A name of the node's, or of a stranger's, as a part of a path: letters, digits, `.`, `_`, `-` and `@`. One that was changed has a
/// mark of its own, so different names stay different.
pub(crate) fn file_name(name: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    let mut kept: String = name.chars().map(|c| if safe(c) { c } else { '_' }).take(NAME_CHARS_MAX).collect();
    if kept.starts_with('.') {
        kept.replace_range(..1, "_");
    }
    if kept == name && !name.is_empty() {
        return kept;
    }
    let mark: String = sha256(name.as_bytes()).chars().take(MARK_CHARS).collect();
    format!("{kept}~{mark}")
}

/// The digest in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn file(path: &str, bytes: &[u8]) -> ArchiveFile {
        ArchiveFile { path: path.to_owned(), bytes: bytes.to_vec() }
    }

    fn unpacked(packed: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap().trim_end_matches(['\0', ' '])
    }

    #[test]
    fn an_archive_has_headers_whole_blocks_and_an_end() {
        let files = [file("a", b""), file("b/c", &[7; 513]), file("d", &[8; 512])];
        let packed = archive("dir", 1_700_000_000, &files).unwrap();
        assert_eq!(packed, archive("dir", 1_700_000_000, &files).unwrap());
        let bytes = unpacked(&packed);
        assert_eq!(bytes.len(), BLOCK * (1 + 1 + 2 + 1 + 1 + 2));
        let second = &bytes[BLOCK..2 * BLOCK];
        assert_eq!((text(&second[..100]), text(&second[345..500])), ("b/c", "dir"));
        assert_eq!((text(&second[124..136]), text(&second[136..148])), ("00000001001", "14524770400"));
        assert_eq!((&second[257..265], second[156]), (&b"ustar\x0000"[..], b'0'));
        let sum: u32 = second
            .iter()
            .enumerate()
            .map(|(at, byte)| match at {
                148..156 => u32::from(b' '),
                _ => u32::from(*byte),
            })
            .sum();
        assert_eq!(text(&second[148..156]), format!("{sum:06o}"));
        assert_eq!(&bytes[2 * BLOCK..2 * BLOCK + 513], &[7; 513]);
        assert!(bytes[2 * BLOCK + 513..4 * BLOCK].iter().all(|byte| *byte == 0));
        assert!(bytes[6 * BLOCK..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_name_is_a_part_of_a_path_and_its_own() {
        assert_eq!(file_name("getty@tty1.service"), "getty@tty1.service");
        for name in ["../../etc/passwd", "..", ".x", "a b", "a\u{1b}", "é", "", "x".repeat(255).as_str()] {
            let kept = file_name(name);
            assert!(kept.len() <= NAME_CHARS_MAX + 1 + MARK_CHARS, "{kept}");
            assert!(!kept.contains('/') && !kept.starts_with('.') && kept.is_ascii(), "{kept}");
        }
        assert_ne!(file_name("a/b"), file_name("a_b"));
        assert_ne!(file_name(&"x".repeat(100)), file_name(&"x".repeat(101)));
        assert!(file_name("..").starts_with("_."));
    }
}
