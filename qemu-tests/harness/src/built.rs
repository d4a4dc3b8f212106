//! Programs of this workspace that cases run: the agent, orlopctl, and the contract suites that are examples of their crates.
//!
//! In the profile of development they are built as `cargo test --workspace` builds them, with the features of the
//! whole workspace: a package built alone has fewer, which compiles its dependencies once more and takes minutes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::process::must;
use crate::run::Run;
use crate::workspace::cargo;

/// Names an agent's binary to be used as it is, instead of one built from the tree.
pub const AGENT_VARIABLE: &str = "ORLOP_E2E_AGENT";

/// Targets of one call of cargo.
#[derive(Clone, Copy, PartialEq)]
enum Built {
    Workspace,
    ReleasedAgent,
}

impl Built {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            // By name: otherwise cargo would link this running program again.
            Built::Workspace => &[
                "build",
                "--quiet",
                "--workspace",
                "--bin=orlop-agent",
                "--bin=orlopctl",
                "--example=api-contract",
                "--example=cri-contract",
            ],
            Built::ReleasedAgent => &["build", "--quiet", "--package", "orlop-agent", "--release"],
        }
    }

    fn directory(self) -> &'static str {
        match self {
            Built::Workspace => "debug",
            Built::ReleasedAgent => "release",
        }
    }

    /// Builds it unless this run has, and answers the directory with the programs.
    fn ensure(self, run: &Arc<Run>) -> Result<PathBuf> {
        // Once for a run: the tree does not change under it.
        static DONE: Mutex<Vec<Built>> = Mutex::new(Vec::new());
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !done.contains(&self) {
            must(run, cargo().args(self.arguments())).context("build the workspace's programs")?;
            done.push(self);
        }
        directory_of(self.directory())
    }
}

/// The directory with programs of the profile of development.
///
/// # Errors
/// If this program is not in a target directory.
pub fn development() -> Result<PathBuf> {
    directory_of(Built::Workspace.directory())
}

fn directory_of(profile_name: &str) -> Result<PathBuf> {
    Ok(profile()?.parent().context("no target directory")?.join(profile_name))
}

/// The agent, in this program's profile, or in release if requested.
///
/// # Errors
/// If it does not build.
pub fn agent(run: &Arc<Run>, release: bool) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(AGENT_VARIABLE) {
        return Ok(PathBuf::from(path));
    }
    let released = release || profile()?.ends_with("release");
    let built = if released { Built::ReleasedAgent } else { Built::Workspace };
    there(built.ensure(run)?.join("orlop-agent"))
}

/// The command line of the node management API.
///
/// # Errors
/// If it does not build.
pub fn ctl(run: &Arc<Run>) -> Result<PathBuf> {
    there(Built::Workspace.ensure(run)?.join("orlopctl"))
}

/// An example of any crate, by its name.
///
/// # Errors
/// If it does not build.
pub fn example(run: &Arc<Run>, name: &str) -> Result<PathBuf> {
    there(Built::Workspace.ensure(run)?.join("examples").join(name))
}

fn there(program: PathBuf) -> Result<PathBuf> {
    ensure!(program.exists(), "{} was not built", program.display());
    Ok(program)
}

/// The directory of this program's profile.
fn profile() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    profile_of(&own).with_context(|| format!("{} is not in a target directory", own.display()))
}

/// Unit tests run from `deps`.
fn profile_of(program: &Path) -> Option<PathBuf> {
    let dir = program.parent()?;
    Some(if dir.ends_with("deps") { dir.parent()? } else { dir }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_programs_find_the_same_profile() {
        for program in ["/t/debug/orlop-e2e", "/t/debug/deps/orlop_e2e-1"] {
            assert_eq!(profile_of(Path::new(program)), Some(PathBuf::from("/t/debug")), "{program}");
        }
        assert_eq!(profile_of(Path::new("/")), None);
    }
}
