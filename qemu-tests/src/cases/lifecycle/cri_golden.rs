//! The CRI configurations of a pod, compared with those of the upstream kubelet for the same pod.
//!
//! ```text
//! pods (cri_golden/pods.rs) ──► agent ──► containerd ──► configurations as containerd keeps them ──► compared
//! golden/upstream.json ◄── the same, with the upstream kubelet in the agent's place and RECORD set
//! ```
//! In: the group's first node. Out: a difference by path. Invariants: random values (UIDs, addresses, ids) are
//! replaced by names before the comparison; nothing else may differ.

mod pods;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, await_pod_gone, await_pod_ready};
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use orlop_proto::cri::v1 as cri;
use serde_json::{Map, Value, json};

/// If set, the result is recorded and not compared.
pub const RECORD: &str = "ORLOP_E2E_RECORD_CRI";

/// Cases of this file.
pub const CASES: &[Case] = &[CaseDefaults { level: Level::L4n, group: GROUP }.case(
    "lifecycle/cri-golden",
    40,
    "the runtime is told the same of a pod as the upstream kubelet tells it",
    golden,
)];

fn golden(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let client = joined.cluster.client();
    let data = json!({"metadata": {"name": pods::OBJECTS}, "data": {"key": "value"}});
    client.create::<ConfigMap>(&client.of("default"), data.clone())?;
    let mut secret = data;
    secret["stringData"] = json!({"key": "secret"});
    secret["data"] = json!({});
    client.create::<Secret>(&client.of("default"), secret)?;
    let pods = pods::all();
    let mut names = Vec::new();
    for pod in pods {
        let made = client.create::<Pod>(&client.of("default"), pod)?;
        names.push(made.metadata.name.context("a pod without a name")?);
    }
    let node = client.get::<Node>(&client.all(), "first")?.context("the Node")?;
    let mut seen = Map::new();
    for name in &names {
        let pod = await_pod_ready(&joined.cluster, name, 120)?;
        seen.insert(name.clone(), runtime_view(&joined.nodes[0], &names_of_chance(&node, &pod), name)?);
    }
    for name in &names {
        client.delete::<Pod>(&client.of("default"), name, Some(0))?;
    }
    for name in &names {
        await_pod_gone(&joined.cluster, name, 60)?;
    }
    client.delete::<ConfigMap>(&client.of("default"), pods::OBJECTS, None)?;
    client.delete::<Secret>(&client.of("default"), pods::OBJECTS, None)?;
    let seen = Value::Object(seen);
    if env::var_os(RECORD).is_some() {
        let text = format!("{seen:#}\n");
        fs::write(record(), text).with_context(|| format!("write {}", record().display()))?;
        say::line(format!("  written to {}", record().display()));
        return Ok(());
    }
    let text = fs::read_to_string(record()).with_context(|| format!("read {}", record().display()))?;
    let upstream: Value = serde_json::from_str(&text).context("the record")?;
    let lines: Vec<String> =
        differences(&upstream, &seen).into_iter().map(|(path, what)| format!("{path}: {what}")).collect();
    say::line(format!("  {} pods compared", names.len()));
    ensure!(lines.is_empty(), "told otherwise than upstream tells it:\n{}", lines.join("\n"));
    Ok(())
}

fn record() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/upstream.json")
}

/// Words that differ from run to run, and their replacements.
fn names_of_chance(node: &Node, pod: &Pod) -> BTreeMap<String, &'static str> {
    let addresses = node.status.iter().filter_map(|s| s.addresses.as_ref()).flatten();
    let status = pod.status.clone().unwrap_or_default();
    let mut words = BTreeMap::new();
    for address in addresses.filter(|a| a.type_ == "InternalIP") {
        words.insert(address.address.clone(), "<node>");
    }
    for ip in status.pod_ips.into_iter().flatten() {
        words.entry(ip.ip).or_insert("<pod>");
    }
    words.insert(pod.metadata.uid.clone().unwrap_or_default(), "<uid>");
    words
}

