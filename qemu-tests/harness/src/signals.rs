//! On Ctrl-C, SIGTERM and SIGHUP, removes all resources of the run, then ends the process.
//!
//! Handlers rather than blocked signals: a mask would be inherited by every child, handlers end with exec.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::run::Run;
use crate::say;

/// Starts the thread that waits for the signals on behalf of `run`. From here on the process catches them.
///
/// # Errors
/// If no thread or handler can be made.
pub fn watch(run: Arc<Run>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("start a runtime for signals")?;
    let [interrupt, terminate, hangup] = {
        let _inside = runtime.enter();
        let caught = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
            .into_iter()
            .map(|k| signal(k).map(|s| (s, k.as_raw_value())))
            .collect::<Result<Vec<_>, _>>()
            .context("catch SIGINT, SIGTERM and SIGHUP")?;
        <[(Signal, i32); 3]>::try_from(caught).map_err(|_| anyhow::anyhow!("three signals were asked for"))?
    };
    let wait = move || {
        let number = runtime.block_on(first(interrupt, terminate, hangup));
        clean_and_end(&run, number);
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("start a thread")?;
    Ok(())
}

async fn first(mut a: (Signal, i32), mut b: (Signal, i32), mut c: (Signal, i32)) -> i32 {
    tokio::select! {
        _ = a.0.recv() => a.1,
        _ = b.0.recv() => b.1,
        _ = c.0.recv() => c.1,
    }
}

// `close` does the work of the destructors, for every thread of the run; other threads cannot be unwound.
#[allow(clippy::disallowed_methods)]
fn clean_and_end(run: &Run, number: i32) -> ! {
    say::line(format!("signal {number}: removing what run {} made", run.id()));
    for problem in run.close() {
        say::line(format!("  left behind: {problem}"));
    }
    // Half a case's artefacts explain nothing.
    let _ = std::fs::remove_dir_all(run.dir());
    std::process::exit(128 + number)
}
