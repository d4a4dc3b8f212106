//! States of a pod that the API server and the runtime must never show, whichever process dies.
//!
//! In: each version of each pod (a watch), the runtime's lists. Out: the violations, as texts. Invariant: a
//! missed version hides only its own violations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::runtime::{WatchStreamExt, watcher};
use orlop_proto::cri::v1 as cri;
use tokio::task::JoinHandle;

use super::client::ClusterClient;
use super::crowd::{QUIET, statuses};
use super::ready;
use crate::native::cri::View;

/// Looks at every version of every pod of namespace `default` until it is dropped.
pub struct Truth {
    wrong: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Truth {
    /// Begins to look.
    #[must_use]
    pub fn start(client: &ClusterClient) -> Truth {
        let wrong: Arc<Mutex<Vec<String>>> = Arc::default();
        let (api, found) = (client.of::<Pod>("default"), wrong.clone());
        let task = client.handle().spawn(async move {
            let mut known: BTreeMap<String, Pod> = BTreeMap::new();
            let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
            while let Some(event) = events.next().await {
                let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event else { continue };
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                let said = known.get(&uid).map_or_else(Vec::new, |before| wrong_between(before, &pod));
                found.lock().unwrap_or_else(PoisonError::into_inner).extend(said);
                known.insert(uid, pod);
            }
        });
        Truth { wrong, task }
    }

    /// Fails if something was wrong so far.
    ///
    /// # Errors
    /// The list of faults.
    pub fn ensure(&self) -> Result<()> {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(wrong.is_empty(), "the API server was told what cannot be:\n{}", wrong.join("\n"));
        Ok(())
    }
}

impl Drop for Truth {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Violations between two versions of a pod. Pure.
#[must_use]
pub fn wrong_between(before: &Pod, after: &Pod) -> Vec<String> {
    let name = after.metadata.name.clone().unwrap_or_default();
    let mut wrong = Vec::new();
    let rank = |pod: &Pod| match ready::phase(pod) {
        "Running" => 1,
        "Succeeded" | "Failed" => 2,
        _ => 0,
    };
    let (from, to) = (ready::phase(before), ready::phase(after));
    if rank(after) < rank(before) || (rank(before) == 2 && from != to) {
        wrong.push(format!("{name}: phase {from}, then {to}"));
    }
    let is_quiet = after.metadata.labels.as_ref().is_some_and(|l| l.contains_key(QUIET));
    for old in statuses(before) {
        let Some(new) = statuses(after).find(|c| c.name == old.name) else { continue };
        if new.restart_count < old.restart_count {
            wrong.push(format!(
                "{name}/{}: restarts {}, then {}",
                new.name, old.restart_count, new.restart_count
            ));
        }
        if runs(old)
            && runs(new)
            && new.restart_count == old.restart_count
            && new.container_id != old.container_id
        {
            wrong.push(format!("{name}/{}: {:?}, then {:?}", new.name, old.container_id, new.container_id));
        }
        let lives = after.metadata.deletion_timestamp.is_none();
        if is_quiet
            && lives
            && !is_to_end(after, &new.name)
            && runs(old)
            && (!runs(new) || new.container_id != old.container_id)
        {
            wrong.push(format!("{name}/{}: ran as {:?}, then {:?}", new.name, old.container_id, new.state));
        }
    }
    wrong
}

/// True for an init container that is no sidecar.
fn is_to_end(pod: &Pod, name: &str) -> bool {
    let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref()).into_iter().flatten();
    init.filter(|c| c.name == name).any(|c| c.restart_policy.as_deref() != Some("Always"))
}

fn runs(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.running.is_some())
}

/// The runtime's containers so far: for each container of a quiet pod (UID, name), the instance that ran.
#[derive(Debug, Default)]
pub struct Instances {
    ran: BTreeMap<(String, String), String>,
    /// Sandboxes and containers that were looked at, over all looks.
    pub looks: u32,
}

