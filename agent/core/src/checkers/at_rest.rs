//! Invariants after a while without events: the API shows the truth. MIRROR-ONE, STATUS-TRUTH.
//!
//! In: the API's pods, the node's state. Out: the first difference, as text. Pure functions for the simulator
//! and for property tests; like the observers they do not know the agent's decisions.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::ContainerId;
use agent_types::pod::{self, CONFIG_HASH, CONFIG_MIRROR};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use crate::status::Phase;

/// MIRROR-ONE: each static pod has exactly one mirror pod in the API, which is not being deleted, and no other mirror
/// pod is there. `shown` are the API's pods of this node.
///
/// # Errors
/// The first difference.
pub fn mirrors<'a>(
    statics: impl IntoIterator<Item = &'a Pod>,
    shown: impl IntoIterator<Item = &'a Pod>,
) -> Result<(), String> {
    let mut wanted: BTreeMap<String, &str> = BTreeMap::new();
    for p in statics {
        wanted.insert(pod::full_name(p), pod::annotation(p, CONFIG_HASH).unwrap_or(pod::uid(p)));
    }
    for p in shown {
        let Some(hash) = pod::annotation(p, CONFIG_MIRROR) else { continue };
        let name = pod::full_name(p);
        match wanted.remove(&name) {
            None => return Err(format!("{name} is the mirror of no static pod ({hash})")),
            Some(want) if want != hash => {
                return Err(format!("{name} mirrors {hash}, the static pod is {want}"));
            }
            Some(_) if p.metadata.deletion_timestamp.is_some() => {
                return Err(format!("{name} is a mirror that is being deleted"));
            }
            Some(_) => {}
        }
    }
    wanted.first_key_value().map_or(Ok(()), |(name, _)| Err(format!("static pod {name} has no mirror pod")))
}

/// STATUS-TRUTH at rest: the status shows exactly the running containers as running, and a terminal phase
/// exactly if the pod has ended.
///
/// # Errors
/// The first difference.
pub fn shows(shown: &Pod, live: &BTreeSet<ContainerId>, over: bool) -> Result<(), String> {
    let name = pod::full_name(shown);
    let Some(status) = &shown.status else { return Err(format!("{name} has no status")) };
    let said: BTreeSet<ContainerId> = running(status).into_iter().collect();
    if said != *live {
        return Err(format!("{name} is said to run {said:?}, it runs {live:?}"));
    }
    let phase = status.phase.as_deref().unwrap_or("");
    let said_over = Phase::terminal(phase).is_some();
    if said_over != over {
        return Err(format!(
            "{name} is said to be {phase:?}, its containers {}",
            if over { "are over" } else { "are not over" }
        ));
    }
    Ok(())
}

/// The containers that a status shows as running.
#[must_use]
pub fn running(status: &PodStatus) -> Vec<ContainerId> {
    let runs = |c: &&ContainerStatus| c.state.as_ref().is_some_and(|s| s.running.is_some());
    let id =
        |c: &ContainerStatus| ContainerId::from(pod::runtime_id(c.container_id.as_deref().unwrap_or("")));
    pod::container_statuses(status).filter(runs).map(id).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn static_pod(name: &str, hash: &str) -> Pod {
        let annotations = json!({ "kubernetes.io/config.hash": hash });
        let meta = json!({ "name": name, "namespace": "ns", "uid": hash, "annotations": annotations });
        serde_json::from_value(json!({ "metadata": meta })).unwrap()
    }

    fn mirror(name: &str, hash: &str) -> Pod {
        let mut pod = static_pod(name, hash);
        pod.metadata.annotations = Some([(CONFIG_MIRROR.to_owned(), hash.to_owned())].into());
        pod
    }

    #[test]
    fn mirrors_are_one_for_each() {
        let mut deleting = mirror("a", "1");
        deleting.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let mut plain = mirror("b", "2");
        plain.metadata.annotations = None;
        for (statics, shown, fine) in [
            (vec![static_pod("a", "1")], vec![mirror("a", "1"), plain], true),
            (vec![], vec![], true),
            (vec![static_pod("a", "1")], vec![], false),
            (vec![], vec![mirror("a", "1")], false),
            (vec![static_pod("a", "1")], vec![mirror("a", "2")], false),
            (vec![static_pod("a", "1")], vec![deleting], false),
        ] {
            assert_eq!(mirrors(&statics, &shown).is_ok(), fine, "{statics:?} {shown:?}");
        }
    }

    #[test]
    fn a_status_shows_what_runs() {
        let shown = |phase: &str, runs: &[&str]| {
            let one = |id: &&str| {
                json!({ "name": id, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": format!("fake://{id}"), "state": { "running": {} } })
            };
            let list: Vec<serde_json::Value> = runs.iter().map(one).collect();
            let status = json!({ "phase": phase, "containerStatuses": list });
            serde_json::from_value::<Pod>(json!({ "metadata": { "name": "a" }, "status": status })).unwrap()
        };
        for (phase, said, live, over, fine) in [
            ("Running", &["c1"][..], &["c1"][..], false, true),
            ("Failed", &[], &[], true, true),
            ("Running", &["c1"], &["c1", "c2"], false, false),
            ("Running", &["c1"], &[], false, false),
            ("Failed", &[], &[], false, false),
            ("Running", &[], &[], true, false),
        ] {
            let live = live.iter().map(|id| ContainerId::from(*id)).collect();
            assert_eq!(shows(&shown(phase, said), &live, over).is_ok(), fine, "{phase} {said:?} {live:?}");
        }
    }
}
