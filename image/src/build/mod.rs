//! Runs the plan: each step's result is made in a scratch directory and moved to its key, so an interrupted build
//! leaves nothing half-made behind; a result that exists is not made again. One build at a time holds the lock.

mod apparmor;
mod base;
mod binaries;
mod bind;
mod containers;
pub mod debs;
mod disk;
mod esp;
mod initrd;
mod mkosi;
mod modules;
mod prefetch;
mod publish;
mod root;
mod seed;
mod shim_info;
mod verify;

pub use disk::SALT as VERITY_SALT;
pub(crate) use esp::rewrite as rewrite_esp;
pub use publish::{Artefact, Manifest, read_manifest};
pub use verify::verify_reproducible;

use crate::arch::Arch;
use crate::format::digest;
use crate::host::{emulator::Emulation, run::Progress, tools};
use crate::lock::{self, Lock};
use crate::plan::{BuildStep, Facts, Planned, plan};
use crate::profile::{Dirs, Profile};
use crate::secure_boot::{SecureBootEnroll, SecureBootKeys};
use crate::select::Contents;
use anyhow::{Context, Result, bail};
use orlop_config::release::{ReleaseVersion, TrustDocument};
use orlop_update::RingSignatures;
use std::fs;
use std::path::{Path, PathBuf};

/// Debian release of the base.
pub const RELEASE: &str = "trixie";
/// Suites that have the newer packages, preferred first.
pub const NEWER: [&str; 2] = ["forky", "sid"];
/// Version of an image whose builder got none.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Cargo's profile of the agent that a release has.
pub const RELEASED: &str = "release";
/// The manifest's input that names cargo's profile of the agent; absent if the builder got the programs.
pub const AGENT_PROFILE: &str = "agent.profile";
/// Results of a step that are kept, newest first.
const KEEP: usize = 3;

/// What a person may ask of a build.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Take `orlop-agent`, `orlop-init`, `orlop-initrd` and `orlop-cni` from this directory instead of compiling them.
    pub binaries: Option<PathBuf>,
    /// Take the newest packages and write the lock.
    pub update_lock: bool,
    /// Build a release even if locked packages are no longer in the archive.
    pub accept_moved: bool,
    /// Make root, initrd and disk again even if they exist.
    pub fresh: bool,
    /// Version of the image; none is [`VERSION`].
    pub version: Option<ReleaseVersion>,
    /// Trust document that the image carries; none: its nodes take no updates.
    pub trust: Option<PathBuf>,
    /// Keys that sign boot loader and UKI; none: they are not signed.
    pub secure_boot: Option<SecureBootOptions>,
    /// The agent of the test profile is the one that a release has ([`Options::agent_profile`]).
    pub as_released: bool,
}

/// How an image is signed for Secure Boot.
#[derive(Clone, Debug)]
pub struct SecureBootOptions {
    /// The keys.
    pub keys: SecureBootKeys,
    /// When the boot loader enrols them.
    pub enroll: SecureBootEnroll,
}

impl Options {
    /// Whether a build of this profile is refused when its packages are not the lock's.
    #[must_use]
    fn hold_to_lock(&self, profile: Profile) -> bool {
        profile == Profile::Release && !self.update_lock && !self.accept_moved
    }

    /// Cargo's profile of the agent: that of a release, or the one that compiles quickly (docs/decisions/test-image.md).
    #[must_use]
    pub fn agent_profile(&self, profile: Profile) -> &'static str {
        if profile == Profile::Release || self.as_released { RELEASED } else { "quick" }
    }

    /// Version of the image.
    #[must_use]
    pub fn version(&self) -> String {
        self.version.map_or_else(|| VERSION.to_owned(), |version| version.to_string())
    }
}

/// A build under way.
pub struct Builder {
    /// Directories.
    pub dirs: Dirs,
    /// What is built.
    pub profile: Profile,
    /// Asked for.
    pub options: Options,
    /// Found so far.
    pub facts: Facts,
    /// The lock as committed.
    pub lock: Lock,
    /// What differs from the lock, said and recorded.
    pub warnings: Vec<String>,
    log: PathBuf,
    _guard: nix::fcntl::Flock<fs::File>,
}

