//! Files of bonds, VLANs and bridges, together with those of the interfaces below them.

use crate::node::derive::{environment_files, hosts, networks, resolv_conf};
use crate::node::tests::one;
use crate::node::{Effective, NodeConfig};

const MACHINE_ID: &str = "0123456789abcdef0123456789abcdef";

/// A VLAN on an LACP bond with addresses of both families: docs/reference/network.md has the same.
const DUAL_STACK: &str = "network:
  interfaces:
  - name: 'en*'
  - {id: port1, macAddress: '52:54:00:00:00:01'}
  - {name: eth1}
  bonds:
  - {name: bond0, members: [port1, eth1], mode: 802.3ad, lacpRate: fast, hashPolicy: layer3+4}
  vlans:
  - name: vlan100
    id: 100
    parent: bond0
    addresses: [192.0.2.10/24, '2001:db8::10/64']
    gateway: 192.0.2.1
    gateway6: '2001:db8::1'
    dns: [192.0.2.53]
    search: [example.com]
";

fn effective(body: &str) -> Effective {
    let effective = one(body);
    assert_eq!(effective.problems, [], "{body}");
    effective
}

/// Names and texts of all files, without those of a pattern's indexes.
fn files(config: &NodeConfig) -> Vec<(String, String)> {
    let files = networks(config);
    assert!(files.is_sorted_by_key(|f| f.path.as_str()), "{files:?}");
    let name = |path: &str| path.trim_start_matches("/run/systemd/network/").to_owned();
    let files = files.into_iter().map(|f| (name(&f.path), f.text));
    files.filter(|(name, _)| !name.contains("-index")).collect()
}

/// The text of the only file with this line.
fn with_line(body: &str, line: &str) -> String {
    let files = files(&effective(body).config);
    let mut found = files.iter().filter(|(_, text)| text.lines().any(|l| l == line));
    let (_, text) = found.next().unwrap_or_else(|| panic!("no file has {line}: {files:?}"));
    assert!(found.next().is_none(), "{line} is in two files: {files:?}");
    text.clone()
}

#[test]
fn a_vlan_on_a_bond() {
    let carries =
        "[Link]\nRequiredForOnline=no\n\n[Network]\nDHCP=no\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n";
    let effective = effective(DUAL_STACK);
    let mut files = files(&effective.config);
    // Its own entry is the first of the list, and would take the members if its file were the first.
    let (last, _) = files.pop().expect("files");
    assert_eq!(last, "14-orlop.network");
    let want = [
        (
            "10-orlop.network",
            format!(
                "[Match]\nPermanentMACAddress=52:54:00:00:00:01\nType=ether\nKind=!*\n\n{carries}Bond=bond0\n"
            ),
        ),
        ("11-orlop.network", format!("[Match]\nName=eth1\n\n{carries}Bond=bond0\n")),
        (
            "12-orlop.netdev",
            "[NetDev]\nName=bond0\nKind=bond\nMACAddress=52:54:00:00:00:01\n\n[Bond]\nMode=802.3ad\nMIIMonitorSec=100ms\n\
             LACPTransmitRate=fast\nTransmitHashPolicy=layer3+4\n"
                .to_owned(),
        ),
        ("12-orlop.network", format!("[Match]\nName=bond0\n\n{carries}VLAN=vlan100\n")),
    ];
    for ((name, text), (want_name, want_text)) in files.iter().zip(&want) {
        assert_eq!((name.as_str(), text), (*want_name, want_text));
    }
    // The pattern is before the VLAN in the lists, and neither is a member or a parent.
    assert_eq!(files.len(), 6, "{files:?}");
    assert!(files[4].0 == "13-orlop.network" && files[4].1.starts_with("[Match]\nName=en*\n"), "{files:?}");
    assert_eq!(files[5].0, "14-orlop.netdev");
    assert_eq!(files[5].1, "[NetDev]\nName=vlan100\nKind=vlan\n\n[VLAN]\nId=100\n");
}

#[test]
fn a_vlan_has_addresses_and_routes() {
    assert_eq!(
        with_line(DUAL_STACK, "Address=192.0.2.10/24"),
        "[Match]\nName=vlan100\n\n[Network]\nDHCP=no\nAddress=192.0.2.10/24\nAddress=2001:db8::10/64\n\
         DNS=192.0.2.53\nDomains=example.com\n\n[Route]\nGateway=192.0.2.1\nMetric=140\n\n\
         [Route]\nGateway=2001:db8::1\nMetric=140\n\n[IPv6AcceptRA]\nRouteMetric=140\nUseDomains=no\nUseDNS=no\n"
    );
}

