//! Crash-loop back-off of a pod's containers: the annotation that carries a series over a restart of the agent, and the
//! series' keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agent_types::runtime::view::{Slot, slots};
use k8s_openapi::api::core::v1::Pod;

use crate::pod_actions::ended::back_off_key;

/// Annotation of containers: the crash-loop delay in seconds at the creation of the instance, and the key of
/// its series. A restarted agent continues the series with it; a container with another image or other
/// resources begins its own series.
pub(super) const RESTART_BACK_OFF: &str = "io.orlop.container.restartBackOffSeconds";

/// The value of [`RESTART_BACK_OFF`].
pub(super) fn noted_back_off(key: &str, delay: Duration) -> String {
    format!("{} {key}", delay.as_secs())
}

/// The containers of a pod with the keys of their series, computed once for a pod: a key is a hash of all that would begin
/// another series.
#[derive(Clone, Debug)]
pub(super) struct BackOffKeys {
    of: Arc<Pod>,
    all: Vec<(Slot, String)>,
}

impl BackOffKeys {
    /// The keys of `pod`.
    pub(super) fn of(pod: &Arc<Pod>) -> BackOffKeys {
        let with_key = |slot: Slot| {
            let key = back_off_key(pod, &slot);
            (slot, key)
        };
        BackOffKeys { of: pod.clone(), all: slots(pod).into_iter().map(with_key).collect() }
    }

    /// True if the keys are those of this pod.
    pub(super) fn is_of(&self, pod: &Arc<Pod>) -> bool {
        Arc::ptr_eq(&self.of, pod)
    }

    /// The containers with their keys, in the order of [`slots`].
    pub(super) fn all(&self) -> &[(Slot, String)] {
        &self.all
    }

    /// The keys alone.
    pub(super) fn keys(&self) -> BTreeSet<&str> {
        self.all.iter().map(|(_, key)| key.as_str()).collect()
    }
}
