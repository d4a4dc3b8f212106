//! agent-apiserver: the node's client of the API server.
//!
//! What comes in: a kubeconfig or a first-boot token, calls as values ([`agent_core::api::ApiCall`]). What goes
//! out: answers, watch events, certificates on disk. Decisions (when to ask for a certificate, what to write) are in
//! agent-core; here is only what touches TCP, TLS and the certificate directory. See docs/join.md.
#![forbid(unsafe_code)]
