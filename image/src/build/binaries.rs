//! Compiles our programs with cargo, and checks that the agent runs with the image's C library and the others without.

use super::Builder;
use crate::arch::Arch;
use crate::format::{digest, elf};
use crate::host::{self, run};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// glibc of Debian trixie.
const IMAGE_GLIBC: (u32, u32) = (2, 41);

/// Paths of the freshly compiled programs.
pub(super) struct Binaries {
    /// The agent, linked to the image's C library.
    pub(super) agent: PathBuf,
    /// init, static.
    pub(super) init: PathBuf,
    /// The CNI plugin, static.
    pub(super) cni: PathBuf,
}

impl Binaries {
    pub(super) fn of(builder: &Builder) -> Binaries {
        let work = builder.dirs.work();
        let [agent, init, cni] = ["orlop-agent", "orlop-init", "orlop-cni"].map(|name| work.join(name));
        Binaries { agent, init, cni }
    }

    fn all(&self) -> [(&'static str, &'static str, &Path); 3] {
        [
            ("orlop-agent", "bin.agent", &self.agent),
            ("orlop-init", "bin.init", &self.init),
            ("orlop-cni", "bin.cni", &self.cni),
        ]
    }
}

/// Compiles them and notes the facts `bin.agent`, `bin.init` and `bin.cni`.
pub(super) fn compile(builder: &mut Builder) -> Result<String> {
    let binaries = Binaries::of(builder);
    match builder.options.binaries.clone() {
        Some(dir) => {
            for (name, _, to) in binaries.all() {
                take(&dir.join(name), to)?;
            }
        }
        None => compile_all(builder, &binaries)?,
    }
    for (name, _, path) in binaries.all() {
        check_machine(builder.dirs.arch, name, path)?;
    }
    check_agent(&binaries.agent)?;
    check_static("orlop-init", &binaries.init)?;
    check_static("orlop-cni", &binaries.cni)?;
    for (_, fact, path) in binaries.all() {
        builder.facts.set(fact, digest::file(path)?);
    }
    builder.facts.set("rustc", rustc_version()?);
    let kib = |p: &Path| fs::metadata(p).map_or(0, |m| m.len() >> 10);
    let sizes = [kib(&binaries.agent), kib(&binaries.init), kib(&binaries.cni)];
    Ok(format!("agent {} KiB, init {} KiB, CNI plugin {} KiB", sizes[0], sizes[1], sizes[2]))
}

fn compile_all(builder: &Builder, binaries: &Binaries) -> Result<()> {
    let (arch, triple) = (builder.dirs.arch, builder.dirs.arch.facts().rust_target);
    let target = target_dir(builder)?;
    let mut agent = cargo(builder, "release");
    agent.args(["--package", "orlop-agent"]);
    if arch != Arch::HOST {
        ensure_target(builder)?;
        agent.args(["--target", triple]);
    }
    run::logged(&mut agent, "compiling orlop-agent", &builder.log)?;
    // One after the other: together they would share the features of their dependencies.
    for name in ["orlop-init", "orlop-cni"] {
        let mut command = cargo(builder, "init");
        // A target of its own keeps these flags away from build scripts and from other builds.
        command.args(["--package", name, "--bin", name, "--target", triple]);
        command.env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static");
        run::logged(&mut command, &format!("compiling {name}"), &builder.log)?;
    }
    let released = if arch == Arch::HOST { target.clone() } else { target.join(triple) };
    take(&released.join("release/orlop-agent"), &binaries.agent)?;
    take(&target.join(triple).join("init/orlop-init"), &binaries.init)?;
    take(&target.join(triple).join("init/orlop-cni"), &binaries.cni)
}

fn cargo(builder: &Builder, profile: &str) -> Command {
    let mut command = host::cargo();
    command.current_dir(&builder.dirs.source).args(["build", "--locked", "--profile", profile]);
    // Paths of this machine do not belong into the image.
    command.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTC_WRAPPER");
    command.envs(cross_environment(builder.dirs.arch));
    command
}

