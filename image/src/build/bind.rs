//! Binds the libraries that every systemd program is linked to, to themselves (docs/internals/image.md).

use super::namespaced;
use crate::arch::Arch;
use crate::format::bind::{self, Definitions};
use crate::format::elf;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// They carry nine tenths of the symbols that are looked up when one of systemd's programs starts.
const LIBRARIES: [(&str, &[&str]); 2] = [
    ("usr/lib/@multiarch@/systemd", &["libsystemd-shared-", "libsystemd-core-"]),
    ("usr/lib/@multiarch@", &["libcrypto.so.", "libmount.so.", "libblkid.so."]),
];
/// Starts with all of them.
const TRIAL: [&str; 2] = ["usr/lib/systemd/systemd", "usr/lib/systemd/systemd-executor"];

/// Binds them below `root`, whose files are `paths`, and says what was done.
pub(super) fn bind<'a>(arch: Arch, root: &Path, paths: impl Iterator<Item = &'a String>) -> Result<String> {
    if !arch.facts().binds_ahead {
        return Ok(format!("no library bound ahead: {}'s relocations are other ones", arch.name()));
    }
    let mut all = Definitions::default();
    for path in paths.filter(|p| !p.starts_with("usr/lib/modules/")) {
        let file = root.join(path);
        if file.symlink_metadata().with_context(|| format!("reading {path}"))?.is_file() {
            let data = fs::read(&file).with_context(|| format!("reading {path}"))?;
            if elf::is_elf(&data)
                && let Err(why) = all.add(&data)
            {
                return Ok(format!("no library bound ahead: /{path} has {why}"));
            }
        }
    }
    let (mut bound, mut left, mut refused) = (0, 0, Vec::new());
    for (dir, names) in LIBRARIES {
        let dir = root.join(arch.fill(dir));
        for name in files(&dir, names)? {
            let file = dir.join(&name);
            match bind::bind(&fs::read(&file)?, &all) {
                Ok(done) => {
                    fs::write(&file, &done.data).with_context(|| format!("writing {name}"))?;
                    (bound, left) = (bound + done.bound, left + done.left);
                }
                Err(why) => refused.push(format!("; {name} not: {why}")),
            }
        }
    }
    for program in TRIAL {
        let output =
            namespaced().arg("chroot").arg(root).arg(format!("/{program}")).arg("--version").output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("with its libraries bound ahead /{program} does not start: {}: {said}", output.status);
        }
    }
    Ok(format!("{bound} relocations bound ahead, {left} left{}", refused.concat()))
}

/// Regular files of `dir` whose names begin with one of `names`, sorted.
fn files(dir: &Path, names: &[&str]) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && names.iter().any(|n| name.starts_with(n)) {
            out.push(name);
        }
    }
    out.sort();
    Ok(out)
}
