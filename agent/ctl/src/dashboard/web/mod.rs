//! `dashboard --web`: the node as a page for browsers on this machine.
//!
//! ```text
//! node ─► session ─► events ─► PageState ─► latest document ─► Site ─► browsers
//! ```
//! In: a way to a node, an address of the loopback. Out: the page's address on standard output, then the page until Ctrl-C. Invariants:
//! the page changes nothing, on the node or here; a browser that is slow gets the newest state next, and no queue grows for it.

mod site;
mod state;

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use crate::commands::{Verdict, write};
use crate::failure::CtlError;
use crate::render::plain;
use crate::target::Target;

use super::model::{DashboardEvent, DashboardModel};
use super::{EVENTS_MAX, EndSignals, NodeQuestion, REDRAW};
use site::{Published, Site};
use state::PageState;

pub(super) use state::KINDS;

/// Bytes of the secret in the page's address: too many to try.
const TOKEN_BYTES: usize = 16;
/// Without `--listen`: a free port.
const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Serves the page until the program is ended.
pub(super) async fn run(
    target: &Target,
    asking: NodeQuestion,
    listen: Option<SocketAddr>,
) -> Result<Verdict, CtlError> {
    let (events, taken) = mpsc::channel(EVENTS_MAX);
    let mut ends = EndSignals::new()?;
    let wanted = listen.unwrap_or(USUAL);
    let failed = |error: io::Error| {
        CtlError::Usage(format!("cannot serve the page at {wanted}: {error}; `--listen` takes another port"))
    };
    let listener = TcpListener::bind(wanted).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let state = PageState::new(DashboardModel::new(target.to_string()), Timestamp::now());
    let (publisher, latest) = watch::channel(Published::of(&state));
    let site = Arc::new(Site::new(address, token()?, latest));
    write(&format!("{}\n", site.url()))?;
    let about = format!(
        "orlopctl: a browser on this machine shows {} at this address. Any user with the address sees the page. Ctrl-C ends it\n",
        plain(&target.to_string())
    );
    // If stderr is gone, the address alone says enough.
    let _ = io::stderr().write_all(about.as_bytes());
    tokio::select! {
        // Cancel-safe, all of them: the program ends.
        error = super::watch(target, asking, &events) => Err(error),
        () = publish(state, taken, &publisher) => Ok(Verdict::Fine),
        never = site::serve(&listener, &site) => match never {},
        () = ends.come() => Ok(Verdict::Fine),
    }
}

/// Takes what happens, and publishes the state twice a second at most.
async fn publish(
    mut state: PageState,
    mut events: mpsc::Receiver<DashboardEvent>,
    publisher: &watch::Sender<Published>,
) {
    let began = Instant::now();
    while let Some(event) = events.recv().await {
        state.take(event, began.elapsed());
        let until = Instant::now() + REDRAW;
        // Cancel-safe: an event that has not come stays in the channel.
        while let Ok(Some(event)) = timeout_at(until, events.recv()).await {
            state.take(event, began.elapsed());
        }
        publisher.send_replace(Published::of(&state));
    }
}

/// The secret in the page's address.
fn token() -> Result<String, CtlError> {
    let mut bytes = [0; TOKEN_BYTES];
    let failed = |_| CtlError::Output(io::Error::other("the system has no random numbers for the address"));
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_another_secret() {
        let (one, other) = (token().unwrap(), token().unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 2 * TOKEN_BYTES && one.chars().all(|c| c.is_ascii_hexdigit()), "{one}");
    }
}
