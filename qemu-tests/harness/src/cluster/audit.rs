//! The API server's audit log: requests with their users and answers. Pure except for reading the file.
//!
//! In: JSON lines at level Metadata. Out: requests of nodes, forbidden ones, counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// User name.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, …
    pub verb: String,
    /// Path with query.
    pub uri: String,
    /// Resource with its subresource (`pods/status`); empty for paths that are none.
    pub resource: String,
    /// HTTP status.
    pub code: u16,
    /// The client's name for itself.
    pub user_agent: String,
    /// The client's address.
    pub source: String,
    /// When it was answered, RFC 3339.
    pub at: String,
}

/// Reads a log as far as its lines are whole.
///
/// # Errors
/// If it cannot be read, or a line is no audit event.
pub fn read(log: &Path) -> Result<Vec<Request>> {
    parse(&fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?)
}

/// The requests of an audit log's text.
///
/// # Errors
/// If a whole line is no audit event.
pub fn parse(text: &str) -> Result<Vec<Request>> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(parse_line).collect()
}

fn parse_line(line: &str) -> Result<Request> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Event {
        #[serde(rename = "requestURI")]
        request_uri: String,
        verb: String,
        user: User,
        #[serde(default)]
        user_agent: String,
        object_ref: Option<ObjectRef>,
        response_status: Option<Status>,
        stage_timestamp: String,
        #[serde(default, rename = "sourceIPs")]
        source_ips: Vec<String>,
    }
    #[derive(Deserialize)]
    struct User {
        #[serde(default)]
        username: String,
    }
    #[derive(Deserialize)]
    struct ObjectRef {
        #[serde(default)]
        resource: String,
        subresource: Option<String>,
    }
    #[derive(Deserialize)]
    struct Status {
        code: Option<u16>,
    }
    let event: Event = serde_json::from_str(line).with_context(|| format!("audit event {line}"))?;
    let resource = event.object_ref.map_or_else(String::new, |o| match o.subresource {
        Some(sub) => format!("{}/{sub}", o.resource),
        None => o.resource,
    });
    Ok(Request {
        user: event.user.username,
        verb: event.verb,
        uri: event.request_uri,
        resource,
        code: event.response_status.and_then(|s| s.code).unwrap_or(0),
        user_agent: event.user_agent,
        source: event.source_ips.into_iter().next().unwrap_or_default(),
        at: event.stage_timestamp,
    })
}

/// True for a node's own credentials and for a bootstrap token's.
#[must_use]
pub fn is_of_node(request: &Request) -> bool {
    request.user.starts_with("system:node:") || request.user.starts_with("system:bootstrap:")
}

/// Requests of nodes that were refused for want of permission.
#[must_use]
pub fn forbidden(requests: &[Request]) -> Vec<&Request> {
    requests.iter().filter(|r| is_forbidden(r)).collect()
}

/// True if a node was refused it for want of permission.
#[must_use]
pub fn is_forbidden(request: &Request) -> bool {
    is_of_node(request) && request.code == 403
}

/// How long the node authorizer may not know a pod yet that its node knows.
const EARLY: Duration = Duration::from_secs(5);
/// A client that repeats a request within this time has not handled the refusal.
const REPEATED: Duration = Duration::from_secs(20);

