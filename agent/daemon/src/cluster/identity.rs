//! Who the node is to the API server: found on disk, or asked for with a first-boot token, and kept for ever.
//!
//! ```text
//! kubeconfig, certificate directory ─► Loaded ─┐
//! --join, --bootstrap-kubeconfig ─► Bootstrap ─┴─► CertManager ─► key, CSR, certificate ─► client, watches
//! ```
//! In: [`ClusterSettings`]. Out: the client's view, which is `None` until there is an identity. Invariants: nothing
//! that goes wrong here ends the process or touches a pod: it is said, and tried again; bootstrap credentials are
//! forgotten with the first certificate; no token and no key is logged. Decisions are in [`agent_core::certs`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_apiserver::certificates::{KeyAndCsr, Store, facts_of_pem};
use agent_apiserver::discovery::{Join, discover};
use agent_apiserver::kubeconfig::{self, Kubeconfig, OwnKubeconfig};
use agent_apiserver::{ApiClient, Options, Refreshed, Trust, keep_fresh};
use agent_core::api::{ApiCall, ApiServer};
use agent_core::certs::{
    CertAction, CertConfig, CertEvent, CertFact, CertIdentity, CertKind, CertManager, CertTemplate,
    CertificateFacts, KeyHandle,
};
use agent_core::machine::EffectId;
use agent_core::time::Now;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::{Notify, watch};
use zeroize::Zeroizing;

use crate::actor::{Shell, Tasks};
use crate::cluster_settings::ClusterSettings;
use crate::mailbox::{Coalesce, Relation, Sender};
use crate::pod_dirs::chain;

/// First pause after bootstrap credentials could not be had; it doubles.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest pause.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The client, once the node has an identity.
pub type ClientView = watch::Sender<Option<Arc<ApiClient>>>;
/// Tells people what is wrong with the identity, in one sentence; empty once all is well.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// What the shell's tasks share.
struct Shared {
    settings: ClusterSettings,
    options: Options,
    store: Store,
    keys: Mutex<BTreeMap<KeyHandle, Arc<Zeroizing<String>>>>,
    bootstrap: Mutex<Option<ApiClient>>,
    client: ClientView,
    say: Say,
}

/// The client certificate's surroundings.
pub struct IdentityShell {
    shared: Arc<Shared>,
    tasks: Tasks,
    own: Sender<CertEvent>,
}

/// Starts looking for the identity. `client` shows it once it is there.
///
/// # Errors
/// The certificate directory cannot be used.
pub fn start(
    settings: ClusterSettings,
    options: Options,
    config: CertConfig,
    client: ClientView,
    say: Say,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let store = Store::open(&settings.cert_dir, CertKind::Client)?;
    let shared = Arc::new(Shared {
        settings,
        options,
        store,
        keys: Mutex::default(),
        bootstrap: Mutex::default(),
        client,
        say,
    });
    let (own, inbox) = tasks.mailbox();
    let shell = IdentityShell { shared: shared.clone(), tasks: tasks.clone(), own: own.clone() };
    let rotate = config.rotate;
    tasks.own(CertManager::new(config), shell, inbox);
    tasks.start(follow_files(shared.clone()));
    tasks.start(begin(shared, own, rotate, tasks.clone()));
    Ok(())
}

/// A certificate, key or CA bundle that somebody else replaces is taken up without a restart.
async fn follow_files(shared: Arc<Shared>) {
    let mut client = shared.client.subscribe();
    let first = client.wait_for(Option::is_some).await.ok().and_then(|client| client.clone());
    if let Some(client) = first {
        keep_fresh(ApiClient::clone(&client), shared.settings.kubeconfig.clone()).await;
    }
}

