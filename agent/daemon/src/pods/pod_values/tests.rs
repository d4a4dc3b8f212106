//! Tokens are kept and renewed; objects are fetched as the configuration says.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use agent_types::api::{ApiCall, ApiError, ApiReply, ApiResult, WatchEvent};
use agent_types::api_time::api_time;
use agent_types::failure::Class;
use agent_types::objects::ObjectKind;
use k8s_openapi::api::authentication::v1::TokenRequestStatus;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequestStatus;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::pods::status::StatusStore;
use crate::serving::metrics::Metrics;
use crate::testing::VirtualClock;

/// Grants tokens of ten minutes and has one ConfigMap.
struct Server {
    tasks: Tasks,
    up: AtomicBool,
    granted: AtomicU32,
    value: Mutex<String>,
}

impl ApiServer for Server {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        if !self.up.load(Ordering::Acquire) {
            return Err(ApiError::without_status(call, Class::Unavailable, "connection refused"));
        }
        match call {
            ApiCall::CreateToken { request, .. } => {
                let number = self.granted.fetch_add(1, Ordering::AcqRel);
                let mut granted = request.clone();
                granted.status = Some(TokenRequestStatus {
                    token: Some(format!("t{number}")),
                    expiration_timestamp: Some(api_time(Wall(self.tasks.now().wall.0 + 600_000_000_000))),
                });
                Ok(ApiReply::Token(granted))
            }
            ApiCall::GetConfigMap(_) => {
                let value = self.value.lock().unwrap().clone();
                let data = Some([("k".to_owned(), value)].into());
                Ok(ApiReply::ConfigMap(Box::new(ConfigMap { data, ..ConfigMap::default() })))
            }
            other => panic!("{}", other.describe()),
        }
    }
}

struct NoWatches;

impl ObjectWatches for NoWatches {
    fn watch(&self, object: &ObjectRef) -> mpsc::Receiver<ObjectNews> {
        panic!("{object} is watched");
    }

    fn pod_certificates(&self) -> Opening<PodCertificateRequest> {
        panic!("requests are watched");
    }
}

fn server() -> (Arc<Server>, Tasks, Caller<Server>) {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let server = Arc::new(Server {
        tasks: tasks.clone(),
        up: AtomicBool::new(true),
        granted: AtomicU32::new(0),
        value: Mutex::new("one".to_owned()),
    });
    let (_, client) = watch::channel(Some(server.clone()));
    let caller = Caller::new(tasks.clone(), client);
    (server, tasks, caller)
}

