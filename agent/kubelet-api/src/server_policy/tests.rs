//! Tables over claims, methods, paths; properties of the cache against a plain model.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::time::Mono;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};
use proptest::prelude::*;

use super::*;
use crate::server_policy::policy::AccessPolicy;

fn policy(anonymous: bool, tokens: bool) -> AccessPolicy {
    let mut kubelet = KubeletConfiguration::default();
    kubelet.authentication.anonymous.enabled = anonymous;
    kubelet.authentication.webhook.enabled = tokens;
    AccessPolicy::new(&kubelet, &FeatureGates::of(&kubelet))
}

fn alice() -> User {
    User::of_certificate("alice", &["team".to_owned()])
}

fn known() -> Verdict {
    let groups = vec!["team".to_owned(), "system:authenticated".to_owned()];
    Verdict::User(User { groups, ..alice() })
}

#[test]
fn the_defaults_are_upstreams() {
    let policy = AccessPolicy::new(&KubeletConfiguration::default(), &FeatureGates::default());
    assert!(
        policy.certificate_uids
            && !policy.anonymous
            && policy.tokens
            && policy.review_access
            && policy.needs_api_server()
    );
    assert_eq!(policy.token_ttl, Duration::from_secs(120));
    assert_eq!(policy.allowed_ttl, Duration::from_secs(300));
    assert_eq!(policy.denied_ttl, Duration::from_secs(30));
}

#[test]
fn claims_in_their_order() {
    use Begin::{AskToken, Done};
    use CertificateClaim as C;
    let nobody = || Done(Verdict::User(User::anonymous()));
    let no = || Done(Verdict::Unauthorized);
    // (certificate, token shown, anonymous allowed, tokens reviewed)
    for (certificate, token, anonymous, tokens, expected) in [
        (C::Verified(alice()), false, false, true, Done(known())),
        (C::Verified(alice()), true, true, true, Done(known())),
        (C::None, false, false, true, no()),
        (C::None, false, true, true, nobody()),
        (C::None, true, false, true, AskToken),
        (C::None, true, true, true, AskToken),
        (C::None, true, true, false, nobody()),
        (C::None, true, false, false, no()),
        (C::Refused, false, true, true, no()),
        (C::Refused, true, true, true, AskToken),
        (C::Refused, true, true, false, no()),
    ] {
        let policy = policy(anonymous, tokens);
        assert_eq!(begin(&policy, &certificate, token), expected, "{certificate:?} {token} {policy:?}");
    }
    assert_eq!(conclude(TokenAnswer::User(alice())), known());
    assert_eq!(conclude(TokenAnswer::Unknown), Verdict::Unauthorized);
    assert_eq!(conclude(TokenAnswer::Failed), Verdict::Unauthorized);
}

#[test]
fn the_anonymous_stay_unauthenticated() {
    // A certificate that names the anonymous gains nothing by it.
    let user = User::of_certificate("system:anonymous", &[]).authenticated();
    assert!(user.groups.is_empty());
    let once = alice().authenticated();
    assert_eq!(once.clone().authenticated(), once);
}

#[test]
fn subjects_of_certificates() {
    let (uid, not_text) = (Some("u1".to_owned()), None);
    // (uids, gate, the user's uid; None: no user)
    for (uids, gate, expected) in [
        (vec![], true, Some("")),
        (vec![uid.clone()], true, Some("u1")),
        (vec![uid.clone()], false, Some("")),
        (vec![uid.clone(), uid.clone()], true, None),
        (vec![uid.clone(), uid], false, Some("")),
        (vec![not_text], true, None),
        (vec![Some(String::new())], true, None),
    ] {
        let of = |name: &str| Subject {
            common_name: name.to_owned(),
            organizations: vec!["team".to_owned()],
            uids: uids.clone(),
            fingerprint: vec![0x0a, 0xff],
        };
        assert_eq!(of("").user(gate), None);
        let id =
            ("authentication.kubernetes.io/credential-id".to_owned(), vec!["X509SHA256=0aff".to_owned()]);
        let extra = BTreeMap::from([id]);
        let user = expected.map(|uid| User { uid: uid.to_owned(), extra, ..alice() });
        assert_eq!(of("alice").user(gate), user, "{uids:?} {gate}");
    }
}

