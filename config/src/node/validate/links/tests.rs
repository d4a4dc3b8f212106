//! Each rule of interfaces with a document that keeps it and one that breaks it.

use crate::node::tests::{one, refused};

/// A document with two interfaces and these lists.
fn over_two(lists: &str) -> String {
    format!("network: {{interfaces: [{{name: eth0}}, {{name: eth1}}], {lists}}}")
}

fn check(good: &str, bad: &str, reason: &str) {
    let e = one(good);
    assert_eq!(e.problems, [], "{good}");
    assert_eq!(e.accepted.len(), 1, "{good}");
    let said = refused(bad);
    assert!(said.iter().any(|s| s.contains(reason)), "{bad}: {said:?}");
    assert!(said.iter().all(|s| s.starts_with("esp:/node-config.yaml:3: network")), "{bad}: {said:?}");
}

#[test]
fn names_and_matches() {
    let name = "must be a name of 1 to 15 letters";
    let table = [
        (
            "vlans: [{name: v234567890.1234, id: 1, parent: eth0}]",
            "vlans: [{name: v234567890.12345, id: 1, parent: eth0}]",
            name,
        ),
        ("vlans: [{name: v, id: 1, parent: eth0}]", "vlans: [{name: a/b, id: 1, parent: eth0}]", name),
        ("bridges: [{name: br7}]", "bridges: [{name: '7'}]", name),
        ("bridges: [{name: br}]", "bridges: [{name: ''}]", name),
        ("bridges: [{name: br}]", "bridges: [{members: []}]", "is missing"),
        ("bridges: [{name: orlop1}]", "bridges: [{name: orlop0}]", "is the node's own interface"),
        (
            "bridges: [{name: a}, {name: b}]",
            "bridges: [{name: a}, {name: a}]",
            "is there twice: network.bridges[0] has it",
        ),
        (
            "bridges: [{name: eth2}]",
            "bridges: [{name: eth1}]",
            "is there twice: network.interfaces[1] has it",
        ),
        (
            "bridges: [{name: b, macAddress: '52:54:00:00:00:01'}]",
            "bridges: [{name: b, macAddress: '53:54:00:00:00:01'}]",
            "the address of one interface",
        ),
        (
            "bonds: [{name: b, mode: broadcast, members: [eth0], macAddress: '52:54:00:00:00:01'}]",
            "bonds: [{name: b, mode: broadcast, members: [eth0], macAddress: '52-54-00-00-00-01'}]",
            "must be six hex pairs",
        ),
        (
            "vlans: [{name: v, id: 1, parent: eth0, gateway: 192.0.2.1}]",
            "vlans: [{name: v, id: 1, parent: eth0, gateway: here}]",
            "must be an IP address",
        ),
    ];
    for (good, bad, reason) in table {
        check(&over_two(good), &over_two(bad), reason);
    }
    let interfaces = |entries: &str| format!("network: {{interfaces: [{entries}]}}");
    for (good, bad, reason) in [
        ("{id: port-1}", "{id: a b}", "must be a word"),
        ("{id: a}, {id: b, name: b}", "{id: a}, {name: a}", "is there twice"),
        ("{driver: 'mlx5* ixgbe'}", "{driver: ''}", "must be drivers"),
        ("{path: 'pci-0000:01:00.0'}", "{path: 'pci/1'}", "must be places"),
    ] {
        check(&interfaces(good), &interfaces(bad), reason);
    }
}

#[test]
fn members() {
    let bond = |keys: &str| format!("bonds: [{{name: b, mode: active-backup, {keys}}}]");
    let bridge = |rest: &str| format!("bridges: [{{name: br, members: [eth0]{rest}}}]");
    let table = [
        (bond("members: [eth0, eth1]"), bond("members: [eth0, eth2]"), "is no id or name below network"),
        (bond("members: [eth0]"), bond("members: []"), "must name at least one interface"),
        (bond("members: [eth0]"), "bonds: [{name: b, members: [eth0]}]".into(), "is missing"),
        (bond("members: [eth0]"), bond("members: [eth0, eth0]"), "is there twice"),
        (
            bond("members: [eth1]") + ", " + &bridge(""),
            bond("members: [eth0]") + ", " + &bridge(""),
            "is a member of br, too",
        ),
        (
            bond("members: [eth0]") + ", bridges: [{name: br, members: [b]}]",
            "vlans: [{name: v, id: 1, parent: eth1}], ".to_owned() + &bond("members: [v]"),
            "a bond is made of the machine's own interfaces",
        ),
        (bridge(""), bridge("}, {name: other, members: [br]"), "a bridge has no bridge in it"),
        (
            bond("members: [eth0], primary: eth0"),
            bond("members: [eth0], primary: eth1"),
            "must be one of members",
        ),
    ];
    for (good, bad, reason) in table {
        check(&over_two(&good), &over_two(&bad), reason);
    }
}

