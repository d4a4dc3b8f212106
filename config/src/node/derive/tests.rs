//! The files as they are written.

use super::*;
use crate::node::tests::source;
use crate::node::{Effective, load};

const MACHINE_ID: &str = "0123456789abcdef0123456789abcdef";

fn effective(body: &str) -> Effective {
    let effective = load(&[source("esp", body)], &[]);
    assert_eq!(effective.problems, [], "{body}");
    effective
}

fn file<'a>(files: &'a [RunFile], path: &str) -> &'a RunFile {
    files.iter().find(|f| f.path == path).unwrap_or_else(|| panic!("{path} is not among {files:?}"))
}

#[test]
fn a_node_that_was_told_nothing() {
    let files = run_files(&load(&[], &[]), MACHINE_ID);
    let (networks, others): (Vec<&RunFile>, Vec<&RunFile>) =
        files.iter().partition(|f| f.path.starts_with("/run/systemd/network/"));
    let paths: Vec<&str> = others.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/run/orlop/hostname",
            "/run/orlop/hosts",
            "/run/orlop/kubelet.yaml",
            "/run/orlop/agent.env",
            "/run/orlop/node-config.json",
        ]
    );
    assert_eq!(files[0].text, "orlop-01234567\n");
    assert_eq!(
        files[1].text,
        "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 orlop-01234567\n"
    );
    assert_eq!(files[3].text, "ORLOP_AGENT_ARGS=--hostname-override=orlop-01234567\n");
    // In the order in which networkd looks: one interface each, then all others.
    let names: Vec<&str> =
        networks.iter().filter_map(|f| f.path.strip_prefix("/run/systemd/network/10-orlop")).collect();
    let single: Vec<String> = (2..10).map(|index| format!("-index{index}.network")).collect();
    assert_eq!(names[..8], single);
    assert_eq!(names[8..], [".network"]);
    assert!(networks.is_sorted_by_key(|f| f.path.as_str()));
    let learned = |metric: u32| {
        format!(
            "[Network]\nDHCP=yes\n\n[DHCPv4]\nRouteMetric={metric}\nClientIdentifier=mac\nUseHostname=no\nUseMTU=yes\n\
             UseDomains=yes\n\n[DHCPv6]\nDUIDType=link-layer\nUseHostname=no\nUseDomains=yes\n\n\
             [IPv6AcceptRA]\nRouteMetric={metric}\nUseDomains=yes\n"
        )
    };
    let matched = "[Match]\nName=en* eth*\nType=ether\nKind=!*\n";
    for (n, network) in (0..).zip(&networks[..8]) {
        assert_eq!(
            network.text,
            format!("{matched}Property=IFINDEX={}\n\n{}", n + 2, learned(100 + n)),
            "{network:?}"
        );
    }
    assert_eq!(networks[8].text, format!("{matched}\n{}", learned(108)));
}

#[test]
fn the_port_of_the_management_api_is_open_with_an_administrator_or_for_the_cluster() {
    const OPENS: &str = "/run/systemd/system/sockets.target.d/10-orlop-api.conf";
    assert!(run_files(&effective(""), MACHINE_ID).iter().all(|file| file.path != OPENS));
    let cluster = run_files(&effective("api: {clusterIdentities: true}"), MACHINE_ID);
    assert!(cluster.iter().any(|file| file.path == OPENS));
    let admin = "api: {admins: [{name: a, key: 'ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE='}]}";
    let files = run_files(&effective(admin), MACHINE_ID);
    let opens = file(&files, OPENS);
    assert_eq!((opens.text.as_str(), opens.mode), ("[Unit]\nWants=orlop-node-api-tcp.socket\n", 0o644));
}

#[test]
fn the_agents_file_reads_back_to_the_same_configuration() {
    for body in [
        "",
        "kubelet: {maxPods: 5, evictionHard: {memory.available: 5%}, resolvConf: '', port: 9}\nnode: {name: n}",
    ] {
        let effective = effective(body);
        let files = run_files(&effective, MACHINE_ID);
        let written = file(&files, "/run/orlop/kubelet.yaml");
        assert_eq!(written.mode, 0o600, "headers of staticPodURL are secret");
        let read = kubelet::load_kubelet_config(&written.text, &written.path).expect("own file");
        assert_eq!(read, effective.kubelet);
    }
}

