//! `bench start`: one pod after the other through the API, from its creation to the moment at which the API server
//! shows it running, and the part of that time in calls of the runtime (from the agent's metrics).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use orlop_harness::built;
use orlop_harness::cluster::audit;
use orlop_harness::cluster::fixture::{STAYS, api_pod, await_pod_gone, await_pod_ready, await_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, flags};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::run::Run;
use orlop_harness::say;

const NODE: &str = "starts";
/// Pods before the first that counts: the image is pulled, caches are warm.
const WARM: u32 = 3;

/// Starts `pods` pods one after the other.
///
/// # Errors
/// If one does not run.
pub fn run(run: &Arc<Run>, pods: u32) -> Result<()> {
    let agent = built::agent(run, true)?;
    let artefacts = run.dir().join("bench-start");
    fs::create_dir_all(&artefacts)?;
    let mut cluster = Cluster::start(run, &artefacts, Settings::default())?;
    let mut node = cluster.start_node(&artefacts, NODE, agent)?;
    let mut all = flags(JoinMethod::BootstrapKubeconfig);
    all.push("--v=2".into());
    node.start_agent_with(&all.iter().map(String::as_str).collect::<Vec<_>>())?;
    await_ready(&cluster, NODE, 120)?;
    // Another pod of the namespace, so that shared objects are watched already, as on any node in use.
    let mut beside = api_pod("beside", NODE, STAYS, 1);
    beside["spec"]["nodeName"] = NODE.into();
    cluster.client().create::<Pod>(&cluster.client().of("default"), beside)?;
    await_pod_ready(&cluster, "beside", 60)?;
    let mut times = Vec::new();
    for n in 0..WARM + pods {
        let name = format!("start-{n:03}");
        let took = one(&cluster, &name)?;
        if n >= WARM {
            times.push((name.clone(), took));
        }
        cluster.client().delete::<Pod>(&cluster.client().of("default"), &name, Some(1))?;
        await_pod_gone(&cluster, &name, 60)?;
        // The removal of the pod is over before the next one starts.
        node.wait(60, "nothing left of the pod", |v| v.is_gone(&name).then_some(()))?;
    }
    report(&node.logs().join("agent.log"), &times)?;
    let asked = cluster.audit()?;
    let counts = audit::counts(asked.iter().filter(|r| audit::is_of_node(r)));
    say::line(format!("requests of the node in all: {counts:?}"));
    drop(node);
    drop(cluster);
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

/// The time from the request to create the pod to the first version with a running container.
fn one(cluster: &Cluster, name: &str) -> Result<Duration> {
    let mut pod = api_pod(name, NODE, STAYS, 1);
    // Without the scheduler's part.
    pod["spec"]["nodeName"] = NODE.into();
    let start = Instant::now();
    cluster.client().create::<Pod>(&cluster.client().of("default"), pod)?;
    await_pod_ready(cluster, name, 60)?;
    Ok(start.elapsed())
}

fn report(log: &Path, times: &[(String, Duration)]) -> Result<()> {
    let text = fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    let between = heard_and_said(&text);
    let mut effects: BTreeMap<String, Vec<Effect>> = BTreeMap::new();
    for effect in text.lines().filter_map(parse) {
        effects.entry(effect.pod.clone()).or_default().push(effect);
    }
    let (mut totals, mut in_runtime, mut rest, mut own) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut by_verb: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, took) in times {
        let starts = effects.get(name).map(|all| until_started(all)).unwrap_or_default();
        let busy =
            union_ms(starts.iter().filter(|e| is_call_of_runtime(&e.verb)).map(|e| (e.begin_ms, e.end_ms)));
        for effect in starts {
            by_verb.entry(&effect.verb).or_default().push(effect.end_ms - effect.begin_ms);
        }
        let total = took.as_secs_f64() * 1000.0;
        totals.push(total);
        in_runtime.push(busy);
        rest.push(total - busy);
        own.extend(between.get(name).map(|ms| ms - busy));
    }
    say::line(format!("{} pods, one after the other", times.len()));
    say::line(line("from apply to Running reported", &mut totals));
    say::line(line("of it in calls of the runtime", &mut in_runtime));
    say::line(line("the rest: agent, API server, watches", &mut rest));
    say::line(line("of it from hearing of it to saying Running", &mut own));
    for (verb, mut all) in by_verb {
        say::line(line(
            &format!("  {verb} ({:.1} a pod)", all.len() as f64 / times.len().max(1) as f64),
            &mut all,
        ));
    }
    Ok(())
}