#[test]
fn a_member_has_nothing_of_its_own() {
    let body = |keys: &str| {
        format!(
            "network: {{interfaces: [{{name: eth0{keys}}}], bonds: [{{name: b, mode: balance-rr, members: [eth0]}}]}}"
        )
    };
    for keys in [
        "dhcp: true",
        "acceptRA: true",
        "addresses: [192.0.2.1/24]",
        "gateway: 192.0.2.1",
        "gateway6: 'fe80::1'",
        "routes: [{to: 10.0.0.0/8}]",
        "dns: [192.0.2.1]",
        "search: [a.b]",
        "mtu: 1500",
    ] {
        let key = keys.split(':').next().unwrap_or_default();
        let reason = format!("network.interfaces[0].{key}: belongs to b: eth0 is a member of it");
        check(&body(", dhcp: false, acceptRA: false"), &body(&format!(", {keys}")), &reason);
    }
    // A bridge leaves each member its own.
    let bridge = "network: {interfaces: [{name: eth0, mtu: 1400}], bridges: [{name: b, members: [eth0]}]}";
    assert_eq!(one(bridge).problems, []);
}

#[test]
fn options_of_modes() {
    let bond = |mode: &str, option: &str| {
        over_two(&format!("bonds: [{{name: b, mode: {mode}, members: [eth0], {option}}}]"))
    };
    for (option, good, bad) in [
        ("lacpRate: fast", "802.3ad", "balance-xor"),
        ("hashPolicy: layer2+3", "balance-xor", "active-backup"),
        ("hashPolicy: layer3+4", "802.3ad", "balance-rr"),
        ("primary: eth0", "balance-alb", "802.3ad"),
    ] {
        check(&bond(good, option), &bond(bad, option), &format!("and not with {bad}"));
    }
    let primary = |card: &str| {
        format!(
            "network: {{interfaces: [{{id: a, {card}}}], bonds: [{{name: b, mode: active-backup, members: [a], primary: a}}]}}"
        )
    };
    check(&primary("name: eth7"), &primary("driver: igb"), "may be several interfaces");
    check(&bond("802.3ad", "miimon: 10"), &bond("802.3ad", "miimon: 9"), "between 10 and 60000");
    check(&bond("802.3ad", "mtu: 9000"), &bond("lacp", "mtu: 9000"), "must be one of active-backup, 802.3ad");
    check(
        &bond("802.3ad", "lacpRate: slow"),
        &bond("802.3ad", "lacpRate: often"),
        "must be one of slow, fast",
    );
}

#[test]
fn vlans() {
    let bond = "bonds: [{name: b, mode: 802.3ad, members: [eth0, eth1]}]";
    let table = [
        (
            over_two("vlans: [{name: v, id: 1, parent: eth0}]"),
            over_two("vlans: [{name: v, id: 0, parent: eth0}]"),
            "between 1 and 4094",
        ),
        (
            over_two("vlans: [{name: v, id: 4094, parent: eth0}]"),
            over_two("vlans: [{name: v, id: 4095, parent: eth0}]"),
            "between 1 and 4094",
        ),
        (
            over_two("vlans: [{name: v, id: 5, parent: eth0}]"),
            over_two("vlans: [{name: v, id: 5, parent: eth2}]"),
            "is no id or name",
        ),
        (
            over_two("vlans: [{name: v, id: 5, parent: eth0}]"),
            over_two("vlans: [{name: v, parent: eth0}]"),
            "is missing",
        ),
        (
            over_two("vlans: [{name: v, id: 5, parent: eth0}, {name: w, id: 5, parent: eth1}]"),
            over_two("vlans: [{name: v, id: 5, parent: eth0}, {name: w, id: 5, parent: eth0}]"),
            "is v on eth0 already",
        ),
        (
            over_two(&format!("{bond}, vlans: [{{name: v, id: 5, parent: b}}]")),
            over_two(&format!("{bond}, vlans: [{{name: v, id: 5, parent: eth0}}]")),
            "is a member of b: a VLAN is on the bond",
        ),
        (
            "network: {interfaces: [{id: a, path: 'pci-1'}], vlans: [{name: v, id: 5, parent: a}]}"
                .to_owned(),
            "network: {interfaces: [{id: a, driver: e1000e}], vlans: [{name: v, id: 5, parent: a}]}"
                .to_owned(),
            "may be several interfaces",
        ),
    ];
    for (good, bad, reason) in table {
        check(&good, &bad, reason);
    }
}