#[test]
fn credential_providers_are_the_agents() {
    let files = run_files(
        &effective(
            "registries: {credentialProviders: [{name: ecr, matchImages: ['*.r.example'], defaultCacheDuration: 1h, \
             apiVersion: credentialprovider.kubelet.k8s.io/v1, env: [{name: A, value: b}]}]}",
        ),
        MACHINE_ID,
    );
    let written = file(&files, CREDENTIAL_PROVIDERS_FILE);
    assert_eq!(written.mode, 0o600, "the environment may be secret");
    let read = crate::credential_provider::parse(&[(written.path.clone(), written.text.clone())], true);
    let read = read.expect("own file");
    assert_eq!((read.len(), read[0].name.as_str(), read[0].env[0].value.as_str()), (1, "ecr", "b"));
    assert!(file(&files, "/run/orlop/agent.env").text.contains(
        " --image-credential-provider-config=/run/orlop/credential-providers.yaml \
         --image-credential-provider-bin-dir=/var/lib/kubelet/credential-providers"
    ));
}

#[test]
fn a_machine_that_stops_waits_for_its_pods() {
    let periods = |body: &str| {
        let effective = effective(body);
        assert_eq!(effective.problems, [], "{body}");
        let kubelet = effective.kubelet;
        let seconds = |period: crate::Duration| period.to_std().as_secs();
        let by_priority = kubelet.shutdown_grace_period_by_pod_priority.len();
        let critical = kubelet.shutdown_grace_period_critical_pods;
        (seconds(kubelet.shutdown_grace_period), seconds(critical), by_priority)
    };
    assert_eq!(periods(""), (30, 10, 0));
    assert_eq!(periods("kubelet: {shutdownGracePeriod: 5s}"), (5, 0, 0));
    assert_eq!(periods("kubelet: {shutdownGracePeriod: 0s}"), (0, 0, 0), "not at all");
    let by_priority = "{priority: 0, shutdownGracePeriodSeconds: 5}";
    assert_eq!(
        periods(&format!("kubelet: {{shutdownGracePeriodByPodPriority: [{by_priority}]}}")),
        (0, 0, 1)
    );
}

#[test]
fn dependent_defaults_hold_for_the_embedded_configuration() {
    let effective = effective("kubelet: {maxParallelImagePulls: 4, nodeStatusUpdateFrequency: 7s}");
    assert!(!effective.kubelet.serialize_image_pulls);
    assert_eq!(effective.kubelet.node_status_report_frequency, crate::Duration::from_secs(7));
}

#[test]
fn joining() {
    let token = "abcdef.0123456789abcdef";
    let body = format!(
        "join: {{server: 'https://api:6443', token: {token}, caData: YWJj}}\nlabels: {{example.com/a: b, c: ''}}\n"
    );
    let files = run_files(&effective(&body), MACHINE_ID);
    let join = file(&files, JOIN_FILE);
    assert_eq!(join.mode, 0o600);
    assert!(join.text.contains(token));
    let env = &file(&files, "/run/orlop/agent.env").text;
    assert!(
        env.ends_with(
            " --join=/run/orlop/join.yaml --kubeconfig=/var/lib/kubelet/kubeconfig \
             --node-labels=c=,example.com/a=b\n"
        ),
        "{env}"
    );
    let elsewhere: Vec<&RunFile> =
        files.iter().filter(|f| f.path != JOIN_FILE && f.text.contains("0123456789abcdef")).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    // The cluster asks the node for logs; a node without a cluster has no API server that knows callers.
    assert!(effective(&body).kubelet.enable_server);
    assert!(!effective(&format!("{body}kubelet: {{enableServer: false}}\n")).kubelet.enable_server);
    assert!(!effective("").kubelet.enable_server);
    // Without anything to know the server by there is nothing to join.
    let alone = load(&[source("fw-cfg", "join: {server: 'https://api:6443'}")], &[]);
    assert!(!alone.kubelet.enable_server);
    let files = run_files(&alone, MACHINE_ID);
    assert!(files.iter().all(|f| f.path != JOIN_FILE && !f.text.contains("--join")));
}

