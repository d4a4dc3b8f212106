//! What is made is read back by the parts that will read it: the rules of NodeConfig, the agent's source of static pods, the types of the
//! API, and verifiers of certificates.

mod certificates;
mod pods;
mod renewal;

use std::collections::BTreeMap;

use clap::Parser as _;
use orlop_config::node::{Effective, Source, derive, load};
use orlop_config::yaml;
use serde_json::{Value, json};

use super::args::{ControlplaneVerb, GenArgs};
use super::output::OutputFile;
use super::pki::{Authorities, token};
use super::plan::ClusterPlan;
use super::*;
use crate::cli::{Cli, Verb};

/// Seconds since 1970: in January 2027.
const NOW: i64 = 1_800_000_000;
const SINGLE: &[&str] = &["--single", "--endpoint", "192.0.2.10:6443", "--san", "edge.example"];
const HA: &[&str] = &[
    "--ha",
    "3",
    "--endpoint",
    "api.example:443",
    "--member",
    "cp-1=192.0.2.11",
    "--member",
    "cp-2=192.0.2.12",
    "--member",
    "cp-3=192.0.2.13",
];

/// What a command line makes.
struct Generated {
    plan: ClusterPlan,
    authorities: Authorities,
    files: Vec<OutputFile>,
}

fn args(words: &[&str]) -> GenArgs {
    let all = ["orlopctl", "controlplane", "gen"].iter().chain(words);
    let Verb::Controlplane(ControlplaneVerb::Gen(args)) = Cli::try_parse_from(all).unwrap().verb else {
        panic!("{words:?}")
    };
    args
}

fn generated(words: &[&str]) -> Generated {
    let plan = args(words).plan(NOW).unwrap();
    let authorities = Authorities::make(&plan).unwrap();
    let files = files(&plan, &authorities, &token().unwrap()).unwrap();
    Generated { plan, authorities, files }
}

impl Generated {
    fn text(&self, path: &str) -> &str {
        let file = self.files.iter().find(|file| file.path == path);
        &file.unwrap_or_else(|| panic!("no {path}")).text
    }

    fn documents(&self) -> Vec<Value> {
        let texts = self.text("bootstrap.yaml").split("---\n");
        texts.map(|text| yaml::parse(text).unwrap().value).collect()
    }
}

/// A NodeConfig as a node takes it.
fn taken(text: &str) -> Effective {
    let source = Source { name: "smbios".to_owned(), origin: "document".to_owned(), text: text.to_owned() };
    let effective = load(&[source], &[]);
    assert_eq!(effective.problems, []);
    effective
}

/// The files that init writes for a NodeConfig.
fn placed(text: &str) -> BTreeMap<String, (u32, String)> {
    let files = derive::placed_files(&taken(text).config);
    let text = |content: Vec<u8>| String::from_utf8(content).unwrap();
    files.into_iter().map(|file| (file.path, (file.mode, text(file.content)))).collect()
}

#[test]
fn a_node_takes_its_document_and_joins_its_own_api_server() {
    for words in [SINGLE, HA] {
        let generated = generated(words);
        for node in &generated.plan.nodes {
            let effective = taken(generated.text(&format!("{}.yaml", node.name)));
            let config = &effective.config;
            assert_eq!(config.node.name, node.name);
            assert_eq!(config.static_pods.len(), 5);
            assert!(derive::agent_env(config, &node.name).contains(
                "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/var/lib/kubelet/kubeconfig"
            ));
            assert_eq!(effective.kubelet.cluster_dns, ["10.96.0.10"]);
            // By it the API server may ask the node for logs.
            assert_eq!(effective.kubelet.authentication.x509.client_ca_file, "/etc/kubernetes/pki/ca.crt");
            assert_eq!(derive::bridges(config), generated.plan.is_single());
            assert_eq!(
                config.taints.is_empty(),
                generated.plan.is_single(),
                "pods of a single node run there"
            );
            let own: Vec<String> = node.address.iter().map(|ip| ip.to_string()).collect();
            assert_eq!(config.node.addresses, own);
            // It brings every file that it names.
            let named = derive::named_files(&effective);
            assert!(named.iter().all(|(_, path)| !path.starts_with("/etc/kubernetes")), "{named:?}");
        }
    }
}

