//! Reads what the image needs to know of an x86-64 ELF file: interpreter, needed libraries, required glibc, tables.
//! Total: a damaged file gives `None`, never a panic.

/// The dynamic linking facts of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elf {
    /// `PT_INTERP`, absent in static programs and libraries.
    pub interpreter: Option<String>,
    /// `DT_NEEDED` in file order.
    pub needed: Vec<String>,
    /// Newest `GLIBC_x.y` symbol version it asks for.
    pub glibc: Option<(u32, u32)>,
}

/// Whether `data` begins like an ELF file.
#[must_use]
pub fn is_elf(data: &[u8]) -> bool {
    data.starts_with(b"\x7fELF")
}

/// What a file tells the dynamic linker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dynamic {
    /// Address, offset in the file and size there of each loaded segment.
    pub loads: Vec<(u64, u64, u64)>,
    /// Tags and values of the dynamic section, in order.
    pub tags: Vec<(u64, u64)>,
    /// Where they stand in the file.
    pub at: u64,
}

/// A section header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// `sh_type`.
    pub kind: u64,
    /// `sh_addr`.
    pub address: u64,
    /// `sh_offset`.
    pub offset: u64,
    /// `sh_size`.
    pub size: u64,
}

impl Dynamic {
    /// The value of a tag.
    #[must_use]
    pub fn tag(&self, tag: u64) -> Option<u64> {
        self.tags.iter().find(|(t, _)| *t == tag).map(|(_, value)| *value)
    }

    /// Where an address is in the file.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        let (base, offset, _) =
            self.loads.iter().find(|(base, _, size)| address >= *base && address - base < *size)?;
        offset.checked_add(address - base)
    }
}

struct Headers {
    loads: Vec<(u64, u64, u64)>,
    dynamic: Option<(u64, u64)>,
    interpreter: Option<u64>,
}

fn headers(data: &[u8]) -> Option<Headers> {
    if !is_elf(data) || data.get(4) != Some(&2) || data.get(5) != Some(&1) {
        return None;
    }
    let (phoff, phentsize, phnum) = (int(data, 32, 8)?, int(data, 54, 2)?, int(data, 56, 2)?);
    let mut out = Headers { loads: Vec::new(), dynamic: None, interpreter: None };
    for i in 0..phnum {
        let at = phoff.checked_add(i.checked_mul(phentsize)?)?;
        let (kind, offset) = (int(data, at, 4)?, int(data, at.checked_add(8)?, 8)?);
        let (address, size) = (int(data, at.checked_add(16)?, 8)?, int(data, at.checked_add(32)?, 8)?);
        match kind {
            1 => out.loads.push((address, offset, size)),
            2 => out.dynamic = Some((offset, size)),
            3 => out.interpreter = Some(offset),
            _ => {}
        }
    }
    Some(out)
}

/// The dynamic section, if there is one; `None` for what is no 64-bit little-endian ELF file or a damaged one.
#[must_use]
pub fn dynamic(data: &[u8]) -> Option<Option<Dynamic>> {
    section(data, headers(data)?)
}

fn section(data: &[u8], headers: Headers) -> Option<Option<Dynamic>> {
    let Some((at, size)) = headers.dynamic else { return Some(None) };
    Some(Some(Dynamic { loads: headers.loads, tags: dynamic_tags(data, at, size)?, at }))
}

/// The section headers with their places in the file.
#[must_use]
pub fn sections(data: &[u8]) -> Option<Vec<(u64, Section)>> {
    let (start, size, count) = (int(data, 40, 8)?, int(data, 58, 2)?, int(data, 60, 2)?);
    let mut out = Vec::new();
    for i in 0..count {
        let at = start.checked_add(i.checked_mul(size)?)?;
        let word = |n: u64, width| int(data, at.checked_add(n)?, width);
        let (kind, address, offset, size) = (word(4, 4)?, word(16, 8)?, word(24, 8)?, word(32, 8)?);
        out.push((at, Section { kind, address, offset, size }));
    }
    Some(out)
}

