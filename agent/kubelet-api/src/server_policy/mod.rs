//! server_policy: authentication and authorization of requests to the node's HTTPS API.
//!
//! # For the shell
//! ```text
//! request ─► certificate verified? ─► begin() ─┬─► Verdict
//!                                     AskToken ┴─► cache or TokenReview ─► conclude() ─► Verdict
//! Verdict::User ─► attributes(method, path) ─► next() ─► cache or SubjectAccessReview … ─► allowed | denied
//! ```
//! In: the credentials of a request, answers of the API server, the time. Out: verdicts, reviews to send,
//! texts of refusals. Invariants: a request is allowed only by a review, by its cached answer within its
//! time, or by `AlwaysAllow`; a review that fails allows nothing; a bad credential is refused, never treated
//! as missing; an unknown path needs the strictest permission (`nodes/proxy`). Upstream:
//! pkg/kubelet/server/auth.go, apiserver/pkg/authentication/request; fine-grained permissions: KEP-2862.

mod attributes;
mod authentication;
mod cache;
mod connection_slots;
mod desk;
pub mod node_areas;
pub mod policy;
mod reviews;
mod user;

#[cfg(test)]
mod tests;

pub use attributes::{Attributes, AuthorizationStep, attributes};
pub use authentication::{Begin, CertificateClaim, TokenAnswer, Verdict, bearer_token, begin, conclude};
pub use cache::ReviewCache;
pub use connection_slots::{AcceptedConnection, ConnectionLimits, ConnectionSlots};
pub use desk::{DeskLimits, RareLine, ReviewDesk, ReviewStep};
pub use reviews::{access_review, is_allowed, review_key, token_review, user_of_review};
pub use user::{Subject, User};
