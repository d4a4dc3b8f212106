//! The agent's log: one line for each fact, on stderr, which journald reads.
//!
//! In: `logging.format` and `logging.verbosity`. The levels are like upstream's: 0 logs changes, 2 and more every call,
//! 6 and more also the libraries' messages.

use std::sync::OnceLock;

use agent_linux::lossy_stderr::LossyStderr;
use anyhow::Context;
use orlop_config::kubelet::enums::LogFormat;
use orlop_config::kubelet::nested::Logging;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::time::SystemTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// Handle to change the level: the log is global to the process, and so is the handle.
static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Opens the log. `under_journald` leaves the time to the journal.
///
/// # Errors
/// There is a log already.
pub fn init(logging: &Logging, under_journald: bool) -> anyhow::Result<()> {
    open(logging, under_journald, std::io::stderr)
}

/// The same for a process that answers also while journald does not read: lines are lost then, and counted.
///
/// # Errors
/// There is a log already.
pub fn init_lossy(logging: &Logging, under_journald: bool) -> anyhow::Result<()> {
    open(logging, under_journald, || LossyStderr)
}

fn open<W>(logging: &Logging, under_journald: bool, writer: W) -> anyhow::Result<()>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (level, handle) = reload::Layer::new(EnvFilter::new(filter(logging.verbosity)));
    let lines = fmt::layer().with_writer(writer).with_ansi(false).with_target(false);
    let lines = match (&logging.format, under_journald) {
        (LogFormat::Json, _) => lines.json().flatten_event(true).with_timer(SystemTime).boxed(),
        (LogFormat::Text, true) => lines.compact().without_time().boxed(),
        (LogFormat::Text, false) => lines.compact().with_timer(SystemTime).boxed(),
    };
    let opened = tracing_subscriber::registry().with(level).with(lines).try_init();
    opened.map_err(|e| anyhow::anyhow!("open the log: {e}"))?;
    // The cell is empty: only one log can be opened.
    let _ = LEVEL.set(handle);
    Ok(())
}

/// Changes the verbosity from now on.
///
/// # Errors
/// The log was not opened by [`init`] or [`init_lossy`].
pub fn set_verbosity(verbosity: u32) -> anyhow::Result<()> {
    let level = LEVEL.get().context("this process has opened no log")?;
    level.reload(EnvFilter::new(filter(verbosity))).context("change the log's level")?;
    tracing::info!(verbosity, "the log's level was changed");
    Ok(())
}

fn filter(verbosity: u32) -> &'static str {
    match verbosity {
        0..2 => {
            "warn,orlop_agent=info,agent_core=info,agent_cri=info,agent_linux=info,agent_server=info,\
             agent_provision=info,orlop_update=info,\
             orlop_node_api=info"
        }
        2..6 => {
            "warn,orlop_agent=debug,agent_core=debug,agent_cri=debug,agent_linux=debug,agent_server=debug,\
             agent_provision=debug,orlop_update=debug,\
             orlop_node_api=debug"
        }
        6.. => "trace,h2=info,hyper=info",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verbosity_is_a_filter() {
        for verbosity in [0, 1, 2, 5, 6, 10] {
            assert!(EnvFilter::try_new(filter(verbosity)).is_ok());
        }
    }
}
