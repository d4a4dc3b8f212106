//! Where volumes of type `local` are mounted for pods, for whoever measures them.
//!
//! In: set-ups and tearings down. Out: paths by pod and name. Invariant: nothing here is needed after a kill: an agent that
//! starts sets all volumes up again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::lock::Lock;

/// By the pod, and the volume's name in it.
type Paths = BTreeMap<(PodUid, String), PathBuf>;

/// The mounted volumes; clones share them.
#[derive(Clone, Debug, Default)]
pub struct LocalVolumes(Arc<Lock<Paths>>);

impl LocalVolumes {
    /// It is mounted there.
    pub(crate) fn mounted(&self, pod: &PodUid, name: &str, path: PathBuf) {
        self.0.lock().insert((pod.clone(), name.to_owned()), path);
    }

    /// It is mounted, as far as this agent knows.
    pub(crate) fn has(&self, pod: &PodUid, name: &str) -> bool {
        self.0.lock().contains_key(&(pod.clone(), name.to_owned()))
    }

    /// The pod's volumes were taken away.
    pub(crate) fn forget(&self, pod: &PodUid) {
        self.0.lock().retain(|(of, _), _| of != pod);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Paths {
        self.0.lock().clone()
    }
}
