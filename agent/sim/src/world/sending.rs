//! Calls of the agent on their way to the runtime or the disk, and their answers on the way back.
//!
//! In: calls. Out: the events that apply and answer them. Faults of the way: a call is refused, late, or loses its connection,
//! and the agent dies before the call is applied or before its answer is processed.

use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::pod_worker::effect::EffectError;
use agent_types::failure::{CANCELLED_CALL_MAX, Class};
use agent_types::time::Mono;

use super::{Event, World, millis};
use crate::calls::{Ask, Call, CallAnswer, refused};
use crate::node::NodeEvent;

impl World {
    pub(super) fn send(&mut self, ask: Ask, deadline: Option<Mono>) {
        let issued = self.queue.now();
        let latency = self.rng.between(1, 20) + self.rng.below(self.faults.slow_ms_max + 1);
        let arrives = issued.after(Duration::from_millis(latency));
        let mutates = ask.mutates();
        let call = Call { incarnation: self.incarnation, ask, issued, deadline };
        if self.rng.chance(self.faults.error_before_apply) {
            let error = EffectError { class: Class::Retryable { after_ms: 0 }, message: "injected".into() };
            if let Ask::Persist { record, .. } = &call.ask {
                self.checks.note(issued, &TraceEvent::RecordLost { pod: record.pod.uid.clone() });
            }
            let answer = refused(&call, error);
            self.queue
                .at(deadline.map_or(arrives, |d| d.min(arrives)), Event::Answer(call, Box::new(answer)));
        } else if deadline.is_some_and(|d| arrives >= d) {
            self.time_out(call);
        } else if call.ask.is_of_the_runtime() && self.rng.chance(self.faults.connection_lost) {
            self.interrupt(call);
        } else {
            self.queue.at(arrives, Event::Apply(call));
        }
        if mutates && self.rng.chance(self.faults.crash_before_apply) {
            self.crash();
        }
    }

    pub(crate) fn time_out(&mut self, call: Call) {
        let lost = self.queue.now().after(Duration::from_secs(10));
        let at = call.deadline.unwrap_or(lost);
        let error = EffectError { class: Class::DeadlineExceeded, message: "no answer in time".into() };
        let answer = refused(&call, error);
        self.queue.at(at, Event::Answer(call, Box::new(answer)));
    }

    /// The connection breaks during the call. The runtime may apply the call before it notices.
    fn interrupt(&mut self, call: Call) {
        let heard = self.queue.now().after(Duration::from_millis(self.rng.between(1, 20)));
        let error = EffectError { class: Class::Interrupted, message: "connection lost".into() };
        let answer = refused(&call, error);
        if self.rng.chance(500) {
            let late = Duration::from_millis(self.rng.below(millis(CANCELLED_CALL_MAX)));
            self.queue.at(heard.after(late), Event::Apply(call.clone()));
        }
        self.queue.at(heard, Event::Answer(call, Box::new(answer)));
    }

    pub(super) fn answer(&mut self, call: Call, answer: CallAnswer) {
        if call.incarnation != self.incarnation {
            return;
        }
        if call.ask.mutates() && self.rng.chance(self.faults.crash_before_process) {
            self.crash();
            return;
        }
        match (call.ask, answer) {
            (Ask::Effect { key, id, effect }, CallAnswer::Worker(result)) => {
                self.note_answer(&effect);
                self.tell(NodeEvent::Reply { uid: key.uid, id, result });
            }
            (Ask::Persist { id, record }, CallAnswer::Worker(result)) => {
                self.tell(NodeEvent::Reply { uid: record.pod.uid, id, result });
            }
            (_, CallAnswer::Pleg(event)) => self.tell(NodeEvent::Pleg(event)),
            (_, CallAnswer::Recorded(written)) => {
                if !written {
                    self.managers_unwritten();
                }
                self.tell(NodeEvent::Recorded(written));
            }
            (Ask::Inspect(_) | Ask::Relist | Ask::Allocated(..), CallAnswer::Worker(_)) => {}
        }
    }
}
