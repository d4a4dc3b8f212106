//! The node's identity at the API server: loaded from disk, or requested with a first-boot token and then kept.
//!
//! ```text
//! kubeconfig, certificate directory ─► Loaded ─┐        ┌─► Show ─► ClusterProblems
//! bootstrap credentials ─► Bootstrap ──────────┴─ CertManager ─► key, CSR, certificate ─► client, watches
//! ```
//! In: [`ClusterSettings`]. Out: the view of the client, which is `None` until the node has an identity. Invariants: a
//! failure never ends the process and never affects a pod: `ClusterProblems` shows the failure, and the task retries;
//! repaired files are read without a restart; the agent drops bootstrap credentials with the first certificate; the log
//! contains no token and no key. Decisions are in [`agent_core::certs`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_apiserver::certificates::{Store, facts_of_pem};
use agent_apiserver::kubeconfig::{self, Kubeconfig, OwnKubeconfig};
use agent_apiserver::{ApiClient, Options, Refreshed, keep_fresh};
use agent_core::certs::{CertAction, CertEvent, CertFact, CertIdentity, CertManager, KeyHandle};
use agent_types::api::{ApiCall, ApiServer};
use agent_types::backoff::Backoff;
use agent_types::certificates::{CertConfig, CertKind, CertificateFacts};
use agent_types::lock::Lock;
use agent_types::machine::EffectId;
use agent_types::time::Now;
use tokio::sync::{Notify, watch};

use super::bootstrap_credentials::{BootstrapAccess, BootstrapSource};
use super::keys::PendingKeys;
use crate::node::cluster_problems::{ClusterProblems, Part};
use crate::pods::pod_dirs::chain;
use crate::serving::metrics::{Certificate, Metrics};
use crate::settings::ClusterSettings;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::mailbox::{Coalesce, Relation, Sender};

/// Pauses after a failure to get bootstrap credentials.
const RETRY: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(30));
/// Period of reading the join configuration while the node has no identity: one small file.
const LOOK: Duration = Duration::from_secs(1);

/// The client, once the node has an identity.
pub type ClientView = watch::Sender<Option<Arc<ApiClient>>>;

/// State that the tasks of the identity share.
struct IdentityContext {
    settings: ClusterSettings,
    options: Options,
    store: Store,
    keys: PendingKeys,
    bootstrap: Lock<Option<Bootstrap>>,
    /// A call with bootstrap credentials failed: find the credentials again.
    doubted: AtomicBool,
    client: ClientView,
    cluster_problems: ClusterProblems,
}

/// Bootstrap credentials, and their cluster.
#[derive(Clone)]
struct Bootstrap {
    client: Arc<ApiClient>,
    found: Arc<BootstrapAccess>,
}

/// The shell of the machine for the client certificate.
pub struct IdentityShell {
    shared: Arc<IdentityContext>,
    metrics: Metrics,
    tasks: Tasks,
    own: Sender<CertEvent>,
    /// Whether the machine wants bootstrap credentials; `None` before it has decided.
    wanted: watch::Sender<Option<bool>>,
}

/// Inputs of [`start`].
pub struct Deps {
    /// The cluster, and the directory of the identity.
    pub settings: ClusterSettings,
    /// Options of every connection.
    pub options: Options,
    /// Requirements for the client certificate.
    pub config: CertConfig,
    /// Publishes the client when the node has an identity.
    pub client: ClientView,
    /// Whether NTP or the API server vouches for the clock; true and without a sender where the host sets it.
    pub clock: watch::Receiver<bool>,
    /// Shows problems with the cluster.
    pub cluster_problems: ClusterProblems,
    /// The node's tasks.
    pub tasks: Tasks,
    /// Counters.
    pub metrics: Metrics,
}

/// Starts the tasks of the identity.
///
/// # Errors
/// The certificate directory cannot be used.
pub fn start(deps: Deps) -> anyhow::Result<()> {
    let Deps { settings, options, config, client, clock, cluster_problems, tasks, metrics } = deps;
    let store = Store::open(&settings.cert_dir, CertKind::Client)?;
    let shared = Arc::new(IdentityContext {
        settings,
        options,
        store,
        keys: PendingKeys::default(),
        bootstrap: Lock::default(),
        doubted: AtomicBool::new(false),
        client,
        cluster_problems,
    });
    let (own, inbox) = tasks.mailbox();
    let (wanted, wants) = watch::channel(None);
    let shell =
        IdentityShell { shared: shared.clone(), metrics, tasks: tasks.clone(), own: own.clone(), wanted };
    // Before the certificate on disk is judged.
    own.send(CertEvent::ClockVerified(*clock.borrow()));
    tasks.own(CertManager::new(config), shell, inbox);
    tasks.start(follow_clock(clock, shared.clone(), own.clone()));
    tasks.start(follow_files(shared.clone()));
    tasks.start(begin(shared, own, wants, tasks.clone()));
    Ok(())
}

