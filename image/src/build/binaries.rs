//! Compiles our programs with cargo, and checks that the agent runs with the image's C library and the others without, and that
//! init's two programs are within their limits.

use super::{AGENT_PROFILE, Builder};
use crate::arch::Arch;
use crate::format::{digest, elf};
use crate::host::{self, run};
use crate::profile::Profile;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// glibc of Debian trixie.
const IMAGE_GLIBC: (u32, u32) = (2, 41);
/// Packages of the static programs, and the programs of each.
const STATIC: [(&str, &[&str]); 2] =
    [("orlop-init", &["orlop-init", "orlop-initrd"]), ("orlop-cni", &["orlop-cni"])];
/// Largest programs of a release for x86-64, bytes (docs/decisions/init-size.md).
const LIMITS: [(&str, u64); 2] = [("orlop-init", 2_500_000), ("orlop-initrd", 2_600_000)];

/// Paths of the freshly compiled programs.
pub(super) struct Binaries {
    /// The agent, linked to the image's C library.
    pub(super) agent: PathBuf,
    /// What runs of init on the node, static: in the root.
    pub(super) init: PathBuf,
    /// PID 1 of the initrd, static: in the initrd alone.
    pub(super) initrd: PathBuf,
    /// The CNI plugin, static.
    pub(super) cni: PathBuf,
}

impl Binaries {
    pub(super) fn of(builder: &Builder) -> Binaries {
        let work = builder.dirs.work();
        let [agent, init, initrd, cni] =
            ["orlop-agent", "orlop-init", "orlop-initrd", "orlop-cni"].map(|name| work.join(name));
        Binaries { agent, init, initrd, cni }
    }

    fn all(&self) -> [(&'static str, &'static str, &Path); 4] {
        [
            ("orlop-agent", "bin.agent", &self.agent),
            ("orlop-init", "bin.init", &self.init),
            ("orlop-initrd", "bin.initrd", &self.initrd),
            ("orlop-cni", "bin.cni", &self.cni),
        ]
    }
}

/// Compiles them and notes the facts `bin.agent`, `bin.init`, `bin.initrd` and `bin.cni`.
pub(super) fn compile(builder: &mut Builder) -> Result<String> {
    let binaries = Binaries::of(builder);
    match builder.options.binaries.clone() {
        Some(dir) => {
            for (name, _, to) in binaries.all() {
                take(&dir.join(name), to)?;
            }
        }
        None => {
            let profile = builder.options.agent_profile(builder.profile);
            builder.facts.set(AGENT_PROFILE, profile);
            compile_all(builder, &binaries, profile)?;
        }
    }
    for (name, _, path) in binaries.all() {
        check_machine(builder.dirs.arch, name, path)?;
    }
    check_agent(&binaries.agent)?;
    check_static("orlop-init", &binaries.init)?;
    check_static("orlop-initrd", &binaries.initrd)?;
    check_static("orlop-cni", &binaries.cni)?;
    let mut sizes = Vec::new();
    for (name, fact, path) in binaries.all() {
        builder.facts.set(fact, digest::file(path)?);
        sizes.push((name, fs::metadata(path)?.len()));
    }
    builder.facts.set("rustc", rustc_version()?);
    let note: Vec<String> = sizes.iter().map(|(name, bytes)| format!("{name} {} KiB", bytes >> 10)).collect();
    match oversize(builder.dirs.arch, &sizes) {
        Some(why) if builder.profile == Profile::Release => bail!(why),
        why => Ok(note.into_iter().chain(why).collect::<Vec<_>>().join(", ")),
    }
}

/// The programs that are larger than they may be, if there are any. The limits are those of x86-64: code for arm64 has another size,
/// and its linker does not merge equal functions.
fn oversize(arch: Arch, sizes: &[(&str, u64)]) -> Option<String> {
    if arch != Arch::Amd64 {
        return None;
    }
    let limit = |name: &str| LIMITS.iter().find(|(of, _)| *of == name).map_or(u64::MAX, |(_, limit)| *limit);
    let too_large = sizes.iter().filter(|(name, bytes)| *bytes > limit(name));
    let lines: Vec<String> = too_large
        .map(|(name, bytes)| format!("{name} has {bytes} bytes, its limit is {}", limit(name)))
        .collect();
    let why = || format!("{} (docs/decisions/init-size.md)", lines.join("; "));
    (!lines.is_empty()).then(why)
}