#[test]
fn nothing_stands_on_itself() {
    let stands = "stands on itself";
    for (good, bad) in [
        ("vlans: [{name: v, id: 5, parent: eth0}]", "vlans: [{name: v, id: 5, parent: v}]"),
        (
            "vlans: [{name: v, id: 5, parent: w}, {name: w, id: 6, parent: eth0}]",
            "vlans: [{name: v, id: 5, parent: w}, {name: w, id: 6, parent: v}]",
        ),
        (
            "bridges: [{name: br, members: [eth0]}], vlans: [{name: v, id: 5, parent: br}]",
            "bridges: [{name: br, members: [v]}], vlans: [{name: v, id: 5, parent: br}]",
        ),
    ] {
        check(&over_two(good), &over_two(bad), stands);
    }
}

#[test]
fn packets_fit_what_is_below() {
    let on = |eth0: &str, rest: &str| format!("network: {{interfaces: [{{name: eth0{eth0}}}], {rest}}}");
    let vlan = |mtu: i32| format!("vlans: [{{name: v, id: 5, parent: eth0, mtu: {mtu}}}]");
    let bridge = |mtu: i32| format!("bridges: [{{name: b, members: [eth0], mtu: {mtu}}}]");
    check(&on("", &vlan(1500)), &on("", &vlan(1501)), "must be at most that of eth0, 1500");
    check(
        &on(", mtu: 9000", &vlan(9000)),
        &on(", mtu: 9000", &vlan(9001)),
        "must be at most that of eth0, 9000",
    );
    check(
        &on(", mtu: 1400", &bridge(1400)),
        &on(", mtu: 1400", &bridge(1401)),
        "must be at most that of eth0, 1400",
    );
    let stacked = |mtu: i32| {
        on(
            ", mtu: 9000",
            &format!("vlans: [{{name: v, id: 5, parent: eth0}}, {{name: w, id: 6, parent: v, mtu: {mtu}}}]"),
        )
    };
    check(&stacked(9000), &stacked(9001), "must be at most that of v, 9000");
}

#[test]
fn no_two_entries_are_for_one_interface() {
    let interfaces = |entries: &str| format!("network: {{interfaces: [{entries}]}}");
    let mac = "52:54:00:00:00:0a";
    let table = [
        (
            format!("{{macAddress: '{mac}'}}, {{macAddress: '52:54:00:00:00:0b'}}"),
            format!("{{macAddress: '{mac}'}}, {{id: b, macAddress: '{}'}}", mac.to_ascii_uppercase()),
        ),
        (
            "{id: a, name: eth0}, {id: b, name: eth1}".into(),
            "{id: a, name: eth0}, {id: b, name: eth0}".into(),
        ),
        ("{driver: igb}, {driver: ixgbe}".into(), "{driver: igb}, {driver: igb}".into()),
        ("{path: pci-1}, {path: pci-2}".into(), "{path: pci-1}, {id: b, path: pci-1}".into()),
        ("{name: 'en*'}, {}".into(), "{}, {}".into()),
    ];
    for (good, bad) in table {
        let reason =
            "network.interfaces[1]: is for the same interface as network.interfaces[0], which comes first";
        check(&interfaces(&good), &interfaces(&bad), reason);
    }
    let over =
        |name: &str| format!("network: {{interfaces: [{{id: a, name: eth0}}], bridges: [{{name: {name}}}]}}");
    check(
        &over("br0"),
        &over("eth0"),
        "network.bridges[0]: is for the same interface as network.interfaces[0]",
    );
}

#[test]
fn an_address_is_one_interfaces() {
    let on = |first: &str, second: &str| {
        format!(
            "network: {{interfaces: [{{name: eth0, addresses: [{first}]}}], bridges: [{{name: br0, addresses: [{second}]}}]}}"
        )
    };
    let twice = "is there twice: network.interfaces[0].addresses[0] has it, too";
    check(&on("192.0.2.1/24", "192.0.2.2/24"), &on("192.0.2.1/24", "192.0.2.1/32"), twice);
    check(&on("'fd00::1/64'", "'fd00::2/64'"), &on("'fd00::1/64'", "'fd00:0::1/64'"), twice);
    check(&on("192.0.2.1/24", "'fe80::1/64'"), &on("192.0.2.1/24, 192.0.2.1/24", "'fe80::1/64'"), twice);
    assert_eq!(one(&on("'fe80::1/64'", "'fe80::1/64'")).problems, []);
}