fn token() -> TokenRef {
    let text = |text: &str| text.to_owned();
    let (namespace, account, audience) = (text("ns"), text("sa"), String::new());
    TokenRef {
        namespace,
        account,
        account_uid: String::new(),
        audience,
        life_s: 600,
        pod: text("p"),
        uid: text("u"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_kept_renewed_and_used_up() {
    let (server, tasks, caller) = server();
    let store = TokenStore::new(caller, tasks.clone());
    let pass = |seconds| tasks.wait_until(tasks.now().mono.after(Duration::from_secs(seconds)));
    let text = |held: Result<HeldToken, String>| held.map(|held| held.text);
    let first = store.token(token()).await.unwrap();
    assert_eq!(first.text, "t0");
    let good_s = first.renew.since(tasks.now().wall).as_secs();
    assert!((468..=480).contains(&good_s), "{good_s}");
    pass(400).await;
    assert_eq!(text(store.token(token()).await), Ok("t0".to_owned()));
    assert_eq!(
        text(store.token(TokenRef { audience: "x".to_owned(), ..token() }).await),
        Ok("t1".to_owned())
    );
    pass(100).await;
    server.up.store(false, Ordering::Release);
    let old = store.token(token()).await.unwrap();
    assert_eq!((old.text.as_str(), old.renew.since(tasks.now().wall).as_secs()), ("t0", 60));
    server.up.store(true, Ordering::Release);
    assert_eq!(text(store.token(token()).await), Ok("t2".to_owned()));
    pass(600).await;
    server.up.store(false, Ordering::Release);
    let refused = text(store.token(token()).await);
    assert_eq!(refused, Err("failed to fetch token: connection refused".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn without_watches_an_answer_is_believed_for_a_while() {
    let object = ObjectRef { kind: ObjectKind::ConfigMap, namespace: "ns".to_owned(), name: "m".to_owned() };
    let every = Duration::from_secs(60);
    for (ttl_s, expected) in [(60, ["one", "one", "two"]), (0, ["one", "two", "two"])] {
        let (server, tasks, caller) = server();
        let policy = ObjectPolicy::Fetch { ttl: Duration::from_secs(ttl_s), every };
        let store = ObjectStore::new(caller, Arc::new(NoWatches), policy, false, &tasks);
        assert_eq!(store.reread_after(), Some(every));
        let mut seen = Vec::new();
        for _ in 0..3 {
            match store.fetch(object.clone()).await {
                Fetched::Found(data) => seen.push(String::from_utf8(data.data["k"].clone()).unwrap()),
                other => panic!("{other:?}"),
            }
            *server.value.lock().unwrap() = "two".to_owned();
            tasks.wait_until(tasks.now().mono.after(Duration::from_secs(40))).await;
        }
        assert_eq!(seen, expected);
    }
}

/// Creates certificate requests with names that count up; `up` is whether accounts can be read.
#[derive(Default)]
pub(super) struct Signer {
    up: AtomicBool,
    asked: Mutex<Vec<PodCertificateRequest>>,
}

impl ApiServer for Signer {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        match call {
            ApiCall::GetServiceAccount(_) if !self.up.load(Ordering::Acquire) => {
                Err(ApiError::without_status(call, Class::Unavailable, "connection refused"))
            }
            ApiCall::GetServiceAccount(_) => {
                let mut account = ServiceAccount::default();
                account.metadata.uid = Some("account".to_owned());
                Ok(ApiReply::ServiceAccount(Box::new(account)))
            }
            ApiCall::GetNode { .. } => {
                let mut node = Node::default();
                node.metadata.uid = Some("node".to_owned());
                Ok(ApiReply::Node(Box::new(node)))
            }
            ApiCall::CreatePodCertificate(request) => {
                let mut all = self.asked.lock().unwrap();
                let mut made = request.clone();
                made.metadata.name = Some(format!("req-{}", all.len()));
                all.push(*made.clone());
                Ok(ApiReply::PodCertificate(made))
            }
            other => panic!("{}", other.describe()),
        }
    }
}

/// The one watch of requests, whose events the test sends.
#[derive(Default)]
pub(super) struct Requests(Mutex<Option<mpsc::Sender<WatchEvent<PodCertificateRequest>>>>);

impl ObjectWatches for Requests {
    fn watch(&self, object: &ObjectRef) -> mpsc::Receiver<ObjectNews> {
        panic!("{object} is watched");
    }

    fn pod_certificates(&self) -> Opening<PodCertificateRequest> {
        let (to, events) = mpsc::channel(4);
        assert!(self.0.lock().unwrap().replace(to).is_none(), "one watch");
        let (opened, opening) = oneshot::channel();
        opened.send(events).unwrap();
        opening
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_comes_with_its_key_and_both_go_with_the_pod() {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let server = Arc::new(Signer::default());
    let (_, client) = watch::channel(Some(server.clone()));
    let caller = Caller::new(tasks.clone(), client);
    let watches = Arc::new(Requests::default());
    let store = Arc::new(CertificateStore::new(caller, tasks.clone(), watches.clone(), "n".into(), Some(1)));
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {
        "serviceAccountName": "sa", "containers": [], "volumes": [{"name": "v", "projected": {"sources": [
            {"podCertificate": {"signerName": "s", "keyType": "ECDSAP256", "keyPath": "k"}}]}}]}}))
        .unwrap();
    let place = CertificateSource::new(&pod, "v", 0);
    let (desired_view, desired) = watch::channel(DesiredPods::from([("u".into(), Arc::new(pod))]));
    let (to_manager, mut manager) = tasks.mailbox::<ManagerEvent>();
    let metrics = Metrics::new(Arc::new(VirtualClock::new()));
    let node_events = NodeEvents::new(StatusStore::default(), metrics.clone(), None, None, None);
    let state = |metrics: &Metrics| {
        let text = metrics.text_without_pods();
        text.lines().find(|line| line.starts_with("kubelet_podcertificate_states")).map(str::to_owned)
    };
    let stands =
        |is: &str| Some(format!("kubelet_podcertificate_states{{signer_name=\"s\",state=\"{is}\"}} 1"));
    let following = store.clone();
    tasks.start(async move { following.follow(desired, to_manager, node_events).await });
    let pass = || tasks.wait_until(tasks.now().mono.after(Duration::from_secs(1)));
    pass().await;
    let why = store.certificate(&place).unwrap_err();
    assert!(why.ends_with("while fetching service account: connection refused"), "{why}");
    server.up.store(true, Ordering::Release);
    // The key is made by a thread, which virtual time does not wait for.
    while server.asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
        pass().await;
    }
    pass().await;
    assert_eq!(store.certificate(&place).unwrap_err(), "credential bundle is not issued yet");
    assert_eq!(state(&metrics), stands("not_yet_issued"));
    let mut request = server.asked.lock().unwrap()[0].clone();
    let said = (&*request.spec.node_uid, &*request.spec.service_account_uid, &*request.spec.pod_uid);
    assert_eq!(said, ("node", "account", "u"));
    let now = Some(api_time(tasks.now().wall));
    let later = Some(api_time(Wall(tasks.now().wall.0 + 3_600_000_000_000)));
    let issued = json!([{"type": "Issued", "status": "True", "reason": "x", "message": "", "lastTransitionTime": now}]);
    request.status = Some(PodCertificateRequestStatus {
        conditions: serde_json::from_value(issued).unwrap(),
        certificate_chain: Some(agent_types::pem::certificate(b"leaf")),
        begin_refresh_at: later.clone(),
        not_after: later.clone(),
        not_before: now,
    });
    let to = watches.0.lock().unwrap().clone().expect("requests are watched");
    to.send(WatchEvent::Applied(Arc::new(request))).await.unwrap();
    assert!(
        matches!(manager.recv().await, ManagerEvent::SourcesChanged(pods) if pods == ["u".into()].into())
    );
    pass().await;
    let held = store.certificate(&place).unwrap();
    assert!(held.key.starts_with(b"-----BEGIN PRIVATE KEY-----"));
    assert_eq!(state(&metrics), stands("fresh"));
    assert_eq!(held.chain[..], *agent_types::pem::certificate(b"leaf").as_bytes());
    desired_view.send_replace(DesiredPods::new());
    pass().await;
    assert!(store.certificate(&place).unwrap_err().starts_with("no credentials yet for "));
    assert!(to.is_closed(), "nobody asks for a certificate, nobody watches");
    assert_eq!(state(&metrics), None);
    assert_eq!(server.asked.lock().unwrap().len(), 1);
}
