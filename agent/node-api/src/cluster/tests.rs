//! Tokens against a fake agent on a unix socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream;
use orlop_proto::node_api::v1alpha1::reviews_server::{Reviews, ReviewsServer};
use tokio::net::UnixListener;
use tonic::{Request, Response, Status};

use super::*;

/// Knows the tokens `reader` (status and logs), `away` (the API server does not answer) and `slow` (after a while, as `reader`).
#[derive(Clone, Default)]
struct FakeAgent {
    asked: Arc<AtomicUsize>,
    go: Arc<Notify>,
}

#[tonic::async_trait]
impl Reviews for FakeAgent {
    async fn review(&self, request: Request<ReviewRequest>) -> Result<Response<ReviewResponse>, Status> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let ReviewRequest { token, area, verb } = request.into_inner();
        if token == "slow" {
            self.go.notified().await;
        }
        match token.as_str() {
            "reader" | "slow" => Ok(Response::new(ReviewResponse {
                user: "ops\u{1b}".to_owned(),
                allowed: verb == "get" && area != "operations",
                ttl_ms: 60_000,
            })),
            "away" => Err(Status::unavailable("connection refused")),
            _ => Ok(Response::new(ReviewResponse { ttl_ms: 60_000, ..ReviewResponse::default() })),
        }
    }
}

fn peer() -> Peer {
    Peer::Network { address: SocketAddr::from(([192, 0, 2, 1], 4711)) }
}

/// Does work while the agent runs.
async fn with_agent<T>(work: impl AsyncFnOnce(&ClusterIdentities, FakeAgent) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("run/orlop")).unwrap();
    let listener = UnixListener::bind(dir.path().join("run/orlop/agent.sock")).unwrap();
    let agent = FakeAgent::default();
    let incoming = stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    let incoming = Box::pin(incoming);
    let served = tonic::transport::Server::builder()
        .add_service(ReviewsServer::new(agent.clone()))
        .serve_with_incoming(incoming);
    let identities = ClusterIdentities::new(dir.path());
    tokio::select! {
        done = work(&identities, agent) => done,
        ended = served => panic!("the agent ended: {ended:?}"),
    }
}

#[tokio::test]
async fn the_cluster_decides_about_each_area_and_is_asked_once_for_it() {
    with_agent(async |identities, agent| {
        let of = |token: &'static str, area| identities.identify(peer(), token, area);
        for _ in 0..3 {
            let known = of("reader", ApiArea::Logs).await.unwrap();
            assert_eq!((known.name.as_str(), known.role), ("ops", Role::Cluster));
            let refused = of("reader", ApiArea::Operations).await.unwrap_err();
            assert_eq!(refused.reason, Reason::NotAllowed);
            assert!(refused.message.contains("create nodes/operations"), "{refused}");
            assert_eq!(of("other", ApiArea::Status).await.unwrap_err().reason, Reason::UnknownToken);
        }
        assert_eq!(agent.asked.load(Ordering::SeqCst), 3);
        let known = |token, area| identities.known(token, area).map(|identity| identity.name);
        assert_eq!(known("reader", ApiArea::Logs).as_deref(), Some("ops"));
        assert_eq!((known("reader", ApiArea::Operations), known("other", ApiArea::Status)), (None, None));
    })
    .await;
}

#[tokio::test]
async fn without_an_answer_nobody_is_let_in_and_the_next_call_asks_again() {
    with_agent(async |identities, agent| {
        for number in 1..=2 {
            let refused = identities.identify(peer(), "away", ApiArea::Status).await.unwrap_err();
            assert_eq!((refused.reason, refused.message.as_str()), (Reason::CannotAsk, "connection refused"));
            assert_eq!(agent.asked.load(Ordering::SeqCst), number);
        }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let refused = ClusterIdentities::new(dir.path()).identify(peer(), "reader", ApiArea::Status).await;
    assert_eq!(refused.unwrap_err().to_string(), "cluster: the node agent does not run");
}

#[tokio::test]
async fn calls_with_the_same_token_share_a_question_and_survive_its_caller() {
    with_agent(async |identities, agent| {
        let ask = || identities.identify(peer(), "slow", ApiArea::Status);
        let go = async {
            while agent.asked.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            agent.go.notify_one();
        };
        let (first, second, ()) = tokio::join!(ask(), ask(), go);
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(agent.asked.load(Ordering::SeqCst), 1);
        // The caller that has asked goes away; the one that waits asks itself.
        let mut gone = Box::pin(identities.identify(peer(), "slow", ApiArea::Logs));
        let mut waits = Box::pin(identities.identify(peer(), "slow", ApiArea::Logs));
        let asked_again = async {
            while agent.asked.load(Ordering::SeqCst) < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = &mut gone => panic!("no answer was given"),
            _ = &mut waits => panic!("no answer was given"),
            () = asked_again => {}
        }
        drop(gone);
        let answers = async {
            for _ in 0..100_000 {
                agent.go.notify_one();
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            found = waits => assert!(found.is_ok()),
            () = answers => panic!("the one that waits has no answer"),
        }
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_tokens_is_refused_and_asks_the_agent_a_few_times() {
    with_agent(async |identities, agent| {
        let mut reasons = Vec::new();
        for number in 0..200 {
            let refused = identities.identify(peer(), &format!("junk {number}"), ApiArea::Status).await;
            reasons.push(refused.unwrap_err().reason);
        }
        assert!(reasons.contains(&Reason::TooManyCalls));
        assert!(agent.asked.load(Ordering::SeqCst) < 100, "{}", agent.asked.load(Ordering::SeqCst));
    })
    .await;
}

#[test]
fn an_answer_is_believed_for_a_bounded_time() {
    let (verdict, ttl) = read(ReviewResponse { user: "a".to_owned(), allowed: true, ttl_ms: u64::MAX });
    assert_eq!((verdict.map(|verdict| verdict.is_allowed), ttl), (Some(true), BELIEVED_MAX));
    assert_ne!(digest_of("t", ApiArea::Logs), digest_of("t", ApiArea::Status));
}
