//! Questions to a cluster's DNS over UDP (RFC 1035), from a socket that stays: its packets are one flow to the kernel.
//!
//! In: a name, a name server's address. Out: the name's IPv4 addresses. Invariant: no answer panics, however odd it is.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};

use super::proxy::inside;

/// Largest answer over UDP without an extension, bytes.
const ANSWER_BYTES_MAX: usize = 512;
/// Length of a message's header, bytes.
const HEADER_BYTES: usize = 12;
/// Type of an IPv4 address, and the class of the Internet.
const A_IN: [u8; 4] = [0, 1, 0, 1];

/// A client with one socket.
pub struct DnsClient {
    socket: UdpSocket,
    server: SocketAddr,
    id: u16,
}

impl DnsClient {
    /// A client in the network of process `pid`; it waits up to `limit` for an answer.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn in_network(pid: i32, server: SocketAddr, limit: Duration) -> Result<DnsClient> {
        // The socket stays in the network of the thread that makes it.
        let socket = inside(pid, async move || -> Result<UdpSocket> {
            let any = if server.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
            UdpSocket::bind(any).context("make a socket")
        })?;
        socket.set_read_timeout(Some(limit)).context("limit a read")?;
        Ok(DnsClient { socket, server, id: 0 })
    }

    /// The addresses of a name; `None` without an answer in time.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn ask(&mut self, name: &str) -> Result<Option<Vec<Ipv4Addr>>> {
        self.id = self.id.wrapping_add(1);
        match self.socket.send_to(&question(self.id, name), self.server) {
            // The kernel reports the refusal of an earlier question, or drops this one by a rule.
            Err(e) if is_loss(e.kind()) => return Ok(None),
            sent => sent.with_context(|| format!("ask {}", self.server))?,
        };
        let mut answer = [0; ANSWER_BYTES_MAX];
        loop {
            match self.socket.recv_from(&mut answer) {
                Ok((length, from)) => {
                    let found = answer.get(..length).and_then(|answer| addresses(answer, self.id));
                    // The answer to an earlier question does not count.
                    if from == self.server && found.is_some() {
                        return Ok(found);
                    }
                }
                Err(e) if is_loss(e.kind()) => return Ok(None),
                Err(e) => return Err(e).with_context(|| format!("the answer of {}", self.server)),
            }
        }
    }
}

fn is_loss(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::PermissionDenied
    )
}

/// A question for the IPv4 addresses of a name, recursion desired. Pure.
fn question(id: u16, name: &str) -> Vec<u8> {
    let mut question = id.to_be_bytes().to_vec();
    question.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        // A longer label is no label; the server refuses the question.
        question.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        question.extend(label.as_bytes());
    }
    question.push(0);
    question.extend(A_IN);
    question
}

/// The IPv4 addresses in the answer to the question with this number; `None` if it is none. Pure.
fn addresses(answer: &[u8], id: u16) -> Option<Vec<Ipv4Addr>> {
    let (header, mut rest) = answer.split_at_checked(HEADER_BYTES)?;
    let number = |at: usize| Some(u16::from_be_bytes([*header.get(at)?, *header.get(at + 1)?]));
    let is_answer = header.get(2)? & 0x80 != 0;
    if number(0)? != id || !is_answer {
        return None;
    }
    for _ in 0..number(4)? {
        rest = after_name(rest)?.get(A_IN.len()..)?;
    }
    let mut found = Vec::new();
    for _ in 0..number(6)? {
        let (fixed, data) = after_name(rest)?.split_first_chunk::<10>()?;
        let length = usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
        let (data, after) = data.split_at_checked(length)?;
        if fixed[..4] == A_IN
            && let Ok(address) = <[u8; 4]>::try_from(data)
        {
            found.push(Ipv4Addr::from(address));
        }
        rest = after;
    }
    Some(found)
}

/// The bytes after a name: labels until an empty one, or until a pointer, which is two bytes. Pure.
fn after_name(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        let (&length, after) = rest.split_first()?;
        match length {
            0 => return Some(after),
            0xc0.. => return after.get(1..),
            _ => rest = after.get(usize::from(length)..)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of a server: the question, an alias, an address.
    fn answer(id: u16) -> Vec<u8> {
        let mut answer = question(id, "web.default");
        answer[2] = 0x85;
        answer[7] = 2;
        // A pointer to the name of the question, then CNAME of "a", then A.
        answer.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 30, 0, 3, 1, b'a', 0]);
        answer.extend([1, b'a', 0, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 10, 96, 0, 7]);
        answer
    }

    #[test]
    fn a_question_has_the_labels_of_its_name() {
        let expected =
            b"\x01\x02\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03web\x07default\x00\x00\x01\x00\x01";
        assert_eq!(question(0x0102, "web.default."), expected);
    }

    #[test]
    fn an_answer_has_addresses_behind_aliases() {
        assert_eq!(addresses(&answer(7), 7), Some(vec![Ipv4Addr::new(10, 96, 0, 7)]));
        assert_eq!(addresses(&answer(7), 8), None, "the answer to another question");
        assert_eq!(addresses(&question(7, "web"), 7), None, "a question");
    }

    #[test]
    fn a_broken_answer_is_none() {
        let whole = answer(7);
        for length in 0..whole.len() {
            assert_eq!(addresses(&whole[..length], 7), None, "{length} bytes");
        }
    }
}
