//! QEMU's machine protocol: one JSON object per line, commands answered in order, events in between.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long QEMU may take to answer.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection past its greeting.
pub struct Qmp {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    /// Events read while waiting for an answer.
    events: Vec<String>,
}

impl Qmp {
    /// Connects to a QEMU that listens.
    ///
    /// # Errors
    /// No program listens there, or it does not speak QMP.
    pub fn connect(path: &Path) -> Result<Qmp> {
        let stream =
            UnixStream::connect(path).with_context(|| format!("connecting to {}", path.display()))?;
        Qmp::new(stream)
    }

    /// Reads the greeting and leaves capabilities negotiation.
    ///
    /// # Errors
    /// If the peer does not speak QMP.
    pub fn new(stream: UnixStream) -> Result<Qmp> {
        stream.set_read_timeout(Some(ANSWER)).context("set a time limit")?;
        let mut qmp = Qmp { reader: BufReader::new(stream.try_clone()?), writer: stream, events: Vec::new() };
        let greeting = qmp.read()?;
        anyhow::ensure!(greeting.get("QMP").is_some(), "no QMP greeting: {greeting}");
        qmp.execute("qmp_capabilities")?;
        Ok(qmp)
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        let n = self.reader.read_line(&mut line).context("read from QMP")?;
        anyhow::ensure!(n > 0, "QEMU closed QMP");
        serde_json::from_str(&line).with_context(|| format!("QMP said {line:?}"))
    }

    /// Runs a command without arguments.
    ///
    /// # Errors
    /// QEMU's error, or silence for 30 s.
    pub fn execute(&mut self, command: &str) -> Result<Value> {
        self.send(command, &json!({ "execute": command }))
    }

    /// Writes the picture of the screen to `file`, a PPM.
    ///
    /// # Errors
    /// As [`Qmp::execute`]; also if the machine has no screen.
    pub fn screendump(&mut self, file: &Path) -> Result<()> {
        let request =
            json!({ "execute": "screendump", "arguments": { "filename": file.display().to_string() } });
        self.send("screendump", &request).map(drop)
    }

    /// Leads a port of this machine's loopback to a port of the guest, whose network is QEMU's own.
    ///
    /// # Errors
    /// As [`Qmp::execute`]; also if the port is in use, or the guest's network is another one.
    pub fn forward(&mut self, host: u16, guest: u16) -> Result<()> {
        let request = json!({ "execute": "human-monitor-command", "arguments": {
            "command-line": format!("hostfwd_add net0 tcp:127.0.0.1:{host}-:{guest}"),
        } });
        let said = self.send("human-monitor-command", &request)?;
        // The monitor for people is silent if all went well.
        let silent = said.as_str().is_some_and(|text| text.trim().is_empty());
        anyhow::ensure!(silent, "QEMU does not forward port {host}: {said}");
        Ok(())
    }

    fn send(&mut self, command: &str, request: &Value) -> Result<Value> {
        self.writer.set_read_timeout(Some(ANSWER)).context("set a time limit")?;
        writeln!(self.writer, "{request}").context("write to QMP")?;
        loop {
            let answer = self.read()?;
            if let Some(event) = answer.get("event").and_then(Value::as_str) {
                self.events.push(event.to_owned());
            } else if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            } else {
                bail!("QMP {command}: {}", answer.get("error").unwrap_or(&answer));
            }
        }
    }

    /// Waits for an event (`RESET`, `SHUTDOWN`), or takes one that came already.
    ///
    /// # Errors
    /// If it does not come within `limit`.
    pub fn await_event(&mut self, name: &str, limit: Duration) -> Result<()> {
        if let Some(at) = self.events.iter().position(|e| e == name) {
            self.events.remove(at);
            return Ok(());
        }
        let deadline = std::time::Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            anyhow::ensure!(!left.is_zero(), "waited {} s for the event {name}", limit.as_secs());
            self.writer.set_read_timeout(Some(left)).context("set a time limit")?;
            let event = self.read().with_context(|| format!("waiting for the event {name}"))?;
            match event.get("event").and_then(Value::as_str) {
                Some(e) if e == name => return Ok(()),
                Some(e) => self.events.push(e.to_owned()),
                None => {}
            }
        }
    }

    /// Forgets events so far, also those that were not read yet: they arrive before the next answer.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn forget_events(&mut self) -> Result<()> {
        self.execute("query-status")?;
        self.events.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_events() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let fake = std::thread::spawn(move || {
            let mut reader = BufReader::new(theirs.try_clone().unwrap());
            let mut theirs = theirs;
            writeln!(theirs, r#"{{"QMP": {{"version": {{}}}}}}"#).unwrap();
            let mut line = String::new();
            for answer in [
                "{\"return\": {}}\n",
                "{\"event\": \"RESET\"}\n{\"return\": {\"status\": \"running\"}}\n",
                "{\"error\": {\"desc\": \"no\"}}\n",
                "{\"event\": \"RESET\"}\n{\"return\": {}}\n{\"event\": \"SHUTDOWN\"}\n",
                "{\"return\": {}}\n",
            ] {
                line.clear();
                reader.read_line(&mut line).unwrap();
                theirs.write_all(answer.as_bytes()).unwrap();
            }
            line
        });
        let mut qmp = Qmp::new(ours).unwrap();
        assert_eq!(qmp.execute("query-status").unwrap()["status"], "running");
        assert!(qmp.execute("bogus").unwrap_err().to_string().contains("no"));
        qmp.await_event("RESET", Duration::from_secs(1)).unwrap();
        // One that came before and was not read yet is an old one all the same.
        qmp.forget_events().unwrap();
        qmp.screendump(Path::new("/p.ppm")).unwrap();
        let last = fake.join().unwrap();
        assert!(last.contains("\"screendump\"") && last.contains("\"filename\":\"/p.ppm\""), "{last}");
        qmp.await_event("SHUTDOWN", Duration::from_secs(1)).unwrap();
        assert!(qmp.await_event("RESET", Duration::from_secs(1)).is_err());
    }
}
