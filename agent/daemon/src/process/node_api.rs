//! The third program of this binary: `orlop-node-api`, the node management API ([`orlop_node_api`]). It is one binary because gRPC and
//! the readers of /proc are in it already; it is a process of its own, so it answers when the agent is dead.
//!
//! In: the name under which the process was started, the sockets of systemd. Out: the server, until no client has been there for five
//! minutes.

use std::time::Duration;

use agent_linux::activation;
use anyhow::Context;
use orlop_config::kubelet::nested::Logging;
use orlop_node_api::{Settings, Sources, serve};

use super::environment::Environment;
use crate::logging;

/// The name of the program, a link to the agent's binary.
pub const NAME: &str = "orlop-node-api";
/// The process ends when no client has been there for so long; systemd starts it again for the next one.
const IDLE: Duration = Duration::from_secs(300);
/// Threads for what may block: two for files, two for those of /var, two for file systems, and one spare.
const BLOCKING_THREADS: usize = 7;
/// The user that may ask on the unix socket: root, as which the unit runs.
const UID: u32 = 0;

/// Serves until it is idle.
///
/// # Errors
/// systemd passed no socket, or the process cannot be set up.
pub fn start() -> anyhow::Result<()> {
    let environment = Environment::of_process();
    logging::init_lossy(&Logging::default(), environment.under_journald)?;
    let passed = activation::take(environment.listen_pid.as_deref(), environment.listen_fds.as_deref());
    let sockets = passed.context("take the sockets of the service manager")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("start the async runtime")?;
    let settings = Settings {
        sources: Sources::default(),
        uid: UID,
        idle: IDLE,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let served = runtime.block_on(serve(settings, sockets));
    // A look at a dead file system must not hold the end back.
    runtime.shutdown_background();
    Ok(served?)
}
