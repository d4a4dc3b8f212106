//! Packs orlop-initrd, as `/init`, and its modules into the initrd, behind the microcode (seam: docs/internals/architecture.md, "Initrd").

use super::binaries::Binaries;
use super::{Builder, base_tool};
use crate::arch::Arch;
use crate::format::cpio::Cpio;
use crate::format::microcode::{self, MicrocodeFile};
use crate::host::run;
use crate::plan::BuildStep;
use crate::select::modules::{self, Deps};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes `out/initrd`: the archive with microcode, which the kernel reads uncompressed, and init's (zstd). Where the
/// architecture has no microcode, init's is alone.
pub(super) fn build(builder: &Builder, out: &Path) -> Result<String> {
    let base = builder.result(BuildStep::Base)?.join("base");
    let module_root = module_root(&base)?;
    let deps = Deps::parse(&fs::read_to_string(module_root.join("modules.dep"))?);
    let of_image = |name: &str| -> Result<String> {
        let text = fs::read_to_string(builder.dirs.source.join(name)).context(name.to_owned())?;
        Ok(builder.dirs.arch.fill(&text))
    };
    let list = of_image("image/initrd-modules.txt")?;
    let aliases = fs::read_to_string(module_root.join("modules.alias"))?;
    let order = modules::initrd(&deps, &aliases, &modules::wanted(&list)).map_err(|unknown| {
        anyhow!("image/initrd-modules.txt: the kernel has no module {}", unknown.join(", "))
    })?;

    let hardware = of_image("image/initrd-hardware.txt")?;
    let undriven = modules::undriven(&hardware, &order);
    if !undriven.is_empty() {
        bail!("image/initrd-hardware.txt has what the initrd does not drive:\n  {}", undriven.join("\n  "));
    }

    let mut cpio = Cpio::default();
    let mut dirs = BTreeSet::new();
    let version = module_root.file_name().context("the module directory has a name")?.to_string_lossy();
    let mut lines = String::new();
    let mut files = Vec::new();
    for module in &order {
        let path = module.path.as_str();
        let data = fs::read(module_root.join(path)).with_context(|| format!("reading {path}"))?;
        // Uncompressed, unless it is seldom needed: the whole archive is compressed, and the kernel's XZ decoder is slow.
        let (name, data) = match path.strip_suffix(".xz") {
            Some(name) if !module.packed => {
                (name, run::filter(base_tool(builder)?.args(["xz", "-dc"]), "xz", &data)?)
            }
            _ => (path, data),
        };
        let to = format!("lib/modules/{version}/{name}");
        lines.push_str(&format!("/{to} {}\n", module.words.join(" ")));
        files.push((to, data));
    }
    for path in ["etc/orlop/modules"].into_iter().chain(files.iter().map(|(p, _)| p.as_str())) {
        for (i, _) in path.match_indices('/') {
            dirs.insert(path[..i].to_owned());
        }
    }
    for dir in dirs.iter().map(String::as_str).chain(["dev", "proc", "run", "sys"]) {
        cpio.dir(dir);
    }
    let init = Binaries::of(builder).initrd;
    cpio.file("init", 0o755, &fs::read(init)?);
    cpio.file("etc/orlop/modules", 0o644, lines.as_bytes());
    for (path, data) in &files {
        cpio.file(path, 0o644, data);
    }
    let packed = run::filter(base_tool(builder)?.args(["zstd", "-19", "-c", "-q"]), "zstd", &cpio.finish())?;
    let list = fs::read_to_string(builder.dirs.source.join("image/microcode.txt"))?;
    let early = microcode_archive(builder.dirs.arch, &list, &base.join("usr/lib/firmware"))?;
    fs::write(out.join("initrd"), [early.as_slice(), packed.as_slice()].concat())?;
    let of_early = match early.len() >> 10 {
        0 => "no microcode".to_owned(),
        kib => format!("microcode {kib} KiB"),
    };
    Ok(format!("{} modules, {} KiB, {of_early}", order.len(), packed.len() >> 10))
}

/// The microcode that an image of the architecture has (docs/decisions/firmware.md), from the directory `firmware`; empty
/// without any.
fn microcode_archive(arch: Arch, list: &str, firmware: &Path) -> Result<Vec<u8>> {
    if arch.facts().microcode_packages.is_empty() {
        return Ok(Vec::new());
    }
    let intel = microcode::wanted(list).map(|name| {
        // Debian's name of those that a running kernel must not load.
        let names = [name.to_owned(), format!("{name}.initramfs")];
        let found = names.iter().map(|n| firmware.join("intel-ucode").join(n)).find(|path| path.is_file());
        let path = found.with_context(|| format!("image/microcode.txt: no package has {name}"))?;
        microcode_file(&path)
    });
    let dir = firmware.join("amd-ucode");
    let entries = fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "bin"));
    paths.sort();
    let amd = paths.iter().map(|path| microcode_file(path));
    microcode::archive(&intel.collect::<Result<Vec<_>>>()?, &amd.collect::<Result<Vec<_>>>()?)
}

fn microcode_file(path: &Path) -> Result<MicrocodeFile> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), bytes))
}

fn module_root(base: &Path) -> Result<PathBuf> {
    let dir = base.join("usr/lib/modules");
    let mut found: Vec<PathBuf> = fs::read_dir(&dir)?.filter_map(|e| e.ok().map(|e| e.path())).collect();
    found.sort();
    found.pop().with_context(|| format!("no kernel in {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with microcode of AMD, as a package tree has it.
    fn firmware() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a scratch directory");
        fs::create_dir(dir.path().join("amd-ucode")).expect("make");
        fs::write(dir.path().join("amd-ucode/microcode_amd.bin"), b"DMA\0update").expect("write");
        fs::write(dir.path().join("amd-ucode/README"), b"text").expect("write");
        dir
    }

    #[test]
    fn only_x86_64_has_microcode_before_its_initrd() {
        let dir = firmware();
        let early = microcode_archive(Arch::Amd64, "# none of Intel\n", dir.path()).expect("an archive");
        assert!(early.starts_with(b"070701"));
        let arm64 = microcode_archive(Arch::Arm64, "06-55-04  44032  Skylake-SP\n", dir.path());
        assert!(arm64.expect("nothing").is_empty());
    }

    #[test]
    fn microcode_that_no_package_has_fails_the_build_of_x86_64_alone() {
        let empty = tempfile::tempdir().expect("a scratch directory");
        assert!(microcode_archive(Arch::Amd64, "", empty.path()).is_err());
        assert!(microcode_archive(Arch::Arm64, "", empty.path()).expect("nothing").is_empty());
        let dir = firmware();
        let said = microcode_archive(Arch::Amd64, "06-55-04", dir.path()).expect_err("none of Intel");
        assert_eq!(said.to_string(), "image/microcode.txt: no package has 06-55-04");
    }
}
