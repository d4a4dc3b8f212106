//! `http://127.0.0.1:10248/healthz`: answers `ok` while the process answers at all.
//!
//! In: the address from healthzBindAddress and healthzPort. Out: HTTP/1. Only the ping check is here, as
//! upstream; the checks of the sync loop and the log belong to port 10250. Invariants: a listener that cannot
//! open or fails is tried again every 5 s and never stops the agent; clients cannot use more than `BOUNDS`;
//! on stop it ends within a second.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::routing::get;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bounded::{self, BOUNDS};

/// The address to serve on; `None` if port 0 turns the endpoint off.
#[must_use]
pub fn address(bind: IpAddr, port: u16) -> Option<SocketAddr> {
    (port != 0).then_some(SocketAddr::new(bind, port))
}

/// Serves until `stop`. `bound` has the address while it is listened on, otherwise `None`.
pub async fn serve(address: SocketAddr, bound: watch::Sender<Option<SocketAddr>>, stop: CancellationToken) {
    let routes = Router::new().route("/healthz", get(ping)).route("/healthz/ping", get(ping));
    bounded::serve_always("healthz", address, routes, BOUNDS, bound, stop).await;
}

async fn ping() -> &'static str {
    "ok"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounded::RETRY;
    use std::net::Ipv4Addr;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    async fn request(to: SocketAddr, line: &str) -> String {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream
            .write_all(format!("{line}\r\nHost: node\r\nConnection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn listening(bound: &mut watch::Receiver<Option<SocketAddr>>) -> SocketAddr {
        bound.wait_for(Option::is_some).await.unwrap().expect("waited for")
    }

    #[test]
    fn port_zero_turns_it_off() {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(address(local, 0), None);
        assert_eq!(address(local, 10248), Some(SocketAddr::new(local, 10248)));
    }

    #[tokio::test]
    async fn answers_ok_and_nothing_else() {
        let (sender, mut bound) = watch::channel(None);
        let stop = CancellationToken::new();
        let server = serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), sender, stop.clone());
        let client = async {
            let to = listening(&mut bound).await;
            for (line, status, body) in [
                ("GET /healthz HTTP/1.1", "200 OK", "ok"),
                ("GET /healthz?verbose HTTP/1.1", "200 OK", "ok"),
                ("GET /healthz/ping HTTP/1.1", "200 OK", "ok"),
                ("GET /healthz/syncloop HTTP/1.1", "404", ""),
                ("GET /metrics HTTP/1.1", "404", ""),
                ("POST /healthz HTTP/1.1", "405", ""),
                ("nonsense", "400", ""),
            ] {
                let answer = request(to, line).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{line}: {answer}");
                assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{line}: {answer}");
            }
            stop.cancel();
        };
        tokio::join!(server, client);
    }

    #[tokio::test]
    async fn an_occupied_port_is_tried_again() {
        let occupier = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = occupier.local_addr().unwrap();
        tokio::time::pause();
        let (sender, mut bound) = watch::channel(None);
        let stop = CancellationToken::new();
        let server = serve(at, sender, stop.clone());
        let client = async {
            // With the clock paused, time passes only while everybody waits: three attempts have failed.
            let _ = timeout(RETRY * 3, bound.wait_for(Option::is_some)).await.expect_err("port is taken");
            drop(occupier);
            assert_eq!(listening(&mut bound).await, at);
            stop.cancel();
        };
        tokio::join!(server, client);
    }

    #[tokio::test]
    async fn an_open_connection_does_not_hold_the_stop_back() {
        let (sender, mut bound) = watch::channel(None);
        let stop = CancellationToken::new();
        let server = serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), sender, stop.clone());
        let client = async {
            let to = listening(&mut bound).await;
            let mut half = TcpStream::connect(to).await.unwrap();
            half.write_all(b"GET /healthz HTTP/1.1\r\nHost: n").await.unwrap();
            stop.cancel();
            half
        };
        let (_, _half) =
            timeout(Duration::from_secs(20), async { tokio::join!(server, client) }).await.unwrap();
    }
}
