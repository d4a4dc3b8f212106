//! The result of ADD, in the format of each version of CNI. Pure.

use std::fmt::Write as _;
use std::net::IpAddr;

use orlop_netlink::link::Mac;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::{Config, Dns, Route};
use crate::failure::Failure;
use crate::ipam::Lease;
use crate::range;

/// An interface of the result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Its Ethernet address, with colons.
    pub mac: String,
    /// The container's network namespace; empty for the node's own.
    pub sandbox: String,
}

/// The result of an earlier ADD, as far as CHECK looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Previous {
    /// Interfaces.
    pub interfaces: Vec<Interface>,
    /// Addresses.
    pub ips: Vec<PreviousIp>,
    /// Routes.
    pub routes: Vec<Route>,
}

/// An address of an earlier result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PreviousIp {
    /// `ADDRESS/PREFIX`.
    pub address: String,
    /// The number of its interface in the result.
    pub interface: Option<usize>,
}

impl Previous {
    /// What the configuration for CHECK carries.
    ///
    /// # Errors
    /// It carries none, or one of another shape.
    pub fn of(config: &Config) -> Result<Previous, Failure> {
        let value =
            config.prev_result.clone().ok_or_else(|| Failure::Config("prevResult is missing".into()))?;
        serde_json::from_value(value).map_err(|e| Failure::Decode(format!("prevResult: {e}")))
    }
}

/// The result: bridge, port and container's interface in this order, or no interfaces from the address plugin alone.
#[must_use]
pub fn result(
    version: &str,
    interfaces: &[Interface],
    leases: &[Lease],
    routes: &[Route],
    dns: &Dns,
) -> Value {
    let of_interface = |i: &Interface| {
        let mut value = json!({"name": i.name, "mac": i.mac});
        if !i.sandbox.is_empty() {
            value["sandbox"] = json!(i.sandbox);
        }
        value
    };
    let of_lease = |lease: &Lease| {
        let address = format!("{}/{}", lease.ip, lease.prefix);
        let mut value = json!({"address": address, "gateway": lease.gateway.to_string()});
        if !interfaces.is_empty() {
            value["interface"] = json!(interfaces.len() - 1);
        }
        if version.starts_with("0.") {
            value["version"] = json!(if lease.ip.is_ipv4() { "4" } else { "6" });
        }
        value
    };
    let mut value = json!({"cniVersion": version, "dns": dns});
    if !interfaces.is_empty() {
        value["interfaces"] = interfaces.iter().map(of_interface).collect();
    }
    if !leases.is_empty() {
        value["ips"] = leases.iter().map(of_lease).collect();
    }
    if !routes.is_empty() {
        value["routes"] = json!(routes);
    }
    value
}

/// The routes of a container: the configured ones, and a default route for each family that has none with a next hop,
/// if the gateway is to be that.
#[must_use]
pub fn routes(configured: &[Route], leases: &[Lease], default_gateway: bool) -> Vec<Route> {
    let mut routes = configured.to_vec();
    if !default_gateway {
        return routes;
    }
    for (lease, dst) in [true, false].into_iter().filter_map(|four| {
        let lease = leases.iter().find(|lease| lease.ip.is_ipv4() == four)?;
        Some((lease, if four { "0.0.0.0/0" } else { "::/0" }))
    }) {
        let to = range::subnet(dst);
        if !routes.iter().any(|route| route.gw.is_some() && range::subnet(&route.dst) == to) {
            routes.push(Route { dst: dst.into(), gw: Some(lease.gateway.to_string()), ..Route::default() });
        }
    }
    routes
}

/// The route as the kernel is asked for it, through the link of this number.
///
/// # Errors
/// Destination or next hop is no address.
pub fn for_kernel(
    route: &Route,
    leases: &[Lease],
    index: u32,
) -> Result<orlop_netlink::route::Route, Failure> {
    let (to, prefix) = range::subnet(&route.dst).map_err(|why| Failure::Config(format!("route to {why}")))?;
    let named = match route.gw.as_deref().filter(|gw| !gw.is_empty()) {
        None => None,
        Some(text) => {
            let no_address =
                || Failure::Config(format!("route to {} by {text:?}, which is no address", route.dst));
            Some(range::parse(text).ok_or_else(no_address)?)
        }
    };
    let of_family =
        || leases.iter().find(|lease| lease.ip.is_ipv4() == to.is_ipv4()).map(|lease| lease.gateway);
    Ok(orlop_netlink::route::Route {
        to,
        prefix,
        gateway: named.or_else(of_family).filter(|gw: &IpAddr| !gw.is_unspecified()),
        index,
        priority: route.priority.unwrap_or(0),
        table: route.table,
        scope: route.scope,
        mtu: route.mtu.unwrap_or(0),
        advmss: route.advmss.unwrap_or(0),
    })
}