/// What is on disk first; then, if it does not do, credentials to ask with.
async fn begin(shared: Arc<Shared>, own: Sender<CertEvent>, rotate: bool, tasks: Tasks) {
    let existing = Kubeconfig::read(&shared.settings.kubeconfig).await;
    let ours = match &existing {
        Ok(read) => read.client_certificate_file().as_deref() == Some(&*shared.store.current_path()),
        Err(_) => true,
    };
    if !ours {
        // An identity that somebody else made: used as it is, followed when its files change.
        if let Err(problem) = shared.connect().await {
            (shared.say)(&problem);
        }
        return;
    }
    let facts = match tasks
        .blocking({
            let shared = shared.clone();
            move || shared.facts()
        })
        .await
    {
        Some(Ok(facts)) => facts,
        Some(Err(problem)) => {
            (shared.say)(&problem);
            None
        }
        None => return,
    };
    let now = tasks.now().wall;
    let valid = facts.as_ref().is_some_and(|f| f.not_after > now);
    if valid && existing.is_ok() && shared.connect().await.is_ok() {
        own.send(CertEvent::Loaded(facts));
        if !rotate {
            tracing::info!("rotateCertificates is false: the certificate is used until it ends");
        }
        return;
    }
    own.send(CertEvent::Loaded(facts));
    shared.find_bootstrap(&tasks).await;
    own.send(CertEvent::Bootstrap(true));
}

impl Shared {
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
        (self.say)("");
        self.client.send_replace(Some(Arc::new(client)));
        Ok(())
    }

    /// What the certificate on disk says; `None` if there is none.
    fn facts(&self) -> Result<Option<CertificateFacts>, String> {
        let Some(pair) = self.store.current().map_err(|e| chain(&e))? else { return Ok(None) };
        let what = self.store.current_path().display().to_string();
        facts_of_pem(&what, &pair, false).map(Some).map_err(|e| chain(&e))
    }

    /// Waits until there are bootstrap credentials; says why there are none yet.
    async fn find_bootstrap(&self, tasks: &Tasks) {
        let mut pause = RETRY_MIN;
        let mut said = String::new();
        loop {
            match self.try_bootstrap(tasks).await {
                Ok(client) => {
                    *self.bootstrap.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
                    (self.say)("");
                    return;
                }
                Err(problem) if problem != said => {
                    (self.say)(&problem);
                    said = problem;
                }
                Err(_) => {}
            }
            tasks.wait_until(tasks.now().mono.after(pause)).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    async fn try_bootstrap(&self, tasks: &Tasks) -> Result<ApiClient, String> {
        let (access, ca_pem) = if let Some(join) = &self.settings.join {
            let found = discover(&asked(join)?, &self.options).await.map_err(|e| chain(&e))?;
            (found.bootstrap, found.ca_pem)
        } else if let Some(path) = &self.settings.bootstrap_kubeconfig {
            let read = Kubeconfig::read(path).await.map_err(|e| chain(&e))?;
            let access = read.access().await.map_err(|e| chain(&e))?;
            let ca_pem = pem(&access.trust)
                .ok_or_else(|| format!("{}: names no certificate authority", path.display()))?;
            (access, ca_pem)
        } else {
            return Err(format!(
                "{} holds no valid identity, and neither --join nor --bootstrap-kubeconfig says how to ask for one",
                self.settings.kubeconfig.display()
            ));
        };
        let client_pem = self.store.current_path();
        let own = OwnKubeconfig { server: access.server.clone(), ca_pem, client_pem };
        let path = self.settings.kubeconfig.clone();
        match tasks.blocking(move || kubeconfig::write(&path, &own)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(chain(&error)),
            None => return Err("the node is being stopped".to_owned()),
        }
        ApiClient::new(access, &self.options).map_err(|e| chain(&e))
    }

    fn keep(&self, key: KeyHandle, pem: Zeroizing<String>) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::new(pem));
    }

    fn key(&self, key: KeyHandle) -> Option<Arc<Zeroizing<String>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    fn client_for(&self, with: CertIdentity) -> Option<Arc<ApiClient>> {
        match with {
            CertIdentity::Node => self.client.borrow().clone(),
            CertIdentity::Bootstrap => {
                self.bootstrap.lock().unwrap_or_else(PoisonError::into_inner).clone().map(Arc::new)
            }
        }
    }
}