/// True if the node was refused only because the authorizer learned of its pod a moment after the node did: the request
/// concerns objects of pods, and the refusals did not last longer. (The log has watches when they end, so it does not
/// show when a watch was granted.) Upstream's kubelet meets the same refusals.
#[must_use]
pub fn was_early(all: &[Request], at: usize) -> bool {
    let of_pods = [
        "configmaps",
        "secrets",
        "serviceaccounts",
        "serviceaccounts/token",
        "persistentvolumeclaims",
        "persistentvolumes",
    ];
    let object = |r: &Request| {
        let (path, query) = r.uri.split_once('?').unwrap_or((&r.uri, ""));
        let field = query.split('&').find(|part| part.starts_with("fieldSelector="));
        (r.user.clone(), r.resource.clone(), path.to_owned(), field.map(str::to_owned))
    };
    let when = |r: &Request| r.at.parse::<Timestamp>().unwrap_or_default();
    let Some(refused) = all.get(at).filter(|r| of_pods.contains(&r.resource.as_str())) else { return false };
    let same = |r: &&Request| is_forbidden(r) && object(r) == object(refused);
    let mut times: Vec<Timestamp> = all.iter().filter(same).map(when).collect();
    times.sort();
    // Each new pod may be early again; refusals without a pause between them belong to one pod.
    let near = |a: &Timestamp, b: &Timestamp| b.duration_since(*a).unsigned_abs() <= EARLY;
    let mut one = times.chunk_by(near).filter(|times| times.contains(&when(refused)));
    one.next().is_some_and(|times| near(&times[0], &times[times.len() - 1]))
}

/// True if the node was refused only because it wrote the status of a pod a moment after another client had deleted the
/// pod, or after another node had got the next pod of that name, as with a StatefulSet. Upstream's kubelet meets the
/// same refusals.
#[must_use]
pub fn was_late(all: &[Request], at: usize) -> bool {
    let when = |r: &Request| r.at.parse::<Timestamp>().unwrap_or_default();
    let Some(refused) = all.get(at).filter(|r| r.resource == "pods/status" && r.code == 403) else {
        return false;
    };
    let path = |r: &Request| {
        r.uri.split('?').next().unwrap_or_default().rsplit_once('/').map(|(pod, _)| pod.to_owned())
    };
    let pod = |r: &Request| r.uri.split('?').next().map(str::to_owned);
    let given = |r: &Request| {
        let since = when(refused).duration_since(when(r));
        let bound = r.resource == "pods/binding" && r.code == 201 && path(r) == path(refused);
        let deleted = r.resource == "pods"
            && (r.verb.as_str(), r.code) == ("delete", 200)
            && r.user != refused.user
            && pod(r) == path(refused);
        (bound || deleted) && !since.is_negative() && since.unsigned_abs() <= EARLY
    };
    let again = |r: &Request| {
        r.user == refused.user
            && is_forbidden(r)
            && r.resource == refused.resource
            && path(r) == path(refused)
            // Later requests concern other pods of the same name.
            && when(refused).duration_since(when(r)).unsigned_abs() <= REPEATED
    };
    all.iter().any(given) && all.iter().filter(|r| again(r)).count() == 1
}

/// Requests from this address with these codes, of every user that the API server authenticated, without those that
/// were merely early or late.
#[must_use]
pub fn failed_from<'a>(requests: &'a [Request], source: &str, codes: &[u16]) -> Vec<&'a Request> {
    let failed = |(at, r): &(usize, &Request)| {
        r.source == source && codes.contains(&r.code) && !was_early(requests, *at) && !was_late(requests, *at)
    };
    requests.iter().enumerate().filter(failed).map(|(_, r)| r).collect()
}

