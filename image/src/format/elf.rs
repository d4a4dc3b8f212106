//! Reads what the image needs to know of a 64-bit little-endian ELF file: machine, interpreter, needed libraries, required glibc, tables.
//! Total: a damaged file gives `None`, never a panic. The `object` crate knows the layouts; offsets are kept because a file is changed
//! in place ([`bind`](super::bind)).

use object::LittleEndian;
use object::elf::{self as raw, FileHeader64, PT_DYNAMIC, PT_LOAD, SectionHeader64, Vernaux, Verneed};
use object::read::ReadRef;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

const DT_NULL: u64 = raw::DT_NULL.cast_unsigned();
const DT_NEEDED: u64 = raw::DT_NEEDED.cast_unsigned();
const DT_STRTAB: u64 = raw::DT_STRTAB.cast_unsigned();
const DT_VERNEED: u64 = raw::DT_VERNEED.cast_unsigned();
const DT_VERNEEDNUM: u64 = raw::DT_VERNEEDNUM.cast_unsigned();

/// The dynamic linking facts of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elf {
    /// `e_machine`.
    pub machine: u16,
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

/// What a file contains for the dynamic linker.
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

type Header = FileHeader64<LittleEndian>;

/// The file's header; `None` for what is no 64-bit little-endian ELF file.
fn header(data: &[u8]) -> Option<(&Header, LittleEndian)> {
    let header = Header::parse(data).ok()?;
    Some((header, header.endian().ok()?))
}

/// The dynamic section, if there is one; `None` for what is no 64-bit little-endian ELF file or a damaged one.
#[must_use]
pub fn dynamic(data: &[u8]) -> Option<Option<Dynamic>> {
    let (header, le) = header(data)?;
    let segments = header.program_headers(le, data).ok()?;
    let Some(segment) = segments.iter().rfind(|s| s.p_type(le) == PT_DYNAMIC) else { return Some(None) };
    let loaded = segments.iter().filter(|s| s.p_type(le) == PT_LOAD);
    let entries = segment.dynamic(le, data).ok()??;
    let tags = entries.iter().map(|entry| (entry.d_tag.get(le).cast_unsigned(), entry.d_val.get(le)));
    Some(Some(Dynamic {
        loads: loaded.map(|s| (s.p_vaddr(le), s.p_offset(le), s.p_filesz(le))).collect(),
        tags: tags.take_while(|(tag, _)| *tag != DT_NULL).collect(),
        at: segment.p_offset(le),
    }))
}

/// The section headers with their places in the file.
#[must_use]
pub fn sections(data: &[u8]) -> Option<Vec<(u64, Section)>> {
    let (header, le) = header(data)?;
    let size = u64::from(header.e_shentsize(le));
    let headers = header.section_headers(le, data).ok()?;
    let section = |(i, s): (u64, &SectionHeader64<LittleEndian>)| {
        let (kind, address) = (s.sh_type(le).into(), s.sh_addr(le));
        let section = Section { kind, address, offset: s.sh_offset(le), size: s.sh_size(le) };
        (header.e_shoff(le) + i * size, section)
    };
    Some((0..).zip(headers).map(section).collect())
}

/// Parses a 64-bit little-endian ELF file.
#[must_use]
pub fn parse(data: &[u8]) -> Option<Elf> {
    let (header, le) = header(data)?;
    let mut elf = Elf { machine: header.e_machine(le), ..Elf::default() };
    for segment in header.program_headers(le, data).ok()? {
        if let Some(path) = segment.interpreter(le, data).ok()? {
            elf.interpreter = Some(String::from_utf8(path.to_vec()).ok()?);
        }
    }
    let Some(file) = dynamic(data)? else { return Some(elf) };
    let Some(strings) = file.tag(DT_STRTAB).and_then(|a| file.offset(a)) else { return Some(elf) };
    for (_, value) in file.tags.iter().filter(|(t, _)| *t == DT_NEEDED) {
        elf.needed.push(string(data, strings.checked_add(*value)?)?);
    }
    let needed = file.tag(DT_VERNEED).and_then(|a| file.offset(a));
    if let (Some(at), Some(count)) = (needed, file.tag(DT_VERNEEDNUM)) {
        elf.glibc = newest_glibc(data, at, count, strings);
    }
    Some(elf)
}

/// The crate finds versions by the section headers, which the dynamic linker does not need; here the dynamic section says where
/// they are.
fn newest_glibc(data: &[u8], mut at: u64, count: u64, strings: u64) -> Option<(u32, u32)> {
    let (le, mut newest) = (LittleEndian, None);
    for _ in 0..count.min(1024) {
        let needed: &Verneed<LittleEndian> = data.read_at(at).ok()?;
        let mut entry = at.checked_add(needed.vn_aux.get(le).into())?;
        for _ in 0..needed.vn_cnt.get(le) {
            let version: &Vernaux<LittleEndian> = data.read_at(entry).ok()?;
            let name = string(data, strings.checked_add(version.vna_name.get(le).into())?)?;
            newest = newest.max(glibc_version(&name));
            entry = entry.checked_add(version.vna_next.get(le).into())?;
        }
        match needed.vn_next.get(le) {
            0 => break,
            next => at = at.checked_add(next.into())?,
        }
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
        assert_eq!(elf.machine, crate::arch::Arch::HOST.facts().elf_machine);
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
