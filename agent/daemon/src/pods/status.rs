//! The statuses of all pods, in memory: pod workers write them, other parts of the daemon read them.
//!
//! In: a pod's published status. Out: a `watch` view, and one log line for each change of phase.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::{PodKey, PodUid};
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;

/// A pod and its status.
#[derive(Clone, Debug)]
pub struct PodView {
    /// Identity of the pod.
    pub key: PodKey,
    /// The status that its worker published last.
    pub status: Arc<PodStatus>,
}

impl PodView {
    /// `status.phase`, empty if it has none yet.
    #[must_use]
    pub fn phase(&self) -> &str {
        self.status.phase.as_deref().unwrap_or("")
    }

    /// Whether a container runs now. The phase alone does not show this: a pod whose containers have ended and will be
    /// started again is `Running` too, as is every pod of the last boot until its new sandbox exists.
    #[must_use]
    pub fn runs(&self) -> bool {
        let containers = self.status.container_statuses.iter().flatten();
        self.phase() == "Running"
            && containers.filter_map(|c| c.state.as_ref()).any(|state| state.running.is_some())
    }
}

/// All pods by UID.
pub type PodViews = BTreeMap<PodUid, PodView>;

/// The store; clones share it.
#[derive(Clone, Debug)]
pub struct StatusStore(Arc<watch::Sender<PodViews>>);

impl Default for StatusStore {
    fn default() -> Self {
        StatusStore(Arc::new(watch::Sender::new(PodViews::new())))
    }
}

impl StatusStore {
    /// Replaces a pod's status.
    pub fn publish(&self, key: &PodKey, status: Arc<PodStatus>) {
        let view = PodView { key: key.clone(), status };
        let phase = view.phase().to_owned();
        let mut before = String::new();
        self.0.send_modify(|views| {
            before = views.insert(key.uid.clone(), view).map_or_else(String::new, |v| v.phase().to_owned());
        });
        if before != phase {
            tracing::info!(
                pod = %key.name, namespace = %key.namespace, uid = %key.uid, before, phase, "pod phase"
            );
        }
    }

    /// A pod's status as it was published last.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.0.borrow().get(uid).map(|view| view.status.clone())
    }

    /// Removes a pod that has no containers and no files any more.
    pub fn remove(&self, uid: &PodUid) {
        self.0.send_if_modified(|views| views.remove(uid).is_some());
    }

    /// A reader's view.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<PodViews> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readers_see_the_latest_and_the_end() {
        let store = StatusStore::default();
        let mut reader = store.subscribe();
        let key = PodKey { namespace: "ns".into(), name: "web".into(), uid: "u".into() };
        for phase in ["Pending", "Running"] {
            store.publish(&key, Arc::new(PodStatus { phase: Some(phase.to_owned()), ..Default::default() }));
        }
        reader.changed().await.unwrap();
        assert_eq!(reader.borrow_and_update()[&key.uid].phase(), "Running");
        store.remove(&key.uid);
        store.remove(&key.uid);
        assert!(reader.has_changed().unwrap());
        assert!(reader.borrow_and_update().is_empty());
        assert!(!reader.has_changed().unwrap());
    }
}
