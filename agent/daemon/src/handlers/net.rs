//! Connections to containers, and failures in upstream's words.

use std::io;
use std::time::Duration;

use agent_core::probe::Outcome;
use agent_core::probe::check::authority;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An accepted connection is success.
pub(super) async fn probe(host: &str, port: u16, within: Duration) -> Outcome {
    match timeout(within, dial(host, port)).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(message)) => Outcome::Failure(message),
        Err(_) => Outcome::Failure(format!("dial tcp {}: i/o timeout", authority(host, port))),
    }
}

/// A connection, or why there is none.
pub(super) async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let connected = TcpStream::connect((host, port)).await;
    connected.map_err(|error| format!("dial tcp {}: connect: {}", authority(host, port), words(&error)))
}

/// The system's words for an error, without Rust's number behind them.
pub(super) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = plain.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().collect::<String>() + chars.as_str())
}
