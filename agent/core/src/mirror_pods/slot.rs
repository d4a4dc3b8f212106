//! One name: the static pod that wants it, and the API's pod of that name.
//!
//! In: pods from watch and answers. Out: the state for decisions. Invariant: a pod that we deleted does not
//! come back through an older event of the watch; a direct answer is newer than any event before it.

use std::sync::Arc;

use agent_types::api::retry::Retry;
use agent_types::pod::{self, CONFIG_HASH, CONFIG_MIRROR};
use k8s_openapi::api::core::v1::Pod;

/// A pod of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mirror {
    pub(super) uid: String,
    /// `kubernetes.io/config.mirror`; `None` for a pod that is no mirror pod.
    pub(super) hash: Option<String>,
    deleting: bool,
}

impl Mirror {
    pub(super) fn of(p: &Pod) -> Mirror {
        Mirror {
            uid: pod::uid(p).to_owned(),
            hash: pod::annotation(p, CONFIG_MIRROR).map(str::to_owned),
            deleting: p.metadata.deletion_timestamp.is_some(),
        }
    }

    pub(super) fn is_mirror(&self) -> bool {
        self.hash.is_some()
    }

    /// It shows `wanted` and stays.
    pub(super) fn mirrors(&self, wanted: &Pod) -> bool {
        let hash = pod::annotation(wanted, CONFIG_HASH).unwrap_or(pod::uid(wanted));
        !self.deleting && self.hash.as_deref() == Some(hash)
    }
}

/// The next call, and then the call in flight.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MirrorCall {
    /// GET: the state of the API is in doubt.
    Look,
    /// POST.
    Create(Box<Pod>),
    /// DELETE of this UID.
    Delete(String),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    /// The static pod.
    pub(super) wanted: Option<Arc<Pod>>,
    /// In the API, as far as known.
    pub(super) mirror: Option<Mirror>,
    /// UID that was deleted; older events still mention it.
    tombstone: Option<String>,
    pub(super) flight: Option<MirrorCall>,
    pub(super) look: bool,
    pub(super) retry: Retry,
    /// UID of a mirror pod that shows an earlier run and must be replaced.
    pub(super) outdated: Option<String>,
    /// True once it was reported that another pod has the name.
    pub(super) told_taken: bool,
}

impl Slot {
    /// The watch shows this pod.
    pub(super) fn seen(&mut self, mirror: Mirror) {
        if self.tombstone.as_ref() != Some(&mirror.uid) {
            self.mirror = Some(mirror);
        }
    }

    /// A list without it. If a create is in flight its answer arrives later.
    pub(super) fn absent(&mut self) {
        self.mirror = None;
    }

    /// The watch shows that this UID is gone.
    pub(super) fn deleted(&mut self, uid: &str) {
        if self.tombstone.as_deref() == Some(uid) {
            self.tombstone = None;
        }
        self.mirror.take_if(|m| m.uid == uid);
    }

    /// A DELETE of this UID ended.
    pub(super) fn removed(&mut self, uid: &str) {
        self.tombstone = Some(uid.to_owned());
        self.mirror.take_if(|m| m.uid == uid);
    }

    /// Takes the result of a GET.
    pub(super) fn looked(&mut self, found: Option<Mirror>) {
        self.look = false;
        if found.is_some() {
            self.tombstone = None;
        }
        self.mirror = found;
    }

    /// True if the API shows the wanted pod.
    pub(super) fn is_right(&self) -> bool {
        match (&self.wanted, &self.mirror) {
            (Some(wanted), Some(m)) => m.mirrors(wanted),
            (None, None) => true,
            _ => false,
        }
    }

    /// Nothing is left to know.
    pub(super) fn is_empty(&self) -> bool {
        let nothing = self.wanted.is_none() && self.flight.is_none() && !self.look;
        nothing && self.mirror.as_ref().is_none_or(|m| !m.is_mirror())
    }
}
