//! The agent's log: one line for each fact, on stderr, where journald takes it.
//!
//! In: `logging.format` and `logging.verbosity`. Verbosity follows upstream's habit: 0 says what changes, 2
//! and more says every call, 6 and more says everything the libraries say too.

use orlop_config::kubelet::enums::LogFormat;
use orlop_config::kubelet::nested::Logging;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

/// Opens the log. `under_journald` leaves the time to the journal.
///
/// # Errors
/// There is a log already.
pub fn init(logging: &Logging, under_journald: bool) -> anyhow::Result<()> {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter(logging.verbosity)))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    let result = match (&logging.format, under_journald) {
        (LogFormat::Json, _) => subscriber.json().flatten_event(true).with_timer(SystemTime).try_init(),
        (LogFormat::Text, true) => subscriber.compact().without_time().try_init(),
        (LogFormat::Text, false) => subscriber.compact().with_timer(SystemTime).try_init(),
    };
    result.map_err(|e| anyhow::anyhow!("open the log: {e}"))
}

fn filter(verbosity: u32) -> &'static str {
    match verbosity {
        0..2 => "warn,orlop_agent=info,agent_core=info,agent_cri=info,agent_linux=info,agent_server=info",
        2..6 => {
            "warn,orlop_agent=debug,agent_core=debug,agent_cri=debug,agent_linux=debug,agent_server=debug"
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
