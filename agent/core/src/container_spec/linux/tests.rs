//! Tables of the kernel numbers.

use serde_json::{Value, json};

use super::*;

const GIB: i64 = 1 << 30;

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec})).unwrap()
}

#[test]
fn shares_and_quota() {
    for (milli, shares) in [(0, 2), (1, 2), (2, 2), (10, 10), (500, 512), (1000, 1024), (1_000_000, 262_144)]
    {
        assert_eq!(cpu_shares(milli), shares, "{milli}");
    }
    for (milli, quota) in [(0, 0), (1, 1000), (10, 1000), (11, 1100), (500, 50_000), (2000, 200_000)] {
        assert_eq!(cpu_quota_us(milli, 100_000), quota, "{milli}");
    }
}

#[test]
fn a_limit_without_request_weighs_as_its_limit_and_a_request_of_zero_does_not() {
    let node = NodeContext::new("n");
    let table = [
        (json!({"limits": {"cpu": "500m"}}), 512),
        (json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}}), 102),
        (json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "0"}}), 2),
        (json!({}), 2),
    ];
    for (resources, shares) in table {
        let pod = pod(json!({"containers": [{"name": "c", "resources": resources}]}));
        let resources = container_resources(&pod, &pod::containers(&pod)[0], &node);
        assert_eq!(resources.cpu_shares, shares);
    }
}

#[test]
fn overhead_is_the_sandboxs_own() {
    let node = NodeContext::new("n");
    let with = |overhead: Value| {
        pod(json!({"overhead": overhead, "containers": [{"name": "c", "resources":
            {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "1Gi"}}}]}))
    };
    let both = with(json!({"cpu": "250m", "memory": "64Mi"}));
    let own = sandbox_overhead(&both, &node);
    assert_eq!((own.cpu_shares, own.cpu_quota_us, own.memory_limit_bytes), (256, 25_000, 64 << 20));
    let containers = sandbox_resources(&both, &node);
    assert_eq!(
        (containers.cpu_shares, containers.cpu_quota_us, containers.memory_limit_bytes),
        (1024, 100_000, GIB)
    );
    let memory_only = sandbox_overhead(&with(json!({"memory": "1Mi"})), &node);
    assert_eq!((memory_only.cpu_shares, memory_only.cpu_quota_us), (2, 0));
    assert!(sandbox_overhead(&with(json!(null)), &node).is_unset());
}

#[test]
fn page_sizes() {
    for (size, expected) in
        [("2Mi", Some("2MB")), ("1Gi", Some("1GB")), ("64Ki", Some("64KB")), ("512", None), ("x", None)]
    {
        assert_eq!(kernel_page_size(size).as_deref(), expected, "{size}");
    }
}

#[test]
fn everything_on_cgroup_v2_and_v1() {
    let pod = pod(json!({"containers": [{"name": "c", "resources": {
        "requests": {"cpu": "100m", "memory": "64Mi"},
        "limits": {"cpu": "1", "memory": "128Mi", "hugepages-2Mi": "4Mi"}}}]}));
    let mut node = NodeContext::new("n");
    node.machine.memory_capacity_bytes = GIB;
    node.machine.hugepage_sizes = vec!["2MB".into(), "1GB".into()];
    node.cgroup.swap_controller = true;
    let container = &pod::containers(&pod)[0];
    let v2 = container_resources(&pod, container, &node);
    let expected = LinuxResources {
        cpu_period_us: 100_000,
        cpu_quota_us: 100_000,
        cpu_shares: 102,
        memory_limit_bytes: 128 << 20,
        oom_score_adj: 938,
        hugepage_limits: [("2MB".to_owned(), 4 << 20), ("1GB".to_owned(), 0)].into(),
        unified: [("memory.oom.group", "1"), ("memory.swap.max", "0")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        ..LinuxResources::default()
    };
    assert_eq!(v2, expected);

    node.cgroup.v2 = false;
    node.cgroup.cpu_cfs_quota = false;
    let v1 = container_resources(&pod, container, &node);
    assert_eq!((v1.cpu_quota_us, v1.cpu_period_us), (0, 0));
    assert_eq!(v1.memory_swap_limit_bytes, 128 << 20);
    assert!(v1.unified.is_empty());
}
