//! Each rule with a document that keeps it and one that breaks it; halves that never met.

use crate::node::load;
use crate::node::tests::{one, refused, source};

const CERTIFICATE_OF_THE_MACHINE: &str = "trust: {caCertificates: [LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=]}";
const CERTIFICATE_OF_A_REGISTRY: &str = "registries: {mirrors: {'registry.lan:5000': {caData: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=}}}";

#[test]
fn each_rule_has_two_sides() {
    let name = "must be a DNS name: lower-case letters, digits, - and ., at most 253";
    let table: &[(&str, &str, &str)] = &[
        ("node: {name: n-1.example}", "node: {name: n_1}", name),
        (
            "node: {name: ip-10-0-123-123.some-long-region-name-1.compute.internal.example.corpor}",
            "node: {name: n.}",
            name,
        ),
        (
            "node: {addresses: [192.0.2.10, '2001:db8::10']}",
            "node: {addresses: [here]}",
            "must be an IP address",
        ),
        ("node: {addresses: ['::']}", "node: {addresses: ['::', 192.0.2.10]}", "not loopback"),
        ("node: {addresses: [192.0.2.10]}", "node: {addresses: [127.0.0.1]}", "not loopback"),
        ("node: {addresses: ['2001:db8::10']}", "node: {addresses: ['fe80::10']}", "not loopback"),
        (
            "node: {addresses: ['2001:db8::10', 192.0.2.10]}",
            "node: {addresses: [192.0.2.10, 192.0.2.11]}",
            "must be one address, or an IPv4 and an IPv6 one",
        ),
        (
            "node: {addresses: []}",
            "node: {addresses: [192.0.2.10, '2001:db8::10', 192.0.2.11]}",
            "must be one address, or an IPv4 and an IPv6 one",
        ),
        (
            "update: {source: 'https://updates.example:8443/orlop', policy: stage}",
            "update: {source: 'http://updates.example/orlop'}",
            "must be an https:// URL of a directory",
        ),
        (
            "update: {source: '', channel: beta-2, version: 0.2.0, usb: ignore}",
            "update: {source: 'oci://registry.example/orlop:stable'}",
            "or oci://registry/repository, without a tag",
        ),
        (
            "update: {source: 'https://[2001:db8::1]/a@b'}",
            "update: {source: 'https://u:p@updates.example/orlop'}",
            "has a user",
        ),
        (
            "update: {source: 'oci://registry.example:5000/team/orlop-1'}",
            "update: {source: 'oci://registry.example?a/b'}",
            "or oci://registry/repository, without a tag",
        ),
        ("update: {channel: stable}", "update: {channel: ../stable}", "must be a name of at most 64 letters"),
        ("update: {version: 1.20.3}", "update: {version: v1.20}", "must be a version such as 0.2.0"),
        (
            "update: {source: 'https://updates.example/orlop', policy: automatic}",
            "update: {policy: always}",
            "must be one of manual, stage, automatic",
        ),
        ("update: {usb: allow}", "update: {skip: []}", "update.skip"),
        (
            "update: {windows: [{days: [tue, thu], start: '02:00', minutes: 180}, {start: '23:59', minutes: 1}]}",
            "update: {windows: [{start: '2:00', minutes: 180}]}",
            "must be a time of the day with four digits",
        ),
        (
            "update: {windows: []}",
            "update: {windows: [{start: '24:00', minutes: 180}]}",
            "must be a time of the day with four digits",
        ),
        (
            "update: {windows: [{start: '00:00', minutes: 10080}]}",
            "update: {windows: [{start: '00:00', minutes: 10081}]}",
            "must be an integer between 1 and 10080",
        ),
        (
            "update: {coordination: shared, group: edge-1}",
            "update: {group: ../edge}",
            "must be a name of at most 64 letters",
        ),
        (
            "update: {drain: {enabled: false, timeout: 0s, onTimeout: continue}}",
            "update: {drain: {timeout: 25h}}",
            "must be a duration between 0s and 24h0m0s",
        ),
        (
            "update: {trial: {deadline: 3m, soak: 10s, holdMax: 1h}}",
            "update: {trial: {deadline: 1m, soak: 1m}}",
            "must be less than update.trial.deadline",
        ),
        (
            "install: {disk: nvme-QEMU_NVMe_Ctrl_1, wipe: true}",
            "install: {disk: /dev/sda}",
            "must be the disk's name below /dev/disk/by-id",
        ),
        (
            "install: {disk: S5GXNX0R1}",
            "install: {wipe: true}",
            "must be the disk's name below /dev/disk/by-id",
        ),
        (
            "node: {cloudProvider: external}\njoin: {server: 'https://a', caData: YWJj}",
            "node: {cloudProvider: aws}",
            "must be one of external",
        ),
        (
            "network: {interfaces: [{addresses: [192.0.2.1/32], gateway: 198.51.100.1}]}",
            "network: {interfaces: [{gateway: 'fd00::1', gateway6: 'fe80::1'}]}",
            "must be an IPv4 address beside gateway6",
        ),
        (
            "network: {interfaces: [{routes: [{to: 10.1.0.0/16, via: 192.0.2.1, metric: 5, onLink: true}]}]}",
            "network: {interfaces: [{routes: [{to: 10.1.0.1/16}]}]}",
            "must be a network with its prefix length",
        ),
        (
            "network: {interfaces: [{routes: [{to: '::/0', via: 'fe80::1'}]}]}",
            "network: {interfaces: [{routes: [{to: '::/0', via: 192.0.2.1}]}]}",
            "must be of the same address family as to",
        ),
        (
            "network: {interfaces: [{routes: [{to: 10.1.0.0/16}]}]}",
            "network: {interfaces: [{routes: [{to: 10.1.0.0/16, onLink: true}]}]}",
            "needs via",
        ),
        (
            "network: {interfaces: [{routes: []}]}",
            "network: {interfaces: [{routes: [{via: 192.0.2.1}]}]}",
            "is missing",
        ),
        (
            "network: {interfaces: [{routes: [{to: 10.1.0.0/16, metric: 4294967295}]}]}",
            "network: {interfaces: [{routes: [{to: 10.1.0.0/16, metric: -1}]}]}",
            "must be an integer",
        ),
        (
            "proxy: {http: 'http://p:3128', noProxy: ['*', .a.lan, '*.b.lan', c.lan:8080, 10.0.0.0/8, '::1']}",
            "proxy: {http: 'http://p:3128', noProxy: ['a b']}",
            "must be a host, a domain",
        ),
        (
            "proxy: {https: 'https://p'}",
            "proxy: {https: 'socks5://p'}",
            "must be the proxy's http:// or https:// URL",
        ),
        (
            CERTIFICATE_OF_THE_MACHINE,
            "trust: {caCertificates: [LS0tLS1CRUdJTi4uLg==]}",
            "must be PEM certificates in base64",
        ),
        (
            CERTIFICATE_OF_A_REGISTRY,
            "registries: {mirrors: {'registry.lan:5000': {endpoints: ['https://registry.lan:5000'], caData: \
             LS0tLS1CRUdJTi4uLg==}}}",
            "must be PEM certificates in base64",
        ),
        (
            "registries: {mirrors: {a: {endpoints: ['http://a'], skipFallback: true}}}",
            "registries: {mirrors: {a: {caData: YWJj, skipFallback: true}}}",
            "needs endpoints",
        ),
        (
            "registries: {mirrors: {}}",
            "registries: {mirrors: {a: {endpoints: ['https://a'], clientCertificateData: YWJj}}}",
            "must be PEM certificates in base64",
        ),
        (
            "registries: {mirrors: {}}",
            "registries: {mirrors: {a: {endpoints: ['https://a'], clientKeyData: YWJj}}}",
            "must be an unencrypted private key",
        ),
        // A certificate with its key: files of certificates and node-config.json can be read by everybody.
        (
            "trust: {}",
            "trust: {caCertificates: [LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VS\
             VElGSUNBVEUtLS0tLQotLS0tLUJFR0lOIFBSSVZBVEUgS0VZLS0tLS0KQUFBQQotLS0tLUVORCBQUklWQVRFIEtFWS0tLS0tCg==]}",
            "no blocks of another kind",
        ),
        (
            "registries: {mirrors: {}}",
            "registries: {mirrors: {a: {clientCertificateData: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS\
             1FTkQgQ0VSVElGSUNBVEUtLS0tLQotLS0tLUJFR0lOIFBSSVZBVEUgS0VZLS0tLS0KQUFBQQotLS0tLUVORCBQUklWQVRFIEtFWS0tLS0tCg==}}}",
            "no blocks of another kind",
        ),
        (
            "registries: {mirrors: {}}",
            "registries: {mirrors: {a: {caData: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVE\
             UtLS0tLQotLS0tLUJFR0lOIFBSSVZBVEUgS0VZLS0tLS0KQUFBQQotLS0tLUVORCBQUklWQVRFIEtFWS0tLS0tCg==}}}",
            "no blocks of another kind",
        ),
        (
            "registries: {mirrors: {}}",
            "registries: {mirrors: {a: {endpoints: ['https://a'], clientKeyData: LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0t\
             LQpQcm9jLVR5cGU6IDQsRU5DUllQVEVECgpBQUFBCi0tLS0tRU5EIFJTQSBQUklWQVRFIEtFWS0tLS0tCg==}}}",
            "must be an unencrypted private key",
        ),
        // Servers are verified, always.
        (
            "registries: {mirrors: {}}",
            "registries: {mirrors: {a: {endpoints: ['https://a'], skipVerify: true}}}",
            "is an unknown field, allowed are endpoints, skipFallback, overridePath, caData",
        ),
        (
            "network: {interfaces: []}",
            "network: {interfaces: [{name: ''}]}",
            "must be interface names or patterns",
        ),
        (
            "network: {interfaces: [{macAddress: '52:54:00:12:34:56'}]}",
            "network: {interfaces: [{macAddress: '52:54:00:12:34'}]}",
            "must be six hex pairs",
        ),
        (
            "network: {interfaces: [{addresses: [192.0.2.1/24, 'fd00::1/64'], gateway: 192.0.2.254}]}",
            "network: {interfaces: [{addresses: [192.0.2.1]}]}",
            "must be an address with its prefix length",
        ),
        (
            "network: {interfaces: [{gateway6: 'fe80::1', dns: [1.1.1.1]}]}",
            "network: {interfaces: [{gateway: here}]}",
            "must be an IP address",
        ),
        (
            "network: {interfaces: [{gateway6: 'fe80::1'}]}",
            "network: {interfaces: [{gateway6: 10.0.0.1}]}",
            "IPv6",
        ),
        (
            "network: {interfaces: [{mtu: 576}]}",
            "network: {interfaces: [{mtu: 575}]}",
            "between 576 and 65535",
        ),
        (
            "network: {interfaces: [{mtu: 65535}]}",
            "network: {interfaces: [{mtu: 65536}]}",
            "between 576 and 65535",
        ),
        (
            "network: {interfaces: [{dhcp: true}]}",
            "network: {interfaces: [{dhcp: maybe}]}",
            "must be true or false",
        ),
        (
            "network: {interfaces: [{search: [a.b]}]}",
            "network: {interfaces: [{search: [a_b]}]}",
            "must be a DNS name",
        ),
        (
            "network: {interfaces: [{search: [.]}]}",
            "network: {interfaces: [{search: [., a.b]}]}",
            "must be a DNS name, or . alone",
        ),
        (
            "time: {servers: [pool.example, '::1']}",
            "time: {servers: ['a b']}",
            "must be a host name or an IP address",
        ),
        (
            "registries: {mirrors: {'docker.io': {endpoints: ['https://m.example:5000/x']}, _default: {endpoints: \
             ['http://10.0.0.1']}}}",
            "registries: {mirrors: {'docker.io': {endpoints: ['m.example']}}}",
            "must be an http:// or https:// URL",
        ),
        (
            "registries: {mirrors: {'r.example:5000': {endpoints: ['http://[::1]:5000']}}}",
            "registries: {mirrors: {'../x': {endpoints: ['http://a']}}}",
            "must be a registry's host",
        ),
        ("registries: {}", "registries: {mirrors: {a: {endpoints: []}}}", "must name at least one URL"),
        (
            "registries: {mirrors: {}}",
            "registries: {mirrors: {a: {endpoints: ['http://\"x']}}}",
            "without blanks",
        ),
        (
            "registries: {credentialProviders: [{name: ecr, matchImages: ['*.r.example'], defaultCacheDuration: 1h, \
             apiVersion: credentialprovider.kubelet.k8s.io/v1}]}",
            "registries: {credentialProviders: [{name: a/b, matchImages: ['*.r.example'], defaultCacheDuration: 1h, \
             apiVersion: credentialprovider.kubelet.k8s.io/v1}]}",
            "provider name cannot contain '/'",
        ),
        (
            "registries: {credentialProviders: []}",
            "registries: {credentialProviders: [{name: a, arg: [x]}]}",
            "is an unknown field",
        ),
        ("kernel: {sysctls: {vm.swappiness: 1}}", "kernel: {sysctls: {vm: 1}}", "must be a kernel setting"),
        ("kernel: {sysctls: {vm.a: x}}", "kernel: {sysctls: {vm.a: \"x\\ny\"}}", "must be one line of text"),
        ("swap: {size: 1Gi}", "swap: {size: 1}", "must be 0, or a quantity of 1Mi or more"),
        ("swap: {size: 0}", "swap: {size: -1Gi}", "must be 0, or a quantity of 1Mi or more"),
        ("swap: {}", "swap: {size: some}", "must be a quantity"),
        ("storage: {projectQuotas: true}", "storage: {projectQuotas: 1}", "must be true or false"),
        ("kernel: {modules: [br_netfilter]}", "kernel: {modules: [../x]}", "must be a module's name"),
        (
            "labels: {node.kubernetes.io/pool: a, topology.kubernetes.io/zone: z, example.com/r: ''}",
            "labels: {node-role.kubernetes.io/control-plane: ''}",
            "is the control plane's to set",
        ),
        ("labels: {a: b}", "labels: {a/b/c: b}", "must be a label key"),
        ("labels: {a: b.c}", "labels: {a: b/c}", "must be at most 63"),
        (
            "taints: [{key: example.com/gpu, value: a, effect: NoSchedule}]",
            "taints: [{key: a b, effect: NoSchedule}]",
            "must be a qualified name",
        ),
        (
            "taints: []",
            "taints: [{key: a, effect: Never}]",
            "must be one of NoSchedule, PreferNoSchedule, NoExecute",
        ),
        ("taints: []", "taints: [{effect: NoExecute}]", "is missing"),
        (
            "kubelet: {registerWithTaints: [{key: a, effect: NoExecute}]}",
            "taints: [{key: a, effect: NoExecute}]\nkubelet: {registerWithTaints: []}",
            "excludes kubelet.registerWithTaints",
        ),
        (
            "kubelet: {kind: KubeletConfiguration}",
            "kubelet: {kind: Kubelet}",
            "must be KubeletConfiguration, or left out",
        ),
        (
            "kubelet: {featureGates: {MemoryQoS: true}}",
            "kubelet: {featureGates: {NoGate: true}}",
            "unknown feature gate",
        ),
        ("console: {podOutput: true}", "console: {podOutput: 1}", "must be true or false"),
        (
            "api: {admins: [{name: ops-1, key: 'ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE='}]}",
            "api: {admins: [{name: ops-1, key: 'MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE='}]}",
            "as `orlopctl key new` prints it",
        ),
        (
            "api: {admins: []}",
            "api: {admins: [{name: a b, key: 'ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE='}]}",
            "another one for each administrator",
        ),
        ("api: {admins: []}", "api: {admins: [{name: ops-1}]}", "is missing"),
        (
            "files: [{path: /etc/kubernetes/pki/ca.crt, content: x, mode: '0644', uid: 4294967294, gid: 7}]",
            "files: [{path: /etc/kubernetes/manifests/a.yaml, content: x}]",
            "must be below /var/lib/orlop/files or /etc/kubernetes (but not in its manifests)",
        ),
        (
            "files: [{path: /var/lib/kubelet/config.json, data: eA==}]",
            "files: [{path: ../a, content: x}]",
            "must be an absolute path",
        ),
        ("files: []", "files: [{content: x}]", "is missing"),
        ("files: []", "files: [{path: /etc/kubernetes/a}]", "needs content or data"),
        ("files: []", "files: [{path: /etc/kubernetes/a, data: '?'}]", "must be base64"),
        ("files: []", "files: [{path: /etc/kubernetes/a, content: x, mode: 384}]", "quote numbers"),
        ("files: []", "files: [{path: /etc/kubernetes/a, content: x, mode: '4755'}]", "must be octal digits"),
        (
            "files: []",
            "files: [{path: /etc/kubernetes/a, content: x, uid: 4294967295}]",
            "between 0 and 4294967294",
        ),
        (
            "files: [{path: /etc/kubernetes/a, content: x}, {path: /etc/kubernetes/ab, content: x}]",
            "files: [{path: /etc/kubernetes/a, content: x}, {path: /etc/kubernetes/a, content: y}]",
            "is there twice",
        ),
        (
            "files: [{path: /etc/kubernetes/b/a, content: x}, {path: /etc/kubernetes/b/c, content: x}]",
            "files: [{path: /etc/kubernetes/b/c/d, content: x}, {path: /etc/kubernetes/b, content: x}]",
            "is below /etc/kubernetes/b, which is a file",
        ),
        (
            "join: {bootstrapKubeconfig: /etc/kubernetes/bootstrap.conf}",
            "join: {bootstrapKubeconfig: /etc/kubernetes/bootstrap.conf, server: 'https://a'}",
            "excludes server, token, caData and caCertHashes",
        ),
        (
            "join: {kubeconfig: /var/lib/orlop/files/kubelet.conf}",
            "join: {kubeconfig: kubelet.conf}",
            "must be the absolute path of a file",
        ),
        ("labels: {}", "join: {kubeconfig: /a, bootstrapKubeconfig: /b}", "excludes bootstrapKubeconfig"),
    ];
    for (good, bad, reason) in table {
        let e = one(good);
        assert_eq!(e.problems, [], "{good}");
        assert_eq!(e.accepted.len(), 1, "{good}");
        let said = refused(bad);
        assert!(said.iter().any(|s| s.contains(reason)), "{bad}: {said:?}");
        assert!(said.iter().all(|s| s.starts_with("esp:/node-config.yaml:")), "{bad}: no line in {said:?}");
    }
}

#[test]
fn halves_that_never_met_are_told() {
    let table = [
        (
            "node: {cloudProvider: external}",
            "node.cloudProvider: needs join: a standalone node has no Node object",
        ),
        (
            "proxy: {noProxy: [a.lan]}",
            "proxy.noProxy: needs proxy.http or proxy.https: nothing goes through a proxy",
        ),
        ("update: {policy: stage}", "update.policy: needs update.source: releases come from drives only"),
    ];
    for (body, told) in table {
        let e = one(body);
        assert_eq!(e.accepted.len(), 1, "{body}");
        let said: Vec<String> = e.problems.iter().map(ToString::to_string).collect();
        assert_eq!(said, [format!("effective: {told}")]);
    }
    // One source may have the address of the proxy, another one what is reached without it.
    let e = load(
        &[source("image", "proxy: {noProxy: [a.lan]}"), source("smbios", "proxy: {http: 'http://p'}")],
        &[],
    );
    assert_eq!(e.problems, []);
    assert_eq!((&*e.provenance["proxy.noProxy"], &*e.provenance["proxy.http"]), ("image", "smbios"));
}
