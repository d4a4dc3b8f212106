//! `selftest`: every check there is, cheapest first, progress as it comes, one closing line.
//!
//! Format, lints, tests, documentation, licences, then all cases. What cases need, the image and the control plane, is
//! made beside the checks: most of that is one linker and one packer, which leave a processor idle. A check that is not
//! `cargo test` counts as one; a tool that is not installed is reported and counts as skipped.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use orlop_image::profile::find_checkout;

use crate::case::human;
use crate::counts::{Counts, of_cargo_test};
use crate::process::stream;
use crate::run::Run;
use crate::runner::{Options, run_cases};
use crate::{cases, prepare, say};

/// A check outside the cases.
struct Check {
    name: &'static str,
    /// Arguments to cargo.
    cargo: &'static [&'static str],
    /// Its component answers to `cargo <this> --version` if installed; empty: always there.
    component: &'static str,
    /// Extra environment.
    env: &'static [(&'static str, &'static str)],
    /// Counts come from its output rather than from its status.
    counted: bool,
}

const CHECKS: &[Check] = &[
    Check { name: "fmt", cargo: &["fmt", "--all", "--check"], component: "fmt", env: &[], counted: false },
    Check {
        name: "clippy",
        cargo: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        component: "clippy",
        env: &[],
        counted: false,
    },
    // The simulator needs an optimised core, whose own tests do not: that would compile for longer than they run.
    Check {
        name: "core",
        cargo: &[
            "test",
            "--package",
            "agent-core",
            "--no-fail-fast",
            "--config",
            "profile.dev.package.agent-core.opt-level=0",
        ],
        component: "",
        env: &[],
        counted: true,
    },
    Check {
        name: "test",
        cargo: &["test", "--workspace", "--exclude", "agent-core", "--no-fail-fast"],
        component: "",
        env: &[],
        counted: true,
    },
    Check {
        name: "doc",
        cargo: &["doc", "--workspace", "--no-deps", "--document-private-items"],
        component: "",
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        counted: false,
    },
    Check {
        name: "deny",
        cargo: &["deny", "check", "bans", "licenses", "sources"],
        component: "deny",
        env: &[],
        counted: false,
    },
];

/// The workspace this harness is run in, which need not be the one it was compiled in.
#[must_use]
pub fn workspace() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    find_checkout(manifest.as_deref(), std::env::current_dir().ok().as_deref())
}

/// A cargo command in the workspace.
#[must_use]
pub fn cargo() -> Command {
    let mut command = orlop_image::host::cargo();
    // A backtrace of an expected error would only hide its text.
    command.current_dir(workspace()).env("CARGO_TERM_COLOR", "never").env("RUST_BACKTRACE", "0");
    command
}

/// Runs everything; the caller prints the closing line.
///
/// # Errors
/// If a check cannot even be started.
pub fn run(run: &Arc<Run>, options: Options) -> Result<Counts> {
    prepare::host()?;
    let beside = begin_beside(Arc::clone(run), options.clone())?;
    let mut total = Counts::default();
    for check in CHECKS {
        let start = Instant::now();
        say::line(format!("== {} ==", check.name));
        let counts = run_check(run, check)?;
        say::line(format!("== {}: {counts} ({}) ==", check.name, human(start.elapsed())));
        total = total.plus(counts);
    }
    let built = beside.join().map_err(|_| anyhow!("what builds the image died"))??;
    total = total.plus(Counts::one(built));
    if !built {
        run.note_failure("image");
        say::line("the image does not build: no case was run");
        return Ok(total);
    }
    let start = Instant::now();
    say::line("== e2e ==");
    let counts = run_cases(run, &cases::all(), options)?;
    say::line(format!("== e2e: {counts} ({}) ==", human(start.elapsed())));
    Ok(total.plus(counts))
}

/// Builds the image, then, if there is time, the control plane's programs, at a lower priority than the checks. Answers if the
/// image builds; what goes wrong with the control plane is said, and the cases that need it fail.
fn begin_beside(run: Arc<Run>, options: Options) -> Result<JoinHandle<Result<bool>>> {
    let work = move || {
        // Of this thread, and so of all that it starts. Refused or not: nothing depends on it.
        let _ = rustix::process::nice(5);
        let start = Instant::now();
        let built = prepare::image(&run)?;
        say::line(format!("== image: {} ({}) ==", Counts::one(built), human(start.elapsed())));
        if built {
            prepare::control_plane_within(&run, &cases::all(), options.time_left());
        }
        Ok(built)
    };
    std::thread::Builder::new().name("beside".into()).spawn(work).context("start a thread")
}

fn run_check(run: &Arc<Run>, check: &Check) -> Result<Counts> {
    if !check.component.is_empty() && !is_installed(run, check.component)? {
        say::line(format!("cargo {} is not installed: not checked", check.component));
        return Ok(Counts::one_skipped());
    }
    let mut lines = Vec::new();
    let mut command = cargo();
    command.args(check.cargo).envs(check.env.iter().copied());
    let status = stream(run, &mut command, |line| {
        if is_progress(line) {
            say::line(line);
        }
        if check.counted && line.starts_with("test ") && line.ends_with("... FAILED") {
            run.note_failure(line);
        }
        lines.push(line.to_owned());
    })?;
    if !status.success() {
        run.note_failure(check.name);
    }
    if check.counted {
        return Ok(of_cargo_test(lines.iter().map(String::as_str), status.success()));
    }
    Ok(Counts::one(status.success()))
}

fn is_installed(run: &Arc<Run>, component: &str) -> Result<bool> {
    Ok(stream(run, cargo().args([component, "--version"]), |_| {})?.success())
}

/// What of cargo's output a person wants to see pass by: everything but the passed tests one by one.
fn is_progress(line: &str) -> bool {
    let passed = line.starts_with("test ") && line.ends_with("... ok");
    !(passed || line.is_empty() || line.starts_with("running "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_not_shown_one_by_one() {
        assert!(!is_progress("test a::b ... ok"));
        assert!(is_progress("test a::b ... FAILED"));
        assert!(is_progress("test result: ok. 1 passed; 0 failed; 0 ignored"));
        assert!(is_progress("   Compiling x v0.1.0"));
    }

    #[test]
    fn the_workspace_is_where_the_lock_file_is() {
        assert!(workspace().join("Cargo.lock").exists());
    }
}
