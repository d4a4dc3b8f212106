//! The guard against a fake API server: every kind of claim, what is asked and remembered, and an API server that is
//! away.

use std::sync::Mutex;
use std::time::Duration;

use agent_apiserver::testing::{CertificateDefect, OddCertificate};
use agent_sim::fake_api::{FakeApi, Requester};
use agent_types::api::{ApiError, ApiResult};
use agent_types::failure::Class;
use agent_types::time::{Mono, Wall};
use hyper::Request;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

mod flood;

use super::*;

/// An API server that can be away.
struct TestApi {
    api: Mutex<FakeApi>,
    up: Mutex<bool>,
}

impl ApiServer for TestApi {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        if !*self.up.lock().unwrap() {
            return Err(ApiError::without_status(call, Class::Unavailable, "connection refused"));
        }
        self.api.lock().unwrap().call(Wall(0), &Requester::Node("n1".to_owned()), call)
    }
}

/// A cluster's authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    fn chain(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Vec<CertificateDer<'static>> {
        self.chain_of(name, &[], usage)
    }

    fn chain_of(
        &self,
        name: &str,
        others: &[(DnType, &str)],
        usage: ExtendedKeyUsagePurpose,
    ) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, "team");
        params.distinguished_name.push(DnType::CommonName, name);
        for (kind, value) in others {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2027, 1, 1);
        let key = KeyPair::generate().unwrap();
        vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()]
    }
}

struct World {
    guard: Guard<TestApi>,
    api: Arc<TestApi>,
    authority: Authority,
    now: Arc<Mutex<Now>>,
    client: watch::Sender<Option<Arc<TestApi>>>,
    authorities: watch::Sender<Option<ClientAuthorities>>,
}

fn authorities(pem: &str) -> ClientAuthorities {
    ClientAuthorities::from_pem(pem.as_bytes(), agent_apiserver::provider()).unwrap()
}

/// 2026-11-21T12:00:00Z.
const TODAY: Wall = Wall(1_795_262_400_000_000_000);

fn world(change: impl FnOnce(&mut KubeletConfiguration)) -> World {
    let mut kubelet = KubeletConfiguration::default();
    change(&mut kubelet);
    let api = Arc::new(TestApi { api: Mutex::default(), up: Mutex::new(true) });
    {
        let mut api = api.api.lock().unwrap();
        api.reviews.tokens.insert("good".to_owned(), ("robot".to_owned(), vec!["bots".to_owned()]));
        for (who, verb, subresource) in [
            ("alice", "get", "metrics"),
            ("alice", "get", "pods"),
            ("bots", "get", "proxy"),
            ("system:unauthenticated", "get", "healthz"),
        ] {
            api.reviews.grants.insert((who.to_owned(), verb.to_owned(), subresource.to_owned()));
        }
    }
    let authority = Authority::new();
    let now = Arc::new(Mutex::new(Now { mono: Mono(0), wall: TODAY }));
    let (client, clients) = watch::channel(Some(api.clone()));
    let trusted = authorities(&authority.pem);
    let (authorities, view) = watch::channel(Some(trusted));
    let clock = now.clone();
    let clock: Clock = Arc::new(move || *clock.lock().unwrap());
    let guard =
        Guard::new(AccessPolicy::new(&kubelet, &FeatureGates::of(&kubelet)), "n1", clients, view, clock);
    World { guard, api, authority, now, client, authorities }
}

impl World {
    async fn ask(
        &self,
        chain: &[CertificateDer<'_>],
        token: Option<&str>,
        method: &str,
        path: &str,
    ) -> Result<String, Refusal> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        self.guard.admit(chain, &parts).await.map(|user| user.name)
    }

    fn asked(&self) -> u64 {
        self.api.api.lock().unwrap().reviews.asked
    }

    fn pass(&self, seconds: u64) {
        let mut now = self.now.lock().unwrap();
        now.mono = now.mono.after(Duration::from_secs(seconds));
    }

