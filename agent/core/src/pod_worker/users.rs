//! Host ids of a pod with its own user namespace (`hostUsers: false`, KEP-127).
//!
//! In: the pod. Out: the effect that gives the pod a range of ids or finds its existing range, the ids for
//! its sandbox and its containers. Invariants: the worker creates no part of such a pod before its ids are
//! known and on disk; each incarnation requests them once; the handler of a new sandbox must support user
//! namespaces. Upstream: pkg/kubelet/userns.

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

/// True if nothing is missing. `handler` runs the next sandbox.
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
