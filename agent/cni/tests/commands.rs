//! The plugin's program against a real kernel, as a container runtime calls it: each test on a node of its own, which
//! is a network namespace. Needs root; without it a test says so and is skipped.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Pod, ended, interfaces, on_a_node};

fn with_result(config: &str, result: &Value) -> String {
    let mut config: Value = serde_json::from_str(config).expect("JSON");
    config["prevResult"] = result.clone();
    config.to_string()
}

fn code(outcome: support::Outcome) -> u64 {
    outcome.expect_err("refused")["code"].as_u64().expect("a code")
}

/// One packet from the pod to an address of this thread's namespace.
fn reaches(pod: &Pod, local: &str) {
    let here = UdpSocket::bind(format!("{local}:0")).expect("bound");
    here.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    let to = here.local_addr().expect("its address");
    pod.inside(move || {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        UdpSocket::bind(any).and_then(|socket| socket.send_to(b"hello", to)).expect("sent");
    });
    let mut buffer = [0; 8];
    let (length, _) = here.recv_from(&mut buffer).expect("received");
    assert_eq!(&buffer[..length], b"hello");
}

#[test]
fn a_pod_comes_is_checked_and_goes() {
    on_a_node(|node| {
        let (config, pod) = (node.network(""), Pod::new());
        let result = node.bridge("ADD", &config, "c1", &pod).expect("attached");
        let ips: Vec<&str> =
            result["ips"].as_array().expect("ips").iter().filter_map(|ip| ip["address"].as_str()).collect();
        assert_eq!(ips, ["10.1.0.2/24", "fd00:1::2/64"]);
        assert_eq!(
            result["routes"],
            json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "::/0", "gw": "fd00:1::1"}])
        );
        assert_eq!(pod.inside(interfaces), ["eth0"]);
        assert_eq!(result["interfaces"][2]["sandbox"], pod.path());
        reaches(&pod, "10.1.0.1");
        let forwarding = fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding").expect("a setting");
        assert_eq!(forwarding.trim(), "1");
        let port = result["interfaces"][1]["name"].as_str().expect("a name").to_owned();
        let known = pod.inside(|| fs::read_to_string("/proc/thread-self/net/if_inet6").expect("addresses"));
        // Prefix length 64, global scope, flags: permanent and not tentative.
        assert!(known.contains("fd000001000000000000000000000002 02 40 00 80"), "{known}");

        let checked = with_result(&config, &result);
        node.bridge("CHECK", &checked, "c1", &pod).expect("as it was");
        let mut other = result.clone();
        other["ips"][0]["address"] = json!("10.1.0.9/24");
        assert_eq!(code(node.bridge("CHECK", &with_result(&config, &other), "c1", &pod)), 102);
        assert_eq!(
            code(node.bridge("ADD", &config, "c2", &pod)),
            102,
            "the interface is another container's"
        );
        assert_eq!(node.reserved().len(), 2, "what the refused one had is given back");

        for _ in 0..2 {
            node.bridge("DEL", &config, "c1", &pod).expect("gone, and once more");
        }
        assert_eq!((pod.inside(interfaces), node.reserved()), (vec![], vec![]));
        assert!(!interfaces().contains(&port));
        assert_eq!(code(node.bridge("CHECK", &checked, "c1", &pod)), 102);
    });
}

#[test]
fn many_at_once_get_addresses_of_their_own() {
    on_a_node(|node| {
        let config = node.network("");
        let pods: Vec<Pod> = (0..12).map(|_| Pod::new()).collect();
        let start =
            |(n, pod): (usize, &Pod)| node.start("bridge", "ADD", &config, &format!("c{n}"), &pod.path());
        let children: Vec<_> = pods.iter().enumerate().map(start).collect();
        let results: Vec<Value> = children.into_iter().map(|c| ended(c).expect("attached")).collect();
        let ips: BTreeSet<&str> = results.iter().filter_map(|r| r["ips"][0]["address"].as_str()).collect();
        let bridges: BTreeSet<&str> =
            results.iter().filter_map(|r| r["interfaces"][0]["mac"].as_str()).collect();
        assert_eq!((ips.len(), bridges.len(), node.reserved().len()), (12, 1, 24));
        reaches(&pods[7], "10.1.0.1");
        let valid = r#","cni.dev/valid-attachments":[{"containerID":"c3","ifname":"eth0"}]"#;
        node.call("bridge", "GC", &node.network(valid), "", "").expect("collected");
        assert_eq!(node.reserved().len(), 2);
        node.call("bridge", "STATUS", &config, "", "").expect("ready");
    });
}

