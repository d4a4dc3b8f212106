//! One plugin hangs and nothing else fails: pods that request its resource wait for two minutes and are rejected; all others start.
//!
//! In: a world at rest. Out: LIVENESS. Upstream lets all pods wait without end.

use std::sync::Arc;
use std::time::Duration;

use agent_core::resource_managers::ASK_TIME;
use agent_types::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{REFUSED, RESOURCES, UNALIGNED, ask};
use crate::checks::Violation;
use crate::scenario::Story;
use crate::world::World;

/// A pod that does not wait for a plugin has containers after this time.
const PROMPT: Duration = Duration::from_secs(60);

impl Story {
    /// Makes a plugin hang for a while.
    pub(crate) fn a_plugin_hangs(&mut self, world: &mut World) -> Result<(), Violation> {
        if world.devices.is_none() {
            return Ok(());
        }
        let hangs = self.rng.pick(&RESOURCES).copied().unwrap_or_default();
        let well = RESOURCES.iter().copied().find(|resource| *resource != hangs).unwrap_or_default();
        world.hang(hangs, true);
        let held = self.add_asking(world, Some(hangs));
        world.run_for(Duration::from_millis(self.rng.between(1, 5_000)))?;
        let (free, other) = (self.add_asking(world, None), self.add_asking(world, Some(well)));
        world.run_for(PROMPT)?;
        let started =
            |world: &World, uid: &PodUid| world.runtime.containers.values().any(|c| c.pod.uid == *uid);
        let refused = |world: &World, uid: &PodUid| {
            matches!(world.status_of(uid).reason.as_deref(), Some(REFUSED | UNALIGNED))
        };
        if started(world, &held) {
            world
                .checks
                .report("LIVENESS", format!("{held} starts although the plugin of {hangs} does not answer"));
        }
        if !started(world, &free) {
            world
                .checks
                .report("LIVENESS", format!("{free} waits for a plugin whose resource it does not want"));
        }
        if !started(world, &other) && !refused(world, &other) {
            world.checks.report("LIVENESS", format!("{other} waits although the plugin of {well} answers"));
        }
        world.run_for(ASK_TIME + PROMPT)?;
        if !refused(world, &held) {
            let status = world.status_of(&held);
            world.checks.report("LIVENESS", format!("{held} is not refused after two minutes: {status:?}"));
        }
        world.hang(hangs, false);
        for uid in [held, free, other] {
            world.user_removes(&uid);
        }
        world.run_for(PROMPT * 3)
    }

    /// Adds a static pod with one container, which requests a device of `resource`.
    fn add_asking(&mut self, world: &mut World, resource: Option<&str>) -> PodUid {
        let mut pod = self.manifest(world);
        pod["spec"]["initContainers"] = json!([]);
        if let Some(all) = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut) {
            all.truncate(1);
            all.iter_mut().zip(resource).for_each(|(container, resource)| ask(container, resource, 1));
        }
        let pod = serde_json::from_value::<Pod>(pod).expect("the literals are a pod");
        let uid = PodUid::from(agent_types::pod::uid(&pod));
        world.user_adds(&Arc::new(pod));
        uid
    }
}

impl World {
    /// Makes the plugin of the resource hang, or answer again.
    fn hang(&mut self, resource: &str, hangs: bool) {
        let found = self.devices.as_mut().and_then(|devices| devices.plugins.get_mut(resource));
        match found {
            Some(plugin) if hangs => plugin.hang(),
            Some(plugin) => plugin.behave(),
            None => {}
        }
    }
}
