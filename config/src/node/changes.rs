//! What differs between two effective configurations: key by key, with the effect of each change.
//!
//! In: what counts today and what would count. Out: rows in the order of the paths. Invariant: a changed secret has a row, and no row
//! has its value.

use super::change_effect::{ChangeEffect, effect, is_way_in};
use super::cluster_files::{cluster_files_differ, machine_vouches};
use super::effective::Effective;
use super::explain::{is_below, leaves};
use crate::path;
use std::collections::{BTreeMap, BTreeSet};

/// An empty map: the same as no key.
const NOTHING: &str = "{}";

/// A key whose value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Dotted path.
    pub path: String,
    /// As JSON, without secrets; `None`: it was not there.
    pub before: Option<String>,
    /// As JSON, without secrets; `None`: it will not be there.
    pub after: Option<String>,
    /// When the change acts.
    pub effect: ChangeEffect,
    /// The way to the node may depend on it.
    pub is_way_in: bool,
}

/// The keys whose values differ.
#[must_use]
pub fn changes(before: &Effective, after: &Effective) -> Vec<KeyChange> {
    let (old, new) = (values(before), values(after));
    let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut differ: BTreeSet<String> =
        paths.into_iter().filter(|path| old.get(*path) != new.get(*path)).cloned().collect();
    for path in hidden(before, after) {
        if !differ.iter().any(|known| is_below(known, &path)) {
            differ.insert(path);
        }
    }
    let row = |path: String| {
        let (was, will) = (old.get(&path), new.get(&path));
        let effect = match path.as_str() {
            // networkd does not give an interface its own MTU back.
            "network.interfaces" if mtus(before) != mtus(after) => ChangeEffect::Reboot,
            _ => effect(&path, was.map(String::as_str), will.map(String::as_str)),
        };
        let is_way_in = match path.as_str() {
            "files" => cluster_files_differ(before, after),
            "trust.caCertificates" => machine_vouches(before, after),
            _ => is_way_in(&path),
        };
        KeyChange { is_way_in, before: was.cloned(), after: will.cloned(), effect, path }
    };
    differ.into_iter().map(row).collect()
}

fn values(effective: &Effective) -> BTreeMap<String, String> {
    let mut values = leaves(&effective.shown());
    values.retain(|_, value| value != NOTHING);
    values
}

/// Keys whose values people do not see, or not whole, and that differ.
fn hidden(before: &Effective, after: &Effective) -> Vec<String> {
    let (old, new) = (&before.config, &after.config);
    let token = |effective: &Effective| effective.config.join.as_ref().and_then(|join| join.token.clone());
    let mut paths: Vec<String> = [
        ("staticPods", old.static_pods != new.static_pods),
        ("files", old.files != new.files),
        (
            "registries.credentialProviders",
            old.registries.credential_providers != new.registries.credential_providers,
        ),
        ("proxy.http", old.proxy.http != new.proxy.http),
        ("proxy.https", old.proxy.https != new.proxy.https),
        ("join.token", token(before) != token(after)),
        (
            "kubelet.staticPodURLHeader",
            before.kubelet.static_pod_url_header != after.kubelet.static_pod_url_header,
        ),
    ]
    .into_iter()
    .filter(|&(_, differs)| differs)
    .map(|(path, _)| path.to_owned())
    .collect();
    for (host, mirror) in &new.registries.mirrors {
        let known = old.registries.mirrors.get(host);
        if known.is_some_and(|known| known.client_key_data != mirror.client_key_data) {
            paths.push(format!("{}.clientKeyData", path::child("registries.mirrors", host)));
        }
    }
    paths
}

/// The MTUs that documents give to interfaces, by the interfaces' names.
fn mtus(effective: &Effective) -> BTreeSet<(&str, i32)> {
    let interfaces = effective.config.network.interfaces.iter();
    interfaces.filter_map(|interface| Some((interface.name.as_str(), interface.mtu?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::load;
    use crate::node::tests::source;

    fn loaded(body: &str) -> Effective {
        let effective = load(&[source("node", body)], &[]);
        assert_eq!(effective.accepted.len(), 1, "{:?}", effective.problems);
        effective
    }

    fn rows(before: &str, after: &str) -> Vec<KeyChange> {
        changes(&loaded(before), &loaded(after))
    }

    fn paths(rows: &[KeyChange]) -> Vec<&str> {
        rows.iter().map(|row| row.path.as_str()).collect()
    }

    #[test]
    fn nothing_differs_from_itself() {
        let body = "labels: {a: b}\nnetwork: {interfaces: [{name: eth0, addresses: [192.0.2.1/24]}]}\n";
        assert_eq!(rows(body, body), []);
        assert_eq!(rows("", "labels: {}\n"), []);
    }

    #[test]
    fn keys_that_come_go_and_differ() {
        let found = rows(
            "labels: {a: b}\nkubelet: {maxPods: 5}\n",
            "kubelet: {maxPods: 6}\ntaints: [{key: k, effect: NoSchedule}]\n",
        );
        assert_eq!(paths(&found), ["kubelet.maxPods", "kubelet.registerWithTaints", "labels.a", "taints"]);
        let values = |at: usize| (found[at].before.as_deref(), found[at].after.as_deref());
        assert_eq!((values(0), values(2)), ((Some("5"), Some("6")), (Some("\"b\""), None)));
        assert!(found.iter().all(|row| row.effect == ChangeEffect::RestartsKubelet && !row.is_way_in));
    }

    #[test]
    fn a_changed_secret_has_a_row_without_its_value() {
        let with = |secret: &str| {
            format!(
                "proxy: {{http: 'http://u:{secret}@p'}}\nfiles: [{{path: /etc/kubernetes/a, content: {secret}}}]\n\
                 staticPods: [{{name: web, manifest: {{apiVersion: v1, kind: Pod, metadata: {{name: web, labels: {{l: {secret}}}}}}}}}]\n\
                 kubelet: {{staticPodURLHeader: {{A: [{secret}]}}}}\n"
            )
        };
        let found = rows(&with("hunter2"), &with("hunter3"));
        assert_eq!(paths(&found), ["files", "kubelet.staticPodURLHeader", "proxy.http", "staticPods"]);
        assert!(!format!("{found:?}").contains("hunter"), "{found:?}");
    }

    #[test]
    fn an_interface_acts_live_unless_its_mtu_changes() {
        let with = |rest: &str| {
            format!("network: {{interfaces: [{{name: eth0, addresses: [192.0.2.1/24]{rest}}}]}}\n")
        };
        let effect = |before: &str, after: &str| rows(&with(before), &with(after))[0].effect;
        assert_eq!(effect("", ", gateway: 192.0.2.2"), ChangeEffect::Network);
        assert_eq!(effect("", ", mtu: 1400"), ChangeEffect::Reboot);
        assert_eq!(effect(", mtu: 1400", ", mtu: 1400, gateway: 192.0.2.2"), ChangeEffect::Network);
        let found = rows(&with(""), &with(", gateway: 192.0.2.2"));
        assert!(found[0].is_way_in && paths(&found) == ["network.interfaces"]);
    }
}