#[test]
fn a_kill_leaves_what_the_next_call_mends() {
    on_a_node(|node| {
        let config = node.network("");
        for round in 0..24 {
            let (pod, id) = (Pod::new(), format!("c{round}"));
            let mut child = node.start("bridge", "ADD", &config, &id, &pod.path());
            let seen = |what: &str| match what {
                "reservation" => !node.reserved().is_empty(),
                "pair" => interfaces().iter().any(|name| name.starts_with("veth")),
                _ => true,
            };
            let moment = ["reservation", "pair", "start"][round % 3];
            while !seen(moment) && child.try_wait().expect("asked").is_none() {
                std::hint::spin_loop();
            }
            child.kill().and_then(|()| child.wait()).expect("killed");
            if round % 2 == 0 {
                let again = node.bridge("ADD", &config, &id, &pod);
                // The killed one may have finished.
                assert!(again.is_ok(), "{moment}: {again:?}");
                reaches(&pod, "10.1.0.1");
                assert_eq!(node.reserved().len(), 2, "{moment}");
            }
            node.bridge("DEL", &config, &id, &pod).expect(moment);
            assert_eq!((pod.inside(interfaces), node.reserved()), (vec![], vec![]), "{moment}");
            assert_eq!(interfaces().iter().filter(|name| name.starts_with("veth")).count(), 0, "{moment}");
        }
    });
}

#[test]
fn reservations_of_host_local_stay() {
    on_a_node(|node| {
        let dir = node.data().join("net");
        fs::create_dir_all(&dir).expect("directory");
        fs::write(dir.join("10.1.0.2"), "other\r\neth0").expect("fixture");
        fs::write(dir.join("last_reserved_ip.1"), "fd00:1::44").expect("fixture");
        let pod = Pod::new();
        let result = node.bridge("ADD", &node.network(""), "c1", &pod).expect("attached");
        assert_eq!(result["ips"][0]["address"], "10.1.0.3/24");
        assert_eq!(result["ips"][1]["address"], "fd00:1::45/64");
        assert_eq!(fs::read_to_string(dir.join("10.1.0.3")).expect("a file"), "c1\r\neth0");
        // The namespace was removed first.
        let gone = format!("{}-gone", pod.path());
        node.call("bridge", "DEL", &node.network(""), "c1", &gone).expect("given back");
        node.call("bridge", "DEL", &node.network(""), "c1", "").expect("and without a namespace");
        assert_eq!(node.reserved(), ["10.1.0.2"]);
        let alone = node.network("").replace("bridge\",\"bridge\":\"br0\"", "macvlan\"");
        let result = node.call("host-local", "ADD", &alone, "c2", &pod.path()).expect("addresses");
        assert_eq!((result.get("interfaces"), &result["ips"][0]["address"]), (None, &json!("10.1.0.4/24")));
        node.call("host-local", "CHECK", &alone, "c2", &pod.path()).expect("reserved");
        node.call("host-local", "DEL", &alone, "c2", &pod.path()).expect("given back");
        assert_eq!(code(node.call("host-local", "CHECK", &alone, "c2", &pod.path())), 102);
    });
}

#[test]
fn other_ranges_want_force() {
    on_a_node(|node| {
        let (first, second) = (Pod::new(), Pod::new());
        node.bridge("ADD", &node.network(""), "c1", &first).expect("attached");
        let moved = node.network("").replace("10.1.0", "10.2.0").replace("fd00:1:", "fd00:2:");
        let refused = node.bridge("ADD", &moved, "c2", &second).expect_err("in the way");
        assert!(refused["msg"].as_str().is_some_and(|m| m.contains("forceAddress")), "{refused}");
        assert_eq!((second.inside(interfaces), node.reserved().len()), (vec![], 2));
        let forced = moved.replace("\"hairpinMode\"", "\"forceAddress\":true,\"hairpinMode\"");
        node.bridge("ADD", &forced, "c2", &second).expect("attached");
        reaches(&second, "10.2.0.1");
        let full = forced.replace("10.2.0.0/24", "10.2.0.0/30");
        let third = node.bridge("ADD", &full, "c3", &Pod::new()).expect("attached");
        assert_eq!(third["ips"][0]["address"], "10.2.0.2/30", "the only one left");
        assert_eq!(code(node.bridge("ADD", &full, "c4", &Pod::new())), 101);
        assert_eq!(code(node.call("bridge", "STATUS", &full, "", "")), 50);
    });
}

