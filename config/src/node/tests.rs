//! Sources, precedence, provenance, refusals, secrets.

use super::*;
use crate::kubelet;
use crate::testing::document;
use proptest::prelude::*;
use serde_json::{Value, json};

const HEAD: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n";
const TOKEN: &str = "s3cret.topsecrettopsecr";

pub(super) fn source(name: &str, body: &str) -> Source {
    Source {
        name: name.to_owned(),
        origin: format!("{name}:/node-config.yaml"),
        text: format!("{HEAD}{body}"),
    }
}

pub(super) fn one(body: &str) -> Effective {
    load(&[source("esp", body)], &[])
}

/// The messages of one source's problems.
pub(super) fn refused(body: &str) -> Vec<String> {
    let effective = one(body);
    assert!(effective.accepted.is_empty(), "accepted: {body}");
    effective.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_node_that_was_told_nothing_is_standalone() {
    let e = load(&[], &[]);
    assert_eq!(e.problems, []);
    assert_eq!(e.config, NodeConfig::default());
    assert_eq!(e.kubelet.static_pod_path, "/etc/kubernetes/manifests");
    assert_eq!(e.kubelet.cgroup_driver, kubelet::enums::CgroupDriver::Systemd);
    assert!(!e.kubelet.enable_server && !e.kubelet.register_node);
    assert_eq!(e.provenance["kubelet.cgroupDriver"], APPLIANCE);
    assert_eq!(e.provenance["kubelet.maxPods"], DEFAULT);
    assert_eq!(e.provenance["network.interfaces"], DEFAULT);
    assert_eq!(load(&[source("image", "")], &[]).config, NodeConfig::default());
}

#[test]
fn all_mistakes_of_a_document_are_told_at_once() {
    let said = refused(
        "noSuchField: 1\nnode: {name: Edge_7, colour: red}\nkubelet: {maxPods: many, imageGCLowThresholdPercent: 99}\n\
         labels: {ok: 'yes', bad: 'a b', number: 7}\ntime: {servers: [a, 5]}\n\
         staticPods: [{apiVersion: v1, kind: Pod, metadata: {name: 'not a name'}}]\n",
    );
    let has = |words: &str| said.iter().filter(|line| line.contains(words)).count();
    // Shapes.
    for path in ["noSuchField", "node.colour", "kubelet.maxPods", "labels.number", "time.servers[1]"] {
        assert_eq!(has(path), 1, "{path}: {said:#?}");
    }
    // Rules about values next to them.
    for words in ["Edge_7", "labels.bad", "staticPods[0]"] {
        assert_eq!(has(words), 1, "{words}: {said:#?}");
    }
    // The field that it depends on may be the one with the mistake.
    assert_eq!(has("imageGCLowThresholdPercent"), 0, "{said:#?}");
}

#[test]
fn every_field_has_the_documented_default() {
    let want = json!({
        "apiVersion": "orlop/v1alpha1",
        "kind": "NodeConfig",
        "node": { "name": "", "addresses": [] },
        "network": { "interfaces": [
            { "name": "en* eth*", "addresses": [], "routes": [], "dns": [], "search": [] }
        ], "bonds": [], "vlans": [], "bridges": [], "podNetwork": "cluster" },
        "trust": { "caCertificates": [] },
        "proxy": { "noProxy": [] },
        "time": { "servers": [] },
        "registries": { "mirrors": {}, "credentialProviders": [] },
        "kernel": { "sysctls": {}, "modules": [] },
        "swap": { "size": "0" },
        "runtime": { "podsPerShim": 1 },
        "storage": { "projectQuotas": false },
        "labels": {},
        "taints": [],
        "kubelet": {},
        "staticPods": [],
        "files": [],
        "console": { "podOutput": false },
        "platform": { "labels": false },
        "update": { "source": "", "channel": "stable", "policy": "manual", "version": "", "usb": "allow",
            "windows": [], "coordination": "none", "group": "default",
            "drain": { "enabled": true, "timeout": "10m0s", "onTimeout": "abort" },
            "trial": { "deadline": "10m0s", "soak": "1m0s", "holdMax": "6h0m0s" } },
        "api": { "admins": [], "clusterIdentities": false, "vsock": { "trustHost": false } }
    });
    assert_eq!(serde_json::to_value(NodeConfig::default()).expect("JSON"), want);
    let mut known: Vec<&str> = want.as_object().expect("a map").keys().map(String::as_str).collect();
    known.extend(["install", "join"]);
    known.sort_unstable();
    assert_eq!(document::<NodeConfig>(), known);
}

#[test]
fn a_shim_has_one_pod_at_least_and_a_bounded_number() {
    let of = |pods: &str| format!("runtime: {{podsPerShim: {pods}}}");
    for (pods, taken) in [("1", 1), ("16", 16), ("64", 64)] {
        let effective = one(&of(pods));
        assert_eq!(effective.problems, [], "{pods}");
        assert_eq!(effective.config.runtime.pods_per_shim, taken);
    }
    for pods in ["0", "65", "-1", "many"] {
        let said = refused(&of(pods));
        let names = |line: &String| line.contains("runtime.podsPerShim") && line.contains("between 1 and 64");
        assert!(said.iter().any(names), "{pods}: {said:?}");
    }
}

#[test]
fn later_sources_win_key_by_key_and_null_takes_back() {
    let e = load(
        &[
            source(
                "image",
                "labels: {a: '1', b: '1'}\nkubelet: {maxPods: 10, port: 1, evictionHard: {pid.available: 5%}}",
            ),
            source("esp", "node: {name: esp}\ntime: {servers: [a, b]}"),
            source(
                "fw-cfg",
                "node: {name: fw}\nlabels: {b: '2', a: null}\nkubelet: {maxPods: 20, port: null}",
            ),
            source("smbios", "time: {servers: [c]}"),
        ],
        &["kubelet.maxPods=30".to_owned(), "console.podOutput=true".to_owned()],
    );
    assert_eq!(e.problems, []);
    assert_eq!(e.config.node.name, "fw");
    assert_eq!(e.config.time.servers, ["c"]);
    assert_eq!(e.config.labels, [("b".to_owned(), "2".to_owned())].into());
    assert_eq!((e.kubelet.max_pods, e.kubelet.port), (30, 10250));
    assert!(e.config.console.pod_output);
    let from = |path: &str| e.provenance.get(path).map_or("", String::as_str);
    assert_eq!(from("node.name"), "fw-cfg");
    assert_eq!(from("time.servers"), "smbios");
    assert_eq!(from("labels.b"), "fw-cfg");
    assert_eq!(from("labels.a"), "");
    assert_eq!(from("kubelet.maxPods"), "cmdline");
    assert_eq!(from("kubelet.port"), "default");
    assert_eq!(from("kubelet.evictionHard.\"pid.available\""), "image");
    assert_eq!(from("console.podOutput"), "cmdline");
    assert_eq!(e.accepted.len(), 6);
    assert_eq!(e.accepted[4], "orlop.set=kubelet.maxPods");
}

#[test]
fn one_bad_source_does_not_lose_the_others() {
    let e = load(
        &[
            source("image", "node: {name: a}"),
            source("esp", "node: {name: UPPER}\nconsole: {podOutput: true}"),
            source("drive", "nodes: {}"),
            source("fw-cfg", "kubelet:\n  maxPods: many\nnoSuchField: 1"),
            source("smbios", "console: {podOutput: true}\nkubelet: {imageGCLowThresholdPercent: 90}"),
            Source { name: "cmdline".into(), origin: "orlop.config".into(), text: "kind: [".into() },
            source("late", "labels: {x: y}"),
        ],
        &["kubelet.maxPods=x".to_owned(), "labels.z=1".to_owned()],
    );
    assert_eq!(e.config.node.name, "a");
    assert!(!e.config.console.pod_output, "a refused source counts for nothing");
    assert_eq!(e.config.labels.len(), 2);
    assert_eq!(e.accepted.len(), 3);
    let said: Vec<String> = e.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        said[..6],
        [
            "esp:/node-config.yaml:3: node.name: \"UPPER\" must be a DNS name: lower-case letters, digits, - and ., at \
             most 253",
            "drive:/node-config.yaml:3: nodes: is an unknown field, did you mean node?",
            "fw-cfg:/node-config.yaml:4: kubelet.maxPods: \"many\" must be an integer of 0 or more",
            "fw-cfg:/node-config.yaml:5: noSuchField: is an unknown field",
            "smbios:/node-config.yaml:4: kubelet.imageGCLowThresholdPercent: 90 must be less than \
             imageGCHighThresholdPercent",
            &said[5],
        ]
    );
    assert!(said[5].starts_with("orlop.config:"), "{}", said[5]);
    assert_eq!(said[6], "orlop.set: kubelet.maxPods: \"x\" must be an integer of 0 or more");
    assert_eq!(said.len(), 7);
}

