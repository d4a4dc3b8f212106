//! Cases that wait for upstream's delays: crash-loop back-off, termination grace period.
//!
//! Cases: `lifecycle/crash-loop-backoff`, `lifecycle/termination-grace`.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::native::pods::Pod;
use orlop_harness::say;
use orlop_proto::cri::v1 as cri;

use crate::cases::lifecycle::static_pods::{await_gone, ready_node, run_pod};

/// Cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "lifecycle/crash-loop-backoff",
        level: Level::L4n,
        expected_s: 36,
        about: "a crashing container is restarted at once, then after 10 s, then after 20 s; older instances go with their logs",
        group: None,
        run: crash_loop,
    },
    Case {
        name: "lifecycle/termination-grace",
        level: Level::L4n,
        expected_s: 14,
        about: "TERM, then the pod's grace, then KILL; who ends in time is not killed",
        group: None,
        run: grace,
    },
];

/// Most lateness of a restart after its back-off: one container start on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

fn crash_loop(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = ready_node(cx)?;
    let pod = Pod::script("crash", "exit 7");
    node.write_manifest(&pod.file(), &pod.manifest())?;
    let mut previous: Option<cri::ContainerStatus> = None;
    for (attempt, want_s) in [(0, 0), (1, 0), (2, 10), (3, 20)] {
        let ended = node.wait(want_s + 30, &format!("attempt {attempt} to end"), |v| {
            v.of("crash-native")
                .iter()
                .find(|c| {
                    c.state() == cri::ContainerState::ContainerExited
                        && c.metadata.as_ref().is_some_and(|m| m.attempt == attempt)
                })
                .map(|c| c.id.clone())
        })?;
        let status = node.cri().status(&ended)?;
        ensure!(status.exit_code == 7, "attempt {attempt} ended with {}", status.exit_code);
        if let Some(previous) = previous {
            let gap = status.started_at - previous.finished_at;
            let gap =
                Duration::from_nanos(u64::try_from(gap).context("it started before its predecessor ended")?);
            say::line(format!(
                "  attempt {attempt} started {:.2} s after the end of the one before",
                gap.as_secs_f64()
            ));
            let want = Duration::from_secs(want_s);
            ensure!(gap >= want && gap <= want + SLACK, "attempt {attempt}: {gap:?} instead of {want:?}");
        }
        previous = Some(status);
    }
    let log = node.inside(&previous.context("no attempt ended")?.log_path);
    let of_it = log.parent().context("a log at the root")?;
    node.wait(30, "the logs of older instances to go", |_| {
        let logs = fs::read_dir(of_it).ok()?.flatten().map(|entry| entry.file_name());
        let mut logs: Vec<_> = logs.filter_map(|name| name.into_string().ok()).collect();
        logs.sort();
        // The log of the instance before the newest may still exist: it is the previous log until there is another one.
        (logs == ["3.log"] || logs == ["2.log", "3.log"]).then_some(())
    })?;
    let dead = node.cri().view()?.of("crash-native").len();
    ensure!(dead <= 2, "{dead} containers of one crashing container are kept");
    Ok(())
}

fn grace(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = ready_node(cx)?;
    let polite = Pod::script("polite", "trap 'sleep 2; exit 0' TERM; while :; do sleep 3600 & wait $!; done")
        .grace(20);
    let deaf = Pod::script("deaf", "trap '' TERM; while :; do sleep 1; done").grace(5);
    let polite_id = run_pod(&node, &polite)?;
    let deaf_id = run_pod(&node, &deaf)?;
    let start = Instant::now();
    node.remove_manifest(&polite.file())?;
    node.remove_manifest(&deaf.file())?;
    let mut ended: [Option<Duration>; 2] = [None, None];
    node.wait(40, "both to end", |v| {
        for (slot, id) in ended.iter_mut().zip([&polite_id, &deaf_id]) {
            let runs = v
                .containers
                .iter()
                .any(|c| c.id == *id && c.state() == cri::ContainerState::ContainerRunning);
            if !runs && slot.is_none() {
                *slot = Some(start.elapsed());
            }
        }
        ended.iter().all(Option::is_some).then_some(())
    })?;
    let [polite_took, deaf_took] = ended.map(Option::unwrap_or_default);
    say::line(format!(
        "  ended after {:.2} s (needs 2 of its 20 s), killed after {:.2} s (grace 5 s)",
        polite_took.as_secs_f64(),
        deaf_took.as_secs_f64()
    ));
    let within =
        |took: Duration, s: u64| took >= Duration::from_secs(s) && took <= Duration::from_secs(s) + SLACK;
    ensure!(within(polite_took, 2), "the polite one took {polite_took:?}");
    ensure!(within(deaf_took, 5), "the deaf one took {deaf_took:?}");
    await_gone(&node, 30, "polite-native")?;
    await_gone(&node, 30, "deaf-native")
}