#[test]
fn the_nodes_address_is_that_of_the_default_route_wherever_it_is() {
    let body = DUAL_STACK.replace("  - name: 'en*'\n", "");
    let effective = effective(&format!("{body}proxy: {{http: 'http://p:3128'}}\n"));
    let hosts = hosts(&effective.config, MACHINE_ID);
    for line in ["192.0.2.10 orlop-01234567", "2001:db8::10 orlop-01234567"] {
        assert!(hosts.lines().any(|l| l == line), "{hosts}");
    }
    assert!(resolv_conf(&effective.config).ends_with("nameserver 192.0.2.53\nsearch example.com\n"));
    let environment = environment_files(&effective).pop().expect("a file").text;
    assert!(environment.contains(",192.0.2.10/24,2001:db8::10/64"), "{environment}");
}

#[test]
fn members_go_before_patterns_and_leave_earlier_entries_their_interfaces() {
    let order = |interfaces: &str| -> Vec<String> {
        let body = format!(
            "network: {{interfaces: [{interfaces}], bonds: [{{name: bond0, mode: active-backup, members: [p]}}]}}"
        );
        let matched = |text: &str| text.lines().nth(1).unwrap_or_default().to_owned();
        let files = files(&effective(&body).config);
        let networks = files.iter().filter(|(name, _)| name.ends_with(".network"));
        networks.map(|(_, text)| matched(text)).filter(|line| line != "Name=bond0").collect()
    };
    let table = [
        ("{name: 'en*'}, {id: p, name: eno2}", ["Name=en*", "Name=eno2"], [1, 0]),
        ("{name: 'en*'}, {id: p, name: 'eth*'}", ["Name=en*", "Name=eth*"], [1, 0]),
        ("{name: eno1}, {id: p, name: 'en*'}", ["Name=eno1", "Name=en*"], [0, 1]),
        ("{id: p, name: 'en*'}, {name: eno1}", ["Name=en*", "Name=eno1"], [0, 1]),
        ("{name: 'en*'}, {name: eno1}, {id: p, name: eno2}", ["Name=eno2", "Name=en*"], [0, 1]),
    ];
    for (interfaces, lines, [first, second]) in table {
        let found = order(interfaces);
        assert_eq!(found[..2], [lines[first], lines[second]], "{interfaces}");
    }
}

#[test]
fn what_carries_others_asks_nobody_for_addresses() {
    let bond = |keys: &str, vlans: &str| {
        format!(
            "network: {{interfaces: [{{name: eth0}}, {{name: eth1}}], bonds: [{{name: b, mode: active-backup, members: \
             [eth0, eth1]{keys}}}], vlans: [{vlans}]}}"
        )
    };
    let vlan = "{name: v, id: 1, parent: b}";
    let table = [
        ("", "", "yes"),
        ("", vlan, "no"),
        (", dhcp: true", vlan, "yes"),
        (", addresses: [192.0.2.1/24]", vlan, "no"),
    ];
    for (keys, vlans, dhcp) in table {
        let files = files(&effective(&bond(keys, vlans)).config);
        let (_, text) = files.iter().find(|(_, text)| text.starts_with("[Match]\nName=b\n")).expect("a file");
        assert!(text.contains(&format!("\nDHCP={dhcp}\n")), "{keys} {vlans}: {text}");
        // The VLAN itself asks.
        let asks = files.iter().filter(|(_, text)| text.contains("\nDHCP=yes\n")).count();
        assert_eq!(asks, usize::from(dhcp == "yes") + usize::from(!vlans.is_empty()), "{keys} {vlans}");
    }
}

#[test]
fn the_primary_member_and_the_bonds_own_address() {
    let body = "network: {interfaces: [{name: eth0}, {name: eth1}], bonds: [{name: b, mode: active-backup, members: \
                [eth0, eth1], primary: eth1, miimon: 50, macAddress: '52:54:00:00:00:09', mtu: 9000}]}";
    assert!(with_line(body, "PrimarySlave=yes").starts_with("[Match]\nName=eth1\n"));
    assert_eq!(
        with_line(body, "Kind=bond"),
        "[NetDev]\nName=b\nKind=bond\nMACAddress=52:54:00:00:00:09\n\n[Bond]\nMode=active-backup\nMIIMonitorSec=50ms\n"
    );
    assert!(with_line(body, "MTUBytes=9000").starts_with("[Match]\nName=b\n"));
}

