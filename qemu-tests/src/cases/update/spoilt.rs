//! UKIs that are spoilt before they are signed. Pure.
//!
//! In: the bytes of a UKI of x86-64. Out: the same number of bytes. Formats: PE (sections), Linux' boot protocol (the kernel's version),
//! newc archives (the initrd: microcode first, then what is packed).

use anyhow::{Context, Result, ensure};

/// Bytes of the initrd that are made others: no kernel finds a file in it.
const SPOILT: usize = 4096;
/// Begins what zstd has packed.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes of an archive's header before the name.
const HEADER: usize = 110;
/// The last name of an archive.
const TRAILER: &str = "TRAILER!!!";
/// A pipe with a name, for its owner alone.
const PIPE: u32 = 0o010_600;
/// The kernel unpacks an archive that begins at such a multiple of bytes.
const ALIGNMENT: usize = 4;

/// Makes the beginning of the initrd other bytes.
pub(super) fn no_initrd(uki: &mut [u8]) -> Result<()> {
    let (start, size) = section(uki, b".initrd\0").context("the UKI has no section .initrd")?;
    ensure!(size >= SPOILT, "the section .initrd is short");
    uki.get_mut(start..start + SPOILT).context("the section .initrd is cut short")?.fill(0xff);
    Ok(())
}

/// Makes the driver of the state partition's file system a pipe without a writer: init waits for ever when it opens the file, after it
/// has judged the slot. The microcode gives up its place for that.
pub(super) fn hang_in_init(uki: &mut [u8]) -> Result<()> {
    let (linux, length) = section(uki, b".linux\0\0").context("the UKI has no section .linux")?;
    let kernel = uki.get(linux..linux + length).context("the section .linux is cut short")?;
    let version = kernel_version(kernel).context("the kernel has no version")?;
    let pipe = archive_of_pipe(&format!("lib/modules/{version}/kernel/fs/ext4/ext4.ko"));
    let (start, size) = section(uki, b".initrd\0").context("the UKI has no section .initrd")?;
    let initrd = uki.get_mut(start..start + size).context("the section .initrd is cut short")?;
    let packed = behind_archive(initrd).context("the initrd does not begin with an archive")?;
    ensure!(initrd[packed..].starts_with(&ZSTD), "what is packed does not begin at {packed}");
    initrd.copy_within(packed.., 0);
    // The kernel skips zeros between archives. A later file replaces an earlier one of the same name.
    let end = size - packed;
    let at = end.next_multiple_of(ALIGNMENT);
    initrd[end..].fill(0);
    let place = initrd.get_mut(at..at + pipe.len()).context("the microcode leaves no place")?;
    place.copy_from_slice(&pipe);
    Ok(())
}