#[test]
fn keys_are_for_root_alone_and_those_that_a_node_does_not_need_stay_away() {
    let generated = generated(HA);
    let files = placed(generated.text("cp-2.yaml"));
    for (path, (mode, text)) in &files {
        let holds_key =
            text.contains("PRIVATE KEY") || path.ends_with(".conf") || path.ends_with("bootstrap.yaml");
        assert_eq!(*mode, if holds_key { 0o600 } else { 0o644 }, "{path}");
    }
    let absent = [&generated.authorities.etcd.key, &generated.authorities.front_proxy.key];
    assert!(absent.iter().all(|key| files.values().all(|(_, text)| text != *key)));
    assert!(files.contains_key("/etc/kubernetes/pki/ca.key"), "the controller manager signs with it");
    for file in &generated.files {
        let is_secret =
            ["PRIVATE KEY", "client-key-data", "token"].iter().any(|word| file.text.contains(word));
        assert_eq!(file.mode, if is_secret { 0o600 } else { 0o644 }, "{}", file.path);
    }
}

#[test]
fn a_worker_joins_at_the_endpoint_with_the_token_of_the_secret() {
    let generated = generated(HA);
    let effective = taken(generated.text("worker.yaml"));
    let join = effective.config.join.clone().unwrap();
    assert!(orlop_config::join::missing(&join).is_empty());
    assert_eq!(join.server, "https://api.example:443");
    let ca = orlop_config::base64::decode(&join.ca_data.unwrap()).unwrap();
    assert_eq!(String::from_utf8(ca).unwrap(), generated.authorities.cluster.certificate);
    let secret = generated.documents().into_iter().find(|object| object["kind"] == "Secret").unwrap();
    let data = |key: &str| {
        let bytes = orlop_config::base64::decode(secret["data"][key].as_str().unwrap()).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let token = join.token.unwrap();
    assert_eq!(token.reveal(), format!("{}.{}", data("token-id"), data("token-secret")));
    assert_eq!(secret["metadata"]["name"], json!(format!("bootstrap-token-{}", data("token-id"))));
    assert_eq!(data("expiration"), Timestamp::from_second(NOW + 24 * 3600).unwrap().to_string());
}

/// All but what is random.
fn without_randomness(generated: &Generated) -> Vec<(String, u32, Value)> {
    fn blank(value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let is_random = matches!(key.as_str(), "content" | "token" | "caData" | "annotations");
                    if is_random { *value = Value::Null } else { blank(value) }
                }
            }
            Value::Array(list) => list.iter_mut().for_each(blank),
            _ => {}
        }
    }
    let documents = generated.files.iter().filter(|file| file.path.ends_with(".yaml"));
    let documents = documents.filter(|file| file.path != "bootstrap.yaml");
    let of = |file: &OutputFile| {
        let mut value = yaml::parse(&file.text).unwrap().value;
        blank(&mut value);
        (file.path.clone(), file.mode, value)
    };
    documents.map(of).collect()
}

#[test]
fn the_same_words_make_the_same_but_keys() {
    for words in [SINGLE, HA] {
        let (one, other) = (generated(words), generated(words));
        assert_eq!(without_randomness(&one), without_randomness(&other));
        let paths = |generated: &Generated| -> Vec<(String, u32)> {
            generated.files.iter().map(|file| (file.path.clone(), file.mode)).collect()
        };
        assert_eq!(paths(&one), paths(&other));
        assert_ne!(one.text("pki/ca.key"), other.text("pki/ca.key"));
        assert_ne!(one.text("worker.yaml"), other.text("worker.yaml"));
    }
}

#[test]
fn command_lines_without_sense_are_refused() {
    for words in [
        &["gen", "--endpoint", "a:1"][..],
        &["gen", "--single"],
        &["gen", "--single", "--ha", "3", "--endpoint", "a:1"],
        &["gen", "--single", "--endpoint", "a:1", "--days", "0"],
        &["gen", "--single", "--endpoint", "a:1", "--pod-network", "x"],
        &[],
    ] {
        let all = ["orlopctl", "controlplane"].iter().chain(words);
        assert!(Cli::try_parse_from(all).is_err(), "{words:?}");
    }
    let error = generate(&args(&["--ha", "3", "--endpoint", "a:1"]), NOW).unwrap_err();
    assert_eq!(error.exit_code(), crate::failure::USAGE, "{error}");
    let images = args(&[
        "--single",
        "--endpoint",
        "a:1",
        "--images",
        "etcd=a,kubectl=b",
        "--images",
        "kube-scheduler=c",
    ]);
    assert!(images.plan(NOW).is_ok());
}