/// A machine that is installed again has another machine id, so an address that is made from it would be another one.
#[test]
fn a_bond_or_bridge_has_an_address_that_the_document_knows() {
    let cards = "interfaces: [{name: eth0}, {id: a, macAddress: '52:54:00:00:00:0a'}, {id: b, macAddress: \
                 '52:54:00:00:00:0b'}]";
    let bond = |keys: &str| format!("{{name: bond0, mode: active-backup, members: [{keys}}}");
    let own = ", macAddress: '52:54:00:00:00:09'";
    let table = [
        (format!("bonds: [{}]", bond("eth0]")), "bond", None),
        (format!("bonds: [{}]", bond("a, b]")), "bond", Some("0a")),
        // The first one is unknown.
        (format!("bonds: [{}]", bond("eth0, b, a]")), "bond", Some("0b")),
        (format!("bonds: [{}]", bond(&format!("a, b]{own}"))), "bond", Some("09")),
        ("bridges: [{name: br0}]".to_owned(), "bridge", None),
        (format!("bridges: [{{name: br0, members: [a]{own}}}]"), "bridge", Some("09")),
        (
            format!("bonds: [{}], bridges: [{{name: br0, members: [eth0, bond0]}}]", bond("b, a]")),
            "bridge",
            Some("0b"),
        ),
        (
            "vlans: [{name: v, id: 7, parent: b}], bridges: [{name: br0, members: [v, a]}]".to_owned(),
            "bridge",
            Some("0b"),
        ),
    ];
    for (lists, kind, last) in table {
        let text = with_line(&format!("network: {{{cards}, {lists}}}"), &format!("Kind={kind}"));
        let address = text.lines().find_map(|line| line.strip_prefix("MACAddress=52:54:00:00:00:"));
        assert_eq!(address, last, "{lists}: {text}");
    }
}

#[test]
fn bridges() {
    let body = "network: {interfaces: [{name: eth0}], vlans: [{name: v, id: 7, parent: eth0}], bridges: [{name: br0, \
                members: [eth0, v], stp: true, addresses: [192.0.2.1/24]}, {name: br1, addresses: [10.9.0.1/24]}, \
                {name: br2}]}";
    assert!(with_line(body, "VLAN=v").contains("\nBridge=br0\nVLAN=v\n"));
    assert_eq!(with_line(body, "STP=yes"), "[NetDev]\nName=br0\nKind=bridge\n\n[Bridge]\nSTP=yes\n");
    let alone = with_line(body, "ConfigureWithoutCarrier=yes");
    assert!(alone.starts_with("[Match]\nName=br1\n\n[Link]\nRequiredForOnline=no\n"), "{alone}");
    assert!(alone.contains("\nIPv6AcceptRA=no\n") && !alone.contains("[IPv6AcceptRA]"), "{alone}");
    let files = files(&effective(body).config);
    let (_, empty) = files.iter().find(|(_, text)| text.starts_with("[Match]\nName=br2\n")).expect("a file");
    assert!(empty.contains("\nDHCP=no\n"), "{empty}");
}

#[test]
fn interfaces_by_driver_and_place() {
    let body = "network: {interfaces: [{driver: virtio_net, path: 'pci-0000:00:03.0'}]}";
    let files = networks(&effective(body).config);
    assert_eq!(files.len(), 1, "one place is one interface");
    assert!(
        files[0].text.starts_with(
            "[Match]\nName=en* eth*\nDriver=virtio_net\nPath=pci-0000:00:03.0\nType=ether\nKind=!*\n"
        ),
        "{}",
        files[0].text
    );
    assert_eq!(networks(&effective("network: {interfaces: [{path: 'pci-0000:00:*'}]}").config).len(), 9);
}

#[test]
fn router_advertisements_and_options_of_dhcp() {
    let text = |keys: &str| {
        let body = format!("network: {{interfaces: [{{name: eth0{keys}}}]}}");
        networks(&effective(&body).config).swap_remove(0).text
    };
    let quiet = text(", acceptRA: false");
    assert!(quiet.contains("\nIPv6AcceptRA=no\n") && !quiet.contains("[IPv6AcceptRA]"), "{quiet}");
    assert!(text(", acceptRA: true").contains("\nIPv6AcceptRA=yes\n"));
    // A node that is installed again is known by its card, and what the network says about packets counts.
    let asks = text("");
    for line in ["ClientIdentifier=mac", "DUIDType=link-layer", "UseMTU=yes"] {
        assert_eq!(asks.matches(line).count(), 1, "{line}: {asks}");
    }
    assert!(!asks.contains("UseRoutes=no") && !asks.contains("UseDNS=no"), "{asks}");
    let own = text(", mtu: 1400");
    assert!(own.contains("\nMTUBytes=1400\n") && own.contains("\nUseMTU=no\n"), "{own}");
}

#[test]
fn no_two_interfaces_have_one_metric() {
    let body = "network: {interfaces: [{name: eth0}, {name: eth1}], vlans: [{name: v, id: 1, parent: eth1}, {name: w, \
                id: 2, parent: eth1}], bridges: [{name: br0, members: [w]}]}";
    let files = files(&effective(body).config);
    let of = |text: &str| Some(text.split("[DHCPv4]\nRouteMetric=").nth(1)?.lines().next()?.to_owned());
    let metrics: Vec<String> = files.iter().filter_map(|(_, text)| of(text)).collect();
    let distinct: std::collections::BTreeSet<&String> = metrics.iter().collect();
    assert_eq!((metrics.len(), distinct.len()), (3, 3), "{metrics:?}");
}
