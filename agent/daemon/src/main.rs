//! The binary: arguments and environment in, exit code out. 0 after SIGTERM or SIGINT, 1 with the reason on
//! stderr for everything that keeps the agent from starting.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use agent_core::console::text::clean;
use agent_linux::kernel_log::{self, KernelLogWriter};
use anyhow::Context;
use orlop_agent::logging;
use orlop_agent::node::console::is_appliance;
use orlop_agent::process::cli::{self, Command};
use orlop_agent::process::node::run_dir;
use orlop_agent::process::node_api;
use orlop_agent::process::program_name::is_named;
use orlop_agent::process::provision;
use orlop_agent::process::run::{self, Environment};
use orlop_agent::process::serial_port;
use orlop_agent::process::update;
use orlop_agent::settings::Settings;
use orlop_agent::tasks::pools;

/// Longest reason on the consoles, characters.
const REASON_CHARS_MAX: usize = 800;

fn main() -> ExitCode {
    let name = std::env::args_os().next();
    if is_named(name.as_deref(), provision::NAME) {
        return ended(provision::NAME, provision::start());
    }
    if is_named(name.as_deref(), node_api::NAME) {
        return ended(node_api::NAME, node_api::start());
    }
    if is_named(name.as_deref(), serial_port::NAME) {
        return ended(serial_port::NAME, serial_port::start());
    }
    if is_named(name.as_deref(), update::NAME) {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        return match update::start(&arguments, std::env::var_os("SSL_CERT_DIR")) {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "{}: {error:#}", update::NAME);
                ExitCode::FAILURE
            }
        };
    }
    let command = match cli::command(std::env::args().skip(1).collect()) {
        Ok(command) => command,
        Err(error) => return fail(&error),
    };
    match command {
        Command::Print(text) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Command::Run(settings) => match start(*settings) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
    }
}

/// The end of one of the binary's other programs.
fn ended(name: &str, result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    // The service manager keeps it, and starts the program again.
    let _ = writeln!(std::io::stderr(), "{name}: {error:#}");
    ExitCode::FAILURE
}

fn start(settings: Settings) -> anyhow::Result<()> {
    agent_linux::heap::share_arenas();
    agent_linux::process::unblock_signals().context("unblock signals")?;
    let environment = Environment::of_process();
    logging::init(&settings.kubelet.logging, environment.under_journald)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(run::WORKER_THREADS)
        .max_blocking_threads(pools::BLOCKING_THREADS)
        .thread_keep_alive(pools::BLOCKING_KEEP_ALIVE)
        .enable_all()
        .build()
        .context("start the async runtime")?;
    let result = runtime.block_on(run::run(settings, environment));
    // A blocked file operation must not hold the end back.
    runtime.shutdown_background();
    result
}

fn fail(error: &anyhow::Error) -> ExitCode {
    // If stderr is gone, there is no other place for the error.
    let _ = writeln!(std::io::stderr(), "orlop-agent: {error:#}");
    if is_appliance(run_dir()) {
        show(&format!("{error:#}"));
    }
    ExitCode::FAILURE
}

/// The reason on the consoles: an appliance's journal cannot be read before the agent runs.
fn show(reason: &str) {
    let text = clean(&format!("the node agent cannot start: {reason}"), REASON_CHARS_MAX);
    // A machine without a kernel's log has the reason on stderr.
    let _ = KernelLogWriter::open(Path::new(kernel_log::PATH)).and_then(|mut log| log.write(3, &text));
}
