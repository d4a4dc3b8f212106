//! Identities of the cluster: the agent asks the API server who a token is, and whether that user may do what a call needs.
//!
//! ```text
//! call with a token ─► desk ─┬─ known ───────────────────────► identity or refusal
//!                            ├─ busy ────────────────────────► refusal: later
//!                            └─ ask ─► agent.sock ─► agent ─► TokenReview, SubjectAccessReview
//! ```
//! In: tokens, areas, answers of the agent. Out: identities. Invariants: without an answer no caller is let in, but by an answer that still
//! holds; tokens are kept as digests only; the desk bounds the questions ([`agent_kubelet_api::server_policy::ReviewDesk`], as the
//! kubelet's own port); this process has no credentials of the node and no way into the network.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::console::text::clean;
use agent_kubelet_api::server_policy::{DeskLimits, ReviewDesk, ReviewStep};
use agent_linux::clock::boottime;
use agent_types::lock::Lock;
use orlop_proto::node_api::v1alpha1::reviews_client::ReviewsClient;
use orlop_proto::node_api::v1alpha1::{ReviewRequest, ReviewResponse};
use ring::digest::{Context, SHA256};
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::Code;

use crate::agent_socket;
use crate::areas::ApiArea;
use crate::guard::{Identity, Peer, Role};
use crate::refusal::{Reason, Refusal};

/// Questions to the agent: strangers have two calls a second in any case.
const LIMITS: DeskLimits = DeskLimits {
    interval: Duration::from_millis(100),
    burst: 20,
    under_way: 4,
    waiting: 32,
    remembered: 256,
};
/// The agent has two calls to the API server to make; clients wait ten seconds.
const ANSWER_MAX: Duration = Duration::from_secs(9);
/// An answer is not believed for longer, whatever the agent says.
const BELIEVED_MAX: Duration = Duration::from_secs(300);
/// When to ask again after too many questions.
const LATER: Duration = Duration::from_secs(1);
/// Characters of a user's name in records: names of ServiceAccounts have 339 at most.
const NAME_CHARS_MAX: usize = 400;

/// SHA-256 of a token with what it is to be used for.
type ReviewDigest = [u8; 32];

/// What the cluster says about a token that it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AreaVerdict {
    user: String,
    is_allowed: bool,
}

/// Asks the agent, and remembers its answers.
#[derive(Debug)]
pub(crate) struct ClusterIdentities {
    socket: PathBuf,
    // Held for a moment only.
    desk: Lock<ReviewDesk<ReviewDigest, AreaVerdict>>,
    /// A question has ended.
    ended: Notify,
}

impl ClusterIdentities {
    /// `root` is the root directory.
    pub(crate) fn new(root: &Path) -> ClusterIdentities {
        ClusterIdentities {
            socket: agent_socket::path(root),
            desk: Lock::new(ReviewDesk::new(LIMITS)),
            ended: Notify::new(),
        }
    }

    /// The user of a token that the cluster lets do this, if that is known already.
    pub(crate) fn known(&self, token: &str, area: ApiArea) -> Option<Identity> {
        let known = self.desk.lock().known(&digest_of(token, area), boottime());
        known.filter(|verdict| verdict.is_allowed).map(|verdict| of_user(verdict.user))
    }

    /// The user of a token, if the cluster lets the user do this.
    ///
    /// # Errors
    /// The cluster does not know the token, does not allow it, or cannot be asked.
    pub(crate) async fn identify(&self, peer: Peer, token: &str, area: ApiArea) -> Result<Identity, Refusal> {
        let verdict = match timeout(ANSWER_MAX, self.verdict(token, area)).await {
            Ok(verdict) => verdict,
            Err(_) => Err(cannot_ask(format!("no answer within {} s", ANSWER_MAX.as_secs()))),
        };
        let Some(AreaVerdict { user, is_allowed }) = verdict? else {
            let message = "the cluster does not know the token, or it is not for this API";
            return Err(Refusal::new(Reason::UnknownToken, peer.to_string(), message));
        };
        if is_allowed {
            return Ok(of_user(user));
        }
        let message = format!("the cluster does not let {user:?} {} nodes/{}", area.verb(), area.name());
        Err(Refusal::new(Reason::NotAllowed, peer.to_string(), message))
    }