#[test]
fn what_is_not_known_here_is_passed_on() {
    on_a_node(|node| {
        let pod = Pod::new();
        let tagged = node.network(",\"vlan\":7");
        let refused = node.bridge("ADD", &tagged, "c1", &pod).expect_err("nobody knows it");
        assert_eq!((refused["code"].as_u64(), refused["cniVersion"].as_str()), (Some(2), Some("1.1.0")));
        assert!(refused["msg"].as_str().is_some_and(|m| m.contains("vlan")), "{refused}");
        let more = node.plugins().join("more");
        fs::create_dir(&more).expect("directory");
        for name in ["bridge", "portmap"] {
            let script =
                format!("#!/bin/sh\nread -r line\necho \"{{\\\"by\\\":\\\"$CNI_COMMAND {name}\\\"}}\"\n");
            fs::write(more.join(name), script).expect("fixture");
            fs::set_permissions(more.join(name), fs::Permissions::from_mode(0o755)).expect("executable");
        }
        assert_eq!(node.bridge("ADD", &tagged, "c1", &pod).expect("passed on")["by"], "ADD bridge");
        let ports = |mappings: &str| {
            format!(
                r#"{{"cniVersion":"1.0.0","name":"net","prevResult":{{"cniVersion":"1.0.0"}},"runtimeConfig":{{"portMappings":{mappings}}}}}"#
            )
        };
        let call = |command: &str, mappings: &str| {
            node.call("portmap", command, &ports(mappings), "c1", &pod.path())
        };
        assert_eq!(call("ADD", "[]").expect("answered"), json!({"cniVersion": "1.0.0"}));
        assert_eq!(call("DEL", "[]").expect("answered"), Value::Null);
        for command in ["ADD", "DEL", "CHECK"] {
            let by = call(command, r#"[{"hostPort":80}]"#).expect("passed on");
            assert_eq!(by["by"], format!("{command} portmap"));
        }
    });
}

#[test]
fn host_ports_are_asked_for_in_the_same_call() {
    on_a_node(|node| {
        let more = node.plugins().join("more");
        fs::create_dir(&more).expect("directory");
        let asked = node.plugins().join("asked");
        let script = format!(
            "#!/bin/sh\nread -r line\necho \"$CNI_COMMAND $line\" >>{}\n\
             [ \"$CNI_COMMAND\" != ADD ] || echo '{{\"by\":\"portmap\"}}'\n",
            asked.display()
        );
        fs::write(more.join("portmap"), script).expect("fixture");
        fs::set_permissions(more.join("portmap"), fs::Permissions::from_mode(0o755)).expect("executable");
        let network = |mappings: &str| {
            let ours = r#","portmap":{"backend":"nftables"},"runtimeConfig":{"portMappings":"#;
            node.network(&format!("{ours}{mappings}}}"))
        };
        let (plain, ported) = (Pod::new(), Pod::new());
        let (without, with) = (network("[]"), network(r#"[{"hostPort":80}]"#));
        let result = node.bridge("ADD", &without, "c1", &plain).expect("attached");
        assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
        assert_eq!(node.bridge("ADD", &with, "c2", &ported).expect("attached")["by"], "portmap");
        for (config, id, pod) in [(&with, "c2", &ported), (&without, "c1", &plain)] {
            node.bridge("DEL", config, id, pod).expect("removed");
            assert_eq!(pod.inside(interfaces), Vec::<String>::new());
        }
        assert_eq!(node.reserved(), Vec::<String>::new());
        // Nobody was asked for the pod without host ports.
        let asked = fs::read_to_string(asked).expect("asked");
        let [add, del] = asked.lines().collect::<Vec<_>>()[..] else { panic!("{asked}") };
        let question = |line: &str, command: &str| -> Value {
            serde_json::from_str(line.strip_prefix(command).expect(command)).expect("JSON")
        };
        let (add, del) = (question(add, "ADD "), question(del, "DEL "));
        assert_eq!(add["prevResult"]["ips"][0]["address"], "10.1.0.3/24");
        for question in [add, del] {
            assert_eq!(question["runtimeConfig"], json!({"portMappings": [{"hostPort": 80}]}));
            assert_eq!((&question["type"], &question["backend"]), (&json!("portmap"), &json!("nftables")));
        }
    });
}

#[test]
fn without_its_host_ports_a_container_gets_nothing() {
    on_a_node(|node| {
        let network = node.network(
            r#","portmap":{"backend":"nftables"},"runtimeConfig":{"portMappings":[{"hostPort":80}]}"#,
        );
        let pod = Pod::new();
        assert_eq!(code(node.bridge("ADD", &network, "c1", &pod)), 2, "nobody does host ports");
        assert_eq!((pod.inside(interfaces), node.reserved()), (vec![], vec![]));

        let more = node.plugins().join("more");
        fs::create_dir(&more).expect("directory");
        let asked = node.plugins().join("asked");
        let script = format!(
            "#!/bin/sh\nread -r line\necho \"$CNI_COMMAND $line\" >>{}\necho '{{\"code\":11}}'\nexit 1\n",
            asked.display()
        );
        fs::write(more.join("portmap"), script).expect("fixture");
        fs::set_permissions(more.join("portmap"), fs::Permissions::from_mode(0o755)).expect("executable");
        // The answer is portmap's to ADD alone, although its DEL failed, too.
        assert_eq!(code(node.bridge("ADD", &network, "c1", &pod)), 11);
        assert_eq!((pod.inside(interfaces), node.reserved()), (vec![], vec![]));
        let asked = fs::read_to_string(asked).expect("asked");
        let commands: Vec<&str> = asked.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(commands, ["ADD", "DEL"]);

        // A DEL that portmap refuses removes nothing, so that the runtime comes again for all of it.
        let plain = node.network("");
        node.bridge("ADD", &plain, "c1", &pod).expect("attached");
        assert_eq!(code(node.bridge("DEL", &network, "c1", &pod)), 11);
        assert_eq!((pod.inside(interfaces), node.reserved().len()), (vec!["eth0".to_owned()], 2));
    });
}

#[test]
fn calls_that_make_no_sense() {
    on_a_node(|node| {
        let (config, pod) = (node.network(""), Pod::new());
        let version = node.call("bridge", "VERSION", r#"{"cniVersion":"0.4.0"}"#, "", "").expect("told");
        assert_eq!(version["supportedVersions"].as_array().map(Vec::len), Some(5));
        for (command, config, id, netns, want) in [
            ("JUMP", config.as_str(), "c1", pod.path(), 4),
            ("ADD", &config, "../c1", pod.path(), 4),
            ("ADD", &config, "c1", String::new(), 4),
            ("ADD", &config, "c1", "/nowhere".into(), 3),
            ("ADD", "{", "c1", pod.path(), 6),
            ("ADD", "{}", "c1", pod.path(), 1),
            ("ADD", &config.replace("10.1.0.0/24", "ten"), "c1", pod.path(), 7),
            ("GC", &config.replace("1.1.0", "1.0.0"), "", String::new(), 1),
            ("CHECK", &config, "c1", pod.path(), 102),
        ] {
            let refused = node.call("bridge", command, config, id, &netns);
            assert_eq!(code(refused), want, "{command} {config} {id} {netns}");
        }
        let own = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
        for command in ["ADD", "DEL"] {
            assert_eq!(code(node.call("bridge", command, &config, "c1", &own)), 8, "{command}");
        }
        assert_eq!((node.reserved(), pod.inside(interfaces)), (vec![], vec![]));
    });
}

/// Under which address a packet of the pod arrives at an address of another namespace.
fn seen_as(pod: &Pod, outside: &Pod, at: &'static str) -> String {
    let there = outside.inside(move || UdpSocket::bind(at).expect("bound"));
    there.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    let to = there.local_addr().expect("its address");
    pod.inside(move || {
        UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"hello", to)).expect("sent")
    });
    let (_, from) = there.recv_from(&mut [0; 8]).expect("received");
    from.ip().to_string()
}

#[test]
fn pods_leave_under_the_nodes_address_where_that_is_wanted() {
    on_a_node(|node| {
        let (pod, other, outside) = (Pod::new(), Pod::new(), Pod::new());
        let lan = format!(
            r#"{{"cniVersion":"1.0.0","name":"lan","bridge":"lan0","isGateway":true,"ipam":{{"type":"host-local",
            "dataDir":"{}","subnet":"192.0.2.0/24","routes":[{{"dst":"10.1.0.0/24"}}]}}}}"#,
            node.data().display()
        );
        node.bridge("ADD", &lan, "lan", &outside).expect("attached");
        let plain = node.network("");
        node.bridge("ADD", &plain, "c1", &pod).expect("attached");
        assert_eq!(seen_as(&pod, &outside, "192.0.2.2:7000"), "10.1.0.2");
        match node.bridge("ADD", &node.network(",\"ipMasq\":true"), "c2", &other) {
            Err(refused)
                if refused["msg"]
                    .as_str()
                    .is_some_and(|m| m.contains("NOTSUPP") || m.contains("NOSUPPORT")) =>
            {
                eprintln!("skipped: no nftables in this kernel");
            }
            attached => {
                attached.expect("attached");
                assert_eq!(seen_as(&other, &outside, "192.0.2.2:7000"), "192.0.2.1");
                assert_eq!(seen_as(&pod, &other, "10.1.0.3:7000"), "10.1.0.2", "not among pods");
            }
        }
    });
}
