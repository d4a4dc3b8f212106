//! What the management API needs of the agent, on `/run/orlop/agent.sock`: gRPC, for `orlop-node-api`, which has neither credentials of the
//! node nor a way into the network. docs/reference/node-api.md, "Identities of the cluster" and "Operations".
//!
//! ```text
//! orlop-node-api (caches, limits) ─► agent.sock, root only ─┬─► TokenReview ─► SubjectAccessReview ─► user, allowed, for how long
//!                                                           └─► event of the Node: an operation began, or ended
//! ```
//! In: a token, an area, a verb; operations. Out: whose the token is, and whether that user may do it with this node; events. Invariants:
//! nothing is allowed without both answers of the API server; the agent asks for areas of the management API alone; answers hold for as
//! long as those of the kubelet's own port (`authentication.webhook.cacheTTL`, `authorization.webhook`); the token is in no line of the log.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::console::text::clean;
use agent_core::events::Fact;
use agent_kubelet_api::server_policy::is_allowed;
use agent_kubelet_api::server_policy::node_areas::{area_review, audience_review, audience_user};
use agent_kubelet_api::server_policy::policy::AccessPolicy;
use agent_types::api::{ApiCall, ApiReply, ApiServer};
use agent_types::event::EventKind;
use orlop_node_api::areas::ApiArea;
use orlop_proto::node_api::v1alpha1::notices_server::{Notices, NoticesServer};
use orlop_proto::node_api::v1alpha1::reviews_server::{Reviews, ReviewsServer};
use orlop_proto::node_api::v1alpha1::{NoticeTaken, OperationStatus, ReviewRequest, ReviewResponse};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::pods::pod_dirs::chain;
use crate::serving::local_connections::accepted;
use crate::tasks::actor::Tasks;

/// Connections at once: the server has four questions under way at most, each with its own.
const CONNECTIONS_MAX: usize = 8;
/// A question, bytes: a token is a header of HTTP.
const REQUEST_MAX: usize = 32 << 10;
/// Reason of the Node's events about operations.
const OPERATION: &str = "NodeOperation";
/// Characters of an event.
const TEXT_CHARS_MAX: usize = 1000;

/// Answers the questions of the management API's server.
pub(crate) struct NodeReviews<A> {
    node_name: Arc<str>,
    policy: AccessPolicy,
    /// `None` until the node has an identity.
    client: watch::Receiver<Option<Arc<A>>>,
    tell: TellEvent,
}

/// Makes an event.
pub(crate) type TellEvent = Arc<dyn Fn(Fact) + Send + Sync>;

impl<A: ApiServer> NodeReviews<A> {
    pub(crate) fn new(
        node_name: &str,
        policy: AccessPolicy,
        client: watch::Receiver<Option<Arc<A>>>,
        tell: TellEvent,
    ) -> NodeReviews<A> {
        NodeReviews { node_name: node_name.into(), policy, client, tell }
    }

    /// Serves it until the node stops. What keeps it from that is said: users of the cluster may not use the management API then.
    pub(crate) async fn start(self, socket: &Path, tasks: Tasks) {
        let path = socket.to_owned();
        let made = tasks.blocking(move || private_socket(&path)).await;
        let listener = match made {
            None => return,
            Some(made) => made.and_then(|listener| {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener)
            }),
        };
        match listener {
            Ok(listener) => tasks.start(self.serve(listener, tasks.clone())),
            Err(error) => {
                let socket = socket.display();
                tracing::warn!(%socket, %error, "users of the cluster cannot use the management API");
            }
        }
    }

    async fn serve(self, listener: UnixListener, tasks: Tasks) {
        let connections = accepted("agent.sock", listener, CONNECTIONS_MAX, tasks);
        let parts = Arc::new(self);
        let served = Server::builder()
            .add_service(ReviewsServer::from_arc(parts.clone()).max_decoding_message_size(REQUEST_MAX))
            .add_service(NoticesServer::from_arc(parts).max_decoding_message_size(REQUEST_MAX))
            .serve_with_incoming(connections);
        if let Err(error) = served.await {
            tracing::warn!(error = %chain(&error), "users of the cluster cannot use the management API any more");
        }
    }

    async fn call(&self, call: ApiCall) -> Result<ApiReply, Status> {
        let client = self.client.borrow().clone();
        let client =
            client.ok_or_else(|| Status::unavailable("the node has no identity in its cluster yet"))?;
        client.call(&call).await.map_err(|error| Status::unavailable(error.to_string()))
    }

    async fn answer(&self, request: ReviewRequest) -> Result<ReviewResponse, Status> {
        let is_asked = |area: &ApiArea| area.name() == request.area && area.verb() == request.verb;
        if !ApiArea::ALL.iter().any(is_asked) {
            return Err(Status::invalid_argument("the management API has no such area"));
        }
        let odd = || Status::unavailable("the API server answered something else");
        let review = ApiCall::ReviewToken(Box::new(audience_review(&request.token, &self.node_name)));
        let ApiReply::TokenReview(review) = self.call(review).await? else { return Err(odd()) };
        let Some(user) = audience_user(&review, &self.node_name) else {
            return Ok(ReviewResponse { ttl_ms: ms(self.policy.token_ttl), ..ReviewResponse::default() });
        };
        let review = area_review(&user, &request.verb, &self.node_name, &request.area);
        let review = ApiCall::ReviewAccess(Box::new(review));
        let ApiReply::AccessReview(review) = self.call(review).await? else { return Err(odd()) };
        let allowed = is_allowed(&review);
        let of_access = if allowed { self.policy.allowed_ttl } else { self.policy.denied_ttl };
        let ttl = of_access.min(self.policy.token_ttl);
        Ok(ReviewResponse { user: user.name, allowed, ttl_ms: ms(ttl) })
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[tonic::async_trait]
impl<A: ApiServer> Reviews for NodeReviews<A> {
    async fn review(&self, request: Request<ReviewRequest>) -> Result<Response<ReviewResponse>, Status> {
        self.answer(request.into_inner()).await.map(Response::new)
    }
}

#[tonic::async_trait]
impl<A: ApiServer> Notices for NodeReviews<A> {
    async fn tell(&self, request: Request<OperationStatus>) -> Result<Response<NoticeTaken>, Status> {
        (self.tell)(event(&request.into_inner()));
        Ok(Response::new(NoticeTaken {}))
    }
}

/// The Node's event of an operation that began or ended.
fn event(operation: &OperationStatus) -> Fact {
    let OperationStatus { id, verb, object, by, phase, message, .. } = operation;
    let what = format!("{verb} {object}");
    let what = what.trim_end();
    let text = match phase.as_str() {
        "failed" => format!("{what} by {by} failed: {message} ({id})"),
        "finished" | "cancelled" => format!("{what} by {by} is {phase} ({id})"),
        "scheduled" => format!("{by} has scheduled {what} ({id})"),
        _ => format!("{by} has begun {what} ({id})"),
    };
    let kind = if phase == "failed" { EventKind::Warning } else { EventKind::Normal };
    Fact::of_node(kind, OPERATION, clean(&text, TEXT_CHARS_MAX))
}

/// A listening socket for root alone, in the place of one that an earlier process has left. It has its name when it has its mode.
fn private_socket(socket: &Path) -> std::io::Result<std::os::unix::net::UnixListener> {
    let new = PathBuf::from(format!("{}.new", socket.display()));
    for path in [socket, &new] {
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
            Ok(_) => return Err(std::io::Error::other("something else is there; remove it")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let listener = std::os::unix::net::UnixListener::bind(&new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&new, socket)?;
    Ok(listener)
}

#[cfg(test)]
mod tests;
