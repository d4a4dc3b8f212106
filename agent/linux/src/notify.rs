//! The service-manager protocol (`sd_notify(3)`): readiness and watchdog.
//!
//! In: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`, read once by main and passed as values. Out:
//! datagrams. Invariants: a malformed watchdog setting refuses to start (as upstream's pkg/kubelet/watchdog);
//! without a socket the service manager expects no message, and every message is a success.
//!
//! Why no crate: `sd-notify` reads the environment itself, which is main's alone here, and takes a malformed watchdog setting
//! without a word.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Why a message did not reach the service manager, or why the manager's request makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// `NOTIFY_SOCKET` is neither an absolute path nor an abstract name.
    #[error("NOTIFY_SOCKET {0:?} is neither an absolute path nor an abstract name (@name)")]
    Address(String),
    /// The datagram was not sent.
    #[error("notify {state:?} to {socket}")]
    Send {
        /// What was to be said.
        state: String,
        /// To whom.
        socket: String,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// `WATCHDOG_USEC` or `WATCHDOG_PID` is no positive number.
    #[error("{variable}={value:?} is not a positive number; the unit's WatchdogSec= sets it")]
    Watchdog {
        /// Name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The watchdog would fire before the agent can report; the words are upstream's.
    #[error("configure watchdog timeout too small: {period:?}; the unit's WatchdogSec= sets it")]
    PeriodTooSmall {
        /// The period.
        period: Duration,
    },
}

/// A period must be longer than this, as upstream's (`minimalNotifyInterval`).
const PERIOD_MIN: Duration = Duration::from_secs(1);

/// A connection to the service manager, or none.
#[derive(Debug)]
pub struct Notifier {
    target: Option<(UnixDatagram, SocketAddr, String)>,
}

impl Notifier {
    /// `address` is the value of `NOTIFY_SOCKET`; `None` or empty makes every [`Notifier::send`] a success.
    ///
    /// # Errors
    /// [`NotifyError::Address`] for a name that is no socket, [`NotifyError::Send`] if no socket can be made.
    pub fn new(address: Option<&str>) -> Result<Notifier, NotifyError> {
        let Some(address) = address.filter(|a| !a.is_empty()) else {
            return Ok(Notifier { target: None });
        };
        let bad = || NotifyError::Address(address.to_owned());
        let to = if let Some(name) = address.strip_prefix('@') {
            SocketAddr::from_abstract_name(name).map_err(|_| bad())?
        } else if address.starts_with('/') {
            SocketAddr::from_pathname(address).map_err(|_| bad())?
        } else {
            return Err(bad());
        };
        let socket = UnixDatagram::unbound().map_err(|source| NotifyError::Send {
            state: String::new(),
            socket: address.to_owned(),
            source,
        })?;
        Ok(Notifier { target: Some((socket, to, address.to_owned())) })
    }

    /// Sends one state, for example `READY=1`, or several joined by newlines.
    ///
    /// # Errors
    /// [`NotifyError::Send`] with the system's reason.
    pub fn send(&self, state: &str) -> Result<(), NotifyError> {
        let Some((socket, to, name)) = &self.target else { return Ok(()) };
        socket.send_to_addr(state.as_bytes(), to).map(|_| ()).map_err(|source| NotifyError::Send {
            state: state.to_owned(),
            socket: name.clone(),
            source,
        })
    }

    /// True if there is a service manager that listens.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.target.is_some()
    }
}

/// The watchdog's period, or `None` if none was asked for of this process.
/// The arguments are the values of `WATCHDOG_USEC` and `WATCHDOG_PID`, and the process's own id.
///
/// # Errors
/// [`NotifyError::Watchdog`] if a value is no positive number, [`NotifyError::PeriodTooSmall`] for a period of a second or less.
pub fn watchdog_interval(
    usec: Option<&str>,
    pid: Option<&str>,
    own_pid: u32,
) -> Result<Option<Duration>, NotifyError> {
    let Some(usec) = usec.filter(|v| !v.is_empty()) else { return Ok(None) };
    let micros = positive("WATCHDOG_USEC", usec)?;
    if let Some(pid) = pid.filter(|v| !v.is_empty())
        && positive("WATCHDOG_PID", pid)? != u64::from(own_pid)
    {
        return Ok(None);
    }
    let period = Duration::from_micros(micros);
    if period <= PERIOD_MIN {
        return Err(NotifyError::PeriodTooSmall { period });
    }
    Ok(Some(period))
}

fn positive(variable: &'static str, value: &str) -> Result<u64, NotifyError> {
    match value.parse::<u64>() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(NotifyError::Watchdog { variable, value: value.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_values() {
        let period = Some(Duration::from_secs(2));
        type Case = (Option<&'static str>, Option<&'static str>, Result<Option<Duration>, &'static str>);
        let table: &[Case] = &[
            (None, None, Ok(None)),
            (Some(""), None, Ok(None)),
            (Some("2000000"), None, Ok(period)),
            (Some("2000000"), Some(""), Ok(period)),
            (Some("2000000"), Some("42"), Ok(period)),
            (Some("1000000"), Some("43"), Ok(None)),
            (Some("1000001"), None, Ok(Some(Duration::from_micros(1_000_001)))),
            (Some("1000000"), None, Err("configure watchdog timeout too small: 1s")),
            (Some("0"), None, Err("WATCHDOG_USEC")),
            (Some("-5"), None, Err("WATCHDOG_USEC")),
            (Some("soon"), None, Err("WATCHDOG_USEC")),
            (Some("1000000"), Some("me"), Err("WATCHDOG_PID")),
        ];
        for (usec, pid, want) in table {
            let got = watchdog_interval(*usec, *pid, 42);
            match want {
                Ok(w) => assert_eq!(got.unwrap(), *w, "{usec:?} {pid:?}"),
                Err(name) => assert!(got.unwrap_err().to_string().starts_with(name), "{usec:?} {pid:?}"),
            }
        }
    }

    #[test]
    fn states_arrive_on_a_path_and_on_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("orlop-notify-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (address, socket) in
            [(path.to_str().unwrap().to_owned(), &by_path), (format!("@{name}"), &by_name)]
        {
            let notifier = Notifier::new(Some(&address)).unwrap();
            assert!(notifier.is_connected());
            notifier.send("READY=1\nSTATUS=up").unwrap();
            let mut buffer = [0u8; 64];
            let n = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], b"READY=1\nSTATUS=up");
        }
    }

    #[test]
    fn nobody_listening_is_a_success_and_nonsense_is_named() {
        Notifier::new(None).unwrap().send("READY=1").unwrap();
        Notifier::new(Some("")).unwrap().send("READY=1").unwrap();
        assert!(Notifier::new(Some("relative/path")).is_err());
        let gone = Notifier::new(Some("/nonexistent/notify")).unwrap().send("READY=1").unwrap_err();
        assert!(gone.to_string().contains("/nonexistent/notify"), "{gone}");
    }
}