/// A little-endian number.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    let field = bytes.get(at..at.checked_add(length)?)?;
    Some(field.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// Where a section of a PE file begins, and the length of its content, bytes.
fn section(uki: &[u8], name: &[u8; 8]) -> Option<(usize, usize)> {
    let header = number(uki, 0x3c, 4)?;
    let table = header + 24 + number(uki, header + 20, 2)?;
    let mut sections = (0..number(uki, header + 6, 2)?).map(|n| table + n * 40);
    let section = sections.find(|at| uki.get(*at..at + 8).is_some_and(|found| found == name))?;
    // In memory, and in the file; the file's may be padded.
    let size = number(uki, section + 8, 4)?.min(number(uki, section + 16, 4)?);
    Some((number(uki, section + 20, 4)?, size))
}

/// The first word of the version that the kernel's setup header leads to.
fn kernel_version(kernel: &[u8]) -> Option<String> {
    if kernel.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let text = kernel.get(number(kernel, 0x20e, 2)? + 0x200..)?;
    let word = text.iter().take_while(|byte| byte.is_ascii_graphic()).copied().collect::<Vec<u8>>();
    String::from_utf8(word).ok().filter(|word| !word.is_empty())
}

/// Where the bytes behind the first archive and its zeros begin.
fn behind_archive(bytes: &[u8]) -> Option<usize> {
    let field = |at: usize, n: usize| {
        let digits = bytes.get(at + 6 + n * 8..at + 14 + n * 8)?;
        usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut at = 0;
    loop {
        if bytes.get(at..at + 6)? != b"070701" {
            return None;
        }
        // Counted from 0: field 6 is the length of the file, field 11 that of the name with its zeros.
        let (size, name) = (field(at, 6)?, field(at, 11)?);
        let is_last = bytes.get(at + HEADER..at + HEADER + TRAILER.len())? == TRAILER.as_bytes();
        let data = (at + HEADER + name).next_multiple_of(ALIGNMENT);
        at = (data + size).next_multiple_of(ALIGNMENT);
        if is_last {
            break;
        }
    }
    Some(at + bytes.get(at..)?.iter().take_while(|byte| **byte == 0).count())
}

/// An archive with a pipe alone.
fn archive_of_pipe(path: &str) -> Vec<u8> {
    let mut archive = Vec::new();
    for (n, path, mode) in [(1, path, PIPE), (0, TRAILER, 0)] {
        // magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let fields = [n, mode, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        archive.extend_from_slice(b"070701");
        for field in fields {
            archive.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        archive.extend_from_slice(format!("{:08x}{:08x}{path}\0", path.len() + 1, 0).as_bytes());
        archive.resize(archive.len().next_multiple_of(ALIGNMENT), 0);
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_image::format::cpio::Cpio;

    /// A PE file with a kernel and an initrd of this content.
    fn uki(initrd: &[u8]) -> Vec<u8> {
        let mut program = vec![0; 0x4000];
        program[0x3c] = 0x80;
        // Two sections behind an optional header of 0xf0 bytes.
        (program[0x86], program[0x94]) = (2, 0xf0);
        let table = 0x80 + 24 + 0xf0;
        let sections = [(&b".linux"[..], 0x1000_u32, 0x800), (&b".initrd"[..], 0x4000, initrd.len())];
        for (n, (name, start, size)) in sections.into_iter().enumerate() {
            let at = table + n * 40;
            program[at..at + name.len()].copy_from_slice(name);
            let size = u32::try_from(size).expect("small").to_le_bytes();
            program[at + 8..at + 12].copy_from_slice(&size);
            program[at + 16..at + 20].copy_from_slice(&size);
            program[at + 20..at + 24].copy_from_slice(&start.to_le_bytes());
        }
        program[0x1202..0x1206].copy_from_slice(b"HdrS");
        program[0x120e..0x1210].copy_from_slice(&0x100_u16.to_le_bytes());
        program[0x1300..0x130e].copy_from_slice(b"6.12.1-x (y) z");
        program.extend_from_slice(initrd);
        program
    }

    #[test]
    fn the_initrd_of_a_program_is_found_and_spoilt() {
        let mut program = uki(&[7; 0x2000]);
        assert_eq!(section(&program, b".initrd\0"), Some((0x4000, 0x2000)));
        no_initrd(&mut program).expect("spoilt");
        assert_eq!((program[0x3fff], program[0x4000], program[0x4fff], program[0x5000]), (0, 0xff, 0xff, 7));
        assert_eq!((section(&program[..0x100], b".initrd\0"), section(&[], b".initrd\0")), (None, None));
        assert!(no_initrd(&mut program[..0x4800]).is_err());
        assert!(no_initrd(&mut uki(&[7; 8])).is_err());
    }

    #[test]
    fn the_pipe_comes_behind_what_is_packed() {
        let mut microcode = Cpio::default();
        microcode.dir("kernel");
        microcode.file_aligned("kernel/microcode.bin", 0o644, &[1; 1001], 16);
        let mut initrd = microcode.finish();
        initrd.resize(initrd.len().next_multiple_of(512), 0);
        let packed = [&ZSTD[..], b"abc"].concat();
        assert_eq!(behind_archive(&initrd), Some(initrd.len()));
        initrd.extend_from_slice(&packed);
        let before = initrd.len();
        let mut program = uki(&initrd);
        hang_in_init(&mut program).expect("spoilt");
        let initrd = &program[0x4000..];
        assert_eq!(initrd.len(), before);
        assert!(initrd.starts_with(&packed) && initrd[7] == 0);
        let path = b"lib/modules/6.12.1-x/kernel/fs/ext4/ext4.ko\0";
        assert_eq!(&initrd[8..14], b"070701");
        assert_eq!(&initrd[14..30], b"0000000100001180");
        assert_eq!(&initrd[8 + HEADER..8 + HEADER + path.len()], path);
        let length = behind_archive(&initrd[8..]).expect("an archive");
        assert_eq!(8 + length, initrd.len());
    }

    #[test]
    fn what_cannot_hang_is_refused() {
        // No archive, no place, no version.
        assert!(hang_in_init(&mut uki(&[&ZSTD[..], &[0; 512]].concat())).is_err());
        let tight = [&Cpio::default().finish()[..], &ZSTD].concat();
        assert!(hang_in_init(&mut uki(&tight)).is_err());
        let mut nameless = uki(&[0; 512]);
        nameless[0x1202] = 0;
        assert!(hang_in_init(&mut nameless).is_err());
    }
}
