//! Who calls, and may they: certificate, token, anonymous; then the API server's word about the request.
//!
//! In: what a request shows, an API server to ask. Out: the user, or a refusal with upstream's codes and words.
//! Invariants: every way out of here but one is a refusal; without the API server only what is remembered counts, and
//! only for its time; tokens are remembered by their digest. Decisions are in [`agent_core::server_policy`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_core::api::{ApiCall, ApiReply, ApiServer};
use agent_core::server_policy::{
    AccessPolicy, Attributes, Begin, CertificateClaim, Next, ReviewCache, TokenAnswer, User, Verdict,
    access_review, attributes, bearer_token, begin, conclude, is_allowed, review_key, token_review,
    user_of_review,
};
use agent_core::time::Now;
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use crate::body::{Body, text};
use crate::tls::clients::AuthoritiesView;

/// Answers remembered of each kind; a cluster has far fewer clients of one node.
const REMEMBERED_MAX: usize = 1024;

/// Reads both clocks.
pub type Clock = Arc<dyn Fn() -> Now + Send + Sync>;

/// SHA-256 of a token.
type TokenDigest = [u8; 32];

struct Remembered {
    /// `None`: the API server does not know the token.
    tokens: ReviewCache<TokenDigest, Option<User>>,
    access: ReviewCache<String, bool>,
}

/// Stands before every request.
pub struct Guard<A> {
    policy: AccessPolicy,
    node_name: Arc<str>,
    /// `None` until the node has an identity, for ever on a standalone node.
    client: watch::Receiver<Option<Arc<A>>>,
    authorities: AuthoritiesView,
    clock: Clock,
    remembered: Mutex<Remembered>,
}

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 401.
    Unauthorized,
    /// 403 with its text.
    Forbidden(String),
    /// 500 with its text: the API server could not be asked.
    Failed(String),
}

impl Refusal {
    /// As it is sent.
    #[must_use]
    pub fn response(self) -> Response<Body> {
        match self {
            Refusal::Unauthorized => text(StatusCode::UNAUTHORIZED, "Unauthorized"),
            Refusal::Forbidden(words) => text(StatusCode::FORBIDDEN, words),
            Refusal::Failed(words) => text(StatusCode::INTERNAL_SERVER_ERROR, words),
        }
    }
}

impl<A: ApiServer> Guard<A> {
    /// A guard with nothing remembered.
    #[must_use]
    pub fn new(
        policy: AccessPolicy,
        node_name: &str,
        client: watch::Receiver<Option<Arc<A>>>,
        authorities: AuthoritiesView,
        clock: Clock,
    ) -> Guard<A> {
        let remembered = Mutex::new(Remembered {
            tokens: ReviewCache::new(REMEMBERED_MAX),
            access: ReviewCache::new(REMEMBERED_MAX),
        });
        Guard { policy, node_name: node_name.into(), client, authorities, clock, remembered }
    }

    /// Lets the request in, and says whose it is.
    ///
    /// # Errors
    /// Why not.
    pub async fn admit(&self, chain: &[CertificateDer<'_>], request: &Parts) -> Result<User, Refusal> {
        let user = self.authenticate(chain, request).await?;
        let attributes = attributes(request.method.as_str(), request.uri.path());
        self.authorize(&user, &attributes).await?;
        Ok(user)
    }

    async fn authenticate(&self, chain: &[CertificateDer<'_>], request: &Parts) -> Result<User, Refusal> {
        let certificate = {
            let authorities = self.authorities.borrow();
            let now = (self.clock)().wall;
            let uids = self.policy.certificate_uids;
            authorities.as_ref().map_or(CertificateClaim::None, |a| a.judge(chain, now, uids))
        };
        let header = request.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(bearer_token);
        let verdict = match (begin(&self.policy, &certificate, token.is_some()), token) {
            (Begin::Done(verdict), _) => verdict,
            (Begin::AskToken, Some(token)) => conclude(self.token(token).await),
            (Begin::AskToken, None) => Verdict::Unauthorized,
        };
        match verdict {
            Verdict::User(user) => Ok(user),
            Verdict::Unauthorized => Err(Refusal::Unauthorized),
        }
    }

    async fn token(&self, token: &str) -> TokenAnswer {
        let mut key = TokenDigest::default();
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        let known = self.remembered().tokens.get(&key, (self.clock)().mono);
        if let Some(known) = known {
            return known.map_or(TokenAnswer::Unknown, TokenAnswer::User);
        }
        let call = ApiCall::ReviewToken(Box::new(token_review(token)));
        let answer = match self.ask(&call).await {
            Ok(ApiReply::TokenReview(review)) => user_of_review(&review),
            Ok(_) => TokenAnswer::Failed,
            Err(problem) => {
                tracing::warn!(problem, "a token could not be reviewed; its request is refused");
                TokenAnswer::Failed
            }
        };
        let remembered = match &answer {
            TokenAnswer::User(user) => Some(user.clone()),
            TokenAnswer::Unknown => None,
            TokenAnswer::Failed => return answer,
        };
        let now = (self.clock)().mono;
        self.remembered().tokens.keep(key, remembered, now, self.policy.token_ttl);
        answer
    }

    async fn authorize(&self, user: &User, attributes: &Attributes) -> Result<(), Refusal> {
        if !self.policy.review_access {
            return Ok(());
        }
        let (mut denied, mut allowed) = (0, false);
        loop {
            match attributes.next(denied, allowed) {
                Next::Allowed => return Ok(()),
                Next::Denied => return Err(Refusal::Forbidden(attributes.forbidden(&user.name))),
                Next::Ask(subresource) => match self.may(user, attributes.verb, subresource).await {
                    Ok(true) => allowed = true,
                    Ok(false) => denied += 1,
                    Err(problem) => {
                        tracing::warn!(user = user.name, problem, "a permission could not be reviewed");
                        return Err(Refusal::Failed(attributes.failed(&user.name)));
                    }
                },
            }
        }
    }

    async fn may(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, String> {
        let review = access_review(user, verb, &self.node_name, subresource);
        let key = review_key(&review);
        let known = key.as_ref().and_then(|key| self.remembered().access.get(key, (self.clock)().mono));
        if let Some(known) = known {
            return Ok(known);
        }
        let allowed = match self.ask(&ApiCall::ReviewAccess(Box::new(review))).await? {
            ApiReply::AccessReview(review) => is_allowed(&review),
            _ => return Err("the API server answered something else".to_owned()),
        };
        if let Some(key) = key {
            let ttl = if allowed { self.policy.allowed_ttl } else { self.policy.denied_ttl };
            let now = (self.clock)().mono;
            self.remembered().access.keep(key, allowed, now, ttl);
        }
        Ok(allowed)
    }

    async fn ask(&self, call: &ApiCall) -> Result<ApiReply, String> {
        let client = self.client.borrow().clone();
        match client {
            Some(client) => client.call(call).await.map_err(|error| error.to_string()),
            None => Err("the node has no identity in its cluster yet".to_owned()),
        }
    }

    /// Held for a look-up only, never across an await.
    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