/// What cargo and the C compilers of build scripts (ring has one) must know on a host of another architecture.
fn cross_environment(arch: Arch) -> Vec<(String, &'static str)> {
    if arch == Arch::HOST {
        return Vec::new();
    }
    let (triple, compiler) = (arch.facts().rust_target.replace('-', "_"), arch.facts().cross_compiler);
    vec![
        (format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase()), compiler),
        (format!("CC_{triple}"), compiler),
    ]
}

/// Sees to Rust's standard library for the image's architecture.
fn ensure_target(builder: &Builder) -> Result<()> {
    let triple = builder.dirs.arch.facts().rust_target;
    let mut ask = Command::new("rustc");
    ask.args(["--print", "target-libdir", "--target", triple]);
    let said = run::output(&mut ask, "rustc --print target-libdir")?;
    if Path::new(String::from_utf8_lossy(&said).trim()).is_dir() {
        return Ok(());
    }
    let line = format!("rustup target add {triple}");
    let mut add = Command::new("rustup");
    add.args(["target", "add", triple]);
    run::logged(&mut add, &line, &builder.log)
        .with_context(|| format!("Rust has no standard library for {triple} here, and `{line}` brings none"))
}

fn target_dir(builder: &Builder) -> Result<PathBuf> {
    let mut command = host::cargo();
    command.current_dir(&builder.dirs.source).args(["metadata", "--no-deps", "--format-version=1"]);
    let out = run::output(&mut command, "cargo metadata")?;
    let value: serde_json::Value = serde_json::from_slice(&out).context("parsing cargo metadata")?;
    Ok(PathBuf::from(value["target_directory"].as_str().context("cargo metadata names a target directory")?))
}

pub(super) fn rustc_version() -> Result<String> {
    let out = run::output(Command::new("rustc").arg("-vV"), "rustc -vV")?;
    Ok(digest::bytes(&out))
}

fn take(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn check_machine(arch: Arch, name: &str, path: &Path) -> Result<()> {
    let facts = elf::parse(&fs::read(path)?).with_context(|| format!("{} is no ELF file", path.display()))?;
    if facts.machine != arch.facts().elf_machine {
        bail!("{name} is not for {}: {} is for ELF machine {}", arch.name(), path.display(), facts.machine);
    }
    Ok(())
}

fn check_agent(path: &Path) -> Result<()> {
    let facts = elf::parse(&fs::read(path)?).with_context(|| format!("{} is no ELF file", path.display()))?;
    if let Some((major, minor)) = facts.glibc.filter(|v| *v > IMAGE_GLIBC) {
        bail!(
            "orlop-agent as compiled here needs glibc {major}.{minor}, the image has {}.{}: compile on Debian 13 or \
             older, or Ubuntu 24.04 or older",
            IMAGE_GLIBC.0,
            IMAGE_GLIBC.1
        );
    }
    Ok(())
}

fn check_static(name: &str, path: &Path) -> Result<()> {
    let facts = elf::parse(&fs::read(path)?).with_context(|| format!("{} is no ELF file", path.display()))?;
    if facts.interpreter.is_some() || !facts.needed.is_empty() {
        bail!("{name} is not static: it needs {:?} and {:?}", facts.interpreter, facts.needed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_build_for_another_architecture_names_its_compiler() {
        assert!(cross_environment(Arch::HOST).is_empty());
        let other = Arch::ALL.into_iter().find(|arch| *arch != Arch::HOST).expect("there are two");
        let names: Vec<String> = cross_environment(other).into_iter().map(|(name, _)| name).collect();
        let triple = other.facts().rust_target.replace('-', "_");
        assert_eq!(names, [format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase()), format!("CC_{triple}")]);
    }

    #[test]
    fn a_program_of_another_architecture_is_refused() {
        let own = std::env::current_exe().expect("this program");
        check_machine(Arch::HOST, "own", &own).expect("of this architecture");
        let other = Arch::ALL.into_iter().find(|arch| *arch != Arch::HOST).expect("there are two");
        let why = check_machine(other, "own", &own).expect_err("not of the other one").to_string();
        assert!(why.starts_with(&format!("own is not for {}", other.name())), "{why}");
    }
}