#[test]
fn a_bridge_for_a_clusters_pods_is_asked_for() {
    let join = "join: {server: 'https://api:6443', caData: YWJj}\n";
    let files = |body: &str| run_files(&effective(body), MACHINE_ID);
    let bridge = files(&format!("{join}network: {{podNetwork: bridge}}\n"));
    assert_eq!(
        file(&bridge, POD_NETWORK_FILE).text,
        "version = 3\n\n[plugins.'io.containerd.cri.v1.runtime'.cni]\n\
         conf_template = '/usr/share/orlop/pod-network.conflist'\n"
    );
    // The cluster's add-on brings it, or there is no cluster.
    for body in [join.to_owned(), "network: {podNetwork: bridge}\n".to_owned()] {
        assert!(files(&body).iter().all(|f| f.path != POD_NETWORK_FILE), "{body}");
    }
}

#[test]
fn interfaces() {
    let effective = effective(
        "network:\n  interfaces:\n  - macAddress: '52:54:00:12:34:56'\n    addresses: [192.0.2.10/24, 'fd00::a/64']\n    \
         gateway: 192.0.2.1\n    gateway6: 'fd00::1'\n    dns: [192.0.2.53]\n    search: [example.com, a.b]\n    mtu: 9000\n  \
         - name: eth1\n    dhcp: true\n    dns: [1.1.1.1]\n  - name: eth2\n    dhcp: false\n",
    );
    let files = networks(&effective.config);
    assert_eq!(files.len(), 3, "none is a pattern");
    assert_eq!(files[0].path, "/run/systemd/network/10-orlop.network");
    assert_eq!(
        files[0].text,
        "[Match]\nMACAddress=52:54:00:12:34:56\nType=ether\nKind=!*\n\n[Link]\nMTUBytes=9000\n\n[Network]\nDHCP=no\n\
         Address=192.0.2.10/24\nAddress=fd00::a/64\nDNS=192.0.2.53\nDomains=example.com a.b\n\n\
         [Route]\nGateway=192.0.2.1\nMetric=100\n\n[Route]\nGateway=fd00::1\nMetric=100\n\n\
         [IPv6AcceptRA]\nRouteMetric=100\nUseDomains=no\nUseDNS=no\n"
    );
    assert_eq!(
        files[1].text,
        "[Match]\nName=eth1\n\n[Network]\nDHCP=yes\nDNS=1.1.1.1\n\n[DHCPv4]\nRouteMetric=110\nClientIdentifier=mac\n\
         UseHostname=no\nUseMTU=yes\nUseDomains=yes\nUseDNS=no\n\n\
         [DHCPv6]\nDUIDType=link-layer\nUseHostname=no\nUseDomains=yes\nUseDNS=no\n\n\
         [IPv6AcceptRA]\nRouteMetric=110\nUseDomains=yes\nUseDNS=no\n"
    );
    assert_eq!(
        files[2].text,
        "[Match]\nName=eth2\n\n[Network]\nDHCP=no\n\n[IPv6AcceptRA]\nRouteMetric=120\nUseDomains=yes\n"
    );
    assert_eq!(
        resolv_conf(&effective.config),
        "# Made from the node's configuration.\nnameserver 192.0.2.53\nnameserver 1.1.1.1\nsearch example.com a.b\n"
    );
    assert_eq!(resolv_conf(&NodeConfig::default()), "# Made from the node's configuration.\n");
}

#[test]
fn no_search_domains_at_all() {
    let effective = effective("network: {interfaces: [{name: eth0, dns: [1.1.1.1], search: [.]}]}");
    let text = &networks(&effective.config)[0].text;
    assert_eq!(text.matches("\nUseDomains=no\n").count(), 3, "{text}");
    assert!(!text.contains("\nDomains="), "{text}");
    assert_eq!(resolv_conf(&effective.config), "# Made from the node's configuration.\nnameserver 1.1.1.1\n");
}

