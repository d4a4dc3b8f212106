//! `/stats/summary`: figures of a pod with a known load, and the set of fields compared with the upstream kubelet's.
//!
//! ```text
//! pod "works" ──► node ──► summary ──► plausible? ──► paths of its fields ──► compared
//! golden/{summary-fields,cadvisor-series}.json ◄── the same, with the upstream kubelet in the agent's place and RECORD set
//! ```
//! In: the group's first node. Out: figures out of bounds, and unexpected differences of the fields.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, await_pod_gone, burner, holder, named_container,
};
use orlop_harness::say;
use serde_json::{Value, json};

/// If set, the result is recorded and not compared.
pub const RECORD: &str = "ORLOP_E2E_RECORD_STATS";

/// Cases of this file.
pub const CASES: &[Case] = &[CaseDefaults { level: Level::L4n, group: GROUP }.case(
    "api/stats",
    60,
    "figures of a pod that burns, holds and writes are right, and no field is missing that upstream tells",
    stats,
)];

const MIB: u64 = 1 << 20;
const POD: &str = "works";
/// CPU limit of the container that burns, in thousandths.
const BURNS_MILLI: u64 = 200;
/// Parts of paths that only upstream has, with the reason. A native node has cgroup v1.
const NOT_TOLD: &[(&str, &str)] = &[
    (".psi.", "cgroup v1 has no pressure of a cgroup; upstream tells zeros"),
    (".io.time", "nothing but pressure is told of devices"),
    (".systemContainers[pods].", "cgroup v1 is not read"),
    ("].swap.", "the runtime tells no swap of cgroup v1"),
    ("pod.swap.", "the same"),
    ("pod.memory.availableBytes", "there is no limit; upstream tells 0"),
];
/// Parts of paths that only this node has.
const TOLD_BESIDES: &[(&str, &str)] = &[
    ("node.network.", "of the interface that leads out; upstream's is always eth0"),
    (".systemContainers[", "where there is a unified hierarchy"),
];

/// Parts of series that only upstream's cadvisor has, with the reason.
const NO_SERIES: &[(&str, &str)] = &[
    ("cadvisor_version_info", "there is no cadvisor"),
    ("container_cpu_load_", "nobody reads it; upstream tells zeros"),
    ("container_tasks_state", "the same"),
    ("container_health_state", "the runtime knows none"),
    ("machine_cpu_books", "of mainframes; upstream tells zeros elsewhere"),
    ("machine_cpu_drawers", "the same"),
    ("machine_nvm_", "nobody reads it; upstream tells zeros"),
    ("/ container_fs_", "of the disk of the kubelet's root directory alone"),
    ("/ container_file_descriptors", "the machine's processes are not counted"),
    ("/ container_processes", "the same"),
    ("/ container_sockets", "the same"),
    ("/ container_threads_max", "the same"),
    ("/ container_ulimits_soft", "the same"),
    ("/ container_start_time_seconds", "the whole hierarchy of cgroup v1 has no directory of its own"),
    ("container_spec_", "the files of cgroup v1 are not read, and the runtime does not tell it"),
    ("container_memory_failcnt", "the same"),
    ("container_memory_kernel_usage", "the same"),
    ("container_memory_max_usage_bytes", "the same"),
    ("container_cpu_cfs_", "the same"),
    ("s container_cpu_system_seconds_total", "the same"),
    ("s container_cpu_user_seconds_total", "the same"),
    ("s container_memory_cache", "the same"),
    ("s container_memory_mapped_file", "the same"),
    ("s container_memory_swap", "the same"),
    ("s container_memory_total_", "the same"),
    ("s container_oom_events_total", "the same"),
    ("s container_start_time_seconds", "the same"),
    ("s container_threads", "the same"),
    ("sandbox container_cpu_", "the runtime tells nothing of sandboxes here"),
    ("sandbox container_memory_", "the same"),
    ("sandbox container_oom_events_total", "the same"),
    ("sandbox container_start_time_seconds", "the same"),
    ("sandbox container_threads", "the same"),
];
/// Parts of series that only this node has.
const SERIES_BESIDES: &[(&str, &str)] = &[(
    "/ container_pressure_",
    "of /proc/pressure; upstream tells pressure where there is a unified hierarchy",
)];

