//! Chooses the pods to end so that a critical pod gets its resources.
//!
//! In: a critical pod, the other pods of the node, the missing amounts. Out: the pods to end. Invariants:
//! pure; the result does not depend on the order of the pods, because memory, processor time and UID break
//! ties; a class gives only the amount that the lower classes cannot give (BestEffort, then Burstable, then
//! Guaranteed); the arithmetic is exact (upstream uses floating point). Upstream: pkg/kubelet/preemption,
//! `Preemptable` of pkg/kubelet/types/pod_update.go.

use agent_types::pod;
use agent_types::resources::qos::{QosClass, qos_class};
use agent_types::resources::requests::{CPU, MEMORY};
use k8s_openapi::api::core::v1::Pod;

use super::fit::{self, Shortage};

/// Squares of fractions are compared as parts of a million.
const WHOLE: i128 = 1_000_000;

/// What is still short: of which resource, how much.
type Shortfalls<'n> = Vec<(&'n str, i64)>;

/// True if `preemptor` may take the room of `other`.
fn may_preempt(preemptor: &Pod, other: &Pod) -> bool {
    if pod::is_critical(preemptor) && !pod::is_critical(other) {
        return true;
    }
    let priority = |p: &Pod| pod::spec(p).priority;
    priority(preemptor).zip(priority(other)).is_some_and(|(a, b)| a > b)
}

/// Pods whose end frees the missing amounts.
///
/// # Errors
/// All pods that may be preempted are not enough; with upstream's message about the shortage.
pub(super) fn victims<'p>(pod: &Pod, beside: &[&'p Pod], short: &[Shortage]) -> Result<Vec<&'p Pod>, String> {
    let needs: Shortfalls<'_> = short.iter().map(|s| (s.resource.as_str(), s.missing())).collect();
    let of_class = |class: QosClass| {
        let fits = |other: &&&Pod| may_preempt(pod, other) && qos_class(other) == class;
        let mut found: Vec<&Pod> = beside.iter().filter(fits).copied().collect();
        found.sort_by_key(|p| (fit::request(p, MEMORY), fit::request(p, CPU), pod::uid(p).to_owned()));
        found
    };
    let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort].map(of_class);
    let everybody = classes.concat();
    let lacking = less(&needs, &everybody);
    if !lacking.is_empty() {
        return Err(format!(
            "no set of running pods found to reclaim resources: {}",
            shortfalls_text(&lacking)
        ));
    }
    let mut chosen: Vec<&Pod> = Vec::new();
    for (index, class) in classes.iter().enumerate() {
        let lower = classes.iter().skip(index + 1).flatten().copied();
        let given: Vec<&Pod> = chosen.iter().copied().chain(lower).collect();
        chosen.extend(nearest(class, less(&needs, &given)));
    }
    chosen.reverse();
    Ok(chosen)
}

/// Again and again the pod that leaves the least, until nothing is short; of equals the smaller.
fn nearest<'p>(pods: &[&'p Pod], mut needs: Shortfalls<'_>) -> Vec<&'p Pod> {
    let mut left = pods.to_vec();
    let mut chosen = Vec::new();
    while !needs.is_empty() {
        // `min_by_key` takes the first of equals, and the smaller come first.
        let best = (0..left.len()).min_by_key(|index| distance(&needs, left[*index]));
        let Some(best) = best else { break };
        let pod = left.remove(best);
        needs = less(&needs, &[pod]);
        chosen.push(pod);
    }
    chosen
}

/// How far the pod's end is from meeting the needs. Each need counts the same; its unit does not matter.
fn distance(needs: &Shortfalls<'_>, pod: &Pod) -> i128 {
    let of = |(resource, short): &(&str, i64)| {
        let remaining = short.saturating_sub(fit::request(pod, resource)).max(0);
        let part = i128::from(remaining) * WHOLE / i128::from(*short).max(1);
        part * part
    };
    needs.iter().map(of).sum()
}

/// What is short once these pods are gone.
fn less<'n>(needs: &Shortfalls<'n>, pods: &[&Pod]) -> Shortfalls<'n> {
    let rest = |(resource, short): &(&'n str, i64)| {
        let given = pods.iter().fold(0_i64, |sum, p| sum.saturating_add(fit::request(p, resource)));
        (*resource, short.saturating_sub(given))
    };
    needs.iter().map(rest).filter(|(_, short)| *short > 0).collect()
}