#[test]
fn no_two_interfaces_of_a_boot_have_routes_of_one_metric() {
    let effective = effective(
        "network: {interfaces: [{name: eth9}, {name: 'ens* enp*'}, {name: 'eth*', dhcp: true, addresses: [10.0.0.1/8]}]}",
    );
    let files = networks(&effective.config);
    let metrics: Vec<&str> =
        files.iter().filter_map(|f| f.text.split("[DHCPv4]\nRouteMetric=").nth(1)?.lines().next()).collect();
    let distinct: std::collections::BTreeSet<&&str> = metrics.iter().collect();
    assert_eq!((files.len(), metrics.len(), distinct.len()), (19, 19, 19), "{metrics:?}");
    assert!(files.is_sorted_by_key(|f| f.path.as_str()));
}

#[test]
fn gateways_beyond_the_prefix() {
    let text = |interface: &str| {
        let effective = effective(&format!("network: {{interfaces: [{{name: eth0, {interface}}}]}}"));
        let text = networks(&effective.config).swap_remove(0).text;
        let routes = text.split("\n\n").filter_map(|part| part.strip_prefix("[Route]\n"));
        routes.collect::<Vec<_>>().join("; ").replace('\n', " ")
    };
    let table = [
        ("addresses: [10.0.2.15/32], gateway: 10.0.2.2", "Gateway=10.0.2.2 GatewayOnLink=yes Metric=100"),
        ("addresses: [10.0.2.15/24], gateway: 10.0.2.2", "Gateway=10.0.2.2 Metric=100"),
        ("addresses: [10.9.0.1/24, 10.0.2.15/24], gateway: 10.0.2.2", "Gateway=10.0.2.2 Metric=100"),
        (
            "addresses: ['2001:db8::1/128'], gateway6: '2001:db8:1::1'",
            "Gateway=2001:db8:1::1 GatewayOnLink=yes Metric=100",
        ),
        // Link-local ones are on the link; where the network gives addresses, it gives their prefix.
        ("addresses: ['2001:db8::1/128'], gateway6: 'fe80::1'", "Gateway=fe80::1 Metric=100"),
        ("addresses: [10.0.2.15/24], gateway6: 'fd00::1'", "Gateway=fd00::1 Metric=100"),
        ("dhcp: true, gateway: 10.0.2.2", "Gateway=10.0.2.2 Metric=100"),
        (
            "addresses: [10.0.2.15/24], routes: [{to: 10.1.0.0/16, via: 10.0.2.9}, {to: 10.2.0.0/16, via: 10.0.3.1}, \
             {to: 10.3.0.0/16, via: 10.0.3.1, onLink: false}, {to: 10.4.0.0/16, metric: 5}, \
             {to: 0.0.0.0/0, via: 10.0.2.2, onLink: true, metric: 1}]",
            "Destination=10.1.0.0/16 Gateway=10.0.2.9 Metric=100; \
             Destination=10.2.0.0/16 Gateway=10.0.3.1 GatewayOnLink=yes Metric=100; \
             Destination=10.3.0.0/16 Gateway=10.0.3.1 Metric=100; Destination=10.4.0.0/16 Metric=5; \
             Destination=0.0.0.0/0 Gateway=10.0.2.2 GatewayOnLink=yes Metric=1",
        ),
    ];
    for (interface, want) in table {
        assert_eq!(text(interface), want, "{interface}");
    }
}