/// Number of requests for each verb and resource.
#[must_use]
pub fn counts<'a>(requests: impl Iterator<Item = &'a Request>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for request in requests {
        *counts.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"kind":"Event","level":"Metadata","stage":"ResponseComplete","requestURI":"/api/v1/nodes/a/status?x","verb":"patch","user":{"username":"system:node:a","groups":["system:nodes"]},"sourceIPs":["172.30.0.10"],"userAgent":"orlop","objectRef":{"resource":"nodes","name":"a","subresource":"status"},"responseStatus":{"metadata":{},"code":403},"stageTimestamp":"2026-11-21T12:00:00.000000Z"}"#;

    #[test]
    fn refusals_of_nodes_are_found() {
        let text = format!("{LINE}\n{}\n{{\"half", LINE.replace("system:node:a", "admin"));
        let all = parse(&text).unwrap();
        assert_eq!(all.len(), 2);
        let refused = forbidden(&all);
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].resource, "nodes/status");
        assert_eq!(failed_from(&all, "172.30.0.10", &[401, 403]).len(), 2);
        assert!(failed_from(&all, "172.30.0.11", &[401, 403]).is_empty());
        assert_eq!(counts(all.iter())["patch nodes/status"], 2);
        assert!(parse("nonsense\n").is_err());
        let of = |resource: &str, field: &str, second: u32| Request {
            user: "system:node:a".to_owned(),
            resource: resource.to_owned(),
            uri: format!("/api/v1/x?timeoutSeconds={second}&fieldSelector=metadata.name%3D{field}"),
            at: format!("2026-11-21T12:00:{second:02}Z"),
            ..all[0].clone()
        };
        let soon = [of("secrets", "a", 1), Request { code: 401, ..of("secrets", "a", 2) }];
        assert_eq!(failed_from(&soon, "172.30.0.10", &[401, 403]), [&soon[1]]);
        assert!(was_early(&[of("secrets", "a", 1), of("secrets", "b", 30), of("secrets", "a", 2)], 0));
        assert!(was_early(&[of("secrets", "a", 1), of("secrets", "a", 30)], 0), "two pods");
        assert!(was_early(&[of("persistentvolumeclaims", "a", 1)], 0));
        assert!(was_early(&[of("serviceaccounts", "a", 1)], 0), "of a pod that wants a certificate");
        let for_good: Vec<Request> = [1, 2, 4, 8].map(|second| of("secrets", "a", second)).into();
        assert!(!was_early(&for_good, 0), "refused for good");
        assert!(!was_early(&[of("nodes", "a", 1)], 0));
    }

    #[test]
    fn a_status_after_the_next_pod_of_the_name_was_bound_is_late() {
        let of = |user: &str, pod: &str, sub: &str, code: u16, second: u32| Request {
            user: user.to_owned(),
            resource: format!("pods/{sub}"),
            uri: format!("/api/v1/namespaces/default/pods/{pod}/{sub}?x"),
            code,
            at: format!("2026-11-21T12:00:{second:02}Z"),
            ..parse(&format!("{LINE}\n")).unwrap().remove(0)
        };
        let bound = of("scheduler", "a-0", "binding", 201, 1);
        let refused = of("system:node:a", "a-0", "status", 403, 2);
        assert!(was_late(&[bound.clone(), refused.clone()], 1));
        assert!(!was_late(&[bound.clone(), refused.clone(), refused.clone()], 1), "it did not stop");
        assert!(!was_late(&[of("scheduler", "a-1", "binding", 201, 1), refused.clone()], 1), "another pod");
        assert!(!was_late(&[of("scheduler", "a-0", "binding", 409, 1), refused.clone()], 1), "not bound");
        assert!(!was_late(&[bound, of("system:node:a", "a-0", "status", 403, 20)], 1), "long after");
        // The pod's controller deleted it, and the next one has no node yet.
        let deleted = |user: &str, pod: &str| Request {
            resource: "pods".to_owned(),
            verb: "delete".to_owned(),
            uri: format!("/api/v1/namespaces/default/pods/{pod}"),
            ..of(user, pod, "", 200, 1)
        };
        assert!(was_late(&[deleted("controller", "a-0"), refused.clone()], 1));
        assert!(!was_late(&[deleted("controller", "a-1"), refused.clone()], 1), "another pod");
        assert!(!was_late(&[deleted("system:node:a", "a-0"), refused.clone()], 1), "by itself");
        // The refusal of the next pod is late in the same way.
        let next = of("system:node:a", "a-0", "status", 403, 40);
        let again = Request { at: "2026-11-21T12:00:39Z".to_owned(), ..deleted("controller", "a-0") };
        let all = [deleted("controller", "a-0"), refused, again, next];
        assert!(was_late(&all, 1) && was_late(&all, 3));
    }
}
