//! Tests of discovery against a fake server in memory: every way to be wrong says what is wrong.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::testing::{FakeServer, Fault, TestPki, Validity};

const TOKEN: &str = "abcdef.fedcba9876543210";

fn join(hashes: &[String]) -> Join {
    Join {
        server: "https://localhost:6443".to_owned(),
        token: Secret::new(TOKEN),
        ca_pem: None,
        ca_cert_hashes: hashes.to_vec(),
    }
}

fn published() -> FakeServer {
    let fake = FakeServer::in_memory(Arc::new(TestPki::new()));
    fake.publish_cluster_info(&fake.pki.ca_pem, &[TOKEN, "zzzzzz.fedcba9876543210"]);
    fake
}

async fn discovered(fake: &FakeServer, join: &Join) -> Result<Discovered, String> {
    discover_over(join, &Options::new("test"), fake.dialer()).await.map_err(|error| {
        let text = error.to_string();
        assert!(!text.contains("fedcba9876543210"), "the token is not printed: {text}");
        assert!(!format!("{error:?}").contains("fedcba9876543210"));
        text
    })
}

#[tokio::test(start_paused = true)]
async fn a_hash_leads_to_a_cluster() {
    let fake = published();
    let found = discovered(&fake, &join(&[fake.pki.pin()])).await.unwrap();
    assert_eq!(found.ca_pem, fake.pki.ca_pem.as_bytes());
    assert_eq!(found.advertised, Some(fake.server()));
    assert_eq!(found.bootstrap.trust, fake.pki.trust());
    assert_eq!(found.bootstrap.credentials, Credentials::Token(Secret::new(TOKEN)));
    let seen = fake.seen();
    assert_eq!(seen.len(), 2, "once unverified, once verified");
    assert!(seen.iter().all(|s| s.who == "system:anonymous" && s.user_agent == "orlop/test"), "{seen:?}");
    // The credentials work.
    let client = fake.client_with(found.bootstrap);
    assert_eq!(client.get_raw("/api/v1/nodes/n").await.unwrap().0, StatusCode::FORBIDDEN);
}

#[tokio::test(start_paused = true)]
async fn ca_data_needs_no_look_and_may_be_pinned() {
    let fake = published();
    let with_ca =
        |hashes: &[String]| Join { ca_pem: Some(fake.pki.ca_pem.clone().into_bytes()), ..join(hashes) };
    discovered(&fake, &with_ca(&[])).await.unwrap();
    discovered(&fake, &with_ca(&[fake.pki.pin()])).await.unwrap();
    assert!(fake.seen().is_empty());
    let error = discovered(&fake, &with_ca(&[TestPki::new().pin()])).await.unwrap_err();
    assert!(error.contains(&fake.pki.pin()), "{error}");
    let rubbish = Join { ca_pem: Some(b"rubbish".to_vec()), ..join(&[]) };
    assert!(discovered(&fake, &rubbish).await.unwrap_err().contains("holds no PEM certificate"));
}

#[tokio::test(start_paused = true)]
async fn each_mistake_is_told_apart() {
    let fake = published();
    let pin = fake.pki.pin();
    let table = [
        (
            Join { server: "http://x".to_owned(), ..join(std::slice::from_ref(&pin)) },
            "must begin with https://",
        ),
        (join(&[]), "neither caData nor caCertHashes"),
        (join(&["sha256:12".to_owned()]), "must be sha256: and 64 hex digits"),
        (Join { token: Secret::new("short"), ..join(std::slice::from_ref(&pin)) }, "must have the form"),
        (
            Join { token: Secret::new("abcdeg.fedcba9876543210"), ..join(std::slice::from_ref(&pin)) },
            "not signed for token id \"abcdeg\"",
        ),
        (
            Join { token: Secret::new("abcdef.fedcba987654321x"), ..join(std::slice::from_ref(&pin)) },
            "secret half is wrong",
        ),
        (join(&[TestPki::new().pin()]), pin.as_str()),
    ];
    for (join, expected) in table {
        let error = discovered(&fake, &join).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let good = join(&[pin]);
    let contents = fake.cluster_info().unwrap();
    let mut tampered = contents.clone();
    let text = tampered["data"]["kubeconfig"].as_str().unwrap().replace("6443", "6444");
    tampered["data"]["kubeconfig"] = json!(text);
    for (config_map, expected) in [
        (Some(tampered), "was tampered with"),
        (None, "has no ConfigMap kube-public/cluster-info"),
        (Some(json!({ "data": null })), "has no key \"kubeconfig\""),
        (Some(json!("text")), "is no ConfigMap"),
    ] {
        fake.set_cluster_info(config_map);
        let error = discovered(&fake, &good).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    fake.set_cluster_info(Some(contents));
    for (fault, expected) in [
        (Fault::Refuse(403, "Forbidden", None), "does not show cluster-info"),
        (Fault::Refuse(500, "InternalError", None), "HTTP 500"),
        (Fault::Silence, "no connection within 10 s"),
        (Fault::Endless(200, false), "longer than"),
    ] {
        fake.fail("cluster-info", fault);
        let error = discovered(&fake, &good).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    discovered(&fake, &good).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn certificates_that_do_not_fit_are_told_apart() {
    let fake = published();
    let good = join(&[fake.pki.pin()]);
    for (tls, expected) in [
        (TestPki::new().server_config(&["localhost"], Validity::default()), "something between this node"),
        (fake.pki.server_config(&["other"], Validity::default()), "is not for \"localhost\""),
        (fake.pki.server_config(&["localhost"], Validity(3600, 7200)), "is this node's clock right?"),
        (fake.pki.server_config(&["localhost"], Validity(-7200, -3600)), "has expired"),
    ] {
        fake.set_tls(tls);
        let error = discovered(&fake, &good).await.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    // Another cluster's server, with its own cluster-info: the hash does not fit.
    let other = published();
    assert!(discovered(&other, &good).await.unwrap_err().contains(&other.pki.pin()));
}

#[tokio::test(start_paused = true)]
async fn an_authority_is_found_whatever_the_dates_of_the_server_are() {
    let fake = published();
    fake.set_tls(fake.pki.server_config(&["localhost"], Validity(86_400, 2 * 86_400)));
    let pinned = join(&[fake.pki.pin()]);
    let error = discovered(&fake, &pinned).await.unwrap_err();
    assert!(error.contains("not valid yet"), "{error}");
    let options = Options::new("test");
    let (server, trust) = authority_over(&pinned, &options, fake.dialer()).await.unwrap();
    assert_eq!((server, trust), (fake.server(), fake.pki.trust()));
    let other = join(&[TestPki::new().pin()]);
    let error = authority_over(&other, &options, fake.dialer()).await.unwrap_err().to_string();
    assert!(error.contains(&fake.pki.pin()), "{error}");
    assert!(authority_over(&join(&[]), &options, fake.dialer()).await.is_err());
}