fn stats(cx: &mut CaseContext<'_>) -> Result<()> {
    let artefacts = cx.artefacts.clone();
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    client.create::<ConfigMap>(
        &client.of("default"),
        json!({"metadata": {"name": POD}, "data": {"key": "value"}}),
    )?;
    joined.run_pod(pod())?;
    let summary = await_plausible(joined)?;
    let only = get(joined, "?only_cpu_and_memory=true")?;
    let pod = of_pod(&only).context("the pod, with only_cpu_and_memory")?;
    ensure!(pod["containers"][0].get("rootfs").is_none() && pod.get("volume").is_none(), "{pod}");
    ensure!(only["node"].get("fs").is_none() && only["node"]["cpu"].is_object(), "{}", only["node"]);
    let seen = fields(&summary)?;
    let metrics = joined.cluster.client().raw("/api/v1/nodes/first/proxy/metrics/cadvisor")?;
    fs::create_dir_all(&artefacts).and_then(|()| fs::write(artefacts.join("cadvisor.txt"), &metrics))?;
    ensure_metrics(&metrics)?;
    let resource = joined.cluster.client().raw("/api/v1/nodes/first/proxy/metrics/resource")?;
    ensure_resource(&resource)?;
    let told = series(&metrics)?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), POD, Some(0))?;
    await_pod_gone(&joined.cluster, POD, 60)?;
    client.delete::<ConfigMap>(&client.of("default"), POD, None)?;
    compare("summary-fields", &seen, NOT_TOLD, TOLD_BESIDES)?;
    compare("cadvisor-series", &told, NO_SERIES, SERIES_BESIDES)
}

/// Burns a part of a processor; holds 64 MiB; writes 20 MiB into its own layer, 4 MiB to one volume, 3 MiB to another and
/// 1 MiB to its log.
fn pod() -> Value {
    let fill = |file: &str, mib: u64| format!("dd if=/dev/zero of={file} bs=1M count={mib} 2>/dev/null");
    let script = format!(
        "{}; {}; {}; head -c 1048576 /dev/zero | tr '\\0' x | fold -w 1023; touch /tmp/done; {STAYS}",
        fill("/tmp/own", 20),
        fill("/disk/file", 4),
        fill("/memory/file", 3)
    );
    let mut writes = named_container("writes", &script);
    // Volumes are measured once a minute: the first measurement must find all files.
    writes["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/done"]}, "periodSeconds": 1, "failureThreshold": 90});
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    writes["volumeMounts"] = ["disk", "memory", "config", "down"].map(mount).into();
    let field = json!({"path": "name", "fieldRef": {"fieldPath": "metadata.name"}});
    json!({"metadata": {"name": POD}, "spec": {
        "nodeSelector": {"kubernetes.io/hostname": "first"},
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "containers": [burner(BURNS_MILLI), holder(64), writes],
        "volumes": [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
            {"name": "config", "configMap": {"name": POD}},
            {"name": "down", "downwardAPI": {"items": [field]}},
        ],
    }})
}

fn get(joined: &Joined, query: &str) -> Result<Value> {
    let text = joined.cluster.client().raw(&format!("/api/v1/nodes/first/proxy/stats/summary{query}"))?;
    serde_json::from_str(&text).with_context(|| format!("the summary: {text:.200}"))
}

fn of_pod(summary: &Value) -> Option<&Value> {
    summary["pods"].as_array()?.iter().find(|pod| pod["podRef"]["name"] == POD)
}

/// Rates need two questions, and a runtime measures layers now and then.
fn await_plausible(joined: &mut Joined) -> Result<Value> {
    let (start, deadline) = (Instant::now(), Instant::now() + Duration::from_secs(120));
    loop {
        let summary = get(joined, "")?;
        match plausible(&summary) {
            Ok(()) => {
                say::line(format!("  plausible after {:.1} s", start.elapsed().as_secs_f64()));
                return Ok(summary);
            }
            Err(error) if Instant::now() >= deadline => {
                return Err(
                    error.context(format!("after two minutes: {:#}", of_pod(&summary).unwrap_or(&summary)))
                );
            }
            Err(_) => joined.nodes[0].pass(Duration::from_secs(1))?,
        }
    }
}