#[test]
fn tokens_of_headers() {
    for (header, token) in [
        ("Bearer abc", Some("abc")),
        ("bearer abc", Some("abc")),
        ("  BEARER abc  ", Some("abc")),
        ("Bearer abc def", Some("abc")),
        ("Bearer  abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("Basic YTpi", None),
        ("", None),
    ] {
        assert_eq!(bearer_token(header), token, "{header:?}");
    }
}

#[test]
fn paths_and_their_subresources() {
    for (path, expected) in [
        ("/stats/summary", &["stats"][..]),
        ("/stats", &["stats"]),
        ("/metrics", &["metrics"]),
        ("/metrics/cadvisor", &["metrics"]),
        ("/metrics/node", &["metrics"]),
        ("/logs/", &["log"]),
        ("/checkpoint/ns/p/c", &["checkpoint"]),
        ("/statusz", &["statusz"]),
        ("/flagz", &["configz"]),
        ("/healthz", &["healthz", "proxy"]),
        ("/healthz/ping", &["healthz", "proxy"]),
        ("/pods", &["pods", "proxy"]),
        ("/pods/", &["pods", "proxy"]),
        ("/runningpods/", &["pods", "proxy"]),
        ("/configz", &["configz", "proxy"]),
        ("/containerLogs/ns/p/c", &["proxy"]),
        ("/exec/ns/p/c", &["proxy"]),
        ("/run/ns/p/c", &["proxy"]),
        ("/metricsandmore", &["proxy"]),
        ("/podsx", &["proxy"]),
        ("//metrics", &["proxy"]),
        ("/%6detrics", &["proxy"]),
        ("/Metrics", &["proxy"]),
        ("metrics", &["proxy"]),
        ("/", &["proxy"]),
        ("", &["proxy"]),
    ] {
        assert_eq!(attributes("GET", path).subresources, expected, "{path}");
    }
    for (method, verb) in [
        ("GET", "get"),
        ("POST", "create"),
        ("PUT", "update"),
        ("PATCH", "patch"),
        ("DELETE", "delete"),
        ("HEAD", ""),
        ("get", ""),
        ("CONNECT", ""),
    ] {
        assert_eq!(attributes(method, "/pods").verb, verb);
    }
}

#[test]
fn the_first_yes_wins_and_all_noes_are_needed() {
    let pods = attributes("GET", "/pods");
    assert_eq!(pods.next(0, false), AuthorizationStep::Ask("pods"));
    assert_eq!(pods.next(0, true), AuthorizationStep::Allowed);
    assert_eq!(pods.next(1, false), AuthorizationStep::Ask("proxy"));
    assert_eq!(pods.next(1, true), AuthorizationStep::Allowed);
    assert_eq!(pods.next(2, false), AuthorizationStep::Denied);
    assert_eq!(
        pods.forbidden("eve"),
        "Forbidden (user=eve, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
    );
    assert!(pods.failed("eve").starts_with("Authorization error (user=eve, verb=get"));
}

#[test]
fn reviews_say_what_upstreams_say() {
    let mut user = alice().authenticated();
    user.extra.insert("k".to_owned(), vec!["v".to_owned()]);
    let review = access_review(&user, "get", "n1", "metrics");
    let spec = serde_json::to_value(&review.spec).unwrap();
    assert_eq!(
        spec,
        serde_json::json!({
            "user": "alice", "groups": ["team", "system:authenticated"], "extra": {"k": ["v"]},
            "resourceAttributes": {
                "verb": "get", "version": "v1", "resource": "nodes", "subresource": "metrics", "name": "n1"
            },
        })
    );
    let answered = |status| {
        let mut review = review.clone();
        review.status = serde_json::from_value(status).unwrap();
        is_allowed(&review)
    };
    assert!(!is_allowed(&review), "no answer is no permission");
    assert!(answered(serde_json::json!({"allowed": true})));
    assert!(!answered(serde_json::json!({"allowed": false})));
    assert!(!answered(serde_json::json!({"allowed": true, "denied": true})));
    assert_ne!(review_key(&review), review_key(&access_review(&user, "get", "n1", "proxy")));
    let before = review_key(&review);
    user.groups.push("another".to_owned());
    assert_ne!(before, review_key(&access_review(&user, "get", "n1", "metrics")), "groups count");
}

#[test]
fn token_reviews_are_believed_only_if_they_say_so() {
    let answer = |status: serde_json::Value| {
        let mut review = token_review("t");
        review.status = serde_json::from_value(status).unwrap();
        user_of_review(&review)
    };
    let user = serde_json::json!({"username": "alice", "groups": ["team"]});
    assert_eq!(user_of_review(&token_review("t")), TokenAnswer::Unknown);
    assert_eq!(answer(serde_json::json!({"authenticated": true, "user": user})), TokenAnswer::User(alice()));
    assert_eq!(answer(serde_json::json!({"authenticated": false, "user": user})), TokenAnswer::Unknown);
    assert_eq!(answer(serde_json::json!({"authenticated": true})), TokenAnswer::Unknown);
    assert_eq!(answer(serde_json::json!({"user": user, "error": "expired"})), TokenAnswer::Unknown);
}

proptest! {
    /// Against a model that keeps everything: the cache may forget, and never says anything else.
    #[test]
    fn the_cache_never_outlives_an_answer(
        steps in proptest::collection::vec((0_u8..6, any::<bool>(), 0_u64..20, 0_u64..30), 1..80),
        max in 0_usize..5,
    ) {
        let mut cache = ReviewCache::new(max);
        let mut model: BTreeMap<u8, (u64, u64)> = BTreeMap::new();
        let mut now = 0;
        for (n, (key, keep, passes, ttl)) in (0_u64..).zip(steps) {
            now += passes;
            if keep {
                cache.keep(key, n, Mono(now), Duration::from_nanos(ttl));
                model.insert(key, (now + ttl, n));
                let held = (ttl > 0 && max > 0).then_some(n);
                prop_assert_eq!(cache.get(&key, Mono(now)), held);
            }
            let truth = model.get(&key).filter(|(end, _)| now < *end).map(|(_, n)| *n);
            let said = cache.get(&key, Mono(now));
            prop_assert!(said.is_none() || said == truth, "{:?} instead of {:?}", said, truth);
            prop_assert!(cache.len() <= max);
        }
    }

    /// Every path needs a permission, and `proxy` unless the path is exactly known.
    #[test]
    fn every_path_has_attributes(method in "[A-Z]{0,7}", path in "(/[a-zA-Z%.0-9]{0,12}){0,4}/?") {
        let found = attributes(&method, &path);
        prop_assert!(!found.subresources.is_empty());
        let first = path.split('/').nth(1).unwrap_or_default();
        let known = ["stats", "metrics", "logs", "checkpoint", "statusz", "flagz"].contains(&first);
        prop_assert_eq!(found.subresources.contains(&"proxy"), !known);
    }
}
