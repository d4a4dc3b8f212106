//! The node's identity against a fake API server over TLS, with real files: problems are reported, the same process
//! reads repaired files, and writes lost files again.

// A test's helpers fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_apiserver::kubeconfig::{self, OwnKubeconfig};
use agent_apiserver::testing::{FakeServer, Fault, TestPki, Validity};
use agent_apiserver::{ApiClient, Options};
use agent_linux::clock::LinuxClock;
use agent_sim::fake_api::{Resource, Selector};
use agent_types::certificates::{CertConfig, CertKind};
use agent_types::time::Wall;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use orlop_agent::cluster::identity;
use orlop_agent::node::cluster_problems::{ClusterProblems, Part};
use orlop_agent::serving::metrics::Metrics;
use orlop_agent::settings::ClusterSettings;
use orlop_agent::tasks::actor::Tasks;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "abcdef.0123456789abcdef";
/// Events that have not happened after this time do not happen.
const LIMIT: Duration = Duration::from_secs(60);

struct IdentityFixture {
    dir: tempfile::TempDir,
    fake: FakeServer,
    settings: ClusterSettings,
}

struct Agent {
    tasks: Tasks,
    cluster_problems: ClusterProblems,
    client: watch::Receiver<Option<Arc<ApiClient>>>,
}

impl IdentityFixture {
    async fn new() -> IdentityFixture {
        let dir = tempfile::tempdir().unwrap();
        let fake = FakeServer::start(Arc::new(TestPki::new())).await.unwrap();
        let path = |name: &str| dir.path().join(name);
        let settings = ClusterSettings {
            kubeconfig: path("kubeconfig"),
            bootstrap_kubeconfig: None,
            join: Some(path("join.yaml")),
            cert_dir: path("pki"),
        };
        IdentityFixture { dir, fake, settings }
    }

    fn tell(&self, token: Option<&str>, ca_pem: &str) {
        let token = token.map(|t| format!("token: {t}\n")).unwrap_or_default();
        let text = format!("server: {}\ncaData: {}\n{token}", self.fake.server(), STANDARD.encode(ca_pem));
        std::fs::write(self.settings.join.as_ref().unwrap(), text).unwrap();
    }

    /// A key pair that an earlier run left, without its kubeconfig.
    fn own_pair(&self, validity: Validity) {
        let pki = &self.settings.cert_dir;
        std::fs::create_dir_all(pki).unwrap();
        let pair = pki.join("kubelet-client-2026-11-21-12-00-00.pem");
        std::fs::write(&pair, self.fake.pki.client_pem("system:node:n", "system:nodes", validity)).unwrap();
        std::os::unix::fs::symlink(pair, self.current()).unwrap();
    }

    fn current(&self) -> PathBuf {
        self.settings.cert_dir.join("kubelet-client-current.pem")
    }

    fn agent(&self) -> Agent {
        let tasks = Tasks::new(Arc::new(LinuxClock), CancellationToken::new());
        let (view, client) = watch::channel(None);
        let (cluster_problems, options) = (ClusterProblems::default(), Options::new("test"));
        let config = CertConfig {
            kind: CertKind::Client,
            node_name: "n".into(),
            rotate: true,
            clock_floor: Wall(0),
            seed: 1,
        };
        let metrics = Metrics::new(Arc::new(LinuxClock));
        identity::start(identity::Deps {
            settings: self.settings.clone(),
            options,
            config,
            client: view,
            clock: watch::channel(true).1,
            cluster_problems: cluster_problems.clone(),
            tasks: tasks.clone(),
            metrics,
        })
        .unwrap();
        Agent { tasks, cluster_problems, client }
    }

    /// Signs requests like the cluster's signer, until it is dropped.
    async fn sign(&self) {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        loop {
            look.tick().await;
            self.fake.with_api(|api, now| {
                let (requests, _) = api.list(Resource::Csrs, &Selector::default());
                for request in requests.iter().filter(|r| r.pointer("/status/certificate").is_none()) {
                    let pem = STANDARD.decode(request["spec"]["request"].as_str().unwrap()).unwrap();
                    let pem = self.fake.pki.sign(std::str::from_utf8(&pem).unwrap(), Validity::default());
                    let name = request["metadata"]["name"].as_str().unwrap();
                    api.answer_csr(now, name, Ok(pem.as_bytes())).unwrap();
                }
            });
        }
    }
}

impl Agent {
    async fn says(&self, words: &str) {
        let mut problems = self.cluster_problems.subscribe();
        let said = problems.wait_for(|all| all.values().any(|p| p.contains(words)));
        if tokio::time::timeout(LIMIT, said).await.is_err() {
            panic!("not {words:?}, but {:?}", self.cluster_problems.problem());
        }
    }

