//! The probe pod: a static pod of the sandbox's own image, which shows that runtime, image store and pod network work in this boot.
//!
//! In: the directory of static pods, what the node wants and has. Out: whether the pod has run. Its manifest lies in the directory only
//! until it has run; init removes what a power cut leaves there, because its name begins as those of init's own manifests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::node_update::check::CheckSeen;
use agent_core::node_update::facts::gate_pod;
use agent_linux::files::{self, Durability};
use agent_types::lock::Lock;
use agent_types::pod::is_static;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;

use crate::pods::desired_pods::DesiredPods;
use crate::pods::pod_dirs::chain;
use crate::pods::status::PodViews;
use crate::tasks::actor::Tasks;

/// Name of the pod, to which the agent adds the node's.
const NAME: &str = "orlop-update-probe";
/// A namespace that each cluster has.
const NAMESPACE: &str = "kube-system";
/// The manifest.
const MANIFEST: &str = "\
# Made by the node agent while it looks whether this version of the system is good; it goes away by itself.
apiVersion: v1
kind: Pod
metadata:
  name: orlop-update-probe
  namespace: kube-system
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 1
  containers:
  - name: probe
    image: localhost/orlop/pause:1
    imagePullPolicy: Never
";
/// A pod that has run shows so much for this long.
const GOOD_FOR: Duration = Duration::from_secs(600);

/// The probe pod of a node.
pub struct ProbePod {
    manifest: PathBuf,
    /// When it ran last.
    ran: Lock<Option<Mono>>,
}

impl ProbePod {
    /// For a node with this directory of static pods.
    #[must_use]
    pub fn new(static_pods: &Path) -> ProbePod {
        ProbePod { manifest: static_pods.join(format!("{NAME}.yaml")), ran: Lock::default() }
    }

    /// Whether it has run; starts it if it has not.
    pub async fn look(&self, desired: &DesiredPods, statuses: &PodViews, tasks: &Tasks) -> CheckSeen {
        let now = tasks.now().mono;
        let ran = *self.ran.lock();
        if ran.is_some_and(|at| now.since(at) < GOOD_FOR) {
            return CheckSeen::Green;
        }
        let Some((uid, pod)) = desired.iter().find(|(_, pod)| is_probe(pod)) else {
            return CheckSeen::Red(match self.write(tasks).await {
                Ok(()) => "the probe pod has not begun".to_owned(),
                Err(words) => words,
            });
        };
        let view = statuses.get(uid);
        if view.is_some_and(|view| view.runs()) {
            *self.ran.lock() = Some(now);
            self.remove(tasks).await;
            return CheckSeen::Green;
        }
        match gate_pod(pod, view.map(|view| &*view.status)).seen {
            // Ended before it was seen to run.
            CheckSeen::Green => CheckSeen::Red("the probe pod has ended".to_owned()),
            CheckSeen::Red(words) => CheckSeen::Red(format!("the probe pod does not run: {words}")),
        }
    }

    async fn write(&self, tasks: &Tasks) -> Result<(), String> {
        let path = self.manifest.clone();
        let written = tasks.blocking_update(move || {
            if path.exists() {
                return Ok(());
            }
            if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
                files::make_dir(directory, 0o755)?;
            }
            files::write_atomic(&path, MANIFEST.as_bytes(), 0o600, Durability::Rebuildable)
        });
        match written.await {
            Some(Err(error)) => Err(format!("the probe pod's manifest is not written: {}", chain(&error))),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// Takes its manifest away, and the pod with it.
    pub async fn remove(&self, tasks: &Tasks) {
        let path = self.manifest.clone();
        // A manifest that stays costs a pod that sleeps; the next look, or init, takes it away.
        let _ = tasks.blocking_update(move || std::fs::remove_file(path)).await;
    }
}

/// Is it the probe pod? The gate does not count it among the static pods.
#[must_use]
pub fn is_probe(pod: &Pod) -> bool {
    let meta = &pod.metadata;
    let is_named = meta.name.as_deref().is_some_and(|name| name.starts_with(NAME));
    is_named && meta.namespace.as_deref() == Some(NAMESPACE) && is_static(pod)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent_types::ids::{PodKey, PodUid};
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::pods::status::PodView;
    use crate::testing::VirtualClock;

    fn probe() -> Pod {
        let annotations = json!({"kubernetes.io/config.source": "file"});
        let name = "orlop-update-probe-node";
        let metadata = json!({"namespace": NAMESPACE, "name": name, "uid": "p", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn view(state: serde_json::Value) -> PodView {
        let container = json!({"name": "probe", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state});
        let status = json!({"phase": "Running", "containerStatuses": [container]});
        let key = PodKey { namespace: NAMESPACE.into(), name: NAME.into(), uid: PodUid::from("p") };
        PodView { key, status: Arc::new(serde_json::from_value(status).unwrap()) }
    }

    #[tokio::test]
    async fn the_pod_is_there_until_it_has_run() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (pod, file) = (ProbePod::new(dir.path()), dir.path().join("orlop-update-probe.yaml"));
        let (none, no_status) = (DesiredPods::new(), PodViews::new());
        assert!(matches!(pod.look(&none, &no_status, &tasks).await, CheckSeen::Red(_)));
        assert!(std::fs::read_to_string(&file).unwrap().contains("name: orlop-update-probe\n"));
        let desired = DesiredPods::from([(PodUid::from("p"), Arc::new(probe()))]);
        let waiting = json!({"waiting": {"reason": "ErrImageNeverPull"}});
        let statuses = PodViews::from([(PodUid::from("p"), view(waiting))]);
        let seen = pod.look(&desired, &statuses, &tasks).await;
        let words = "the probe pod does not run: container probe waits: ErrImageNeverPull";
        assert_eq!(seen, CheckSeen::Red(words.to_owned()));
        let statuses = PodViews::from([(PodUid::from("p"), view(json!({"running": {}})))]);
        assert_eq!(pod.look(&desired, &statuses, &tasks).await, CheckSeen::Green);
        assert!(!file.exists(), "its manifest stays");
        // It is gone, and what it has shown counts on.
        assert_eq!(pod.look(&none, &no_status, &tasks).await, CheckSeen::Green);
        assert!(!file.exists());
    }

    #[test]
    fn no_other_pod_is_the_probe() {
        assert!(is_probe(&probe()));
        let mut other = probe();
        other.metadata.namespace = Some("default".to_owned());
        assert!(!is_probe(&other));
        let mut of_api = probe();
        of_api.metadata.annotations = None;
        assert!(!is_probe(&of_api));
    }
}