#[test]
fn kernel_time_and_registries() {
    let files = run_files(
        &effective(
            "kernel: {sysctls: {vm.swappiness: 10, net.ipv4.ip_local_port_range: 1024 65535}, modules: [a, b]}\n\
             time: {servers: [a.example, 192.0.2.1]}\n\
             registries: {mirrors: {docker.io: {endpoints: ['https://m:5000', 'http://n'], overridePath: true}, \
             r.example: {endpoints: ['https://only'], skipFallback: true}, _default: {endpoints: ['http://all']}}}",
        ),
        MACHINE_ID,
    );
    assert_eq!(
        file(&files, "/run/sysctl.d/90-orlop.conf").text,
        "net.ipv4.ip_local_port_range = 1024 65535\nvm.swappiness = 10\n"
    );
    assert_eq!(file(&files, "/run/modules-load.d/90-orlop.conf").text, "a\nb\n");
    assert_eq!(
        file(&files, "/run/systemd/timesyncd.conf.d/10-orlop.conf").text,
        "[Time]\nNTP=a.example 192.0.2.1\n"
    );
    let hosts = |host: &str| {
        file(&files, &format!("/var/lib/orlop/containerd/certs.d/{host}/hosts.toml")).text.clone()
    };
    assert_eq!(
        hosts("docker.io"),
        "# Made from the node's configuration.\nserver = \"https://registry-1.docker.io\"\n\n[host.\"https://m:5000\"]\n  capabilities = [\"pull\", \
         \"resolve\"]\n  override_path = true\n\n[host.\"http://n\"]\n  capabilities = [\"pull\", \"resolve\"]\n  \
         override_path = true\n"
    );
    assert_eq!(
        hosts("r.example"),
        "# Made from the node's configuration.\nserver = \"https://only\"\n\n[host.\"https://only\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
    );
    assert_eq!(
        hosts("_default"),
        "# Made from the node's configuration.\n\n[host.\"http://all\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
    );
}

const CERTIFICATE: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=";
const CERTIFICATE_TEXT: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const KEY: &str = "LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCkFBQUEKLS0tLS1FTkQgRUMgUFJJVkFURSBLRVktLS0tLQo=";

#[test]
fn certificates_of_registries() {
    let files = run_files(
        &effective(&format!(
            "registries: {{mirrors: {{'r.lan:5000': {{caData: {CERTIFICATE}, clientCertificateData: {CERTIFICATE}, \
             clientKeyData: {KEY}}}, docker.io: {{endpoints: ['https://m/v2/hub', 'http://n'], caData: {CERTIFICATE}, \
             skipFallback: true, overridePath: true}}, _default: {{caData: {CERTIFICATE}}}}}}}"
        )),
        MACHINE_ID,
    );
    let hosts = |host: &str| {
        file(&files, &format!("/var/lib/orlop/containerd/certs.d/{host}/hosts.toml")).text.clone()
    };
    assert_eq!(
        hosts("r.lan:5000"),
        "# Made from the node's configuration.\nserver = \"https://r.lan:5000\"\n\
         ca = \"/var/lib/orlop/containerd/certs.d/r.lan:5000/orlop-ca.pem\"\n\
         client = [[\"/var/lib/orlop/containerd/certs.d/r.lan:5000/orlop-client.pem\", \
         \"/var/lib/orlop/containerd/certs.d/r.lan:5000/orlop-client-key.pem\"]]\n"
    );
    // None of them for plain HTTP; the last endpoint stands for the registry, so it is asked in the same way.
    assert_eq!(
        hosts("docker.io"),
        "# Made from the node's configuration.\nserver = \"http://n\"\noverride_path = true\n\n\
         [host.\"https://m/v2/hub\"]\n  capabilities = [\"pull\", \"resolve\"]\n  override_path = true\n  \
         ca = \"/var/lib/orlop/containerd/certs.d/docker.io/orlop-ca.pem\"\n\n\
         [host.\"http://n\"]\n  capabilities = [\"pull\", \"resolve\"]\n  override_path = true\n"
    );
    assert_eq!(
        hosts("_default"),
        "# Made from the node's configuration.\nca = \"/var/lib/orlop/containerd/certs.d/_default/orlop-ca.pem\"\n"
    );
    // What is named is written before, and everything is known by its path.
    let dir = "/var/lib/orlop/containerd/certs.d/r.lan:5000";
    let written: Vec<&RunFile> = files.iter().filter(|f| f.path.starts_with(dir)).collect();
    assert_eq!(written.iter().map(|f| f.path.clone()).collect::<Vec<_>>(), hosts_file_paths("r.lan:5000"));
    for (file, mode) in written.iter().zip([0o644, 0o644, 0o600]) {
        assert_eq!(file.mode, mode, "{file:?}");
        assert_eq!(file.text == CERTIFICATE_TEXT, mode == 0o644, "{file:?}");
    }
}

