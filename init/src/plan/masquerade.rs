//! The node's rule that pods of the standalone network leave it under the node's address: the network's configuration
//! in, networks out. One rule for the whole range, in place of the bridge plugin's one for each pod.
//!
//! It is made when the node has a way out: eight kernel modules are loaded for it, while the first pod starts.

use orlop_config::formats::is_link_local;
use orlop_netlink::nft::Network;
use orlop_netlink::route::Route;
use serde_json::Value;
use std::net::IpAddr;

/// The networks of a configuration that init wrote, or `None` if it is not ours, or the plugin masquerades by itself
/// (`ipMasq`, as earlier versions wrote it).
#[must_use]
pub fn networks(conflist: &str) -> Option<Vec<Network>> {
    let list: Value = serde_json::from_str(conflist).ok()?;
    let bridge = list.get("plugins")?.get(0).filter(|p| p.get("type").is_some_and(|t| t == "bridge"))?;
    if bridge.get("ipMasq").is_some_and(|masq| masq == true) {
        return None;
    }
    let sets = bridge.pointer("/ipam/ranges")?.as_array()?;
    let subnets = sets.iter().filter_map(|set| set.pointer("/0/subnet"));
    let networks: Option<Vec<Network>> = subnets.map(|subnet| network(subnet.as_str()?)).collect();
    networks.filter(|networks| !networks.is_empty())
}

/// Whether the route is one by which a packet of a pod can leave the node: of the main table, neither to the pods
/// themselves nor among neighbours only (link-local and multicast).
#[must_use]
pub fn leads_out(route: &Route, pods: &[Network]) -> bool {
    /// `RT_TABLE_MAIN`.
    const MAIN: u32 = 254;
    let local = is_link_local(route.to) || route.to.is_multicast();
    route.table == Some(MAIN) && !local && !pods.contains(&(route.to, route.prefix))
}

fn network(text: &str) -> Option<Network> {
    let (ip, prefix) = text.split_once('/')?;
    let ip: IpAddr = ip.parse().ok()?;
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= if ip.is_ipv4() { 32 } else { 128 })?;
    Some((ip, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(plugin: &str) -> String {
        format!(r#"{{"name":"orlop","plugins":[{{"type":"bridge",{plugin}}},{{"type":"portmap"}}]}}"#)
    }

    #[test]
    fn one_network_for_each_range() {
        let of = |ip: &str, prefix| (ip.parse().expect("an address"), prefix);
        let made =
            networks(&list(r#""ipam":{"ranges":[[{"subnet":"10.88.0.0/16"}],[{"subnet":"fd00:1::/64"}]]}"#));
        assert_eq!(made, Some(vec![of("10.88.0.0", 16), of("fd00:1::", 64)]));
    }

    #[test]
    fn the_way_out_is_not_the_pods_own_network() {
        let of = |to: &str, prefix, table| Route {
            to: to.parse().expect("an address"),
            prefix,
            gateway: None,
            index: 2,
            priority: 0,
            table: Some(table),
            scope: None,
            mtu: 0,
            advmss: 0,
        };
        let pods = [("10.88.0.0".parse().expect("an address"), 16)];
        for (route, want) in [
            (of("0.0.0.0", 0, 254), true),
            (of("192.0.2.0", 24, 254), true),
            (of("::", 0, 254), true),
            (of("10.88.0.0", 16, 254), false),
            (of("127.0.0.0", 8, 255), false),
            (of("192.0.2.1", 32, 255), false),
            (of("169.254.0.0", 16, 254), false),
            (of("fe80::", 64, 254), false),
            (of("ff00::", 8, 254), false),
        ] {
            assert_eq!(leads_out(&route, &pods), want, "{route:?}");
        }
    }

    #[test]
    fn nothing_where_it_is_not_ours_to_do() {
        let ranges = r#""ipam":{"ranges":[[{"subnet":"10.88.0.0/16"}]]}"#;
        let broken = r#""ipam":{"ranges":[[{"subnet":"10.88.0.0/16"}],[{"subnet":"10.89.0.0/33"}]]}"#;
        let own = list(&format!(r#""ipMasq":true,{ranges}"#));
        for none in [
            own.as_str(),
            &list(broken),
            &list(r#""ipam":{}"#),
            r#"{"plugins":[{"type":"calico"}]}"#,
            "",
            "[]",
        ] {
            assert_eq!(networks(none), None, "{none}");
        }
    }
}
