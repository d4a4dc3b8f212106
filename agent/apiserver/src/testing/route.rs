//! HTTP requests as requests to the fake.
//!
//! In: method, path, query, body. Out: what is asked of which object, or a refusal. Invariant: knows the paths that a
//! node and these tests use, and answers 404 to the rest.

use std::collections::BTreeMap;

use agent_sim::fake_api::{DeleteOptions, Key, Resource, Selector, Status, Verb};
use hyper::Method;
use serde_json::Value;

/// What a request wants.
#[derive(Debug)]
pub(super) enum RequestTarget {
    One(Key, Verb),
    List(Resource, Selector),
    Watch(Resource, Selector, WatchOptions),
}

/// The query of a watch.
#[derive(Debug, Default)]
pub(super) struct WatchOptions {
    pub(super) version: Option<u64>,
    pub(super) initial: bool,
    pub(super) bookmarks: bool,
    pub(super) timeout_s: Option<u64>,
}

pub(super) fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    let plain = |v: &str| {
        [("%3D", "="), ("%3d", "="), ("%2C", ",")].iter().fold(v.to_owned(), |v, (a, b)| v.replace(a, b))
    };
    pairs.map(|(k, v)| (k.to_owned(), plain(v))).collect()
}

pub(super) fn route(
    method: &Method,
    path: &str,
    query_text: &str,
    body: &[u8],
) -> Result<RequestTarget, Status> {
    let unknown = || Status {
        code: 404,
        reason: "NotFound",
        message: format!("no such path {path}"),
        retry_after_s: None,
    };
    let rest = path
        .strip_prefix("/api/v1/")
        .or_else(|| path.strip_prefix("/apis/coordination.k8s.io/v1/"))
        .or_else(|| path.strip_prefix("/apis/certificates.k8s.io/v1/"))
        .ok_or_else(unknown)?;
    let mut parts: Vec<&str> = rest.split('/').collect();
    let namespace = match parts.as_slice() {
        ["namespaces", namespace, _, ..] => Some((*namespace).to_owned()),
        _ => None,
    };
    if namespace.is_some() {
        parts.drain(..2);
    }
    let resource = Resource::ALL.into_iter().find(|r| r.plural() == parts[0]).ok_or_else(unknown)?;
    let (name, sub) = (parts.get(1).copied().unwrap_or_default(), parts.get(2).copied());
    let key = Key::new(resource, namespace.as_deref().unwrap_or_default(), name);
    let json = || -> Result<Value, Status> {
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(body).map_err(|e| Status::bad_request(&e.to_string()))
    };
    let verb = match (method, name, sub) {
        (&Method::GET, "", None) => return Ok(collection(resource, namespace, query_text)),
        (&Method::GET, _, None) => Verb::Get,
        (&Method::POST, "", None) => Verb::Create(json()?),
        (&Method::PUT, _, None) if !name.is_empty() => Verb::Replace(json()?),
        (&Method::PATCH, _, None) if !name.is_empty() => Verb::Patch(json()?),
        (&Method::PATCH, _, Some("status")) => Verb::PatchStatus(json()?),
        (&Method::DELETE, _, None) if !name.is_empty() => Verb::Delete(DeleteOptions::from_body(&json()?)),
        _ => return Err(unknown()),
    };
    Ok(RequestTarget::One(key, verb))
}

fn collection(resource: Resource, namespace: Option<String>, text: &str) -> RequestTarget {
    let query = query(text);
    let fields = query.get("fieldSelector").map(String::as_str).unwrap_or_default();
    let of = |name: &str| {
        let mut fields = fields.split(',').filter_map(|field| field.split_once('='));
        fields.find(|(field, _)| *field == name).map(|(_, value)| value.to_owned())
    };
    let selector = Selector { namespace, node_name: of("spec.nodeName"), name: of("metadata.name") };
    let is = |key: &str| query.get(key).is_some_and(|v| v == "true" || v == "1");
    if !is("watch") {
        return RequestTarget::List(resource, selector);
    }
    let options = WatchOptions {
        version: query.get("resourceVersion").and_then(|v| v.parse().ok()),
        initial: is("sendInitialEvents"),
        bookmarks: is("allowWatchBookmarks"),
        timeout_s: query.get("timeoutSeconds").and_then(|v| v.parse().ok()),
    };
    RequestTarget::Watch(resource, selector, options)
}
