//! Binds a library to itself ahead of time: a relocation that names a symbol which only the library defines becomes
//! one that names none (`R_X86_64_RELATIVE`), and the dynamic linker has nothing to look up for it.
//!
//! Pure: bytes in, bytes out. Sources: the ELF gABI, the x86-64 psABI, and the GNU extensions as elf.h names them.
//! What it relies on is checked, and a file in which it does not hold is refused with the reason.

use super::elf;
use std::collections::BTreeMap;

const RELATIVE: u64 = 8;
const RELA_SIZE: u64 = 24;
/// `R_X86_64_64`, `R_X86_64_GLOB_DAT`, `R_X86_64_JUMP_SLOT`: each is the symbol's address, the first with an addend.
const BY_ADDRESS: [u64; 3] = [1, 6, 7];
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELAENT: u64 = 9;
const DT_PLTRELSZ: u64 = 2;
const DT_PLTREL: u64 = 20;
const DT_JMPREL: u64 = 23;
const DT_RELACOUNT: u64 = 0x6fff_fff9;

/// Who defines what in the whole root: name -> the versions under which files define it; none: under any.
#[derive(Debug, Default)]
pub struct Definitions(BTreeMap<String, Vec<Option<String>>>);

impl Definitions {
    /// Adds what `data` defines, as far as the dynamic linker could find it.
    ///
    /// # Errors
    /// If that is unknown: then no library can be bound.
    pub fn add(&mut self, data: &[u8]) -> Result<(), &'static str> {
        let Some(file) = elf::dynamic(data).ok_or("a damaged ELF file")? else { return Ok(()) };
        for symbol in symbols(data, &file)?.into_iter().skip(1).filter(|s| s.defined || s.value != 0) {
            self.0.entry(symbol.name).or_default().push(symbol.version);
        }
        Ok(())
    }

    /// Whether only one file defines this name under this version.
    fn only_one(&self, name: &str, version: Option<&str>) -> bool {
        let answers = |v: &&Option<String>| version.is_none() || v.is_none() || v.as_deref() == version;
        self.0.get(name).is_some_and(|found| found.iter().filter(answers).count() == 1)
    }
}

/// A library bound to itself.
#[derive(Debug)]
pub struct Bound {
    /// The file.
    pub data: Vec<u8>,
    /// Relocations that name a symbol no more.
    pub bound: usize,
    /// Relocations that still do.
    pub left: usize,
}