impl Builder {
    /// Takes the build lock and reads the checkout.
    ///
    /// # Errors
    /// The cache cannot be written, or the lock file cannot be read.
    pub fn new(dirs: Dirs, profile: Profile, options: Options) -> Result<Builder> {
        let work = dirs.work();
        fs::create_dir_all(dirs.steps()).with_context(|| format!("making {}", dirs.steps().display()))?;
        let file = fs::File::create(dirs.cache.join("image/lock")).context("opening the build lock")?;
        let guard = nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive)
            .map_err(|(_, e)| anyhow::anyhow!("waiting for another build: {e}"))?;
        remove_tree(&work)?;
        fs::create_dir_all(&work)?;
        let path = dirs.lock();
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let lock = Lock::parse(&text).with_context(|| format!("parsing {}", path.display()))?;
        let log = dirs.cache.join("image/build.log");
        fs::write(&log, "")?;
        let mut builder = Builder {
            dirs,
            profile,
            options,
            facts: Facts::default(),
            lock,
            warnings: Vec::new(),
            log,
            _guard: guard,
        };
        builder.facts = static_facts(&builder.dirs, &builder.lock)?;
        builder.facts.set("version", builder.options.version());
        if let Some(path) = &builder.options.trust {
            check_trust(path)?;
            builder.facts.set("trust", digest::file(path)?);
        }
        if let Some(options) = &builder.options.secure_boot {
            let keys = options.keys.digest().context("the keys of Secure Boot")?;
            builder.facts.set("secure-boot", format!("{keys} {}", options.enroll.name()));
        }
        Ok(builder)
    }

    /// Builds everything and publishes it.
    ///
    /// # Errors
    /// The step that failed, with its log.
    pub fn build(&mut self) -> Result<Manifest> {
        tools::ensure(tools::BUILD, &self.log)?;
        let arch = self.dirs.arch;
        if arch == Arch::HOST {
            println!("building the {} image", self.profile.name());
        } else {
            tools::ensure(arch.facts().cross_tools, &self.log)?;
            println!("building the {} image for {}", self.profile.name(), arch.name());
        }
        // To the end of the build: the scripts of packages, and the programs of the image that it asks.
        let mut emulation = None;
        for step in BuildStep::ALL {
            match step {
                BuildStep::Debs => {
                    self.run_debs()?;
                    let emulator = debs::emulator(self)?;
                    emulation = emulator.map(|file| Emulation::of(arch, &file)).transpose()?;
                }
                BuildStep::Compile => self.run_compile()?,
                _ => self.run_cached(step)?,
            }
            self.hold_to_lock(step)?;
        }
        drop(emulation);
        self.prune()?;
        publish::publish(self)
    }

    /// The plan as far as the facts reach now.
    #[must_use]
    pub fn plan(&self) -> Vec<Planned> {
        plan(self.profile, &self.facts)
    }

    /// Directory of a step's result.
    ///
    /// # Errors
    /// The step's key is not known yet: a step before it did not leave its facts.
    pub fn result(&self, step: BuildStep) -> Result<PathBuf> {
        let planned = self.plan().into_iter().find(|p| p.step == step).context("every step is planned")?;
        let key =
            planned.key.with_context(|| format!("{}: {} unknown", step.name(), planned.open.join(", ")))?;
        Ok(self.dirs.steps().join(format!("{}-{}", step.name(), &key[..16])))
    }

    fn run_cached(&mut self, step: BuildStep) -> Result<()> {
        let result = self.result(step)?;
        let again = self.options.fresh && verify::made_again(step);
        let progress = Progress::begin(step.title());
        if result.is_dir() && !again {
            touch(&result)?;
            progress.done("kept");
            return Ok(());
        }
        let partial = self.dirs.work().join(step.name());
        remove_tree(&partial)?;
        fs::create_dir_all(&partial)?;
        let note = match step {
            BuildStep::Tools => base::tools(self, &partial)?,
            BuildStep::Base => base::base(self, &partial)?,
            BuildStep::Containers => containers::build(self, &partial)?,
            BuildStep::Seed => seed::build(self, &partial)?,
            BuildStep::Root => root::build(self, &partial)?,
            BuildStep::Initrd => initrd::build(self, &partial)?,
            BuildStep::Disk => disk::build(self, &partial)?,
            BuildStep::Debs | BuildStep::Compile => String::new(),
        };
        remove_tree(&result)?;
        fs::rename(&partial, &result).with_context(|| format!("keeping {}", result.display()))?;
        progress.done(&note);
        Ok(())
    }

    // What is in the cache was made from its own packages: the lock may have moved since, so this is asked each time.
    fn hold_to_lock(&self, step: BuildStep) -> Result<()> {
        if !self.options.hold_to_lock(self.profile) {
            return Ok(());
        }
        let differences = match step {
            BuildStep::Debs => self.warnings.clone(),
            BuildStep::Base => {
                let moved = self.lock.moved(&publish::packages(self)?);
                moved.iter().map(ToString::to_string).collect()
            }
            _ => Vec::new(),
        };
        match lock::refusal(self.dirs.arch.facts().lock, &differences) {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }

    fn run_debs(&mut self) -> Result<()> {
        let progress = Progress::begin(BuildStep::Debs.title());
        let note = debs::fetch(self)?;
        progress.done(&note);
        for warning in &self.warnings {
            println!("  warning: {warning}");
        }
        Ok(())
    }

    fn run_compile(&mut self) -> Result<()> {
        let progress = Progress::begin(BuildStep::Compile.title());
        let note = binaries::compile(self)?;
        progress.done(&note);
        Ok(())
    }

    // Keeps the newest results of every step.
    fn prune(&self) -> Result<()> {
        for step in BuildStep::ALL {
            let prefix = format!("{}-", step.name());
            let mut found: Vec<(std::time::SystemTime, PathBuf)> = fs::read_dir(self.dirs.steps())?
                .filter_map(Result::ok)
                .filter(|e| e.file_name().to_string_lossy().starts_with(&prefix))
                .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
                .collect();
            found.sort();
            let surplus = found.len().saturating_sub(KEEP * Profile::ALL.len() * Arch::ALL.len());
            for (_, path) in found.into_iter().take(surplus) {
                remove_tree(&path)?;
            }
        }
        Ok(())
    }
}