    /// `None`: the token is unknown.
    async fn verdict(&self, token: &str, area: ApiArea) -> Result<Option<AreaVerdict>, Refusal> {
        let key = digest_of(token, area);
        loop {
            // It hears each end from here on.
            let ended = self.ended.notified();
            let step = self.desk.lock().request(&key, boottime());
            match step {
                ReviewStep::Known(verdict) => return Ok(verdict),
                ReviewStep::Busy => {
                    let message = "too many tokens are to be reviewed at the moment";
                    let refusal = Refusal::new(Reason::TooManyCalls, "door tcp", message);
                    return Err(Refusal { retry_after: LATER, ..refusal });
                }
                ReviewStep::Join => {
                    let _waiting = WaitingCall(self);
                    ended.await;
                }
                ReviewStep::Ask => {
                    let mut under_way = ReviewUnderWay { identities: self, key, answer: None };
                    let answered = self.ask(token, area).await?;
                    let (verdict, ttl) = read(answered);
                    under_way.answer = Some((verdict.clone(), ttl));
                    return Ok(verdict);
                }
            }
        }
    }

    async fn ask(&self, token: &str, area: ApiArea) -> Result<ReviewResponse, Refusal> {
        let connected = agent_socket::channel(&self.socket).await;
        let channel = connected.map_err(|_| cannot_ask("the node agent does not run".to_owned()))?;
        let request = ReviewRequest {
            token: token.to_owned(),
            area: area.name().to_owned(),
            verb: area.verb().to_owned(),
        };
        let answered = ReviewsClient::new(channel).review(request).await;
        answered.map(tonic::Response::into_inner).map_err(|status| match status.code() {
            Code::Unavailable | Code::DeadlineExceeded => cannot_ask(clean(status.message(), NAME_CHARS_MAX)),
            _ => cannot_ask(format!("the node agent answers {:?}", status.code())),
        })
    }
}

fn of_user(name: String) -> Identity {
    Identity { name, role: Role::Cluster }
}

fn cannot_ask(message: String) -> Refusal {
    Refusal::new(Reason::CannotAsk, "cluster", message)
}

/// What an answer means, and for how long.
fn read(answered: ReviewResponse) -> (Option<AreaVerdict>, Duration) {
    let ttl = Duration::from_millis(answered.ttl_ms).min(BELIEVED_MAX);
    let user = clean(&answered.user, NAME_CHARS_MAX);
    let verdict = (!user.is_empty()).then_some(AreaVerdict { user, is_allowed: answered.allowed });
    (verdict, ttl)
}

fn digest_of(token: &str, area: ApiArea) -> ReviewDigest {
    let mut context = Context::new(&SHA256);
    // Names of areas have no such byte.
    for part in [area.name().as_bytes(), b"\0", token.as_bytes()] {
        context.update(part);
    }
    let mut digest = ReviewDigest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// A call that waits for another call's question.
struct WaitingCall<'a>(&'a ClusterIdentities);

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.desk.lock().left();
    }
}

/// A question that is under way; dropped before its answer it has none.
struct ReviewUnderWay<'a> {
    identities: &'a ClusterIdentities,
    key: ReviewDigest,
    answer: Option<(Option<AreaVerdict>, Duration)>,
}

impl Drop for ReviewUnderWay<'_> {
    fn drop(&mut self) {
        let mut desk = self.identities.desk.lock();
        desk.ended(self.key, self.answer.take(), boottime());
        desk.left();
        drop(desk);
        self.identities.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
