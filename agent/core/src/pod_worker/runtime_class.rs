//! The runtime handler of a pod's sandbox, from its RuntimeClass.
//!
//! In: the pod, the known state of its RuntimeClass. Out: the effect that reads the class before each
//! sandbox, the handler. Invariants: a pod that names a class never runs under another handler; a missing
//! class is reported, and the pod waits for it. Upstream: pkg/kubelet/runtimeclass, `createPodSandbox` of
//! pkg/kubelet/kuberuntime/kuberuntime_sandbox.go.

use agent_types::objects::look_up;
use agent_types::time::Now;
use agent_volumes::references;

use super::base::Base;
use super::state::{RuntimeHandler, Syncing};
use super::tracker::{Purpose, Target};
use crate::pod_worker::effect::{Effect, EffectOk, EffectResult};
use crate::pod_worker::pass::Pass;
use crate::pod_worker::sandboxes;

/// Key of the handler among a class' values.
pub const HANDLER: &str = "handler";

/// Handler of the next sandbox; empty for the runtime's default, `None` while unknown.
pub(super) fn handler(pass: &mut Pass<'_>) -> Option<String> {
    let Some(class) = references::runtime_class(&pass.state.pod) else { return Some(String::new()) };
    if let RuntimeHandler::Found(handler) =
        std::mem::replace(&mut pass.state.runtime, RuntimeHandler::Unasked)
    {
        return Some(handler);
    }
    let effect = Effect::FetchObjects { objects: [class].into() };
    pass.issue(Target::Sandbox, Purpose::FetchRuntimeClass, effect);
    None
}

/// The handler was found, but there can be no sandbox yet.
pub(super) fn keep(s: &mut Syncing, handler: String) {
    if references::runtime_class(&s.pod).is_some() {
        s.runtime = RuntimeHandler::Found(handler);
    }
}

/// The class was looked up.
pub(super) fn answered(pass: &mut Pass<'_>, result: &EffectResult) {
    let Some(class) = references::runtime_class(&pass.state.pod) else { return };
    let Ok(EffectOk::Objects(objects)) = result else { return };
    let handler = match look_up(objects, &class, false) {
        Ok(found) => found.and_then(|class| class.data.get(HANDLER)).cloned().unwrap_or_default(),
        Err(why) => {
            pass.state.runtime = RuntimeHandler::Missed;
            return sandboxes::refuse_sandbox(pass.base, &why, pass.now, pass.out);
        }
    };
    pass.state.runtime = RuntimeHandler::Found(String::from_utf8_lossy(&handler).into_owned());
}

/// Something that pods are made from changed: a class that was missed is looked up at once.
pub(super) fn sources_changed(s: &Syncing, b: &mut Base, now: Now) {
    if s.runtime == RuntimeHandler::Missed {
        b.tracker.release(&Target::Sandbox, now.mono);
    }
}
