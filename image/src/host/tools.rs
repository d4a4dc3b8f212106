//! What the host itself must have: everything else comes in the tools tree. Missing packages are installed when we
//! are root, else named in one line to type.

use super::run;
use crate::arch::Arch;
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// Needed to build.
pub const BUILD: &[(&str, &str)] = &[
    ("/usr/bin/python3", "python3"),
    ("/usr/bin/apt-get", "apt"),
    ("/usr/bin/dpkg", "dpkg"),
    ("/usr/bin/unshare", "util-linux"),
    ("/usr/bin/cc", "gcc"),
    Arch::HOST.facts().libc,
    (super::apt::KEYRING, "debian-archive-keyring"),
];

/// Needed to boot an image of this machine's architecture; [`EmulatorFacts`](crate::arch::EmulatorFacts) has those of others.
pub const BOOT: &[(&str, &str)] = Arch::HOST.facts().emulator.host_tools;

/// Needed to make keys for Secure Boot.
pub const SECURE_BOOT: &[(&str, &str)] = &[("/usr/bin/openssl", "openssl")];

/// Needed by the tests on top of these (`orlop-e2e`).
pub const TEST: &[(&str, &str)] = &[
    ("/sbin/ip", "iproute2"),
    ("/usr/bin/nsenter", "util-linux"),
    ("/usr/bin/script", "bsdutils"),
    ("/bin/busybox", "busybox-static"),
    ("/sbin/sfdisk", "fdisk"),
    ("/sbin/mkfs.ext4", "e2fsprogs"),
    ("/usr/bin/checkpolicy", "checkpolicy"),
    ("/usr/bin/openssl", "openssl"),
];

/// Needed by the upstream suite's images on top of these: busybox's shell drops variables like `a-b`, which the suite
/// looks for.
pub const SUITE: &[(&str, &str)] = &[("/bin/bash-static", "bash-static")];

/// Needed by the case of the dashboard's page: a browser, and letters for its pictures.
pub const BROWSER: &[(&str, &str)] = &[
    ("/usr/bin/chromium", "chromium"),
    ("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", "fonts-dejavu-core"),
];

/// Needed by the benchmarks on top of these.
pub const BENCH: &[(&str, &str)] =
    &[("/usr/bin/mmdebstrap", "mmdebstrap"), ("/usr/bin/zstd", "zstd"), ("/sbin/mkfs.ext4", "e2fsprogs")];

/// Packages whose file is missing (pure but for the look at the file system).
#[must_use]
pub fn missing(needs: &[(&str, &'static str)]) -> Vec<&'static str> {
    needs.iter().filter(|(path, _)| !Path::new(path).exists()).map(|(_, package)| *package).collect()
}

/// Whether we are root.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Sees to it that the host has what is needed.
///
/// # Errors
/// Something is missing and cannot be installed; the message is the line to type.
pub fn ensure(needs: &[(&str, &'static str)], log: &Path) -> Result<()> {
    let packages = missing(needs);
    if packages.is_empty() {
        return Ok(());
    }
    let line = format!("apt-get install --yes --no-install-recommends {}", packages.join(" "));
    if !is_root() {
        bail!("this machine lacks {}; type:\n    sudo {line}", packages.join(", "));
    }
    let progress = run::Progress::begin(&format!("installing {}", packages.join(" ")));
    // A fresh machine has no package lists yet.
    run::logged(Command::new("apt-get").arg("update"), "apt-get update", log)?;
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(&packages);
    run::logged(install.env("DEBIAN_FRONTEND", "noninteractive"), &line, log)?;
    progress.done("");
    let still = missing(needs);
    if !still.is_empty() {
        bail!("`{line}` ended well, but {} still lack their files", still.join(", "));
    }
    Ok(())
}
