//! All reports of a stage to the outside go through here: ledger, console, host channel, list of problems.

use super::clock::boottime_ms;
use super::console::{Console, Level};
use super::host_channel::HostChannel;
use super::ledger::LedgerFile;
use orlop_config::ledger::{HostMessage, LedgerEntry};
use std::path::Path;

/// The reporter of one stage.
#[derive(Debug)]
pub struct Report {
    source: &'static str,
    tag: &'static str,
    console: Console,
    ledger: LedgerFile,
    channel: HostChannel,
    problems: Vec<String>,
}

impl Report {
    /// `source` as in host messages (`init`, `bringup`), `tag` as on the console.
    #[must_use]
    pub fn new(source: &'static str, tag: &'static str) -> Report {
        Report {
            source,
            tag,
            console: Console::open(tag),
            ledger: LedgerFile::new(Path::new("/run/orlop")),
            channel: HostChannel::default(),
            problems: Vec::new(),
        }
    }

    /// Opens the console again, once /dev and /proc are there.
    pub fn reopen_console(&mut self) {
        self.console = Console::open(self.tag);
    }

    /// Stamps a phase that ends now; `started_ms` is when it began, if it has a start of its own.
    pub fn stamp(&mut self, phase: &str, started_ms: Option<u64>, detail: &str, ok: bool) {
        let at_ms = boottime_ms();
        let took_ms = started_ms.map(|s| at_ms.saturating_sub(s));
        let entry = LedgerEntry { phase: phase.into(), at_ms, took_ms, detail: detail.into(), ok };
        let separator = if detail.is_empty() { "" } else { ": " };
        self.console.say(Level::Info, &format!("{phase} at {at_ms} ms{separator}{detail}"));
        self.channel.send(&HostMessage::Ledger(entry.clone()));
        if let Err(e) = self.ledger.stamp(entry) {
            self.console.say(Level::Error, &format!("cannot write /run/orlop/boot.json: {e}"));
        }
    }

    /// Something a person must know; kept for node-config.json as well.
    pub fn problem(&mut self, message: &str) {
        self.line(message);
        self.channel.send(&HostMessage::Problem { source: self.source.into(), message: message.into() });
        self.problems.push(message.into());
    }

    /// A line for a person, without making it a problem.
    pub fn line(&mut self, text: &str) {
        self.console.say(Level::Error, text);
    }

    /// For the log.
    pub fn info(&mut self, text: &str) {
        self.console.say(Level::Info, text);
    }

    /// What was reported so far.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Gives the host a moment to take what is queued.
    pub fn flush(&mut self) {
        self.channel.flush();
    }
}
