//! The requests against a real kernel, each test in a thread with a network namespace of its own.
//!
//! Needs root; without it a test says so and is skipped. Nothing outside the namespace is touched.

use std::os::fd::AsRawFd;

use nix::sched::{CloneFlags, unshare};
use orlop_netlink::link::Link;
use orlop_netlink::route::Route;
use orlop_netlink::{NetlinkError, Socket, address, link, nft, route};

/// Runs it in a namespace of its own.
fn alone(test: impl FnOnce(&mut Socket) + Send + 'static) {
    let thread = std::thread::spawn(|| {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            eprintln!("skipped: no network namespace without root");
            return;
        }
        test(&mut Socket::route().expect("a socket"));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn get(socket: &mut Socket, name: &str) -> Link {
    let bodies = socket.ask(link::get(name), link::NEWLINK).expect("the link is there");
    link::parse(&bodies[0]).expect("a link")
}

#[test]
fn a_pair_with_one_end_at_a_bridge_and_the_other_elsewhere() {
    alone(|host| {
        let mac = [2, 0, 0, 0, 0, 7];
        host.request(link::create_bridge("br0", Some(1400), mac)).expect("a bridge");
        let bridge = get(host, "br0");
        assert_eq!((bridge.kind.as_str(), bridge.up, bridge.mac), ("bridge", true, Some(mac)));
        let again = host.request(link::create_bridge("br0", None, mac));
        assert_eq!(again, Err(NetlinkError::Refused(nix::errno::Errno::EEXIST)));

        unshare(CloneFlags::CLONE_NEWNET).expect("a second namespace");
        let there = std::fs::File::open("/proc/thread-self/ns/net").expect("its file");
        let mut pod = Socket::route().expect("a socket");
        let pod_mac = [2, 0, 0, 0, 0, 9];
        host.request(link::create_veth(&link::Veth {
            name: "veth0",
            master: bridge.index,
            mtu: None,
            peer: "eth0",
            namespace: there.as_raw_fd(),
            mac: Some(pod_mac),
        }))
        .expect("a pair");
        let (port, inside) = (get(host, "veth0"), get(&mut pod, "eth0"));
        assert_eq!((port.kind.as_str(), port.master, port.up), ("veth", Some(bridge.index), true));
        assert_eq!((port.peer, inside.peer), (Some(inside.index), Some(port.index)));
        assert_eq!((inside.mac, inside.up), (Some(pod_mac), false));
        host.request(link::set_port(port.index, true, true)).expect("the port's settings");

        let mut changes = Socket::link_changes().expect("a socket");
        pod.request(link::set_up(inside.index)).expect("up");
        assert!(changes.changed(1000).expect("heard"));
        assert!(get(&mut pod, "eth0").up);
        pod.request(link::delete("eth0")).expect("gone");
        assert!(host.ask(link::get("veth0"), link::NEWLINK).is_err(), "the other end goes, too");
    });
}

#[test]
fn addresses_and_routes_come_back_as_they_were_given() {
    alone(|socket| {
        socket.request(link::create_bridge("br0", None, [2, 0, 0, 0, 0, 7])).expect("a bridge");
        let index = get(socket, "br0").index;
        for (ip, prefix, gateway) in [("10.88.0.2", 16, "10.88.0.1"), ("fd00::2", 64, "fd00::1")] {
            let (ip, gateway) = (ip.parse().expect("an address"), gateway.parse().expect("an address"));
            socket.request(address::add(index, ip, prefix)).expect("added");
            assert!(socket.request(address::add(index, ip, prefix)).is_err(), "once");
            let bodies = socket.ask(address::dump(address::family(ip)), address::NEWADDR).expect("a list");
            let all: Vec<_> = bodies.iter().filter_map(|b| address::parse(b)).collect();
            assert!(all.iter().any(|a| (a.index, a.ip, a.prefix) == (index, ip, prefix)), "{all:?}");
            let to = if ip.is_ipv4() { "0.0.0.0" } else { "::" };
            let wanted = Route {
                to: to.parse().expect("an address"),
                prefix: 0,
                gateway: Some(gateway),
                index,
                priority: 77,
                table: Some(254),
                scope: Some(0),
                mtu: 1300,
                advmss: 0,
            };
            socket.request(route::add(&wanted)).expect("a route");
            let bodies = socket.ask(route::dump(address::family(ip)), route::NEWROUTE).expect("a list");
            let all: Vec<_> = bodies.iter().filter_map(|b| route::parse(b)).collect();
            assert!(all.contains(&Route { mtu: 0, ..wanted }), "{all:?}");
            socket.request(address::delete(index, ip, prefix)).expect("taken away");
            assert!(socket.request(address::delete(index, ip, prefix)).is_err(), "once");
        }
    });
}

#[test]
fn the_rule_is_taken_twice() {
    alone(|_| {
        let networks =
            [("10.88.0.0", 16), ("fd00::", 64)].map(|(ip, prefix)| (ip.parse().expect("ip"), prefix));
        for _ in 0..2 {
            let sent =
                Socket::netfilter().and_then(|mut s| s.transaction(nft::masquerade("pods", &networks)));
            if let Err(e) = sent {
                let missing = [nix::errno::Errno::ENOENT, nix::errno::Errno::EOPNOTSUPP];
                assert!(missing.contains(&e.errno()), "{e}");
                eprintln!("skipped: no nftables in this kernel ({e})");
                return;
            }
        }
        let Ok(listed) = std::process::Command::new("nft").args(["list", "ruleset"]).output() else {
            eprintln!("skipped: no nft to list the rules with");
            return;
        };
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        for rule in [
            "ip saddr 10.88.0.0/16 ip daddr != 10.88.0.0/16 ip daddr != 224.0.0.0/4 masquerade",
            "ip6 saddr fd00::/64 ip6 daddr != fd00::/64 ip6 daddr != ff00::/8 masquerade",
        ] {
            assert_eq!(text.matches(rule).count(), 1, "{text}");
        }
    });
}