/// The table of what the image contains.
///
/// # Errors
/// It cannot be read, or the line that is wrong.
pub fn contents(dirs: &Dirs) -> Result<Contents> {
    const NAME: &str = "image/contents.txt";
    let text = fs::read_to_string(dirs.source.join(NAME)).context(NAME)?;
    Contents::parse(&dirs.arch.fill(&text)).context(NAME)
}

// A node with a damaged document could never be updated.
fn check_trust(path: &Path) -> Result<()> {
    let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    TrustDocument::first(&text, &RingSignatures).with_context(|| path.display().to_string())?;
    Ok(())
}

/// The facts that the checkout alone gives; version, trust document and keys are those of a builder that got none.
///
/// # Errors
/// A file cannot be read, or says what cannot be: minutes before it is used.
pub fn static_facts(dirs: &Dirs, lock: &Lock) -> Result<Facts> {
    contents(dirs)?;
    let mut facts = Facts::default();
    for name in ["mkosi/tools", "mkosi/base", "mkosi/disk", "image/rootfs", "image/containers"] {
        facts.set(name, digest::tree(&dirs.source.join(name))?);
    }
    let lists = ["contents", "initrd-hardware", "initrd-modules", "microcode"];
    for name in lists.map(|list| format!("image/{list}.txt")) {
        facts.set(&name, digest::file(&dirs.source.join(&name))?);
    }
    facts.set("version", VERSION);
    facts.set("arch", dirs.arch.name());
    facts.set("trust", "none");
    facts.set("secure-boot", "none");
    facts.set("lock.epoch", lock.epoch.to_string());
    let of_host = if lock.host_debs.is_empty() { String::new() } else { format!("{:?}", lock.host_debs) };
    facts.set("lock.debs", digest::bytes(format!("{:?}{of_host}", lock.debs).as_bytes()));
    facts.set("lock.packages", digest::bytes(format!("{:?}", lock.packages).as_bytes()));
    Ok(facts)
}

// A result that was used again is new for `prune`.
fn touch(path: &Path) -> Result<()> {
    fs::File::open(path)?.set_modified(std::time::SystemTime::now())?;
    Ok(())
}

/// Removes a tree if it is there. Trees may hold directories without write permission.
fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A command that runs in the tools tree; its arguments follow. Works through pipes: no file of the host is there.
fn base_tool(builder: &Builder) -> Result<std::process::Command> {
    let mut command = namespaced();
    command.arg("chroot").arg(builder.result(BuildStep::Tools)?.join("tools"));
    Ok(command)
}

/// A command in a mount namespace of its own, as root of it; its arguments follow.
pub(crate) fn namespaced() -> std::process::Command {
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    if !tools::is_root() {
        command.arg("--map-root-user");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_release_is_held_to_the_lock_and_only_by_default() {
        let [default, update, accept] = [(false, false), (true, false), (false, true)]
            .map(|(update_lock, accept_moved)| Options { update_lock, accept_moved, ..Options::default() });
        assert!(default.hold_to_lock(Profile::Release) && !default.hold_to_lock(Profile::Test));
        for options in [update, accept] {
            assert!(Profile::ALL.iter().all(|profile| !options.hold_to_lock(*profile)), "{options:?}");
        }
    }

    #[test]
    fn only_the_test_profile_has_another_agent_and_only_by_default() {
        let as_released = Options { as_released: true, ..Options::default() };
        assert_eq!(Options::default().agent_profile(Profile::Test), "quick");
        assert_eq!(as_released.agent_profile(Profile::Test), RELEASED);
        for options in [Options::default(), as_released] {
            assert_eq!(options.agent_profile(Profile::Release), RELEASED, "{options:?}");
        }
    }

    #[test]
    fn the_version_is_the_one_asked_for() {
        assert_eq!(Options::default().version(), VERSION);
        let version = "0.20.3".parse().ok();
        assert_eq!(Options { version, ..Options::default() }.version(), "0.20.3");
        // Which every build without the option relies on.
        assert_eq!(VERSION.parse::<ReleaseVersion>().map(|v| v.to_string()).as_deref(), Ok(VERSION));
    }
}
