//! Service account tokens: requested once, kept in memory, renewed in time.
//!
//! In: the wanted token, answers of the API server. Out: a valid token. Invariants: an old token is used while it is
//! valid, even if it cannot be renewed; an expired token is dropped. Upstream: pkg/kubelet/token.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use agent_types::api::{ApiCall, ApiReply, ApiServer, ObjectName};
use agent_types::api_time::wall;
use agent_types::lock::Lock;
use agent_types::time::Wall;
use agent_volumes::token::{Life, TokenRef, life};
use k8s_openapi::api::authentication::v1::TokenRequest;

use super::{FoundAccount, HeldToken, ask};
use crate::cluster::calls::Caller;
use crate::tasks::actor::Tasks;

/// If a token that is due cannot be renewed, how long until the next try, nanoseconds.
const RETRY_NS: i64 = 60 * 1_000_000_000;

/// The tokens of this node's pods.
pub(super) struct TokenStore<A> {
    caller: Caller<A>,
    tasks: Tasks,
    held: Lock<BTreeMap<TokenRef, (String, Life)>>,
    jitter: RandomState,
}

impl<A: ApiServer> TokenStore<A> {
    pub(super) fn new(caller: Caller<A>, tasks: Tasks) -> TokenStore<A> {
        TokenStore { caller, tasks, held: Lock::default(), jitter: RandomState::new() }
    }

    pub(super) async fn token(&self, token: TokenRef) -> Result<HeldToken, String> {
        let now = self.tasks.now().wall;
        let held = self.held(&token, now);
        if let Some((text, life)) = &held
            && now < life.renew
        {
            return Ok(HeldToken { text: text.clone(), renew: life.renew, ends: life.ends });
        }
        match (self.ask(&token).await, held) {
            (Ok((text, life)), _) => {
                let mut all = self.held.lock();
                all.insert(token, (text.clone(), life));
                Ok(HeldToken { text, renew: life.renew, ends: life.ends })
            }
            (Err(why), Some((text, life))) => {
                tracing::warn!(
                    namespace = token.namespace,
                    account = token.account,
                    pod = token.pod,
                    why,
                    "token not renewed; the old one is still good"
                );
                Ok(HeldToken { text, renew: Wall(now.0.saturating_add(RETRY_NS)), ends: life.ends })
            }
            (Err(why), None) => Err(format!("failed to fetch token: {why}")),
        }
    }

    /// The cached token if it is valid. Removes expired tokens as well.
    fn held(&self, token: &TokenRef, now: Wall) -> Option<(String, Life)> {
        let mut all = self.held.lock();
        all.retain(|_, (_, life)| now < life.ends);
        all.get(token).cloned()
    }

    pub(super) async fn account(&self, namespace: String, name: String) -> Result<FoundAccount, String> {
        let object = ObjectName { namespace: namespace.into(), name: name.into() };
        match ask(&self.caller, &self.tasks, ApiCall::GetServiceAccount(object)).await? {
            ApiReply::ServiceAccount(found) => Ok(FoundAccount {
                uid: found.metadata.uid.unwrap_or_default(),
                annotations: found.metadata.annotations.unwrap_or_default(),
            }),
            _ => Err("an answer to another question".to_owned()),
        }
    }

    async fn ask(&self, token: &TokenRef) -> Result<(String, Life), String> {
        let account =
            ObjectName { namespace: token.namespace.as_str().into(), name: token.account.as_str().into() };
        let call = ApiCall::CreateToken { account, request: Box::new(token.request()) };
        match ask(&self.caller, &self.tasks, call).await? {
            ApiReply::Token(granted) => {
                read(&granted, self.fraction(token)).ok_or_else(|| "the answer holds no token".to_owned())
            }
            _ => Err("an answer to another question".to_owned()),
        }
    }

    /// Between 0 and 1, differently on each node and for each token.
    fn fraction(&self, token: &TokenRef) -> f64 {
        let mut hasher = self.jitter.build_hasher();
        hasher.write(token.uid.as_bytes());
        f64::from(u16::try_from(hasher.finish() % 1000).unwrap_or(0)) / 1000.0
    }
}

fn read(granted: &TokenRequest, fraction: f64) -> Option<(String, Life)> {
    let status = granted.status.as_ref()?;
    let ends = wall(status.expiration_timestamp.as_ref()?);
    let seconds = granted.spec.as_ref()?.expiration_seconds.unwrap_or(0);
    Some((status.token.clone()?, life(ends, seconds, fraction)))
}
