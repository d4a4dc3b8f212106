//! `/exec`, `/attach`, `/portForward`: whom the client wants to speak with, and the tunnel there.

use agent_kubelet_api::streaming::upgrade::{Kind, StreamTransport, way};
use agent_kubelet_api::streaming::{StreamOptions, ports};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};

use super::{NodeApi, Streams, bridged, decoded, pairs, tunnel};
use crate::body::{Body, text};

/// What a stream leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamTo {
    /// A new process in the container.
    Exec(String, StreamOptions),
    /// The container's own process.
    Attach(String, StreamOptions),
    /// Ports of the pod; none if the stream itself names them.
    Ports(Vec<u16>),
}

/// A stream that a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRequest {
    /// UID of the pod.
    pub uid: String,
    /// What of it.
    pub to: StreamTo,
}

/// True if a request of this path is a stream.
pub(super) fn is_stream(path: &str) -> bool {
    matches!(path.split('/').nth(1), Some("exec" | "attach" | "portForward"))
}

pub(super) async fn answer<N: NodeApi>(
    node: &N,
    request: Request<Incoming>,
    streams: Streams,
) -> Response<Body> {
    let path = request.uri().path();
    let kind = if path.starts_with("/portForward/") { Kind::Ports } else { Kind::Command };
    let way = way(kind, bridged::wish(request.headers()), streams.extended);
    // Ports that are tunnelled are named in the tunnel.
    let query =
        request.uri().query().filter(|_| !matches!(way, StreamTransport::Tunnelled(_))).unwrap_or_default();
    let asked = match find(node, request.method(), path, query) {
        Ok(asked) => asked,
        Err((status, words)) => return text(status, format!("{words}\n")),
    };
    let (subresource, options) = match &asked.to {
        StreamTo::Exec(_, options) => ("exec", options.clone()),
        StreamTo::Attach(_, options) => ("attach", options.clone()),
        StreamTo::Ports(_) => ("portforward", StreamOptions::default()),
    };
    let url = match node.stream_url(asked).await {
        Ok(url) => url,
        Err(problem) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{problem}\n")),
    };
    if way != StreamTransport::Opaque {
        node.took_websocket(subresource);
    }
    match way {
        StreamTransport::Opaque => tunnel::lead(request, &url, streams.idle, streams.spawner).await,
        StreamTransport::Translated => bridged::translated(request, url, &options, streams),
        StreamTransport::Tunnelled(protocols) => bridged::tunnelled(request, &url, protocols, streams).await,
    }
}

/// Which stream a request asks for.
pub(super) fn find<N: NodeApi>(
    node: &N,
    method: &Method,
    path: &str,
    query: &str,
) -> Result<StreamRequest, (StatusCode, String)> {
    let bad = |error: agent_kubelet_api::streaming::StreamError| (StatusCode::BAD_REQUEST, error.to_string());
    if !matches!(*method, Method::GET | Method::POST) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed".to_owned()));
    }
    let segments: Option<Vec<String>> = path.split('/').skip(1).map(|s| decoded(s, false)).collect();
    let segments = segments.unwrap_or_default();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (verb, namespace, pod, uid, container) = match segments.as_slice() {
        ["portForward", namespace, pod] => ("portForward", *namespace, *pod, None, ""),
        ["portForward", namespace, pod, uid] => ("portForward", *namespace, *pod, Some(*uid), ""),
        [verb, namespace, pod, container] => (*verb, *namespace, *pod, None, *container),
        [verb, namespace, pod, uid, container] => (*verb, *namespace, *pod, Some(*uid), *container),
        _ => return Err((StatusCode::NOT_FOUND, "404 page not found".to_owned())),
    };
    let query = pairs(query);
    let query = || query.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let to = match verb {
        "portForward" => StreamTo::Ports(ports(query()).map_err(bad)?),
        "exec" => StreamTo::Exec(container.to_owned(), StreamOptions::from_query(query()).map_err(bad)?),
        _ => StreamTo::Attach(container.to_owned(), StreamOptions::from_query(query()).map_err(bad)?),
    };
    let found = node.pod(namespace, pod).map(|(found, _)| found.metadata.uid.clone().unwrap_or_default());
    match found {
        Some(found) if uid.is_none_or(|uid| uid == found) => Ok(StreamRequest { uid: found, to }),
        _ => Err((StatusCode::NOT_FOUND, "pod does not exist".to_owned())),
    }
}