impl Instances {
    /// Checks the runtime's lists: one live sandbox for each pod, one live container for each of its names, and for
    /// quiet pods always the same.
    ///
    /// # Errors
    /// The violation.
    pub fn judge(&mut self, view: &View) -> Result<()> {
        self.looks += 1;
        let mut live: BTreeMap<&str, &str> = BTreeMap::new();
        for sandbox in &view.sandboxes {
            let Some(meta) = &sandbox.metadata else { continue };
            if sandbox.state() != cri::PodSandboxState::SandboxReady {
                continue;
            }
            let other = live.insert(&meta.uid, &sandbox.id);
            ensure!(
                other.is_none(),
                "two live sandboxes of {} ({}):\n{}",
                meta.name,
                meta.uid,
                view.describe()
            );
        }
        let quiet = |uid: &str| {
            let of = |s: &&cri::PodSandbox| s.metadata.as_ref().is_some_and(|m| m.uid == uid);
            view.sandboxes.iter().find(of).is_some_and(|s| s.labels.contains_key(QUIET))
        };
        let mut running = BTreeMap::new();
        for container in &view.containers {
            if container.state() != cri::ContainerState::ContainerRunning {
                continue;
            }
            let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
            let whose = (label("io.kubernetes.pod.uid"), label("io.kubernetes.container.name"));
            let other = running.insert(whose.clone(), &container.id);
            ensure!(other.is_none(), "two live containers of {whose:?}:\n{}", view.describe());
            // An init container may have no successor, but it ends; sidecars and other containers do not.
            if quiet(&whose.0) {
                let id = self.ran.entry(whose.clone()).or_insert_with(|| container.id.clone());
                ensure!(*id == container.id, "{whose:?} ran as {id} and was restarted:\n{}", view.describe());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(phase: &str, id: &str, restarts: u32, state: &Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "a", "labels": {QUIET: "yes"}}, "status": {"phase": phase,
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "containerID": id,
                "restartCount": restarts, "state": state}]}}),
        )
        .unwrap()
    }

    #[test]
    fn what_cannot_be_is_found() {
        let (runs, ended) = (json!({"running": {}}), json!({"terminated": {"exitCode": 0}}));
        let first = pod("Running", "1", 0, &runs);
        assert!(wrong_between(&first, &first).is_empty());
        for (after, words) in [
            (pod("Pending", "1", 0, &runs), "phase Running, then Pending"),
            (pod("Running", "2", 0, &runs), "Some(\"1\"), then Some(\"2\")"),
            (pod("Running", "2", 1, &runs), "ran as"),
            (pod("Succeeded", "1", 0, &ended), "ran as"),
        ] {
            let wrong = wrong_between(&first, &after).join("\n");
            assert!(wrong.contains(words), "{wrong:?} without {words:?}");
        }
        let mut leaves = pod("Succeeded", "1", 0, &ended);
        leaves.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(wrong_between(&first, &leaves).is_empty());
        let wrong = wrong_between(&leaves, &pod("Failed", "1", 0, &ended)).join("\n");
        assert!(wrong.contains("phase Succeeded, then Failed"), "{wrong:?}");
        let wrong = wrong_between(&pod("Running", "2", 3, &ended), &pod("Running", "3", 2, &runs)).join("\n");
        assert!(wrong.contains("restarts 3, then 2"), "{wrong:?}");
    }

    fn view(sandboxes: &[(&str, bool)], containers: &[(&str, &str)]) -> View {
        let sandbox = |(id, lives): &(&str, bool)| cri::PodSandbox {
            id: (*id).into(),
            metadata: Some(cri::PodSandboxMetadata { uid: "u".into(), ..Default::default() }),
            state: i32::from(!lives),
            labels: [(QUIET.to_owned(), "yes".to_owned())].into(),
            ..Default::default()
        };
        let container = |(id, name): &(&str, &str)| cri::Container {
            id: (*id).into(),
            state: cri::ContainerState::ContainerRunning.into(),
            labels: [
                ("io.kubernetes.pod.uid".to_owned(), "u".to_owned()),
                ("io.kubernetes.container.name".to_owned(), (*name).to_owned()),
            ]
            .into(),
            ..Default::default()
        };
        View {
            sandboxes: sandboxes.iter().map(sandbox).collect(),
            containers: containers.iter().map(container).collect(),
        }
    }

    #[test]
    fn two_of_a_kind_and_restarts_are_seen() {
        let mut seen = Instances::default();
        seen.judge(&view(&[("s", true), ("old", false)], &[("1", "c"), ("2", "d")])).unwrap();
        let twice = seen.judge(&view(&[("s", true), ("t", true)], &[])).unwrap_err();
        assert!(twice.to_string().contains("two live sandboxes"), "{twice}");
        let twice = seen.judge(&view(&[("s", true)], &[("1", "c"), ("3", "c")])).unwrap_err();
        assert!(twice.to_string().contains("two live containers"), "{twice}");
        let again = seen.judge(&view(&[("s", true)], &[("3", "c")])).unwrap_err();
        assert!(again.to_string().contains("was restarted"), "{again}");
    }
}
