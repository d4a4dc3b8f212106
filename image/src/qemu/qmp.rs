//! QEMU's control socket (QMP): power button and quit.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connection that has left negotiation mode.
pub struct Qmp {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and negotiates.
    ///
    /// # Errors
    /// No QEMU listens there, or it does not answer within ten seconds.
    pub fn connect(path: &Path) -> Result<Qmp> {
        let stream =
            UnixStream::connect(path).with_context(|| format!("connecting to {}", path.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let lines = BufReader::new(stream.try_clone()?);
        let mut qmp = Qmp { stream, lines };
        // The greeting.
        qmp.line()?;
        qmp.run("qmp_capabilities")?;
        Ok(qmp)
    }

    /// Presses the power button.
    ///
    /// # Errors
    /// QEMU is gone.
    pub fn power_button(&mut self) -> Result<()> {
        self.run("system_powerdown")
    }

    /// Ends QEMU.
    ///
    /// # Errors
    /// QEMU is gone.
    pub fn quit(&mut self) -> Result<()> {
        self.run("quit")
    }

    fn run(&mut self, command: &str) -> Result<()> {
        writeln!(self.stream, "{{\"execute\":\"{command}\"}}").with_context(|| format!("QMP {command}"))?;
        // Events may stand before the answer.
        while !is_answer(&self.line().with_context(|| format!("QMP {command}"))?) {}
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let n = self.lines.read_line(&mut line)?;
        anyhow::ensure!(n > 0, "QEMU closed the connection");
        Ok(line)
    }
}

fn is_answer(line: &str) -> bool {
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    value.get("return").is_some() || value.get("error").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_no_answers() {
        assert!(is_answer("{\"return\": {}}"));
        assert!(is_answer("{\"error\": {\"class\": \"x\"}}"));
        assert!(!is_answer("{\"event\": \"POWERDOWN\"}"));
        assert!(!is_answer("garbage"));
    }
}
