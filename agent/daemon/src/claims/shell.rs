//! The shell of the owner of resource claims: carries out its actions.
//!
//! In: [`ClaimAction`]s. Out: requests to the API server, calls of plugins, files, answers, [`ClaimEvent`]s. Invariants: each question of
//! the owner has one answer; no action blocks. Upstream: pkg/kubelet/cm/dra/manager.go.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::resource_claims::api::{
    CalledClaim, ClaimAction, ClaimEvent, ClaimMethod, ClaimResult, ClaimsView, PluginId,
};
use agent_core::resource_claims::{CLAIMS_STATE, HEALTH_STATE, ResourceClaims};
use agent_plugins::dra::DraMethod;
use agent_plugins::{PluginError, code_name};
use agent_types::api::{ApiCall, ApiReply, ApiServer, ObjectName};
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::runtime::claims::PodClaims;
use agent_types::time::Now;
use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::sync::watch;

use super::handle::Asks;
use super::plugins::DraPlugins;
use super::slices::SliceDeletions;
use super::{files, messages};
use crate::cluster::calls::Caller;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::mailbox::{Coalesce, Relation, Sender};
use crate::tasks::stops::AgentStops;

/// Receives claims whose health changed.
pub type OnChanged = Box<dyn Fn(PodUid, PodClaims) + Send>;
/// Receives calls of plugins: driver, path of the method, gRPC code as Go prints it, duration.
pub type OnCalled = Arc<dyn Fn(&str, &str, &str, Duration) + Send + Sync>;

/// The shell of the owner.
pub(super) struct ClaimsShell<A> {
    pub(super) own: Sender<ClaimEvent>,
    /// `None` on a node without a cluster.
    pub(super) caller: Option<Caller<A>>,
    pub(super) plugins: DraPlugins,
    pub(super) deletions: SliceDeletions<A>,
    pub(super) asks: Arc<Lock<Asks>>,
    pub(super) checkpoint: Arc<Path>,
    pub(super) health: watch::Sender<String>,
    pub(super) changed: OnChanged,
    pub(super) called: OnCalled,
    pub(super) view: watch::Sender<Arc<ClaimsView>>,
    pub(super) referenced: watch::Sender<bool>,
    /// True after an event that may change the view.
    pub(super) stale: bool,
    pub(super) tasks: Tasks,
}

impl<A: ApiServer> Shell for ClaimsShell<A> {
    type Machine = ResourceClaims;

    fn tick(&self) -> ClaimEvent {
        ClaimEvent::Tick
    }

    fn before(&mut self, _now: Now, event: &ClaimEvent) {
        match event {
            ClaimEvent::Connected(plugin) => {
                if let Some(registered) = self.plugins.get(*plugin) {
                    self.deletions.end(&registered.driver);
                }
            }
            // These events are frequent, and the view does not depend on them.
            ClaimEvent::Registered { .. }
            | ClaimEvent::Disconnected(_)
            | ClaimEvent::Deregistered(_)
            | ClaimEvent::Health { .. }
            | ClaimEvent::HealthEnded(_)
            | ClaimEvent::Find { .. }
            | ClaimEvent::Tick => {}
            ClaimEvent::Prepare { .. }
            | ClaimEvent::Unprepare { .. }
            | ClaimEvent::Fetched { .. }
            | ClaimEvent::Called { .. }
            | ClaimEvent::Written(_)
            | ClaimEvent::ActivePods(_) => self.stale = true,
        }
    }

    fn after(&mut self, _now: Now, machine: &ResourceClaims) -> bool {
        if std::mem::take(&mut self.stale) {
            self.view.send_if_modified(|shown| {
                let view = machine.view();
                let differs = **shown != view;
                if differs {
                    *shown = Arc::new(view);
                }
                differs
            });
            let now = machine.has_references();
            self.referenced.send_if_modified(|referenced| std::mem::replace(referenced, now) != now);
        }
        true
    }

