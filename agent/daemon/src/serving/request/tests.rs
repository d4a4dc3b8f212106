//! The serving certificate against a fake API server with an administrator who approves and signs.

use std::net::IpAddr;
use std::sync::Mutex;

use agent_sim::fake_api::{FakeApi, Key, Requester, Resource};
use agent_types::api::{ApiCall, ApiReply, ApiResult};
use agent_types::time::Wall;
use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::testing::VirtualClock;

/// Signs every request at once.
struct Signer {
    api: Mutex<FakeApi>,
    issuer: Issuer<'static, KeyPair>,
    asked: watch::Sender<Vec<serde_json::Value>>,
}

impl Signer {
    fn new() -> Signer {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Signer {
            api: Mutex::default(),
            issuer: Issuer::new(params, key),
            asked: watch::Sender::new(Vec::new()),
        }
    }

    fn sign(&self, api: &mut FakeApi, now: Wall, name: &str) {
        let key = Key::new(Resource::Csrs, "", name);
        let object = api.object(&key).unwrap().clone();
        let request: ByteString = serde_json::from_value(object["spec"]["request"].clone()).unwrap();
        let pem = String::from_utf8(request.0).unwrap();
        let mut request = CertificateSigningRequestParams::from_pem(&pem).unwrap();
        let second = |s: i64| {
            std::time::SystemTime::UNIX_EPOCH
                + std::time::Duration::from_secs(u64::try_from(now.0 / 1_000_000_000 + s).unwrap())
        };
        (request.params.not_before, request.params.not_after) = (second(-60).into(), second(3600).into());
        let certificate = ByteString(request.signed_by(&self.issuer).unwrap().pem().into_bytes());
        let status = json!({"status": {"certificate": certificate,
            "conditions": [{"type": "Approved", "status": "True"}]}});
        api.serve(now, &Requester::Admin, &key, &agent_sim::fake_api::Verb::PatchStatus(status)).unwrap();
        self.asked.send_modify(|asked| asked.push(object["spec"].clone()));
    }
}

/// The node's way to the signer.
struct NodeApi(Arc<Signer>, Tasks);

impl ApiServer for NodeApi {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        let now = self.1.now().wall;
        let mut api = self.0.api.lock().unwrap();
        let answer = api.call(now, &Requester::Node("n1".to_owned()), call);
        if let (ApiCall::CreateCsr(_), Ok(ApiReply::Csr(csr))) = (call, &answer) {
            self.0.sign(&mut api, now, csr.metadata.name.as_deref().unwrap());
        }
        answer
    }
}

fn addresses(ips: &[&str]) -> Vec<NodeAddress> {
    let of = |kind: &str, address: &str| NodeAddress { type_: kind.to_owned(), address: address.to_owned() };
    let ips = ips.iter().map(|ip| of("InternalIP", ip));
    ips.chain([of("Hostname", "n1")]).collect()
}

fn on_disk(dir: &Path) -> CertificateFacts {
    let pem = std::fs::read(dir.join("kubelet-server-current.pem")).unwrap();
    facts_of_pem("x", &pem, false).unwrap()
}

fn deps<'a>(
    cert_dir: &'a Path,
    client: watch::Receiver<Option<Arc<NodeApi>>>,
    clock: watch::Receiver<bool>,
    addresses: watch::Receiver<Vec<NodeAddress>>,
    tasks: &Tasks,
) -> Deps<'a, NodeApi> {
    let config = CertConfig {
        kind: CertKind::Serving,
        node_name: "n1".into(),
        rotate: true,
        clock_floor: Wall(0),
        seed: 1,
    };
    let metrics = Metrics::new(Arc::new(VirtualClock::new()));
    let (cluster_problems, tasks) = (ClusterProblems::default(), tasks.clone());
    Deps { cert_dir, config, client, clock, addresses, cluster_problems, tasks, metrics }
}

#[tokio::test(start_paused = true)]
async fn asked_for_with_the_addresses_and_again_when_they_change() {
    let dir = tempfile::tempdir().unwrap();
    let signer = Arc::new(Signer::new());
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let (_client, client) = watch::channel(Some(Arc::new(NodeApi(signer.clone(), tasks.clone()))));
    let (to, view) = watch::channel(Vec::new());
    let deps = |client, addresses| deps(dir.path(), client, watch::channel(true).1, addresses, &tasks);
    let mut shown = start(deps(client, view)).unwrap();
    let mut asked = signer.asked.subscribe();
    assert!(shown.borrow().is_none() && asked.borrow().is_empty(), "nothing without an address");
    to.send_replace(addresses(&["192.0.2.1"]));
    shown.wait_for(Option::is_some).await.unwrap();
    let spec = asked.borrow()[0].clone();
    assert_eq!(spec["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(spec["usages"], json!(["digital signature", "server auth"]));
    let facts = on_disk(dir.path());
    assert_eq!(facts.common_name, "system:node:n1");
    assert_eq!(facts.dns_names, ["n1"]);
    assert_eq!(facts.ips, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    let first = shown.borrow_and_update().clone();
    to.send_replace(addresses(&["192.0.2.1", "192.0.2.2"]));
    asked.wait_for(|asked| asked.len() == 2).await.unwrap();
    shown.changed().await.unwrap();
    assert_ne!(*shown.borrow(), first);
    assert_eq!(on_disk(dir.path()).ips.len(), 2);
    // One address fewer: the certificate still has all wanted addresses.
    to.send_replace(addresses(&["192.0.2.2"]));
    // Before it ends it is renewed.
    asked.wait_for(|asked| asked.len() == 3).await.unwrap();
    shown.changed().await.unwrap();
    assert_eq!(on_disk(dir.path()).ips, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
    // Another run uses the certificate on disk before its first request.
    let (_quiet, none) = watch::channel(None::<Arc<NodeApi>>);
    let (_to, view) = watch::channel(Vec::new());
    let again = start(deps(none, view)).unwrap();
    assert_eq!(*again.borrow(), *shown.borrow());
    tasks.stop().cancel();
}

#[tokio::test(start_paused = true)]
async fn no_certificate_has_expired_by_a_clock_that_is_not_verified() {
    let dir = tempfile::tempdir().unwrap();
    let signer = Arc::new(Signer::new());
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let (_client, client) = watch::channel(Some(Arc::new(NodeApi(signer.clone(), tasks.clone()))));
    let (_to, view) = watch::channel(addresses(&["192.0.2.1"]));
    let mut asked = signer.asked.subscribe();
    let first = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let mut shown =
        start(deps(dir.path(), client.clone(), watch::channel(true).1, view.clone(), &first)).unwrap();
    shown.wait_for(Option::is_some).await.unwrap();
    first.stop().cancel();
    // The next run's clock is two hours later: the certificate's hour is over.
    tokio::time::advance(std::time::Duration::from_secs(2 * 3600)).await;
    asked.borrow_and_update();
    let (vouch, clock) = watch::channel(false);
    let _shown = start(deps(dir.path(), client, clock, view, &tasks)).unwrap();
    let patience = std::time::Duration::from_secs(60);
    assert!(tokio::time::timeout(patience, asked.changed()).await.is_err(), "the clock may be wrong");
    vouch.send_replace(true);
    tokio::time::timeout(patience, asked.changed()).await.expect("it has expired indeed").unwrap();
    tasks.stop().cancel();
}
