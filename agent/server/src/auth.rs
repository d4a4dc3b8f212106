//! Authentication and authorization of a request: certificate, token, anonymous; then the API server's
//! review.
//!
//! In: the credentials of a request, an API server for reviews. Out: the user, or a refusal with upstream's
//! codes and texts. Invariants: every result but one is a refusal; without the API server only cached answers
//! count, and only for their lifetime; the cache keys of tokens are digests; reviews for strangers have their
//! own limits (`asking`), and so have the log lines about them. The decisions are in
//! [`agent_kubelet_api::server_policy`].

mod asking;

use std::sync::Arc;
use std::time::Duration;

use agent_kubelet_api::server_policy::policy::AccessPolicy;
use agent_kubelet_api::server_policy::{
    Attributes, AuthorizationStep, Begin, CertificateClaim, DeskLimits, RareLine, TokenAnswer, User, Verdict,
    access_review, attributes, bearer_token, begin, conclude, is_allowed, review_key, token_review,
    user_of_review,
};
use agent_types::api::{ApiCall, ApiReply, ApiServer};
use agent_types::lock::Lock;
use agent_types::time::Now;
use futures_util::FutureExt;
use hyper::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use asking::{Reviewer, Unanswered, digest_of};

use crate::body::{Body, text};
use crate::tls::clients::{AuthoritiesView, ClientAuthorities};

/// Between two lines of the log about reviews that failed or were refused.
const QUIET: Duration = Duration::from_secs(10);

/// Reads both clocks.
pub type Clock = Arc<dyn Fn() -> Now + Send + Sync>;

/// Stands before every request.
pub struct Guard<A> {
    policy: AccessPolicy,
    node_name: Arc<str>,
    /// `None` until the node has an identity, for ever on a standalone node.
    client: watch::Receiver<Option<Arc<A>>>,
    authorities: AuthoritiesView,
    clock: Clock,
    tokens: Reviewer<User>,
    access: Reviewer<()>,
    line: Lock<RareLine>,
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
    /// 503: the node has too many reviews under way to have this one's caller reviewed.
    Busy,
}

/// What a caller reads whose review has no place.
const BUSY: &str =
    "the node asks the API server about too many callers at the moment; try again in a second\n";