#[test]
fn heads_and_empty_documents() {
    let text = |text: &str| {
        let e = load(&[Source { name: "esp".into(), origin: "f".into(), text: text.into() }], &[]);
        e.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(text(""), "f: is empty: remove it, or give it apiVersion and kind");
    assert_eq!(text("#orlop\n"), "f: is empty: remove it, or give it apiVersion and kind");
    assert_eq!(text("a: 1"), "f: apiVersion: must be orlop/v1alpha1");
    assert_eq!(
        text("apiVersion: orlop/v2\nkind: NodeConfig"),
        "f:1: apiVersion: \"orlop/v2\" must be orlop/v1alpha1"
    );
    assert_eq!(text("apiVersion: orlop/v1alpha1\nkind: Pod"), "f:2: kind: \"Pod\" must be NodeConfig");
    assert_eq!(text("[1"), text("[1"));
    assert_eq!(text("\u{feff}apiVersion: orlop/v1alpha1\nkind: NodeConfig"), "");
}

#[test]
fn static_pods() {
    let pod = |name: &str| format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}}}");
    let e = one(&format!("staticPods: [{}, {{name: b, manifest: {}}}]", pod("a"), pod("whatever")));
    assert_eq!(e.problems, []);
    let files = derive::static_pod_files(&e.config);
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["orlop-a.yaml", "orlop-b.yaml"]);
    let said = refused(&format!("staticPods:\n- {}\n- {}\n- {{name: c}}\n- 7", pod("a"), pod("a")));
    assert_eq!(said, ["esp:/node-config.yaml:7: staticPods[3]: 7 must be a map of keys to values"]);
    let said = refused(&format!("staticPods:\n- {}\n- {}\n- {{name: c}}", pod("a"), pod("a")));
    assert_eq!(
        said,
        [
            "esp:/node-config.yaml:5: staticPods[1]: \"a\" is there twice: names of static pods differ",
            "esp:/node-config.yaml:6: staticPods[2]: needs a name: lower-case letters, digits, - and ., at most 253"
        ]
    );
}