    fn set_up(&self, up: bool) {
        *self.api.up.lock().unwrap() = up;
    }
}

fn code(result: &Result<String, Refusal>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(refusal) => refusal.clone().response().status().as_u16(),
    }
}

#[tokio::test]
async fn claims_paths_and_verbs() {
    let world = world(|_| {});
    let client = ExtendedKeyUsagePurpose::ClientAuth;
    let alice = world.authority.chain("alice", client.clone());
    let stranger = Authority::new().chain("alice", client);
    let server = world.authority.chain("alice", ExtendedKeyUsagePurpose::ServerAuth);
    for (chain, token, method, path, expected) in [
        (&alice[..], None, "GET", "/metrics", 200),
        (&alice, None, "GET", "/metrics/cadvisor", 200),
        (&alice, None, "GET", "/pods", 200),
        (&alice, None, "POST", "/metrics", 403),
        (&alice, None, "GET", "/configz", 403),
        (&alice, None, "GET", "/containerLogs/a/b/c", 403),
        (&alice, None, "HEAD", "/metrics", 403),
        (&alice, Some("bad"), "GET", "/metrics", 200),
        (&stranger, None, "GET", "/metrics", 401),
        (&server, None, "GET", "/metrics", 401),
        (&stranger, Some("good"), "GET", "/metrics", 403),
        (&[], Some("good"), "GET", "/pods", 200),
        (&[], Some("good"), "GET", "/containerLogs/a/b/c", 200),
        (&[], Some("good"), "POST", "/exec/a/b/c", 403),
        (&[], Some("bad"), "GET", "/healthz", 401),
        (&[], None, "GET", "/healthz", 401),
    ] {
        let answer = world.ask(chain, token, method, path).await;
        assert_eq!(code(&answer), expected, "{token:?} {method} {path}: {answer:?}");
    }
    let refused = world.ask(&alice, None, "GET", "/configz").await.unwrap_err();
    assert_eq!(
        refused,
        Refusal::Forbidden(
            "Forbidden (user=alice, verb=get, resource=nodes, subresource(s)=[configz proxy])\n".to_owned()
        )
    );
}

#[tokio::test]
async fn certificates_tell_uids_and_the_api_server_hears_them() {
    let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
    let with = |value| [(uid.clone(), value)];
    for (gate, value, expected) in [(true, "u1", Some("u1")), (true, "", None), (false, "", Some(""))] {
        let world = world(|k| {
            k.feature_gates.insert("AllowParsingUserUIDFromCertAuth".to_owned(), gate);
        });
        let chain = world.authority.chain_of("alice", &with(value), ExtendedKeyUsagePurpose::ClientAuth);
        let (parts, ()) = Request::get("/metrics").body(()).unwrap().into_parts();
        let user = world.guard.admit(&chain, &parts).await.ok();
        assert_eq!(user.as_ref().map(|user| user.uid.as_str()), expected, "{gate} {value}: {user:?}");
        let credential = user.map(|user| user.extra["authentication.kubernetes.io/credential-id"][0].len());
        assert_eq!(credential, expected.map(|_| "X509SHA256=".len() + 64));
    }
}

/// An authority of this name with a key on P-256, and what it may, in its own words.
fn authority_of_old(name: &str, change: impl FnOnce(&mut CertificateParams)) -> (KeyPair, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    let pem = params.self_signed(&key).unwrap().pem();
    (key, pem)
}

