//! CHECK: whether a container's network is as ADD left it.
//!
//! In: the result of ADD, in the configuration. Out: nothing, or the first thing that is missing or different.

use orlop_netlink::address::family;
use orlop_netlink::link::Link;

use crate::attachment::store;
use crate::config::Config;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::network::{Links, Namespace};
use crate::outcome::{self, Interface, Previous};
use crate::range;

/// CHECK of the whole network.
///
/// # Errors
/// What is missing or different.
pub fn check(config: &Config, environment: &Environment) -> Result<(), Failure> {
    if config.has_addresses() {
        addresses(config, environment)?;
    }
    let previous = Previous::of(config)?;
    let of_node = |i: &&Interface| i.sandbox.is_empty();
    let mut node = Links::here()?;
    let wanted = previous.interfaces.iter().filter(of_node).find(|i| i.name == config.bridge());
    let bridge = matching(&mut node, wanted, config.bridge(), "bridge")?;
    if config.promisc_mode && !bridge.promiscuous {
        return Err(Failure::State(format!("bridge {} is not promiscuous", bridge.name)));
    }
    let name = environment.interface.as_str();
    let own = |i: &&Interface| i.name == name && i.sandbox == environment.namespace;
    let wanted = previous.interfaces.iter().find(own);
    let inside = Namespace::open(&environment.namespace)?.inside(|| {
        let mut links = Links::here()?;
        let inside = matching(&mut links, wanted, name, "veth")?;
        configured(&mut links, &inside, &previous)?;
        Ok(inside)
    })?;
    let ports = previous.interfaces.iter().filter(of_node).filter(|i| i.name != config.bridge());
    for port in ports {
        let port = matching(&mut node, Some(port), &port.name, "veth")?;
        if (port.master, port.peer, inside.peer) == (Some(bridge.index), Some(inside.index), Some(port.index))
        {
            return Ok(());
        }
    }
    Err(Failure::State(format!("{name} of the container has no port at bridge {}", bridge.name)))
}

/// CHECK of the address plugin alone.
///
/// # Errors
/// The container's interface has no address.
pub fn addresses(config: &Config, environment: &Environment) -> Result<(), Failure> {
    let known = store(config)?.read()?;
    if known.owners.values().any(|owner| owner.is(&environment.container, &environment.interface)) {
        return Ok(());
    }
    Err(Failure::State(format!("no address is reserved for container {}", environment.container)))
}

fn matching(links: &mut Links, wanted: Option<&Interface>, name: &str, kind: &str) -> Result<Link, Failure> {
    let wanted = wanted.ok_or_else(|| Failure::Config(format!("prevResult has no interface {name}")))?;
    let found = links.get(name)?;
    if found.kind != kind {
        return Err(Failure::State(format!("interface {name} is no {kind}")));
    }
    let mac = outcome::mac(found.mac);
    if !wanted.mac.is_empty() && wanted.mac != mac {
        return Err(Failure::State(format!(
            "interface {name} has the address {mac} instead of {}",
            wanted.mac
        )));
    }
    Ok(found)
}

fn configured(links: &mut Links, inside: &Link, previous: &Previous) -> Result<(), Failure> {
    let mut all = links.addresses(inside.index, 2)?;
    all.extend(links.addresses(inside.index, 10)?);
    for wanted in &previous.ips {
        let (ip, prefix) = range::subnet(&wanted.address).map_err(Failure::Config)?;
        if !all.iter().any(|a| (a.ip, a.prefix) == (ip, prefix)) {
            return Err(Failure::State(format!("{} has not the address {}", inside.name, wanted.address)));
        }
    }
    for wanted in &previous.routes {
        let wanted_route = outcome::for_kernel(wanted, &[], inside.index)?;
        let all = links.routes(family(wanted_route.to))?;
        let same = |r: &orlop_netlink::route::Route| {
            (r.to, r.prefix) == (wanted_route.to, wanted_route.prefix)
                && (wanted_route.gateway.is_none() || r.gateway == wanted_route.gateway)
        };
        if !all.iter().any(same) {
            return Err(Failure::State(format!("the container has no route to {}", wanted.dst)));
        }
    }
    Ok(())
}
