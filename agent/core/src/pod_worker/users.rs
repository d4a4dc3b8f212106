//! Which ids a pod with a user namespace of its own has (`hostUsers: false`).
//!
//! In: the pod. Out: the effect that gives it a range of ids or finds the one that it has, the ids for its sandbox and its
//! containers. Invariants: nothing of such a pod is made before its ids are known and on disk; they are asked for once by
//! each incarnation, and the handler that is to run a new sandbox must be able to do it. Upstream: pkg/kubelet/userns.

use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::runtime::config::{ContainerConfig, SandboxConfig};
use agent_types::time::Now;

use super::api::PodAction;
use super::base::Base;
use super::ledger::{Purpose, Target};
use super::state::Syncing;
use crate::pod_worker::effect::{Effect, EffectOk, EffectResult};
use crate::pod_worker::sandboxes;

/// True if nothing is missing. `handler` is the one that is to run a new sandbox.
pub(super) fn known(
    s: &Syncing,
    b: &mut Base,
    handler: Option<&str>,
    now: Now,
    out: &mut Outbox<PodAction>,
) -> bool {
    if s.users.is_some() || !pod::own_users(&s.pod) {
        return true;
    }
    if b.may_act(&Target::Sandbox, now) {
        let effect = Effect::MapUsers { handler: handler.map(str::to_owned) };
        b.issue(now, Target::Sandbox, Purpose::MapUsers, effect, out);
    }
    false
}

/// The ids are there, or the pod cannot have any.
pub(super) fn answered(
    s: &mut Syncing,
    b: &mut Base,
    result: EffectResult,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    match result {
        Ok(EffectOk::Users(mapping)) => s.users = Some(mapping),
        Ok(_) => {}
        Err(e) => sandboxes::refuse_sandbox(b, &e.message, now, out),
    }
}

/// The sandbox' configuration with the pod's ids.
pub(super) fn of_sandbox(s: &Syncing, config: &mut SandboxConfig) {
    config.security.users = s.users;
}

/// A container's configuration with the pod's ids.
pub(super) fn of_container(s: &Syncing, config: &mut ContainerConfig) {
    config.security.users = s.users;
}
