//! Command line of `orlop-image`.

use crate::arch::Arch;
use crate::build::{self, Builder, Options, SecureBootOptions};
use crate::plan::plan;
use crate::profile::{Dirs, Profile, find_checkout};
use crate::secure_boot::{self, SecureBootEnroll, SecureBootKeys};
use crate::{boot, export, inspect, lock::Lock, update};
use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use orlop_config::release::ReleaseVersion;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "orlop-image", about = "Builds the appliance image and boots it")]
struct Cli {
    /// Architecture of the image; without it that of this machine
    #[arg(long, global = true, value_enum, default_value_t = Arch::HOST)]
    arch: Arch,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the steps, their keys, and what is kept from earlier builds
    Plan(ProfileArgs),
    /// Builds the image
    Build(BuildArgs),
    /// Lists what is in the image and why, and checks the size budgets
    Inspect(InspectArgs),
    /// Builds the image if needed and boots it in QEMU
    Boot(boot::BootArgs),
    /// Writes the built image in the form that a platform takes
    Export(export::ExportArgs),
    /// Makes the firmware's keys for Secure Boot
    SecureBootKeys(secure_boot::SecureBootKeysArgs),
    /// Makes the keys that sign updates, or replaces one of them
    Keys(update::KeysArgs),
    /// Publishes the built image as a release in a directory
    Bundle(update::BundleArgs),
    /// Signs the next document of a channel: rollout, withdrawal, a longer time
    Sign(update::SignArgs),
    /// Adds one signature to a document, by a key that is elsewhere
    SignFile(update::SignFileArgs),
    /// Checks a published directory as a node would, and every file in it
    Verify(update::VerifyArgs),
    /// Writes a published directory as an OCI layout, which tools copy to a registry
    Layout(update::LayoutArgs),
}

#[derive(Args)]
struct ProfileArgs {
    /// Which image
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
}

#[derive(Args)]
struct BuildArgs {
    /// Which image
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// Take the newest packages and write the lock (image/image.lock)
    #[arg(long)]
    update_lock: bool,
    /// Build a release even if the archive no longer has a locked package; manifest.json names what was taken
    #[arg(long, conflicts_with = "update_lock")]
    accept_moved: bool,
    /// Take orlop-agent, orlop-init, orlop-initrd and orlop-cni from this directory instead of compiling them
    #[arg(long)]
    binaries: Option<PathBuf>,
    /// Build twice and compare the root hashes
    #[arg(long, conflicts_with = "update_lock")]
    verify_reproducible: bool,
    /// Version of the image, X.Y.Z; the default is that of this program
    #[arg(long)]
    version: Option<ReleaseVersion>,
    /// Trust document that the image carries: the keys that sign its updates. Without it the nodes take none
    #[arg(long)]
    trust: Option<PathBuf>,
    /// Directory of the firmware's keys (`secure-boot-keys`) that sign boot loader and UKI. Without it they are not signed
    #[arg(long, value_name = "DIR")]
    secure_boot_keys: Option<PathBuf>,
    /// When the boot loader enrols these keys in a firmware in setup mode
    #[arg(long, value_enum, default_value_t, requires = "secure_boot_keys")]
    secure_boot_enroll: SecureBootEnroll,
    /// Compile the agent of the test profile as a release has it: minutes more, for measurements
    #[arg(long, conflicts_with = "binaries")]
    as_released: bool,
}

#[derive(Args)]
struct InspectArgs {
    /// Which image
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// List every executable with its reason
    #[arg(long)]
    executables: bool,
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    // `cargo boot -- --once` leaves a lone `--` behind the subcommand.
    let mut args: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if args.get(2).is_some_and(|a| a == "--") {
        args.remove(2);
    }
    let home = std::env::var("HOME").context("HOME is not set")?;
    let cache = std::env::var("ORLOP_CACHE").ok();
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let working = std::env::current_dir().ok();
    let source = find_checkout(manifest.as_deref(), working.as_deref());
    let cli = Cli::parse_from(args);
    let dirs = Dirs { arch: cli.arch, ..Dirs::new(source, cache.as_deref(), &home) };
    match cli.command {
        Command::Plan(args) => show_plan(&dirs, args.profile).map(|()| ExitCode::SUCCESS),
        Command::Build(args) => run_build(&dirs, &args).map(|()| ExitCode::SUCCESS),
        Command::Inspect(args) => inspect::run(&dirs, args.profile, args.executables),
        Command::Boot(args) => boot::run(&dirs, &args),
        Command::Export(args) => export::run(&dirs, &args).map(|()| ExitCode::SUCCESS),
        Command::SecureBootKeys(args) => {
            secure_boot::secure_boot_keys(&dirs, &args).map(|()| ExitCode::SUCCESS)
        }
        Command::Keys(args) => update::keys(&dirs, &args).map(|()| ExitCode::SUCCESS),
        Command::Bundle(args) => update::bundle(&dirs, &args).map(|()| ExitCode::SUCCESS),
        Command::Sign(args) => update::sign(&dirs, &args).map(|()| ExitCode::SUCCESS),
        Command::SignFile(args) => update::sign_file(&args).map(|()| ExitCode::SUCCESS),
        Command::Verify(args) => update::verify(&dirs, &args),
        Command::Layout(args) => update::layout(&args).map(|()| ExitCode::SUCCESS),
    }
}

