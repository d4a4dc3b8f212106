//! The checkers of devices.
//!
//! In: questions to plugins, created containers, the checkpoint. Out: broken invariants. ALLOC-EXCL: no device belongs to containers
//! of two pods, and the agent does not request a device that another pod has. ALLOC-CAP: the agent requests only devices that a plugin
//! lists as healthy, and a container has the requested number of devices with every part of the plugin's answer. ALLOC-DURABLE: the
//! checkpoint on disk has the devices of every running container, and of a new one before its creation. ASK-OWN: a container has the
//! answer to the last question for its pod.

use std::collections::{BTreeMap, BTreeSet};

use agent_core::pod_worker::effect::{Effect, EffectOk, EffectResult};
use agent_managers::devices::allocation::AllocateQuestion;
use agent_managers::devices::choice::PreferredQuestion;
use agent_types::ids::{ContainerId, PodKey, PodUid};
use agent_types::runtime::config::ContainerConfig;
use agent_types::runtime::observed::ContainerState;

use super::{Devices, answers};
use crate::fake_runtime::{FakeContainer, FakeRuntime};
use crate::world::World;

type Report = (&'static str, String);

/// A device that a running container has.
struct Owned<'a> {
    container: &'a FakeContainer,
    resource: &'a String,
    ids: &'a BTreeSet<String>,
}

impl Devices {
    /// Devices of running containers.
    fn owned<'a>(&'a self, runtime: &'a FakeRuntime) -> impl Iterator<Item = Owned<'a>> {
        let runs = |c: &&FakeContainer| c.observed.state == ContainerState::Running;
        let of = move |(id, answers): (&'a ContainerId, &'a BTreeMap<String, u64>)| {
            let container = runtime.containers.get(id).filter(runs);
            let ids = |(resource, number): (&'a String, &u64)| {
                Some(Owned { container: container?, resource, ids: &self.questions.get(number)?.ids })
            };
            answers.iter().filter_map(ids).collect::<Vec<_>>()
        };
        self.of.iter().flat_map(of)
    }

    /// Name of a running container of another pod that has one of these devices.
    fn owner(&self, runtime: &FakeRuntime, uid: &PodUid, of: &str, ids: &BTreeSet<String>) -> Option<String> {
        let mut others = self.owned(runtime).filter(|o| o.container.pod.uid != *uid && o.resource == of);
        let other = others.find(|o| !o.ids.is_disjoint(ids))?;
        Some(format!("{} of {}", other.container.observed.name, other.container.pod))
    }

    /// Devices that plugins have allocated to the pod before.
    fn earlier(&self, uid: &PodUid, resource: &str) -> BTreeSet<String> {
        let of = self.questions.values().filter(|q| q.uid == *uid && q.resource == resource);
        of.flat_map(|q| q.ids.iter().cloned()).collect()
    }

    /// Compares the devices of a created container with its pod and with the checkpoint on disk.
    fn judge(&self, runtime: &FakeRuntime, key: &PodKey, config: &ContainerConfig) -> Option<Report> {
        let text = |why: String| format!("{} of {key}: {why}", config.name);
        let given = answers::of(config);
        for (resource, number) in &given {
            let Some(question) = self.questions.get(number) else {
                return Some(("ASK-OWN", text(format!("nobody asked question {number}"))));
            };
            let ids = &question.ids;
            if question.uid != key.uid || question.is_stale {
                return Some(("ASK-OWN", text(format!("has the answer to {question:?}"))));
            }
            if let Some(owner) = self.owner(runtime, &key.uid, resource, ids) {
                return Some(("ALLOC-EXCL", text(format!("gets {ids:?} of {resource}, which {owner} has"))));
            }
            let expected = answers::answer(*number, resource, ids).options;
            if let Some(part) = answers::missing(config, &expected).filter(|_| !question.is_lie) {
                return Some(("ALLOC-CAP", text(format!("lacks {part}"))));
            }
            let recorded = self.on_disk.records.devices(key.uid.as_str(), &config.name, resource);
            if recorded.as_ref() != Some(ids) {
                let why = format!("has {ids:?} of {resource}, and the checkpoint {recorded:?}");
                return Some(("ALLOC-DURABLE", text(why)));
            }
        }
        self.count(key, config, &given).map(|why| ("ALLOC-CAP", text(why)))
    }

    /// Reports a container that has another number of devices than it requests.
    fn count(&self, key: &PodKey, config: &ContainerConfig, given: &BTreeMap<String, u64>) -> Option<String> {
        let asking = self.asking.get(&key.uid)?;
        let limits = asking.limits.get(&config.name).cloned().unwrap_or_default();
        for (resource, wanted) in &limits {
            let Some(number) = given.get(resource) else {
                // A pod may be admitted while no plugin has the resource: then it gets no device, as upstream.
                let managed = self.plugins.get(resource).is_some_and(|p| p.unknown_at() < asking.since);
                let mut answered =
                    self.questions.values().filter(|q| q.uid == key.uid && q.resource == *resource);
                if managed && *wanted > 0 && !answered.any(|q| q.is_lie) {
                    return Some(format!("has no device of {resource} and asks for {wanted}"));
                }
                continue;
            };
            let had = self.questions.get(number).map_or(0, |question| question.ids.len());
            if had != *wanted {
                return Some(format!("has {had} of {resource} and asks for {wanted}"));
            }
        }
        let more = given.keys().find(|resource| !limits.contains_key(*resource));
        more.map(|resource| format!("does not ask for {resource}"))
    }
}

