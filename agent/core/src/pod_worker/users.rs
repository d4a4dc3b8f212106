//! Which ids a pod with a user namespace of its own has (`hostUsers: false`).
//!
//! In: the pod. Out: the effect that gives it a range of ids or finds the one that it has, the ids for its sandbox and its
//! containers. Invariants: nothing of such a pod is made before its ids are known and on disk; they are asked for once by
//! each incarnation, and the handler that is to run a new sandbox must be able to do it. Upstream: pkg/kubelet/userns.

use agent_types::pod;
use agent_types::runtime::config::{ContainerConfig, SandboxConfig};

use super::ledger::{Purpose, Target};
use super::state::Syncing;
use crate::pod_worker::effect::{Effect, EffectOk, EffectResult};
use crate::pod_worker::pass::Pass;
use crate::pod_worker::sandboxes;

/// True if nothing is missing. `handler` is the one that is to run a new sandbox.
pub(super) fn known(pass: &mut Pass<'_>, handler: Option<&str>) -> bool {
    if pass.state.users.is_some() || !pod::own_users(&pass.state.pod) {
        return true;
    }
    if pass.base.may_act(&Target::Sandbox, pass.now) {
        let effect = Effect::MapUsers { handler: handler.map(str::to_owned) };
        pass.issue(Target::Sandbox, Purpose::MapUsers, effect);
    }
    false
}

/// The ids are there, or the pod cannot have any.
pub(super) fn answered(pass: &mut Pass<'_>, result: EffectResult) {
    match result {
        Ok(EffectOk::Users(mapping)) => pass.state.users = Some(mapping),
        Ok(_) => {}
        Err(e) => sandboxes::refuse_sandbox(pass.base, &e.message, pass.now, pass.out),
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
