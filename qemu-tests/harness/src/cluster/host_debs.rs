//! Programs of the host's distribution that are not installed: downloaded by its apt, unpacked into the cache.
//!
//! In: packages. Out: a directory with their files and those of missing dependencies. Invariant: an existing
//! directory is complete, because it is renamed into place last.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use orlop_image::build::debs::{find_deb, unpack};

use crate::process::must;
use crate::run::{Run, cache_dir};
use crate::say;

/// Where Debian and Ubuntu keep libraries.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// Unpacks the packages, and those that apt would install with them; installed packages are used from the host.
///
/// # Errors
/// apt's message.
pub fn unpacked(run: &Arc<Run>, packages: &[&str]) -> Result<PathBuf> {
    let first = packages.first().context("no packages")?;
    let cache = cache_dir().join(first);
    if cache.is_dir() {
        return Ok(cache);
    }
    say::line(format!("  fetching {} from the host's distribution", packages.join(", ")));
    let mut list = Command::new("apt-get");
    list.args(["--print-uris", "--yes", "--no-install-recommends", "install"]).args(packages);
    let uris = must(run, &mut list)?;
    // Installed packages are not listed, but are needed nevertheless.
    let mut names: Vec<&str> = uris.lines().filter_map(package).chain(packages.iter().copied()).collect();
    names.sort_unstable();
    names.dedup();
    let partial = cache.with_extension(format!("partial-{}", std::process::id()));
    let files = partial.join("files");
    fs::create_dir_all(&files).with_context(|| format!("make {}", files.display()))?;
    must(run, Command::new("apt-get").arg("download").args(&names).current_dir(&files))?;
    for name in names {
        unpack(&find_deb(&files, name)?, &partial.join("root"), &partial.join("log"))?;
    }
    let renamed = fs::rename(partial.join("root"), &cache);
    // Another run may have been faster.
    ensure!(renamed.is_ok() || cache.is_dir(), "rename to {}: {renamed:?}", cache.display());
    fs::remove_dir_all(&partial).with_context(|| format!("remove {}", partial.display()))?;
    Ok(cache)
}

/// The library path for the programs of such a directory (`LD_LIBRARY_PATH`).
#[must_use]
pub fn library_path(root: &Path) -> String {
    LIBRARIES.map(|part| root.join(part).display().to_string()).join(":")
}

/// All files that a program of such a directory is linked with, the dynamic linker among them.
///
/// # Errors
/// If one is missing.
pub fn libraries(run: &Arc<Run>, root: &Path, program: &Path) -> Result<Vec<PathBuf>> {
    let mut ldd = Command::new("ldd");
    let text = must(run, ldd.arg(program).env("LD_LIBRARY_PATH", library_path(root)))?;
    ensure!(!text.contains("not found"), "{} lacks libraries: {text}", program.display());
    Ok(text.lines().filter_map(linked).map(PathBuf::from).collect())
}

/// `'URI' name_version_architecture.deb size digest`: the name.
fn package(line: &str) -> Option<&str> {
    line.strip_prefix('\'')?.split(' ').nth(1)?.split('_').next()
}

/// `name => path (address)`, or for the dynamic linker `path (address)`: the path.
fn linked(line: &str) -> Option<&str> {
    line.split_whitespace().find(|word| word.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_a_list() {
        let line = "'http://deb.example/pool/n/x_4.3-2_amd64.deb' x-y_4.3-2_amd64.deb 123 SHA256:00";
        assert_eq!(package(line), Some("x-y"));
        for other in ["Reading package lists...", "", "'only'"] {
            assert_eq!(package(other), None, "{other}");
        }
    }

    #[test]
    fn files_that_a_program_is_linked_with() {
        let path = "/lib/x86_64-linux-gnu/libc.so.6";
        assert_eq!(linked(&format!("\tlibc.so.6 => {path} (0x00007f07cb86c000)")), Some(path));
        assert_eq!(linked("\t/lib64/ld-linux-x86-64.so.2 (0x0)"), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(linked("\tlinux-vdso.so.1 (0x00007f8f39c52000)"), None);
    }
}
