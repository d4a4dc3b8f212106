//! Arms the hardware watchdog in a boot on trial, and beats until systemd takes it. The decision is `plan::watchdog`.
//!
//! The device is closed without the magic character, so the watchdog goes on. A machine without one, or one that does not take its
//! timeout, boots on. No child of init has the device: systemd could not open it while a child lives. The guard of the trial stops a
//! watchdog that systemd has not taken ([`take_back`]).

use super::console::{Console, Level};
use super::drivers::Drivers;
use super::report::Report;
use super::stop;
use crate::plan::watchdog::{BEAT_EVERY_S, LONG_STEP_MAX_S, MODULES, TrialWatchdog, WatchdogFound, decide};
use crate::sys::child::{self, Companion};
use crate::sys::watchdog::set_timeout;
use orlop_config::error_chain::chain;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::Path;

const DEVICE: &str = "/dev/watchdog0";
const CLASS: &str = "/sys/class/watchdog/watchdog0";
/// Stops the watchdog when the device is closed behind it.
const MAGIC_CLOSE: &[u8] = b"V";
/// Any other byte is a beat.
const BEAT: &[u8] = b".";

/// A watchdog that runs. It goes on when this is dropped.
#[derive(Debug)]
pub struct ArmedWatchdog {
    device: File,
}

impl ArmedWatchdog {
    fn hold(device: File) -> ArmedWatchdog {
        child::keep_back(Some(device.as_fd()));
        ArmedWatchdog { device }
    }

    /// One more timeout from now on.
    pub fn beat(&self) {
        // A watchdog that takes no beat resets the machine, and the other slot says so.
        let _ = (&self.device).write_all(BEAT);
    }

    /// Stops it.
    ///
    /// # Errors
    /// The driver does not take the magic character; the watchdog goes on.
    pub fn stop(self) -> io::Result<()> {
        (&self.device).write_all(MAGIC_CLOSE)
    }

    /// A child that beats until it is dropped, or for [`LONG_STEP_MAX_S`].
    fn accompany(&self) -> io::Result<Companion> {
        let device = self.device.try_clone()?;
        child::companion(move || {
            for _ in 0..LONG_STEP_MAX_S / BEAT_EVERY_S {
                let _ = (&device).write_all(BEAT);
                stop::wait(BEAT_EVERY_S);
            }
        })
    }
}

impl Drop for ArmedWatchdog {
    fn drop(&mut self) {
        child::keep_back(None);
    }
}

/// Does a step that may take longer than the timeout although nothing is wrong.
pub fn during<T>(watchdog: Option<&ArmedWatchdog>, step: impl FnOnce() -> T) -> T {
    // Without a further process the step has one timeout.
    let companion = watchdog.and_then(|watchdog| watchdog.accompany().ok());
    let done = step();
    drop(companion);
    if let Some(watchdog) = watchdog {
        watchdog.beat();
    }
    done
}

/// Arms it if this boot is on trial and the machine has one.
pub fn arm(report: &mut Report, drivers: &mut Drivers, on_trial: bool) -> Option<ArmedWatchdog> {
    if on_trial {
        drivers.need_apart(MODULES);
    }
    let found = found(Path::new(CLASS));
    let identity = found.as_ref().map_or("", |found| found.identity.as_str());
    match decide(on_trial, found.as_ref()) {
        TrialWatchdog::NotOnTrial => None,
        TrialWatchdog::Absent => {
            report.info(
                "no hardware watchdog: a hang of this trial before systemd's start needs a power cycle",
            );
            None
        }
        TrialWatchdog::Unstoppable => {
            report.line(&format!(
                "the hardware watchdog {identity} is left to systemd: it cannot be stopped again, and a hang of this trial before systemd's start needs a power cycle"
            ));
            None
        }
        TrialWatchdog::TooShort { longest_s } => {
            report.line(&format!(
                "the hardware watchdog {identity} is left to systemd: it waits for {longest_s} s at most, and a boot may take longer"
            ));
            None
        }
        TrialWatchdog::Arm { timeout_s } => match begin(Path::new(DEVICE), timeout_s) {
            Ok((armed, taken_s)) => {
                report.info(&format!(
                    "the hardware watchdog {identity} resets this trial after {taken_s} s without a beat"
                ));
                Some(armed)
            }
            Err(e) => {
                report.line(&format!(
                    "cannot arm the hardware watchdog {identity}: {}; a hang of this trial before systemd's start needs a power cycle",
                    chain(&e)
                ));
                None
            }
        },
    }
}

