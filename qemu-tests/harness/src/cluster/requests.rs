//! HTTP requests of the harness to Services, and how each of them ended.
//!
//! In: an address, the process whose network the request begins in, a limit. Out: the answer, or the fault as a client
//! sees it. Invariant: each request has a connection of its own, so kube-proxy chooses a pod for each.

pub mod steady;

use std::fmt;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::proxy::inside;

/// Largest answer, bytes; the rest is not read.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Limit of one of several requests until the first answer.
const TRY: Duration = Duration::from_secs(1);
/// Time between the beginnings of such requests.
const RETRY: Duration = Duration::from_millis(200);

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestFault {
    /// The connection was refused: nothing listens, or the Service has no endpoint.
    Refused,
    /// The connection was reset.
    Reset,
    /// The network says that there is no such host.
    Unreachable,
    /// There was no connection within the limit.
    NoConnection,
    /// There was a connection, and no answer within the limit.
    NoAnswer,
    /// The connection ended before the answer was whole.
    CutShort,
    /// The answer's status is not 200.
    BadStatus,
    /// Another error of the socket.
    Other,
}

impl fmt::Display for RequestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RequestFault::Refused => "refused",
            RequestFault::Reset => "reset",
            RequestFault::Unreachable => "unreachable",
            RequestFault::NoConnection => "no connection in time",
            RequestFault::NoAnswer => "no answer in time",
            RequestFault::CutShort => "cut short",
            RequestFault::BadStatus => "another status",
            RequestFault::Other => "another error",
        })
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: String,
}

/// How a request ended.
pub type Outcome = Result<HttpAnswer, RequestFault>;

/// One GET from the network of the calling thread; connecting and answering may each take `limit`.
///
/// # Errors
/// How it failed. An answer is no failure, also one with an error status.
pub fn get(at: SocketAddr, path: &str, limit: Duration) -> Outcome {
    let mut stream =
        TcpStream::connect_timeout(&at, limit).map_err(|error| fault(&error, RequestFault::NoConnection))?;
    let text = exchange(&mut stream, path, limit).map_err(|error| fault(&error, RequestFault::NoAnswer))?;
    whole(&text).ok_or(RequestFault::CutShort)
}

/// The same from the network of process `pid`.
///
/// # Errors
/// If the network cannot be entered. A fault of the request is a value.
pub fn get_from(pid: i32, at: SocketAddr, path: &str, limit: Duration) -> Result<Outcome> {
    inside(pid, async move || -> Result<Outcome> { Ok(get(at, path, limit)) })
}

/// Asks for `/` from the network of process `pid` until the status is 200; returns the time that this took.
///
/// # Errors
/// After `limit`, with the last fault.
pub fn await_answer(pid: i32, at: SocketAddr, limit: Duration) -> Result<Duration> {
    await_body(pid, at, limit, |_| true)
}

/// The same until `accepts` says yes to an answer's body.
///
/// # Errors
/// After `limit`, with the last answer or fault.
pub fn await_body(
    pid: i32,
    at: SocketAddr,
    limit: Duration,
    accepts: impl Fn(&str) -> bool + Send,
) -> Result<Duration> {
    let begun = Instant::now();
    await_accepted(pid, (at, "/"), TRY, limit, move |answer| answer.status == 200 && accepts(&answer.body))?;
    Ok(begun.elapsed())
}

/// Asks for an address's path from the network of process `pid` until `accepts` says yes to an answer; returns it. Connecting and answering
/// of one request may each take `each`.
///
/// # Errors
/// After `limit`, with the last answer or fault.
pub fn await_accepted(
    pid: i32,
    (at, path): (SocketAddr, &str),
    each: Duration,
    limit: Duration,
    accepts: impl Fn(&HttpAnswer) -> bool + Send,
) -> Result<HttpAnswer> {
    match await_outcome(pid, (at, path), each, limit, move |outcome| outcome.as_ref().is_ok_and(&accepts))? {
        Ok(answer) => Ok(answer),
        Err(fault) => bail!("{at}{path}: {fault}"),
    }
}

