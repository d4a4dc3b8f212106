//! The commands of the plugin: a container's interface is made, looked at, removed.
//!
//! In: configuration and environment. Out: the result to print. Order of ADD: address reserved, bridge, gateways, pair,
//! inside. A kill in between leaves a reservation and perhaps a pair; DEL removes both, the end of the namespace the
//! pair, GC the reservation, and an ADD that comes first takes over what is the same container's.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use nix::errno::Errno;
use orlop_config::fnv::fnv32;
use orlop_netlink::link;
use serde_json::Value;

use crate::config::{Config, Dns};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::ipam::{self, Lease};
use crate::network::{self, Links, Namespace, must_sysctl, sysctl};
use crate::outcome::{self, Interface};
use crate::store::Store;

/// Names that are tried for the end of a pair that stays on the node.
const NAMES_MAX: u32 = 10;

/// ADD of the whole network.
///
/// # Errors
/// The first failure; nothing of the attachment is left then.
pub fn add(config: &Config, environment: &Environment) -> Result<Value, Failure> {
    let namespace = container(environment)?;
    let leases = if config.has_addresses() { reserve(config, environment)? } else { Vec::new() };
    let attached = attach(config, environment, &namespace, &leases);
    if attached.is_err() && config.has_addresses() {
        // What was in the way is the news, not what follows from it.
        let _ = release(config, environment);
    }
    let (interfaces, routes) = attached?;
    Ok(outcome::result(&config.cni_version, &interfaces, &leases, &routes, &dns(config)?))
}

/// ADD of the address plugin alone.
///
/// # Errors
/// No address can be had.
pub fn add_addresses(config: &Config, environment: &Environment) -> Result<Value, Failure> {
    let leases = reserve(config, environment)?;
    Ok(outcome::result(&config.cni_version, &[], &leases, &config.ipam.routes, &dns(config)?))
}

/// DEL of the whole network; what is not there is no mistake.
///
/// # Errors
/// The interface or the reservation cannot be removed, or the namespace is the node's own.
pub fn delete(config: &Config, environment: &Environment) -> Result<(), Failure> {
    match container(environment) {
        // It is gone, and the pair with it.
        Err(Failure::Namespace { source, .. }) if source.kind() == ErrorKind::NotFound => {}
        namespace => match namespace?.inside(|| Links::here()?.remove(&environment.interface)) {
            // A file that is no namespace any more: the same.
            Ok(_) | Err(Failure::System { source: Errno::EINVAL, .. }) => {}
            Err(e) => return Err(e),
        },
    }
    if config.has_addresses() { release(config, environment) } else { Ok(()) }
}

/// The container's namespace; never the node's own: the plugin must not change the node's interfaces.
fn container(environment: &Environment) -> Result<Namespace, Failure> {
    let namespace = Namespace::open(&environment.namespace)?;
    if !environment.own_namespace_too && namespace.is_own()? {
        return Err(Failure::OwnNamespace(environment.namespace.clone()));
    }
    Ok(namespace)
}

/// Gives back the addresses of the container's interface.
///
/// # Errors
/// The reservation cannot be removed.
pub fn release(config: &Config, environment: &Environment) -> Result<(), Failure> {
    store(config)?.release(&environment.container, &environment.interface)
}

/// GC: gives back the addresses of containers that are not there any more.
///
/// # Errors
/// A reservation cannot be removed.
pub fn collect(config: &Config) -> Result<(), Failure> {
    let valid: BTreeSet<(&str, &str)> =
        config.valid_attachments.iter().map(|a| (a.container.as_str(), a.interface.as_str())).collect();
    store(config)?.retain(&valid)
}

/// STATUS: whether ADD could be carried out.
///
/// # Errors
/// What would be in its way.
pub fn status(config: &Config) -> Result<(), Failure> {
    let possible = || {
        if config.has_addresses() {
            let sets = config.range_sets()?;
            let known = store(config)?.read()?;
            ipam::choose(&sets, &known, "", "", &[]).map_err(Failure::Addresses)?;
        }
        Ok(())
    };
    possible().map_err(|e| Failure::Unavailable(Box::new(e)))
}

/// The network's reservations.
///
/// # Errors
/// They cannot be opened.
pub fn store(config: &Config) -> Result<Store, Failure> {
    Store::open(Path::new(config.data_dir()), &config.name)
}

fn reserve(config: &Config, environment: &Environment) -> Result<Vec<Lease>, Failure> {
    let (sets, asked) = (config.range_sets()?, config.asked(environment)?);
    let (container, interface) = (&environment.container, &environment.interface);
    let store = store(config)?;
    let leases =
        ipam::choose(&sets, &store.read()?, container, interface, &asked).map_err(Failure::Addresses)?;
    for lease in &leases {
        if let Err(e) = store.reserve(lease, container, interface) {
            let _ = store.release(container, interface);
            return Err(e);
        }
    }
    Ok(leases)
}

fn dns(config: &Config) -> Result<Dns, Failure> {
    let path = &config.ipam.resolv_conf;
    if config.dns != Dns::default() || path.is_empty() {
        return Ok(config.dns.clone());
    }
    let text = fs::read_to_string(path);
    let text = text.map_err(|source| Failure::File { action: "read", path: path.into(), source })?;
    Ok(Dns::of_resolv_conf(&text))
}

type Attached = (Vec<Interface>, Vec<crate::config::Route>);