#[test]
fn half_of_a_client_certificate_is_not_shown() {
    let body = format!("registries: {{mirrors: {{r.lan: {{caData: {CERTIFICATE}, clientKeyData: {KEY}}}}}}}");
    let effective = load(&[source("esp", &body)], &[]);
    assert_eq!(
        effective.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "effective: registries.mirrors.\"r.lan\": lacks clientCertificateData: the node shows these servers no \
          certificate"
        ]
    );
    let files = run_files(&effective, MACHINE_ID);
    let hosts = &file(&files, "/var/lib/orlop/containerd/certs.d/r.lan/hosts.toml").text;
    assert!(hosts.contains("ca = ") && !hosts.contains("client"), "{hosts}");
    assert!(files.iter().all(|f| !f.path.contains("client")));
}

#[test]
fn the_environment_of_containerd_and_agent() {
    let environment = |body: &str| {
        let files = run_files(&effective(body), MACHINE_ID);
        let written = files.iter().find(|f| f.path == ENVIRONMENT_FILE);
        written.map(|f| (f.mode, f.text.clone()))
    };
    assert_eq!(environment(""), None);
    let trust = format!("trust: {{caCertificates: [{CERTIFICATE}, {CERTIFICATE}]}}\n");
    assert_eq!(environment(&trust), Some((0o600, "SSL_CERT_DIR=/run/orlop/trust\n".to_owned())));
    let files = run_files(&effective(&trust), MACHINE_ID);
    assert_eq!(file(&files, "/run/orlop/trust/ca-certificates.crt").text, CERTIFICATE_TEXT.repeat(2));
    let proxy = "proxy: {http: 'http://user:pass@proxy.lan:3128', https: 'http://proxy.lan:3128', noProxy: [.corp.lan]}\n\
                 network: {interfaces: [{addresses: [192.0.2.10/24]}]}\n\
                 kubelet: {clusterDomain: cluster.local, podCIDR: 10.1.0.0/24}\n\
                 join: {server: 'https://[fd00::1]:6443', caData: YWJj}\n";
    assert_eq!(
        environment(proxy),
        Some((
            0o600,
            "HTTP_PROXY=http://user:pass@proxy.lan:3128\nHTTPS_PROXY=http://proxy.lan:3128\n\
             NO_PROXY=.corp.lan,localhost,127.0.0.0/8,::1,.svc,.cluster.local,10.1.0.0/24,192.0.2.10/24,fd00::1\n"
                .to_owned()
        ))
    );
    let exempt = |addresses: &str| {
        let text = environment(&format!("proxy: {{https: 'http://p'}}\nnode: {{addresses: {addresses}}}\n"));
        text.and_then(|(_, text)| Some(text.split_once(",.svc")?.1.trim_end().to_owned()))
    };
    assert_eq!(exempt("[192.0.2.7, '2001:db8::7']").as_deref(), Some(",192.0.2.7,2001:db8::7"));
    for chooses in ["[0.0.0.0]", "['::']", "[]"] {
        assert_eq!(exempt(chooses).as_deref(), Some(""), "{chooses}");
    }
    let one =
        environment("proxy: {https: 'http://p'}\njoin: {server: 'https://api.lan:6443/x', caData: YWJj}\n");
    let (_, text) = one.expect("written");
    assert!(text.starts_with("HTTPS_PROXY=http://p\nNO_PROXY=localhost,"), "{text}");
    assert!(text.ends_with(",api.lan\n"), "{text}");
}

#[test]
fn addresses_and_cloud_of_the_node() {
    let env = |body: &str| {
        let files = run_files(&load(&[source("esp", body)], &[]), MACHINE_ID);
        file(&files, "/run/orlop/agent.env").text.clone()
    };
    let name = "ORLOP_AGENT_ARGS=--hostname-override=n";
    assert_eq!(
        env("node: {name: n, addresses: [192.0.2.10, '2001:db8::10']}"),
        format!("{name} --node-ip=192.0.2.10,2001:db8::10\n")
    );
    let cloud = "node: {name: n, cloudProvider: external}\nkubelet: {providerID: 'aws:///eu-west-1a/i-0'}\n";
    let join = "join: {server: 'https://api:6443', caData: YWJj}\n";
    assert_eq!(
        env(&format!("{cloud}{join}")),
        format!(
            "{name} --cloud-provider=external --join=/run/orlop/join.yaml --kubeconfig=/var/lib/kubelet/kubeconfig\n"
        )
    );
    assert_eq!(effective(&format!("{cloud}{join}")).kubelet.provider_id, "aws:///eu-west-1a/i-0");
    // A standalone agent takes no such flag.
    assert_eq!(env(cloud), format!("{name}\n"));
}