impl World {
    /// A container was created.
    pub(crate) fn equipped(&mut self, key: &PodKey, effect: &Effect, result: &EffectResult) {
        let (Some(devices), Effect::CreateContainer { config, .. }, Ok(EffectOk::Container(id))) =
            (&mut self.devices, effect, result)
        else {
            return;
        };
        if devices.of.contains_key(id) {
            return;
        }
        if let Some((invariant, detail)) = devices.judge(&self.runtime, key, config) {
            self.checks.report(invariant, detail);
        }
        devices.of.insert(id.clone(), answers::of(config));
    }

    /// Checks ALLOC-EXCL and ALLOC-DURABLE after each event.
    pub(crate) fn look_at_devices(&mut self) {
        let Some(devices) = &self.devices else { return };
        let mut owners: BTreeMap<(&str, &str), &PodKey> = BTreeMap::new();
        let mut found: Option<Report> = None;
        for Owned { container, resource, ids } in devices.owned(&self.runtime) {
            let (key, name) = (&container.pod, &container.observed.name);
            for id in ids {
                if let Some(of) = owners.insert((resource.as_str(), id.as_str()), key)
                    && of.uid != key.uid
                {
                    let text = format!("{id} of {resource} belongs to {name} of {key} and to {of}");
                    found.get_or_insert(("ALLOC-EXCL", text));
                }
            }
            let recorded = devices.on_disk.records.devices(key.uid.as_str(), name, resource);
            if recorded.as_ref() != Some(ids) {
                let text = format!(
                    "{name} of {key} runs with {ids:?} of {resource}, and the checkpoint has {recorded:?}"
                );
                found.get_or_insert(("ALLOC-DURABLE", text));
            }
        }
        if let Some((invariant, text)) = found {
            self.checks.report(invariant, text);
        }
    }

    /// Checks a GetPreferredAllocation call of the agent.
    pub(super) fn look_at_preference(&mut self, ask: u64, uid: &PodUid, question: &PreferredQuestion) {
        let Some(devices) = &mut self.devices else { return };
        let PreferredQuestion { connection, resource, available, must_include, size } = question;
        let (earlier, plugin) = (devices.earlier(uid, resource), devices.plugins.get(resource));
        let fits =
            available.len() >= *size && must_include.is_subset(available) && must_include.len() <= *size;
        let known = |p: &super::FakePlugin| {
            p.is_open(*connection)
                && available.iter().all(|id| p.healthy().contains(id) || earlier.contains(id))
        };
        if !fits || !plugin.is_some_and(known) {
            self.checks.report("ALLOC-CAP", format!("question {ask} for {uid} is none: {question:?}"));
        }
        devices.open.insert(uid.clone(), ask);
        devices.preferred.insert(uid.clone(), available.clone());
    }

    /// Checks an Allocate call of the agent.
    pub(super) fn look_at_allocation(&mut self, ask: u64, uid: &PodUid, question: &AllocateQuestion) {
        let Some(devices) = &mut self.devices else { return };
        let AllocateQuestion { connection, resource, ids } = question;
        let allowed = devices.preferred.remove(uid).unwrap_or_default();
        let earlier = devices.earlier(uid, resource);
        let listed = |p: &super::FakePlugin| {
            let there =
                |id: &String| p.healthy().contains(id) || allowed.contains(id) || earlier.contains(id);
            p.is_open(*connection) && ids.iter().all(there)
        };
        let is_listed = devices.plugins.get(resource).is_some_and(listed);
        let promised = devices.open.iter().filter(|(other, _)| *other != uid);
        let incarnation = self.incarnation;
        let promised = promised.filter_map(|(other, ask)| {
            let mut all = devices.questions.values();
            all.find(|q| q.ask == *ask && q.uid == *other && q.incarnation == incarnation)
        });
        let mut promised = promised.filter(|q| q.resource == *resource && !q.ids.is_disjoint(ids));
        let waits = |q: &&super::Question| self.node.as_ref().is_some_and(|node| node.waits(&q.uid));
        let promised = promised.find(waits).map(|q| q.uid.to_string());
        if let Some(owner) = devices.owner(&self.runtime, uid, resource, ids).or(promised) {
            self.checks
                .report("ALLOC-EXCL", format!("{uid} is to have {ids:?} of {resource}, which {owner} has"));
        }
        if !is_listed {
            let text =
                format!("{uid} is to have {ids:?} of {resource}, which its plugin does not list as healthy");
            self.checks.report("ALLOC-CAP", text);
        }
        devices.open.insert(uid.clone(), ask);
    }
}
