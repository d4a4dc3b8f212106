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
    let paths: Vec<&str> = files.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/run/orlop/hostname",
            "/run/orlop/kubelet.yaml",
            "/run/orlop/agent.env",
            "/run/orlop/node-config.json",
            "/run/systemd/network/10-orlop.network",
        ]
    );
    assert_eq!(files[0].text, "orlop-01234567\n");
    assert_eq!(files[2].text, "ORLOP_AGENT_ARGS=--hostname-override=orlop-01234567\n");
    assert_eq!(
        files[4].text,
        "[Match]\nName=en* eth*\n\n[Network]\nDHCP=yes\n\n[DHCPv4]\nRouteMetric=100\nUseHostname=no\n"
    );
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
    // The cluster asks the node for logs; a node without a cluster has nobody to ask who a caller is.
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
    assert_eq!(files[0].path, "/run/systemd/network/10-orlop.network");
    assert_eq!(
        files[0].text,
        "[Match]\nMACAddress=52:54:00:12:34:56\n\n[Link]\nMTUBytes=9000\n\n[Network]\nDHCP=no\n\
         Address=192.0.2.10/24\nAddress=fd00::a/64\nDNS=192.0.2.53\nDomains=example.com a.b\n\n\
         [Route]\nGateway=192.0.2.1\nMetric=100\n\n[Route]\nGateway=fd00::1\nMetric=100\n"
    );
    assert_eq!(
        files[1].text,
        "[Match]\nName=eth1\n\n[Network]\nDHCP=yes\nDNS=1.1.1.1\n\n[DHCPv4]\nRouteMetric=110\nUseHostname=no\n\
         UseDNS=no\n"
    );
    assert_eq!(files[2].text, "[Match]\nName=eth2\n\n[Network]\nDHCP=no\n");
    let given = ["10.0.2.3".to_owned()];
    assert_eq!(
        resolv_conf(&effective.config, &given, &["lan".to_owned()]),
        "# Made from the node's configuration.\nnameserver 192.0.2.53\nnameserver 1.1.1.1\nsearch example.com a.b\n"
    );
    assert_eq!(
        resolv_conf(&NodeConfig::default(), &given, &["lan".to_owned()]),
        "# Made from the node's configuration.\nnameserver 10.0.2.3\nsearch lan\n"
    );
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
        "server = \"https://registry-1.docker.io\"\n\n[host.\"https://m:5000\"]\n  capabilities = [\"pull\", \
         \"resolve\"]\n  override_path = true\n\n[host.\"http://n\"]\n  capabilities = [\"pull\", \"resolve\"]\n  \
         override_path = true\n"
    );
    assert_eq!(
        hosts("r.example"),
        "server = \"https://only\"\n\n[host.\"https://only\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
    );
    assert_eq!(hosts("_default"), "\n[host.\"http://all\"]\n  capabilities = [\"pull\", \"resolve\"]\n");
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
fn a_node_with_a_swap_file_starts_an_agent_that_bears_it() {
    let effective = effective("swap: {size: 1.5Gi}\n");
    assert_eq!(file(&run_files(&effective, MACHINE_ID), SWAP_FILE).text, "1610612736\n");
    assert!(!effective.kubelet.fail_swap_on);
    assert_eq!(effective.provenance["kubelet.failSwapOn"], "appliance");
    let refuses = self::effective("swap: {size: 1Gi}\nkubelet: {failSwapOn: true}\n");
    assert!(refuses.kubelet.fail_swap_on, "who says so gets a node that does not start its agent");
    assert!(self::effective("").kubelet.fail_swap_on);
}
