//! Reports to systemd that a service of type `notify` is up (sd_notify(3)).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `READY=1` to the socket that systemd named; without one the call does nothing.
///
/// # Errors
/// The name is no socket's, or the datagram could not be sent.
pub fn ready() -> io::Result<()> {
    std::env::var("NOTIFY_SOCKET").map_or(Ok(()), |name| send(&name, "READY=1"))
}

fn send(name: &str, state: &str) -> io::Result<()> {
    let to = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_by_path_and_an_abstract_one() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("bind");
        let name = format!("orlop-init-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("address");
        let by_name = UnixDatagram::bind_addr(&address).expect("bind");
        for (socket, name) in [(by_path, path.display().to_string()), (by_name, format!("@{name}"))] {
            send(&name, "READY=1").expect("sent");
            let mut buffer = [0; 16];
            let n = socket.recv(&mut buffer).expect("received");
            assert_eq!(&buffer[..n], b"READY=1");
        }
        assert!(send(&dir.path().join("none").display().to_string(), "READY=1").is_err());
    }
}
