//! Linker options that make the released agent smaller. Most of an idle agent's memory is pages of its program
//! (docs/internals/performance.md).

use std::env;
use std::process::Command;

/// The first C library whose loader reads packed relocations.
const PACKED_SINCE: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|is| is == value);
    if !is("PROFILE", "release") || !is("CARGO_CFG_TARGET_ENV", "gnu") {
        return;
    }
    // Rust's own linker is the default on this architecture alone. GNU's ld, which links for others, lacks both options.
    if !is("CARGO_CFG_TARGET_ARCH", "x86_64") {
        return;
    }
    // 0.57 MB, each byte of which is read at the start. The agent must run where it is built, too (benchmarks do so).
    if c_library().is_some_and(|version| version >= PACKED_SINCE) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // The linker merges functions with the same instructions, 0.36 MB less.
    println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
}

/// The version of this machine's glibc.
fn c_library() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
