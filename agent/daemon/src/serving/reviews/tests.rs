//! Questions over the socket, with an API server that knows one token.

use std::sync::Mutex;

use agent_kubelet_api::server_policy::node_areas::AUDIENCE;
use agent_types::api::{ApiError, ApiResult};
use agent_types::failure::Class;
use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};
use k8s_openapi::api::authorization::v1::SubjectAccessReviewStatus;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};
use orlop_proto::node_api::v1alpha1::notices_client::NoticesClient;
use orlop_proto::node_api::v1alpha1::reviews_client::ReviewsClient;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::*;
use crate::testing::VirtualClock;

/// Knows the token `t` of `ops`, who may get logs; counts calls.
#[derive(Default)]
struct OneToken {
    calls: Mutex<Vec<String>>,
    told: Mutex<Vec<Fact>>,
    is_away: Mutex<bool>,
}

impl ApiServer for OneToken {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        self.calls.lock().unwrap().push(call.describe());
        if *self.is_away.lock().unwrap() {
            return Err(ApiError::without_status(call, Class::Unavailable, "connection refused"));
        }
        match call {
            ApiCall::ReviewToken(review) => {
                let mut review = review.clone();
                let is_known = review.spec.token == "t";
                review.status = Some(TokenReviewStatus {
                    authenticated: Some(is_known),
                    audiences: is_known.then(|| vec![AUDIENCE.to_owned()]),
                    user: Some(UserInfo { username: Some("ops".to_owned()), ..UserInfo::default() }),
                    ..TokenReviewStatus::default()
                });
                Ok(ApiReply::TokenReview(review))
            }
            ApiCall::ReviewAccess(review) => {
                let mut review = review.clone();
                let asked = review.spec.resource_attributes.clone().unwrap_or_default();
                let words = (asked.verb.as_deref(), asked.subresource.as_deref(), asked.name.as_deref());
                let allowed = words == (Some("get"), Some("logs"), Some("n1"));
                review.status = Some(SubjectAccessReviewStatus { allowed, ..Default::default() });
                Ok(ApiReply::AccessReview(review))
            }
            _ => Err(ApiError::without_status(call, Class::Invalid, "not asked for")),
        }
    }
}

/// A client of the socket, and the server's other side.
async fn serve() -> (tempfile::TempDir, Arc<OneToken>, Tasks, Channel) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    // What a process that was killed has left.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let api = Arc::new(OneToken::default());
    let policy = AccessPolicy::new(&KubeletConfiguration::default(), &FeatureGates::default());
    let told = api.clone();
    let tell: TellEvent = Arc::new(move |fact| told.told.lock().unwrap().push(fact));
    let reviews = NodeReviews::new("n1", policy, watch::channel(Some(api.clone())).1, tell);
    reviews.start(&socket, tasks.clone()).await;
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    let channel = endpoint.connect().await.unwrap();
    (dir, api, tasks, channel)
}

fn asks(token: &str, area: &str, verb: &str) -> ReviewRequest {
    ReviewRequest { token: token.to_owned(), area: area.to_owned(), verb: verb.to_owned() }
}

#[tokio::test]
async fn the_api_server_decides_by_token_and_by_role() {
    let (_dir, api, _tasks, channel) = serve().await;
    let mut client = ReviewsClient::new(channel);
    for (token, area, verb, user, allowed) in [
        ("t", "logs", "get", "ops", true),
        ("t", "operations", "create", "ops", false),
        ("other", "logs", "get", "", false),
    ] {
        let answer = client.review(asks(token, area, verb)).await.unwrap().into_inner();
        assert_eq!((answer.user.as_str(), answer.allowed), (user, allowed), "{token} {area}");
        assert!(answer.ttl_ms > 0 && answer.ttl_ms <= 300_000, "{answer:?}");
    }
    // The third one is asked for no permission.
    assert_eq!(api.calls.lock().unwrap().len(), 5);
    for (area, verb) in [("proxy", "get"), ("logs", "create"), ("", "")] {
        let refused = client.review(asks("t", area, verb)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{verb} {area}");
    }
    assert_eq!(api.calls.lock().unwrap().len(), 5, "the API server is asked for areas alone");
}

#[tokio::test]
async fn an_api_server_that_is_away_allows_nothing() {
    let (_dir, api, _tasks, channel) = serve().await;
    let mut client = ReviewsClient::new(channel);
    *api.is_away.lock().unwrap() = true;
    let refused = client.review(asks("t", "logs", "get")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("connection refused"), "{refused}");
}

#[tokio::test]
async fn an_operation_is_an_event_of_the_node() {
    let (_dir, api, _tasks, channel) = serve().await;
    let mut client = NoticesClient::new(channel);
    for (phase, message, kind, text) in [
        ("asking", "", EventKind::Normal, "ops-1 (admin, tcp) has begun reboot (id-1)"),
        ("finished", "", EventKind::Normal, "reboot by ops-1 (admin, tcp) is finished (id-1)"),
        (
            "failed",
            "in\nhibited",
            EventKind::Warning,
            "reboot by ops-1 (admin, tcp) failed: in hibited (id-1)",
        ),
    ] {
        let operation = OperationStatus {
            id: "id-1".to_owned(),
            verb: "reboot".to_owned(),
            by: "ops-1 (admin, tcp)".to_owned(),
            phase: phase.to_owned(),
            message: message.to_owned(),
            ..OperationStatus::default()
        };
        client.tell(operation).await.unwrap();
        let fact = api.told.lock().unwrap().pop().unwrap();
        assert_eq!((fact.kind, fact.reason.as_str(), fact.message.as_str()), (kind, "NodeOperation", text));
    }
}

#[test]
fn another_file_in_the_socket_s_place_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    std::fs::write(&path, "kept").unwrap();
    assert!(private_socket(&path).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
}
