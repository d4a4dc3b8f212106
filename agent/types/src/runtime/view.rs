//! Reading a pod and a snapshot together: the pod's container slots, the newest instance of each.
//!
//! In: pod and snapshot. Out: borrowed instances. Newest is the highest attempt, then the latest creation.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::ids::SandboxId;
use crate::pod;
use crate::pod::ContainerRef;
use crate::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot, SandboxObserved};

/// List of a container in the pod, and its behaviour there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotKind {
    /// Init container: runs to completion before the next one starts.
    Init,
    /// Init container with `restartPolicy: Always`.
    Sidecar,
    /// From `spec.containers`.
    Regular,
    /// From `spec.ephemeralContainers`: started once while the pod lives, never again.
    Ephemeral,
}

/// One container of a pod's specification.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// List of the container.
    pub kind: SlotKind,
    /// Position in its list.
    pub index: usize,
    /// Name of the container.
    pub name: String,
}

impl Slot {
    /// The slot of a container name; an unknown name becomes a regular one past the end.
    #[must_use]
    pub fn of(p: &Pod, name: &str) -> Slot {
        let (kind, index, _) =
            places(p).find(|(.., n)| *n == name).unwrap_or((SlotKind::Regular, usize::MAX, name));
        Slot { kind, index, name: name.to_owned() }
    }

    /// The slot as a reference to the container.
    #[must_use]
    pub fn container_ref(&self) -> ContainerRef<'_> {
        match self.kind {
            SlotKind::Init | SlotKind::Sidecar => ContainerRef::Init(&self.name),
            SlotKind::Regular => ContainerRef::Regular(&self.name),
            SlotKind::Ephemeral => ContainerRef::Ephemeral(&self.name),
        }
    }

    /// The specification of the container.
    #[must_use]
    pub fn spec<'a>(&self, p: &'a Pod) -> Option<Cow<'a, Container>> {
        let list = match self.kind {
            SlotKind::Init | SlotKind::Sidecar => pod::init_containers(p),
            SlotKind::Regular => pod::containers(p),
            SlotKind::Ephemeral => &[],
        };
        let here = list.get(self.index).filter(|c| c.name == self.name).map(Cow::Borrowed);
        here.or_else(|| self.container_ref().find(p))
    }
}

/// The slots of a pod by name, for callers that look up many.
#[derive(Clone, Debug)]
pub struct Slots<'a>(BTreeMap<&'a str, (SlotKind, usize)>);

impl<'a> Slots<'a> {
    /// The slots of the pod.
    #[must_use]
    pub fn of(p: &'a Pod) -> Slots<'a> {
        let mut all = BTreeMap::new();
        for (kind, index, name) in places(p) {
            // Duplicate names: keep the first (validation rejects them).
            all.entry(name).or_insert((kind, index));
        }
        Slots(all)
    }

    /// The slot of a container name, as [`Slot::of`] has it.
    #[must_use]
    pub fn get(&self, name: &str) -> Slot {
        let (kind, index) = self.0.get(name).copied().unwrap_or((SlotKind::Regular, usize::MAX));
        Slot { kind, index, name: name.to_owned() }
    }
}

/// Every container of the pod, each list in order: init containers, regular ones, ephemeral ones.
#[must_use]
pub fn slots(p: &Pod) -> Vec<Slot> {
    places(p).map(|(kind, index, name)| Slot { kind, index, name: name.to_owned() }).collect()
}

/// Kind, position in its list and name of each container of the pod.
fn places(p: &Pod) -> impl Iterator<Item = (SlotKind, usize, &str)> {
    let init = pod::init_containers(p).iter().enumerate().map(|(index, c)| {
        let kind = if pod::is_sidecar(c) { SlotKind::Sidecar } else { SlotKind::Init };
        (kind, index, c.name.as_str())
    });
    let regular = pod::containers(p).iter().enumerate();
    let regular = regular.map(|(index, c)| (SlotKind::Regular, index, c.name.as_str()));
    let ephemeral = pod::ephemeral_containers(p).iter().enumerate();
    let ephemeral = ephemeral.map(|(index, c)| (SlotKind::Ephemeral, index, c.name.as_str()));
    init.chain(regular).chain(ephemeral)
}

/// True while the first process may run.
#[must_use]
pub fn is_live(state: ContainerState) -> bool {
    matches!(state, ContainerState::Running | ContainerState::Unknown)
}

/// The newest instance of a container in any sandbox.
#[must_use]
pub fn newest<'a>(snapshot: &'a PodSnapshot, name: &str) -> Option<&'a ContainerObserved> {
    snapshot.containers.of(name).first()
}

/// The newest instance of a container in one sandbox.
#[must_use]
pub fn newest_in<'a>(
    snapshot: &'a PodSnapshot,
    name: &str,
    sandbox: &SandboxId,
) -> Option<&'a ContainerObserved> {
    snapshot.containers.of(name).iter().find(|c| c.sandbox == *sandbox)
}

/// The attempt that the next instance of a container gets: 0 for the first, else newest + 1.
#[must_use]
pub fn next_attempt(snapshot: &PodSnapshot, name: &str) -> u32 {
    newest(snapshot, name).map_or(0, |c| c.attempt.saturating_add(1))
}

/// The newest sandbox, by attempt and then by age.
#[must_use]
pub fn newest_sandbox(snapshot: &PodSnapshot) -> Option<&SandboxObserved> {
    snapshot.sandboxes.iter().max_by_key(|s| (s.attempt, s.created))
}
