//! Listeners of all ports, whose connections end when their clients have vanished.
//!
//! In: an address. Out: a listener. Invariant: what is accepted has keepalive as the listener has it (tcp(7): options of a
//! listener pass to its connections), so that a client that was switched off, or that a firewall has cut off, gives its place
//! back in about two minutes although it never says that it went.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpListener;

/// After so long without a word the kernel asks whether the client is there.
const ASK_AFTER: Duration = Duration::from_secs(60);
/// And again.
const ASK_EVERY: Duration = Duration::from_secs(15);
/// After so many questions without an answer the connection has ended.
const ASK_TIMES: u32 = 4;

/// Listens.
///
/// # Errors
/// The kernel's refusal.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await?;
    let keepalive = TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_EVERY).with_retries(ASK_TIMES);
    SockRef::from(&listener).set_tcp_keepalive(&keepalive)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn what_is_accepted_is_asked_whether_it_is_there() {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().unwrap());
        let asked = (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
        assert_eq!((asked, socket.tcp_keepalive_retries().unwrap()), ((ASK_AFTER, ASK_EVERY), ASK_TIMES));
        let limit = ASK_AFTER + ASK_EVERY * ASK_TIMES;
        assert!(limit <= Duration::from_secs(180), "{limit:?}: a place is free in minutes");
    }
}
