//! Changes of a running pod: users add ephemeral containers for debugging; a container's end restarts all containers
//! (RestartAllContainers).
//!
//! In: random numbers of its own, so that runs without such changes do not change. Out: changed pods in the API, and
//! the input of the checkers EPHEMERAL-ONCE and RESTART-ALL. Upstream: the subresource `ephemeralcontainers`, `kubectl
//! debug`.

use std::collections::BTreeMap;

use agent_core::checkers::TraceEvent;
use agent_core::pod_actions::has_run;
use agent_core::pod_worker::effect::EffectOk;
use agent_types::ids::{ContainerId, PodUid};
use agent_types::pod;
use agent_types::runtime::observed::ContainerState;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::fake_api::resource::text;
use crate::fake_runtime::Program;
use crate::rng::Rng;
use crate::world::World;

/// State of a run with changes of running pods.
#[derive(Clone, Debug)]
pub(crate) struct InPlace {
    rng: Rng,
    added: u32,
    /// Exit code that triggers RestartAllContainers, by container.
    rules: BTreeMap<String, i32>,
}

impl InPlace {
    /// All random numbers of this module come from `seed`.
    #[must_use]
    pub(crate) fn new(seed: u64) -> InPlace {
        InPlace { rng: Rng::new(seed ^ 0xDEB6), added: 0, rules: BTreeMap::new() }
    }
}

impl World {
    /// From now on pods are changed while they run.
    pub fn change_in_place(&mut self, seed: u64) {
        self.in_place = Some(Box::new(InPlace::new(seed)));
    }

    /// Gives a container of the pod a rule RestartAllContainers, if this run has such rules.
    pub(crate) fn give_rules(&mut self, pod: &mut Value) {
        let Some(in_place) = &mut self.in_place else { return };
        if !in_place.rng.chance(400) {
            return;
        }
        let policy = pod.pointer("/spec/restartPolicy").cloned().unwrap_or_default();
        let list = if in_place.rng.chance(800) { "/spec/containers" } else { "/spec/initContainers" };
        let Some(all) = pod.pointer_mut(list).and_then(Value::as_array_mut) else { return };
        let plain: Vec<&mut Value> = all.iter_mut().filter(|c| c.get("restartPolicy").is_none()).collect();
        let Some(one) = plain.into_iter().next() else { return };
        let rule =
            json!({ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [1] } });
        one["restartPolicy"] = if list == "/spec/containers" { policy } else { json!("OnFailure") };
        one["restartPolicyRules"] = json!([rule]);
        in_place.rules.insert(text(one, "/name").to_owned(), 1);
    }

    /// Passes the end of a container to RESTART-ALL.
    pub(crate) fn note_asked(&mut self, id: &ContainerId, code: i32) {
        let Some(in_place) = &self.in_place else { return };
        let Some(c) = self.runtime.containers.get(id) else { return };
        let runs = c.observed.state == ContainerState::Running;
        if runs && in_place.rules.get(&c.observed.name) == Some(&code) {
            let event = TraceEvent::RestartAllAsked { pod: c.pod.uid.clone(), id: id.clone() };
            self.checks.note(self.queue.now(), &event);
        }
    }

    /// True if the container has a rule RestartAllContainers.
    pub(crate) fn asks_for_all(&self, id: &ContainerId) -> bool {
        let name = self.runtime.containers.get(id).map(|c| &c.observed.name);
        name.is_some_and(|name| self.in_place.as_ref().is_some_and(|i| i.rules.contains_key(name)))
    }

    /// A container that starts has a log file.
    pub(crate) fn write_log(&mut self, id: &ContainerId) {
        if self.in_place.is_some()
            && let Some(c) = self.runtime.containers.get(id)
        {
            let key = (c.pod.uid.clone(), c.observed.name.clone());
            let newest = self.disk.logs.entry(key).or_default();
            *newest = c.observed.attempt.max(*newest);
        }
    }

    /// The answer of the disk when a container's files are created.
    pub(crate) fn files_of(&self, uid: &PodUid, log_of: Option<&str>) -> EffectOk {
        let name = log_of.and_then(|directory| directory.rsplit('/').next()).unwrap_or_default();
        EffectOk::Files { newest_log: self.disk.logs.get(&(uid.clone(), name.to_owned())).copied() }
    }

    /// A user may add an ephemeral container to one of the pods.
    pub(crate) fn somebody_debugs(&mut self) {
        let pods: Vec<Pod> = self.runnable_api_pods();
        let Some(in_place) = &mut self.in_place else { return };
        // A pod gets at most two ephemeral containers.
        let open =
            |p: &&Pod| p.metadata.deletion_timestamp.is_none() && pod::ephemeral_containers(p).len() < 2;
        let live: Vec<&Pod> = pods.iter().filter(open).collect();
        let rng = &mut in_place.rng;
        if !rng.chance(600) {
            return;
        }
        let Some(one) = rng.pick(&live).copied() else { return };
        in_place.added += 1;
        let name = format!("debug-{}", in_place.added);
        let exits = rng.chance(700).then(|| (rng.below(40_000), i32::from(rng.chance(500))));
        let term_ms = rng.chance(800).then(|| rng.below(3_000));
        let target = pod::containers(one).first().filter(|_| rng.chance(500)).map(|c| c.name.clone());
        let container = json!({
            "name": name, "image": format!("docker.io/library/image{}:1", rng.below(6)),
            "imagePullPolicy": "IfNotPresent", "targetContainerName": target,
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        });
        self.runtime.programs.insert(name.clone(), Program { exits, term_ms });
        let Ok(shown) = serde_json::to_value(one) else { return };
        let uid = PodUid::from(text(&shown, "/metadata/uid"));
        self.checks.note(self.queue.now(), &TraceEvent::EphemeralAdded { pod: uid, name });
        self.disturb();
        self.patch(&shown, json!({ "spec": { "ephemeralContainers": [container] } }));
    }

    /// Long after all faults have healed: ephemeral containers of running pods that have never run.
    pub(crate) fn undebugged(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for p in self.runnable_api_pods() {
            let phase = p.status.as_ref().and_then(|s| s.phase.as_deref());
            for c in pod::ephemeral_containers(&p).iter().filter(|_| phase == Some("Running")) {
                if !has_run(&p, &c.name) {
                    missing.push(format!("{} never ran in {}", c.name, pod::full_name(&p)));
                }
            }
        }
        missing
    }
}

/// True if the name is that of an ephemeral container.
pub(crate) fn is_ephemeral(name: &str) -> bool {
    name.starts_with("debug-")
}
