//! The serving certificate of the cluster's signer: requested with the Node's addresses, kept in
//! `kubelet-server-current.pem`, and requested again for a new address or before it expires.
//!
//! ```text
//! directory ─► Loaded ─┐
//! Node's addresses ────┴─► CertManager ─► key, request, certificate ─► directory ─► shown
//! ```
//! In: the certificate directory, the Node's addresses, an API server. Out: the view of the certificate, `None` until
//! there is one. Invariants: no failure ends the process; the log contains no key; the server uses the old certificate
//! until the new one is on disk. Decisions are in [`agent_core::certs`].

use std::path::Path;
use std::sync::Arc;

use agent_apiserver::certificates::{Store, facts_of_pem};
use agent_core::certs::{CertAction, CertEvent, CertFact, CertManager, KeyHandle};
use agent_server::tls::serving::{ServingKey, ServingView};
use agent_types::api::ApiServer;
use agent_types::certificates::{CertConfig, CertKind, CertificateFacts};
use agent_types::machine::EffectId;
use agent_types::time::{Now, Wall};
use k8s_openapi::api::core::v1::NodeAddress;
use tokio::sync::watch;

use crate::cluster::calls::Caller;
use crate::cluster::keys::PendingKeys;
use crate::node::cluster_problems::{ClusterProblems, Part};
use crate::pods::pod_dirs::chain;
use crate::serving::metrics::{Certificate, Metrics};
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::mailbox::Sender;

/// The serving certificate's surroundings.
struct ServingShell<A> {
    store: Arc<Store>,
    keys: PendingKeys,
    caller: Caller<A>,
    view: Arc<watch::Sender<Option<ServingKey>>>,
    cluster_problems: ClusterProblems,
    own: Sender<CertEvent>,
    tasks: Tasks,
    metrics: Metrics,
}

/// Inputs of [`start`].
pub(super) struct Deps<'a, A> {
    /// The certificate directory.
    pub(super) cert_dir: &'a Path,
    /// Requirements for the certificate.
    pub(super) config: CertConfig,
    /// The API server; `None` until the node has an identity.
    pub(super) client: watch::Receiver<Option<Arc<A>>>,
    /// Whether NTP or the API server vouches for the clock.
    pub(super) clock: watch::Receiver<bool>,
    /// The Node's addresses.
    pub(super) addresses: watch::Receiver<Vec<NodeAddress>>,
    /// Shows problems with the certificate.
    pub(super) cluster_problems: ClusterProblems,
    /// The node's tasks.
    pub(super) tasks: Tasks,
    /// Counters.
    pub(super) metrics: Metrics,
}

/// Starts the requests; a certificate on disk is used at once.
pub(super) fn start<A: ApiServer>(deps: Deps<'_, A>) -> anyhow::Result<ServingView> {
    let Deps { cert_dir, config, client, clock, addresses, cluster_problems, tasks, metrics } = deps;
    let caller = Caller::new(tasks.clone(), client);
    let store = Arc::new(Store::open(cert_dir, CertKind::Serving)?);
    let (view, shown) = watch::channel(None);
    let (own, inbox) = tasks.mailbox();
    let loaded = match load(&store) {
        Ok(found) => found,
        Err(problem) => {
            tracing::warn!(problem, "the serving certificate on disk cannot be used; another is asked for");
            None
        }
    };
    let facts = loaded.map(|(facts, key)| {
        view.send_replace(Some(key));
        facts
    });
    // Before the certificate on disk is judged.
    own.send(CertEvent::ClockVerified(*clock.borrow()));
    own.send(CertEvent::Loaded(facts));
    let shell = ServingShell {
        store,
        keys: PendingKeys::default(),
        caller,
        view: Arc::new(view),
        cluster_problems,
        own: own.clone(),
        tasks: tasks.clone(),
        metrics,
    };
    tasks.own(CertManager::new(config), shell, inbox);
    tasks.start(hear_addresses(addresses, own.clone()));
    tasks.start(hear_clock(clock, own));
    Ok(shown)
}

async fn hear_addresses(mut addresses: watch::Receiver<Vec<NodeAddress>>, to: Sender<CertEvent>) {
    loop {
        let now = addresses.borrow_and_update().clone();
        to.send(CertEvent::Addresses(now));
        if addresses.changed().await.is_err() {
            return;
        }
    }
}

