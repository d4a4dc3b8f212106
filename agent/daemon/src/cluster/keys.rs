//! Keys of certificate requests without an answer: in memory only, never logged.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_apiserver::certificates::KeyAndCsr;
use agent_core::certs::{CertEvent, KeyHandle};
use agent_types::certificates::CertTemplate;
use agent_types::lock::Lock;
use agent_types::machine::EffectId;
use zeroize::Zeroizing;

use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;

/// A private key as PEM.
pub type Key = Arc<Zeroizing<String>>;

/// The keys by their handles; clones share them.
#[derive(Clone, Default)]
pub struct PendingKeys(Arc<Lock<BTreeMap<KeyHandle, Key>>>);

impl PendingKeys {
    /// Makes a key and a request; keeps the key and sends the request to `to`.
    pub fn generate(
        &self,
        id: EffectId,
        key: KeyHandle,
        template: CertTemplate,
        to: Sender<CertEvent>,
        tasks: &Tasks,
    ) {
        let (keys, blocking) = (self.clone(), tasks.clone());
        tasks.start(async move {
            let Some(made) = blocking.blocking(move || KeyAndCsr::generate(&template)).await else { return };
            let result = made.map_err(|e| chain(&e)).map(|made| {
                keys.0.lock().insert(key, Arc::new(made.key_pem));
                made.csr_pem
            });
            to.send(CertEvent::Generated { id, result });
        });
    }

    /// The key, which is kept.
    #[must_use]
    pub fn get(&self, key: KeyHandle) -> Option<Key> {
        self.0.lock().get(&key).cloned()
    }

    /// The key, which is forgotten.
    pub fn take(&self, key: KeyHandle) -> Option<Key> {
        self.0.lock().remove(&key)
    }
}