/// For each pod, milliseconds from the agent's first log line about it to the line that it is Running.
fn heard_and_said(log: &str) -> BTreeMap<String, f64> {
    let (mut heard, mut between) = (BTreeMap::new(), BTreeMap::new());
    for line in log.lines() {
        let Some((at, name)) = at_ms(line).zip(field(line, "pod")) else { continue };
        if line.contains("pod worker") && line.contains("state=\"pending\"") {
            heard.insert(name, at);
        } else if line.contains("pod phase") && line.contains(" phase=\"Running\"") {
            let ms = heard.get(&name).map(|heard| at - heard);
            between.extend(ms.map(|ms| (name, ms)));
        }
    }
    between
}

/// When a line was written.
fn at_ms(line: &str) -> Option<f64> {
    let at: Timestamp = line.split(' ').next()?.parse().ok()?;
    Some(at.as_microsecond() as f64 / 1000.0)
}

fn field(line: &str, name: &str) -> Option<String> {
    let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.trim_matches('"').to_owned())
}

fn line(what: &str, all: &mut [f64]) -> String {
    format!("{what:<40} p50 {:>7.1} ms   p95 {:>7.1} ms", percentile(all, 50), percentile(all, 95))
}

/// The value below which `percent` of them are (nearest rank); 0 without any.
pub(super) fn percentile(all: &mut [f64], percent: usize) -> f64 {
    all.sort_by(f64::total_cmp);
    let rank = (all.len() * percent).div_ceil(100).max(1);
    all.get(rank - 1).copied().unwrap_or(0.0)
}

/// One call as the agent's log has it.
#[derive(Clone, Debug, PartialEq)]
struct Effect {
    pod: String,
    verb: String,
    begin_ms: f64,
    end_ms: f64,
}

fn parse(line: &str) -> Option<Effect> {
    if !line.contains("effect done") {
        return None;
    }
    let end_ms = at_ms(line)?;
    let took_ms: f64 = field(line, "took_ms")?.parse().ok()?;
    Some(Effect { pod: field(line, "pod")?, verb: field(line, "verb")?, begin_ms: end_ms - took_ms, end_ms })
}

/// The calls up to the first look after the container's start.
fn until_started(all: &[Effect]) -> &[Effect] {
    let started = all.iter().position(|e| e.verb == "start_container").map_or(0, |at| at + 1);
    let looked = all[started..].iter().position(|e| e.verb == "inspect").map_or(0, |at| at + 1);
    &all[..started + looked]
}

fn is_call_of_runtime(verb: &str) -> bool {
    ["inspect", "inspect_image", "pull_image", "run_sandbox", "create_container", "start_container"]
        .contains(&verb)
}

/// Time in which at least one of the intervals lasted.
fn union_ms(intervals: impl Iterator<Item = (f64, f64)>) -> f64 {
    let mut all: Vec<(f64, f64)> = intervals.collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, f64::MIN);
    for (begin, end) in all {
        if end > until {
            sum += end - begin.max(until);
            until = end;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_the_log() {
        let line = "2026-11-22T09:00:00.250000Z DEBUG effect done pod=a namespace=default uid=u effect=3 \
                    verb=\"run_sandbox\" took_ms=50";
        let effect = parse(line).unwrap();
        assert_eq!((effect.pod.as_str(), effect.verb.as_str()), ("a", "run_sandbox"));
        assert!((effect.end_ms - effect.begin_ms - 50.0).abs() < 1e-6);
        assert_eq!(parse("2026-11-22T09:00:00.250000Z  INFO something else"), None);
        let of = |verb: &str| Effect { verb: verb.into(), ..effect.clone() };
        let all = ["inspect", "run_sandbox", "start_container", "inspect", "inspect"].map(of);
        assert_eq!(until_started(&all).len(), 4);
    }

    #[test]
    fn the_agents_time_is_from_hearing_to_saying() {
        let log = "2026-11-22T09:00:00.100000Z  INFO pod worker pod=a uid=u state=\"pending\"\n\
                   2026-11-22T09:00:00.150000Z  INFO pod phase pod=a uid=u before=\"\" phase=\"Pending\"\n\
                   2026-11-22T09:00:00.350000Z  INFO pod phase pod=a uid=u before=\"Pending\" phase=\"Running\"\n";
        let between = heard_and_said(log);
        assert!((between["a"] - 250.0).abs() < 1e-6, "{between:?}");
    }

    #[test]
    fn overlapping_calls_count_once() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(union_ms([(0.0, 10.0), (5.0, 12.0), (20.0, 21.0), (20.0, 20.5)].into_iter()), 13.0));
        assert!(close(percentile(&mut [3.0, 1.0, 2.0, 4.0], 50), 2.0));
        assert!(close(percentile(&mut [3.0, 1.0, 2.0, 4.0], 95), 4.0));
        assert!(close(percentile(&mut [], 50), 0.0));
    }
}