/// The same until `accepts` says yes to the answer or the fault.
///
/// # Errors
/// After `limit`, with the last answer or fault.
pub fn await_outcome(
    pid: i32,
    (at, path): (SocketAddr, &str),
    each: Duration,
    limit: Duration,
    accepts: impl Fn(&Outcome) -> bool + Send,
) -> Result<Outcome> {
    let begun = Instant::now();
    inside(pid, async move || -> Result<Outcome> {
        // The answer of a Service has no event that could be waited for.
        let mut retry = tokio::time::interval(RETRY);
        loop {
            retry.tick().await;
            let last = get(at, path, each);
            if accepts(&last) {
                return Ok(last);
            }
            if begun.elapsed() >= limit {
                bail!("{at}{path} does not answer so within {} s: {last:?}", limit.as_secs());
            }
        }
    })
}

/// An answer with the status 200. Pure.
fn accepted(answer: HttpAnswer) -> Result<HttpAnswer, RequestFault> {
    if answer.status == 200 { Ok(answer) } else { Err(RequestFault::BadStatus) }
}

fn exchange(stream: &mut TcpStream, path: &str, limit: Duration) -> std::io::Result<String> {
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: service\r\n\r\n").as_bytes())?;
    let mut text = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The fault for an error of the socket; `late` is the one for a limit that has passed. Pure.
fn fault(error: &Error, late: RequestFault) -> RequestFault {
    match error.kind() {
        ErrorKind::ConnectionRefused => RequestFault::Refused,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
            RequestFault::Reset
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => RequestFault::Unreachable,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => late,
        _ => RequestFault::Other,
    }
}

/// The answer if all of it is there. Pure.
fn whole(text: &str) -> Option<HttpAnswer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") { value.trim().parse::<usize>().ok() } else { None }
    });
    let is_whole = length.is_none_or(|length| body.len() >= length);
    is_whole.then(|| HttpAnswer { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_millis(300);

    #[test]
    fn an_answer_counts_when_it_is_whole() {
        let answer = |status, body: &str| Some(HttpAnswer { status, body: body.to_owned() });
        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nweb\n", answer(200, "web\n")),
            ("HTTP/1.0 503 Service Unavailable\r\n\r\nnone", answer(503, "none")),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nweb\n", None),
            ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n", None),
            ("", None),
            ("nonsense\r\n\r\n", None),
        ] {
            assert_eq!(whole(text), expected, "{text:?}");
        }
    }

    #[test]
    fn another_status_is_a_fault_of_a_service() {
        let answer = |status| HttpAnswer { status, body: String::new() };
        assert!(accepted(answer(200)).is_ok());
        assert_eq!(accepted(answer(404)), Err(RequestFault::BadStatus));
    }

    #[test]
    fn faults_are_those_of_the_socket() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        // The kernel accepts, and no program answers.
        assert_eq!(get(at, "/", SOON), Err(RequestFault::NoAnswer));
        // Bound, and never listening: a dropped listener listens on in each child that another test is just starting.
        let bound = tokio::net::TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!(get(bound.local_addr().unwrap(), "/", SOON), Err(RequestFault::Refused));
        let late = |late| fault(&Error::from(ErrorKind::TimedOut), late);
        assert_eq!(late(RequestFault::NoConnection), RequestFault::NoConnection);
        assert_eq!(fault(&Error::from(ErrorKind::BrokenPipe), RequestFault::NoAnswer), RequestFault::Reset);
    }

    #[test]
    fn a_connection_that_ends_early_is_cut_short() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let serve = std::thread::spawn(move || {
            let (mut stream, _) = socket.accept().unwrap();
            // Without the request being read, the end of the connection would be a reset.
            let mut request = [0; 64];
            assert!(stream.read(&mut request).unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nweb").unwrap();
        });
        assert_eq!(get(at, "/", Duration::from_secs(5)), Err(RequestFault::CutShort));
        serve.join().unwrap();
    }
}
