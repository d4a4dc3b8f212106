//! Malformed and malicious pods: each ends with the upstream kubelet's reason and message, and affects no other pod.
//!
//! Cases: `lifecycle/hostile-pods`, `lifecycle/hostile-deaf`, `lifecycle/hostile-many`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, human};
use orlop_harness::cluster::fixture::{Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, container};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::hostile::{ALL, Hostile, shown};
use orlop_harness::say;
use serde_json::json;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: Some("hostile") };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "lifecycle/hostile-pods",
        60,
        "pods that nobody should write end with upstream's reasons and messages, and others go on",
        pods,
    ),
    HERE.case(
        "lifecycle/hostile-deaf",
        20,
        "a pod that ignores SIGTERM has its grace and no more, by deletion and by its deadline",
        deaf,
    ),
    HERE.case(
        "lifecycle/hostile-many",
        60,
        "a pod of a hundred containers runs them all, and others go on",
        many,
    ),
];

/// Prints all that was shown of each pod, to be compared between kubelets.
const PRINT_VARIABLE: &str = "ORLOP_E2E_HOSTILE_PRINT";
/// Number of containers of the pod with many containers.
const CONTAINERS_VARIABLE: &str = "ORLOP_E2E_CONTAINERS";
const NODE: &str = "tough";

fn joined<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Joined> {
    cx.shared_or(|run, artefacts| Joined::start(run, artefacts, Settings::default(), &[NODE]))
}

/// A pod that must not notice anything.
fn bystander(joined: &Joined) -> Result<Pod> {
    let client = joined.cluster.client();
    match client.get(&client.of::<Pod>("default"), "bystander")? {
        Some(pod) => Ok(pod),
        None => joined.run_pod(api_pod("bystander", NODE, STAYS, 1)),
    }
}

/// The bystander is unchanged, and a new pod runs.
fn go_on(joined: &Joined, before: &Pod) -> Result<()> {
    let now = bystander(joined)?;
    let containers = |pod: &Pod| pod.status.as_ref().and_then(|s| s.container_statuses.clone());
    ensure!(containers(&now) == containers(before), "the other pod was touched: {:?}", containers(&now));
    joined.run_pod(api_pod("after", NODE, STAYS, 1))?;
    remove(joined, "after")
}

fn remove(joined: &Joined, name: &str) -> Result<()> {
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), name, None)?;
    await_pod_gone(&joined.cluster, name, 60)
}

fn pods(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = joined(cx)?;
    let before = bystander(joined)?;
    let client = joined.cluster.client();
    let api = client.of::<Pod>("default");
    for hostile in ALL {
        client.create::<Pod>(&api, hostile.pod(NODE)).with_context(|| hostile.name)?;
    }
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let waited = client.wait::<Pod, _>(&api, 60, "everything to be said", |all| {
        for (name, pod) in all {
            seen.entry(name.clone()).or_default().extend(shown(pod));
        }
        unsaid(&seen).is_empty().then_some(())
    });
    if std::env::var_os(PRINT_VARIABLE).is_some() {
        for (name, lines) in &seen {
            lines.iter().for_each(|line| say::line(format!("  {name}: {line}")));
        }
    }
    ensure!(waited.is_ok(), "never said: {:#?}\nof all that was said: {seen:#?}", unsaid(&seen));
    go_on(joined, &before)?;
    for hostile in ALL {
        client.delete::<Pod>(&api, hostile.name, None)?;
    }
    for hostile in ALL {
        await_pod_gone(&joined.cluster, hostile.name, 60)?;
        joined.nodes[0].wait(30, "nothing left of the pod", |v| v.is_stopped(hostile.name).then_some(()))?;
    }
    Ok(())
}

/// The expected messages of each pod that are missing.
fn unsaid(seen: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let said =
        |name: &str, words: &str| seen.get(name).is_some_and(|all| all.iter().any(|l| l.contains(words)));
    let of = |h: &Hostile| {
        let name = h.name;
        h.says.iter().filter(move |w| !said(name, w)).map(move |w| format!("{name}: {w}")).collect::<Vec<_>>()
    };
    ALL.iter().flat_map(of).collect()
}

fn deaf(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = joined(cx)?;
    let before = bystander(joined)?;
    let client = joined.cluster.client();
    let mut pod = api_pod("deaf", NODE, STAYS, 3);
    pod["spec"]["containers"][0]["command"] = json!(["deaf"]);
    joined.run_pod(pod.clone())?;
    let start = Instant::now();
    client.delete::<Pod>(&client.of("default"), "deaf", None)?;
    await_pod_gone(&joined.cluster, "deaf", 60)?;
    let took = start.elapsed();
    ensure!(took.as_secs() >= 3, "it was to have 3 s and had {}", human(took));
    say::line(format!("  a deaf pod with a grace of 3 s was gone after {}", human(took)));
    pod["metadata"]["name"] = json!("late");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod["spec"]["activeDeadlineSeconds"] = json!(2);
    client.create::<Pod>(&client.of("default"), pod)?;
    let all = client.wait::<Pod, _>(&client.of("default"), 60, "the deadline", |all| {
        let lines = shown(all.get("late")?);
        lines.iter().any(|line| line.starts_with("phase Failed")).then_some(lines)
    })?;
    let words = "phase Failed DeadlineExceeded Pod was active on the node longer than the specified deadline";
    ensure!(all.contains(words) && all.contains("ended Error 137"), "{all:?}");
    remove(joined, "late")?;
    go_on(joined, &before)
}

fn many(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = joined(cx)?;
    let before = bystander(joined)?;
    let client = joined.cluster.client();
    let count = std::env::var(CONTAINERS_VARIABLE).map_or(Ok(100), |n| n.parse::<usize>());
    let count = count.with_context(|| format!("{CONTAINERS_VARIABLE} is a number of containers"))?;
    let mut pod = api_pod("many", NODE, STAYS, 1);
    let one = |n: usize| {
        let mut c = container("exit 0");
        c["name"] = json!(format!("c{n}"));
        c
    };
    pod["spec"]["containers"] = (0..count).map(one).collect();
    pod["spec"]["restartPolicy"] = json!("Never");
    let start = Instant::now();
    client.create::<Pod>(&client.of("default"), pod)?;
    // While it is busy with them, another one starts.
    joined.run_pod(api_pod("beside", NODE, STAYS, 1))?;
    say::line(format!("  another pod ran {} after it was made", human(start.elapsed())));
    remove(joined, "beside")?;
    client.wait::<Pod, _>(&client.of("default"), 600, "all containers to have ended", |all| {
        let lines = shown(all.get("many")?);
        lines.contains("phase Succeeded").then_some(())
    })?;
    say::line(format!("  {count} containers of one pod had run after {}", human(start.elapsed())));
    await_pod_ready(&joined.cluster, "bystander", 10)?;
    remove(joined, "many")?;
    joined.nodes[0].wait(120, "nothing left of the pod", |v| v.is_gone("many").then_some(()))?;
    say::line(format!("  and were gone after {}", human(start.elapsed())));
    go_on(joined, &before)
}