    /// There is a client, and no problem is shown.
    async fn has_joined(&self, place: &IdentityFixture) -> Arc<ApiClient> {
        let mut client = self.client.clone();
        let joined = async {
            let client = client.wait_for(Option::is_some).await.unwrap().clone().unwrap();
            let _ = self.cluster_problems.subscribe().wait_for(|all| all.is_empty()).await.unwrap();
            client
        };
        tokio::select! {
            client = tokio::time::timeout(LIMIT, joined) => {
                client.unwrap_or_else(|_| panic!("not joined: {:?}", self.cluster_problems.problem()))
            }
            () = place.sign() => unreachable!(),
        }
    }
}

#[tokio::test]
async fn what_was_mended_on_disk_is_taken_without_a_restart() {
    let place = IdentityFixture::new().await;
    let agent = place.agent();
    agent.says("join.yaml cannot be read").await;
    place.tell(None, &place.fake.pki.ca_pem);
    agent.says("kubeadm token create").await;
    place.tell(Some(TOKEN), &TestPki::new().ca_pem);
    agent.says("does not trust").await;
    place.tell(Some(TOKEN), &place.fake.pki.ca_pem);
    agent.has_joined(&place).await;
    let seen = place.fake.seen();
    assert!(seen.iter().all(|s| s.who == "system:bootstrap:abcdef"), "{seen:?}");
    assert!(std::fs::read_link(place.current()).is_ok());
    agent.tasks.stop().cancel();
}

#[tokio::test]
async fn a_lost_kubeconfig_is_written_anew_for_a_certificate_that_is_good() {
    let place = IdentityFixture::new().await;
    place.own_pair(Validity(-10, 3600));
    let agent = place.agent();
    agent.says("kubeconfig").await;
    // No token: the agent dropped it after the first boot, as it should.
    place.tell(None, &place.fake.pki.ca_pem);
    agent.has_joined(&place).await;
    assert!(place.settings.kubeconfig.exists());
    assert!(place.fake.seen().is_empty(), "nothing has to be asked: {:?}", place.fake.seen());
    agent.tasks.stop().cancel();
}

#[tokio::test]
async fn an_expired_certificate_is_replaced_with_a_token_and_not_shown_to_anybody() {
    let place = IdentityFixture::new().await;
    place.own_pair(Validity(-3600, -10));
    place.tell(Some(TOKEN), &place.fake.pki.ca_pem);
    let agent = place.agent();
    agent.has_joined(&place).await;
    let seen = place.fake.seen();
    assert!(seen.iter().all(|s| s.who == "system:bootstrap:abcdef"), "{seen:?}");
    agent.tasks.stop().cancel();
}

#[tokio::test]
async fn one_refusal_does_not_lead_back_to_where_the_node_once_came_from() {
    let place = IdentityFixture::new().await;
    // The cluster's address changed long ago: the first boot's configuration is out of date. The certificate is due for
    // renewal.
    place.own_pair(Validity(-3600, 60));
    let own = OwnKubeconfig {
        server: place.fake.server(),
        ca_pem: place.fake.pki.ca_pem.clone().into_bytes(),
        client_pem: place.current(),
    };
    kubeconfig::write(&place.settings.kubeconfig, &own).unwrap();
    let told = format!(
        "server: https://127.0.0.1:1\ncaData: {}\ntoken: {TOKEN}\n",
        STANDARD.encode(&TestPki::new().ca_pem)
    );
    std::fs::write(place.settings.join.as_ref().unwrap(), told).unwrap();
    place.fake.fail("certificatesigningrequests", Fault::Refuse(401, "Unauthorized", None));
    let before = std::fs::read_link(place.current()).unwrap();
    let agent = place.agent();
    agent.says("127.0.0.1:1").await;
    agent.has_joined(&place).await;
    assert_ne!(std::fs::read_link(place.current()).unwrap(), before, "renewed");
    assert_eq!(std::fs::read_to_string(&place.settings.kubeconfig).unwrap(), own.render());
    agent.tasks.stop().cancel();
}

#[tokio::test]
async fn an_identity_of_somebody_elses_making_is_waited_for() {
    let place = IdentityFixture::new().await;
    let pair = place.dir.path().join("theirs.pem");
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster:\n    server: {}\n    \
         certificate-authority-data: {}\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\nusers:\n- name: u\n  \
         user: {{client-certificate: {pair}, client-key: {pair}}}\n",
        place.fake.server(),
        STANDARD.encode(&place.fake.pki.ca_pem),
        pair = pair.display()
    );
    std::fs::write(&place.settings.kubeconfig, &kubeconfig).unwrap();
    let agent = place.agent();
    agent.says("theirs.pem").await;
    std::fs::write(&pair, place.fake.pki.client_pem("system:node:n", "system:nodes", Validity::default()))
        .unwrap();
    agent.has_joined(&place).await;
    assert_eq!(
        std::fs::read_to_string(&place.settings.kubeconfig).unwrap(),
        kubeconfig,
        "it is not ours to write"
    );
    assert_eq!(agent.cluster_problems.subscribe().borrow().get(&Part::Kubeconfig), None);
    agent.tasks.stop().cancel();
}