impl Refusal {
    /// As it is sent.
    #[must_use]
    pub fn response(self) -> Response<Body> {
        match self {
            Refusal::Unauthorized => text(StatusCode::UNAUTHORIZED, "Unauthorized"),
            Refusal::Forbidden(words) => text(StatusCode::FORBIDDEN, words),
            Refusal::Failed(words) => text(StatusCode::INTERNAL_SERVER_ERROR, words),
            Refusal::Busy => {
                let mut response = text(StatusCode::SERVICE_UNAVAILABLE, BUSY);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                response
            }
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
        Guard {
            policy,
            node_name: node_name.into(),
            client,
            authorities,
            tokens: Reviewer::new(DeskLimits::default(), clock.clone()),
            access: Reviewer::new(DeskLimits::default(), clock.clone()),
            clock,
            line: Lock::new(RareLine::new(QUIET)),
        }
    }

    /// Lets the request in, and says whose it is.
    ///
    /// # Errors
    /// The refusal of the request.
    pub async fn admit(&self, chain: &[CertificateDer<'_>], request: &Parts) -> Result<User, Refusal> {
        let user = self.authenticate(chain, request).await?;
        let attributes = attributes(request.method.as_str(), request.uri.path());
        self.authorize(&user, &attributes).await?;
        Ok(user)
    }

    /// True if a client CA says whose the chain (leaf first, possibly empty) is.
    #[must_use]
    pub fn knows(&self, chain: &[CertificateDer<'_>]) -> bool {
        matches!(self.certificate(chain), CertificateClaim::Verified(_))
    }

    fn certificate(&self, chain: &[CertificateDer<'_>]) -> CertificateClaim {
        let now = (self.clock)().wall;
        let authorities = self.authorities.borrow();
        let judge = |a: &ClientAuthorities| a.judge(chain, now, self.policy.certificate_uids);
        authorities.as_ref().map_or(CertificateClaim::None, judge)
    }

    async fn authenticate(&self, chain: &[CertificateDer<'_>], request: &Parts) -> Result<User, Refusal> {
        let certificate = self.certificate(chain);
        let header = request.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(bearer_token);
        let verdict = match (begin(&self.policy, &certificate, token.is_some()), token) {
            (Begin::Done(verdict), _) => verdict,
            (Begin::AskToken, Some(token)) => conclude(self.token(token).await?),
            (Begin::AskToken, None) => Verdict::Unauthorized,
        };
        match verdict {
            Verdict::User(user) => Ok(user),
            Verdict::Unauthorized => Err(Refusal::Unauthorized),
        }
    }

    async fn token(&self, token: &str) -> Result<TokenAnswer, Refusal> {
        let ttl = self.policy.token_ttl;
        let ask = || {
            let asked = self.ask(ApiCall::ReviewToken(Box::new(token_review(token))));
            let answer = async move {
                match asked.await? {
                    ApiReply::TokenReview(review) => match user_of_review(&review) {
                        TokenAnswer::User(user) => Ok((Some(user), ttl)),
                        TokenAnswer::Unknown | TokenAnswer::Failed => Ok((None, ttl)),
                    },
                    _ => Err("the API server answered something else".to_owned()),
                }
            };
            answer.boxed()
        };
        match self.tokens.answer(digest_of(token), ask).await {
            Ok(Some(user)) => Ok(TokenAnswer::User(user)),
            Ok(None) => Ok(TokenAnswer::Unknown),
            Err(Unanswered::Busy) => Err(self.busy()),
            Err(Unanswered::Failed(problem)) => {
                if let Some(left_out) = self.admits_line() {
                    tracing::warn!(
                        problem,
                        left_out,
                        "a token could not be reviewed; its request is refused"
                    );
                }
                Ok(TokenAnswer::Failed)
            }
        }
    }

    async fn authorize(&self, user: &User, attributes: &Attributes) -> Result<(), Refusal> {
        if !self.policy.review_access {
            return Ok(());
        }
        let (mut denied, mut allowed) = (0, false);
        loop {
            match attributes.next(denied, allowed) {
                AuthorizationStep::Allowed => return Ok(()),
                AuthorizationStep::Denied => {
                    return Err(Refusal::Forbidden(attributes.forbidden(&user.name)));
                }
                AuthorizationStep::Ask(subresource) => {
                    match self.may(user, attributes.verb, subresource).await {
                        Ok(true) => allowed = true,
                        Ok(false) => denied += 1,
                        Err(Unanswered::Busy) => return Err(self.busy()),
                        Err(Unanswered::Failed(problem)) => {
                            if let Some(left_out) = self.admits_line() {
                                let user = &user.name;
                                tracing::warn!(user, problem, left_out, "a permission could not be reviewed");
                            }
                            return Err(Refusal::Failed(attributes.failed(&user.name)));
                        }
                    }
                }
            }
        }
    }

    async fn may(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, Unanswered> {
        let review = access_review(user, verb, &self.node_name, subresource);
        let key = digest_of(&review_key(&review));
        let (allowed_ttl, denied_ttl) = (self.policy.allowed_ttl, self.policy.denied_ttl);
        let ask = || {
            let asked = self.ask(ApiCall::ReviewAccess(Box::new(review)));
            let answer = async move {
                match asked.await? {
                    ApiReply::AccessReview(review) if is_allowed(&review) => Ok((Some(()), allowed_ttl)),
                    ApiReply::AccessReview(_) => Ok((None, denied_ttl)),
                    _ => Err("the API server answered something else".to_owned()),
                }
            };
            answer.boxed()
        };
        Ok(self.access.answer(key, ask).await?.is_some())
    }

    fn ask(&self, call: ApiCall) -> impl Future<Output = Result<ApiReply, String>> + Send + use<A> {
        let client = self.client.borrow().clone();
        async move {
            match client {
                Some(client) => client.call(&call).await.map_err(|error| error.to_string()),
                None => Err("the node has no identity in its cluster yet".to_owned()),
            }
        }
    }

    fn busy(&self) -> Refusal {
        if let Some(left_out) = self.admits_line() {
            tracing::warn!(
                left_out,
                "too many callers are to be reviewed by the API server; some are refused"
            );
        }
        Refusal::Busy
    }

    /// Strangers cause these lines: `Some` with how many were left out, if one may be written.
    fn admits_line(&self) -> Option<u64> {
        let now = (self.clock)().mono;
        self.line.lock().admit(now)
    }
}

#[cfg(test)]
mod tests;
