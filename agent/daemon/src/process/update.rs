//! The third program of this binary: `orlop-update`, which writes releases into the slot that does not run ([`orlop_update`]). It is one
//! binary because TLS, HTTP and the runtime are in it already.
//!
//! In: the name under which the process was started and its arguments; without any, the listening socket as standard input, as
//! systemd hands it over. Out: reports over the socket, lines on the consoles, and, for who asks, on standard output.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use agent_core::console::text::clean;
use agent_linux::kernel_log::{self, KernelLogWriter};
use anyhow::{Context, bail};
use orlop_config::kubelet::nested::Logging;
use orlop_config::node::{Update, UpdateDrives, derive};
use orlop_update::service::client::ask;
use orlop_update::service::protocol::{SOCKET, UpdateReport, UpdateRequest, UpdateState};
use orlop_update::service::{UpdaterPaths, serve};

use super::environment::Environment;
use crate::logging;

/// The name of the program, a link to the agent's binary.
pub const NAME: &str = "orlop-update";
/// Longest line on the consoles, characters.
const LINE_CHARS_MAX: usize = 800;
/// The kernel's levels of an error and of what a person waits for.
const LEVEL_ERROR: u8 = 3;
const LEVEL_NOTICE: u8 = 5;
/// Exit code of a request that did not begin because another one runs (EX_TEMPFAIL).
pub const EXIT_BUSY: u8 = 75;

/// What the program is asked for by its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpdateCommand {
    /// To answer requests.
    Serve,
    /// To make one.
    Ask(UpdateRequest),
    /// To say by its exit code whether drives are taken.
    AllowsDrives,
}

fn command(arguments: &[String]) -> anyhow::Result<UpdateCommand> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let request = match words.as_slice() {
        [] => return Ok(UpdateCommand::Serve),
        ["allows-drives"] => return Ok(UpdateCommand::AllowsDrives),
        ["status"] => UpdateRequest::Status,
        ["check"] => UpdateRequest::Check,
        ["stick"] => UpdateRequest::Stick,
        ["take"] => UpdateRequest::Take { version: None },
        ["take", version] => UpdateRequest::Take { version: Some(version.parse()?) },
        _ => bail!("usage: orlop-update [status | check | take [VERSION] | stick | allows-drives]"),
    };
    Ok(UpdateCommand::Ask(request))
}

/// Runs it. `further_authorities` is `SSL_CERT_DIR`. The exit code: 1 if what was asked for has failed, with the reason shown;
/// [`EXIT_BUSY`] if another request runs.
///
/// # Errors
/// The arguments are none of its own, the updater is not there, or the process cannot be set up.
pub fn start(arguments: &[String], further_authorities: Option<OsString>) -> anyhow::Result<u8> {
    match command(arguments)? {
        UpdateCommand::Serve => answer(further_authorities).map(|()| 0),
        UpdateCommand::Ask(request) => {
            let last = ask(Path::new(SOCKET), &request, show).with_context(|| format!("ask {SOCKET}"))?;
            Ok(exit_code(last.state))
        }
        UpdateCommand::AllowsDrives => {
            allows_drives(Path::new(derive::UPDATE_FILE)).map(|allows| u8::from(!allows))
        }
    }
}

fn exit_code(last: UpdateState) -> u8 {
    match last {
        UpdateState::Failed => 1,
        UpdateState::Busy => EXIT_BUSY,
        _ => 0,
    }
}

fn answer(further_authorities: Option<OsString>) -> anyhow::Result<()> {
    let environment = Environment::of_process();
    logging::init(&Logging::default(), environment.under_journald)?;
    let socket =
        std::io::stdin().as_fd().try_clone_to_owned().context("take the socket from standard input")?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true).context("prepare the socket")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the async runtime")?;
    // A machine without a kernel's log has the lines in the journal.
    let mut consoles = KernelLogWriter::open(Path::new(kernel_log::PATH)).ok();
    runtime.block_on(async {
        let listener = tokio::net::UnixListener::from_std(listener).context("listen on the socket")?;
        let say = |report: &UpdateReport| tell(report, &mut consoles);
        serve(listener, UpdaterPaths::appliance(further_authorities), say).await.context("answer requests")
    })
}

/// The end of a request, for who looks at the machine.
fn tell(report: &UpdateReport, consoles: &mut Option<KernelLogWriter>) {
    let level = match report.state {
        UpdateState::Failed => LEVEL_ERROR,
        UpdateState::Staged => LEVEL_NOTICE,
        _ => {
            tracing::info!(report = report.message.as_str(), "update");
            return;
        }
    };
    tracing::warn!(report = report.message.as_str(), "update");
    if let Some(consoles) = consoles {
        // The journal has the line.
        let _ = consoles.write(level, &format!("orlop-update: {}", clean(&report.message, LINE_CHARS_MAX)));
    }
}

fn show(report: &UpdateReport) {
    // If nobody reads it, the updater goes on all the same.
    let _ = writeln!(std::io::stdout(), "{}", clean(&report.message, LINE_CHARS_MAX));
}

/// Without a file the settings are the defaults. A file that cannot be read allows nothing.
fn allows_drives(settings: &Path) -> anyhow::Result<bool> {
    let text = match std::fs::read(settings) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        read => read.with_context(|| format!("read {}", settings.display()))?,
    };
    let update: Update =
        serde_json::from_slice(&text).with_context(|| format!("parse {}", settings.display()))?;
    Ok(update.usb == UpdateDrives::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_requests() {
        let words = |text: &str| text.split_whitespace().map(ToOwned::to_owned).collect::<Vec<String>>();
        let version = Some("0.2.0".parse().expect("a version"));
        for (text, want) in [
            ("", UpdateCommand::Serve),
            ("status", UpdateCommand::Ask(UpdateRequest::Status)),
            ("check", UpdateCommand::Ask(UpdateRequest::Check)),
            ("stick", UpdateCommand::Ask(UpdateRequest::Stick)),
            ("take", UpdateCommand::Ask(UpdateRequest::Take { version: None })),
            ("take 0.2.0", UpdateCommand::Ask(UpdateRequest::Take { version })),
            ("allows-drives", UpdateCommand::AllowsDrives),
        ] {
            assert_eq!(command(&words(text)).expect(text), want);
        }
        for bad in ["boot", "take 0.2", "take 0.2.0 now", "--help", "check check"] {
            assert!(command(&words(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn units_tell_failures_from_a_busy_updater() {
        for (last, code) in [
            (UpdateState::Staged, 0),
            (UpdateState::UpToDate, 0),
            (UpdateState::Idle, 0),
            (UpdateState::Waits, 0),
            (UpdateState::Failed, 1),
            (UpdateState::Busy, 75),
        ] {
            assert_eq!(exit_code(last), code, "{last:?}");
        }
    }

    #[test]
    fn drives_are_taken_unless_the_configuration_says_no() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let settings = dir.path().join("update.json");
        assert!(allows_drives(&settings).expect("no file"));
        for (usb, allowed) in [(UpdateDrives::Allow, true), (UpdateDrives::Ignore, false)] {
            let update = Update { usb, ..Update::default() };
            std::fs::write(&settings, serde_json::to_vec(&update).expect("JSON")).expect("written");
            assert_eq!(allows_drives(&settings).expect("readable"), allowed);
        }
        std::fs::write(&settings, "{").expect("written");
        assert!(allows_drives(&settings).is_err());
    }
}