#[test]
fn join_is_checked_and_says_what_it_lacks() {
    let hash = format!("sha256:{}", "ab".repeat(32));
    let full = format!("join: {{server: 'https://api:6443', token: {TOKEN}, caCertHashes: ['{hash}']}}");
    let e = one(&full);
    assert_eq!(e.accepted.len(), 1);
    assert!(e.problems.is_empty(), "{:?}", e.problems);
    assert!(e.kubelet.register_node && e.kubelet.rotate_certificates);
    // A node that joined before needs no token again.
    let e = one("join: {server: 'https://api:6443', caData: YWJj}");
    assert!(e.problems.is_empty() && e.kubelet.register_node, "{:?}", e.problems);
    for (body, lacks) in [
        ("join: {server: 'https://api:6443'}", "caData or caCertHashes"),
        ("join: {caData: YWJj}", "server"),
        ("join: {}", "server, caData or caCertHashes"),
    ] {
        let e = one(body);
        assert_eq!(
            e.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [format!("effective: join: lacks {lacks}: the node runs standalone")]
        );
        assert!(!e.kubelet.register_node);
    }
    const CERTIFICATES: &str =
        "join.caData: must be PEM certificates in base64, and no blocks of another kind such as keys";
    // A certificate, then a private key.
    const KEY_WITH_CERTIFICATE: &str = "join: {caData: 'LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUt\
        LS0tLQotLS0tLUJFR0lOIFBSSVZBVEUgS0VZLS0tLS0KQUFBQQotLS0tLUVORCBQUklWQVRFIEtFWS0tLS0tCg=='}";
    let table = [
        ("join: {server: 'http://api'}", "join.server: must be an https:// URL"),
        ("join: {token: ABCDEF.0123456789abcdef}", "join.token: must have the form abcdef.0123456789abcdef"),
        ("join: {caData: '???'}", CERTIFICATES),
        (KEY_WITH_CERTIFICATE, CERTIFICATES),
        ("join: {caCertHashes: ['md5:00']}", "join.caCertHashes[0]: must be sha256: and 64 hex digits"),
    ];
    for (body, reason) in table {
        assert_eq!(refused(body), [format!("esp:/node-config.yaml:3: {reason}")]);
    }
    // One source may bring the server, a more secret one the token.
    let e = load(
        &[
            source("image", "join: {server: 'https://a', caData: YWJj}"),
            source("smbios", &format!("join: {{token: {TOKEN}}}")),
        ],
        &[],
    );
    let join = e.config.join.as_ref().expect("set");
    assert_eq!((join.server.as_str(), join.token.as_ref().map(Secret::reveal)), ("https://a", Some(TOKEN)));
}