/// Tells the machine whether dates count. Credentials that could not be verified by a wrong clock are looked for again at once.
async fn follow_clock(
    mut clock: watch::Receiver<bool>,
    shared: Arc<IdentityContext>,
    own: Sender<CertEvent>,
) {
    while clock.changed().await.is_ok() {
        let verified = *clock.borrow_and_update();
        own.send(CertEvent::ClockVerified(verified));
        if verified {
            shared.doubted.store(true, Ordering::Relaxed);
        }
    }
}

/// Follows the files of certificate, key and CA bundle: a replaced file is read without a restart.
async fn follow_files(shared: Arc<IdentityContext>) {
    let mut client = shared.client.subscribe();
    let first = client.wait_for(Option::is_some).await.ok().and_then(|client| client.clone());
    if let Some(client) = first {
        keep_fresh(ApiClient::clone(&client), shared.settings.kubeconfig.clone()).await;
    }
}

/// Reads the identity on disk, then runs the machine.
async fn begin(
    shared: Arc<IdentityContext>,
    own: Sender<CertEvent>,
    mut wanted: watch::Receiver<Option<bool>>,
    tasks: Tasks,
) {
    let ours = match Kubeconfig::read(&shared.settings.kubeconfig).await {
        Ok(read) => read.client_certificate_file().as_deref() == Some(&*shared.store.current_path()),
        Err(_) => true,
    };
    if !ours {
        // The administrator supplied this identity: use it as it is, and follow its files.
        return shared.be_connected(false, &tasks).await;
    }
    let reading = shared.clone();
    let facts = match tasks.blocking(move || reading.facts()).await {
        Some(Ok(facts)) => facts,
        Some(Err(problem)) => {
            shared.cluster_problems.say(Part::Kubeconfig, &problem);
            None
        }
        None => return,
    };
    own.send(CertEvent::Loaded(facts));
    loop {
        let now = *wanted.borrow_and_update();
        let work = async {
            match now {
                None => std::future::pending().await,
                Some(true) => shared.look_for_bootstrap(&own, &tasks).await,
                Some(false) => {
                    shared.set_bootstrap(None);
                    shared.be_connected(true, &tasks).await;
                }
            }
        };
        tokio::select! {
            // Neither branch ends by itself. A dropped branch has written whole files or none.
            () = work => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

impl IdentityContext {
    /// Makes or refreshes the node's client from its kubeconfig.
    async fn connect(&self) -> Result<(), String> {
        let path = &self.settings.kubeconfig;
        let known = self.client.borrow().clone();
        if let Some(client) = known {
            return match client.refresh(path).await {
                Refreshed::Same | Refreshed::Changed => Ok(()),
                Refreshed::Unreadable(error) => Err(chain(&error)),
                Refreshed::Unusable(error) => Err(chain(&error)),
            };
        }
        let read = Kubeconfig::read(path).await.map_err(|e| chain(&e))?;
        let access = read.access().await.map_err(|e| chain(&e))?;
        let client = ApiClient::new(access, &self.options).map_err(|e| chain(&e))?;
        self.client.send_replace(Some(Arc::new(client)));
        Ok(())
    }

    /// The same; if the agent's own kubeconfig is lost or damaged, writes it again from the join configuration.
    async fn connect_or_mend(&self, ours: bool, tasks: &Tasks) -> Result<(), String> {
        let mut result = self.connect().await;
        if ours && result.is_err() {
            let mended = async {
                let cluster = BootstrapSource::read(&self.settings).await?.cluster(&self.options).await?;
                self.write_kubeconfig(&cluster, tasks).await
            };
            if mended.await.is_ok() {
                result = self.connect().await;
            }
        }
        self.cluster_problems.say(Part::Kubeconfig, result.as_ref().err().map_or("", String::as_str));
        result
    }

    /// Retries until there is a client, then waits forever.
    async fn be_connected(&self, ours: bool, tasks: &Tasks) {
        let mut pause = RETRY.first;
        while self.connect_or_mend(ours, tasks).await.is_err() {
            tasks.wait_until(tasks.now().mono.after(pause)).await;
            pause = RETRY.following(pause);
        }
        std::future::pending().await
    }

    /// Facts of the certificate on disk; `None` if there is none.
    fn facts(&self) -> Result<Option<CertificateFacts>, String> {
        let Some(pair) = self.store.current().map_err(|e| chain(&e))? else { return Ok(None) };
        let what = self.store.current_path().display().to_string();
        facts_of_pem(&what, &pair, false).map(Some).map_err(|e| chain(&e))
    }

    /// Reads the join configuration for as long as the machine wants bootstrap credentials. Reports to the machine when
    /// the credentials change or vanish, and why.
    async fn look_for_bootstrap(&self, own: &Sender<CertEvent>, tasks: &Tasks) {
        let (mut seen, mut said) = (None, None);
        let (mut pause, mut due) = (RETRY.first, tasks.now().mono);
        loop {
            let told = BootstrapSource::read(&self.settings).await;
            let is_new = seen.as_ref() != Some(&told);
            let again = matches!(said, Some(Err(_))) && due <= tasks.now().mono;
            if self.doubted.swap(false, Ordering::Relaxed) || is_new || again {
                pause = if is_new { RETRY.first } else { RETRY.following(pause) };
                let outcome = match &told {
                    Ok(told) => self.try_bootstrap(told).await,
                    Err(problem) => Err(problem.clone()),
                };
                self.set_bootstrap(outcome.as_ref().ok().cloned());
                let outcome = outcome.map(|_| ());
                if is_new || said.as_ref() != Some(&outcome) {
                    own.send(CertEvent::Bootstrap(outcome.clone()));
                }
                said = Some(outcome);
                due = tasks.now().mono.after(pause);
            }
            seen = Some(told);
            tasks.wait_until(tasks.now().mono.after(LOOK)).await;
        }
    }

    async fn try_bootstrap(&self, told: &BootstrapSource) -> Result<Bootstrap, String> {
        let found = told.found(&self.options).await?;
        let client = ApiClient::new(found.access.clone(), &self.options).map_err(|e| chain(&e))?;
        Ok(Bootstrap { client: Arc::new(client), found: Arc::new(found) })
    }

    async fn write_kubeconfig(&self, found: &BootstrapAccess, tasks: &Tasks) -> Result<(), String> {
        let own = OwnKubeconfig {
            server: found.access.server.clone(),
            ca_pem: found.ca_pem.clone(),
            client_pem: self.store.current_path(),
        };
        let path = self.settings.kubeconfig.clone();
        match tasks.blocking(move || kubeconfig::write(&path, &own)).await {
            Some(written) => written.map_err(|e| chain(&e)),
            None => Err("the node is being stopped".to_owned()),
        }
    }

    fn set_bootstrap(&self, bootstrap: Option<Bootstrap>) {
        *self.bootstrap.lock() = bootstrap;
    }

    fn bootstrap(&self) -> Option<Bootstrap> {
        self.bootstrap.lock().clone()
    }

    async fn client_for(&self, with: CertIdentity) -> Option<Arc<ApiClient>> {
        match with {
            CertIdentity::Node => {
                let known = self.client.borrow().clone();
                if known.is_some() {
                    return known;
                }
                // The certificate has expired by this node's clock: use the client for a request only, not for other
                // connections.
                let read = Kubeconfig::read(&self.settings.kubeconfig).await.ok()?;
                ApiClient::new(read.access().await.ok()?, &self.options).ok().map(Arc::new)
            }
            CertIdentity::Bootstrap => self.bootstrap().map(|bootstrap| bootstrap.client),
        }
    }
}

/// Closes the connections when an owner suspects that they are dead.
pub async fn reconnect(client: watch::Receiver<Option<Arc<ApiClient>>>, asked: Arc<Notify>) {
    loop {
        asked.notified().await;
        let client = client.borrow().clone();
        if let Some(client) = client {
            client.close_connections();
        }
    }
}

impl IdentityShell {
    fn call(&self, id: EffectId, with: CertIdentity, call: ApiCall) {
        let (shared, own) = (self.shared.clone(), self.own.clone());
        self.tasks.start(async move {
            let result = match shared.client_for(with).await {
                Some(client) => client.call(&call).await,
                None => Err(super::calls::no_client(&call, "there are no credentials for it")),
            };
            let doubtful = result.as_ref().is_err_and(|e| matches!(e.code, None | Some(401 | 403)));
            if with == CertIdentity::Bootstrap && doubtful {
                shared.doubted.store(true, Ordering::Relaxed);
            }
            own.send(CertEvent::Answered { id, result });
        });
    }

    fn store(&self, id: EffectId, key: KeyHandle, with: CertIdentity, certificate: Vec<u8>) {
        let (shared, own, tasks) = (self.shared.clone(), self.own.clone(), self.tasks.clone());
        self.tasks.start(async move {
            let result = store(&shared, &tasks, key, with, certificate).await;
            own.send(CertEvent::Stored { id, result });
        });
    }
}

async fn store(
    shared: &Arc<IdentityContext>,
    tasks: &Tasks,
    key: KeyHandle,
    with: CertIdentity,
    certificate: Vec<u8>,
) -> Result<CertificateFacts, String> {
    let key = shared.keys.get(key).ok_or("the key of the request is gone; a new one is made")?;
    let now = tasks.now().wall;
    let on_disk = shared.clone();
    let stored = tasks
        .blocking(move || {
            on_disk.store.update(&certificate, &key, now).map_err(|e| chain(&e))?;
            on_disk.facts()?.ok_or_else(|| "the certificate was stored and is not there".to_owned())
        })
        .await;
    let facts = stored.ok_or("the node is being stopped")??;
    // The new kubeconfig names the certificate instead of the token. A kubeconfig that is in use is not changed before
    // this point.
    if let (CertIdentity::Bootstrap, Some(bootstrap)) = (with, shared.bootstrap()) {
        shared.write_kubeconfig(&bootstrap.found, tasks).await?;
    }
    shared.connect_or_mend(true, tasks).await?;
    Ok(facts)
}

impl Shell for IdentityShell {
    type Machine = CertManager;

    fn tick(&self) -> CertEvent {
        CertEvent::Tick
    }

    fn before(&mut self, _now: Now, event: &CertEvent) {
        if let CertEvent::Loaded(facts) = event {
            self.metrics.certificate(Certificate::Client, facts.as_ref().map(|facts| facts.not_after));
        }
    }

    fn perform(&mut self, _now: Now, action: CertAction) {
        match action {
            CertAction::GenerateKeyAndCsr { id, key, template } => {
                self.shared.keys.generate(id, key, template, self.own.clone(), &self.tasks);
            }
            CertAction::Call { id, with, call } => self.call(id, with, call),
            CertAction::Store { id, key, with, certificate } => self.store(id, key, with, certificate),
            CertAction::DropKey { key } => {
                self.shared.keys.take(key);
            }
            CertAction::Bootstrap { wanted } => {
                self.wanted.send_replace(Some(wanted));
            }
            CertAction::Show(sentence) => self.shared.cluster_problems.say(Part::Identity, &sentence),
            CertAction::Fact(fact) => {
                self.metrics.certificate_fact(Certificate::Client, &fact);
                log(&fact);
            }
        }
    }
}

fn log(fact: &CertFact) {
    match fact {
        CertFact::Rotated { not_after, lived_s } => {
            tracing::info!(not_after_s = not_after.0 / 1_000_000_000, lived_s, "client certificate in use");
        }
        // `ClusterProblems` shows lasting problems; this line logs every attempt.
        CertFact::Failed { message } => {
            tracing::debug!(message, "no certificate yet; another attempt follows")
        }
        CertFact::Requested { csr } => tracing::info!(csr, "certificate requested"),
        CertFact::ClockWrong { message } => tracing::warn!(message, "the clock is wrong"),
        CertFact::ClockSet => tracing::info!("the clock is plausible"),
    }
}

impl Coalesce for CertEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (CertEvent::Addresses(_), CertEvent::Addresses(_))
            | (CertEvent::ClockVerified(_), CertEvent::ClockVerified(_))
            | (CertEvent::Bootstrap(_), CertEvent::Bootstrap(_))
            | (CertEvent::Tick, CertEvent::Tick) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_pauses() {
        let seconds = [0, 1, 2, 3, 4, 5, 6, 40].map(|n| RETRY.next(n).as_secs());
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30, 30]);
    }
}
