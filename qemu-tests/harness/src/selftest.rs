//! `selftest`: all checks, cheapest first, then cases; progress while it runs, one closing line.
//!
//! Checks are format, lints, tests, documentation, licences. [`Cases`] chooses the cases. The image and the control
//! plane, which cases need, are built at the same time as the checks, each by a thread of its own from the beginning: much of that
//! work is linkers and packers, which leave a processor idle. A check that is not `cargo test` counts as one; a tool that is not
//! installed is reported and counts as skipped.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use orlop_image::arch::Arch;

use crate::case::{Case, human};
use crate::counts::{Counts, of_cargo_test};
use crate::process::stream;
use crate::run::Run;
use crate::runner::{Options, run_cases};
use crate::workspace::{cargo, workspace};
use crate::{ages, changes, gate, history, prepare, say};

/// A check outside the cases.
struct Check {
    name: &'static str,
    /// Arguments to cargo.
    cargo: &'static [&'static str],
    /// The cargo component that must be installed (`cargo <this> --version`); empty: always installed.
    component: &'static str,
    /// Extra environment.
    env: &'static [(&'static str, &'static str)],
    /// Counts come from its output, not from its status.
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
    Check {
        name: "test",
        cargo: &["test", "--workspace", "--exclude", "agent-sim", "--no-fail-fast"],
        component: "",
        env: &[],
        counted: true,
    },
    // With the optimisation that .cargo/config.toml sets for it.
    Check { name: "sim", cargo: &["sim", "--no-fail-fast"], component: "", env: &[], counted: true },
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

/// The cases of a selftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cases {
    /// The fixed set; with a time limit ([`Options::until`]) also as many other tried cases as the time allows.
    Fixed,
    /// Every case, without a time limit.
    All,
}

impl Cases {
    /// The cases that the runner may begin.
    fn of(self, all: &[Case], options: &Options) -> Vec<Case> {
        let is_chosen = |case: &&Case| match self {
            Cases::All => true,
            Cases::Fixed if options.until.is_none() => gate::FIXED.contains(&case.name),
            Cases::Fixed => !gate::UNTRIED.contains(&case.name),
        };
        all.iter().filter(is_chosen).copied().collect()
    }
}

/// Runs all checks, and the cases of `which`; the caller prints the closing line.
///
/// # Errors
/// If a check cannot be started.
pub fn run(run: &Arc<Run>, all: &[Case], options: Options, which: Cases) -> Result<Counts> {
    prepare::host()?;
    let options =
        if which == Cases::All { Options { until: None, ..options } } else { with_touched(options) };
    let chosen = which.of(all, &options);
    let total = checks_and_cases(run, options, &chosen)?;
    if total.is_success()
        && let Err(e) = changes::note_passed(&workspace(), &changes::file())
    {
        say::line(format!("  the next run does not know this commit: {e:#}"));
    }
    Ok(total)
}

/// With a time limit, the cases of touched areas come first.
fn with_touched(options: Options) -> Options {
    if options.until.is_none() {
        return options;
    }
    let touched = match changes::paths(&workspace(), &changes::file()) {
        Some(paths) => gate::touched(paths.iter().map(String::as_str)),
        None => gate::AREAS.iter().copied().collect(),
    };
    let areas: Vec<&str> = touched.iter().copied().collect();
    say::line(format!(
        "areas that the change touches: {}",
        if areas.is_empty() { "none".into() } else { areas.join(" ") }
    ));
    Options { touched, ..options }
}

fn checks_and_cases(run: &Arc<Run>, options: Options, chosen: &[Case]) -> Result<Counts> {
    let image = begin_image(run)?;
    let (of_plane, of_cases) = (Arc::clone(run), chosen.to_vec());
    let plane = begin("control plane", 5, move || prepare::plane(&of_plane, &of_cases))?;
    let mut total = Counts::default();
    for check in CHECKS {
        let start = Instant::now();
        say::line(format!("== {} ==", check.name));
        let counts = run_check(run, check)?;
        say::line(format!("== {}: {counts} ({}) ==", check.name, human(start.elapsed())));
        total = total.plus(counts);
    }
    let built = image.join().map_err(|_| anyhow!("the thread that builds the image died"))??;
    plane.join().map_err(|_| anyhow!("the thread that compiles the control plane died"))?;
    total = total.plus(Counts::one(built));
    if !built {
        run.note_failure("image");
        say::line("the image does not build: no case was run");
        return Ok(total);
    }
    let (start, begun_at) = (Instant::now(), history::now());
    say::line("== e2e ==");
    // Only a run with a time limit leaves cases out.
    let file = options.history.clone().filter(|_| options.until.is_some());
    let counts = run_cases(run, chosen, options)?;
    say::line(format!("== e2e: {counts} ({}) ==", human(start.elapsed())));
    if let Some(file) = file {
        let table = ages::table(chosen, &history::read(&file), begun_at, history::now());
        table.iter().for_each(say::line);
    }
    Ok(total.plus(counts))
}

/// Builds the image. Its builder is linked before this returns, and so before the first check, which would hold cargo's lock.
fn begin_image(run: &Arc<Run>) -> Result<JoinHandle<Result<bool>>> {
    let (of_thread, linked) = (Arc::clone(run), prepare::image_builder(run)?);
    // At the checks' own priority: its crates compile one after the other, and at a lower one it would be the last to end.
    begin("image", 0, move || {
        let start = Instant::now();
        let built = linked && prepare::build_image(&of_thread, Arch::HOST)?;
        say::line(format!("== image: {} ({}) ==", Counts::one(built), human(start.elapsed())));
        Ok(built)
    })
}

/// A thread with a nice value above that of the checks; the programs that it starts have it too.
fn begin<T: Send + 'static>(
    name: &str,
    nicer_by: i32,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let nicely = move || {
        // Refused or not: nothing depends on it.
        let _ = rustix::process::nice(nicer_by);
        work()
    };
    std::thread::Builder::new().name(name.into()).spawn(nicely).context("start a thread")
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

/// The lines of cargo's output that a person wants to watch: all except the passed tests.
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
}