#[test]
fn routes_to_one_destination_have_an_order() {
    let on = |first: &str, second: &str| {
        let addresses = |n: u8| format!("addresses: [192.0.2.{n}/24, 'fd00::{n}/64']");
        format!(
            "network: {{interfaces: [{{name: eth0, {}{first}}}, {{name: eth1, {}{second}}}]}}",
            addresses(1),
            addresses(2)
        )
    };
    let route = |to: &str, via: &str, metric: &str| format!(", routes: [{{to: {to}, via: {via}{metric}}}]");
    let table = [
        // The second entry's gateway has metric 110.
        (
            on(&route("0.0.0.0/0", "192.0.2.9", ""), ", gateway: 192.0.2.8"),
            on(&route("0.0.0.0/0", "192.0.2.9", ", metric: 110"), ", gateway: 192.0.2.8"),
            "is a second route to 0.0.0.0/0 with metric 110, as network.interfaces[0].routes[0]: ",
        ),
        (
            on(&format!(", gateway: 192.0.2.8{}", route("'::/0'", "'fd00::9'", "")), ""),
            on(&format!(", gateway: 192.0.2.8{}", route("0.0.0.0/0", "192.0.2.9", "")), ""),
            "is a second route to 0.0.0.0/0 with metric 100, as network.interfaces[0].gateway: ",
        ),
        (
            on(
                &route("'fd00:1::/32'", "'fd00::9'", ", metric: 7"),
                &route("'fd00:1::/32'", "'fd00::9'", ", metric: 8"),
            ),
            on(
                &route("'fd00:1::/32'", "'fd00::9'", ", metric: 7"),
                &route("'fd00:1:0::/32'", "'fd00::9'", ", metric: 7"),
            ),
            "with metric 7, as network.interfaces[0].routes[0]: ",
        ),
    ];
    for (good, bad, reason) in table {
        check(&good, &bad, reason);
    }
}

#[test]
fn a_gateway_needs_an_address_beside_it() {
    let eth0 = |keys: &str| format!("network: {{interfaces: [{{name: eth0, {keys}}}]}}");
    let needs = "needs an address of its family on this interface";
    let static_v4 = "addresses: [192.0.2.1/24]";
    for (good, bad) in [
        (
            format!("{static_v4}, gateway: 198.51.100.1"),
            "addresses: ['fd00::1/64'], gateway: 192.0.2.1".into(),
        ),
        ("gateway: 192.0.2.1".into(), "dhcp: false, gateway: 192.0.2.1".into()),
        (
            format!("{static_v4}, gateway6: 'fd00::1'"),
            format!("{static_v4}, acceptRA: false, gateway6: 'fd00::1'"),
        ),
        (
            format!("{static_v4}, acceptRA: false, gateway6: 'fe80::1'"),
            format!("{static_v4}, acceptRA: false, routes: [{{to: 'fd01::/16', via: 'fd00::1'}}]"),
        ),
        (
            "dhcp: false, routes: [{to: 10.0.0.0/8, via: 192.0.2.1, onLink: true}]".into(),
            "dhcp: false, routes: [{to: 10.0.0.0/8, via: 192.0.2.1}]".into(),
        ),
    ] {
        check(&eth0(&good), &eth0(&bad), needs);
    }
    // An interface that is there for VLANs alone has no routes.
    let parent = |keys: &str| {
        format!("network: {{interfaces: [{{name: eth0{keys}}}], vlans: [{{name: v, id: 5, parent: eth0}}]}}")
    };
    for key in ["gateway: 192.0.2.1", "gateway6: 'fe80::1'", "routes: [{to: 10.0.0.0/8}]"] {
        check(&parent(&format!(", dhcp: true, {key}")), &parent(&format!(", {key}")), needs);
    }
}

#[test]
fn each_mistake_has_its_line() {
    let said = refused(
        "network:\n  interfaces:\n  - name: eth0\n    addresses: [192.0.2.1/24]\n  bonds:\n  - name: b\n    mode: balance-rr\n    \
         members:\n    - eth0\n    - eth9\n    lacpRate: fast\n  vlans:\n  - name: much-too-long-a-name\n    id: 7\n    parent: b\n",
    );
    let lines: Vec<&str> =
        said.iter().filter_map(|s| s.strip_prefix("esp:/node-config.yaml:")?.split(": \"").next()).collect();
    let at = |line: &str| lines.iter().any(|found| found.starts_with(line));
    for line in [
        "6: network.interfaces[0].addresses: ",
        "12: network.bonds[0].members[1]: ",
        "13: network.bonds[0].lacpRate: ",
        "15: network.vlans[0].name: ",
    ] {
        let place = line.trim_end().trim_end_matches(':');
        assert!(at(place), "no {place} in {said:?}");
    }
    assert_eq!(said.len(), 4, "{said:?}");
}

#[test]
fn more_interfaces_than_files_are_refused() {
    let bridges = |n: usize| {
        let all: Vec<String> = (0..n).map(|i| format!("{{name: br{i}}}")).collect();
        format!("network: {{interfaces: [], bridges: [{}]}}", all.join(", "))
    };
    check(&bridges(90), &bridges(91), "more than 90");
}