fn plausible(summary: &Value) -> Result<()> {
    let pod = of_pod(summary).context("the pod is not there")?;
    let named = |list: &'static str, name: &str| {
        let found = pod[list].as_array().into_iter().flatten().find(|item| item["name"] == name);
        found.with_context(|| format!("no {name} among {list}"))
    };
    let within = |what: &str, of: &Value, path: &str, low: u64, high: u64| -> Result<()> {
        let found = of.pointer(path).and_then(Value::as_u64);
        let fits = found.is_some_and(|found| (low..=high).contains(&found));
        ensure!(fits, "{what}{path} is {found:?}, not {low} to {high}");
        Ok(())
    };
    let (burns, holds, writes) =
        (named("containers", "burns")?, named("containers", "holds")?, named("containers", "writes")?);
    // Other work may keep the container from its share; the limit applies to periods of 100 ms.
    within("burns", burns, "/cpu/usageNanoCores", 40 * 1_000_000, (BURNS_MILLI + 50) * 1_000_000)?;
    within("burns", burns, "/cpu/usageCoreNanoSeconds", 100_000_000, 3_600_000_000_000)?;
    within("holds", holds, "/cpu/usageNanoCores", 0, 20_000_000)?;
    for path in ["/memory/workingSetBytes", "/memory/rssBytes"] {
        within("holds", holds, path, 64 * MIB, 260 * MIB)?;
        within("burns", burns, path, 4096, 20 * MIB)?;
    }
    within("writes", writes, "/rootfs/usedBytes", 20 * MIB, 22 * MIB)?;
    within("writes", writes, "/rootfs/inodesUsed", 1, 100)?;
    within("writes", writes, "/logs/usedBytes", MIB, 2 * MIB)?;
    within("disk", named("volume", "disk")?, "/usedBytes", 4 * MIB, 5 * MIB)?;
    within("memory", named("volume", "memory")?, "/usedBytes", 3 * MIB, 4 * MIB)?;
    within("memory", named("volume", "memory")?, "/capacityBytes", 8 * MIB, 8 * MIB)?;
    // Layer, log and the volume on the disk; the one in memory is not the disk's.
    within("pod", pod, "/ephemeral-storage/usedBytes", 25 * MIB, 29 * MIB)?;
    within("pod", pod, "/memory/workingSetBytes", 64 * MIB, 320 * MIB)?;
    within("pod", pod, "/cpu/usageNanoCores", 40 * 1_000_000, (BURNS_MILLI + 100) * 1_000_000)?;
    within("pod", pod, "/process_stats/process_count", 3, 20)?;
    within("pod", pod, "/network/interfaces/0/rxBytes", 0, u64::MAX)?;
    let node = &summary["node"];
    let capacity =
        node.pointer("/fs/capacityBytes").and_then(Value::as_u64).context("no size of the node's disk")?;
    within("node", node, "/fs/usedBytes", 1, capacity)?;
    within("node", node, "/memory/workingSetBytes", 64 * MIB, 1 << 50)?;
    within("node", node, "/cpu/usageNanoCores", 1_000_000, 1 << 40)?;
    within("node", node, "/rlimit/curproc", 10, 1 << 32)?;
    within("node", node, "/runtime/imageFs/usedBytes", 1 << 10, 1 << 50)
}

/// Paths of all fields of the node and of the pod that have a value; elements of lists by their names.
fn fields(summary: &Value) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    walk("node", &summary["node"], &mut found);
    walk("pod", of_pod(summary).context("the pod")?, &mut found);
    Ok(found)
}

fn walk(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Null => {}
        Value::Object(object) => {
            object.iter().for_each(|(key, value)| walk(&format!("{path}.{key}"), value, found))
        }
        // Interfaces of a machine are its own; containers, volumes and parts of the node have names that are known.
        Value::Array(list) => list.iter().for_each(|item| {
            let name = item["name"].as_str().filter(|_| !path.ends_with(".interfaces")).unwrap_or_default();
            walk(&format!("{path}[{name}]"), item, found);
        }),
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// Series and their owners: the machine, the whole hierarchy, the pod's own cgroup, its sandbox and its containers.
fn series(text: &str) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.split_once("} ").unwrap_or((line, ""));
        let (name, labels) = series.split_once('{').unwrap_or((line.split(' ').next().unwrap_or(line), ""));
        let pairs = labels.split("\",").filter_map(|pair| pair.split_once("=\""));
        let mut labels: BTreeMap<&str, &str> =
            pairs.map(|(name, value)| (name, value.trim_end_matches('"'))).collect();
        let Some(who) = who(name, &mut labels).with_context(|| line.to_owned())? else { continue };
        // Devices, interfaces and versions are the machine's own.
        let of_chance = |label: &str| {
            ["device", "interface", "major", "minor"].contains(&label) || name == "cadvisor_version_info"
        };
        let labels =
            labels.iter().map(|(n, v)| if of_chance(n) { (*n).to_owned() } else { format!("{n}={v}") });
        found.insert(format!("{who} {name}{{{}}}", labels.collect::<Vec<_>>().join(",")));
    }
    Ok(found)
}

