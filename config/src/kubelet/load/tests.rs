//! Drop-ins: the rules of `--config-dir`, and the laws of a merge patch on whole configurations.

use super::*;
use crate::kubelet::flags::Overlay;
use proptest::prelude::*;
use serde_json::json;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn merge(base: &str, parts: &[&str]) -> Result<KubeletConfiguration, ConfigError> {
    let base = format!("{HEAD}{base}");
    let parts: Vec<DropIn> = parts
        .iter()
        .enumerate()
        .map(|(i, text)| DropIn { path: format!("/d/{i}.conf"), text: format!("{HEAD}{text}") })
        .collect();
    load_kubelet_config_with(Some((&base, "/etc/k.yaml")), &parts, &Overlay::default())
}

#[test]
fn maps_merge_lists_replace_null_deletes_later_wins() {
    let c = merge(
        "maxPods: 20\nevictionHard: {memory.available: 1Gi, pid.available: 10%}\nclusterDNS: [10.0.0.1, 10.0.0.2]",
        &[
            "evictionHard: {memory.available: null, nodefs.available: 1%}\nclusterDNS: [10.9.9.9]\nmaxPods: 30",
            "maxPods: 40\nsystemReserved: {cpu: 100m}",
        ],
    )
    .expect("valid");
    assert_eq!(c.max_pods, 40);
    assert_eq!(c.cluster_dns, ["10.9.9.9"]);
    let hard: Vec<(&str, &str)> = c.eviction_hard.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(hard, [("nodefs.available", "1%"), ("pid.available", "10%")]);
    assert_eq!(c.system_reserved["cpu"], "100m");
}

#[test]
fn the_base_has_its_defaults_before_the_merge() {
    // The report frequency was defaulted to five minutes before the drop-in came.
    let c = merge("", &["nodeStatusUpdateFrequency: 7s\nevictionHard: {pid.available: 5%}"]).expect("valid");
    assert_eq!(c.node_status_report_frequency, crate::Duration::from_mins(5));
    assert_eq!(c.eviction_hard.len(), 6);
    let error = merge("", &["maxParallelImagePulls: 5"]).expect_err("serialised by default");
    assert_eq!(
        error.to_string(),
        "invalid configuration: /d/0.conf: maxParallelImagePulls: 5 needs serializeImagePulls: false when it is \
         more than 1"
    );
}

#[test]
fn what_is_deleted_gets_its_default_again() {
    let c = merge("maxPods: 20\nport: 1000\naddress: 10.0.0.1", &["maxPods: null\nport: 0\naddress: ''"]);
    assert_eq!(c.expect("valid"), KubeletConfiguration::default());
}

#[test]
fn version_kind_and_shape_are_checked_in_each() {
    let base = format!("{HEAD}maxPods: 20");
    let parts = [DropIn { path: "/d/a.conf".to_owned(), text: "maxPods: 1".to_owned() }];
    let error = load_kubelet_config_with(Some((&base, "/k")), &parts, &Overlay::default());
    assert_eq!(
        error.expect_err("no head").to_string(),
        "invalid configuration: /d/a.conf: apiVersion: must be kubelet.config.k8s.io/v1beta1; /d/a.conf: kind: \
         must be KubeletConfiguration"
    );
    let error = merge("", &["maxPods: 5", "maxPod: 5"]).expect_err("unknown field").to_string();
    assert_eq!(
        error,
        "invalid configuration: /d/1.conf:3: maxPod: is an unknown field, did you mean maxPods?"
    );
}

/// Valid documents whose values may also meet as drop-ins.
fn part() -> impl Strategy<Value = Value> {
    let one = prop_oneof![
        (0..5).prop_map(|n| json!({"maxPods": n})),
        Just(json!({"maxPods": null})),
        (1..5).prop_map(|n| json!({"evictionHard": {"memory.available": format!("{n}Gi")}})),
        Just(json!({"evictionHard": {"memory.available": null, "pid.available": "5%"}})),
        Just(json!({"evictionHard": null})),
        Just(json!({"clusterDNS": ["10.0.0.1"]})),
        Just(json!({"clusterDNS": []})),
        Just(json!({"authentication": {"anonymous": {"enabled": true}}})),
        Just(json!({"authentication": {"webhook": {"cacheTTL": "1m"}}})),
        Just(json!({"authentication": null})),
        Just(json!({"memorySwap": {"swapBehavior": "LimitedSwap"}})),
        Just(json!({"featureGates": {"MemoryQoS": true}})),
        Just(json!({"featureGates": {"MemoryQoS": null, "EnvFiles": false}})),
        Just(json!({"syncFrequency": "0s"})),
        (1..5).prop_map(|n| json!({"syncFrequency": format!("{n}m")})),
        Just(json!({"tracing": {"samplingRatePerMillion": 5}})),
        Just(json!({"tracing": null})),
    ];
    proptest::collection::vec(one, 0..4).prop_map(|parts| {
        let mut all = json!({"apiVersion": API_VERSION, "kind": KIND});
        parts.into_iter().for_each(|p| merge::apply_keeping_nulls(&mut all, p));
        all
    })
}

fn configured(base: &Value, parts: &[&Value]) -> KubeletConfiguration {
    let parts: Vec<DropIn> =
        parts.iter().map(|p| DropIn { path: "d".to_owned(), text: p.to_string() }).collect();
    let base = base.to_string();
    load_kubelet_config_with(Some((&base, "b")), &parts, &Overlay::default())
        .unwrap_or_else(|e| panic!("{e}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_empty_drop_in_changes_nothing(base in part()) {
        let empty = json!({"apiVersion": API_VERSION, "kind": KIND});
        prop_assert_eq!(configured(&base, &[&empty]), configured(&base, &[]));
    }

    #[test]
    fn a_drop_in_twice_is_a_drop_in_once(base in part(), a in part()) {
        prop_assert_eq!(configured(&base, &[&a, &a]), configured(&base, &[&a]));
    }

    #[test]
    fn two_drop_ins_are_their_sum(base in part(), a in part(), b in part()) {
        let mut sum = a.clone();
        merge::apply_keeping_nulls(&mut sum, b.clone());
        // Deleting a map and filling it again is the one thing a single patch cannot say.
        let refilled = ["authentication", "evictionHard", "tracing", "featureGates"]
            .iter()
            .any(|k| a.get(*k).is_some_and(Value::is_null) && b.get(*k).is_some_and(Value::is_object));
        prop_assume!(!refilled);
        prop_assert_eq!(configured(&base, &[&a, &b]), configured(&base, &[&sum]));
    }

    #[test]
    fn the_json_form_reads_back(base in part()) {
        let config = configured(&base, &[]);
        prop_assert_eq!(configured(&to_value(&config), &[]), config);
    }

    #[test]
    fn any_text_is_answered(text in "\\PC{0,120}") {
        let _ = load_kubelet_config(&text, "f");
        let _ = load_kubelet_config(&format!("{HEAD}{text}"), "f");
    }
}
