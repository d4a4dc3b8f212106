//! `bench projected --rate`: one ConfigMap changes many times a second under all of its users.
//!
//! In: the pods with the ConfigMap in a projected volume. Out: processor time of kubelet and containerd, and how long a change takes
//! to a pod. A kubelet may skip a change that the next one overtakes: a pod that has a later one counts as having it. Some of the
//! pods are looked at, so that the looks do not take the processor from the kubelet.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use orlop_harness::cluster::client::ClusterClient;
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;

use super::{BOUND, arrive, change, files, processor};
use crate::bench::scrape::MeasuredNode as _;
use crate::bench::start::percentile;

/// The file of the volume with the ConfigMap, and its key.
const FILE: &str = "v0/text";
const KEY: &str = "text";
/// Beginning of the values; the number of the change follows.
const VALUE: &str = "change-";
/// Pods that are looked at.
const WATCHED_MAX: usize = 10;
/// Between two looks at them.
const LOOK: Duration = Duration::from_millis(10);

/// What a pod that is looked at has.
struct Watched {
    file: PathBuf,
    /// Number of changes that it has, skipped ones included.
    has: usize,
    /// Values that were seen in the file.
    seen: usize,
}

/// Changes it `rate` times a second for so many seconds, and prints the figures.
pub(super) fn run(
    client: &ClusterClient,
    node: &mut NativeNode,
    uids: &[String],
    rate: u32,
    seconds: u32,
) -> Result<()> {
    let changes = rate as usize * seconds as usize;
    let mut watched = spread(files(node, uids, FILE), WATCHED_MAX);
    let (mut begun, mut took_ms) = (Vec::with_capacity(changes), Vec::new());
    let (before, start) = (node.spent()?, Instant::now());
    while begun.len() < changes {
        let due = start + due_after(begun.len(), rate);
        if Instant::now() >= due {
            begun.push(Instant::now());
            change(client, KEY, 0, &value(begun.len()))?;
        }
        look(&mut watched, &begun, &mut took_ms);
        node.pass(LOOK.min(due.saturating_duration_since(Instant::now())))?;
    }
    let lasted = start.elapsed().as_secs_f64();
    let limit = Instant::now() + BOUND;
    while watched.iter().any(|pod| pod.has < changes) && Instant::now() < limit {
        look(&mut watched, &begun, &mut took_ms);
        node.pass(LOOK)?;
    }
    let behind = arrive(node, uids, FILE, &value(changes))?.last().copied().unwrap_or_default();
    let (after, whole) = (node.spent()?, start.elapsed().as_secs_f64());
    say::line(format!(
        "{changes} changes of one ConfigMap with {} users in {lasted:.1} s ({:.1} a second): {}",
        uids.len(),
        changes as f64 / lasted,
        processor(before, after)
    ));
    let kubelet = (after[0] - before[0]) / whole * 100.0;
    let [p50, p99] = [50, 99].map(|percent| percentile(&mut took_ms, percent));
    let seen = watched.iter().map(|pod| pod.seen).sum::<usize>() / watched.len().max(1);
    say::line(format!(
        "  kubelet {kubelet:.1} % of a processor; from a change to a pod with it p50 {p50:.0} ms, p99 {p99:.0} ms \
         ({} pods looked at, {seen} of {changes} values seen in each); all pods have the last one {:.1} s after these",
        watched.len(),
        behind.as_secs_f64()
    ));
    Ok(())
}

/// When a change is due, from the first one on.
fn due_after(number: usize, rate: u32) -> Duration {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Duration::from_secs(1) * number / rate.max(1)
}

/// The value of a change, counted from 1.
fn value(number: usize) -> String {
    format!("{VALUE}{number}")
}

/// At most so many of the pods, from all parts of the list.
fn spread(files: Vec<PathBuf>, most: usize) -> Vec<Watched> {
    let step = files.len().div_ceil(most.max(1)).max(1);
    files.into_iter().step_by(step).map(|file| Watched { file, has: 0, seen: 0 }).collect()
}

/// Adds the time of each change that a pod has now and did not have before.
fn look(watched: &mut [Watched], begun: &[Instant], took_ms: &mut Vec<f64>) {
    for pod in watched {
        // The file is missing while its volume is being changed.
        if let Ok(text) = fs::read_to_string(&pod.file) {
            took_ms.extend(pod.take(&text, begun, Instant::now()));
        }
    }
}

impl Watched {
    /// Takes what the file has; returns the times of the changes that are new with it, milliseconds.
    fn take(&mut self, text: &str, begun: &[Instant], now: Instant) -> Vec<f64> {
        let number = text.strip_prefix(VALUE).and_then(|number| number.parse::<usize>().ok());
        let Some(new) = number.and_then(|number| begun.get(self.has..number)).filter(|new| !new.is_empty())
        else {
            return Vec::new();
        };
        (self.has, self.seen) = (self.has + new.len(), self.seen + 1);
        new.iter().map(|begun| now.saturating_duration_since(*begun).as_secs_f64() * 1000.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_due_at_a_steady_rate() {
        assert_eq!(due_after(0, 20), Duration::ZERO);
        assert_eq!(due_after(1, 20), Duration::from_millis(50));
        assert_eq!(due_after(1200, 20), Duration::from_secs(60));
    }

    #[test]
    fn pods_of_all_parts_are_looked_at() {
        let of = |pods: usize| {
            let files = (0..pods).map(|n| PathBuf::from(n.to_string())).collect();
            spread(files, 10).into_iter().map(|pod| pod.file.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(3), ["0", "1", "2"]);
        assert_eq!(of(200).len(), 10);
        assert_eq!(of(200)[9], "180");
        assert!(of(0).is_empty());
    }

    #[test]
    fn a_later_change_counts_for_those_that_it_overtook() {
        let mut pod = Watched { file: PathBuf::new(), has: 0, seen: 0 };
        let start = Instant::now();
        let begun = [start, start, start + Duration::from_millis(50)];
        let now = start + Duration::from_millis(100);
        for (text, times, seen) in [
            ("first", vec![], 0),
            ("change-2", vec![100.0, 100.0], 1),
            ("change-2", vec![], 1),
            ("change-1", vec![], 1),
            ("change-9", vec![], 1),
            ("change-3", vec![50.0], 2),
        ] {
            assert_eq!((pod.take(text, &begun, now), pod.seen), (times, seen), "{text}");
        }
        assert_eq!(pod.has, 3);
    }
}
