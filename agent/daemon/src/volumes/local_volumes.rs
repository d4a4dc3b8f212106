//! Paths at which volumes of type `local` are mounted for pods, for measurements.
//!
//! In: set-ups and tear-downs. Out: paths by pod and name. Invariant: no state must survive a kill: an agent that
//! starts sets up all volumes again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::lock::Lock;

/// Paths by pod and by the volume's name in the pod.
type Paths = BTreeMap<(PodUid, String), PathBuf>;

/// The mounted volumes; clones share them.
#[derive(Clone, Debug, Default)]
pub struct LocalVolumes(Arc<Lock<Paths>>);

impl LocalVolumes {
    /// Records that the volume is mounted at the path.
    pub(crate) fn mounted(&self, pod: &PodUid, name: &str, path: PathBuf) {
        self.0.lock().insert((pod.clone(), name.to_owned()), path);
    }

    /// True if this agent has mounted the volume.
    pub(crate) fn has(&self, pod: &PodUid, name: &str) -> bool {
        self.0.lock().contains_key(&(pod.clone(), name.to_owned()))
    }

    /// The pod's volumes were taken away.
    pub(crate) fn forget(&self, pod: &PodUid) {
        self.0.lock().retain(|(of, _), _| of != pod);
    }

    /// All paths.
    pub(crate) fn all(&self) -> Paths {
        self.0.lock().clone()
    }
}
