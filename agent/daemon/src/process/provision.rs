//! The second program of this binary: `orlop-provision`, which asks the platform's metadata service ([`agent_provision`]). It is
//! one binary because HTTP and the runtime are in it already.
//!
//! In: the name under which the process was started, `NOTIFY_SOCKET`. Out: readiness to the service manager, lines on the consoles.

use std::path::Path;

use agent_core::console::text::clean;
use agent_linux::kernel_log::{self, KernelLogWriter};
use agent_linux::notify::Notifier;
use agent_provision::{ProvisionOutlet, Settings, run};
use anyhow::Context;
use orlop_config::kubelet::nested::Logging;

use super::environment::Environment;
use crate::logging;

/// The name of the program, a link to the agent's binary.
pub const NAME: &str = "orlop-provision";
/// Longest line on the consoles, characters.
const LINE_CHARS_MAX: usize = 800;

/// Runs it until the platform has answered.
///
/// # Errors
/// There is no report of init, what counts cannot be kept, or the process cannot be set up.
pub fn start() -> anyhow::Result<()> {
    let environment = Environment::of_process();
    logging::init(&Logging::default(), environment.under_journald)?;
    let notifier =
        Notifier::new(environment.notify_socket.as_deref()).context("reach the service manager")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the async runtime")?;
    // A machine without a kernel's log has the lines in the journal.
    let consoles = KernelLogWriter::open(Path::new(kernel_log::PATH)).ok();
    let mut outlet = ServiceOutlet { notifier, consoles };
    Ok(runtime.block_on(run(&Settings::default(), &mut outlet))?)
}

struct ServiceOutlet {
    notifier: Notifier,
    consoles: Option<KernelLogWriter>,
}

impl ProvisionOutlet for ServiceOutlet {
    fn ready(&mut self) {
        if let Err(error) = self.notifier.send("READY=1") {
            tracing::error!(error = &error as &dyn std::error::Error, "the service manager does not hear");
        }
    }

    fn say(&mut self, line: &str) {
        tracing::warn!(line, "metadata");
        if let Some(consoles) = &mut self.consoles {
            // The journal has the line.
            let _ = consoles.write(3, &format!("orlop-provision: {}", clean(line, LINE_CHARS_MAX)));
        }
    }
}