#[tokio::test]
async fn a_certificate_of_version_1_names_a_user_if_a_client_ca_signed_it() {
    let world = world(|_| {});
    let (key, pem) = authority_of_old("ca", |_| {});
    let named =
        |issuer: (&str, &KeyPair)| [OddCertificate::issued(CertificateDefect::Version1, "alice", issuer).der];
    let alice = named(("ca", &key));
    let code_of = async |chain: &[CertificateDer<'_>]| code(&world.ask(chain, None, "GET", "/metrics").await);
    assert_eq!(code_of(&alice).await, 401, "another cluster's");
    world.authorities.send_replace(Some(authorities(&pem)));
    assert_eq!(world.ask(&alice, None, "GET", "/metrics").await.unwrap(), "alice");
    assert!(world.guard.knows(&alice));
    // Signed by another key of that name; by the right key in another name; by itself; a byte of it is another one.
    let mut broken = alice[0].to_vec();
    let last = broken.len() - 1;
    broken[last] ^= 1;
    for chain in [
        named(("ca", &KeyPair::generate().unwrap())),
        named(("other", &key)),
        [OddCertificate::new(CertificateDefect::Version1, "alice").der],
        [CertificateDer::from(broken)],
    ] {
        assert_eq!(code_of(&chain).await, 401);
        assert_eq!(
            world.ask(&chain, Some("good"), "GET", "/pods").await.unwrap(),
            "robot",
            "the token counts"
        );
        assert!(!world.guard.knows(&chain));
    }
    // It is valid from 2020 to 2099.
    let year = 366 * 24 * 3600 * 1_000_000_000;
    for (years, expected) in [(-7, 401), (71, 200), (73, 401)] {
        world.now.lock().unwrap().wall = Wall(TODAY.0 + years * year);
        assert_eq!(code_of(&alice).await, expected, "{years} years");
    }
}

#[tokio::test]
async fn an_authority_that_may_not_sign_for_clients_names_no_user_by_version_1() {
    type Change = fn(&mut CertificateParams);
    let cases: [(Change, u16); 6] = [
        (|p| p.is_ca = IsCa::ExplicitNoCa, 401),
        (|p| p.is_ca = IsCa::NoCa, 401),
        (|p| p.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature], 401),
        (|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth], 401),
        (|p| p.not_after = rcgen::date_time_ymd(2026, 1, 1), 401),
        (
            |p| {
                p.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
                p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            },
            200,
        ),
    ];
    for (n, (change, expected)) in cases.into_iter().enumerate() {
        let world = world(|_| {});
        let (key, pem) = authority_of_old("ca", change);
        world.authorities.send_replace(Some(authorities(&pem)));
        let alice = [OddCertificate::issued(CertificateDefect::Version1, "alice", ("ca", &key)).der];
        assert_eq!(code(&world.ask(&alice, None, "GET", "/metrics").await), expected, "case {n}");
    }
    // A certificate of version 1 may be the authority itself, as in Go.
    let world = world(|_| {});
    let own = OddCertificate::new(CertificateDefect::Version1, "alice");
    world.authorities.send_replace(Some(authorities(&own.pem())));
    assert_eq!(world.ask(&[own.der], None, "GET", "/metrics").await.unwrap(), "alice");
}

#[tokio::test]
async fn a_certificate_with_a_key_on_p_521_names_a_user() {
    let world = world(|_| {});
    let (own, other) = (
        OddCertificate::new(CertificateDefect::P521, "alice"),
        OddCertificate::new(CertificateDefect::P521, "alice"),
    );
    world.authorities.send_replace(Some(authorities(&own.pem())));
    assert_eq!(world.ask(&[own.der], None, "GET", "/metrics").await.unwrap(), "alice");
    assert_eq!(code(&world.ask(&[other.der], None, "GET", "/metrics").await), 401);
}

#[tokio::test]
async fn certificates_end_and_authorities_change() {
    let world = world(|_| {});
    let alice = world.authority.chain("alice", ExtendedKeyUsagePurpose::ClientAuth);
    let day = 24 * 3600 * 1_000_000_000;
    for (days, expected) in [(0, 200), (60, 401), (-400, 401)] {
        world.now.lock().unwrap().wall = Wall(TODAY.0 + days * day);
        assert_eq!(code(&world.ask(&alice, None, "GET", "/metrics").await), expected, "{days} days");
    }
    world.now.lock().unwrap().wall = TODAY;
    let other = authorities(&Authority::new().pem);
    world.authorities.send_replace(Some(other));
    assert_eq!(code(&world.ask(&alice, None, "GET", "/metrics").await), 401, "at once");
    world.authorities.send_replace(None);
    assert_eq!(code(&world.ask(&alice, None, "GET", "/metrics").await), 401, "certificates say nothing");
}

