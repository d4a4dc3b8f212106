//! docs/internals/agent/flags.md has each flag that the agent takes, with the key of NodeConfig that says the same, or the reason why
//! there is none. A new flag fails here until the page has a decision about it.

use super::agent_env;
use crate::field::{Describe, Kind};
use crate::kubelet::flags::FLAGS;
use crate::kubelet::flags::args::{IGNORED, OPTIONS};
use crate::node::tests::one;
use crate::node::types::NodeConfig;
use crate::path;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = include_str!("../../../../docs/internals/agent/flags.md");

/// Flags that upstream does not have; the daemon reads them.
const OWN: [&str; 2] = ["join", "node-config"];

/// Together they make every flag that a key can make.
const DOCUMENTS: [&str; 3] = [
    "node: {name: n, addresses: [192.0.2.1], cloudProvider: external}\nlabels: {a: b}\n\
     join: {server: 'https://a', caData: YWJj}\n\
     registries: {credentialProviders: [{name: ecr, matchImages: ['*.r.example'], defaultCacheDuration: 1h, \
     apiVersion: credentialprovider.kubelet.k8s.io/v1}]}\n",
    "join: {bootstrapKubeconfig: /etc/kubernetes/bootstrap.conf}\n",
    "join: {kubeconfig: /etc/kubernetes/kubelet.conf}\n",
];

/// One row of the page.
struct FlagRow {
    keys: Vec<&'static str>,
    remark: &'static str,
}

/// The page's rows by flag, without dashes.
fn rows() -> BTreeMap<&'static str, FlagRow> {
    let mut rows = BTreeMap::new();
    for line in PAGE.lines() {
        let Some((flag, cells)) = line.strip_prefix("| `--").and_then(|rest| rest.split_once('`')) else {
            continue;
        };
        let mut cells = cells.split('|').skip(1).map(str::trim);
        let (keys, remark) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        let keys = keys.split('`').skip(1).step_by(2).collect();
        assert!(rows.insert(flag, FlagRow { keys, remark }).is_none(), "--{flag} has two rows");
    }
    rows
}

/// The path is a key of NodeConfig.
fn is_key(key: &str) -> bool {
    let (mut kind, mut rest) = (NodeConfig::KIND, key);
    while let Some((name, tail)) = path::split_first(rest) {
        let Kind::Object(fields) = kind else { return false };
        let Some(field) = fields.iter().find(|field| field.name == name) else { return false };
        (kind, rest) = (field.kind, tail);
    }
    rest.is_empty()
}

/// The flags that init gives the agent for a document, without dashes and values.
fn made(document: &str) -> BTreeSet<String> {
    let effective = one(document);
    assert_eq!(effective.problems, [], "{document}");
    let env = agent_env(&effective.config, "n");
    env.split_once('=')
        .map(|(_, flags)| flags)
        .unwrap_or_default()
        .split_whitespace()
        .map(|flag| flag.trim_start_matches('-').split('=').next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn every_flag_has_a_row_and_every_row_a_flag() {
    let options = OPTIONS.iter().chain(&IGNORED).map(|(name, _)| *name);
    let flags: BTreeSet<&str> = options.chain(OWN).chain(FLAGS.iter().map(|flag| flag.name)).collect();
    let rows: BTreeSet<&str> = rows().into_keys().collect();
    assert_eq!(rows, flags);
}

#[test]
fn every_row_has_keys_of_a_node_config_or_a_reason() {
    for (flag, row) in rows() {
        for key in &row.keys {
            assert!(is_key(key), "--{flag}: NodeConfig has no key {key}");
        }
        assert!(!row.keys.is_empty() || !row.remark.is_empty(), "--{flag}: neither a key nor a reason");
    }
    assert!(!is_key("node.nam") && !is_key("node.name.x") && is_key("kubelet.logging.verbosity"));
}

#[test]
fn flags_of_fields_are_below_kubelet() {
    let rows = rows();
    for flag in FLAGS {
        assert_eq!(rows[flag.name].keys, [format!("kubelet.{}", flag.path)], "--{}", flag.name);
    }
}

#[test]
fn every_key_makes_its_flag() {
    let made: BTreeSet<String> = DOCUMENTS.iter().flat_map(|document| made(document)).collect();
    let rows = rows();
    for (flag, row) in &rows {
        let by_flag = row.keys.iter().any(|key| *key != "kubelet" && !key.starts_with("kubelet."));
        assert_eq!(by_flag, made.contains(*flag), "--{flag}: {:?}", row.keys);
    }
    assert!(made.iter().all(|flag| rows.contains_key(flag.as_str())), "{made:?}");
}

#[test]
fn a_kubeconfig_takes_the_place_of_the_file_of_a_join() {
    let has = |document: &str, flags: [bool; 3]| {
        let made = made(document);
        let all = ["join", "bootstrap-kubeconfig", "kubeconfig"];
        assert_eq!(all.map(|flag| made.contains(flag)), flags, "{document}");
    };
    has(DOCUMENTS[0], [true, false, true]);
    has(DOCUMENTS[1], [false, true, true]);
    has(DOCUMENTS[2], [false, false, true]);
    let effective = one(DOCUMENTS[2]);
    let env = agent_env(&effective.config, "n");
    assert!(env.contains(" --kubeconfig=/etc/kubernetes/kubelet.conf"), "{env}");
    let files = super::run_files(&effective, "");
    assert!(files.iter().all(|file| file.path != super::JOIN_FILE));
    assert!(effective.kubelet.register_node && effective.kubelet.enable_server);
}
