//! Connections to containers, and failures in upstream's words.

use std::io;
use std::time::Duration;

use agent_core::probe::Outcome;
use agent_core::probe::check::authority;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::names::Names;

/// An accepted connection is success.
pub(super) async fn probe(names: &Names, host: &str, port: u16, within: Duration) -> Outcome {
    match timeout(within, dial(names, host, port)).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(message)) => Outcome::Failure(message),
        Err(_) => Outcome::Failure(format!("dial tcp {}: i/o timeout", authority(host, port))),
    }
}

/// A connection, or the reason why there is none. Of several addresses the first that accepts.
pub(super) async fn dial(names: &Names, host: &str, port: u16) -> Result<TcpStream, String> {
    let failed = |message: &str| format!("dial tcp {}: {message}", authority(host, port));
    let addresses = names.addresses(host).await.map_err(|reason| failed(&reason))?;
    let mut last = None;
    for address in &*addresses {
        match TcpStream::connect((*address, port)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(failed(&last.map_or_else(String::new, |error| format!("connect: {}", words(&error)))))
}

/// The system's words for an error, without Rust's number behind them.
pub(super) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = plain.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().collect::<String>() + chars.as_str())
}
