//! Every write of the reservations refused, one after the other, and cut off there (docs/internals/testing.md, faults).

use std::path::Path;

use agent_faults::{FileOperation, survives};
use orlop_cni::failure::Failure;
use orlop_cni::ipam::Lease;
use orlop_cni::store::Store;

const NETWORK: &str = "n";

/// As the plugin does: what the container has already it keeps.
fn reserve(data: &Path) -> Result<(), Failure> {
    let store = Store::open(data, NETWORK)?;
    let kept = store.read()?.owners.values().any(|owner| owner.is("c", "eth0"));
    let of = |text: &str| text.parse().expect("an address");
    let lease = Lease { ip: of("10.1.0.2"), prefix: 24, gateway: of("10.1.0.1"), set: 0, kept };
    store.reserve(&lease, "c", "eth0")
}

fn release(data: &Path) -> Result<(), Failure> {
    Store::open(data, NETWORK)?.release("c", "eth0")
}

/// Owners of addresses as the next caller finds them.
fn owners(data: &Path) -> Vec<(String, String)> {
    let known = Store::open(data, NETWORK).expect("opened").read().expect("read");
    known.owners.into_iter().map(|(ip, owner)| (ip.to_string(), owner.container)).collect()
}

fn other(data: &Path) {
    let store = Store::open(data, NETWORK).expect("opened");
    let of = |text: &str| text.parse().expect("an address");
    let lease = Lease { ip: of("10.1.0.9"), prefix: 24, gateway: of("10.1.0.1"), set: 0, kept: false };
    store.reserve(&lease, "other", "eth0").expect("reserved");
}

#[test]
fn an_address_is_somebodys_or_free_and_others_keep_theirs() {
    let look = |data: &Path| {
        let owners = owners(data);
        let whole = owners.iter().all(|(ip, container)| {
            [("10.1.0.2", "c"), ("10.1.0.9", "other")].contains(&(ip.as_str(), container.as_str()))
        });
        assert!(whole && owners.iter().any(|(_, container)| container == "other"), "{owners:?}");
    };
    let calls = survives(&FileOperation { prepare: &other, act: &reserve, look: &look });
    assert!(calls.iter().any(|call| call.to_string() == "rename of n/10.1.0.2"), "{calls:?}");
    let prepare = |data: &Path| {
        other(data);
        reserve(data).expect("reserved");
    };
    survives(&FileOperation { prepare: &prepare, act: &release, look: &look });
}
