//! Answers of plugins to questions: correct, late, wrong, or none.
//!
//! In: questions of the agent. Out: answers that arrive later. Invariant: a question to a connection that is not open is answered at
//! once, as the daemon does.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, PRE_START_TIME};
use agent_core::resource_managers::{ASK_TIME, ASK_TIMED_OUT, DeviceEvent};
use agent_managers::devices::allocation::AllocateQuestion;
use agent_managers::devices::choice::PreferredQuestion;
use agent_managers::devices::plugin::{AllocateResponse, Connection};
use agent_managers::devices::start::StartError;
use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_types::runtime::placement::PreStartCall;

use super::plugins::{DEVICES, Manner};
use super::{Question, answers};
use crate::rng::Rng;
use crate::world::World;

/// Milliseconds until an answer arrives; `None`: it never arrives.
fn delay(manner: Manner, rng: &mut Rng) -> Option<u64> {
    let limit = u64::try_from(ASK_TIME.as_millis()).unwrap_or(u64::MAX);
    match manner {
        Manner::Well | Manner::Fails | Manner::Lies => Some(rng.between(1, 200)),
        Manner::Late if rng.chance(200) => Some(rng.between(limit - 5_000, limit + 30_000)),
        Manner::Late => Some(rng.between(500, 60_000)),
        Manner::Never => None,
    }
}

fn some_of(rng: &mut Rng, from: &BTreeSet<String>, with: &BTreeSet<String>, size: usize) -> BTreeSet<String> {
    let mut chosen = with.clone();
    let mut rest: Vec<&String> = from.difference(with).collect();
    while chosen.len() < size && !rest.is_empty() {
        let n = usize::try_from(rng.below(rest.len() as u64)).unwrap_or(0);
        chosen.insert(rest.swap_remove(n).clone());
    }
    chosen
}

fn stopped(resource: &str) -> String {
    format!("endpoint {resource} has been stopped")
}

fn failed() -> String {
    "rpc error: code = Unknown desc = the plugin has failed".to_owned()
}

impl World {
    /// The plugin's answer to a question: the delay in milliseconds (`None`: no answer) and the manner.
    fn manner(&mut self, resource: &str, connection: Connection) -> Result<(Option<u64>, Manner), String> {
        let (plugin, rng) =
            self.devices.as_mut().and_then(|d| d.plugin(resource)).ok_or_else(|| stopped(resource))?;
        if plugin.connection != Some(connection) {
            return Err(stopped(resource));
        }
        let manner = plugin.manner;
        Ok((delay(manner, rng), manner))
    }

    pub(super) fn ask_preferred(&mut self, ask: u64, uid: PodUid, question: PreferredQuestion) {
        self.look_at_preference(ask, &uid, &question);
        let PreferredQuestion { connection, resource, available, must_include, size } = question;
        let (wait, manner) = match self.manner(&resource, connection) {
            Ok(found) => found,
            Err(error) => return self.news(1, DeviceEvent::Preferred { ask, uid, answer: Err(error) }),
        };
        let Some(devices) = &mut self.devices else { return };
        let rng = &mut devices.rng;
        let Some(wait) = wait else {
            return self.never(|answer| DeviceEvent::Preferred { ask, uid, answer });
        };
        let answer = match manner {
            Manner::Fails => Err(failed()),
            Manner::Lies => {
                let lies = [
                    BTreeSet::from(["nowhere".to_owned(), String::new()]),
                    BTreeSet::new(),
                    available.clone(),
                    (0..2 * DEVICES).map(|n| format!("d{n:02}")).collect(),
                ];
                Ok(rng.pick(&lies).cloned().unwrap_or_default())
            }
            _ => Ok(some_of(rng, &available, &must_include, size)),
        };
        self.news(wait, DeviceEvent::Preferred { ask, uid, answer });
    }

    pub(super) fn ask_allocate(&mut self, ask: u64, uid: PodUid, question: AllocateQuestion) {
        self.look_at_allocation(ask, &uid, &question);
        let AllocateQuestion { connection, resource, ids } = question;
        let (wait, manner) = match self.manner(&resource, connection) {
            Ok(found) => found,
            Err(error) => return self.news(1, DeviceEvent::Allocated { ask, uid, answer: Err(error) }),
        };
        let (incarnation, at) = (self.incarnation, self.queue.now());
        let Some(devices) = &mut self.devices else { return };
        let number = devices.questions.len() as u64;
        let rng = &mut devices.rng;
        let is_lie = manner == Manner::Lies && rng.chance(500);
        let answer = match manner {
            Manner::Fails if rng.chance(500) => Ok(None),
            Manner::Fails => Err(failed()),
            Manner::Lies if is_lie && rng.chance(500) => Ok(Some(AllocateResponse::default())),
            Manner::Lies if is_lie => {
                Ok(Some(answers::answer(number, &resource, &ids.iter().skip(1).cloned().collect())))
            }
            _ => Ok(Some(answers::answer(number, &resource, &ids))),
        };
        let asked =
            Question { ask, incarnation, at, uid: uid.clone(), resource, ids, is_lie, is_stale: false };
        devices.questions.insert(number, asked);
        match wait {
            Some(wait) => self.news(wait, DeviceEvent::Allocated { ask, uid, answer }),
            None => self.never(|answer| DeviceEvent::Allocated { ask, uid, answer }),
        }
    }

    /// The plugin does not answer; the daemon may report an error when its time limit has passed.
    fn never<T>(&mut self, event: impl FnOnce(Result<T, String>) -> DeviceEvent) {
        let limit = u64::try_from(ASK_TIME.as_millis()).unwrap_or(u64::MAX);
        if self.rng.chance(500) {
            let wait = limit + self.rng.below(10);
            self.news(wait, event(Err(ASK_TIMED_OUT.to_owned())));
        }
    }

    /// Calls PreStartContainer of the plugins of a container's devices.
    pub(crate) fn pre_start(&mut self, calls: &[PreStartCall]) -> (EffectResult, Duration) {
        let refused = |message: String| {
            Err(EffectError { class: Class::Invalid, message: StartError::PreStart(message).to_string() })
        };
        for PreStartCall { connection, resource, .. } in calls {
            match self.manner(resource, Connection(*connection)) {
                Err(error) => return (refused(error), Duration::ZERO),
                Ok((None, _)) => return (refused(ASK_TIMED_OUT.to_owned()), PRE_START_TIME),
                Ok((_, Manner::Fails)) => return (refused(failed()), Duration::ZERO),
                Ok(_) => {}
            }
        }
        (Ok(EffectOk::Done), Duration::ZERO)
    }
}
