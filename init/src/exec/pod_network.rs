//! The masquerading rule of the standalone pod network, made as soon as the node has a way out: without one there is
//! nothing to masquerade, and the first pod need not wait for the modules of nftables. What is decided:
//! `plan::masquerade`.

use super::error::InitError;
use crate::plan::masquerade;
use orlop_netlink::nft::{self, Network};
use orlop_netlink::route::{self, NEWROUTE, Route};
use orlop_netlink::{NetlinkError, Socket};
use std::fs;

/// Written by init.
const CONFLIST: &str = "/var/lib/orlop/cni/net.d/10-orlop.conflist";
/// nftables' table with the rules.
const TABLE: &str = "orlop_pods";
/// `AF_INET`, `AF_INET6`.
const FAMILIES: [u8; 2] = [2, 10];
/// After so long without news the routes are looked at all the same.
const LOOK_AGAIN_MS: u16 = 60_000;

/// The networks of pods, if init wrote their configuration.
#[must_use]
pub fn networks() -> Option<Vec<Network>> {
    fs::read_to_string(CONFLIST).ok().and_then(|conflist| masquerade::networks(&conflist))
}

/// Waits for a way out, however long it takes, and makes the rules.
///
/// # Errors
/// The kernel refuses a request.
pub fn masquerade_at_way_out(networks: &[Network]) -> Result<String, InitError> {
    let failed = |action| move |source| InitError::Netlink { action, source };
    await_way_out(networks).map_err(failed("wait for the node's routes"))?;
    let sent =
        Socket::netfilter().and_then(|mut socket| socket.transaction(nft::masquerade(TABLE, networks)));
    sent.map_err(failed("make nftables' rules of the pod network"))?;
    Ok("pods leave it under the node's address".into())
}

fn await_way_out(networks: &[Network]) -> Result<(), NetlinkError> {
    // Before the first look: nothing is missed between the two.
    let mut changes = Socket::route_changes()?;
    let mut asking = Socket::route()?;
    loop {
        for family in FAMILIES {
            let bodies = asking.ask(route::dump(family), NEWROUTE)?;
            let mut routes = bodies.iter().filter_map(|body| route::parse(body));
            if routes.any(|route: Route| masquerade::leads_out(&route, networks)) {
                return Ok(());
            }
        }
        changes.changed(LOOK_AGAIN_MS)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};
    use orlop_netlink::{address, link};
    use std::sync::mpsc;
    use std::time::Duration;

    /// In a network namespace of this thread and the one that it starts.
    #[test]
    fn only_a_way_out_ends_the_waiting() {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            eprintln!("skipped: no network namespace without root");
            return;
        }
        let networks = vec![("10.88.0.0".parse().expect("an address"), 16)];
        let (sender, receiver) = mpsc::channel();
        let waiting = std::thread::spawn(move || sender.send(await_way_out(&networks)).expect("heard"));
        let mut socket = Socket::route().expect("a socket");
        for (name, ip, prefix) in [("pods", "10.88.0.1", 16), ("lan", "192.0.2.7", 24)] {
            socket.request(link::create_bridge(name, None, [2, 0, 0, 0, 0, 7])).expect("a link");
            let body = &socket.ask(link::get(name), link::NEWLINK).expect("the link")[0];
            let index = link::parse(body).expect("a link").index;
            let ip = ip.parse().expect("an address");
            if name == "lan" {
                assert!(receiver.try_recv().is_err(), "the pods' own network is no way out");
            }
            socket.request(address::add(index, ip, prefix)).expect("an address, and its route");
        }
        receiver.recv_timeout(Duration::from_secs(30)).expect("ended").expect("no error");
        waiting.join().expect("no panic");
    }
}