fn attach(
    config: &Config,
    environment: &Environment,
    namespace: &Namespace,
    leases: &[Lease],
) -> Result<Attached, Failure> {
    let mac = config.mac(environment)?;
    let routes = outcome::routes(&config.ipam.routes, leases, config.is_default_gateway);
    let mut node = Links::here()?;
    let bridge = node.bridge(config.bridge(), config.mtu(), config.promisc_mode)?;
    if config.is_gateway() {
        for lease in leases {
            node.gateway(&bridge, lease.gateway, lease.prefix, config.force_address)?;
            let forwarding = if lease.ip.is_ipv4() { "ipv4/ip_forward" } else { "ipv6/conf/all/forwarding" };
            must_sysctl(forwarding, "1")?;
        }
    }
    if config.ip_masq && config.has_addresses() {
        network::masquerade(&config.name, &config.range_sets()?)?;
    }
    let mut changes = network::changes(false)?;
    let request = Pair { config, environment, namespace, mac };
    let name = request.make(&mut node, &bridge)?;
    let rest = || -> Result<Attached, Failure> {
        let port = node.get(&name)?;
        if config.hairpin_mode || config.port_isolation {
            let settings = link::set_port(port.index, config.hairpin_mode, config.port_isolation);
            node.change(settings, "set up port", &name)?;
        }
        sysctl(&format!("ipv6/conf/{name}/accept_ra"), "0");
        let inside = namespace.inside(|| configure(config, &environment.interface, leases, &routes))?;
        let port = node.running(&name, &mut changes)?;
        let bridge = node.get(config.bridge())?;
        let of = |link: &link::Link, sandbox: &str| Interface {
            name: link.name.clone(),
            mac: outcome::mac(link.mac),
            sandbox: sandbox.to_owned(),
        };
        Ok((vec![of(&bridge, ""), of(&port, ""), of(&inside, &environment.namespace)], routes))
    };
    rest().inspect_err(|_| {
        if let Ok(mut node) = Links::here() {
            let _ = node.remove(&name);
        }
    })
}

struct Pair<'a> {
    config: &'a Config,
    environment: &'a Environment,
    namespace: &'a Namespace,
    mac: Option<link::Mac>,
}

impl Pair<'_> {
    /// The name of the end that stays: the same for the same interface of the same container, so that what a killed ADD
    /// has left is known as such.
    fn make(&self, node: &mut Links, bridge: &link::Link) -> Result<String, Failure> {
        let peer = self.environment.interface.as_str();
        for attempt in 0..NAMES_MAX {
            let name = port_name(&self.config.name, &self.environment.container, peer, attempt);
            // Once more after what was in the way is gone.
            for _ in 0..2 {
                if node.pair(&name, bridge, self.config.mtu(), peer, self.namespace, self.mac)? {
                    return Ok(name);
                }
                let Some(inside) = self.namespace.inside(|| Links::here()?.find(peer))? else { break };
                let port = node.find(&name)?;
                let left_over = port.is_some_and(|port| {
                    port.kind == "veth" && port.peer == Some(inside.index) && inside.peer == Some(port.index)
                });
                if !left_over {
                    return Err(Failure::State(format!("the container has an interface {peer} already")));
                }
                node.remove(&name)?;
            }
        }
        Err(Failure::State(format!("no free name for the node's end of {peer}")))
    }
}

fn port_name(network: &str, container: &str, interface: &str, attempt: u32) -> String {
    // Spread, not secrecy.
    let hash = fnv32(format!("{network}/{container}/{interface}/{attempt}").as_bytes());
    format!("veth{hash:08x}")
}

/// Inside the container's namespace.
fn configure(
    config: &Config,
    name: &str,
    leases: &[Lease],
    routes: &[crate::config::Route],
) -> Result<link::Link, Failure> {
    let mut links = Links::here()?;
    let inside = links.get(name)?;
    let six = leases.iter().any(|lease| lease.ip.is_ipv6());
    if !leases.is_empty() {
        if config.enable_dad {
            sysctl(&format!("ipv6/conf/{name}/enhanced_dad"), "1");
        }
        sysctl(&format!("ipv6/conf/{name}/accept_dad"), if config.enable_dad { "1" } else { "0" });
        // A new neighbour makes itself known: its address may have been another's a moment ago.
        sysctl(&format!("ipv4/conf/{name}/arp_notify"), "1");
    }
    if six {
        must_sysctl("ipv6/conf/lo/disable_ipv6", "0")?;
        must_sysctl(&format!("ipv6/conf/{name}/disable_ipv6"), "0")?;
        must_sysctl(&format!("ipv6/conf/{name}/keep_addr_on_down"), "1")?;
    }
    let mut changes = if six { Some(network::changes(true)?) } else { None };
    for lease in leases {
        let shown = format!("{}/{} to {name}", lease.ip, lease.prefix);
        let request = orlop_netlink::address::add(inside.index, lease.ip, lease.prefix);
        links.change(request, "add address", &shown)?;
    }
    links.change(link::set_up(inside.index), "set up interface", name)?;
    if let Some(changes) = &mut changes {
        links.settled(&inside, changes)?;
    }
    for route in routes {
        let request = outcome::for_kernel(route, leases, inside.index)?;
        links.change(orlop_netlink::route::add(&request), "add route to", &route.dst)?;
    }
    Ok(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_one_name_for_one_interface() {
        let name = port_name("n", "c", "eth0", 0);
        assert_eq!(name, port_name("n", "c", "eth0", 0));
        assert!(name.len() <= 15, "{name}");
        for other in
            [port_name("m", "c", "eth0", 0), port_name("n", "d", "eth0", 0), port_name("n", "c", "eth0", 1)]
        {
            assert_ne!(name, other);
        }
    }
}
