//! Programs of the host's distribution in the suite's images and on a node under the node's own suite.
//!
//! In: installed packages that every host has, and others that apt fetches (`host_debs`). Out: a program with the
//! libraries that it is linked with, in an image's tree. Invariant: nothing is installed on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

use super::contents::copy;
use crate::cluster::host_debs;
use crate::run::Run;

/// Directory of [`FILES`] on a node.
pub(super) const DIR: &str = "/var/lib/suite/tools";
/// Programs of util-linux that the node's suite runs on the node and Orlop's image does not have, and their paths there.
/// They are linked with libc only, and use the node's.
pub(super) const FILES: [(&str, &str); 2] =
    [("/usr/bin/ipcmk", "/var/lib/suite/tools/ipcmk"), ("/usr/bin/ipcrm", "/var/lib/suite/tools/ipcrm")];

/// Puts `program` of a directory of packages (or of the host: `/`) with its libraries at the path `to` of a tree.
///
/// # Errors
/// If a file is missing, or the tree cannot be written.
pub(crate) fn install(run: &Arc<Run>, root: &Path, program: &Path, tree: &Path, to: &str) -> Result<()> {
    copy(program, &tree.join(to), 0o755)?;
    let content = fs::read(program).with_context(|| format!("read {}", program.display()))?;
    if !is_dynamic(&content) {
        return Ok(());
    }
    for library in host_debs::libraries(run, root, program)? {
        copy(&library, &tree.join(place(&library)?), 0o755)?;
    }
    Ok(())
}

/// True if an ELF program names a dynamic linker (`PT_INTERP`), so that it needs libraries. Pure.
fn is_dynamic(elf: &[u8]) -> bool {
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let part = elf.get(at..at.checked_add(bytes)?)?;
        part.iter().rev().try_fold(0, |all: usize, &byte| Some(all.checked_mul(256)? + usize::from(byte)))
    };
    // The 64-bit header: place, size and number of the program headers.
    let (Some(first), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
        return false;
    };
    elf.starts_with(b"\x7fELF\x02\x01")
        && (0..count).any(|n| first.checked_add(n * size).and_then(|at| number(at, 4)) == Some(3))
}

/// Path of a library in a tree: where the dynamic linker looks for it.
fn place(library: &Path) -> Result<PathBuf> {
    let name = library.file_name().and_then(|n| n.to_str()).context("a library without a name")?;
    let dir = if name.starts_with("ld-linux") { "lib64" } else { "lib/x86_64-linux-gnu" };
    Ok(Path::new(dir).join(name))
}

/// One of several places of a program in a directory of packages: distributions differ.
fn find(root: &Path, places: &[&str]) -> Result<PathBuf> {
    let mut paths = places.iter().map(|place| root.join(place));
    paths.find(|path| path.is_file()).with_context(|| format!("{} has none of {places:?}", root.display()))
}

/// `dig`, and `getent` with glibc's resolver.
///
/// # Errors
/// As [`install`], or a package is not available.
pub(super) fn resolver(run: &Arc<Run>, tree: &Path) -> Result<()> {
    let root = host_debs::unpacked(run, &["bind9-dnsutils"])?;
    install(run, &root, &find(&root, &["usr/bin/dig"])?, tree, "usr/bin/dig")?;
    of_host(run, "usr/bin/getent", tree)
}

/// A netcat with datagrams.
///
/// # Errors
/// As [`install`], or a package is not available.
pub(super) fn netcat(run: &Arc<Run>, tree: &Path) -> Result<()> {
    let root = host_debs::unpacked(run, &["netcat-openbsd"])?;
    install(run, &root, &find(&root, &["bin/nc.openbsd", "usr/bin/nc.openbsd"])?, tree, "usr/bin/nc")
}

/// `ipcs`.
///
/// # Errors
/// As [`install`].
pub(super) fn ipc(run: &Arc<Run>, tree: &Path) -> Result<()> {
    of_host(run, "usr/bin/ipcs", tree)
}

/// Perl without modules.
///
/// # Errors
/// As [`install`].
pub(super) fn perl(run: &Arc<Run>, tree: &Path) -> Result<()> {
    of_host(run, "usr/bin/perl", tree)
}

/// A program of a package that every Debian has.
fn of_host(run: &Arc<Run>, program: &str, tree: &Path) -> Result<()> {
    let root = Path::new("/");
    install(run, root, &find(root, &[program])?, tree, program)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::native::images::host_busybox;

    #[test]
    fn a_program_runs_with_the_libraries_beside_it() {
        let tree = std::env::temp_dir().join(format!("orlop-tools-{}", std::process::id()));
        let run = Run::start().unwrap();
        ipc(&run, &tree).unwrap();
        let linker = tree.join("lib64/ld-linux-x86-64.so.2");
        let output = Command::new(linker)
            .arg("--library-path")
            .arg(tree.join("lib/x86_64-linux-gnu"))
            .arg(tree.join("usr/bin/ipcs"))
            .arg("-m")
            .env_clear()
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        // The second column is the number that the suite looks for.
        let header = text.lines().find(|line| line.starts_with("key")).unwrap();
        assert_eq!(header.split_whitespace().nth(1), Some("shmid"), "{text}");
        run.close();
        fs::remove_dir_all(tree).unwrap();
    }

    #[test]
    fn only_dynamic_programs_need_libraries() {
        assert!(is_dynamic(&fs::read("/usr/bin/env").unwrap()));
        assert!(!is_dynamic(&fs::read(host_busybox().unwrap()).unwrap()));
        let far = [&b"\x7fELF\x02\x01"[..], &[0xff; 58]].concat();
        assert!(!is_dynamic(&far) && !is_dynamic(b"#!/bin/sh\n") && !is_dynamic(b""));
    }

    #[test]
    fn the_nodes_programs_are_in_the_suites_directory() {
        assert!(FILES.iter().all(|(_, to)| Path::new(to).parent() == Some(Path::new(DIR))));
        assert!(find(Path::new("/"), &["usr/bin/no-such", "usr/bin/env"]).unwrap().ends_with("env"));
        assert!(find(Path::new("/"), &["usr/bin/no-such"]).is_err());
    }
}