/// What a TPM measures changes with everything that counts, and with no secret.
#[test]
fn what_is_measured_changes_with_the_configuration_and_not_with_its_secrets() {
    let measured = |body: &str| load(&[source("esp", body)], &[]).measured();
    let pod = |image: &str, password: &str| {
        format!(
            "staticPods: [{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{containers: [{{name: c, image: {image}, \
             env: [{{name: P, value: {password}}}]}}]}}}}]"
        )
    };
    let base = measured(&pod("r/a", "w0rd1"));
    assert_eq!(base, measured(&pod("r/a", "w0rd2")));
    assert!(!base.contains("w0rd") && base.contains("r/a") && !base.contains('\n'), "{base}");
    for other in [pod("r/b", "w0rd1"), "node: {name: x}".to_owned(), String::new()] {
        assert_ne!(base, measured(&other), "{other}");
    }
    let token = |token: &str| measured(&format!("join: {{server: 'https://a', token: {token}}}"));
    assert_eq!(token(TOKEN), token("abcdef.0123456789abcdef"));
}

#[test]
fn a_secret_is_never_shown() {
    let bodies = [
        format!("join: {{token: {TOKEN}}}"),
        format!("join: {TOKEN}"),
        format!("join: [{TOKEN}]"),
        format!("join: {{token: [{TOKEN}]}}"),
        format!("join: {{token: {{x: {TOKEN}}}}}"),
        format!("join: {{token: {TOKEN}x}}"),
        format!("join: {{server: {TOKEN}, caData: {TOKEN}, caCertHashes: [{TOKEN}]}}"),
        format!("join: {{tokn: {TOKEN}}}"),
        format!("kubelet: {{staticPodURLHeader: {{Authorization: [{TOKEN}]}}}}"),
        format!("kubelet: {{staticPodURLHeader: {TOKEN}}}"),
        format!("staticPods: [{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{x: {TOKEN}}}}}]"),
        format!("registries: {{credentialProviders: [{{name: a, env: [{{name: A, value: {TOKEN}}}]}}]}}"),
        format!(
            "registries: {{credentialProviders: [{{name: a, matchImages: [r.example], defaultCacheDuration: 1h, \
             apiVersion: credentialprovider.kubelet.k8s.io/v1, args: [{TOKEN}]}}]}}"
        ),
        format!("registries: {{credentialProviders: [{{name: a, env: {TOKEN}}}]}}"),
        format!("kubelet: {TOKEN}"),
        format!("proxy: {{http: 'http://u:{TOKEN}@p', https: 'https://u:{TOKEN}@p'}}"),
        format!("proxy: {{http: 'ftp://u:{TOKEN}@p'}}"),
        format!("proxy: {{https: [{TOKEN}]}}"),
        format!("proxy: {TOKEN}"),
        format!("registries: {{mirrors: {{a: {{endpoints: ['https://a'], clientKeyData: {TOKEN}}}}}}}"),
        format!("registries: {{mirrors: {{a: {{endpoints: ['https://a'], clientKeyData: [{TOKEN}]}}}}}}"),
        format!("files: [{{path: /etc/kubernetes/a, content: {TOKEN}}}]"),
        format!("files: [{{path: /etc/kubernetes/a, content: [{TOKEN}]}}]"),
        format!("files: [{{path: /nowhere, content: {TOKEN}}}]"),
        format!("files: [{{path: /etc/kubernetes/a, data: {TOKEN}}}]"),
        format!("files: {TOKEN}"),
        format!("files: [{TOKEN}]"),
        // Broken YAML around it.
        format!("join: {{token: \"{TOKEN}"),
        format!("join: {{token: {TOKEN}: x}}"),
        format!("join:\n  token: *{TOKEN}"),
        format!("join:\n  token: !{TOKEN} x"),
        format!("join:\n\ttoken: {TOKEN}"),
    ];
    for body in bodies {
        let source = source("esp", &body);
        let e = load(std::slice::from_ref(&source), &[]);
        let files = derive::run_files(&e, "");
        let shown = [
            format!("{e:?}"),
            format!("{files:?}"),
            format!("{source:?}"),
            e.document(),
            format!("{:?}", e.problems),
            e.problems.iter().map(ToString::to_string).collect(),
        ];
        for text in shown {
            assert!(!text.contains("topsecret"), "{body}: {text}");
        }
    }
    let e = load(&[], &[format!("join.token={TOKEN}"), format!("join={TOKEN}")]);
    assert!(!e.document().contains("topsecret") && e.document().contains(MASK));
    assert!(!format!("{:?}", e.config.join).contains("topsecret"));
}