#[tokio::test]
async fn the_anonymous_may_what_they_are_granted() {
    let world = world(|k| k.authentication.anonymous.enabled = true);
    assert_eq!(world.ask(&[], None, "GET", "/healthz").await.unwrap(), "system:anonymous");
    assert_eq!(code(&world.ask(&[], None, "GET", "/pods").await), 403);
    assert_eq!(code(&world.ask(&[], Some("bad"), "GET", "/healthz").await), 401, "not anonymous");
}

#[tokio::test]
async fn always_allow_asks_nobody() {
    let world =
        world(|k| k.authorization.mode = orlop_config::kubelet::enums::AuthorizationMode::AlwaysAllow);
    assert_eq!(world.ask(&[], Some("good"), "POST", "/exec/a/b/c").await.unwrap(), "robot");
    assert_eq!(world.asked(), 1, "the token only");
    assert_eq!(code(&world.ask(&[], None, "GET", "/healthz").await), 401);
}

#[tokio::test]
async fn answers_are_remembered_for_their_time() {
    let world = world(|_| {});
    for _ in 0..3 {
        assert_eq!(code(&world.ask(&[], Some("good"), "GET", "/pods").await), 200);
    }
    // The token, pods denied, proxy allowed.
    assert_eq!(world.asked(), 3);
    world.pass(31);
    assert_eq!(code(&world.ask(&[], Some("good"), "GET", "/pods").await), 200);
    assert_eq!(world.asked(), 4, "the no has ended");
    world.pass(91);
    assert_eq!(code(&world.ask(&[], Some("good"), "GET", "/pods").await), 200);
    assert_eq!(world.asked(), 6, "the token has ended, and the no again");
    world.api.api.lock().unwrap().reviews.tokens.clear();
    world.pass(121);
    assert_eq!(code(&world.ask(&[], Some("good"), "GET", "/pods").await), 401);
    assert_eq!(code(&world.ask(&[], Some("good"), "GET", "/pods").await), 401);
    assert_eq!(world.asked(), 7, "a bad token is remembered as well");
}

#[tokio::test]
async fn without_the_api_server_only_what_is_remembered_counts() {
    let world = world(|_| {});
    let alice = world.authority.chain("alice", ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(code(&world.ask(&alice, None, "GET", "/metrics").await), 200);
    assert_eq!(code(&world.ask(&[], Some("good"), "GET", "/pods").await), 200);
    world.set_up(false);
    assert_eq!(code(&world.ask(&alice, None, "GET", "/metrics").await), 200);
    assert_eq!(code(&world.ask(&[], Some("good"), "GET", "/pods").await), 200);
    assert_eq!(code(&world.ask(&alice, None, "GET", "/configz").await), 500);
    assert_eq!(code(&world.ask(&[], Some("other"), "GET", "/pods").await), 401);
    world.pass(301);
    assert_eq!(code(&world.ask(&alice, None, "GET", "/metrics").await), 500);
    assert_eq!(code(&world.ask(&[], Some("good"), "GET", "/pods").await), 401);
    world.set_up(true);
    assert_eq!(
        code(&world.ask(&[], Some("other"), "GET", "/pods").await),
        401,
        "a failure is not remembered"
    );
    assert_eq!(code(&world.ask(&alice, None, "GET", "/metrics").await), 200);
    world.client.send_replace(None);
    world.pass(301);
    assert_eq!(code(&world.ask(&alice, None, "GET", "/metrics").await), 500, "no identity, no answer");
}