#[test]
fn names() {
    let named = |body: &str| hostname(&effective(body).config, MACHINE_ID);
    assert_eq!(named("node: {name: a.example}"), "a.example");
    assert_eq!(named(""), "orlop-01234567");
    assert_eq!(hostname(&NodeConfig::default(), ""), "orlop");
    assert_eq!(hostname(&NodeConfig::default(), "ABCDEF0123\n"), "orlop-abcdef01");
}

#[test]
fn a_name_that_the_kernel_does_not_take_is_the_nodes_alone() {
    let long = "ip-10-0-123-123.some-long-region-name-1.compute.internal.example.corpor";
    let files = run_files(&effective(&format!("node: {{name: {long}}}")), MACHINE_ID);
    assert_eq!(file(&files, "/run/orlop/hostname").text, "ip-10-0-123-123\n");
    assert_eq!(
        file(&files, "/run/orlop/agent.env").text,
        format!("ORLOP_AGENT_ARGS=--hostname-override={long}\n")
    );
    let named = |name: &str| hostname(&effective(&format!("node: {{name: {name}}}")).config, MACHINE_ID);
    let longest = format!("{}.{}", "a".repeat(32), "b".repeat(31));
    assert_eq!(named(&longest), longest, "64 are taken");
    assert_eq!(named(&"a".repeat(65)), "a".repeat(64));
    assert_eq!(named(&format!("{}-{}", "a".repeat(63), "b")), "a".repeat(63));
}

#[test]
fn taints_become_the_agents() {
    let e = effective("taints: [{key: a, effect: NoExecute}]");
    assert_eq!(e.kubelet.register_with_taints.len(), 1);
    assert_eq!(e.provenance["kubelet.registerWithTaints"], "esp");
}

#[test]
fn containers_are_filtered_unless_a_source_says_otherwise() {
    let effective = effective("");
    assert!(effective.kubelet.seccomp_default);
    assert_eq!(effective.provenance["kubelet.seccompDefault"], "appliance");
    assert!(!self::effective("kubelet: {seccompDefault: false}\n").kubelet.seccomp_default);
}

#[test]
fn the_updater_has_a_file_where_something_is_set() {
    let files = |body: &str| run_files(&effective(body), MACHINE_ID);
    assert!(files("update: {}\n").iter().all(|file| file.path != UPDATE_FILE));
    let set = files("update: {source: 'https://a.example/o', policy: stage}\n");
    assert_eq!(
        file(&set, UPDATE_FILE).text,
        "{\"source\":\"https://a.example/o\",\"channel\":\"stable\",\"policy\":\"stage\",\"version\":\"\",\"usb\":\"allow\",\
         \"windows\":[],\"coordination\":\"none\",\"group\":\"default\",\
         \"drain\":{\"enabled\":true,\"timeout\":\"10m0s\",\"onTimeout\":\"abort\"},\
         \"trial\":{\"deadline\":\"10m0s\",\"soak\":\"1m0s\",\"holdMax\":\"6h0m0s\"}}\n"
    );
}

#[test]
fn a_node_with_a_swap_file_starts_an_agent_that_bears_it() {
    let effective = effective("swap: {size: 1.5Gi}\n");
    assert_eq!(file(&run_files(&effective, MACHINE_ID), SWAP_FILE).text, "1610612736\n");
    assert!(!effective.kubelet.fail_swap_on);
    assert_eq!(effective.provenance["kubelet.failSwapOn"], "appliance");
    let refuses = self::effective("swap: {size: 1Gi}\nkubelet: {failSwapOn: true}\n");
    assert!(refuses.kubelet.fail_swap_on, "who says so gets a node that does not start its agent");
    assert!(self::effective("").kubelet.fail_swap_on);
}
