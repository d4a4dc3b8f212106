//! An HTTP proxy on a node's loopback: it carries bytes to one server, for clients that know the password, and keeps the
//! names of the targets.
//!
//! In: `CONNECT host:port` (RFC 9110, section 9.3.6). Out: a tunnel. The proxy does not look names up: all targets are the one
//! server, so a name that only the proxy knows is a host behind it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::registry::BASIC;

/// Longest request, bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// A client sends its request within this time, and the server is connected within it.
const SILENCE: Duration = Duration::from_secs(10);

/// A running proxy; its threads end with the process.
pub struct ConnectProxy {
    address: SocketAddr,
    carried: Arc<Mutex<Vec<String>>>,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
enum ProxyAnswer {
    /// Carry bytes to this target.
    Carry(String),
    /// The password is missing or wrong.
    Unauthorized,
    /// No CONNECT.
    Refuse,
}

impl ConnectProxy {
    /// Listens on a port of the loopback in the network namespace of process `pid`. Clients give the user and the password of the
    /// registry. `server` is reached in the same namespace.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn start_in(pid: i32, server: SocketAddr) -> Result<ConnectProxy> {
        let carried = Arc::new(Mutex::new(Vec::new()));
        let log = carried.clone();
        let (bound, is_bound) = mpsc::channel();
        // A network namespace belongs to a thread, and threads that it starts are in it, too.
        let serve = move || match listen(pid) {
            Ok((listener, address)) => {
                let _ = bound.send(Ok(address));
                accept(&listener, server, &log);
            }
            Err(e) => {
                let _ = bound.send(Err(e));
            }
        };
        thread::Builder::new().name("connect-proxy".into()).spawn(serve).context("start a thread")?;
        let address = is_bound.recv().context("the proxy's thread died")??;
        Ok(ConnectProxy { address, carried })
    }

    /// Its address in the node.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Targets of all tunnels so far, `host:port`.
    #[must_use]
    pub fn carried(&self) -> Vec<String> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn listen(pid: i32) -> Result<(TcpListener, SocketAddr)> {
    let namespace =
        std::fs::File::open(format!("/proc/{pid}/ns/net")).context("open the node's network namespace")?;
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).context("enter the node's network")?;
    let listener = TcpListener::bind("127.0.0.1:0").context("listen in the node")?;
    let address = listener.local_addr().context("ask for the port")?;
    Ok((listener, address))
}

fn accept(listener: &TcpListener, server: SocketAddr, carried: &Arc<Mutex<Vec<String>>>) {
    for client in listener.incoming().flatten() {
        let carried = carried.clone();
        // A client that closes its connection early loses only its own tunnel.
        let tunnel = move || drop(carry(client, server, &carried));
        let _ = thread::Builder::new().name("connect-proxy".into()).spawn(tunnel);
    }
}

fn carry(mut client: TcpStream, server: SocketAddr, carried: &Mutex<Vec<String>>) -> io::Result<()> {
    client.set_read_timeout(Some(SILENCE))?;
    let target = match answer(&read_head(&mut client)?) {
        ProxyAnswer::Carry(target) => target,
        ProxyAnswer::Unauthorized => {
            let challenge = "Proxy-Authenticate: Basic realm=\"tests\"\r\nContent-Length: 0\r\n";
            return write!(client, "HTTP/1.1 407 Proxy Authentication Required\r\n{challenge}\r\n");
        }
        ProxyAnswer::Refuse => {
            return write!(client, "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n");
        }
    };
    carried.lock().unwrap_or_else(PoisonError::into_inner).push(target);
    let mut server = TcpStream::connect_timeout(&server, SILENCE)?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    client.set_read_timeout(None)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    let up = thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let copied = io::copy(&mut server, &mut client);
    // Ends the other direction, too.
    let _ = client.shutdown(Shutdown::Both);
    let _ = up.join();
    copied.map(drop)
}

/// To the empty line and no byte further: what follows is the client's to the server.
fn read_head(client: &mut impl Read) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn answer(head: &str) -> ProxyAnswer {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split_whitespace();
    let (Some("CONNECT"), Some(target)) = (words.next(), words.next()) else { return ProxyAnswer::Refuse };
    let given = lines.filter_map(|line| line.split_once(':')).any(|(name, value)| {
        name.eq_ignore_ascii_case("proxy-authorization") && value.trim().strip_prefix("Basic ") == Some(BASIC)
    });
    if given { ProxyAnswer::Carry(target.to_owned()) } else { ProxyAnswer::Unauthorized }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gets_a_tunnel() {
        let head = |line: &str, header: &str| format!("{line} HTTP/1.1\r\nHost: x\r\n{header}\r\n");
        let right = format!("proxy-authorization: Basic {BASIC}\r\n");
        assert_eq!(answer(&head("CONNECT a:443", &right)), ProxyAnswer::Carry("a:443".to_owned()));
        assert_eq!(answer(&head("CONNECT a:443", "")), ProxyAnswer::Unauthorized);
        let wrong = "Proxy-Authorization: Basic eDp5\r\n";
        assert_eq!(answer(&head("CONNECT a:443", wrong)), ProxyAnswer::Unauthorized);
        assert_eq!(answer(&head("GET http://a/", &right)), ProxyAnswer::Refuse);
        assert_eq!(answer(""), ProxyAnswer::Refuse);
    }

    #[test]
    fn a_request_ends_at_the_empty_line() {
        let mut bytes = &b"CONNECT a:1 HTTP/1.1\r\n\r\nhello"[..];
        assert_eq!(read_head(&mut bytes).unwrap(), "CONNECT a:1 HTTP/1.1\r\n\r\n");
        assert_eq!(bytes, b"hello");
        assert!(read_head(&mut &vec![b'x'; HEAD_BYTES_MAX + 1][..]).is_err());
        assert!(read_head(&mut &b"CONNECT"[..]).is_err());
    }
}
