//! Microcode of processors as the kernel takes it before anything else: an uncompressed cpio archive at the initrd's beginning
//! (Linux: arch/x86/microcode.rst). Pure.
//!
//! In: the files of Debian's packages. Out: the archive. Invariants: what is no microcode is refused; the content lies at
//! multiples of 16 bytes, because Intel's processors take an update from such an address only (SDM 3A, 11.11.6), and the
//! kernel hands over the bytes where they are.

use super::cpio::Cpio;
use anyhow::{Context, Result, bail, ensure};

/// Names in the archive by which the kernel finds them.
const INTEL: &str = "kernel/x86/microcode/GenuineIntel.bin";
const AMD: &str = "kernel/x86/microcode/AuthenticAMD.bin";
/// Directories of these names; the kernel unpacks the archive like any other.
const DIRECTORIES: [&str; 3] = ["kernel", "kernel/x86", "kernel/x86/microcode"];
/// Bytes that the processor wants before an update's address is one.
const ALIGNMENT: usize = 16;
/// Beginning of a container of AMD.
const AMD_MAGIC: &[u8] = b"DMA\0";

/// A file of microcode: its name for messages, and its bytes.
pub type MicrocodeFile = (String, Vec<u8>);

/// The names of a list with one name a line and its reason behind it; `#` begins a comment.
pub fn wanted(list: &str) -> impl Iterator<Item = &str> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next())
}

/// The archive; empty without files.
///
/// # Errors
/// A file is no microcode, or damaged.
pub fn archive(intel: &[MicrocodeFile], amd: &[MicrocodeFile]) -> Result<Vec<u8>> {
    for (name, bytes) in intel {
        check_intel(bytes).with_context(|| format!("{name} is no microcode of Intel"))?;
    }
    for (name, bytes) in amd {
        ensure!(bytes.starts_with(AMD_MAGIC), "{name} is no microcode of AMD");
    }
    if intel.is_empty() && amd.is_empty() {
        return Ok(Vec::new());
    }
    let mut cpio = Cpio::default();
    DIRECTORIES.iter().for_each(|dir| cpio.dir(dir));
    for (name, files) in [(INTEL, intel), (AMD, amd)] {
        if !files.is_empty() {
            let all: Vec<u8> = files.iter().flat_map(|(_, bytes)| bytes).copied().collect();
            cpio.file_aligned(name, 0o644, &all, ALIGNMENT);
        }
    }
    Ok(cpio.finish())
}

/// Updates follow each other to the end: version 1 of the header, words that add up to zero.
fn check_intel(bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    ensure!(!rest.is_empty(), "it is empty");
    while !rest.is_empty() {
        let word = |at: usize| rest.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let (Some(version), Some(data), Some(total)) = (word(0), word(28), word(32)) else {
            bail!("a header is cut short");
        };
        ensure!(version == 1, "a header has version {version}");
        // Headers of old updates name no size.
        let total = if data == 0 { 2048 } else { usize::try_from(total)? };
        ensure!(total >= 48 && total.is_multiple_of(4) && total <= rest.len(), "an update of {total} bytes");
        let words = rest[..total].chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        ensure!(words.fold(0, u32::wrapping_add) == 0, "a checksum is wrong");
        rest = &rest[total..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An update of Intel with a right checksum.
    fn update(total: usize, content: u8) -> Vec<u8> {
        let mut bytes = vec![content; total];
        bytes[..48].fill(0);
        let size = u32::try_from(total).expect("small");
        for (at, value) in [(0, 1u32), (28, size - 48), (32, size)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let sum = words.fold(0, u32::wrapping_add).wrapping_neg();
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn file(name: &str, bytes: Vec<u8>) -> MicrocodeFile {
        (name.to_owned(), bytes)
    }

    #[test]
    fn both_makers_are_found_by_their_names_at_aligned_places() {
        let (one, two) = (update(1024, 7), update(2048, 9));
        let intel = [file("06-55-04", one.clone()), file("06-6a-06", two.clone())];
        let amd = [file("a", b"DMA\0first".to_vec()), file("b", b"DMA\0second".to_vec())];
        let out = archive(&intel, &amd).expect("an archive");
        let place = |needle: &[u8]| out.windows(needle.len()).position(|w| w == needle).expect("it is there");
        let (at_intel, at_amd) = (place(&[one, two].concat()), place(b"DMA\0firstDMA\0second"));
        assert_eq!((at_intel % 16, at_amd % 16), (0, 0));
        assert!(place(INTEL.as_bytes()) < at_intel && at_intel < place(AMD.as_bytes()));
        // Another archive may follow.
        assert!(out.starts_with(b"070701") && out.len().is_multiple_of(4));
        assert!(archive(&[], &[]).expect("nothing").is_empty());
    }

    #[test]
    fn what_is_no_microcode_is_refused_by_name() {
        let mut damaged = update(1024, 7);
        damaged[100] ^= 1;
        let cut = update(1024, 7)[..1000].to_vec();
        let trailing = [update(1024, 7), vec![1; 8]].concat();
        for bytes in [damaged, cut, trailing, b"not".to_vec(), Vec::new(), vec![0; 64]] {
            let said = archive(&[file("06-55-04", bytes)], &[]).expect_err("refused").to_string();
            assert!(said.starts_with("06-55-04 is no microcode"), "{said}");
        }
        let said = archive(&[], &[file("amd", update(1024, 7))]).expect_err("refused").to_string();
        assert!(said.starts_with("amd is no microcode"), "{said}");
    }

    #[test]
    fn old_headers_without_sizes_stand_for_2048_bytes() {
        let mut old = update(2048, 3);
        for at in [28, 32] {
            old[at..at + 4].fill(0);
        }
        old[16..20].fill(0);
        let words = old.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let sum = words.fold(0, u32::wrapping_add).wrapping_neg();
        old[16..20].copy_from_slice(&sum.to_le_bytes());
        check_intel(&old).expect("sound");
    }

    #[test]
    fn the_committed_list_names_each_family_once() {
        let list = include_str!("../../microcode.txt");
        let mut names: Vec<&str> = wanted(list).collect();
        assert!(names.iter().all(|name| name.len() == 8 && name.starts_with("06-")), "{names:?}");
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == count && count > 10, "{count}");
        assert!(names.contains(&"06-6a-06"));
    }
}