/// Removes the labels that name the owner; `None` for other pods and cgroups.
fn who<'a>(name: &str, labels: &mut BTreeMap<&'a str, &'a str>) -> Result<Option<&'a str>> {
    let mut take = |label| labels.remove(label).with_context(|| format!("no label {label}"));
    if name.starts_with("machine_") && name != "machine_scrape_error" {
        take("boot_id")?;
        take("machine_id")?;
        take("system_uuid")?;
        return Ok(Some("machine"));
    }
    if !name.starts_with("container_") || name == "container_scrape_error" {
        return Ok(Some("node"));
    }
    let (pod, container, id) = (take("pod")?, take("container")?, take("id")?);
    let (name, _, _) = (take("name")?, take("image")?, take("namespace")?);
    Ok(match (id, pod, container, name) {
        ("/", ..) => Some("/"),
        (_, POD, "", "") => Some("pod"),
        (_, POD, "", _) => Some("sandbox"),
        (_, POD, container, _) => Some(container),
        _ => None,
    })
}

/// The figures that dashboards use.
fn ensure_metrics(text: &str) -> Result<()> {
    let amount = |name: &str, labels: &[String]| {
        let has = |line: &&str| labels.iter().all(|label| line.contains(label.as_str()));
        let line = text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).find(has)?;
        line.rsplit_once("} ")?.1.split(' ').next()?.parse::<f64>().ok()
    };
    let of = |container: &str| vec![format!("container=\"{container}\""), format!("pod=\"{POD}\"")];
    for (series, labels, low) in [
        ("container_cpu_usage_seconds_total", of("burns"), 0.1),
        ("container_memory_working_set_bytes", of("holds"), (64 * MIB) as f64),
        ("container_memory_rss", of("holds"), (64 * MIB) as f64),
    ] {
        let found = amount(series, &labels);
        ensure!(
            found.is_some_and(|found| found >= low),
            "{series} {labels:?} is {found:?}, not {low} at least"
        );
    }
    Ok(())
}

/// All figures that metrics-server uses: of every container time, memory and start, of the node time and memory.
fn ensure_resource(text: &str) -> Result<()> {
    let amount = |series: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(series))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    let mut wanted =
        vec!["node_cpu_usage_seconds_total".to_owned(), "node_memory_working_set_bytes".to_owned()];
    for container in ["burns", "holds", "writes"] {
        for name in [
            "container_cpu_usage_seconds_total",
            "container_memory_working_set_bytes",
            "container_start_time_seconds",
        ] {
            wanted.push(format!("{name}{{container=\"{container}\",namespace=\"default\",pod=\"{POD}\"}}"));
        }
    }
    for series in wanted {
        ensure!(amount(&series).is_some_and(|value| value > 0.0), "{series}:\n{text}");
    }
    ensure!(amount("resource_scrape_error") == Some(0.0), "{text}");
    Ok(())
}

fn compare(
    what: &str,
    seen: &BTreeSet<String>,
    not_told: &[(&str, &str)],
    told_besides: &[(&str, &str)],
) -> Result<()> {
    let record: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{what}.json"));
    if env::var_os(RECORD).is_some() {
        let text = format!("{}\n", serde_json::to_string_pretty(seen)?);
        fs::write(&record, text).with_context(|| format!("write {}", record.display()))?;
        say::line(format!("  written to {}", record.display()));
        return Ok(());
    }
    let text = fs::read_to_string(&record).with_context(|| format!("read {}", record.display()))?;
    let upstream: BTreeSet<String> = serde_json::from_str(&text).context("the record")?;
    let named = |list: &[(&str, &str)], path: &String| list.iter().any(|(part, _)| path.contains(part));
    let missing: Vec<_> = upstream.difference(seen).filter(|path| !named(not_told, path)).collect();
    let besides: Vec<_> = seen.difference(&upstream).filter(|path| !named(told_besides, path)).collect();
    say::line(format!(
        "  {what}: {}, {} of them upstream's",
        seen.len(),
        seen.intersection(&upstream).count()
    ));
    ensure!(missing.is_empty() && besides.is_empty(), "not told: {missing:#?}; told besides: {besides:#?}");
    Ok(())
}
