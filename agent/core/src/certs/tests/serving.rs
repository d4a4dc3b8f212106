//! The serving certificate: its names, and the addresses of the node that it follows.

use std::net::IpAddr;

use agent_types::certificates::serving_names;

use super::*;

fn address(kind: &str, address: &str) -> NodeAddress {
    NodeAddress { type_: kind.into(), address: address.into() }
}

#[test]
fn a_serving_certificate_waits_for_an_address_and_follows_it() {
    let mut w = World::new(CertKind::Serving);
    w.step(CertEvent::Loaded(None), &mut peace());
    w.step(CertEvent::Addresses(vec![address("Hostname", "n1")]), &mut peace());
    assert!(w.actions().is_empty() && w.machine.deadline().is_none());
    assert!(w.machine.state(w.now.wall).message().contains("no IP address"));
    let first = vec![address("InternalIP", "192.0.2.1"), address("Hostname", "n1")];
    w.step(CertEvent::Addresses(first.clone()), &mut peace());
    w.run(Duration::from_secs(3), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Node", "get as Node", "store"]);
    // Fewer names are no reason, others are.
    w.step(CertEvent::Addresses(first[..1].to_vec()), &mut peace());
    w.run(Duration::from_secs(3), &mut peace());
    assert!(w.actions().is_empty());
    w.step(CertEvent::Addresses(vec![address("InternalIP", "192.0.2.2")]), &mut peace());
    w.run(Duration::from_secs(3), &mut peace());
    assert_eq!(w.actions().len(), 4);
    assert_eq!(w.machine.current().unwrap().ips, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
    // An address that changes while a request waits makes another request, and the key is dropped.
    w.approve = false;
    w.step(CertEvent::Addresses(vec![address("InternalIP", "192.0.2.3")]), &mut peace());
    w.run(Duration::from_secs(60), &mut peace());
    w.actions();
    w.step(CertEvent::Addresses(vec![address("InternalIP", "192.0.2.4")]), &mut peace());
    assert_eq!(w.actions(), ["generate", "create as Node"]);
    assert_eq!(w.keys.len(), 1);
}

#[test]
fn names_of_a_serving_certificate() {
    let (dns, ips) = serving_names(&[
        address("InternalIP", "192.0.2.10"),
        address("ExternalIP", "192.0.2.1"),
        address("Hostname", "b"),
        address("InternalDNS", "a"),
        address("ExternalDNS", ""),
        address("InternalIP", "not an address"),
        address("Hostname", "::1"),
        address("InternalIP", "192.0.2.10"),
    ]);
    assert_eq!(dns, ["a", "b"]);
    assert_eq!(ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.1", "192.0.2.10", "::1"]);
}
