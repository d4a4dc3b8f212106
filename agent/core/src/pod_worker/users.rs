//! Host ids of a pod with its own user namespace (`hostUsers: false`, KEP-127).
//!
//! In: the pod. Out: the effect that gives the pod a range of ids or finds its existing range, the ids for
//! its sandbox and its containers. Invariants: the worker creates no part of such a pod before its ids are
//! known and on disk; each incarnation requests them once; the handler of a new sandbox must support user
//! namespaces. Upstream: pkg/kubelet/userns.

use agent_types::pod;
use agent_types::runtime::config::{ContainerConfig, SandboxConfig};

use super::state::Syncing;
use super::tracker::{Purpose, Target};
use crate::pod_worker::effect::{Effect, EffectOk, EffectResult};
use crate::pod_worker::pass::Pass;
use crate::pod_worker::sandboxes;

/// True if nothing is missing. `handler` runs the next sandbox.
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