fn shortfalls_text(needs: &Shortfalls<'_>) -> String {
    let all: String =
        needs.iter().map(|(resource, short)| format!("(res: {resource}, q: {short}), ")).collect();
    format!("[{all}]")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, requests: Value, limits: Value, priority: i32) -> Pod {
        let resources = json!({"requests": requests, "limits": limits});
        let spec = json!({"priority": priority, "containers": [{"name": "c", "resources": resources}]});
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec}),
        )
        .unwrap()
    }

    fn burstable(name: &str, cpu: &str) -> Pod {
        pod(name, json!({"cpu": cpu, "memory": "1Mi"}), json!({}), 0)
    }

    fn guaranteed(name: &str, cpu: &str) -> Pod {
        let amounts = json!({"cpu": cpu, "memory": "1Mi"});
        pod(name, amounts.clone(), amounts, 0)
    }

    fn short(resource: &str, requested: i64) -> Shortage {
        Shortage { resource: resource.to_owned(), requested, used: 10, capacity: 10 }
    }

    fn chosen(pods: &[Pod], short: &[Shortage]) -> Result<Vec<String>, String> {
        let critical = pod("critical", json!({}), json!({}), 2_000_000_000);
        let beside: Vec<&Pod> = pods.iter().collect();
        let names = |found: Vec<&Pod>| found.iter().map(|p| pod::name(p).to_owned()).collect();
        victims(&critical, &beside, short).map(names)
    }

    #[test]
    fn the_least_that_is_enough_of_the_lowest_class() {
        let best_effort = pod("b", json!({}), json!({}), 0);
        let pods = [burstable("x", "100m"), burstable("y", "300m"), guaranteed("g", "500m"), best_effort];
        let table: [(&[Shortage], &[&str]); 6] = [
            (&[short("cpu", 300)], &["y"]),
            (&[short("cpu", 100)], &["x"]),
            (&[short("cpu", 350)], &["x", "y"]),
            (&[short("cpu", 500)], &["g"]),
            (&[short("pods", 1)], &["b"]),
            (&[short("pods", 1), short("cpu", 80)], &["x"]),
        ];
        for (short, expected) in table {
            let mut found = chosen(&pods, short).unwrap();
            found.sort_by_key(|name| ["b", "x", "y", "g"].iter().position(|n| n == name));
            assert_eq!(found, expected, "{short:?}");
        }
    }

    /// Upstream compares priorities only if both pods have one, and no API server gives a static pod one.
    #[test]
    fn a_static_pod_is_no_victim() {
        let mut fixed = burstable("s", "1");
        fixed.metadata.annotations = Some([(pod::CONFIG_SOURCE.to_owned(), "file".to_owned())].into());
        fixed.spec.as_mut().unwrap().priority = None;
        assert!(chosen(&[fixed], &[short("cpu", 1)]).is_err());
    }

    #[test]
    fn what_cannot_be_had_is_told() {
        let equal = pod("equal", json!({"cpu": "2"}), json!({}), 2_000_000_000);
        let message = chosen(&[burstable("x", "100m"), equal], &[short("cpu", 300)]).unwrap_err();
        assert_eq!(message, "no set of running pods found to reclaim resources: [(res: cpu, q: 200), ]");
        let lower = pod("lower", json!({"cpu": "2"}), json!({}), 1_999_999_999);
        assert_eq!(chosen(&[lower], &[short("cpu", 300)]).unwrap(), ["lower"]);
    }

    proptest! {
        /// Enough is freed, nothing is taken in vain within a class, and the order of the pods does not matter.
        #[test]
        fn enough_and_nothing_in_vain(
            cpus in proptest::collection::vec((0_u32..400, any::<bool>()), 1..8),
            need in 1_i64..900,
        ) {
            let make = |(index, (cpu, sure)): (usize, &(u32, bool))| {
                let (name, cpu) = (index.to_string(), format!("{cpu}m"));
                if *sure { guaranteed(&name, &cpu) } else { burstable(&name, &cpu) }
            };
            let mut pods: Vec<Pod> = cpus.iter().enumerate().map(make).collect();
            let found = chosen(&pods, &[short("cpu", need)]);
            let of = |p: &Pod| fit::request(p, CPU);
            let total: i64 = pods.iter().map(of).sum();
            prop_assert_eq!(found.is_ok(), total >= need);
            pods.reverse();
            prop_assert_eq!(&found, &chosen(&pods, &[short("cpu", need)]));
            if let Ok(names) = found {
                let taken: Vec<&Pod> = pods.iter().filter(|p| names.contains(&pod::name(p).to_owned())).collect();
                let freed: i64 = taken.iter().map(|p| of(p)).sum();
                prop_assert!(freed >= need);
                let lower: i64 = pods.iter().filter(|p| qos_class(p) == QosClass::Burstable).map(of).sum();
                let has_guaranteed = taken.iter().any(|p| qos_class(p) == QosClass::Guaranteed);
                prop_assert!(!has_guaranteed || lower < need, "a Guaranteed pod in vain");
            }
        }
    }
}
