//! Strangers by the thousand against an API server that is slow with reviews and takes few requests at once.

use std::sync::atomic::{AtomicU64, Ordering};

use agent_apiserver::ApiClient;
use agent_apiserver::testing::{FakeServer, TestPki};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::*;

/// Strangers that come at once, and how often they come.
const CROWD: u64 = 1000;
const CROWDS: u64 = 25;
const EVERY: Duration = Duration::from_millis(200);
/// How long the API server takes for a review.
const SLOW: Duration = Duration::from_millis(500);

fn lease() -> Lease {
    let mut lease = Lease::default();
    lease.metadata.name = Some("n1".to_owned());
    lease.metadata.namespace = Some("kube-node-lease".to_owned());
    lease.spec = Some(LeaseSpec { holder_identity: Some("n1".to_owned()), ..LeaseSpec::default() });
    lease
}

struct Node {
    fake: FakeServer,
    client: Arc<ApiClient>,
    guard: Arc<Guard<ApiClient>>,
    // Kept: the guard follows them.
    _views: (watch::Sender<Option<Arc<ApiClient>>>, watch::Sender<Option<ClientAuthorities>>),
}

fn node() -> Node {
    let fake = FakeServer::in_memory(Arc::new(TestPki::new()));
    fake.review_slowly(SLOW, 20);
    fake.with_api(|api, _| {
        api.reviews.tokens.insert("good".to_owned(), ("robot".to_owned(), vec![]));
        api.reviews.grants.insert(("robot".to_owned(), "get".to_owned(), "pods".to_owned()));
    });
    let client = Arc::new(fake.node("n1"));
    let (set, clients) = watch::channel(Some(client.clone()));
    let (authorities, view) = watch::channel(None);
    let begun = Instant::now();
    let clock: Clock = Arc::new(move || Now { mono: Mono(0).after(begun.elapsed()), wall: TODAY });
    let policy = AccessPolicy::new(&KubeletConfiguration::default(), &FeatureGates::default());
    let guard = Arc::new(Guard::new(policy, "n1", clients, view, clock));
    Node { fake, client, guard, _views: (set, authorities) }
}

async fn asks(guard: &Guard<ApiClient>, token: &str) -> u16 {
    let request = Request::get("/pods").header(AUTHORIZATION, format!("Bearer {token}"));
    let (parts, ()) = request.body(()).unwrap().into_parts();
    match guard.admit(&[], &parts).await {
        Ok(_) => 200,
        Err(refusal) => refusal.response().status().as_u16(),
    }
}

fn reviews(fake: &FakeServer) -> usize {
    fake.seen().iter().filter(|seen| seen.path.ends_with("/tokenreviews")).count()
}

#[tokio::test(start_paused = true)]
async fn strangers_hold_up_no_heartbeat_and_do_not_flood_the_api_server() {
    let node = node();
    let mut lease = node.client.call(&ApiCall::CreateLease(Box::new(lease()))).await.unwrap();
    assert_eq!(asks(&node.guard, "good").await, 200);
    let before = reviews(&node.fake);
    let (began, refused) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut strangers = JoinSet::new();
    for n in 0..CROWD * CROWDS {
        let (guard, refused) = (node.guard.clone(), refused.clone());
        strangers.spawn(async move {
            sleep_until(began + EVERY * u32::try_from(n / CROWD).unwrap()).await;
            let status = asks(&guard, &format!("stranger-{n}")).await;
            assert!(status == 401 || status == 503, "{status}");
            refused.fetch_add(u64::from(status == 503), Ordering::Relaxed);
        });
    }
    // While they come: heartbeats are as quick as ever, and a client that was believed is let in.
    for second in 1..=4 {
        sleep_until(began + Duration::from_secs(second)).await;
        let ApiReply::Lease(held) = lease else { panic!("not a lease") };
        let renewal = ApiCall::ReplaceLease(held);
        let renewed = timeout(Duration::from_secs(2), node.client.call(&renewal)).await;
        lease = renewed.expect("renewed in time").unwrap();
        assert_eq!(asks(&node.guard, "good").await, 200);
    }
    while let Some(stranger) = strangers.join_next().await {
        stranger.unwrap();
    }
    let (asked, took) = (reviews(&node.fake) - before, began.elapsed());
    let limits = DeskLimits::default();
    assert!(node.fake.most_reviews_at_once() <= 2 * limits.under_way);
    let asked = u64::try_from(asked).unwrap();
    let most = u128::from(limits.burst) + took.as_millis() / limits.interval.as_millis();
    assert!(u128::from(asked) <= most, "{asked} reviews within {took:?}");
    assert!(asked > 20, "some strangers are reviewed: {asked}");
    let refused = refused.load(Ordering::Relaxed);
    assert_eq!(refused, CROWD * CROWDS - asked, "whoever is not reviewed is refused");
    let connections = |of: &str| {
        let seen = node.fake.seen();
        let of = seen.iter().filter(|s| s.path.contains(of)).map(|s| s.connection);
        of.collect::<std::collections::BTreeSet<u64>>()
    };
    assert!(connections("/leases").is_disjoint(&connections("reviews")), "reviews have their own connection");
    assert_eq!(node.client.stats().connections, 2);
}

#[tokio::test(start_paused = true)]
async fn one_review_serves_all_who_show_the_same_token() {
    let node = node();
    let mut clients = JoinSet::new();
    for _ in 0..100 {
        let guard = node.guard.clone();
        clients.spawn(async move { asks(&guard, "good").await });
    }
    // The one who asked first goes away; the others get its answer.
    let given_up = timeout(Duration::from_millis(100), asks(&node.guard, "other")).await;
    assert!(given_up.is_err());
    while let Some(status) = clients.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    let asked = node.fake.with_api(|api, _| api.reviews.asked);
    // The token and the permission; of the one who gave up the fake heard, and had no answer yet.
    assert_eq!(asked, 2);
    assert_eq!(reviews(&node.fake), 2);
    assert_eq!(asks(&node.guard, "other").await, 401, "a review that was given up is asked again");
}

#[tokio::test(start_paused = true)]
async fn a_review_goes_on_when_its_first_client_goes_away() {
    let node = node();
    let (first, second) = (node.guard.clone(), node.guard.clone());
    let began = Instant::now();
    let first = tokio::spawn(async move { asks(&first, "good").await });
    sleep_until(began + SLOW / 4).await;
    let second = tokio::spawn(async move { asks(&second, "good").await });
    sleep_until(began + SLOW / 2).await;
    first.abort();
    assert_eq!(second.await.unwrap(), 200);
    assert_eq!(reviews(&node.fake), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_certificate_closes_the_connection_of_reviews_too() {
    let node = node();
    node.fake.review_slowly(Duration::ZERO, 20);
    assert_eq!(asks(&node.guard, "first").await, 401);
    let access = node.fake.pki.access(node.fake.server(), "system:node:n1", "system:nodes");
    assert!(node.client.set_access(access).unwrap());
    assert_eq!(asks(&node.guard, "second").await, 401);
    node.client.close_connections();
    assert_eq!(asks(&node.guard, "third").await, 401);
    let on: Vec<u64> = node.fake.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(on, [1, 2, 3], "only reviews were asked, each on a new connection");
    let mut open = node.fake.open_connections();
    timeout(Duration::from_secs(60), open.wait_for(|open| *open == 1)).await.expect("closed").unwrap();
}