/// Parses a 64-bit little-endian ELF file.
#[must_use]
pub fn parse(data: &[u8]) -> Option<Elf> {
    let headers = headers(data)?;
    let interpreter = headers.interpreter.map(|at| string(data, at).ok_or(())).transpose().ok()?;
    let mut elf = Elf { interpreter, ..Elf::default() };
    let Some(file) = section(data, headers)? else { return Some(elf) };
    let Some(strings) = file.tag(5).and_then(|a| file.offset(a)) else { return Some(elf) };
    for (_, value) in file.tags.iter().filter(|(t, _)| *t == 1) {
        elf.needed.push(string(data, strings.checked_add(*value)?)?);
    }
    // DT_VERNEED, DT_VERNEEDNUM
    let needed = file.tag(0x6fff_fffe).and_then(|a| file.offset(a));
    if let (Some(at), Some(count)) = (needed, file.tag(0x6fff_ffff)) {
        elf.glibc = newest_glibc(data, at, count, strings);
    }
    Some(elf)
}

fn dynamic_tags(data: &[u8], offset: u64, size: u64) -> Option<Vec<(u64, u64)>> {
    let mut tags = Vec::new();
    for i in 0..size / 16 {
        let at = offset.checked_add(i * 16)?;
        let tag = int(data, at, 8)?;
        if tag == 0 {
            break;
        }
        tags.push((tag, int(data, at.checked_add(8)?, 8)?));
    }
    Some(tags)
}

fn newest_glibc(data: &[u8], mut at: u64, count: u64, strings: u64) -> Option<(u32, u32)> {
    let mut newest = None;
    for _ in 0..count.min(1024) {
        let (aux_count, aux, next) = (
            int(data, at.checked_add(2)?, 2)?,
            int(data, at.checked_add(8)?, 4)?,
            int(data, at.checked_add(12)?, 4)?,
        );
        let mut entry = at.checked_add(aux)?;
        for _ in 0..aux_count {
            let name = string(data, strings.checked_add(int(data, entry.checked_add(8)?, 4)?)?)?;
            newest = newest.max(glibc_version(&name));
            entry = entry.checked_add(int(data, entry.checked_add(12)?, 4)?)?;
        }
        if next == 0 {
            break;
        }
        at = at.checked_add(next)?;
    }
    newest
}

fn glibc_version(name: &str) -> Option<(u32, u32)> {
    let mut parts = name.strip_prefix("GLIBC_")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A little-endian number of `width` bytes, at most 8.
pub(super) fn int(data: &[u8], at: u64, width: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = data.get(at..at.checked_add(width)?)?;
    let mut value = [0u8; 8];
    value[..width].copy_from_slice(bytes);
    Some(u64::from_le_bytes(value))
}

/// A string that ends with a zero byte, of at most 4 KiB.
pub(super) fn string(data: &[u8], at: u64) -> Option<String> {
    let rest = data.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().take(4096).position(|b| *b == 0)?;
    String::from_utf8(rest[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_test_program_needs_libc() {
        let me = std::fs::read(std::env::current_exe().expect("path")).expect("readable");
        let elf = parse(&me).expect("an ELF file");
        assert!(elf.needed.iter().any(|n| n == "libc.so.6"), "{elf:?}");
        assert!(elf.interpreter.expect("dynamic").contains("ld-linux"));
        assert!(elf.glibc.expect("versioned") >= (2, 17));
    }

    #[test]
    fn damaged_files_are_refused_quietly() {
        let me = std::fs::read(std::env::current_exe().expect("path")).expect("readable");
        for cut in [0, 4, 5, 20, 63, 64, 200, 1000] {
            let _ = parse(&me[..cut]);
        }
        assert_eq!(parse(b"#!/bin/sh"), None);
    }
}