struct Symbol {
    name: String,
    /// None: no version of its own.
    version: Option<String>,
    defined: bool,
    /// A function, an object or untyped, at an address of the file, global or weak.
    plain: bool,
    value: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rela {
    offset: u64,
    info: u64,
    addend: u64,
}

/// Binds `data`.
///
/// # Errors
/// The reason why it has to stay as it is.
pub fn bind(data: &[u8], all: &Definitions) -> Result<Bound, &'static str> {
    let file = elf::dynamic(data).flatten().ok_or("no dynamic ELF file")?;
    let now = file.tag(30).is_some_and(|f| f & 8 != 0) || file.tag(0x6fff_fffb).is_some_and(|f| f & 1 != 0);
    if !now {
        return Err("not bound at its start (BIND_NOW)");
    }
    if file.tag(DT_RELAENT) != Some(RELA_SIZE) || file.tag(DT_PLTREL) != Some(DT_RELA) {
        return Err("relocations of another form");
    }
    let need = |t| file.tag(t).ok_or("no two tables of relocations");
    let (rela, size, plt, plt_size, count) =
        (need(DT_RELA)?, need(DT_RELASZ)?, need(DT_JMPREL)?, need(DT_PLTRELSZ)?, need(DT_RELACOUNT)?);
    if rela.checked_add(size) != Some(plt) || size % RELA_SIZE != 0 || plt_size % RELA_SIZE != 0 {
        return Err("its two tables of relocations are not one after the other");
    }
    let start = file.offset(rela).ok_or("relocations outside the file")?;
    let symbols = symbols(data, &file)?;
    let (mut relative, mut other, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    let before = size.checked_add(plt_size).ok_or("relocations outside the file")? / RELA_SIZE;
    let mut bound = 0;
    for i in 0..before {
        let entry = read(data, start + i * RELA_SIZE).ok_or("relocations outside the file")?;
        let in_plt = i * RELA_SIZE >= size;
        if entry.info == RELATIVE && !in_plt {
            relative.push(entry);
        } else if i < count {
            return Err("a wrong DT_RELACOUNT");
        } else if let Some(entry) = resolve(entry, &symbols, all) {
            bound += 1;
            relative.push(entry);
        } else if in_plt {
            calls.push(entry);
        } else {
            other.push(entry);
        }
    }
    relative.sort_by_key(|r| r.offset);
    if relative.windows(2).any(|w| w[0].offset == w[1].offset) {
        return Err("two relocations of one place");
    }
    if count > before {
        return Err("a wrong DT_RELACOUNT");
    }
    let (new_count, left) = (relative.len() as u64, other.len() + calls.len());
    let new_size = (relative.len() + other.len()) as u64 * RELA_SIZE;
    let new_plt_size = calls.len() as u64 * RELA_SIZE;
    let mut out = data.to_vec();
    for (i, entry) in (0u64..).zip(relative.iter().chain(&other).chain(&calls)) {
        for (n, word) in (0u64..).zip([entry.offset, entry.info, entry.addend]) {
            write(&mut out, start + i * RELA_SIZE + n * 8, word).ok_or("relocations outside the file")?;
        }
    }
    let new_tags = [
        (DT_RELASZ, new_size),
        (DT_JMPREL, rela + new_size),
        (DT_PLTRELSZ, new_plt_size),
        (DT_RELACOUNT, new_count),
    ];
    for (i, (tag, _)) in (0u64..).zip(&file.tags) {
        if let Some((_, value)) = new_tags.iter().find(|(t, _)| t == tag) {
            write(&mut out, file.at + i * 16 + 8, *value).ok_or("a damaged dynamic section")?;
        }
    }
    // For people's tools: the dynamic linker does not read section headers.
    for (header, section) in elf::sections(data).ok_or("damaged section headers")? {
        let (address, size) = match (section.kind, section.address) {
            (4, at) if at == rela => (rela, new_size),
            (4, at) if at == plt => (rela + new_size, new_plt_size),
            _ => continue,
        };
        for (at, value) in [(16, address), (24, start + address - rela), (32, size)] {
            write(&mut out, header + at, value).ok_or("damaged section headers")?;
        }
    }
    Ok(Bound { data: out, bound, left })
}

/// The relocation without its symbol, if that is known now.
fn resolve(entry: Rela, symbols: &[Symbol], all: &Definitions) -> Option<Rela> {
    let (kind, index) = (entry.info & 0xffff_ffff, entry.info >> 32);
    let symbol = symbols.get(usize::try_from(index).ok()?).filter(|_| index != 0)?;
    if !BY_ADDRESS.contains(&kind) || !symbol.defined || !symbol.plain || (kind != 1 && entry.addend != 0) {
        return None;
    }
    all.only_one(&symbol.name, symbol.version.as_deref()).then_some(Rela {
        offset: entry.offset,
        info: RELATIVE,
        addend: symbol.value.wrapping_add(entry.addend),
    })
}

/// All of `.dynsym`, the first (empty) one too.
fn symbols(data: &[u8], file: &elf::Dynamic) -> Result<Vec<Symbol>, &'static str> {
    const WRONG: &str = "a damaged table of symbols";
    let sections = elf::sections(data).ok_or("damaged section headers")?;
    let table = |kind| sections.iter().map(|(_, s)| s).find(|s| s.kind == kind);
    let dynsym = table(11).ok_or("no section of dynamic symbols")?;
    if file.tag(6) != Some(dynsym.address) {
        return Err("two tables of dynamic symbols");
    }
    let strings = file.tag(5).and_then(|a| file.offset(a)).ok_or(WRONG)?;
    let versions = match (file.tag(0x6fff_fffc), file.tag(0x6fff_fffd)) {
        (Some(at), Some(count)) => {
            let at = file.offset(at).ok_or(WRONG)?;
            defined_versions(data, at, count, strings).ok_or(WRONG)?
        }
        _ => BTreeMap::new(),
    };
    let versym = file.tag(0x6fff_fff0).map(|a| file.offset(a).ok_or(WRONG)).transpose()?;
    let mut out = Vec::new();
    for i in 0..dynsym.size / 24 {
        let at = dynsym.offset.checked_add(i * 24).ok_or(WRONG)?;
        let word = |offset, width| elf::int(data, at.checked_add(offset)?, width);
        let word = |offset, width| word(offset, width).ok_or(WRONG);
        let (info, section) = (word(4, 1)?, word(6, 2)?);
        let index = match versym {
            Some(start) => {
                start.checked_add(i * 2).and_then(|at| elf::int(data, at, 2)).ok_or(WRONG)? & 0x7fff
            }
            None => 1,
        };
        out.push(Symbol {
            name: strings.checked_add(word(0, 4)?).and_then(|at| elf::string(data, at)).ok_or(WRONG)?,
            version: versions.get(&index).cloned(),
            defined: section != 0,
            plain: section < 0xff00 && info & 15 <= 2 && [1, 2].contains(&(info >> 4)),
            value: word(8, 8)?,
        });
    }
    Ok(out)
}

/// Version index -> name, of the versions that the file defines, its own name (index 1) left out.
fn defined_versions(data: &[u8], mut at: u64, count: u64, strings: u64) -> Option<BTreeMap<u64, String>> {
    let mut out = BTreeMap::new();
    for _ in 0..count.min(1024) {
        let (index, aux, next) = (
            elf::int(data, at.checked_add(4)?, 2)?,
            elf::int(data, at.checked_add(12)?, 4)?,
            elf::int(data, at.checked_add(16)?, 4)?,
        );
        let name = elf::int(data, at.checked_add(aux)?, 4)?;
        if index > 1 {
            out.insert(index, elf::string(data, strings.checked_add(name)?)?);
        }
        at = at.checked_add(next)?;
    }
    Some(out)
}

fn read(data: &[u8], at: u64) -> Option<Rela> {
    let word = |n: u64| elf::int(data, at.checked_add(n)?, 8);
    Some(Rela { offset: word(0)?, info: word(8)?, addend: word(16)? })
}

fn write(data: &mut [u8], at: u64, value: u64) -> Option<()> {
    let at = usize::try_from(at).ok()?;
    data.get_mut(at..at.checked_add(8)?)?.copy_from_slice(&value.to_le_bytes());
    Some(())
}

#[cfg(test)]
#[path = "bind_tests.rs"]
mod tests;