/// What the kernel shows of it.
fn found(class: &Path) -> Option<WatchdogFound> {
    let identity = fs::read_to_string(class.join("identity")).ok()?;
    let text = |name: &str| fs::read_to_string(class.join(name)).ok();
    let (longest, nowayout, options) = (text("max_timeout"), text("nowayout"), text("options"));
    Some(WatchdogFound::parse(&identity, longest.as_deref(), nowayout.as_deref(), options.as_deref()))
}

/// Opens the device, which starts it.
fn begin(device: &Path, timeout_s: u32) -> io::Result<(ArmedWatchdog, u32)> {
    let armed = ArmedWatchdog::hold(OpenOptions::new().write(true).open(device)?);
    match set_timeout(&armed.device, timeout_s) {
        Ok(taken_s) => Ok((armed, taken_s)),
        Err(e) => {
            // Its own timeout may be shorter than a boot.
            armed.stop()?;
            Err(e.into())
        }
    }
}

/// Stops the watchdog that init has armed, unless systemd has it: otherwise it would reset a healthy trial. systemd takes it before it
/// starts its first unit.
pub fn take_back(console: &mut Console) {
    let line = match stop_unused(Path::new(CLASS), Path::new(DEVICE)) {
        Ok(false) => return,
        Ok(true) => "systemd has not taken over the hardware watchdog of this trial, so it is stopped: a machine that hangs in this trial needs a power cycle".to_owned(),
        Err(e) => format!(
            "systemd has not taken over the hardware watchdog of this trial, and it cannot be stopped: {}; it is going to reset this machine",
            chain(&e)
        ),
    };
    console.say(Level::Error, &line);
}

/// Stops a watchdog that runs and that no program has open. Out: whether there was one.
fn stop_unused(class: &Path, device: &Path) -> io::Result<bool> {
    // To open one that does not run would start it.
    if !fs::read_to_string(class.join("state")).is_ok_and(|state| state.trim() == "active") {
        return Ok(false);
    }
    match OpenOptions::new().write(true).open(device) {
        Err(e) if e.kind() == ErrorKind::ResourceBusy => Ok(false),
        opened => opened?.write_all(MAGIC_CLOSE).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn what_the_kernel_shows_of_a_watchdog() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert_eq!(found(dir.path()), None);
        fs::write(dir.path().join("identity"), "iTCO_wdt\n").expect("fixture");
        let want = |longest_s, stops| Some(WatchdogFound { identity: "iTCO_wdt".into(), longest_s, stops });
        assert_eq!(found(dir.path()), want(None, false));
        for (name, text) in [("max_timeout", "613\n"), ("nowayout", "0\n"), ("options", "0x8180\n")] {
            fs::write(dir.path().join(name), text).expect("fixture");
        }
        assert_eq!(found(dir.path()), want(Some(613), true));
    }

    #[test]
    fn one_that_systemd_has_not_taken_is_stopped() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (state, device) = (dir.path().join("state"), dir.path().join("watchdog0"));
        assert!(!stop_unused(dir.path(), &device).expect("no watchdog"));
        fs::write(&device, "").expect("fixture");
        fs::write(&state, "inactive\n").expect("fixture");
        assert!(!stop_unused(dir.path(), &device).expect("one that does not run"));
        assert_eq!(fs::read(&device).expect("file"), b"");
        fs::write(&state, "active\n").expect("fixture");
        assert!(stop_unused(dir.path(), &device).expect("one that runs"));
        assert_eq!(fs::read(&device).expect("file"), MAGIC_CLOSE);
        fs::remove_file(&device).expect("fixture");
        assert!(stop_unused(dir.path(), &device).is_err());
    }

    #[test]
    fn it_gets_beats_during_a_long_step() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let armed = ArmedWatchdog { device: file.reopen().expect("open") };
        let began = Instant::now();
        let beats = during(Some(&armed), || {
            loop {
                let beats = fs::read(file.path()).expect("file");
                if !beats.is_empty() || began.elapsed() > Duration::from_secs(30) {
                    return beats;
                }
                std::thread::yield_now();
            }
        });
        assert_eq!(beats, BEAT);
        assert!(fs::read(file.path()).expect("file").len() >= 2, "and one at its end");
        assert_eq!(during(None, || 3), 3);
    }

    #[test]
    fn what_takes_no_timeout_is_stopped() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        assert!(begin(file.path(), 180).is_err());
        assert_eq!(fs::read(file.path()).expect("file"), MAGIC_CLOSE);
        let armed = ArmedWatchdog { device: file.reopen().expect("open") };
        armed.beat();
        drop(armed);
        assert_eq!(fs::read(file.path()).expect("file"), BEAT);
    }
}