/// With colons.
#[must_use]
pub fn mac(mac: Option<Mac>) -> String {
    let mut text = String::new();
    for (n, byte) in mac.iter().flatten().enumerate() {
        let _ = write!(text, "{}{byte:02x}", if n > 0 { ":" } else { "" });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ip: &str, prefix: u8, gateway: &str) -> Lease {
        let of = |text: &str| text.parse().expect("an address");
        Lease { ip: of(ip), prefix, gateway: of(gateway), set: 0, kept: false }
    }

    fn route(dst: &str, gw: Option<&str>) -> Route {
        Route { dst: dst.into(), gw: gw.map(str::to_owned), ..Route::default() }
    }

    #[test]
    fn one_result_in_the_words_of_two_versions() {
        let of = |name: &str, sandbox: &str| Interface {
            name: name.into(),
            mac: "02:00:00:00:00:01".into(),
            sandbox: sandbox.into(),
        };
        let interfaces = [of("br0", ""), of("veth0", ""), of("eth0", "/run/netns/x")];
        let leases = [lease("10.1.0.2", 24, "10.1.0.1"), lease("fd00::2", 64, "fd00::1")];
        let routes = [route("0.0.0.0/0", Some("10.1.0.1"))];
        let new = result("1.0.0", &interfaces, &leases, &routes, &Dns::default());
        let want = json!({"cniVersion": "1.0.0", "dns": {}, "interfaces": [
                {"name": "br0", "mac": "02:00:00:00:00:01"}, {"name": "veth0", "mac": "02:00:00:00:00:01"},
                {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 2},
                {"address": "fd00::2/64", "gateway": "fd00::1", "interface": 2}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]});
        assert_eq!(new, want);
        let old = result("0.3.1", &interfaces, &leases, &routes, &Dns::default());
        assert_eq!((&old["ips"][0]["version"], &old["ips"][1]["version"]), (&json!("4"), &json!("6")));
        let alone = result("1.0.0", &[], &leases, &[], &Dns::default());
        assert!(alone.get("interfaces").is_none() && alone["ips"][0].get("interface").is_none());
        let previous: Previous = serde_json::from_value(new).expect("its own result");
        assert_eq!((previous.interfaces.len(), previous.ips[1].address.as_str()), (3, "fd00::2/64"));
    }

    #[test]
    fn default_routes_are_added_where_there_are_none() {
        let leases = [lease("10.1.0.2", 24, "10.1.0.1"), lease("fd00::2", 64, "fd00::1")];
        let made = routes(&[route("0.0.0.0/0", None)], &leases, true);
        let want =
            [route("0.0.0.0/0", None), route("0.0.0.0/0", Some("10.1.0.1")), route("::/0", Some("fd00::1"))];
        assert_eq!(made, want);
        let own = [route("0.0.0.0/0", Some("10.1.0.9")), route("::/0", Some("fd00::9"))];
        assert_eq!(routes(&own, &leases, true), own);
        assert_eq!(routes(&[], &leases, false), []);
        assert_eq!(routes(&[], &leases[..1], true).len(), 1);
    }

    #[test]
    fn the_next_hop_is_the_family_s_gateway_unless_named() {
        let leases = [lease("10.1.0.2", 24, "10.1.0.1"), lease("fd00::2", 64, "fd00::1")];
        for (dst, gw, want) in [
            ("10.9.0.0/16", None, Some("10.1.0.1")),
            ("fd09::/16", None, Some("fd00::1")),
            ("10.9.0.0/16", Some("10.1.0.7"), Some("10.1.0.7")),
            ("10.9.0.0/16", Some("0.0.0.0"), None),
        ] {
            let made = for_kernel(&route(dst, gw), &leases, 3).expect(dst);
            assert_eq!(made.gateway.map(|g| g.to_string()).as_deref(), want, "{dst}");
        }
        assert!(for_kernel(&route("x", None), &leases, 3).is_err());
        assert!(for_kernel(&route("10.9.0.0/16", Some("x")), &leases, 3).is_err());
    }

    #[test]
    fn ethernet_addresses_are_written_with_colons() {
        assert_eq!(
            (mac(Some([2, 0xab, 0, 1, 2, 3])).as_str(), mac(None).as_str()),
            ("02:ab:00:01:02:03", "")
        );
    }
}