fn compile_all(builder: &Builder, binaries: &Binaries, agent_profile: &str) -> Result<()> {
    let (arch, triple) = (builder.dirs.arch, builder.dirs.arch.facts().rust_target);
    let target = target_dir(builder)?;
    let mut agent = cargo(builder, agent_profile);
    agent.args(["--package", "orlop-agent"]);
    if arch != Arch::HOST {
        ensure_target(builder)?;
        agent.args(["--target", triple]);
    }
    run::logged(&mut agent, "compiling orlop-agent", &builder.log)?;
    // One package after the other: together they would share the features of their dependencies.
    for (package, programs) in STATIC {
        let mut command = cargo(builder, "init");
        // A target of its own keeps these flags away from build scripts and from other builds.
        command.args(["--package", package, "--target", triple]);
        command.args(programs.iter().flat_map(|program| ["--bin", *program]));
        command.env("RUSTFLAGS", static_flags(arch));
        run::logged(&mut command, &format!("compiling {}", programs.join(" and ")), &builder.log)?;
    }
    let of_agent = if arch == Arch::HOST { target.clone() } else { target.join(triple) };
    take(&of_agent.join(agent_profile).join("orlop-agent"), &binaries.agent)?;
    let small = target.join(triple).join("init");
    take(&small.join("orlop-init"), &binaries.init)?;
    take(&small.join("orlop-initrd"), &binaries.initrd)?;
    take(&small.join("orlop-cni"), &binaries.cni)
}

/// The compiler's flags for the static programs.
fn static_flags(arch: Arch) -> String {
    // A panic ends the program, and none of them prints a backtrace: no function needs tables for unwinding.
    let mut flags =
        "-C target-feature=+crt-static -C relocation-model=static -C force-unwind-tables=no".to_owned();
    // Functions with the same instructions become one. Rust's own linker is the default on this architecture alone; GNU's ld, which
    // links for others, cannot do that.
    if arch == Arch::Amd64 {
        flags.push_str(" -C link-arg=-Wl,--icf=all");
    }
    flags
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
    fn a_program_beyond_its_limit_is_named_with_both_sizes() {
        let sizes = |init: u64, initrd: u64| {
            [("orlop-cni", u64::MAX), ("orlop-init", init), ("orlop-initrd", initrd)]
        };
        let [init_max, initrd_max] = LIMITS.map(|(_, limit)| limit);
        assert_eq!(oversize(Arch::Amd64, &sizes(init_max, initrd_max)), None);
        let why = oversize(Arch::Amd64, &sizes(init_max, initrd_max + 1)).expect("too large");
        let want = format!("orlop-initrd has {} bytes, its limit is {initrd_max} (docs/", initrd_max + 1);
        assert!(why.starts_with(&want), "{why}");
        let why = oversize(Arch::Amd64, &sizes(init_max + 1, initrd_max + 1)).expect("too large");
        assert!(why.starts_with("orlop-init has ") && why.contains("; orlop-initrd has "), "{why}");
        assert_eq!(oversize(Arch::Arm64, &sizes(init_max + 1, initrd_max + 1)), None);
    }

    #[test]
    fn each_limit_is_of_a_static_program() {
        for (name, _) in LIMITS {
            assert!(STATIC.iter().any(|(_, programs)| programs.contains(&name)), "{name}");
        }
    }

    #[test]
    fn only_rusts_own_linker_is_asked_to_merge_functions() {
        let merges = |arch: Arch| static_flags(arch).contains("--icf=all");
        assert!(merges(Arch::Amd64) && !merges(Arch::Arm64));
        for arch in Arch::ALL {
            assert!(static_flags(arch).contains("+crt-static"), "{}", arch.name());
        }
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
