//! Ctrl-C, SIGTERM, SIGHUP: everything the run made is removed, then the process dies of the signal.
//!
//! Invariant: the signals are blocked before the first thread or child exists, so that exactly one thread
//! receives them. Children start with an empty mask (the standard library resets it).

use std::sync::Arc;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, raise};

use crate::run::Run;
use crate::say;

fn set() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect()
}

/// Blocks the signals in this thread and all that it will make. Call first in main.
///
/// # Errors
/// If the kernel refuses.
pub fn block() -> Result<()> {
    set().thread_block().context("block SIGINT, SIGTERM and SIGHUP")
}

/// Starts the thread that waits for them on behalf of `run`.
///
/// # Errors
/// If no thread can be made.
pub fn watch(run: Arc<Run>) -> Result<()> {
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || wait_and_clean(&run))
        .context("start a thread")?;
    Ok(())
}

fn wait_and_clean(run: &Run) {
    let Ok(signal) = set().wait() else { return };
    say::line(format!("{signal}: removing what run {} made", run.id()));
    for problem in run.close() {
        say::line(format!("  left behind: {problem}"));
    }
    // With its default disposition, unblocked here, the signal ends the process with the right status.
    let _ = set().thread_unblock();
    let _ = raise(signal);
}
