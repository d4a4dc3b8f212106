//! Commands through the debug shell of the test profile (second serial port).
//!
//! The port carries one stream with an echo, so every command is wrapped between two markers made of two
//! halves: the echo of the command shows the halves apart, only the shell's output shows them joined.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::feed::Feed;

/// A question whether the shell reads is repeated after this, as long as it may not have begun to read.
const SHORT: Duration = Duration::from_secs(2);
/// The same later: an emulated machine that starts a control plane answers late.
const LONG: Duration = Duration::from_secs(10);
/// Until then questions are short.
const SOON: Duration = Duration::from_secs(12);

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit status.
    pub status: i32,
    /// Both streams.
    pub text: String,
}

/// The shell.
pub struct Shell {
    writer: UnixStream,
    feed: Feed,
    next: u32,
}

/// The line to type for a command. Pure.
#[must_use]
pub fn wrap(command: &str, n: u32) -> String {
    format!(
        "echo; echo E2E'-BEGIN-{n}'; {{ {command}\n}} </dev/null 2>&1; status=$?; echo; echo E2E'-END-{n}-'$status\n"
    )
}

/// Status and text from the lines since the command was typed, once its end marker is there. Pure.
#[must_use]
pub fn unwrap(lines: &[String], n: u32) -> Option<Output> {
    let begin = lines.iter().position(|l| *l == format!("E2E-BEGIN-{n}"))?;
    let marker = format!("E2E-END-{n}-");
    let (end, status) = lines
        .iter()
        .enumerate()
        .skip(begin)
        .find_map(|(i, l)| Some((i, l.strip_prefix(&marker)?.parse().ok()?)))?;
    let mut body = &lines[begin + 1..end];
    if let [rest @ .., last] = body
        && last.is_empty()
    {
        body = rest;
    }
    Some(Output { status, text: body.join("\n") })
}

impl Shell {
    /// The shell behind a serial port's socket, and its output.
    #[must_use]
    pub fn new(writer: UnixStream, feed: Feed) -> Shell {
        Shell { writer, feed, next: 0 }
    }

    /// Waits until the shell answers. Input before the shell reads is lost, and the shell does not report that it
    /// reads, so a question is repeated until one is answered.
    ///
    /// # Errors
    /// If none is answered within `limit`.
    pub fn rouse(&mut self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            // A shell that is there and slow would never answer a question of two seconds.
            let patience = if begun.elapsed() < SOON { SHORT } else { LONG };
            let asked = self.run("true", patience);
            if asked.is_ok() || begun.elapsed() >= limit {
                return asked.map(|_| ()).context("the debug shell does not answer");
            }
        }
    }

    /// Runs a command.
    ///
    /// # Errors
    /// If the end marker does not arrive within `limit`.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Output> {
        self.next += 1;
        let n = self.next;
        let from = self.feed.len();
        self.writer.write_all(wrap(command, n).as_bytes()).context("write to the debug shell")?;
        let marker = format!("E2E-END-{n}-");
        self.feed.wait(from, limit, &format!("the end of `{command}`"), |l| {
            l.starts_with(&marker).then_some(())
        })?;
        unwrap(&self.feed.since(from), n).with_context(|| format!("no whole output of `{command}`"))
    }

    /// Types a command without waiting for its end.
    ///
    /// # Errors
    /// If the port is gone.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        writeln!(self.writer, "{command}").context("write to the debug shell")
    }

    /// Runs a command that must succeed; returns its output.
    ///
    /// # Errors
    /// If it fails: its output.
    pub fn must(&mut self, command: &str) -> Result<String> {
        let output = self.run(command, Duration::from_secs(60))?;
        anyhow::ensure!(output.status == 0, "`{command}` ended with {}: {}", output.status, output.text);
        Ok(output.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A real shell, so that input and output belong together.
    #[test]
    fn status_and_output_of_a_real_shell() {
        for (command, status, text) in [
            ("echo a; echo b >&2", 0, "a\nb"),
            ("printf x; exit_with() { return 3; }; exit_with", 3, "x"),
            ("no-such-command 2>/dev/null", 127, ""),
            ("cat", 0, ""),
        ] {
            let output = std::process::Command::new("sh").arg("-c").arg(wrap(command, 4)).output().unwrap();
            let lines: Vec<String> =
                String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
            assert_eq!(unwrap(&lines, 4), Some(Output { status, text: text.into() }), "{command}");
        }
    }

    #[test]
    fn the_echo_of_a_command_is_not_its_output() {
        let typed: Vec<String> = wrap("cat /x", 7).lines().map(|l| format!("# {l}")).collect();
        assert_eq!(unwrap(&typed, 7), None);
        let mut lines = typed;
        lines.extend(["", "E2E-BEGIN-7", "one", "", "two", "", "E2E-END-7-3"].map(str::to_owned));
        assert_eq!(unwrap(&lines, 7), Some(Output { status: 3, text: "one\n\ntwo".into() }));
        assert_eq!(unwrap(&lines, 8), None);
    }
}