    fn perform(&mut self, _now: Now, action: ClaimAction) {
        match action {
            ClaimAction::Fetch { fetch, namespace, name } => self.fetch(fetch, &namespace, &name),
            ClaimAction::Call { call, plugin, method, claims } => self.call(call, plugin, method, claims),
            ClaimAction::Write(text) => self.write(text),
            ClaimAction::WriteHealth(text) => {
                self.health.send_replace(text);
            }
            ClaimAction::DeleteSlices { driver } => self.deletions.start(driver),
            ClaimAction::Answer { ask, answer } => {
                if let Some(tell) = self.asks.lock().take(ask) {
                    // The worker may have stopped waiting.
                    let _ = tell.send(answer);
                }
            }
            ClaimAction::NotGivenBack { uid, error } => {
                tracing::warn!(%uid, error, "claims of a pod that is gone are not given back; the agent tries again in a minute");
            }
            ClaimAction::Changed { uid, claims } => (self.changed)(uid, claims),
        }
    }
}

impl<A: ApiServer> ClaimsShell<A> {
    fn fetch(&self, fetch: u64, namespace: &str, name: &str) {
        let own = self.own.clone();
        let Some(caller) = &self.caller else {
            let answer = Err("the node belongs to no cluster".to_owned());
            own.send(ClaimEvent::Fetched { fetch, answer });
            return;
        };
        let claim = ObjectName { namespace: namespace.into(), name: name.into() };
        caller.send(ApiCall::GetResourceClaim(claim), move |result| {
            let answer: Result<Arc<ResourceClaim>, String> = match result {
                Ok(ApiReply::ResourceClaim(claim)) => Ok(Arc::from(claim)),
                Ok(_) => Err("the API server answered another question".to_owned()),
                Err(error) => Err(error.message),
            };
            own.send(ClaimEvent::Fetched { fetch, answer });
        });
    }

    fn call(&self, call: u64, plugin: PluginId, method: ClaimMethod, claims: Vec<CalledClaim>) {
        let own = self.own.clone();
        let Some(registered) = self.plugins.get(plugin) else {
            let gone = "rpc error: code = Canceled desc = grpc: the client connection is closing";
            own.send(ClaimEvent::Called { call, answer: Err(gone.to_owned()) });
            return;
        };
        let (tasks, called) = (self.tasks.clone(), self.called.clone());
        self.tasks.start(async move {
            let began = tasks.now().mono;
            let claims = claims.into_iter().map(messages::claim).collect();
            let client = &registered.plugin;
            let (method, answer): (_, Result<BTreeMap<String, ClaimResult>, PluginError>) = match method {
                ClaimMethod::Prepare => {
                    (DraMethod::Prepare, client.prepare(claims).await.map(messages::prepared))
                }
                ClaimMethod::Unprepare => {
                    (DraMethod::Unprepare, client.unprepare(claims).await.map(messages::unprepared))
                }
            };
            let code = answer.as_ref().map_or_else(|error| code_name(error.code()), |_| "OK");
            called(&registered.driver, method.path(client.version()), code, tasks.now().mono.since(began));
            own.send(ClaimEvent::Called { call, answer: answer.map_err(|error| error.words()) });
        });
    }

    fn write(&self, text: String) {
        let (own, tasks, path) = (self.own.clone(), self.tasks.clone(), self.checkpoint.clone());
        self.tasks.finish(async move {
            let written = tasks.blocking(move || files::write_claims(&path, &text)).await;
            own.send(ClaimEvent::Written(written.unwrap_or_else(|| Err(AgentStops.into()))));
        });
    }
}

/// Paths of the owner's files.
pub(super) fn paths(root_dir: &Path) -> (PathBuf, PathBuf) {
    (root_dir.join(CLAIMS_STATE), root_dir.join(HEALTH_STATE))
}

impl Coalesce for ClaimEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (ClaimEvent::ActivePods(_), ClaimEvent::ActivePods(_)) | (ClaimEvent::Tick, ClaimEvent::Tick) => {
                Relation::Supersedes
            }
            _ => Relation::Independent,
        }
    }
}
