//! A supervisor under the harness's control: starts and signals programs in its namespaces, and waits for their
//! notifications.
//!
//! In: a [`Layout`]. Out: requests, and the events that answer them. Invariant: dropping it ends the
//! supervisor, and with it every process of its namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::protocol::{Event, Layout, Request};
use crate::process::Guarded;
use crate::run::Run;

/// A running supervisor.
pub struct Supervised {
    // Order of fields is order of dropping: the end of its input ends the supervisor, the guard makes sure.
    requests: ChildStdin,
    _supervisor: Guarded,
    events: Receiver<Event>,
    /// Events that were read while waiting for another.
    unseen: Vec<Event>,
    /// Programs that run, as far as events were read.
    running: BTreeSet<String>,
    /// The programs' last states (`STATUS=`).
    statuses: BTreeMap<String, String>,
    pid: i32,
    logs: PathBuf,
}

impl Supervised {
    /// Starts a supervisor in `groups` and waits until its layout exists. Its own log and its programs' are in `logs`.
    ///
    /// # Errors
    /// The step of the layout that failed.
    pub fn start(run: &Arc<Run>, groups: &[PathBuf], layout: &Layout, logs: &Path) -> Result<Supervised> {
        anyhow::ensure!(
            nix::unistd::geteuid().is_root(),
            "a native node needs root (namespaces, mounts, cgroups)"
        );
        let own = std::env::current_exe().context("find this program")?;
        let errors = fs::File::create(logs.join("supervisor.log")).context("make the supervisor's log")?;
        let mut command = Command::new(own);
        command.arg("node-launch").args(groups).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut supervisor = Guarded::spawn(run, &mut command)?;
        let mut requests = supervisor.child.stdin.take().context("the supervisor has no input")?;
        let output = supervisor.child.stdout.take().context("the supervisor has no output")?;
        writeln!(requests, "{}", serde_json::to_string(layout)?).context("send the layout")?;
        let (send, events) = channel();
        let read = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line)
                    .unwrap_or_else(|e| Event::Failed { message: format!("supervisor said {line:?}: {e}") });
                if send.send(event).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("node-events".into()).spawn(read).context("start a thread")?;
        let unseen = Vec::new();
        let (logs, running, statuses) = (logs.to_owned(), BTreeSet::new(), BTreeMap::new());
        let mut made =
            Supervised { requests, _supervisor: supervisor, events, unseen, running, statuses, pid: 0, logs };
        made.pid = made.event(Duration::from_secs(30), "the namespaces", |e| match e {
            Event::Ready { pid } => Some(*pid),
            _ => None,
        })?;
        Ok(made)
    }

    /// The first process of the namespaces, as the host numbers it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Starts a program, `more` in its environment; does not wait for it to be of use.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_program(&mut self, name: &str, argv: &[String], more: &[(&str, &str)]) -> Result<()> {
        let mut env = BTreeMap::from([("RUST_BACKTRACE".to_owned(), "1".to_owned())]);
        env.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        // Events of the last process of this name do not concern the new one.
        self.unseen.retain(|e| !is_about(e, name));
        self.statuses.remove(name);
        self.request(&Request::Start { name: name.into(), argv: argv.to_vec(), env })?;
        self.event(Duration::from_secs(10), &format!("{name} to start"), |e| {
            matches!(e, Event::Started { name: n, .. } if n == name).then_some(())
        })
    }

    /// Sends a signal to a program; one that ended already is no error.
    ///
    /// # Errors
    /// If the supervisor is gone.
    pub fn signal(&mut self, name: &str, signal: i32) -> Result<()> {
        self.request(&Request::Signal { name: name.into(), signal })
    }

    /// Waits for a program's end; returns its status.
    ///
    /// # Errors
    /// If it does not end within twenty seconds.
    pub fn await_exit(&mut self, name: &str) -> Result<i32> {
        self.event(Duration::from_secs(20), &format!("{name} to end"), |e| match e {
            Event::Exited { name: n, status } if n == name => Some(*status),
            _ => None,
        })
    }

    /// Waits for a program's READY notification.
    ///
    /// # Errors
    /// If it ends or stays silent.
    pub fn await_ready(&mut self, name: &str, limit: Duration) -> Result<()> {
        let log = self.logs.join(format!("{name}.log"));
        let ended =
            self.event(limit, &format!("{name} to be ready (its log: {})", log.display()), |e| match e {
                Event::Notified { name: n, text } if n == name && text.lines().any(|l| l == "READY=1") => {
                    Some(None)
                }
                Event::Exited { name: n, status } if n == name => Some(Some(*status)),
                _ => None,
            })?;
        match ended {
            None => Ok(()),
            Some(status) => bail!("{name} ended with {status}:\n{}", tail(&log)),
        }
    }

    /// Waits until a program's state (`STATUS=`) fulfils the condition; returns the state.
    ///
    /// # Errors
    /// At the deadline, with the present state; if the program ends.
    pub fn await_status(
        &mut self,
        name: &str,
        limit: Duration,
        what: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            let is_running = self.is_running(name);
            let status = self.statuses.get(name).map(String::as_str).unwrap_or_default();
            if wanted(status) {
                return Ok(status.to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_running || left.is_zero() {
                let log = tail(&self.logs.join(format!("{name}.log")));
                let how = if is_running { "says" } else { "has ended and said" };
                bail!("waited for {name} to say {what}; it {how} {status:?}, its last lines:\n{log}");
            }
            match self.events.recv_timeout(left) {
                Ok(Event::Failed { message }) => bail!("the node's supervisor: {message}"),
                Ok(event) => {
                    self.note(&event);
                    self.unseen.push(event);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the node ended"),
            }
        }
    }

    /// True if a program was started and has not ended as of now.
    pub fn is_running(&mut self, name: &str) -> bool {
        while let Ok(event) = self.events.try_recv() {
            self.note(&event);
            self.unseen.push(event);
        }
        self.running.contains(name)
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Started { name, .. } => {
                self.running.insert(name.clone());
            }
            Event::Ready { .. } | Event::Failed { .. } => {}
            Event::Exited { name, .. } => {
                self.running.remove(name);
            }
            Event::Notified { name, text } => {
                if let Some(status) = text.lines().find_map(|l| l.strip_prefix("STATUS=")) {
                    self.statuses.insert(name.clone(), status.to_owned());
                }
            }
        }
    }

    /// Lets the programs go on for a while; their notifications of that time are kept.
    ///
    /// # Errors
    /// If the supervisor fails or ends.
    pub fn pass(&mut self, moment: Duration) -> Result<()> {
        let until = Instant::now() + moment;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Failed { message }) => bail!("the node's supervisor: {message}"),
                Ok(event) => {
                    self.note(&event);
                    self.unseen.push(event);
                }
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => bail!("the node ended"),
            }
        }
    }

    fn request(&mut self, request: &Request) -> Result<()> {
        writeln!(self.requests, "{}", serde_json::to_string(request)?)
            .context("the node's supervisor is gone")
    }

    /// The first past or future event for which `pick` returns a value.
    fn event<T>(&mut self, limit: Duration, what: &str, pick: impl Fn(&Event) -> Option<T>) -> Result<T> {
        if let Some(at) = self.unseen.iter().position(|e| pick(e).is_some()) {
            return pick(&self.unseen.remove(at)).context("picked above");
        }
        let deadline = Instant::now() + limit;
        loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Failed { message }) => bail!("waiting for {what}: {message}"),
                Ok(event) => {
                    self.note(&event);
                    match pick(&event) {
                        Some(found) => return Ok(found),
                        None => self.unseen.push(event),
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("waited {} s for {what}", limit.as_secs()),
                Err(RecvTimeoutError::Disconnected) => bail!("the node ended while waiting for {what}"),
            }
        }
    }
}

/// The last lines of a log.
#[must_use]
pub fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

fn is_about(event: &Event, program: &str) -> bool {
    match event {
        Event::Started { name, .. } | Event::Exited { name, .. } | Event::Notified { name, .. } => {
            name == program
        }
        Event::Ready { .. } | Event::Failed { .. } => false,
    }
}