fn show_plan(dirs: &Dirs, profile: Profile) -> Result<()> {
    let text = std::fs::read_to_string(dirs.lock())?;
    let mut facts = build::static_facts(dirs, &Lock::parse(&text)?)?;
    // What only a build finds out is taken from the last one.
    if let Some(manifest) = build::read_manifest(dirs, profile) {
        for (name, digest) in manifest.inputs {
            facts.0.entry(name).or_insert(digest);
        }
    }
    for planned in plan(profile, &facts) {
        let state = match &planned.key {
            Some(key) => {
                let kept = dirs.steps().join(format!("{}-{}", planned.step.name(), &key[..16])).is_dir();
                format!("{}  {}", &key[..16], if kept { "kept" } else { "to be made" })
            }
            None => format!("{:16}  known after: {}", "-", planned.open.join(", ")),
        };
        println!("{:12} {state:32} {}", planned.step.name(), planned.step.title());
    }
    Ok(())
}

fn run_build(dirs: &Dirs, args: &BuildArgs) -> Result<()> {
    let options = Options {
        update_lock: args.update_lock,
        accept_moved: args.accept_moved,
        binaries: args.binaries.clone(),
        fresh: false,
        version: args.version,
        trust: args.trust.clone(),
        secure_boot: args.secure_boot_keys.as_deref().map(|keys| SecureBootOptions {
            keys: SecureBootKeys::new(keys),
            enroll: args.secure_boot_enroll,
        }),
        as_released: args.as_released,
    };
    if args.verify_reproducible {
        let hash = build::verify_reproducible(dirs, args.profile, &options)?;
        println!("reproducible: both builds have root hash {hash}");
        return Ok(());
    }
    let manifest = Builder::new(dirs.clone(), args.profile, options)?.build()?;
    println!("{} {} at {}", manifest.profile, manifest.version, dirs.output(args.profile).display());
    println!("root hash {}", manifest.roothash);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the lines of a page's code fences ask this program for; a line that ends with a backslash goes on.
    fn commands(page: &str) -> Vec<Vec<String>> {
        let fences = page.split("```").skip(1).step_by(2);
        let lines: Vec<String> = fences
            .flat_map(|fence| fence.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        let asked = lines.iter().filter_map(|line| {
            let (first, rest) = match line.strip_prefix("cargo boot") {
                Some(rest) => ("boot", rest.trim_start().trim_start_matches("--").to_owned()),
                None => ("", line.strip_prefix("cargo run --bin orlop-image -- ")?.to_owned()),
            };
            // `cargo boot -- --once`: the first dashes are cargo's.
            let rest = rest.split("  #").next().unwrap_or_default();
            let quoted = rest.split('"').enumerate().flat_map(|(n, part)| match n % 2 {
                0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
                _ => vec![part.to_owned()],
            });
            let start = ["orlop-image", first].into_iter().filter(|word| !word.is_empty()).map(str::to_owned);
            Some(start.chain(quoted).collect())
        });
        asked.collect()
    }

    #[test]
    fn commands_of_the_pages_are_understood() {
        // As it is now, not as it was compiled: checkouts that share a target directory share this binary.
        let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
        let docs = PathBuf::from(package).join("../docs");
        let mut pages = vec![docs.join("reference/update.md")];
        for folder in ["howto", "start"] {
            let entries = std::fs::read_dir(docs.join(folder)).expect("the folder");
            pages.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
        let mut understood = 0;
        for page in pages {
            let text = std::fs::read_to_string(&page).expect("a page");
            for command in commands(&text) {
                let parsed = Cli::try_parse_from(&command);
                assert!(
                    parsed.is_ok(),
                    "{}: {command:?}: {:?}",
                    page.display(),
                    parsed.err().map(|e| e.to_string())
                );
                understood += 1;
            }
        }
        assert!(understood > 15, "only {understood} commands");
    }
}