/// Passes on whether dates count: a clock that is wrong makes a good certificate look expired.
async fn hear_clock(mut clock: watch::Receiver<bool>, to: Sender<CertEvent>) {
    while clock.changed().await.is_ok() {
        let verified = *clock.borrow_and_update();
        to.send(CertEvent::ClockVerified(verified));
    }
}

/// The certificate on disk; `None` if there is none.
fn load(store: &Store) -> Result<Option<(CertificateFacts, ServingKey)>, String> {
    let Some(pair) = store.current().map_err(|e| chain(&e))? else { return Ok(None) };
    let what = store.current_path().display().to_string();
    let facts = facts_of_pem(&what, &pair, false).map_err(|e| chain(&e))?;
    let key = ServingKey::from_pem(&what, &pair, &pair).map_err(|e| e.to_string())?;
    Ok(Some((facts, key)))
}

impl<A: ApiServer> ServingShell<A> {
    fn keep(&self, id: EffectId, key: KeyHandle, certificate: Vec<u8>) {
        let (store, view, own) = (self.store.clone(), self.view.clone(), self.own.clone());
        let (tasks, now) = (self.tasks.clone(), self.tasks.now().wall);
        let key = self.keys.take(key);
        self.tasks.start(async move {
            let result = match key {
                Some(key) => tasks
                    .blocking(move || stored(&store, &certificate, &key, now))
                    .await
                    .unwrap_or_else(|| Err("the node is being stopped".to_owned())),
                None => Err("the key of the request is gone; a new one is made".to_owned()),
            };
            let result = result.map(|(facts, key)| {
                view.send_replace(Some(key));
                facts
            });
            own.send(CertEvent::Stored { id, result });
        });
    }
}

fn stored(
    store: &Store,
    certificate: &[u8],
    key: &str,
    now: Wall,
) -> Result<(CertificateFacts, ServingKey), String> {
    store.update(certificate, key, now).map_err(|e| chain(&e))?;
    load(store)?.ok_or_else(|| "the certificate was stored and is not there".to_owned())
}

impl<A: ApiServer> Shell for ServingShell<A> {
    type Machine = CertManager;

    fn tick(&self) -> CertEvent {
        CertEvent::Tick
    }

    fn before(&mut self, _now: Now, event: &CertEvent) {
        if let CertEvent::Loaded(facts) = event {
            self.metrics.certificate(Certificate::Serving, facts.as_ref().map(|facts| facts.not_after));
        }
    }

    fn perform(&mut self, _now: Now, action: CertAction) {
        match action {
            CertAction::GenerateKeyAndCsr { id, key, template } => {
                self.keys.generate(id, key, template, self.own.clone(), &self.tasks);
            }
            CertAction::Call { id, call, .. } => {
                let own = self.own.clone();
                self.caller.send(call, move |result| {
                    own.send(CertEvent::Answered { id, result });
                });
            }
            CertAction::Store { id, key, certificate, .. } => self.keep(id, key, certificate),
            CertAction::DropKey { key } => {
                self.keys.take(key);
            }
            // Only client certificates can be requested with bootstrap credentials.
            CertAction::Bootstrap { .. } => {}
            CertAction::Show(sentence) => self.cluster_problems.say(Part::Serving, &sentence),
            CertAction::Fact(fact) => {
                self.metrics.certificate_fact(Certificate::Serving, &fact);
                log(&fact);
            }
        }
    }
}

fn log(fact: &CertFact) {
    match fact {
        CertFact::Rotated { not_after, lived_s } => {
            tracing::info!(not_after_s = not_after.0 / 1_000_000_000, lived_s, "serving certificate in use");
        }
        // `ClusterProblems` shows lasting problems; this line logs every attempt.
        CertFact::Failed { message } => {
            tracing::debug!(message, "no serving certificate yet; another attempt follows");
        }
        CertFact::Requested { csr } => {
            tracing::info!(csr, "serving certificate requested; an administrator must approve it");
        }
        CertFact::ClockWrong { message } => tracing::warn!(message, "the clock is wrong"),
        CertFact::ClockSet => tracing::info!("the clock is plausible"),
    }
}

#[cfg(test)]
mod tests;
