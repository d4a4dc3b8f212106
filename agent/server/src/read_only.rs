//! The read-only port (`readOnlyPort`, off unless configured): serves parts of the HTTPS API over plain HTTP,
//! without authentication.
//!
//! In: an address, [`NodeApi`]. Out: HTTP/1. Invariant: read only: no path of the debugging handlers, and no
//! method but GET. Upstream: `ListenAndServeKubeletReadOnlyServer` of pkg/kubelet/server/server.go.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use hyper::{Response, StatusCode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::{NodeApi, NodeTools, Paths, RequestHead, answer};
use crate::auth::Clock;
use crate::body::{Body, text};
use crate::bounded::{self, BOUNDS};

/// First segments of paths that anybody may see.
const OPEN: &[&str] = &["healthz", "pods", "stats", "metrics"];
/// Below these, but not for anybody: it has serial numbers of disks and addresses of cards.
const CLOSED: &str = "/metrics/node";
/// None of these handlers is served.
const PATHS: Paths = Paths {
    debugging: false,
    system_log: false,
    system_log_query: false,
    profiling: false,
    debug_flags: false,
    split_logs: false,
    checkpoint: false,
};

/// Serves until `stop`. `bound` has the address while it is listened on, otherwise `None`.
pub async fn serve<N: NodeApi + NodeTools>(
    node: Arc<N>,
    clock: Clock,
    address: SocketAddr,
    bound: watch::Sender<Option<SocketAddr>>,
    stop: CancellationToken,
) {
    let routes = Router::new().fallback(move |request: Request| {
        let (node, now) = (node.clone(), clock().wall);
        async move {
            let (parts, _) = request.into_parts();
            let path = parts.uri.path();
            if !path.split('/').nth(1).is_some_and(|first| OPEN.contains(&first)) || path == CLOSED {
                return text(StatusCode::NOT_FOUND, "404 page not found\n").map(axum::body::Body::new);
            }
            let query = parts.uri.query().unwrap_or_default();
            let asked = RequestHead { method: &parts.method, path, query, accept: None };
            let answered: Response<Body> = answer(&*node, PATHS, asked, now).await;
            answered.map(axum::body::Body::new)
        }
    });
    bounded::serve_always("the read-only port", address, routes, BOUNDS, bound, stop).await;
}
