//! What changes in a pod while it lives: somebody adds ephemeral containers to look at it.
//!
//! In: chance of its own, so that runs without it stay what they are. Out: changed pods in the API, and what the checker
//! EPHEMERAL-ONCE is told. Upstream: the subresource `ephemeralcontainers`, `kubectl debug`.

use agent_core::checkers::TraceEvent;
use agent_core::pod_actions::has_run;
use agent_core::runtime::PodUid;
use agent_core::types::pod;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::fake_api::resource::text;
use crate::fake_runtime::Program;
use crate::rng::Rng;
use crate::world::World;

/// What a run with changes in place has besides.
#[derive(Clone, Debug)]
pub(crate) struct InPlace {
    rng: Rng,
    added: u32,
}

impl InPlace {
    /// Everything that chance decides here comes from `seed`.
    #[must_use]
    pub(crate) fn new(seed: u64) -> InPlace {
        InPlace { rng: Rng::new(seed ^ 0xDEB6), added: 0 }
    }
}

impl World {
    /// From now on pods are changed while they live.
    pub fn change_in_place(&mut self, seed: u64) {
        self.in_place = Some(Box::new(InPlace::new(seed)));
    }

    /// Somebody may look at one of the pods.
    pub(crate) fn somebody_debugs(&mut self) {
        let pods: Vec<Pod> = self.runnable_api_pods();
        let Some(in_place) = &mut self.in_place else { return };
        // At most two look at one pod.
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

    /// Long after everything healed: every ephemeral container of a pod that runs has had its run.
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

/// An ephemeral container, by its name.
pub(crate) fn is_ephemeral(name: &str) -> bool {
    name.starts_with("debug-")
}
