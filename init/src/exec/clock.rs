//! Clocks. Time of the ledger: milliseconds of CLOCK_BOOTTIME (0 is kernel start, suspend counts). CLOCK_REALTIME: raised to
//! the last run's stamp by the initrd, set by `orlop-init clock` to what the agent asks for.
//!
//! The stamp is the time of the file that systemd-timesyncd touches while it follows a server, and `orlop-init clock` when it
//! has set the clock: only a time that NTP or the API server vouched for. PID 1 raises the clock to the image's own time.

use super::error::InitError;
use crate::plan::clock::{LINE_MAX, MOST_MS, wanted};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};
use orlop_config::error_chain::chain;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// What the agent asks for; `orlop-clock.path` waits for it.
const REQUEST: &str = "/run/orlop/clock/set";
/// systemd-timesyncd's stamp, on the state partition.
pub const STAMP: &str = "/var/lib/systemd/timesync/clock";

/// Now.
#[must_use]
pub fn boottime_ms() -> u64 {
    let Ok(t) = clock_gettime(ClockId::CLOCK_BOOTTIME) else { return 0 };
    let seconds = u64::try_from(t.tv_sec()).unwrap_or(0);
    let nanoseconds = u64::try_from(t.tv_nsec()).unwrap_or(0);
    seconds * 1000 + nanoseconds / 1_000_000
}

/// Raises the clock to the time of `stamp`, if that is later. Out: by how many seconds it was raised; `None` if it was not.
///
/// # Errors
/// The kernel refuses.
pub fn raise(stamp: &Path) -> Result<Option<u64>, InitError> {
    let Ok(stamped) = fs::metadata(stamp).and_then(|file| file.modified()) else { return Ok(None) };
    let Ok(behind) = stamped.duration_since(SystemTime::now()) else { return Ok(None) };
    let since = stamped.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // A damaged file system may have any time.
    let is_time = i64::try_from(since.as_millis()).is_ok_and(|ms| ms < MOST_MS);
    if behind.is_zero() || !is_time {
        return Ok(None);
    }
    set(TimeSpec::from(since))?;
    Ok(Some(behind.as_secs()))
}

fn set(time: TimeSpec) -> Result<(), InitError> {
    clock_settime(ClockId::CLOCK_REALTIME, time).map_err(|e| InitError::Kernel("set the clock", e))
}

/// Runs the subcommand: sets the clock once.
#[must_use]
pub fn main() -> ExitCode {
    let (said, code) = match take(Path::new(REQUEST)).and_then(|ms| obey(ms, Path::new(STAMP))) {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(e) => (chain(&e), ExitCode::FAILURE),
    };
    let _ = writeln!(io::stderr(), "orlop-init: {said}");
    code
}

/// The time that the file asks for, milliseconds since 1970. The file is taken away, whatever it holds: the path unit would
/// start the service for it for ever.
fn take(request: &Path) -> Result<i64, InitError> {
    let failed = |action| {
        let path = request.display().to_string();
        move |source| InitError::File { action, path, source }
    };
    let mut line = String::new();
    let read = File::open(request).and_then(|file| file.take(LINE_MAX).read_to_string(&mut line));
    fs::remove_file(request).map_err(failed("remove"))?;
    read.map_err(failed("read"))?;
    wanted(&line, boottime_ms()).map_err(InitError::Refused)
}

fn obey(ms: i64, stamp: &Path) -> Result<String, InitError> {
    set(TimeSpec::new(ms.div_euclid(1000), ms.rem_euclid(1000) * 1_000_000))?;
    // Without a stamp the next boot begins with what the machine's clock shows then: no reason to fail.
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    Ok(match File::open(stamp).and_then(|file| file.set_modified(time)) {
        Ok(()) => format!("the clock is set to {ms} ms after 1970"),
        Err(e) => format!("the clock is set to {ms} ms after 1970; {}: {e}", stamp.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_once_whatever_it_holds() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let request = dir.path().join("set");
        let line = format!("1795262400000 {}\n", boottime_ms());
        fs::write(&request, line).expect("fixture");
        let wanted = take(&request).expect("a good line");
        assert!((1_795_262_400_000..1_795_262_460_000).contains(&wanted), "{wanted}");
        for bad in [b"no".to_vec(), vec![0xff; 4], b"1 ".repeat(100_000)] {
            fs::write(&request, bad).expect("fixture");
            assert!(take(&request).is_err());
            assert!(!request.exists());
        }
        assert!(take(&request).is_err(), "there is none");
    }

    #[test]
    fn no_stamp_and_an_old_stamp_leave_the_clock_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let stamp = dir.path().join("clock");
        assert_eq!(raise(&stamp).expect("nothing to do"), None);
        fs::write(&stamp, "").expect("fixture");
        let old = SystemTime::now() - Duration::from_secs(3600);
        for time in [old, SystemTime::UNIX_EPOCH + Duration::from_secs(10_000_000_000)] {
            File::open(&stamp).and_then(|file| file.set_modified(time)).expect("fixture");
            assert_eq!(raise(&stamp).expect("nothing to do"), None);
        }
    }
}
