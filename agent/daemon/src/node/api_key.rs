//! The key of the management API, for the Node's annotation: clients in the network pin it from there.
//!
//! In: the fingerprint that `orlop-node-api` keeps next to its key. Out: the fingerprint to the Node. Invariants: the agent reads no private
//! key; a node whose server has never run yet has no key, so the agent connects to its socket, and systemd starts it, which happens once in
//! the life of a state partition. docs/reference/node-api.md, "Identities of the cluster".

use std::path::PathBuf;
use std::time::Duration;

use agent_linux::files::read_capped;
use orlop_node_api::facts::{accepts_cluster, admins};
use tokio::net::UnixStream;

use crate::node::node_events::NodeEvents;
use crate::tasks::actor::Tasks;

/// Pause after the first look, and the longest one: each is twice the one before. A node whose key is never kept (no state partition) has
/// the server started once an hour; it ends after five minutes.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3600));
/// Bytes of a fingerprint.
const FINGERPRINT_MAX: u64 = 128;
/// Bytes of the effective configuration.
const CONFIG_MAX: u64 = 1 << 20;

/// Where the parts are.
#[derive(Clone, Debug)]
pub struct ApiKeyPaths {
    /// The effective NodeConfig.
    pub node_config: PathBuf,
    /// What the server keeps.
    pub fingerprint: PathBuf,
    /// Its unix socket.
    pub socket: PathBuf,
}

/// Reports the fingerprint once it is there. Ends at once where the port in the network is closed.
pub async fn follow(paths: ApiKeyPaths, node_events: NodeEvents, tasks: Tasks) {
    let file = paths.node_config.clone();
    let config = tasks.blocking(move || read_capped(&file, CONFIG_MAX)).await;
    let config = config.and_then(Result::ok).unwrap_or_default();
    let config = String::from_utf8_lossy(&config);
    if admins(&config).is_empty() && !accepts_cluster(&config) {
        return;
    }
    let mut pause = PAUSE.0;
    loop {
        let file = paths.fingerprint.clone();
        let read = tasks.blocking(move || read_capped(&file, FINGERPRINT_MAX)).await;
        if let Some(fingerprint) = read.and_then(Result::ok).and_then(|bytes| fingerprint(&bytes)) {
            node_events.api_key(fingerprint);
            return;
        }
        // systemd starts the server, which makes its key; a socket that is not there yet comes later.
        drop(UnixStream::connect(&paths.socket).await);
        tasks.wait_until(tasks.now().mono.after(pause)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// A fingerprint; `None` for another text.
fn fingerprint(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.trim();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    (is_plain && text.starts_with("SHA256:")).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fingerprint_is_one() {
        assert_eq!(fingerprint(b"SHA256:ab\n").as_deref(), Some("SHA256:ab"));
        for other in [&b""[..], b"ab", b"SHA256:a b", b"SHA256:a\x1b[2J", b"SHA256:\xff"] {
            assert_eq!(fingerprint(other), None, "{other:?}");
        }
    }
}
