//! Status of a pod's containers: termination messages, resources, user, mounts.
//!
//! Cases: `join/last-words`, `join/container-fields`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone, container};
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "join/last-words",
        20,
        "termination messages: from the file, from the log after a failure only, cut where they must be",
        last_words,
    ),
    HERE.case(
        "join/container-fields",
        20,
        "resources, allocated resources, user and mounts of a container are shown as they are",
        container_fields,
    ),
];

/// A container with another name and script.
fn named(name: &str, script: &str) -> serde_json::Value {
    let mut c = container(script);
    c["name"] = json!(name);
    c
}

fn last_words(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let mut pod = api_pod("words", "first", STAYS, 1);
    let fallback = |name: &str, script: &str| {
        let mut c = named(name, script);
        c["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
        c
    };
    let long = "for n in $(busybox seq 1 100); do echo line $n; done; exit 1";
    let mut elsewhere = named("elsewhere", "echo found > /tmp/words; exit 0");
    elsewhere["terminationMessagePath"] = json!("/tmp/words");
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"] = json!([
        named("file", "echo -n so long > /dev/termination-log; exit 3"),
        named("silent", "echo not in the message; exit 3"),
        named("flood", "head -c 10000 /dev/zero | tr '\\0' x > /dev/termination-log; exit 3"),
        fallback("log", long),
        fallback("well", "echo nobody asks; exit 0"),
        fallback("said", "echo log; echo -n file > /dev/termination-log; exit 1"),
        elsewhere,
    ]);
    client.create::<Pod>(&client.of("default"), pod)?;
    let statuses = client.wait::<Pod, _>(&client.of("default"), 60, "all containers to end", |all| {
        let status = all.get("words")?.status.as_ref()?;
        (status.phase.as_deref() == Some("Failed")).then(|| status.container_statuses.clone())
    })?;
    let message = |name: &str| -> Result<String> {
        let statuses = statuses.as_ref().context("no container statuses")?;
        let of = statuses.iter().find(|s| s.name == name).with_context(|| format!("no status of {name}"))?;
        let ended = of.state.as_ref().and_then(|s| s.terminated.clone()).context("not terminated")?;
        Ok(ended.message.unwrap_or_default())
    };
    let log: String = (21..=100).map(|n| format!("line {n}\n")).collect();
    // Seven containers share 12 KiB.
    let share = 12 * 1024 / 7;
    for (name, expected) in [
        ("file", "so long".to_owned()),
        ("silent", String::new()),
        ("flood", "x".repeat(share)),
        ("log", log),
        ("well", String::new()),
        ("said", "file".to_owned()),
        ("elsewhere", "found\n".to_owned()),
    ] {
        let is = message(name)?;
        ensure!(is == expected, "{name} said {is:?}, expected {expected:?}");
    }
    client.delete::<Pod>(&client.of("default"), "words", None)?;
    await_pod_gone(&joined.cluster, "words", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}

fn container_fields(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let mut pod = api_pod("fields", "first", STAYS, 1);
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": {}}]);
    let c = &mut pod["spec"]["containers"][0];
    c["resources"] = json!({"requests": {"cpu": "33m", "memory": "8Mi"}, "limits": {"memory": "64M"}});
    c["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1001});
    c["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch", "readOnly": true}]);
    let made = joined.run_pod(pod)?;
    let status = made.status.and_then(|s| s.container_statuses).context("no container statuses")?;
    let of = status.first().context("no container status")?;
    let shown = |s: &ContainerStatus| json!({"resources": s.resources, "allocated": s.allocated_resources, "user": s.user, "mounts": s.volume_mounts});
    let requests = json!({"cpu": "33m", "memory": "8Mi"});
    let expected = json!({
        "resources": {"requests": requests, "limits": {"memory": "64M"}},
        "allocated": requests,
        "user": {"linux": {"uid": 1000, "gid": 1001, "supplementalGroups": [1001]}},
        "mounts": [{"name": "scratch", "mountPath": "/scratch", "readOnly": true, "recursiveReadOnly": "Disabled"}],
    });
    ensure!(shown(of) == expected, "{:#}\nexpected\n{expected:#}", shown(of));
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "fields", None)?;
    await_pod_gone(&joined.cluster, "fields", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}
