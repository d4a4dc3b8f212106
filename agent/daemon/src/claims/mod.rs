//! Resource claims (DRA): the task of their owner, and everything around it. docs/internals/agent/resource-claims.md.
//!
//! ```text
//! executor ──prepare, find, unprepare──► owner (ResourceClaims) ──► API server (claims, slices), files, workers (health)
//! plugin watcher ──register──► plugins ──connection, health──►│──► calls of plugins
//! ```
//! In: questions of pod workers, registrations of plugins, active pods. Out: gRPC to plugins, requests, files, answers. Invariants: one
//! task owns the claims; a plugin is a pod, so the number of plugins and the size and the rate of what they send is bounded (module limits).
//! Decisions are in [`agent_core::resource_claims`]. Upstream: pkg/kubelet/cm/dra.

mod files;
mod handle;
mod limits;
mod messages;
pub mod plugins;
mod reports;
mod shell;
mod slices;

use std::path::Path;
use std::sync::Arc;

use agent_core::resource_claims::ResourceClaims;
use agent_core::resource_claims::api::ClaimGates;
use agent_types::api::ApiServer;
use agent_types::lock::Lock;
use tokio::sync::watch;

pub use handle::ClaimsHandle;
pub use shell::{OnCalled, OnChanged};

use crate::cluster::calls::Caller;
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;
use handle::Asks;
use plugins::DraPlugins;
use shell::ClaimsShell;
use slices::SliceDeletions;

/// Configuration of resource claims.
#[derive(Clone, Copy, Debug)]
pub struct ClaimsPlan {
    /// Feature gates.
    pub gates: ClaimGates,
    /// True if no agent ran before on this boot: no container has devices of an earlier checkpoint.
    pub first_of_boot: bool,
}

/// Inputs of [`start`].
pub struct Deps<'a, A> {
    /// Directory of the two files.
    pub root_dir: &'a Path,
    /// Name of the node, for ResourceSlices.
    pub node_name: Arc<str>,
    /// The configuration.
    pub plan: ClaimsPlan,
    /// The API server; `None` on a node without a cluster.
    pub caller: Option<Caller<A>>,
    /// Receives claims whose health changed: the way to the pods' workers.
    pub changed: OnChanged,
    /// Receives calls of plugins: metrics.
    pub called: OnCalled,
    /// The node's tasks.
    pub tasks: Tasks,
}

/// Starts the owner with the claims of an earlier agent, or of an upstream kubelet.
///
/// # Errors
/// The checkpoint cannot be used. As upstream, the agent must not start then, because running pods would lose their claims. The first
/// agent of a boot starts without the checkpoint.
pub fn start<A: ApiServer>(deps: Deps<'_, A>) -> anyhow::Result<ClaimsHandle> {
    let Deps { root_dir, node_name, plan, caller, changed, called, tasks } = deps;
    let (checkpoint, health) = shell::paths(root_dir);
    let machine = restore(&checkpoint, &health, plan, &tasks)?;
    let (own, inbox) = tasks.mailbox();
    let plugins = DraPlugins::new(own.clone(), plan.gates.health, tasks.clone());
    let deletions = SliceDeletions::new(caller.clone(), node_name, tasks.clone());
    let (texts, written) = watch::channel(String::new());
    tasks.start(files::write_health(health, written, tasks.clone()));
    let (view_to, view) = watch::channel(Arc::new(machine.view()));
    let (referenced_to, referenced) = watch::channel(machine.has_references());
    let asks: Arc<Lock<Asks>> = Arc::default();
    let shell = ClaimsShell {
        own: own.clone(),
        caller,
        plugins: plugins.clone(),
        deletions,
        asks: asks.clone(),
        checkpoint: checkpoint.into(),
        health: texts,
        changed,
        called,
        view: view_to,
        referenced: referenced_to,
        stale: false,
        tasks: tasks.clone(),
    };
    tasks.own(machine, shell, inbox);
    Ok(ClaimsHandle { to: own, asks, plugins, view, referenced, tasks })
}

fn restore(
    checkpoint: &Path,
    health: &Path,
    plan: ClaimsPlan,
    tasks: &Tasks,
) -> anyhow::Result<ResourceClaims> {
    let ClaimsPlan { gates, first_of_boot } = plan;
    // Without the file the agent starts all the same: drivers report the health of their devices again.
    let health = files::read(health).unwrap_or_else(|error| {
        tracing::warn!(error = %chain(&error), "the health of DRA devices is not known");
        None
    });
    let restored = || -> anyhow::Result<ResourceClaims> {
        let checkpoint = files::read(checkpoint)?;
        Ok(ResourceClaims::restore(gates, checkpoint.as_deref(), health.as_deref(), tasks.now())?)
    };
    match restored() {
        Err(error) if first_of_boot => {
            let error = format!("{error:#}");
            tracing::warn!(error, "claims of an earlier boot are dropped: pods prepare their claims again");
            Ok(ResourceClaims::new(gates))
        }
        restored => restored,
    }
}
