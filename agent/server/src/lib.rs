//! agent-server: the node's HTTP endpoints. `healthz` on 10248 for programs on the node, the HTTPS API on
//! 10250 for the API server and other clients of the cluster. See docs/reference/server.md. Upstream:
//! pkg/kubelet/server.
//!
//! ```text
//! TCP ─► https (limits) ─► tls (who shows what) ─► auth (who may) ─► api (routes) ─► NodeApi (the daemon's view)
//! ```
//! In: a listener, the serving certificate, client CAs, an API server for reviews, the daemon's view of the
//! node. Out: answers. Decisions about access are in [`agent_kubelet_api::server_policy`].
#![forbid(unsafe_code)]

pub mod api;
pub mod auth;
pub mod body;
mod bounded;
mod connections;
pub mod healthz;
pub mod https;
mod listening;
mod moving;
pub mod read_only;
pub mod tls;