/// Lets go of connections when an owner suspects that they are dead.
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
    fn generate(&self, id: EffectId, key: KeyHandle, template: CertTemplate) {
        let (shared, own, tasks) = (self.shared.clone(), self.own.clone(), self.tasks.clone());
        self.tasks.start(async move {
            let made = tasks.blocking(move || KeyAndCsr::generate(&template)).await;
            let Some(made) = made else { return };
            let result = made.map_err(|e| chain(&e)).map(|made| {
                shared.keep(key, made.key_pem);
                made.csr_pem
            });
            own.send(CertEvent::Generated { id, result });
        });
    }

    fn call(&self, id: EffectId, with: CertIdentity, call: ApiCall) {
        let (client, own) = (self.shared.client_for(with), self.own.clone());
        self.tasks.start(async move {
            let result = match client {
                Some(client) => client.call(&call).await,
                None => Err(super::calls::no_client(&call, "there are no credentials for it")),
            };
            own.send(CertEvent::Answered { id, result });
        });
    }

    fn store(&self, id: EffectId, key: KeyHandle, certificate: Vec<u8>) {
        let (shared, own, tasks) = (self.shared.clone(), self.own.clone(), self.tasks.clone());
        self.tasks.start(async move {
            let result = store(&shared, &tasks, key, certificate).await;
            own.send(CertEvent::Stored { id, result });
        });
    }
}

async fn store(
    shared: &Arc<Shared>,
    tasks: &Tasks,
    key: KeyHandle,
    certificate: Vec<u8>,
) -> Result<CertificateFacts, String> {
    let key = shared.key(key).ok_or("the key of the request is gone; a new one is made")?;
    let now = tasks.now().wall;
    let on_disk = shared.clone();
    let stored = tasks
        .blocking(move || {
            on_disk.store.update(&certificate, &key, now).map_err(|e| chain(&e))?;
            on_disk.facts()?.ok_or_else(|| "the certificate was stored and is not there".to_owned())
        })
        .await;
    let facts = stored.ok_or("the node is being stopped")??;
    shared.connect().await?;
    // A token that was used is not needed again.
    shared.bootstrap.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(facts)
}

impl Shell for IdentityShell {
    type Machine = CertManager;

    fn tick(&self) -> CertEvent {
        CertEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: CertAction) {
        match action {
            CertAction::GenerateKeyAndCsr { id, key, template } => self.generate(id, key, template),
            CertAction::Call { id, with, call } => self.call(id, with, call),
            CertAction::Store { id, key, certificate } => self.store(id, key, certificate),
            CertAction::DropKey { key } => {
                self.shared.keys.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            }
            CertAction::Fact(fact) => say(&self.shared.say, &fact),
        }
    }
}

fn say(people: &Say, fact: &CertFact) {
    match fact {
        CertFact::Rotated { not_after, lived_s } => {
            tracing::info!(not_after_s = not_after.0 / 1_000_000_000, lived_s, "client certificate in use");
            people("");
        }
        CertFact::Failed { message } => people(message),
        CertFact::Requested { csr } => tracing::info!(csr, "certificate requested; waiting for approval"),
        CertFact::ClockWrong { message } => people(message),
        CertFact::ClockSet => tracing::info!("the clock is plausible"),
    }
}

/// The question to discovery.
fn asked(join: &orlop_config::node::Join) -> Result<Join, String> {
    let token = join.token.clone().ok_or(
        "the node has no valid certificate and its join configuration no token: make one with \
         `kubeadm token create` and give it as join.token",
    )?;
    let ca_pem = join.ca_data.as_deref().map(|data| STANDARD.decode(data)).transpose();
    Ok(Join {
        server: join.server.clone(),
        token,
        ca_pem: ca_pem.map_err(|_| "join.caData: must be PEM certificates in base64")?,
        ca_cert_hashes: join.ca_cert_hashes.clone(),
    })
}

/// The certificates as PEM; `None` if none are named.
fn pem(trust: &Trust) -> Option<Vec<u8>> {
    let Trust::Certificates(list) = trust else { return None };
    let mut text = String::new();
    for der in list.iter() {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        // 48 bytes are 64 characters, the line length of PEM.
        for line in der.chunks(48) {
            text.push_str(&STANDARD.encode(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    Some(text.into_bytes())
}

impl Coalesce for CertEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (CertEvent::Addresses(_), CertEvent::Addresses(_))
            | (CertEvent::Bootstrap(_), CertEvent::Bootstrap(_))
            | (CertEvent::Tick, CertEvent::Tick) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}