#[test]
fn the_document_for_operators() {
    let e = load(&[source("fw-cfg", "node: {name: n}\nkubelet: {maxPods: 7}"), source("bad", "x: 1")], &[]);
    let document: Value = serde_json::from_str(&e.document()).expect("JSON");
    assert_eq!(document["config"]["node"]["name"], "n");
    assert_eq!(document["config"]["kubelet"]["maxPods"], 7);
    assert_eq!(document["provenance"]["kubelet.maxPods"], "fw-cfg");
    assert_eq!(document["accepted"], json!(["fw-cfg:/node-config.yaml"]));
    assert_eq!(
        document["problems"],
        json!([{ "source": "bad:/node-config.yaml", "line": 3, "path": "x", "reason": "is an unknown field" }])
    );
}

/// Paths of all leaves.
fn leaves(value: &Value, at: &str, all: &mut Vec<String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(k, v)| leaves(v, &crate::path::child(at, k), all));
        }
        _ => all.push(at.to_owned()),
    }
}

/// Fragments that are each valid alone and together.
fn fragment() -> impl Strategy<Value = Value> {
    let part = prop_oneof![
        "[a-c]{1,2}".prop_map(|n| json!({"node": {"name": n}})),
        Just(json!({"node": {"name": null}})),
        "[a-c]".prop_map(|k| json!({"labels": {k: "v"}})),
        "[a-c]".prop_map(|k| json!({"labels": {k: null}})),
        Just(json!({"labels": null})),
        (1..9).prop_map(|n| json!({"kubelet": {"maxPods": n}})),
        Just(json!({"kubelet": {"maxPods": null, "evictionHard": {"pid.available": "5%"}}})),
        Just(json!({"kubelet": {"evictionHard": {}}})),
        Just(json!({"kubelet": null})),
        Just(json!({"kernel": {"sysctls": {"vm.swappiness": 1}}})),
        Just(json!({"kernel": {"sysctls": {"vm.swappiness": null}, "modules": ["a"]}})),
        Just(json!({"network": {"interfaces": []}})),
        Just(json!({"taints": [{"key": "a", "effect": "NoExecute"}]})),
        Just(json!({"join": {"server": "https://a"}})),
        Just(json!({"join": null})),
        // Refused ones, which must leave no trace.
        Just(json!({"nod": 1, "node": {"name": "zz"}})),
        Just(json!({"kubelet": {"maxPods": -1}, "labels": {"zz": "zz"}})),
    ];
    proptest::collection::vec(part, 0..3).prop_map(|parts| {
        let mut all = json!({"apiVersion": API_VERSION, "kind": KIND});
        parts.into_iter().for_each(|p| crate::merge::apply_keeping_nulls(&mut all, p));
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_effective_key_has_its_true_source(documents in proptest::collection::vec(fragment(), 0..5)) {
        let sources: Vec<Source> = documents
            .iter()
            .enumerate()
            .map(|(i, d)| Source { name: format!("s{i}"), origin: format!("o{i}"), text: d.to_string() })
            .collect();
        let e = load(&sources, &[]);
        let mut config = serde_json::to_value(&e.config).expect("JSON");
        config["kubelet"] = kubelet::to_value(&e.kubelet);
        let mut paths = Vec::new();
        leaves(&config, "", &mut paths);
        paths.sort();
        let known: Vec<&String> = e.provenance.keys().collect();
        prop_assert_eq!(known, paths.iter().collect::<Vec<_>>());
        // The named source is the last accepted one that sets the key.
        for (path, source) in e.provenance.iter().filter(|(p, _)| *p == "node.name" || *p == "kubelet.maxPods") {
            let (outer, inner) = path.split_once('.').expect("two keys");
            let setter = sources.iter().zip(&documents).rev().find_map(|(s, d)| {
                if !e.accepted.contains(&s.origin) { return None; }
                match d.get(outer) {
                    Some(Value::Null) => Some(DEFAULT),
                    Some(map) => map.get(inner).map(|v| if v.is_null() { DEFAULT } else { s.name.as_str() }),
                    None => None,
                }
            });
            prop_assert_eq!(source.as_str(), setter.unwrap_or(DEFAULT), "{}", path);
        }
    }

    #[test]
    fn any_text_is_answered_and_the_result_is_valid(body in "\\PC{0,120}", set in "[a-z.\"=\\[\\]{}:, 0-9]{0,40}") {
        let e = load(&[source("x", &body), source("y", "node: {name: ok}")], &[set]);
        prop_assert_eq!(kubelet::validate::validate(&e.kubelet, "x"), []);
        let _ = e.document();
    }

    #[test]
    fn any_values_in_known_keys_are_answered(
        key in proptest::sample::select(document::<NodeConfig>()),
        inner in proptest::sample::select(vec!["name", "interfaces", "servers", "mirrors", "sysctls", "maxPods", "token"]),
        value in crate::testing::json(),
    ) {
        let text = json!({"apiVersion": API_VERSION, "kind": KIND, key: {inner: value}}).to_string();
        let e = load(&[Source { name: "x".into(), origin: "x".into(), text }], &[]);
        prop_assert_eq!(e.accepted.is_empty(), e.problems.iter().any(|p| p.source == "x"));
    }
}
