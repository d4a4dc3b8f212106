//! Containers that wait for devices long after everything healed, and have a reason that no plugin will take away.
//!
//! In: a pod, its status, plugins and the checkpoint on disk. Out: names of containers that LIVENESS does not ask for. Invariant: upstream's
//! words in the status are no excuse by themselves; what the world knows of the plugin has to agree with them. A plugin that registered
//! after the pod's admission serves the container only at its start, so there may be too few devices then; the scheduler knew nothing of
//! them.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::PodUid;
use agent_types::pod;
use agent_types::runtime::observed::{ContainerState, SandboxState};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};

use super::{Devices, NO_RECORD, WORDS};
use crate::world::World;

/// What the world knows of a resource, for one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Supply {
    /// Its plugin is connected.
    is_there: bool,
    /// Its plugin wants to know of starts.
    wants_pre_start: bool,
    /// The container has a device that is not healthy any more.
    has_lost: bool,
    /// Healthy devices that the container has or could get.
    healthy: usize,
}

/// A container that waits with these words waits for the devices that it asks for.
fn is_excused(
    message: &str,
    asked: &BTreeMap<String, usize>,
    supply: impl Fn(&str) -> Option<Supply>,
) -> bool {
    let has_words = WORDS.iter().any(|words| message.contains(words));
    let explains = |(resource, count): (&String, &usize)| match supply(resource) {
        None => has_words,
        Some(of) if message.contains(NO_RECORD) => of.wants_pre_start && message.contains(resource.as_str()),
        Some(of) => has_words && (!of.is_there || of.has_lost || of.healthy < *count),
    };
    asked.iter().any(explains)
}

impl Devices {
    fn supply(&self, uid: &PodUid, container: &str, resource: &str) -> Option<Supply> {
        let plugin = self.plugins.get(resource)?;
        let own = self.on_disk.records.devices(uid.as_str(), container, resource).unwrap_or_default();
        let in_use = self.on_disk.records.in_use(resource);
        let healthy = plugin.healthy();
        Some(Supply {
            is_there: plugin.is_there(),
            wants_pre_start: plugin.wants_pre_start(),
            has_lost: !own.is_subset(healthy),
            healthy: healthy.iter().filter(|id| own.contains(*id) || !in_use.contains(*id)).count(),
        })
    }
}

impl World {
    /// Containers of the pod that wait for devices with a reason, and those that wait for their turn after such an init container.
    pub(crate) fn excused_by_devices(&self, pod: &Pod, status: &PodStatus) -> BTreeSet<String> {
        let uid = PodUid::from(pod::uid(pod));
        let Some(devices) = &self.devices else { return BTreeSet::new() };
        let Some(asking) = devices.asking.get(&uid) else { return BTreeSet::new() };
        let is_waiting = |container: &Container| {
            let Some(asked) = asking.limits.get(&container.name) else { return false };
            let supply = |resource: &str| devices.supply(&uid, &container.name, resource);
            waiting_message(status, &container.name).is_some_and(|words| is_excused(words, asked, supply))
        };
        let init = pod::init_containers(pod);
        let begun = init.iter().position(is_waiting);
        let behind = begun.map(|at| init[at..].iter().chain(pod::containers(pod))).into_iter().flatten();
        let alone = pod::containers(pod).iter().filter(|container| is_waiting(container));
        behind.chain(alone).map(|container| container.name.clone()).collect()
    }
}

impl World {
    /// True if a pod with a sandbox and without a running container lacks devices. The next agent judges such a pod again, and
    /// refuses it if its plugin has too few, as upstream: the restart is not without effect.
    pub(crate) fn a_pod_lacks_devices(&self) -> bool {
        let Some(devices) = &self.devices else { return false };
        let is_up = |uid: &PodUid| {
            let sandboxes = &self.runtime.sandboxes;
            let containers = &self.runtime.containers;
            sandboxes.values().any(|s| s.pod.uid == *uid && s.observed.state == SandboxState::Ready)
                && !containers
                    .values()
                    .any(|c| c.pod.uid == *uid && c.observed.state == ContainerState::Running)
        };
        devices.asking.iter().filter(|(uid, _)| is_up(uid)).any(|(uid, asking)| {
            asking.limits.iter().any(|(container, asked)| {
                asked.iter().any(|(resource, count)| {
                    let own = devices.on_disk.records.devices(uid.as_str(), container, resource);
                    own.unwrap_or_default().len() < *count
                })
            })
        })
    }
}

/// The words with which the status shows that the container waits.
fn waiting_message<'a>(status: &'a PodStatus, name: &str) -> Option<&'a str> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|of| of.name == name)?.state.as_ref()?.waiting.as_ref()?.message.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: Supply = Supply { is_there: true, wants_pre_start: false, has_lost: false, healthy: 2 };

    #[test]
    fn words_are_no_excuse_without_a_reason() {
        let asked = BTreeMap::from([("x.io/gpu".to_owned(), 2)]);
        let few = "requested number of devices unavailable for x.io/gpu. Requested: 2, Available: 1";
        let failed = "rpc error: code = Unknown desc = the plugin has failed";
        let no_record = "no devices found allocated in local cache for pod p, container c, resource x.io/gpu";
        let table = [
            (few, ENOUGH, false),
            (few, Supply { healthy: 1, ..ENOUGH }, true),
            (few, Supply { is_there: false, ..ENOUGH }, true),
            (few, Supply { has_lost: true, ..ENOUGH }, true),
            (failed, ENOUGH, false),
            (failed, Supply { wants_pre_start: true, ..ENOUGH }, false),
            (no_record, ENOUGH, false),
            (no_record, Supply { healthy: 0, ..ENOUGH }, false),
            (no_record, Supply { wants_pre_start: true, ..ENOUGH }, true),
            ("image not found", Supply { healthy: 0, ..ENOUGH }, false),
        ];
        for (message, supply, expected) in table {
            assert_eq!(is_excused(message, &asked, |_| Some(supply)), expected, "{message} {supply:?}");
        }
        assert!(is_excused(few, &asked, |_| None), "no plugin has the resource");
        assert!(!is_excused("image not found", &asked, |_| None));
        assert!(!is_excused(few, &BTreeMap::new(), |_| None), "it asks for nothing");
    }
}