/// The pod's configurations in the runtime: the sandbox's, and each container's by name.
fn runtime_view(node: &NativeNode, chance: &BTreeMap<String, &'static str>, name: &str) -> Result<Value> {
    let view = node.cri().view()?;
    let mut client = node.cri().runtime_client();
    let sandbox = view.sandboxes_of(name).first().map(|s| s.id.clone()).context("no sandbox")?;
    let mut words = chance.clone();
    words.insert(sandbox.clone(), "<sandbox>");
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox, verbose: true };
    let answer =
        node.cri().block_on(client.pod_sandbox_status(request)).context("PodSandboxStatus")?.into_inner();
    let mut found = Map::from_iter([("sandbox".to_owned(), config(&answer.info, &words)?)]);
    for container in view.of(name) {
        let metadata = container.metadata.clone().context("a container without a name")?;
        let request = cri::ContainerStatusRequest { container_id: container.id.clone(), verbose: true };
        let answer =
            node.cri().block_on(client.container_status(request)).context("ContainerStatus")?.into_inner();
        words.insert(container.image_ref.clone(), "<image>");
        found.insert(metadata.name, config(&answer.info, &words)?);
    }
    Ok(Value::Object(found))
}

/// The configuration as containerd returns it in its verbose status.
fn config(
    info: &std::collections::HashMap<String, String>,
    words: &BTreeMap<String, &'static str>,
) -> Result<Value> {
    let text = info.get("info").context("containerd gives no details")?;
    let text = words.iter().fold(text.clone(), |text, (word, name)| text.replace(word, name));
    let mut all: Value = serde_json::from_str(&text).context("containerd's details")?;
    let mut config = all["config"].take();
    // Upstream has variables of Services and sizes of huge pages in no order.
    for (path, key) in [("/envs", "key"), ("/linux/resources/hugepage_limits", "page_size")] {
        if let Some(list) = config.pointer_mut(path).and_then(Value::as_array_mut) {
            list.sort_by_key(|v| v[key].as_str().unwrap_or_default().to_owned());
        }
    }
    if let Some(seen) = config.pointer_mut("/annotations/kubernetes.io~1config.seen") {
        *seen = json!("<moment>");
    }
    name_host_ids(&mut config);
    for mount in config["mounts"].as_array_mut().into_iter().flatten() {
        // The file of last words: its name is upstream's throw of dice, and the agent's attempt.
        if let Some((directory, _)) = mount["host_path"].as_str().and_then(|p| p.rsplit_once('/'))
            && directory.contains("/containers/")
        {
            mount["host_path"] = json!(format!("{directory}/<instance>"));
        }
    }
    Ok(config)
}

/// Replaces a pod's host ids, which the node chooses.
fn name_host_ids(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if key == "host_id" {
                    *value = json!("<ids>");
                }
                name_host_ids(value);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(name_host_ids),
        _ => {}
    }
}

/// Differences between two values, by path.
fn differences(upstream: &Value, agent: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    compare("", upstream, agent, &mut found);
    found
}

fn compare(path: &str, upstream: &Value, agent: &Value, found: &mut Vec<(String, String)>) {
    let under =
        |key: &dyn std::fmt::Display| if path.is_empty() { key.to_string() } else { format!("{path}/{key}") };
    match (upstream, agent) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                compare(&under(key), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&under(&index), a, b, found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => found.push((path.to_owned(), format!("upstream {a}, agent {b}"))),
    }
}

#[cfg(test)]
mod tests {
    use crate::cases::lifecycle::cri_golden::*;

    #[test]
    fn differences_have_paths() {
        let upstream = json!({"a": {"x": 1, "same": [1]}, "b": [1, {"y": 2}], "gone": true});
        let agent = json!({"a": {"x": 2, "same": [1]}, "b": [1, {"y": 3}], "new": []});
        let paths: Vec<String> = differences(&upstream, &agent).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["a/x", "b/1/y", "gone", "new"]);
        assert_eq!(differences(&upstream, &upstream), []);
    }

    #[test]
    fn pods_have_names_of_their_own() {
        let all = pods::all();
        let names: std::collections::BTreeSet<&str> =
            all.iter().filter_map(|p| p["metadata"]["name"].as_str()).collect();
        assert_eq!(names.len(), all.len());
    }
}
