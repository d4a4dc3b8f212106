//! orlopctl: asks an Orlop node what it knows about itself, reads its logs, changes its configuration and has it do operations, by the node
//! management API; makes control planes, offline.
//!
//! In: a command line. Out: tables, JSON, YAML or names on standard output, refusals with remedies on standard error, and an exit code:
//! 0 fine, 1 the node says no or has a problem, 2 usage, 3 unreachable, 4 not allowed, 5 timed out. Specification:
//! docs/reference/node-api.md.
#![forbid(unsafe_code)]

mod boot_verb;
mod bundle;
mod capture;
mod cli;
mod cluster_node;
mod commands;
mod completion;
mod config_args;
mod config_verbs;
mod controlplane;
mod dashboard;
mod explain;
mod failure;
mod keys;
mod logs;
mod nodes;
mod operations;
mod pod_logs;
mod render;
mod serial;
mod target;
mod tls;
mod top;
mod upgrade;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use cli::Cli;
use commands::Verdict;
use failure::CtlError;

fn main() -> ExitCode {
    let is_plugin = std::env::args_os().next().as_deref().is_some_and(cli::is_plugin);
    let cli = match Cli::try_parse() {
        Ok(mut cli) => {
            cli.is_plugin = is_plugin;
            cli
        }
        Err(error) => {
            // Help and version are no mistakes, and go to standard output. If that is gone, nobody reads them.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { failure::USAGE } else { 0 });
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return said(&CtlError::Output(error)),
    };
    let result = runtime.block_on(commands::run(cli));
    // A connection that is still being tried must not hold the end back.
    runtime.shutdown_background();
    match result {
        Ok(Verdict::Fine) => ExitCode::SUCCESS,
        Ok(Verdict::Problems) => ExitCode::from(failure::NO),
        // Who read the output has read enough.
        Err(CtlError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => said(&error),
    }
}

fn said(error: &CtlError) -> ExitCode {
    // If stderr is gone, there is no other place for it.
    let _ = writeln!(std::io::stderr(), "orlopctl: {error}");
    ExitCode::from(error.exit_code())
}
