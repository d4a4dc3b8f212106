//! DRA drivers in the simulated world: their prepared claims and their answers.
//!
//! In: calls. Out: answers, late, wrong or none; registrations and connections that come and go. Invariants: prepared claims survive
//! the agent; a driver accepts a claim that it has prepared already.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_core::resource_claims::api::{
    CalledClaim, ClaimEvent, ClaimMethod, ClaimResult, ClaimedDevice, DeviceHealth, PluginId, ReportedHealth,
};

use crate::rng::Rng;

const DRIVERS: [&str; 2] = ["d0", "d1"];
/// The owner's shell waits this long for an answer.
const CALL_TIME: Duration = Duration::from_secs(45);

/// Name of the driver that serves a claim.
pub(super) fn driver_of(claim: &str) -> &'static str {
    DRIVERS[claim.len() % 2]
}

/// Behaviour of a driver for one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Serves,
    /// It does nothing, and answers with an error.
    Fails,
    /// It fails for one claim, and serves the others.
    FailsForOne,
    /// It serves the call, and its answer is lost.
    Silent,
    /// It does nothing, and does not answer.
    Hangs,
}

/// A call on its way.
#[derive(Clone, Debug)]
pub(crate) struct DriverCall {
    call: u64,
    method: ClaimMethod,
    claims: Vec<CalledClaim>,
    mood: Mood,
    answers_after: Duration,
}

/// Result of a served call.
pub(super) struct Served {
    pub(super) answers_after: Duration,
    pub(super) answer: ClaimEvent,
    /// Claims that the driver has unprepared.
    pub(super) gone: Vec<String>,
}

/// The drivers.
#[derive(Debug, Default)]
pub(super) struct Drivers {
    /// Claims that are prepared.
    pub(super) held: BTreeSet<String>,
    /// Claims of the agent's calls without an answer, by call.
    open: BTreeMap<u64, Vec<String>>,
    plugins: BTreeMap<PluginId, &'static str>,
    last_plugin: u64,
}

impl Drivers {
    /// All drivers register with a new agent; one of them is late.
    pub(super) fn register(&mut self, rng: &mut Rng, calm: bool) -> Vec<(Duration, ClaimEvent)> {
        self.plugins.clear();
        self.open.clear();
        let mut news = Vec::new();
        for driver in DRIVERS {
            self.last_plugin += 1;
            let plugin = PluginId(self.last_plugin);
            self.plugins.insert(plugin, driver);
            let after = Duration::from_millis(rng.below(if calm { 1_000 } else { 20_000 }));
            news.push((after, ClaimEvent::Registered { plugin, driver: driver.to_owned() }));
            news.push((after + Duration::from_millis(1), ClaimEvent::Connected(plugin)));
        }
        news
    }

    /// Sometimes a connection breaks, or a device becomes unhealthy.
    pub(super) fn misbehave(&mut self, rng: &mut Rng) -> Vec<(Duration, ClaimEvent)> {
        let all: Vec<PluginId> = self.plugins.keys().copied().collect();
        let Some(plugin) = rng.pick(&all).copied() else { return Vec::new() };
        if rng.chance(20) {
            let back = Duration::from_millis(rng.between(100, 40_000));
            return vec![
                (Duration::ZERO, ClaimEvent::Disconnected(plugin)),
                (back, ClaimEvent::Connected(plugin)),
            ];
        }
        if rng.chance(50) {
            let health = if rng.chance(500) { DeviceHealth::Healthy } else { DeviceHealth::Unhealthy };
            let report = ReportedHealth {
                pool: "pool".to_owned(),
                device: format!("c{}", rng.below(4)),
                health,
                timeout: None,
                message: String::new(),
            };
            return vec![(Duration::ZERO, ClaimEvent::Health { plugin, devices: vec![report] })];
        }
        Vec::new()
    }

    /// Sends a call, which arrives later.
    pub(super) fn send(
        &mut self,
        rng: &mut Rng,
        calm: bool,
        (call, method, claims): (u64, ClaimMethod, Vec<CalledClaim>),
    ) -> (Duration, DriverCall) {
        let mood = match (calm, rng.below(20)) {
            (false, 0) => Mood::Hangs,
            (false, 1..=2) => Mood::Fails,
            (false, 3..=4) => Mood::FailsForOne,
            (false, 5) => Mood::Silent,
            _ => Mood::Serves,
        };
        let answers_after = match mood {
            Mood::Hangs | Mood::Silent => CALL_TIME,
            _ if !calm && rng.chance(200) => Duration::from_millis(rng.below(40_000)),
            _ => Duration::from_millis(rng.between(1, 200)),
        };
        let arrives = Duration::from_millis(rng.between(1, 100));
        (arrives, DriverCall { call, method, claims, mood, answers_after })
    }

    /// Notes a call of the agent. Returns a claim for which an earlier call has no answer yet.
    pub(super) fn note_call(&mut self, call: u64, claims: &[CalledClaim]) -> Option<String> {
        let names: Vec<String> = claims.iter().map(|claim| claim.name.clone()).collect();
        let twice =
            names.iter().find(|name| self.open.values().flatten().any(|other| other == *name)).cloned();
        self.open.insert(call, names);
        twice
    }

    /// Notes the answer to a call of the agent.
    pub(super) fn note_answer(&mut self, event: &ClaimEvent) {
        if let ClaimEvent::Called { call, .. } = event {
            self.open.remove(call);
        }
    }

    /// The driver serves the call.
    pub(super) fn serve(&mut self, call: &DriverCall) -> Served {
        let (mut results, mut gone) = (BTreeMap::new(), Vec::new());
        for (number, claim) in call.claims.iter().enumerate() {
            let fails = matches!(call.mood, Mood::Fails | Mood::Hangs)
                || (number == 0 && call.mood == Mood::FailsForOne);
            let mut result = ClaimResult::default();
            match call.method {
                _ if fails => result.error = "injected".to_owned(),
                ClaimMethod::Prepare => {
                    self.held.insert(claim.name.clone());
                    result.devices.push(device(&claim.name));
                }
                ClaimMethod::Unprepare => {
                    self.held.remove(&claim.name);
                    gone.push(claim.name.clone());
                }
            }
            results.insert(claim.uid.clone(), result);
        }
        let answer = match call.mood {
            Mood::Hangs | Mood::Silent => {
                Err("rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned())
            }
            Mood::Fails => Err("rpc error: code = Unknown desc = injected".to_owned()),
            Mood::Serves | Mood::FailsForOne => Ok(results),
        };
        Served {
            answers_after: call.answers_after,
            answer: ClaimEvent::Called { call: call.call, answer },
            gone,
        }
    }

    /// The caller died: the driver still carries out a call that prepares claims.
    pub(super) fn serve_dead(&mut self, call: &DriverCall) {
        if call.method == ClaimMethod::Prepare {
            drop(self.serve(call));
        }
    }
}

fn device(claim: &str) -> ClaimedDevice {
    ClaimedDevice {
        pool: "pool".to_owned(),
        device: claim.to_owned(),
        share_id: None,
        requests: Vec::new(),
        cdi_devices: vec![format!("sim/claim={claim}")],
    }
}
